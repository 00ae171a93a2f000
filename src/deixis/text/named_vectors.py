"""Word vectors as recipes name them: spaCy's or those of a file, and the part of them that is stored with a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.files import TABLE_LIMIT, atomic_write, read_regular, require_regular
from deixis.text.vector_files import read_word_vectors, source_of
from deixis.text.word_vectors import SPACY, WordVectors, spacy_vectors

VECTORS = "words.safetensors"
#: Older folders have the words in a file of their own.
WORDS = "words.json"


def named_vectors(name: str) -> WordVectors:
    """spaCy's vectors, or those of the file of this name."""
    return spacy_vectors() if name == SPACY else read_word_vectors(name)


class _Words(msgspec.Struct, frozen=True):
    """Words in the order of their vectors, and words that were looked up but have no vector."""

    known: tuple[str, ...]
    unknown: tuple[str, ...]


class StoredVectors(WordVectors):
    """The vectors of some words, looked up in a larger table.

    A hyphenated word that is not stored has the mean of its parts that are; any other has no vector.
    """

    def __init__(self, words: _Words, table: NDArray[np.float32], source: str) -> None:
        super().__init__(table, {word: row for row, word in enumerate(words.known)}.get, source=source)
        self._words = words

    @classmethod
    def of(cls, vectors: WordVectors, words: Iterable[str]) -> StoredVectors:
        """Look up words in a table."""
        wanted = sorted(set(words))
        array, has_vector = vectors.look_up(wanted)
        known, unknown = (
            tuple(word for word, has in zip(wanted, has_vector, strict=True) if has == kind) for kind in (1, 0)
        )
        return cls(_Words(known, unknown), array[has_vector], vectors.source)

    def not_looked_up(self, words: Iterable[str]) -> list[str]:
        """The words that were never looked up."""
        return sorted({*words}.difference(self._words.known, self._words.unknown))

    def with_words(self, vectors: WordVectors, words: Sequence[str]) -> StoredVectors:
        """A copy with the vectors of more words."""
        more = StoredVectors.of(vectors, self.not_looked_up(words))
        both = _Words(self._words.known + more._words.known, self._words.unknown + more._words.unknown)
        return StoredVectors(both, np.concatenate([self.table, more.table]), self.source)

    def updated(self, name: str, words: Sequence[str]) -> StoredVectors | None:
        """With these words too; None if `name` no longer names the vectors that these come from.

        Files and spaCy are opened only if a word is missing, so stored vectors work without either.
        """
        path = Path(name)
        if name != SPACY and path.is_file() and source_of(path) != self.source:
            return None
        if not self.not_looked_up(words):
            return self
        vectors = named_vectors(name)
        return self.with_words(vectors, words) if vectors.source == self.source else None

    def save(self, folder: Path) -> None:
        """Write one safetensors file, so that words and vectors always belong together."""
        metadata = {"source": self.source, "words": msgspec.json.encode(self._words).decode()}
        with atomic_write(folder / VECTORS) as stream:
            stream.write(safetensors.numpy.save({"vectors": np.ascontiguousarray(self.table)}, metadata))

    @classmethod
    def load(cls, folder: Path) -> StoredVectors:
        """Read what `save` wrote."""
        path = folder / VECTORS
        try:
            with safetensors.safe_open(require_regular(path), "numpy") as file:
                table, metadata = file.get_tensor("vectors"), file.metadata() or {}
            words = msgspec.json.decode(metadata.get("words") or read_regular(folder / WORDS, TABLE_LIMIT), type=_Words)
        except (msgspec.DecodeError, safetensors.SafetensorError, OSError) as fault:
            raise InputError(path, f"does not hold word vectors ({fault})") from None
        if table.ndim != 2 or len(table) != len(words.known):
            raise InputError(path, f"has an array of shape {table.shape} for {len(words.known)} words")
        return cls(words, table, metadata.get("source", ""))
