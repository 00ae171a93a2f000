"""`deixis annotate` as a person types it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.annotation.workbench import Workbench
from deixis.cli import app
from deixis.corpus import open_corpus, write_corpus
from deixis.corpus.formats import get_format
from deixis.errors import DeixisError
from tests.annotation.worlds import made_up_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_corpus(made_up_corpus(4), tmp_path / "corpus")
    return tmp_path / "corpus"


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["annotate", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_pictures_without_captions_make_no_project(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    Pillow.new("RGB", (8, 8)).save(tmp_path / "photos" / "a.png")
    with pytest.raises(DeixisError, match="has no captions"):
        run("init", tmp_path / "photos", tmp_path / "project.db")
    assert not (tmp_path / "project.db").exists()
    (tmp_path / "photos" / "a.txt").write_text("A dog .")
    assert run("init", tmp_path / "photos", tmp_path / "project.db").endswith(f"serve {tmp_path / 'project.db'}\n")


def test_a_project_from_init_to_export(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    assert "0 of 4 images are finished" in run("init", corpus, project, "--start", "boxes", "--solo")
    with Workbench(project) as bench:
        worker = bench.add_worker("ann")
        answers = {"chain": "same", "quality": "good", "coverage": "all", "requirement": "scene"}
        while (view := bench.next_task(worker)) is not None:
            bench.submit(worker, view.token, answers[view.task])
    status = json.loads(run("status", project, "--json"))
    assert (status["finished"], status["images"]) == (4, 4)
    out = json.loads(run("export", project, tmp_path / "out", "--json"))
    assert out["images_with_open_questions"] == 0
    with Workbench(project) as bench:
        annotated = bench.export().corpus
    written = open_corpus(tmp_path / "out", cache=False)
    assert written == get_format("flickr30k-entities").keep(annotated)
    for image in open_corpus(corpus):
        found = written[image.id]
        assert {c.id: set(found.chain_boxes(c.id)) for c in found.chains} == {
            c.id: set(image.chain_boxes(c.id)) for c in image.chains
        }
        assert [caption.phrases for caption in found.captions] == [caption.phrases for caption in image.captions]
    assert json.loads(run("stats", project, "--chart", tmp_path / "figure.svg", "--json"))["images"] == 4
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    assert "people" in run("stats", project)
    assert "agree" in run("check", project)
    assert "ann" in run("workers", project)
    assert run("review", project) == "Nothing waits for a reviewer.\n"


def test_workers_are_invited_suspended_and_reinstated(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    run("init", corpus, project, "--limit", "2")
    assert len(run("invite", project).strip()) > 20
    with Workbench(project) as bench:
        bench.add_worker("ann")
    assert "asked again: 0" in run("suspend", project, "ann", "drawing", "--reason", "test")
    decided = json.loads(run("workers", project, "--json"))
    assert decided["workers"][0]["standings"]["drawing"] == "suspended"
    assert decided["decisions"][0]["reason"] == "test"
    run("reinstate", project, "ann", "drawing")
    assert json.loads(run("workers", project, "--json"))["workers"][0]["standings"]["drawing"] != "suspended"
    with pytest.raises(DeixisError, match="no worker 'bob'"):
        run("suspend", project, "bob", "drawing")
    with pytest.raises(DeixisError, match="is no task"):
        run("suspend", project, "ann", "dancing")


def test_settings_come_from_a_file_and_faults_in_it_are_told(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("cycle_limit = 5\n")
    run("init", corpus, tmp_path / "one.db", "--settings", tmp_path / "good.toml")
    with Workbench(tmp_path / "one.db") as bench:
        assert bench.settings.cycle_limit == 5
    (tmp_path / "bad.toml").write_text("cycles = 5\n")
    with pytest.raises(DeixisError, match=r"bad\.toml.*cycles"):
        run("init", corpus, tmp_path / "two.db", "--settings", tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("hidden_share = 2.0\n")
    with pytest.raises(DeixisError, match="hidden_share"):
        run("init", corpus, tmp_path / "two.db", "--settings", tmp_path / "bad.toml")
    with pytest.raises(DeixisError, match="already"):
        run("init", corpus, tmp_path / "one.db")


def test_a_simulation_writes_results_and_plots(tmp_path: Path) -> None:
    write_corpus(made_up_corpus(154, seed=99), tmp_path / "corpus")
    out = tmp_path / "results"
    (tmp_path / "quick.toml").write_text("test_questions = 1\ntest_attempts = 1\nfirst_items = 1\n")
    shown = run(
        "simulate",
        "--settings",
        tmp_path / "quick.toml",
        tmp_path / "corpus",
        "--out",
        out,
        "--images",
        "2",
        "--known",
        "150",
        "--population",
        "error-0",
    )
    assert "pairs.f1" in shown
    result = json.loads((out / "replay-error-0.json").read_text())
    assert result["metrics"]["pairs"]["f1"] == 100.0
    assert {path.name for path in out.iterdir()} == {"replay-error-0.json", "quality.svg", "links.svg"}
    with pytest.raises(DeixisError, match="unknown population"):
        run("simulate", tmp_path / "corpus", "--out", out, "--population", "angels")


def test_invitations_are_links(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    run("init", corpus, project, "--limit", "1")
    assert run("invite", project, "--address", "https://work.example/").startswith("https://work.example/join#")
    with Workbench(project) as bench:
        bench.add_worker("ann")
    assert run("invite", project, "--worker", "ann").startswith("http://127.0.0.1:8765/back#")
    with pytest.raises(DeixisError, match="no worker 'bob'"):
        run("invite", project, "--worker", "bob")


def test_a_project_that_cannot_be_served_says_why(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="no such annotation project"):
        run("serve", tmp_path / "nothing.db")
    bare = tmp_path / "bare.db"
    run("init", corpus, bare, "--limit", "1")
    with pytest.raises(DeixisError, match="has no pictures"):
        run("serve", bare)
    shown = tmp_path / "shown.db"
    run("init", "scenes", shown, "--limit", "1", "--start", "mentions")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DeixisError, match="cannot listen on"):
            run("serve", shown, "--port", str(taken.getsockname()[1]))


def test_links_are_measured_from_words(tmp_path: Path) -> None:
    write_corpus(made_up_corpus(6), tmp_path / "corpus")
    out = json.loads(run("links", tmp_path / "corpus", "--split", "", "--json", "--out", tmp_path / "links.json"))
    assert out["counts"]["images"] == 6
    assert 0 <= out["metrics"]["scorer"]["pairs"]["f1"] <= 100
    assert out["metrics"] == json.loads((tmp_path / "links.json").read_text())["metrics"]
    with pytest.raises(DeixisError, match="no split"):
        run("links", tmp_path / "corpus", "--split", "test")
