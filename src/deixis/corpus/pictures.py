"""Where a corpus' pictures are: files in a folder or zip, found by an image's `file`. Decoding is the vision room's."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from posixpath import splitext
from typing import Protocol

from deixis.corpus.records import Image
from deixis.corpus.tree import FileTree, FolderTree, open_tree
from deixis.errors import InputError

#: Pictures Deixis reads, by suffix; what is really inside is decided when one is decoded.
PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
#: No picture file larger than this is read.
PICTURE_LIMIT = 256 << 20


class Pictures(Protocol):
    """Gives the encoded bytes (JPEG, PNG …) of an image's picture."""

    def has(self, image: Image) -> bool:
        """Whether the picture is there; says nothing of whether it can be decoded."""

    def read(self, image: Image) -> bytes:
        """The picture file's bytes, or an `InputError` that names the image."""


class StoredPictures:
    """Pictures in a folder or zip. An image finds its own by path, else by file name and as much of the path as agrees.

    Names compare in Unicode's composed form (macOS writes decomposed ones), and a backslash compares as a slash: it is
    what some archives and tables from Windows have between folders.
    """

    def __init__(self, tree: FileTree) -> None:
        self.tree = tree
        self._names = frozenset(picture_names(tree))
        self._by_file_name: dict[str, list[str]] = {}
        for name in sorted(self._names):
            self._by_file_name.setdefault(_composed(name).rpartition("/")[2], []).append(name)

    def __len__(self) -> int:
        return len(self._names)

    def has(self, image: Image) -> bool:
        return bool(self.locate(image.file))

    def read(self, image: Image) -> bytes:
        names = self.locate(image.file)
        if len(names) != 1:
            problem = f"has {', '.join(names[:3])}: which is" if names else "has no picture"
            raise InputError(self.tree.path, f"{problem} {image.file or image.id!r}", f"image {image.id}")
        return self.tree.read(names[0], PICTURE_LIMIT)

    def locate(self, file: str) -> list[str]:
        """The names in the tree that agree best with an image's `file`: one, none, or several equally good ones."""
        if file in self._names:
            return [file]
        wanted = _composed(file).split("/")
        best, found = 0, []
        for name in self._by_file_name.get(wanted[-1], ()):
            agree = _common_end(_composed(name).split("/"), wanted)
            if agree > best:
                best, found = agree, [name]
            elif agree == best:
                found.append(name)
        return found


def _composed(name: str) -> str:
    return (name if name.isascii() else unicodedata.normalize("NFC", name)).replace("\\", "/")


def _common_end(left: list[str], right: list[str]) -> int:
    """How many path parts agree, from the last one on."""
    agree = 0
    for a, b in zip(reversed(left), reversed(right), strict=False):
        if a != b:
            break
        agree += 1
    return agree


class CombinedPictures:
    """Pictures from several places: each image's id says which, and under which image that place knows it."""

    def __init__(self, places: Mapping[str, tuple[Pictures, Image]]) -> None:
        self._places = dict(places)

    def has(self, image: Image) -> bool:
        if image.id not in self._places:
            return False
        pictures, original = self._places[image.id]
        return pictures.has(original)

    def read(self, image: Image) -> bytes:
        if image.id not in self._places:
            raise InputError(image.file or image.id, "no such picture in any of the combined places")
        pictures, original = self._places[image.id]
        return pictures.read(original)


class RenderedPictures:
    """Pictures that a function makes when asked, as those of the embedded corpus."""

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
    """Open a folder or zip of pictures; one without any is an `InputError`."""
    pictures = StoredPictures(open_tree(path))
    if not len(pictures):
        raise InputError(path, "holds no pictures")
    return pictures


#: A zip beside a corpus' files is looked into when its name holds one of these.
_ZIP_NAMES = ("image", "picture", "photo", "dataset", "train20", "val20", "test20", "vg_100k")


def find_pictures(tree: FileTree, images: Iterable[Image]) -> Pictures | None:
    """The pictures that came with a corpus: inside its tree, or in a zip or folder beside its files.

    Where several places hold some, an image's come from the place with most of them that has it.
    """
    images = tuple(images)
    # A few hundred images from all over the corpus tell which places matter.
    sample = images[:: max(1, len(images) // 200)]
    places = [(sum(map(place.has, sample)), place) for place in map(StoredPictures, _candidates(tree, images))]
    useful = [place for found, place in sorted(places, key=lambda pair: -pair[0]) if found]
    if len(useful) < 2 or all(map(useful[0].has, sample)):
        return useful[0] if useful else None
    combined: dict[str, tuple[Pictures, Image]] = {}
    for image in images:
        place = next((place for place in useful if place.has(image)), None)
        if place is not None:
            combined[image.id] = (place, image)
    return CombinedPictures(combined)


def _candidates(tree: FileTree, images: tuple[Image, ...]) -> Iterator[FileTree]:
    yield tree
    folder = tree.path if tree.path.is_dir() else tree.path.parent
    for file in sorted(folder.glob("*.zip")):
        if file != tree.path and file.is_file() and any(part in file.name.lower() for part in _ZIP_NAMES):
            try:
                yield open_tree(file)
            except InputError:
                # A broken zip in the corpus' own folder is the user's to know of; one in a folder around it is not.
                if folder == tree.path:
                    raise
    if folder == tree.path:
        return
    for name in ("images", "Images"):
        if (folder / name).is_dir():
            yield FolderTree(folder / name)
    # The folder around a single file may be anything, so it is searched only where it plainly has the pictures.
    if any((folder / image.file).is_file() for image in images[:20] if image.file):
        yield FolderTree(folder)
