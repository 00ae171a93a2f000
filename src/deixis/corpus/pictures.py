"""The pictures of a corpus: files in a folder or zip, looked up by an image's `file`. `deixis.vision` decodes them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from posixpath import splitext
from typing import Protocol

from deixis.corpus.records import Image
from deixis.corpus.tree import FileTree, FolderTree, open_tree
from deixis.errors import InputError

#: Suffixes of picture files. The actual format is detected when a picture is decoded.
PICTURE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif")
)
#: Largest size, in bytes, of a picture file.
PICTURE_LIMIT = 256 << 20


class Pictures(Protocol):
    """Returns the encoded bytes (JPEG, PNG …) of an image's picture."""

    def has(self, image: Image) -> bool:
        """Whether the picture file exists. It may still be impossible to decode."""

    def read(self, image: Image) -> bytes:
        """The bytes of the picture file. Raises `InputError` that names the image."""


class StoredPictures:
    """Pictures in a folder or zip, found by path, else by file name and the longest matching end of the path.

    Names are compared in Unicode's composed form (macOS writes decomposed names), with backslashes as slashes (some
    archives and tables from Windows have them between folders).
    """

    def __init__(self, tree: FileTree) -> None:
        self.tree = tree
        self._names = frozenset(picture_names(tree))
        self._by_file_name: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._by_file_name.setdefault(_composed(name).rpartition("/")[2], []).append(name)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """The names of all pictures, sorted."""
        return sorted(self._names)

    def has(self, image: Image) -> bool:
        return bool(self.locate(image.file))

    def read(self, image: Image) -> bytes:
        names = self.locate(image.file)
        if len(names) != 1:
            problem = f"has {', '.join(names[:3])}: which is" if names else "has no picture"
            raise InputError(self.tree.path, f"{problem} {image.file or image.id!r}", f"image {image.id}")
        return self.tree.read(names[0], PICTURE_LIMIT)

    def locate(self, file: str) -> list[str]:
        """The names in the tree that match an image's `file` best: one, none, or several equally good ones."""
        if file in self._names:
            return [file]
        wanted = _composed(file).split("/")
        best, matches = 0, []
        for name in self._by_file_name.get(wanted[-1], ()):
            length = _common_end(_composed(name).split("/"), wanted)
            if length > best:
                best, matches = length, [name]
            elif length == best:
                matches.append(name)
        return matches


def _composed(name: str) -> str:
    return (name if name.isascii() else unicodedata.normalize("NFC", name)).replace("\\", "/")


def _common_end(left: list[str], right: list[str]) -> int:
    """Number of equal path parts, counted from the end."""
    length = 0
    for left_part, right_part in zip(reversed(left), reversed(right), strict=False):
        if left_part != right_part:
            break
        length += 1
    return length


class CombinedPictures:
    """Pictures from several sources. `sources` maps an image id to its source and to the image as known there."""

    def __init__(self, sources: Mapping[str, tuple[Pictures, Image]]) -> None:
        self._sources = dict(sources)

    def has(self, image: Image) -> bool:
        if image.id not in self._sources:
            return False
        pictures, original = self._sources[image.id]
        return pictures.has(original)

    def read(self, image: Image) -> bytes:
        if image.id not in self._sources:
            raise InputError(image.file or image.id, "no such picture in any of the combined corpora")
        pictures, original = self._sources[image.id]
        return pictures.read(original)


class RenderedPictures:
    """Pictures rendered on demand by a function, as in the embedded corpus."""

    def __init__(self, ids: Iterable[str], render: Callable[[str], bytes]) -> None:
        self._ids = frozenset(ids)
        self._render = render

    def has(self, image: Image) -> bool:
        return image.id in self._ids

    def read(self, image: Image) -> bytes:
        if image.id not in self._ids:
            raise InputError(image.id, "no such rendered picture")
        return self._render(image.id)


def picture_names(tree: FileTree) -> list[str]:
    return [name for name in tree.names() if splitext(name)[1].lower() in PICTURE_SUFFIXES]


def open_pictures(path: str | Path) -> StoredPictures:
    """Open a folder or zip of pictures. Raises `InputError` if it has none."""
    pictures = StoredPictures(open_tree(path))
    if not len(pictures):
        raise InputError(path, "has no pictures")
    return pictures


#: A zip in the folder of a corpus is searched for pictures if its name contains one of these.
_ZIP_NAMES = ("image", "picture", "photo", "dataset", "train20", "val20", "test20", "vg_100k")


def find_pictures(tree: FileTree, images: Iterable[Image]) -> Pictures | None:
    """The pictures that came with a corpus: inside its tree, or in a zip or folder in the same folder.

    If several of these sources have pictures, the source with the most pictures is tried first for every image.
    """
    images = tuple(images)
    # A sample of a few hundred images shows which sources have pictures.
    sample = images[:: max(1, len(images) // 200)]
    sources = [(sum(map(source.has, sample)), source) for source in map(StoredPictures, _candidates(tree, images))]
    useful = [source for count, source in sorted(sources, key=lambda pair: -pair[0]) if count]
    if len(useful) < 2 or all(map(useful[0].has, sample)):
        return useful[0] if useful else None
    combined: dict[str, tuple[Pictures, Image]] = {}
    for image in images:
        source = next((source for source in useful if source.has(image)), None)
        if source is not None:
            combined[image.id] = (source, image)
    return CombinedPictures(combined)


def _candidates(tree: FileTree, images: tuple[Image, ...]) -> Iterator[FileTree]:
    yield tree
    folder = tree.path if tree.path.is_dir() else tree.path.parent
    for file in sorted(folder.glob("*.zip")):
        if file != tree.path and file.is_file() and any(part in file.name.lower() for part in _ZIP_NAMES):
            try:
                yield open_tree(file)
            except InputError:
                # Report a broken zip inside the corpus folder, but ignore one in the folder around a file.
                if folder == tree.path:
                    raise
    if folder == tree.path:
        return
    for name in ("images", "Images"):
        if (folder / name).is_dir():
            yield FolderTree(folder / name)
    # The folder of a single file may be anything, so it is searched only if it has some of the pictures.
    if any((folder / image.file).is_file() for image in images[:20] if image.file):
        yield FolderTree(folder)
