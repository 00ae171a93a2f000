"""Corpus formats, one module each, with the functions `detect`, `read`, `write` and `keep`.

`keep` returns the part of a corpus that the format can store: `read(write(corpus)) == keep(corpus)` for every corpus.
The tests check this for every format, and `deixis corpus convert` uses it to report what a conversion would lose.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from deixis.corpus.records import Corpus
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError


class Format(Protocol):
    """The interface of a format's module."""

    #: One line for the help.
    DESCRIPTION: str

    def detect(self, tree: FileTree) -> bool:
        """Whether the tree looks like this format, judged by its names and a few bytes."""

    def read(self, tree: FileTree) -> Corpus:
        """Read the corpus, without pictures. Raises `InputError` that names the file and the location in it."""

    def write(self, corpus: Corpus, out: Path) -> None:
        """Write `keep(corpus)` to a folder, or to a file if `out` has the format's suffix."""

    def keep(self, corpus: Corpus) -> Corpus:
        """The corpus as it is after writing and reading it."""


#: Name → module, in the order of detection: the most specific first.
FORMATS = {
    "deixis": "native",
    "flickr30k-entities": "entities",
    "flickr8k": "flickr8k",
    "karpathy": "karpathy",
    "grounding": "grounding",
    "coco": "coco",
    "region-phrase": "region_phrase",
    "folder": "folder",
}


def get_format(name: str) -> Format:
    """The format with this name. Its module is imported on first use."""
    if name not in FORMATS:
        raise DeixisError(f"unknown corpus format {name!r}; known: {', '.join(FORMATS)}")
    return cast(Format, import_module(f"deixis.corpus.formats.{FORMATS[name]}"))
