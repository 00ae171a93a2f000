"""`deixis annotate` as a person types it."""

from __future__ import annotations

import csv
import io
import json
import socket
from datetime import date, timedelta
from pathlib import Path
from random import Random

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.annotation.accounts import Accounts
from deixis.annotation.simulation.truth import truths
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import Settings
from deixis.cli import app
from deixis.corpus import open_corpus, write_corpus
from deixis.corpus.formats import get_format
from deixis.errors import DeixisError
from tests.annotation.worlds import made_up_corpus
from tests.tampering import run_command


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


def test_a_caption_of_thousands_of_phrases_makes_no_project(tmp_path: Path) -> None:
    Pillow.new("RGB", (8, 8)).save(tmp_path / "long.png")
    (tmp_path / "long.txt").write_text("a dog and a cat and " * 1000)
    made = CliRunner().invoke(app, ["annotate", "init", str(tmp_path), str(tmp_path / "project.db")])
    assert str(made.exception) == "image long: its captions have 2,000 phrases to annotate, more than 1,000"
    assert not (tmp_path / "project.db").exists()


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
    assert run("reinstate", project, "ann", "drawing") == "ann may work again: drawing\n"
    assert run("reinstate", project, "ann") == "ann is not suspended\n"
    assert json.loads(run("workers", project, "--json"))["workers"][0]["standings"]["drawing"] != "suspended"
    with pytest.raises(DeixisError, match="no worker 'bob'"):
        run("suspend", project, "bob", "drawing")
    with pytest.raises(DeixisError, match="is not a task"):
        run("suspend", project, "ann", "dancing")


def test_names_and_comments_of_strangers_reach_the_terminal_as_plain_text(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    project = tmp_path / "project.db"
    run("init", corpus, project)
    with Workbench(project) as bench:
        worker = bench.add_worker("[/nobody] [red]ann :dog:")
        view = bench.next_task(worker)
        assert view is not None
        bench.submit(worker, view.token, view.answers[0], "odd\x1b[2J\nPROBLEM")
    assert "[/nobody] [red]ann :dog:" in run("workers", project)
    (line,) = run("review", project).splitlines()
    assert line.endswith("odd\\x1b[2J\\nPROBLEM")
    refused = run_command(["annotate", "status", tmp_path / "a\x1b[2J.db"], capsys)
    assert "\x1b" not in line + refused.err
    assert "a\\x1b[2J.db: no such annotation project" in refused.err


def test_a_table_of_invitations_and_sign_in_links(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    run("init", corpus, project, "--address", "https://work.example.org")
    rows = list(csv.DictReader(io.StringIO(run("invite", project, "--count", "20", "--csv"))))
    assert len({row["link"] for row in rows}) == 20
    assert all(row["link"].startswith("https://work.example.org/join#") for row in rows)
    assert {row["role"] for row in rows} == {"worker"}
    with Workbench(project) as bench:
        Accounts(bench.engine).accept(rows[7]["link"].partition("#")[2], "ann")
    (row,) = csv.DictReader(io.StringIO(run("invite", project, "--worker", "ann", "--csv")))
    assert (row["name"], row["link"].partition("#")[0]) == ("ann", "https://work.example.org/back")
    assert date.fromisoformat(row["last day"]) > date.today() + timedelta(days=300)
    with Workbench(project) as bench:
        bench.add_worker("=1+2")
    (row,) = csv.DictReader(io.StringIO(run("invite", project, "--worker", "=1+2", "--csv")))
    assert row["name"] == "'=1+2"


def test_only_workers_who_did_well_before_are_invited(corpus: Path, tmp_path: Path) -> None:
    earlier, project = tmp_path / "earlier.db", tmp_path / "project.db"
    hidden = _settings(tmp_path, "test_questions = 0", "first_items = 0", "hidden_share = 1.0")
    write_corpus(made_up_corpus(4, seed=5), tmp_path / "others")
    run("init", tmp_path / "others", earlier, "--start", "boxes", "--known", corpus, "--settings", hidden)
    known = truths(made_up_corpus(4))
    with Workbench(earlier) as bench:
        for name, right in (("ann", True), ("bob", False), ("cleo", True)):
            worker = bench.add_worker(name)
            for _ in range(1 if name == "cleo" else 3):
                view = bench.next_task(worker)
                assert view is not None
                truth = known[view.image]
                answer = truth.right_answer(view) if right else truth.wrong_answer(view, Random(0))
                bench.submit(worker, view.token, answer)
    run("init", corpus, project, "--settings", _settings(tmp_path, "screen_answers = 3"))
    invited = CliRunner().invoke(app, ["annotate", "invite", str(project), "--from", str(earlier)])
    assert [line.partition(":")[0] for line in invited.stdout.splitlines()] == ["ann"]
    assert "not invited: cleo (1 answers, 100% right)" in invited.stderr
    with pytest.raises(DeixisError, match="at least 3 earlier answers, 95% of them right"):
        run("invite", project)
    assert run("invite", project, "--answers", "812", "--accuracy", "0.97").startswith("http://127.0.0.1:8765/join#")


def _settings(folder: Path, *lines: str) -> Path:
    (folder / "settings.toml").write_text("\n".join(lines))
    return folder / "settings.toml"


def test_settings_are_explained_and_changed(corpus: Path, tmp_path: Path) -> None:
    explained = {row["name"]: row for row in json.loads(run("settings", "--json"))}
    assert explained.keys() == set(Settings.__struct_fields__)
    assert all(len(row["meaning"]) > 20 and row["meaning"].endswith(".") for row in explained.values())
    assert "first_items" in run("settings")
    project = tmp_path / "project.db"
    run("init", corpus, project)
    shown = run(
        "settings", project, "first_items=10", "skip_requirement=['people']", "address=https://work.example.org"
    )
    assert "first_items" in shown
    assert "lease_seconds" not in shown
    assert "Restart the server" in shown
    changed = {row["name"]: row["value"] for row in json.loads(run("settings", project, "--json"))}
    assert (changed["first_items"], changed["skip_requirement"]) == (10, ["people"])
    assert run("invite", project).startswith("https://work.example.org/join#")
    with Workbench(project) as bench:
        assert bench.check() == []
    for wrong, problem in (
        ("first_items", "NAME=VALUE"),
        ("tea=3", "not a setting"),
        ("first_items=many", "first_items"),
        ("first_items=-1", "first_items"),
        ("address=work.example.org", "address is 'work.example.org'; it begins with https:// or http://"),
        ("address=https://work.example.org/pages", "has no path"),
        ("address=https://user:password@work.example.org", "has no path"),
        (f"address=https://{'a' * 5000}", "has no path"),
        (f"test_questions={'9' * 4000}", f"test_questions is {'9' * 40}, more than"),
    ):
        with pytest.raises(DeixisError, match=problem):
            run("settings", project, wrong)


def test_an_export_without_a_finished_image_says_so(corpus: Path, tmp_path: Path) -> None:
    run("init", corpus, tmp_path / "project.db", "--solo")
    with pytest.raises(DeixisError, match="no image is finished yet"):
        run("export", tmp_path / "project.db", tmp_path / "out", "--finished-only", "--pictures")
    assert not (tmp_path / "out").exists()


def test_a_backup_is_a_project(corpus: Path, tmp_path: Path) -> None:
    project, copy = tmp_path / "project.db", tmp_path / "backups" / "copy.db"
    run("init", corpus, project)
    with Workbench(project) as bench:
        worker = bench.add_worker("ann")
        view = bench.next_task(worker)
        assert view is not None
        bench.submit(worker, view.token, view.answers[0])
        # While it is open, with what is only in the log of SQLite yet.
        run("backup", project, copy)
    assert "agree with the log" in run("check", copy)
    with Workbench(copy) as bench:
        assert bench.inspect_image(view.image).history[0].worker == "ann"
    with pytest.raises(DeixisError, match="exists already"):
        run("backup", project, copy)
    with pytest.raises(DeixisError, match=r"project\.db"):
        run("backup", project, project / "copy.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", "corpus", "project.db"]
    assert list(copy.parent.iterdir()) == [copy]


def test_a_project_gets_rules_in_its_own_language(corpus: Path, tmp_path: Path) -> None:
    project, folder = tmp_path / "project.db", tmp_path / "rules"
    assert len(run("rules", "--write", folder).splitlines()) == 6
    with pytest.raises(DeixisError, match="already exists; give --force"):
        run("rules", "--write", folder)
    assert len(json.loads(run("rules", "--write", folder, "--force", "--json"))["written"]) == 6
    link = folder / "link.toml"
    link.write_text(link.read_text().replace("Same thing?", "Dasselbe?"))
    run("init", corpus, project, "--rules", folder)
    with Workbench(project) as bench:
        assert bench.task_rules["link"].title == "Dasselbe?"
    link.write_text(link.read_text().replace("Dasselbe?", "La même chose ?"))
    assert "link, chain" in run("rules", project, folder)
    with Workbench(project) as bench:
        assert bench.task_rules["link"].title == "La même chose ?"
    with pytest.raises(DeixisError, match="name a project"):
        run("rules", project)


def test_settings_come_from_a_file_and_faults_in_it_are_reported(corpus: Path, tmp_path: Path) -> None:
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
        run("simulate", tmp_path / "corpus", "--out", out, "--population", "angels", "--force")


def test_invitations_are_links(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    run("init", corpus, project, "--limit", "1")
    assert run("invite", project, "--address", "https://work.example/").startswith("https://work.example/join#")
    with Workbench(project) as bench:
        bench.add_worker("ann")
    assert run("invite", project, "--worker", "ann").startswith("http://127.0.0.1:8765/back#")
    with Workbench(project) as bench:
        bench.last_served = "http://127.0.0.1:9000"
    invited = CliRunner().invoke(app, ["annotate", "invite", str(project)])
    assert invited.stdout.startswith("http://127.0.0.1:9000/join#")
    assert f"deixis annotate settings {project} address=https://" in invited.stderr
    with pytest.raises(DeixisError, match="no worker 'bob'"):
        run("invite", project, "--worker", "bob")


def test_known_answers_are_of_other_images(corpus: Path, tmp_path: Path) -> None:
    quick = _settings(tmp_path, "test_questions = 1", "test_attempts = 1", "first_items = 1")
    with pytest.raises(DeixisError, match=r"corpus has all images of .*corpus; known answers must be of other images"):
        run("init", corpus, tmp_path / "project.db", "--known", corpus, "--settings", quick)
    assert not (tmp_path / "project.db").exists()
    write_corpus(made_up_corpus(40), tmp_path / "forty")
    write_corpus(made_up_corpus(40).subset(f"image{number}" for number in range(38)), tmp_path / "38")
    arguments = ["init", tmp_path / "forty", tmp_path / "project.db", "--known", tmp_path / "38", "--settings", quick]
    made = CliRunner().invoke(app, ["annotate", *map(str, arguments), "--known-each", "6000"])
    assert f"Left out 38 images that {tmp_path / '38'} has, too" in made.stderr
    assert "of 2 images are finished" in made.stdout
    assert "Questions with known answers, at most 6,000 per task: link " in made.stdout


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
        with pytest.raises(DeixisError, match=r"cannot listen on .* try another --port"):
            run("serve", shown, "--port", str(taken.getsockname()[1]))


def test_what_is_done_to_a_project_is_reported_as_json(corpus: Path, tmp_path: Path) -> None:
    project = tmp_path / "project.db"
    assert json.loads(run("init", corpus, project, "--json"))["finished"] == 0
    [invitation] = json.loads(run("invite", project, "--json"))
    assert invitation.keys() == {"name", "role", "link", "last_day"}
    with Workbench(project) as bench:
        bench.add_worker("ann")
    report = {"worker": "ann", "task": "drawing"}
    assert json.loads(run("suspend", project, "ann", "drawing", "--json")) == {**report, "images_asked_again": 0}
    assert json.loads(run("reinstate", project, "ann", "drawing", "--json")) == report
    assert json.loads(run("check", project, "--json")) == {"differences": []}
    copied = json.loads(run("backup", project, tmp_path / "copy.db", "--json"))
    assert copied == {"copy": str(tmp_path / "copy.db"), "bytes": (tmp_path / "copy.db").stat().st_size}


def test_links_are_measured_from_words(tmp_path: Path) -> None:
    write_corpus(made_up_corpus(6), tmp_path / "corpus")
    out = json.loads(run("links", tmp_path / "corpus", "--split", "", "--json", "--out", tmp_path / "links.json"))
    assert out["counts"]["images"] == 6
    assert 0 <= out["metrics"]["scorer"]["pairs"]["f1"] <= 100
    assert out["metrics"] == json.loads((tmp_path / "links.json").read_text())["metrics"]
    with pytest.raises(DeixisError, match="already exists; give --force"):
        run("links", tmp_path / "corpus", "--split", "", "--out", tmp_path / "links.json")
    with pytest.raises(DeixisError, match="no split"):
        run("links", tmp_path / "corpus", "--split", "test")
