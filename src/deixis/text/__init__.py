"""Words and sentences as numbers: tokens, vocabulary, word vectors, Fisher vectors, plain bag-of-words features.

Names are imported when first asked for: tokens alone should not cost scikit-learn's import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deixis.text.bag_of_words import MeanVectors, tfidf
    from deixis.text.fisher import FisherVectors
    from deixis.text.mixtures import DiagonalMixture
    from deixis.text.streamed_pca import StreamedPCA
    from deixis.text.tokens import tokenize, tokens_of
    from deixis.text.vector_files import read_word_vectors
    from deixis.text.vocabulary import Vocabulary
    from deixis.text.word_vectors import WordVectors, spacy_vectors

__all__ = [
    "DiagonalMixture",
    "FisherVectors",
    "MeanVectors",
    "StreamedPCA",
    "Vocabulary",
    "WordVectors",
    "read_word_vectors",
    "spacy_vectors",
    "tfidf",
    "tokenize",
    "tokens_of",
]

_MODULES = {
    "DiagonalMixture": "mixtures",
    "FisherVectors": "fisher",
    "MeanVectors": "bag_of_words",
    "StreamedPCA": "streamed_pca",
    "Vocabulary": "vocabulary",
    "WordVectors": "word_vectors",
    "read_word_vectors": "vector_files",
    "spacy_vectors": "word_vectors",
    "tfidf": "bag_of_words",
    "tokenize": "tokens",
    "tokens_of": "tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
