"""Loads the word vectors named in a recipe: spaCy's, or those of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deixis.text.kept_vectors import KeptVectors
from deixis.text.vector_files import read_word_vectors, source_of
from deixis.text.word_vectors import WordVectors, spacy_vectors

SPACY = "en_core_web_md"


def named_vectors(name: str) -> WordVectors:
    return spacy_vectors() if name == SPACY else read_word_vectors(name)


def up_to_date(kept: KeptVectors, name: str, words: Sequence[str]) -> KeptVectors | None:
    """Kept vectors with these words too, or None where the name stands for other vectors today.

    A file is looked at where it is at hand, spaCy's vectors where they are needed: kept ones are used without either.
    """
    path = Path(name)
    if name != SPACY and path.is_file() and source_of(path) != kept.source:
        return None
    if not kept.unmet(words):
        return kept
    vectors = named_vectors(name)
    return kept.with_words(vectors, words) if vectors.source == kept.source else None
