"""`deixis search --why` draws the query's phrases on what was found, and `--open` opens it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.cli import app
from deixis.corpus import Corpus
from deixis.errors import DeixisError


@pytest.fixture
def index(untrained_bundle: Path, corpus: Corpus, tmp_path: Path) -> Path:
    """An index with a model to which everything is relevant."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for file in untrained_bundle.iterdir():
        (bundle / file.name).symlink_to(file)
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").unlink()
    manifest["thresholds"] = {"present": {"base": -2.0}, "end": {"base": -2.0}, "slope": 10.0}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    folder = os.fsencode(tmp_path / "pictures")
    os.mkdir(folder)
    assert corpus.pictures is not None
    for name, image in zip((b"one.png", b"odd\xff.png"), corpus, strict=False):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(corpus.pictures.read(image))
    ask("index", os.fsdecode(folder), "--index", tmp_path / "index", "--model", f"onnx:{bundle}")
    return tmp_path / "index"


def ask(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_hits_say_and_draw_why(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "why"
    answer = json.loads(ask("search", '"a man" "a red shirt"', "--index", index, "--why", out, "--json"))
    assert len(answer["hits"]) == 2
    for hit in answer["hits"]:
        assert [each["phrase"] for each in hit["why"]] == ["a man", "a red shirt"]
        with Pillow.open(hit["drawing"]) as page:
            assert page.width > 600
    assert len(list(out.iterdir())) == 2
    assert f"Drawn to {out}" in ask("search", "a man", "--index", index, "--why", out, "-n", 1, "--force")


def test_what_fits_a_hit_better_is_named_beneath_it(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deixis.adapters.changed_sentences.CLEAR", -100.0)
    query = ("search", "a red shirt", "--index", index, "--why", tmp_path / "why")
    for hit in json.loads(ask(*query, "--json"))["hits"]:
        (better,) = hit["fits_better"]
        assert (better.split()[2], "red" in better) == ("shirt", False)
    lines = ask(*query, "--force").splitlines()
    assert [line.strip().startswith("fits better: ") for line in lines[:4]] == [False, True, False, True]
    monkeypatch.setattr("deixis.adapters.changed_sentences.CLEAR", 100.0)
    assert all(hit["fits_better"] == [] for hit in json.loads(ask(*query, "--json", "--force"))["hits"])
    assert "fits better" not in ask(*query, "--force")


def test_what_was_found_is_opened(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", lambda path: opened.append(path))
    ask("search", "a man", "--index", index, "--open")
    assert {os.fsencode(path).rpartition(b"/")[2] for path in opened} == {b"one.png", b"odd\xff.png"}
    opened.clear()
    ask("search", "a man", "--index", index, "--open", "--why", tmp_path / "why")
    assert sorted(opened) == sorted(map(str, (tmp_path / "why").iterdir()))
    monkeypatch.setattr("typer.launch", lambda path: 1)
    with pytest.raises(DeixisError, match="--paths-only"):
        ask("search", "a man", "--index", index, "--open")
    with pytest.raises(DeixisError, match="--why needs a QUERY"):
        ask("search", "--like", "one.png", "--why", tmp_path / "other")
