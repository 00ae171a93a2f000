"""Datasets: records, readers and writers of all formats, splits, statistics, and the rendered default corpus.

Readers and writers are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deixis.corpus.leak_guard import TrainingSet, training_set
from deixis.corpus.records import (
    NOT_VISUAL,
    NOT_VISUAL_CHAIN,
    TYPES,
    Box,
    Caption,
    Chain,
    Corpus,
    Image,
    Phrase,
    make_caption,
    make_image,
)

if TYPE_CHECKING:
    from deixis.corpus.combine import concat, cut, join
    from deixis.corpus.opening import open_corpus, write_corpus

__all__ = [
    "NOT_VISUAL",
    "NOT_VISUAL_CHAIN",
    "TYPES",
    "Box",
    "Caption",
    "Chain",
    "Corpus",
    "Image",
    "Phrase",
    "TrainingSet",
    "concat",
    "cut",
    "join",
    "make_caption",
    "make_image",
    "open_corpus",
    "training_set",
    "write_corpus",
]

_MODULES = {
    "concat": "combine",
    "cut": "combine",
    "join": "combine",
    "open_corpus": "opening",
    "write_corpus": "opening",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
