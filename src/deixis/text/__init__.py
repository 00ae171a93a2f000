"""Words and sentences: tokens, vocabulary, word vectors, Fisher vectors, bag-of-words features, phrases, types, trees.

Names are imported when first asked for: tokens alone should not cost scikit-learn's import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deixis.text.bag_of_words import MeanVectors, tfidf
    from deixis.text.chunker import Chunker
    from deixis.text.entity_types import EntityTypes
    from deixis.text.fisher import FisherVectors
    from deixis.text.mixtures import DiagonalMixture
    from deixis.text.parsing import load_parser
    from deixis.text.streamed_pca import StreamedPCA
    from deixis.text.tokens import tokenize, tokens_of
    from deixis.text.trees import Tree, read_trees, write_trees
    from deixis.text.vector_files import read_word_vectors
    from deixis.text.vocabulary import Vocabulary
    from deixis.text.word_vectors import WordVectors, spacy_vectors

__all__ = [
    "Chunker",
    "DiagonalMixture",
    "EntityTypes",
    "FisherVectors",
    "MeanVectors",
    "StreamedPCA",
    "Tree",
    "Vocabulary",
    "WordVectors",
    "load_parser",
    "read_trees",
    "read_word_vectors",
    "spacy_vectors",
    "tfidf",
    "tokenize",
    "tokens_of",
    "write_trees",
]

_MODULES = {
    "Chunker": "chunker",
    "DiagonalMixture": "mixtures",
    "EntityTypes": "entity_types",
    "FisherVectors": "fisher",
    "MeanVectors": "bag_of_words",
    "StreamedPCA": "streamed_pca",
    "Tree": "trees",
    "Vocabulary": "vocabulary",
    "WordVectors": "word_vectors",
    "load_parser": "parsing",
    "read_trees": "trees",
    "read_word_vectors": "vector_files",
    "spacy_vectors": "word_vectors",
    "tfidf": "bag_of_words",
    "tokenize": "tokens",
    "tokens_of": "tokens",
    "write_trees": "trees",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
