"""Where a corpus' pictures are: files in a folder or zip, found by an image's `file`. Decoding is the vision room's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from deixis.corpus.records import Image
from deixis.corpus.tree import FileTree, open_tree
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
    """Pictures in a folder or zip. An image finds its own by path, else by file name alone."""

    def __init__(self, tree: FileTree) -> None:
        self.tree = tree
        self._names = frozenset(picture_names(tree))
        self._by_file_name = {PurePosixPath(name).name: name for name in sorted(self._names, reverse=True)}

    def __len__(self) -> int:
        return len(self._names)

    def has(self, image: Image) -> bool:
        return self._locate(image) is not None

    def read(self, image: Image) -> bytes:
        name = self._locate(image)
        if name is None:
            raise InputError(self.tree.path, f"has no picture {image.file or image.id!r}", f"image {image.id}")
        return self.tree.read(name, PICTURE_LIMIT)

    def _locate(self, image: Image) -> str | None:
        if image.file in self._names:
            return image.file
        return self._by_file_name.get(PurePosixPath(image.file).name)


class RenderedPictures:
    """Pictures that a function makes when asked: the embedded corpus keeps none on disk."""

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
    return [name for name in tree.names() if PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES]


def open_pictures(path: str | Path) -> StoredPictures:
    """Open a folder or zip of pictures; one without any is an `InputError`."""
    pictures = StoredPictures(open_tree(path))
    if not len(pictures):
        raise InputError(path, "holds no pictures")
    return pictures


def find_pictures(tree: FileTree, images: Iterable[Image]) -> StoredPictures | None:
    """The pictures that came with a corpus: inside its tree, or in a zip or folder beside its files.

    Where several places hold some, the one with most of the first images wins.
    """
    beside = tree.path if tree.path.is_dir() else tree.path.parent
    candidates: list[FileTree] = [tree]
    candidates += [open_tree(zip_file) for zip_file in sorted(beside.glob("*image*.zip")) if zip_file != tree.path]
    if not tree.path.is_dir():
        candidates += [open_tree(beside / name) for name in ("images", "Images") if (beside / name).is_dir()]
    sample = [image for _, image in zip(range(200), images, strict=False)]
    best: StoredPictures | None = None
    most = 0
    for candidate in candidates:
        pictures = StoredPictures(candidate)
        found = sum(pictures.has(image) for image in sample)
        if found > most:
            best, most = pictures, found
    return best
