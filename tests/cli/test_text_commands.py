"""`deixis text` as a person types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from deixis.cli import app, main
from deixis.corpus import write_corpus
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError
from deixis.metrics.results import load
from deixis.text import parsing
from deixis.text.chunker import Chunker
from deixis.text.constituency import Word, constituency
from deixis.text.coreference import CoreferenceScorer
from deixis.training.run_records import epochs_of
from deixis.training.runs import read_log

RUNNER = CliRunner()


def output(*arguments: object) -> str:
    done = RUNNER.invoke(app, ["text", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    with pytest.raises(DeixisError) as caught:
        RUNNER.invoke(app, ["text", *map(str, arguments)], catch_exceptions=False)
    return str(caught.value)


@pytest.fixture
def no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_parser")
def test_phrases_and_types_without_a_parser() -> None:
    text = output("parse", "a man in a red shirt rides a horse")
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "man", "people"] in lines
    assert ["a", "red", "shirt", "clothing"] in lines
    assert ["a", "horse", "animals"] in lines
    assert "pip install 'deixis[text]'" in text


@pytest.mark.usefixtures("no_parser")
def test_json_has_spans_and_says_why_there_is_no_tree() -> None:
    found = json.loads(output("parse", "a man rides a horse", "--json"))
    assert found["tokens"] == ["a", "man", "rides", "a", "horse"]
    assert found["phrases"][1] == {"text": "a horse", "start": 3, "end": 5, "types": ["animals"]}
    assert found["tree"] is None
    assert "deixis[text]" in found["note"]
    assert json.loads(output("parse", "", "--json"))["phrases"] == []


@pytest.mark.usefixtures("no_parser")
def test_a_parser_asked_for_by_name_must_be_there() -> None:
    done = RUNNER.invoke(app, ["text", "parse", "a dog", "--parser", "spacy-sm"])
    assert isinstance(done.exception, parsing.ParserMissing)


def test_the_tree_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        Word("a", 1, "det", "DT"),
        Word("man", 2, "nsubj", "NN"),
        Word("rides", 2, "ROOT", "VBZ"),
        Word("horses", 2, "dobj", "NNS"),
    )
    sentence = parsing.Sentence(words, (), constituency(words))
    parser = SimpleNamespace(parse=lambda captions: iter([sentence]))
    monkeypatch.setattr(parsing, "load_parser", lambda name: parser)
    lines = output("parse", "a man rides horses").splitlines()
    assert lines[-5:] == ["S", "├─ NP a man", "└─ VP", "   ├─ VBZ rides", "   └─ NP horses"]
    found = json.loads(output("parse", "a man rides horses", "--json"))
    assert found["tree"] == ["S", ["NP", ["DT", 0], ["NN", 1]], ["VP", ["VBZ", 2], ["NP", ["NNS", 3]]]]
    assert "note" not in found


def test_evaluate_types_and_chunker_leave_out_a_list_and_write_a_result(tmp_path: Path) -> None:
    corpus = scenes_corpus(80)
    write_corpus(corpus, tmp_path / "corpus")
    kept = corpus.split("test").images[1:]
    (tmp_path / "leave.txt").write_text(f"{corpus.split('test').images[0].id}.jpg\n")
    common = [tmp_path / "corpus", "--without", tmp_path / "leave.txt", "--out", tmp_path / "result.json"]
    output("evaluate", *common, "--method", "types")
    result = load(tmp_path / "result.json")
    assert result.counts["images"] == len(kept)
    assert result.counts["phrases"] == sum(len(c.phrases) for image in kept for c in image.captions)
    shown = json.loads(output("evaluate", *common, "--force", "--json"))
    assert shown["protocol"]["parameters"] == {"method": "chunker"}
    assert shown["metrics"]["overall"]["f1"] > 0.5
    assert set(shown["metrics"]["by_length"]) <= {"1", "2", "3", "4", "5", "6+"}


def test_train_types_writes_a_lexicon(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    write_corpus(scenes_corpus(80), tmp_path / "corpus")
    text = output("train-types", tmp_path / "corpus", "--out", tmp_path / "types.json")
    assert "heads" in text
    assert "people" in json.loads((tmp_path / "types.json").read_text())["heads"]


@pytest.mark.parametrize(("command", "tool"), [("train-chunker", Chunker), ("train-coreference", CoreferenceScorer)])
def test_train_commands_leave_a_tool_and_the_run_that_made_it(command: str, tool: Any, tmp_path: Path) -> None:
    write_corpus(scenes_corpus(80), tmp_path / "corpus")
    out = tmp_path / "tool.safetensors"
    options = [command, tmp_path / "corpus", "--out", out, "--epochs", "1"]
    assert f"Wrote {out}" in output(*options)
    weights = out.read_bytes()
    assert tool.load(out).arrays
    (epoch,) = epochs_of(read_log(tmp_path / "tool.run"))
    assert 0 <= epoch.figures["f1"] <= 1
    assert "--force" in refused(*options)
    # The run is finished, so its weights are only written again.
    out.write_bytes(b"")
    output(*options, "--force")
    assert out.read_bytes() == weights
    assert "another recipe" in refused(*options, "--force", "--seed", "1")


def test_bytes_that_are_no_text_are_printed_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["deixis", "text", "parse", "a dog \udcff runs"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    out.flush()
    assert rb"\udcff" in out.buffer.getvalue()  # type: ignore[attr-defined]
