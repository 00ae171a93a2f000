"""Words find their rows; every file format gives the same table; a bad file is named with the line."""

from __future__ import annotations

import copy
import pickle
import struct
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.text.vector_files import read_word_vectors
from deixis.text.word_vectors import (
    SPACY_COPY_HASHES,
    SPACY_PACKAGES,
    SPACY_SYMBOLS,
    WordVectors,
    murmur_hash,
    read_spacy_vectors,
    spacy_vectors,
)

WORDS = ("the", "Dog", "shirt", "naïve", ",")
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), 7)).astype(np.float32)


def _binary(newline: bytes) -> bytes:
    entries = [word.encode() + b" " + row.tobytes() + newline for word, row in zip(WORDS, TABLE, strict=True)]
    return f"{len(WORDS)} {TABLE.shape[1]}\n".encode() + b"".join(entries)


def _text(header: bool, end: str = "\n") -> bytes:
    lines = [f"{len(WORDS)} {TABLE.shape[1]}"] if header else []
    lines += [" ".join([word, *(f"{value:.9g}" for value in row)]) for word, row in zip(WORDS, TABLE, strict=True)]
    return "".join(line + end for line in lines).encode()


@pytest.mark.parametrize(
    "content",
    [_binary(b"\n"), _binary(b""), _text(True), _text(False), _text(True, " \n"), _text(False, "\r\n")],
    ids=[
        "word2vec.bin",
        "word2vec.bin without line ends",
        "word2vec.txt",
        "glove",
        "fastText.vec",
        "glove from Windows",
    ],
)
def test_every_format_gives_the_same_table(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    array, found = read_word_vectors(path).look_up(WORDS)
    assert found.all()
    np.testing.assert_array_equal(array, TABLE)
    # Only what is wanted, with the forms that are fallen back to.
    few = read_word_vectors(path, ["THE", "t-shirt", "unheard-of"])
    assert len(few.table) == 2
    np.testing.assert_array_equal(few.look_up(["THE", "t-shirt"])[0], TABLE[[0, 2]])


def test_unusual_numbers_and_words_with_spaces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"a .5 +1. -1e-05\n. . . 1 2 3\nb 4 5 6\nb 7 8 9\n\xff\xfe 1 1 1\n\n")
    vectors = read_word_vectors(path)
    np.testing.assert_allclose(vectors.look_up(["a", ". . .", "b"])[0], [[0.5, 1, -1e-5], [1, 2, 3], [4, 5, 6]])
    assert len(vectors.table) == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a 1 2\nb 1\n", "line 2: has 1 numbers where 2 are due"),
        (b"a 1 2\nb 1 x\n", "line 2"),
        (b"a 1 2\nb 1 nan\n", "line 2"),
        (b"a 1 2\nb 1 1e999\n", "line 2"),
        (b"a 1 2\nb 1 1e39\n", "line 2"),
        (b"3 2\na 1 2\nb 1 2\n", "announces 3 vectors and has 2"),
        (b"1000000000000 300\na 1 2\n", "too short for the 1,000,000,000,000 vectors"),
        (b"10 999999\na 1 2\n", "1 to 8192 are read"),
        (b"2 3\na " + struct.pack("<3f", 1, 2, 3) + b"\nb " + struct.pack("<2f", 1, 2), "too short|ends early"),
        (b"1 2\na " + struct.pack("<2f", 1, float("inf")) + b"\n", "word 1"),
        (b"", "has no vectors"),
        (b"\x1f\x8b\x08\x00", "unpack it first"),
        (struct.pack("<ii", 793712314, 12) + b"\5\0\0\0", r"the vectors are in the \.vec file"),
        (b"a " + b"1" * 10**6, "line 1"),
        (b"word\n", "line 1"),
    ],
)
def test_a_bad_file_is_named_with_the_place(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_word_vectors(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_word_vectors(tmp_path / "absent.bin")


def test_words_fall_back_to_lower_case_lemma_and_parts() -> None:
    rows = {"dog": 0, "shirt": 1, "t": 2, "Rome": 3}
    table = np.eye(4, dtype=np.float32)
    vectors = WordVectors(table, rows.get, lemma=lambda word: word.removesuffix("s"))
    array, found = vectors.look_up(["DOG", "dogs", "Rome", "T-shirt", "rome", "", "-"])
    assert found.tolist() == [True, True, True, True, False, False, False]
    np.testing.assert_array_equal(array[:4], [table[0], table[0], table[3], (table[1] + table[2]) / 2])
    assert not array[4:].any()
    assert vectors.missing([["cat", "dog"], ["cat", "bird"]]) == {"cat": 2, "bird": 1}


def _spacy_folder(folder: Path, table: NDArray[np.float32], rows: dict[int, int]) -> Path:
    folder.mkdir(parents=True)
    with (folder / "vectors").open("wb") as stream:
        np.save(stream, table)
    (folder / "key2row").write_bytes(msgspec.msgpack.encode(rows))
    return folder


def test_a_spacy_folder_is_read_by_the_hash_of_a_word(tmp_path: Path) -> None:
    rows = {murmur_hash(word.encode()): row for row, word in enumerate(WORDS)} | {SPACY_SYMBOLS["number"]: 1}
    vectors = read_spacy_vectors(_spacy_folder(tmp_path / "model" / "vocab", TABLE, rows))
    array, found = vectors.look_up([*WORDS, "number"])
    assert found.all()
    np.testing.assert_array_equal(array, TABLE[[0, 1, 2, 3, 4, 1]])
    # scikit-learn copies and pickles the estimators that hold them.
    assert copy.deepcopy(vectors) is vectors
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(vectors)).look_up(WORDS)[0], TABLE)  # noqa: S301


def test_a_changed_spacy_folder_is_refused(tmp_path: Path) -> None:
    folder = _spacy_folder(tmp_path / "vocab", TABLE, {1: 99})
    with pytest.raises(InputError, match="SHA-256 differs"):
        read_spacy_vectors(folder, hashes=SPACY_COPY_HASHES)
    with pytest.raises(InputError, match="points outside the 5 rows"):
        read_spacy_vectors(folder)
    (folder / "key2row").write_bytes(b"\xc1")
    with pytest.raises(InputError, match="not a map"):
        read_spacy_vectors(folder)
    with (folder / "vectors").open("wb") as stream:
        np.save(stream, np.array([{"code": "runs"}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not a plain"):
        read_spacy_vectors(folder)
    (folder / "vectors").unlink()
    with pytest.raises(InputError, match="No such file"):
        read_spacy_vectors(folder)


def test_the_hash_is_spacys() -> None:
    strings = pytest.importorskip("spacy.strings", reason="spaCy is not installed")
    for word in ("a", "coffee", "naïve", "eight888", "sixteencharacters", "东京", "number"):
        assert SPACY_SYMBOLS.get(word, murmur_hash(word.encode())) == strings.get_string_id(word)


def test_the_default_vectors_know_what_is_near() -> None:
    if not any(map(find_spec, SPACY_PACKAGES)):
        pytest.skip("no spaCy model with vectors is installed (extra `text`)")
    vectors = spacy_vectors()
    assert vectors.table.shape == (20_000, 300)
    words = ["dog", "puppy", "car", "truck", "number"]
    array, found = vectors.look_up(words)
    assert found.all()
    unit = array / np.linalg.norm(array, axis=1, keepdims=True)
    cosine = unit @ unit.T
    assert cosine[0, 1] > 0.6 > cosine[0, 2]
    assert cosine[2, 3] > 0.6 > cosine[1, 3]
