"""One file a format. Each gives `detect`, `read`, `write` and `keep` and is listed here.

`keep` says what of a corpus the format can hold: for every corpus, `read(write(corpus)) == keep(corpus)`. The tests
hold every format to that, and `deixis corpus convert` tells from it what a conversion would drop.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from deixis.corpus.records import Corpus
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError


class Format(Protocol):
    """What a format's module offers."""

    #: One line for people.
    DESCRIPTION: str

    def detect(self, tree: FileTree) -> bool:
        """Whether the tree looks like this format, from its names and a few bytes."""

    def read(self, tree: FileTree) -> Corpus:
        """The corpus, without pictures; a fault is an `InputError` naming the file and the place."""

    def write(self, corpus: Corpus, out: Path) -> None:
        """Write all that `keep` keeps; to a folder, or to a file where `out` has the format's suffix."""

    def keep(self, corpus: Corpus) -> Corpus:
        """The corpus as it comes back after writing and reading."""


#: Name → module, in the order in which they are tried: the most particular first.
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
    """The format of that name; modules are imported when first asked for."""
    if name not in FORMATS:
        raise DeixisError(f"unknown corpus format {name!r}; known: {', '.join(FORMATS)}")
    return cast(Format, import_module(f"deixis.corpus.formats.{FORMATS[name]}"))
