"""The vectors of a corpus' words: the part of a large table that is stored with features fitted on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.files import atomic_write
from deixis.text.word_vectors import WordVectors

VECTORS = "words.safetensors"
#: Where the words were in files that had them beside the vectors.
WORDS = "words.json"


class _Words(msgspec.Struct, frozen=True):
    """Words in the order of their vectors, and words that were looked up but have no vector."""

    known: tuple[str, ...]
    unknown: tuple[str, ...]


class KeptVectors(WordVectors):
    """Each word under the form in which it was met, with the vector that the whole table gave it.

    A hyphenated word that was not met has the mean of its parts that were; any other has no vector.
    """

    def __init__(self, words: _Words, table: NDArray[np.float32], source: str) -> None:
        super().__init__(table, {word: row for row, word in enumerate(words.known)}.get, source=source)
        self._words = words

    @classmethod
    def of(cls, vectors: WordVectors, words: Iterable[str]) -> KeptVectors:
        met = sorted(set(words))
        array, found = vectors.look_up(met)
        known, unknown = (tuple(word for word, has in zip(met, found, strict=True) if has == kind) for kind in (1, 0))
        return cls(_Words(known, unknown), array[found], vectors.source)

    def unmet(self, words: Iterable[str]) -> list[str]:
        """The words that were never looked up."""
        return sorted({*words}.difference(self._words.known, self._words.unknown))

    def with_words(self, vectors: WordVectors, words: Sequence[str]) -> KeptVectors:
        """A copy with the vectors of more words."""
        more = KeptVectors.of(vectors, self.unmet(words))
        both = _Words(self._words.known + more._words.known, self._words.unknown + more._words.unknown)
        return KeptVectors(both, np.concatenate([self.table, more.table]), self.source)

    def save(self, folder: Path) -> None:
        """Write a safetensors file with the words beside their vectors: one, so that no crash or rival parts them."""
        about = {"source": self.source, "words": msgspec.json.encode(self._words).decode()}
        with atomic_write(folder / VECTORS) as stream:
            stream.write(safetensors.numpy.save({"vectors": np.ascontiguousarray(self.table)}, about))

    @classmethod
    def load(cls, folder: Path) -> KeptVectors:
        """Read what `save` wrote."""
        path = folder / VECTORS
        try:
            with safetensors.safe_open(path, "numpy") as file:
                table, about = file.get_tensor("vectors"), file.metadata() or {}
            words = msgspec.json.decode(about.get("words") or (folder / WORDS).read_bytes(), type=_Words)
        except (msgspec.DecodeError, safetensors.SafetensorError, OSError) as fault:
            raise InputError(path, f"does not hold kept word vectors ({fault})") from None
        if table.ndim != 2 or len(table) != len(words.known):
            raise InputError(path, f"has an array of shape {table.shape} for {len(words.known)} words")
        return cls(words, table, about.get("source", ""))
