"""`deixis evaluate queries`, `boxes`, and `scores` checked against a corpus, as a person types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from deixis.cli import main
from deixis.corpus import open_corpus
from deixis.metrics.localization import gold_queries
from deixis.metrics.query_list import phrase_id
from deixis.metrics.results import load

CORPUS = "scenes:60"


@pytest.fixture
def run(monkeypatch, capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def queries(run, tmp_path: Path) -> Path:
    code, out, _ = run("queries", CORPUS, "--split", "test", "--out", tmp_path / "queries.json", "--json")
    assert code == 0
    assert json.loads(out)["split_hash"] == open_corpus(CORPUS).split_hash("test")
    return tmp_path / "queries.json"


def truth(shift: float) -> dict[str, list[list[float]]]:
    """The ground truth of every phrase, moved to the right by a share of its width."""
    found = {}
    for image in open_corpus(CORPUS).split("test"):
        for query, boxes in zip(*gold_queries(image), strict=True):
            x1, y1, x2, y2 = (*boxes[:, :2].min(0), *boxes[:, 2:].max(0))
            found[phrase_id(image, query)] = [[x1 + shift * (x2 - x1), y1, x2 + shift * (x2 - x1), y2]]
    return found


def test_boxes_of_any_model_are_scored(run, queries: Path, tmp_path: Path) -> None:
    listed = json.loads(queries.read_text())
    right, wrong = truth(0.0), truth(0.6)
    assert [entry["id"] for entry in listed["phrases"]] == list(right)
    half = {name: right[name] if number % 2 else [*wrong[name], *right[name]] for number, name in enumerate(right)}
    half.popitem()
    (tmp_path / "boxes.json").write_text(json.dumps(half))
    asked = ("boxes", tmp_path / "boxes.json", "--corpus", CORPUS, "--json")
    code, _, err = run(*asked, "--out", tmp_path / "result.json")
    assert code == 2
    assert "--saw-boxes" in err
    code, out, err = run(*asked, "--saw-boxes", "--out", tmp_path / "result.json")
    assert code == 0, err
    found = json.loads(out)
    assert found["without_prediction"] == 1
    overall = found["localization"]["overall"]
    assert 30 < overall["r@1"] < 70 < 95 < overall["r@5"] < 100
    assert set(found["localization"]["text_blind_by_type"]) == set(found["localization"]["by_type"])
    result = load(tmp_path / "result.json")
    assert result.corpus is not None
    assert result.corpus.split_hash == listed["split_hash"]


def test_boxes_of_other_phrases_are_refused(run, tmp_path: Path) -> None:
    (tmp_path / "boxes.json").write_text('{"nobody#0:1": [[0, 0, 9, 9]]}')
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, out) == (2, "")
    assert "nobody#0:1" in err
    assert "evaluate queries" in err
    (tmp_path / "boxes.json").write_text('{"a": [[0, 0, 1]]}')
    code, _, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("box", "problem"),
    [([20, 30, 15, 10], "a box ends before it begins"), ([0.1, 0.2, 0.8, 1.0], "no number is above 1")],
)
def test_boxes_of_another_form_are_refused(run, tmp_path: Path, box: list[float], problem: str) -> None:
    (tmp_path / "boxes.json").write_text(json.dumps({name: [box] for name in truth(0.0)}))
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_named(run, tmp_path: Path, number: str) -> None:
    (tmp_path / "boxes.json").write_text(json.dumps({"a#0:1": [[0, 0, float(number), 9]]}))
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, out) == (2, "")
    assert "NaN and Infinity are not allowed" in err
    assert err.count("\n") == 1
    (tmp_path / "boxes.json").write_text(f'{{"{number}": [[0, 0, ?, 9]]}}')
    code, _, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, "invalid character" in err, "not allowed" in err) == (2, True, False)


def test_boxes_with_a_score_are_refused(run, tmp_path: Path) -> None:
    (tmp_path / "boxes.json").write_text('{"a#0:1": [[0, 0, 9, 9]], "b#0:1": [[0, 0, 9, 9], [0, 0, 9, 9, 0.5]]}')
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, out) == (2, "")
    assert "b#0:1: a box has 5 numbers: boxes are [x1, y1, x2, y2], best first, with no score" in err
    assert err.count("\n") == 1


def test_boxes_of_larger_pictures_are_noticed(run, queries: Path, tmp_path: Path) -> None:
    first = json.loads(queries.read_text())["phrases"][0]
    boxes = truth(0.0)
    boxes[first["id"]] = [[first["width"], 0, first["width"] + 9, 9]]
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert code == 0, err
    assert "Boxes outside their pictures: 1." in err
    assert "whole picture" in out
    assert "Wrong first boxes" in out


def test_boxes_that_end_outside_are_noticed(run, queries: Path, tmp_path: Path) -> None:
    first, second = json.loads(queries.read_text())["phrases"][:2]
    boxes = truth(0.0)
    boxes[first["id"]] = [[0, 0, first["width"] + 2, 9], [0, 0, 9, first["height"] + 2]]
    boxes[second["id"]] = [[0, 0, second["width"] + 1, second["height"] + 1]]
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    code, out, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS, "--json")
    assert (code, json.loads(out)["boxes_outside"]) == (0, 2), err

    doubled = {name: [[2 * corner for corner in box] for box in boxes] for name, boxes in truth(0.0).items()}
    (tmp_path / "boxes.json").write_text(json.dumps(doubled))
    code, _, err = run("boxes", tmp_path / "boxes.json", "--corpus", CORPUS)
    assert (code, "Boxes outside their pictures" in err) == (0, True)


def test_scores_are_checked_against_the_corpus(run, queries: Path, tmp_path: Path) -> None:
    images = open_corpus(CORPUS).split("test").images
    captions = sum(len(image.captions) for image in images)
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).random((len(images), captions)))
    checked = ("--corpus", CORPUS, "--ids", queries)
    code, _, err = run("scores", tmp_path / "scores.npy", *checked, "--out", tmp_path / "result.json")
    assert code == 0, err
    result = load(tmp_path / "result.json")
    assert result.corpus is not None
    assert result.corpus.split_hash == json.loads(queries.read_text())["split_hash"]
    assert "ids_sha256" in result.protocol.parameters

    listed = json.loads(queries.read_text())
    listed["captions"][1], listed["captions"][2] = listed["captions"][2], listed["captions"][1]
    queries.write_text(json.dumps(listed))
    code, _, err = run("scores", tmp_path / "scores.npy", *checked)
    assert code == 2
    assert "captions 2" in err

    np.save(tmp_path / "scores.npy", np.zeros((captions, len(images))))
    code, _, err = run("scores", tmp_path / "scores.npy", "--corpus", CORPUS)
    assert code == 2
    assert "exchanged" in err
    np.save(tmp_path / "few.npy", np.zeros((len(images), captions - 1)))
    code, _, err = run("scores", tmp_path / "few.npy", "--corpus", CORPUS)
    assert code == 2
    assert f"{captions:,} captions" in err
    code, _, err = run("scores", tmp_path / "scores.npy", "--ids", queries)
    assert code == 2
    assert "--corpus" in err
