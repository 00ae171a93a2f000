"""`deixis export onnx`, `index`, `search`, `similar`, `status` and `doctor` as a person runs them."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.adapters.bundles import Presence, Relevance, Threshold, read_bundle
from deixis.cli import app, main
from deixis.cli.search_command import _print_unknown
from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.loading import load_search_model
from deixis.search import bundle_calibration
from deixis.search.engine import Answer, Hit, IgnoredExclusion


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


Command = Callable[..., Done]


@pytest.fixture
def deixis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs the program with an index of its own, in this process: starting one for each command took half a minute."""
    monkeypatch.setenv("DEIXIS_INDEX", str(tmp_path / "index"))

    def command(*arguments: str | Path, code: int | None = 0, given: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["deixis", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given.decode()))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        done = Done(int(end.value.code or 0), *capfdbinary.readouterr())
        assert done.returncode == code or (code is None and done.returncode in (0, 1)), done
        return done

    return command


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    corpus = open_corpus("scenes")
    assert corpus.pictures is not None
    for image in list(corpus)[:6]:
        (folder / f"{image.id}.png").write_bytes(corpus.pictures.read(image))
    return folder


def test_from_a_folder_to_answers(deixis: Command, bundle: Path, pictures: Path) -> None:
    (pictures / "broken.jpg").write_bytes(b"no picture")
    Pillow.new("RGB", (8, 8), "red").save(pictures / "x", "PNG")
    os.rename(pictures / "x", os.fsencode(pictures) + b"/odd\n\xff.png")
    report = deixis("index", pictures, "--model", f"onnx:{bundle}").stdout.decode()
    assert "7 pictures in 7 files; 7 added" in report
    assert "broken.jpg: is not a picture" in report
    assert json.loads(deixis("index", "--json").stdout)["added"] == 0
    status = json.loads(deixis("status", "--json").stdout)
    assert (status["pictures"], status["unreadable"], status["folders"]) == (7, 1, [str(pictures)])
    assert b"towers" in deixis("status").stdout
    searched = deixis("search", "a dog -car", "-n", "3", "--json", code=None)
    answer = json.loads(searched.stdout)
    assert searched.returncode == int(answer["absent"])
    assert answer["query"] == "a dog -car"
    assert len(answer["hits"]) == 3
    assert {type(hit["path"]) for hit in answer["hits"]} == {str}
    assert {type(hit["relevant"]) for hit in answer["hits"]} == {bool}
    assert sorted(hit["score"] for hit in answer["hits"])[::-1] == [hit["score"] for hit in answer["hits"]]
    first = deixis("search", "a dog", "-n", "1", code=None)
    matches = [hit["relevant"] for hit in json.loads(deixis("search", "a dog", "--json", code=None).stdout)["hits"]]
    assert (b"There are more matches" in first.stderr) == (sum(matches) > 1)
    example = sorted(pictures.glob("*.png"))[0]
    alike = deixis("similar", example, "--json", code=None)
    near = json.loads(alike.stdout)["hits"]
    assert alike.returncode == int(not any(hit["relevant"] for hit in near))
    assert len(near) == 6
    assert str(example) not in [hit["path"] for hit in near]
    healthy = json.loads(deixis("doctor", "--json").stdout)
    assert healthy["healthy"], healthy


@pytest.mark.parametrize("missing", [True, False])
def test_pruning_reports_what_it_removed(deixis: Command, bundle: Path, pictures: Path, missing: bool) -> None:
    extra = pictures.with_name("extra")
    extra.mkdir()
    Pillow.new("RGB", (8, 8), "red").save(extra / "red.png")
    assert b"1 picture in 1 file; 1 added" in deixis("index", extra, "--model", f"onnx:{bundle}").stdout
    assert b"7 pictures in 7 files" in deixis("index", pictures, extra).stdout
    (extra / "red.png").unlink()
    if missing:
        extra.rmdir()
    assert b"extra: is missing or empty; its pictures stay" in deixis("index").stdout
    pruned = deixis("index", "--prune").stdout
    assert b"6 pictures in 6 files; 1 removed" in pruned
    assert b"extra: is missing or empty; removed from the index\n" in pruned
    assert b"stay" not in pruned
    assert b"missing" not in deixis("index").stdout


@pytest.mark.parametrize("command", [["status"], ["search", "a dog"]])
def test_the_advice_to_make_an_index_names_it(deixis: Command, command: list[str]) -> None:
    assert deixis(*command, code=2).stderr.endswith(b"make one with: deixis index DIR\n")
    named = deixis(*command, "--index", "my photos", code=2).stderr
    assert named.endswith(b"make one with: deixis index DIR --index 'my photos'\n")


def test_many_queries_are_answered_line_by_line(deixis: Command, bundle: Path, pictures: Path) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    done = deixis("search", "--queries", "-", "-n", "2", code=None, given=b'a dog\n\n"a car\n"a dog" "a tree"\n')
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["query"] for line in lines] == ["a dog", '"a car', '"a dog" "a tree"']
    assert "not closed" in lines[1]["error"]
    alone = json.loads(deixis("search", "a dog", "-n", "2", "--json", code=None).stdout)
    assert lines[0] == alone
    assert done.returncode == int(all(line.get("absent", True) for line in lines))


@pytest.mark.parametrize(
    ("words", "query"),
    [
        (["a", "dog", "-people"], "a dog -people"),
        (["a red car", "snow"], '"a red car" snow'),
        (["a beach", "-a red boat"], '"a beach" -"a red boat"'),
        (["a street without cars"], "a street without cars"),
    ],
)
def test_a_query_needs_no_quotes(deixis: Command, bundle: Path, pictures: Path, words: list[str], query: str) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    answer = json.loads(deixis("search", "-n2", *words, "--json", code=None).stdout)
    assert answer == json.loads(deixis("search", "-n2", query, "--json", code=None).stdout)
    assert answer["query"] == query


def test_words_that_were_ignored_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(b"dog.jpg", 0.9, True)
    for hits, unknown, said in (
        ([hit], ["zorblax"], 'The model does not know "zorblax", and ignores it.'),
        ([hit], ["zorblax", "qwerty"], "and ignores them."),
        ([hit._replace(relevant=False)], ["zorblax"], 'The model does not know "zorblax".'),
    ):
        _print_unknown(Answer("a dog or a zorblax", hits, unknown))
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unknown", "suggestion", "is_said"),
    [
        (["ein", "hund"], "", True),
        (["собака"], "", True),
        (["zorblax"], "", False),
        # Misspelled.
        (["bycicle", "umbrela"], "a bicycle -umbrella", False),
        ([], "", False),
    ],
)
def test_queries_in_other_languages_are_told_that_english_is_known(
    capsys: pytest.CaptureFixture[str], unknown: list[str], suggestion: str, is_said: bool
) -> None:
    _print_unknown(Answer("", [], unknown, suggestion))
    assert ("Queries are in English." in capsys.readouterr().err) == is_said


def test_exclusions_without_effect_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(b"dog.jpg", 0.9, True)
    unknown, absent = IgnoredExclusion("a red zorblax", "unknown"), IgnoredExclusion("frisbee", "absent")
    for ignored, said in (
        (
            [unknown],
            'The model does not know "zorblax", and ignores it. Excluding "a red zorblax" has no effect.\n',
        ),
        ([absent], 'Excluding "frisbee" leaves no picture out: none matches.\n'),
        (
            [absent, IgnoredExclusion("leash", "absent")],
            'Excluding "frisbee", "leash" leaves no picture out: none matches.\n',
        ),
    ):
        _print_unknown(
            Answer("a dog", [hit], ["zorblax"] if ignored[0].reason == "unknown" else [], ignored_exclusions=ignored)
        )
        assert capsys.readouterr().err.endswith(said)


def test_nothing_found_is_exit_code_1(deixis: Command, bundle: Path, pictures: Path) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    said = deixis("search", "zorblax", code=1).stdout.splitlines()
    assert said[0].startswith(b"Not sure what matches zorblax")
    # A glance at the closest, not a list.
    assert len(said) <= 1 + 5
    assert json.loads(deixis("search", "zorblax", "--json", code=1).stdout)["absent"]
    assert deixis("search", "zorblax", "--paths-only", code=1).stdout == b""
    assert deixis("search", "--queries", "-", code=1, given=b"zorblax\n").stdout.count(b"\n") == 1


@pytest.mark.parametrize("query", ["-dog", "-nose", '-"a dog"'])
def test_a_query_may_begin_with_what_it_excludes(deixis: Command, bundle: Path, pictures: Path, query: str) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    for arguments in ([query, "-n2"], ["-n", "2", query]):
        assert json.loads(deixis("search", *arguments, "--json", code=None).stdout)["query"] == query
    assert b"No such option" in deixis("search", "-x", code=2).stderr
    # The value of an option is left alone.
    assert not json.loads(deixis("search", "a dog", "--name", "-dog", "--json", code=None).stdout)["hits"]


def test_paths_are_bytes_as_the_system_has_them(
    deixis: Command,
    bundle: Path,
    tmp_path: Path,
) -> None:
    folder = os.fsencode(tmp_path / "odd")
    os.mkdir(folder)
    Pillow.new("RGB", (8, 8), "red").save(tmp_path / "x.png")
    odd = folder + b"/a\nb\xff.png"
    os.rename(tmp_path / "x.png", odd)
    copy = tmp_path / "copy.png"
    copy.write_bytes(Path(os.fsdecode(odd)).read_bytes())
    deixis("index", os.fsdecode(folder), "--model", f"onnx:{bundle}")
    assert deixis("similar", copy, "--paths-only", "-0").stdout == odd + b"\0"
    shown = json.loads(deixis("similar", copy, "--json").stdout)["hits"][0]["path"]
    assert shown == f"{os.fsdecode(folder)}/a\nb\\xff.png"
    assert b"a\\nb\\xff.png" in deixis("similar", copy).stdout


def test_a_cold_search_imports_neither_torch_nor_spacy(
    deixis: Command,
    bundle: Path,
    pictures: Path,
    tmp_path: Path,
) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    code = f"""
import atexit, sys
from deixis.cli import main
heavy = ("torch", "spacy", "sklearn", "scipy", "cv2", "onnx", "matplotlib", "pandas")
atexit.register(lambda: sys.stderr.write(str([name for name in heavy if name in sys.modules])))
sys.argv = ["deixis", "search", "two dogs", "--index", {str(tmp_path / "index")!r}, "--json"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "[]"
    assert json.loads(done.stdout)["query"] == "two dogs"


def test_an_index_of_former_weights_says_to_index_again(deixis: Command, pictures: Path, tmp_path: Path) -> None:
    deixis("index", pictures)
    (catalogue,) = (tmp_path / "index").glob("*/catalogue.sqlite")
    with closing(sqlite3.connect(catalogue)) as connection, connection:
        (identity,) = connection.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
        former = json.dumps({**json.loads(identity), "weights_sha256": "0" * 64})
        connection.execute("UPDATE meta SET value = ? WHERE key = 'identity'", (former,))
    message = deixis("search", "a dog", code=2).stderr.decode()
    assert "deixis-base has changed since" in message
    assert "--model" not in message
    deixis("index")
    assert not deixis("search", "a dog", code=None).stderr


def test_another_model_is_refused_with_what_to_run(
    deixis: Command,
    bundle: Path,
    pictures: Path,
    tmp_path: Path,
) -> None:
    deixis("index", pictures, "--model", f"onnx:{bundle}")
    other = tmp_path / "other"
    other.mkdir()
    for file in bundle.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "weights_sha256": "0" * 64}))
    report = deixis("search", "a dog", "--model", f"onnx:{other}", code=2).stderr.decode()
    assert f"--model onnx:{bundle}" in report
    assert "deixis index --index" in report
    deixis("index", "--model", f"onnx:{other}")
    deixis("search", "a dog")
    assert b"--model" in deixis("search", "a dog", "--model", f"onnx:{bundle}", code=2).stderr


def test_faults_are_one_line(deixis: Command, tmp_path: Path) -> None:
    for arguments, report in (
        (["search", "a dog"], "deixis index DIR"),
        (["search"], "say what to look for"),
        (["search", "a", "--queries", "-"], "stands alone"),
        (["status"], "deixis index DIR"),
        (["index", str(tmp_path / "nowhere"), "--model", "onnx:nowhere"], "deixis export onnx"),
    ):
        done = deixis(*arguments, code=2)
        assert report in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
    assert b"PROBLEM" in deixis("doctor", code=1).stdout


def test_export_writes_whole_bundles_only_where_there_is_room(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    done = CliRunner().invoke(app, ["export", "onnx", str(run), "--out", str(out), "--json"])
    report = json.loads(done.stdout)
    assert report["manifest"]["weights"] == "mixed"
    assert report["bytes"] == sum(path.stat().st_size for path in out.iterdir() if path.name != "manifest.json")
    again = CliRunner().invoke(app, ["export", "onnx", str(run), "--out", str(out)])
    assert isinstance(again.exception, DeixisError)
    failed = CliRunner().invoke(app, ["export", "onnx", str(tmp_path / "no run"), "--out", str(tmp_path / "new")])
    assert isinstance(failed.exception, DeixisError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_export_calibrates_on_captioned_pictures(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_calibration, "PICTURES", 40)
    out = tmp_path / "bundle"
    command = ["export", "onnx", str(run), "--out", str(out), "--calibrate", "scenes:200", "--json"]
    done = CliRunner().invoke(app, command)
    if done.exception is None:
        assert json.loads(done.stdout)["manifest"]["thresholds"]["slope"] > 0
    else:
        # A tower of a few steps need not tell anything from anything.
        assert "do not separate" in str(done.exception) or "too few" in str(done.exception)
        assert not out.exists()


def test_a_bundle_is_calibrated_in_place(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Relevance(Threshold(0.25), Threshold(0.5), slope=3.0)
    monkeypatch.setattr(bundle_calibration, "PICTURES", 4)
    monkeypatch.setattr(bundle_calibration, "fitted", lambda encoder, pictures, images, *rest: fitted)
    monkeypatch.setattr(bundle_calibration, "fit_presence", lambda *anything: Presence(-1.0, 2.0))
    monkeypatch.setattr(bundle_calibration, "fit_end_with_example", lambda *anything: Threshold(0.3))
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    done = CliRunner().invoke(app, ["export", "calibrate", str(copy), "scenes:40", "scenes:40", "--json"])
    assert json.loads(done.stdout)["thresholds"]["end"]["base"] == 0.5
    expected = structs.replace(fitted, presence=Presence(-1.0, 2.0), end_with_example=Threshold(0.3))
    assert read_bundle(copy).manifest.thresholds == expected
    assert load_search_model(f"onnx:{copy}").identity == load_search_model(f"onnx:{bundle}").identity
