"""Dependency edges are parsed once: afterwards neither the corpus nor what was learned from it needs a parser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deixis.corpus import Corpus, open_corpus
from deixis.errors import InputError
from deixis.text import dependencies
from deixis.text.constituency import Word
from deixis.text.dependencies import Dependencies, Edge, corpus_dependencies
from deixis.text.parsing import ParserMissing, Sentence
from deixis.text.tokens import tokens_of_captions
from deixis.text.trees import Tree


class Chain:
    """A parser to which each word hangs from the one before it."""

    def __init__(self) -> None:
        self.parsed = 0

    def parse(self, captions: Sequence[tuple[str, ...]]) -> Iterator[Sentence]:
        for tokens in captions:
            self.parsed += 1
            words = [Word(token, max(0, place - 1), f"r{place}", "", "") for place, token in enumerate(tokens)]
            yield Sentence(tuple(words), (), Tree("S"))


@pytest.fixture
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images(whole.images[:5])


def test_a_corpus_is_parsed_once_and_then_needs_no_parser(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    parser = Chain()
    monkeypatch.setattr(dependencies, "_parser", lambda: parser)
    first = corpus_dependencies(corpus)
    assert parser.parsed == len(first) > 0

    def missing() -> Any:
        raise ParserMissing("no parser")

    monkeypatch.setattr(dependencies, "_parser", missing)
    again = corpus_dependencies(corpus)
    texts = tokens_of_captions(corpus)
    expected = [tuple(Edge(max(0, place - 1), f"r{place}") for place in range(len(text))) for text in texts]
    assert first.edges(texts) == again.edges(texts) == expected
    with pytest.raises(ParserMissing):
        again.edges([("never", "said")])


def test_a_text_that_is_not_kept_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "_parser", Chain)
    bank = Dependencies({("a",): (Edge(0, "root"),)})
    assert bank.edges([("a",), ("b", "c"), ("a",)])[1:] == [(Edge(0, "r0"), Edge(0, "r1")), (Edge(0, "root"),)]


@pytest.mark.parametrize("line", ['[["a"],[1],["x"]]', '[["a","b"],[0],["x"]]', "[1]", "{"])
def test_a_damaged_file_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "edges.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"edges\.jsonl"):
        Dependencies.load(path)
