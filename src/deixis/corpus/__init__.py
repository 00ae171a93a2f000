"""Datasets: records, readers and writers of all formats, splits, statistics, and the rendered default corpus."""

from deixis.corpus.combine import concat, cut, join
from deixis.corpus.opening import open_corpus, write_corpus
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
from deixis.corpus.training import TrainingSet, training_set

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
