"""Captions and their twins as a file, and in the cache for machines without a parser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.records import make_caption, make_image
from deixis.corpus.scenes import order_swaps
from deixis.errors import InputError
from deixis.text import twins as module
from deixis.text.constituency import Word
from deixis.text.entity_types import EntityTypes
from deixis.text.parsing import ParserMissing, Sentence
from deixis.text.trees import Tree
from deixis.text.twins import Twins, corpus_twins, parties, read_twins, reversible, write_twins


def _missing(name: str) -> Any:
    raise ParserMissing("no parser here")


class OneSentence:
    """Reads "a X chases a Y" and nothing else."""

    def parse(self, captions: Iterable[Any]) -> Iterator[Sentence]:
        for tokens in captions:
            if len(tokens) != 5:
                yield Sentence((), (), Tree("S"))
                continue
            places = ((1, "det", "DT"), (2, "nsubj", "NN"), (2, "ROOT", "VBZ"), (4, "det", "DT"), (2, "dobj", "NN"))
            lemma = {"chases": "chase"}
            words = [Word(text, *place, lemma.get(text, text)) for text, place in zip(tokens, places, strict=True)]
            yield Sentence(tuple(words), ((0, 2), (3, 5)), Tree("S"))


def _corpus() -> Corpus:
    texts = {"1": ["A dog chases a cat", "A dog"], "2": ["a cat chases a dog"]}
    return Corpus([make_image(name, captions=[make_caption(text) for text in own]) for name, own in texts.items()])


def test_twins_are_made_once_and_then_need_no_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "load_parser", _missing)
    with pytest.raises(ParserMissing):
        corpus_twins(_corpus())
    monkeypatch.setattr(module, "load_parser", lambda name: OneSentence())
    made = corpus_twins(_corpus())
    assert made == [
        Twins("1", "chase", "a dog chases a cat", "a cat chases a dog"),
        Twins("2", "chase", "a cat chases a dog", "a dog chases a cat"),
    ]
    monkeypatch.setattr(module, "load_parser", _missing)
    assert corpus_twins(_corpus()) == made


def test_the_twins_of_drawn_scenes_are_the_scenes_own() -> None:
    whole = open_corpus("scenes")
    split = whole.split("test")
    made = corpus_twins(split)
    assert [each.image for each in made] == [swap.image_id for swap in order_swaps(split)]
    assert all(sorted(each.true.split()) != [] and each.true != each.false and each.relation for each in made)


def test_a_file_comes_back_as_it_was_and_a_fault_names_its_line(tmp_path: Path) -> None:
    pairs = [Twins("1", "on", "a cat on a dog", "a dog on a cat"), Twins("é", "x", "a", "b")]
    write_twins(tmp_path / "t.jsonl", pairs)
    assert read_twins(tmp_path / "t.jsonl") == pairs
    (tmp_path / "t.jsonl").write_text('{"image":"1","relation":"x","true":"a","false":"b"}\n{"image":1}\n')
    with pytest.raises(InputError, match="line 2"):
        read_twins(tmp_path / "t.jsonl")
    with pytest.raises(InputError, match="No such file"):
        read_twins(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("true", "false", "expected"),
    [
        ("the dog bites a man", "a man bites the dog", True),
        ("a young man watches an old man", "an old man watches a young man", True),
        ("a man in red , a big dog licks a boy", "a man in red , a boy licks a big dog", True),
        ("a dog catches a ball", "a ball catches a dog", False),
        ("a man on the beach", "the beach on a man", False),
        ("a dog bites a man", "a dog bites a man", False),
        ("a dog bites a man", "a man is bitten by a dog", False),
    ],
)
def test_twins_of_two_people_or_animals_are_reversible(true: str, false: str, expected: bool) -> None:
    twins = Twins("1", "x", true, false)
    assert reversible(twins, EntityTypes.load()) == expected
    found = parties(twins)
    if found is not None:
        one, two = (" ".join(party) for party in found)
        assert true.replace(one, "\0").replace(two, one).replace("\0", two) == false
