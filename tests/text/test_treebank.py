"""Trees of a corpus: parsed once, known by lower-case tokens; without a parser, the chunker's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from deixis.cli import app
from deixis.corpus import Corpus, open_corpus
from deixis.errors import InputError
from deixis.text import treebank
from deixis.text.parsing import ParserMissing, Sentence
from deixis.text.tokens import tokens_of_captions
from deixis.text.treebank import Treebank, cached_path, chunk_tree, corpus_treebank
from deixis.text.trees import Tree, check_tree, read_trees


class Flat:
    """A parser that gives flat trees and counts what it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def parse(self, captions: Iterable[Any]) -> Iterator[Sentence]:
        for tokens in captions:
            self.asked += 1
            yield Sentence((), (), Tree("S", tuple(Tree("X", token=number) for number in range(len(tokens)))))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    return whole.with_images(whole.images[:4])


def missing(name: str) -> Any:
    raise ParserMissing("none is installed")


def test_a_corpus_is_parsed_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Flat()
    monkeypatch.setattr(treebank, "load_parser", lambda name: parser)
    captions = tokens_of_captions(corpus)
    first = corpus_treebank(corpus, "spacy-md")
    assert parser.asked == len(first) >= len(set(captions))
    monkeypatch.setattr(treebank, "load_parser", missing)
    second = corpus_treebank(corpus, "spacy-md")
    assert first.trees(captions) == second.trees(captions)


def test_without_a_parser_there_is_no_training_but_an_answer(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(treebank, "load_parser", missing)
    with pytest.raises(ParserMissing):
        corpus_treebank(corpus, "spacy-md")
    (tree,) = Treebank({}, "auto").trees([("a", "red", "dog", "runs")])
    assert tree.spans("NP") == [(0, 3)]


def test_a_file_with_a_fault_names_its_line(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "trees.jsonl").write_text('{"tokens": ["a"], "tree": ["S", ["X", 0]]}\n{"tokens": ["a"], "tree": []}\n')
    with pytest.raises(InputError, match="line 2"):
        corpus_treebank(corpus, str(tmp_path / "trees.jsonl"))


@given(st.data())
def test_chunk_trees_are_trees(data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.sets(st.integers(0, 12))))
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    tree = chunk_tree(12, spans)
    check_tree(tree, 12)
    assert tree.spans("NP") == spans


def test_the_command_prints_where_the_trees_are(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treebank, "load_parser", lambda name: Flat())
    monkeypatch.setattr("deixis.corpus.open_corpus", lambda path: corpus)
    done = CliRunner().invoke(app, ["text", "trees", "scenes", "--out", str(tmp_path / "trees.ptb")])
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "trees.ptb") in done.output.replace("\n", "")
    assert len(read_trees(tmp_path / "trees.ptb")) == len(read_trees(cached_path(corpus, "spacy-md")))
