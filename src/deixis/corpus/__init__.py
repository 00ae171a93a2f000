"""What a dataset is: records, readers and writers of every format, splits, statistics, the rendered default corpus."""

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
    "make_caption",
    "make_image",
    "open_corpus",
    "write_corpus",
]
