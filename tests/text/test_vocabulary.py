"""Vocabularies are the same on every machine, read back as written, and never let text forge a special token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.errors import DeixisError, InputError
from deixis.text.vocabulary import END, PAD, SPECIALS, START, UNKNOWN, Vocabulary

words = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1, max_size=5)


def test_words_come_by_falling_count_then_by_text() -> None:
    vocabulary = Vocabulary.of([["b", "a", "c"], ["c", "a", "b"], ["d"]])
    assert vocabulary.words == ("a", "b", "c", "d")
    assert vocabulary.counts == (2, 2, 2, 1)
    assert vocabulary == Vocabulary.of([["d", "c", "b", "a", "a", "b", "c"]])


def test_rare_words_are_cut_off_and_counted() -> None:
    vocabulary = Vocabulary.of([["a"] * 5, ["b"] * 3, ["c"] * 2, ["d"]], minimum_count=2, maximum_size=2)
    assert vocabulary.words == ("a", "b")
    assert vocabulary.unknown_count == 3
    assert len(vocabulary) == 2 + len(SPECIALS)


def test_text_that_spells_a_special_token_is_unknown() -> None:
    vocabulary = Vocabulary.of([["<end>", "<pad>", "dog"]])
    assert vocabulary.words == ("dog",)
    assert vocabulary.encode(["<end>", "dog", "<start>"]) == [UNKNOWN, len(SPECIALS), UNKNOWN]


def test_decoding_stops_at_the_end() -> None:
    vocabulary = Vocabulary.of([["dog"]])
    dog = vocabulary.encode(["dog"])[0]
    assert vocabulary.decode([START, dog, UNKNOWN, END, dog, PAD]) == ("dog", "<unknown>")
    with pytest.raises(DeixisError, match="outside the vocabulary of 5"):
        vocabulary.decode([5])


@given(st.dictionaries(words, st.integers(1, 10**12), max_size=20))
def test_a_saved_vocabulary_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, counts: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("vocabulary") / "words.tsv"
    vocabulary = Vocabulary(counts, minimum_count=2)
    vocabulary.save(path)
    again = Vocabulary.load(path)
    assert again == vocabulary
    assert [again.token(number) for number in range(len(again))] == [*SPECIALS, *vocabulary.words]


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    Vocabulary.of([["dog", "dog", "cat"]]).save(tmp_path / "words.tsv")
    lines = (tmp_path / "words.tsv").read_text().splitlines()
    assert lines == ["token\tcount", "<pad>\t0", "<unknown>\t0", "<start>\t0", "<end>\t0", "dog\t2", "cat\t1"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"dog\t2\n", "not a vocabulary file"),
        (b"token\tcount\n<pad>\t0\ndog\t2\n", "does not begin with the special tokens"),
        (b"token\tcount\n<pad>\t0\n<unknown>\t0\n<start>\t0\n<end>\t0\ndog 2\n", "line 6"),
        (b"token\tcount\n<pad>\t0\n<unknown>\t0\n<start>\t0\n<end>\t0\ndog\t2\ndog\t2\n", "line 7"),
        (b"token\tcount\n<pad>\t0\n<unknown>\t0\n<start>\t0\n<end>\t0\ncat\t1\ndog\t2\n", "not sorted"),
        (b"token\tcount\n\xff\t2\n", "not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "words.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        Vocabulary.load(path)


def test_words_that_would_break_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="cannot be kept"):
        Vocabulary.of([["two\twords"]]).save(tmp_path / "words.tsv")
