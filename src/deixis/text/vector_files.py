"""Word vectors as recipes name them: spaCy's, or those of a word2vec `.bin` or `.txt`, fastText `.vec` or GloVe file.

The files are not trusted and can be larger than memory: they are streamed (text) or memory-mapped (binary), sizes in a
header are checked against the file size before anything is allocated, and errors name the line or word.
"""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.files import TABLE_LIMIT, atomic_write, open_regular, read_regular, require_regular
from deixis.text.word_vectors import SPACY, WordVectors, spacy_vectors

#: Widest vectors and longest words that are taken for real.
DIMENSION_LIMIT = 8192
WORD_LIMIT = 2048
#: A number of a text file has at most this many characters, its space included.
_NUMBER_LIMIT = 32
#: How fastText's own .bin begins, which holds a model and no table of words.
_FASTTEXT_MODEL = (793_712_314).to_bytes(4, "little")
#: Bytes at the beginning of a file that identify it.
_HASHED = 1 << 20


def read_word_vectors(
    path: str | Path, words: Collection[str] | None = None, *, lemma: Callable[[str], str] | None = None
) -> WordVectors:
    """Read a file of word vectors. The format is detected from its first bytes.

    Args:
        path: word2vec binary (a header line with count and dimension, then word, space, little-endian float32),
            word2vec or fastText text (the same header, then a word and its numbers a line) or GloVe (no header).
        words: keep these only, with the forms `WordVectors` falls back to: much faster, and takes little memory.
        lemma: see `WordVectors`.

    If a word occurs twice, its first vector is used. Bytes that are not UTF-8 are replaced.
    """
    path = Path(path)
    wanted = None
    if words is not None:
        wanted = {form for word in words for form in (word, word.lower(), *word.lower().split("-"))}
        wanted |= {lemma(word) for word in wanted} if lemma is not None else set()
    try:
        with open_regular(path) as stream:
            first = stream.readline(WORD_LIMIT + DIMENSION_LIMIT * _NUMBER_LIMIT)
            if first.startswith(b"\x1f\x8b"):
                raise InputError(path, "is compressed; unpack it first (gunzip)")
            if first.startswith(_FASTTEXT_MODEL):
                raise InputError(path, "is a model of fastText; the vectors are in the .vec file beside it")
            header = _header(path, first)
            if header is not None and _is_binary(stream, header[1]):
                entries = _binary_entries(path, stream, *header, wanted)
            else:
                if header is None:
                    stream.seek(0)
                entries = _text_entries(path, stream, header, wanted)
            rows: dict[str, int] = {}
            # A growing array of plain floats: no second copy of the table is ever held.
            numbers = array("f")
            for word, vector in entries:
                if word not in rows:
                    rows[word] = len(rows)
                    numbers.extend(vector)
    except OSError as fault:
        raise InputError(path, fault.strerror or str(fault)) from None
    if not rows:
        raise InputError(path, "has no vectors" if wanted is None else "has no vector of any wanted word")
    table = np.frombuffer(numbers, dtype=np.float32).reshape(len(rows), -1)
    return WordVectors(table, rows.get, source=source_of(path), lemma=lemma)


def source_of(path: Path) -> str:
    """The file's name, its size, and a hash of its beginning, which identify it."""
    with path.open("rb") as stream:
        start = hashlib.sha256(stream.read(_HASHED)).hexdigest()[:16]
    return f"{path.name} ({path.stat().st_size} bytes, {start})"


def _header(path: Path, line: bytes) -> tuple[int, int] | None:
    """Count and dimension where the first line is a header, checked against the size of the file."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 16 for part in parts):
        return None
    count, dimension = int(parts[0]), int(parts[1])
    if not 0 < dimension <= DIMENSION_LIMIT:
        raise InputError(path, f"has vectors of {dimension} numbers; 1 to {DIMENSION_LIMIT} are read", "line 1")
    # The shortest entry of either kind: a word of one byte, and a space and a digit (or four bytes) a number.
    if count * (1 + 2 * dimension) > path.stat().st_size:
        raise InputError(path, f"is too short for the {count:,} vectors of {dimension} it announces", "line 1")
    return count, dimension


def _is_binary(stream: BinaryIO, dimension: int) -> bool:
    """Whether the first vector has bytes that no text has; the stream is left where it was."""
    start = stream.tell()
    vector = stream.read(WORD_LIMIT).partition(b" ")[2][: 4 * dimension]
    stream.seek(start)
    return any(byte > 126 or (byte < 32 and byte not in b"\t\n\r") for byte in vector)


def _binary_entries(
    path: Path, stream: BinaryIO, count: int, dimension: int, wanted: set[str] | None
) -> Iterator[tuple[str, array[float]]]:
    """Words and vectors of a word2vec binary; only the wanted vectors' bytes are touched."""
    start, width = stream.tell(), 4 * dimension
    if count * (width + 2) > path.stat().st_size:
        raise InputError(path, f"is too short for the {count:,} vectors of {dimension} it announces", "line 1")
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for word_number in range(1, count + 1):
            end = data.find(b" ", start, start + WORD_LIMIT)
            if end < 0 or end + 1 + width > len(data):
                raise InputError(path, "ends early, or is not a word, a space and a vector", f"word {word_number}")
            # Some writers end an entry with a line end, others do not.
            word = data[start:end].lstrip(b"\n").decode(errors="replace")
            start = end + 1 + width
            if wanted is None or word in wanted:
                vector = np.frombuffer(data[end + 1 : start], dtype="<f4")
                if not np.isfinite(vector).all():
                    raise InputError(path, "has a number that is not finite", f"word {word_number} ({word!r})")
                yield word, array("f", vector.astype(np.float32).tobytes())


def _text_entries(
    path: Path, stream: BinaryIO, header: tuple[int, int] | None, wanted: set[str] | None
) -> Iterator[tuple[str, array[float]]]:
    """Words and vectors of a text file; lines of unwanted words are passed over after counting their spaces."""
    dimension = header[1] if header is not None else 0
    limit = WORD_LIMIT + (dimension or DIMENSION_LIMIT) * _NUMBER_LIMIT
    line_number = 1 if header is not None else 0
    entries = 0
    while line := stream.readline(limit):
        line_number += 1
        if len(line) == limit:
            raise InputError(path, "is too long for a word and its vector", f"line {line_number}")
        line = line.rstrip()
        if not line:
            continue
        entries += 1
        spaces = line.count(b" ")
        if not dimension:
            dimension = spaces
        if spaces < dimension or not dimension:
            raise InputError(path, f"has {spaces} numbers where {dimension or 1} are due", f"line {line_number}")
        # Some words of the large GloVe files have spaces in them, so the numbers are counted from the end.
        split = line.find(b" ") if spaces == dimension else len(line.rsplit(b" ", dimension)[0])
        word = line[:split].decode(errors="replace")
        if wanted is None or word in wanted:
            try:
                vector = _numbers(line[split + 1 :])
            except ValueError:
                raise InputError(
                    path, f"has something that is no finite number after {word!r}", f"line {line_number}"
                ) from None
            yield word, vector
    if header is not None and entries != header[0]:
        raise InputError(path, f"announces {header[0]:,} vectors and has {entries:,}")


def _numbers(text: bytes) -> array[float]:
    try:
        # A JSON parser is five times as fast as float() or NumPy at decimal numbers.
        numbers = msgspec.json.decode(b"[" + text.replace(b" ", b",") + b"]", type=list[float])
    except msgspec.DecodeError:
        numbers = [float(part) for part in text.split(b" ")]
    vector = array("f", numbers)
    if not np.isfinite(vector).all():
        raise ValueError
    return vector


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
