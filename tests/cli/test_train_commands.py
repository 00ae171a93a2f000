"""`deixis train`, `runs` and `recipes` as a person types them."""

from __future__ import annotations

import json
import re
import sys
import time
import tomllib
from collections import Counter

import pytest
import torch

from deixis.cli import main, output
from deixis.training.kinds import KINDS
from deixis.training.runs import RunFolder, read_plan, read_weights
from tests.training.test_recipe import TOML


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the program: its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "toy", "tests.training.toy:ToyKind")
    path = tmp_path / "toy.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def test_train_keeps_the_best_epoch_and_reports_every_epoch_on_standard_error(run, recipe, tmp_path):
    code, out, err = run("train", recipe, "--out", tmp_path / "run", "--set", "schedule.epochs=2", "--seed", 3)
    assert code == 0
    assert f"Trained toy into {tmp_path / 'run'}\nBest epoch " in out
    assert [line.split(":")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert "score -0." in err
    plan = read_plan(tmp_path / "run")
    assert (plan.recipe["seed"], plan.recipe["schedule"]["epochs"]) == (3, 2)
    assert plan.corpus.splits.keys() >= {"train", "val", "test"}
    assert (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8") == TOML
    assert "deixis train" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert read_weights(tmp_path / "run")


def test_the_same_command_leaves_a_finished_run_and_another_is_refused(run, recipe, tmp_path, monkeypatch):
    arguments = ("train", recipe, "--out", tmp_path / "run", "--json")
    first = json.loads(run(*arguments)[1])
    again = json.loads(run(*arguments)[1])
    assert (first["found"], again["found"]) == (False, True)
    assert first["report"] == again["report"]
    # Before features are extracted for it.
    monkeypatch.setattr("deixis.training.running.stores_for", None)
    code, out, err = run(*arguments, "--seed", 1)
    assert (code, out) == (2, "")
    assert err == (
        f"deixis: {tmp_path / 'run'}: has a run of another recipe (recipe.seed is 0 there and 1 here); "
        "choose another folder\n"
    )


def test_runs_show_lists_every_epoch_and_draws(run, recipe, tmp_path):
    folder = tmp_path / "run"
    run("train", recipe, "--out", folder)
    (folder / "curves.png").unlink()
    code, out, _ = run("runs", "show", folder, "--plot")
    assert code == 0
    assert "toy, seed 0" in out
    assert "of 3: " in out
    assert (folder / "curves.png").exists()
    found = json.loads(run("runs", "show", folder, "--json")[1])
    assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2, 3]
    assert found["finished"]
    best = max(found["epochs"], key=lambda epoch: epoch["figures"]["score"])
    assert found["report"]["epoch"] == best["epoch"]
    (folder / "model.json").unlink()
    assert "Not finished" in run("runs", "show", folder)[1]
    # Before features are extracted for it.
    assert "is not finished" in run("evaluate", folder, "--corpus", "scenes")[2]
    assert "is not a run" in run("evaluate", tmp_path / "none", "--corpus", "scenes")[2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "schedule.epochs=0"], "schedule.epochs: Expected `int` >= 1"),
        (["--set", "epochs"], "'epochs' is not a setting"),
        (["--set", "corpus=nowhere"], "toy needs the corpus 'nowhere'; give its path with --corpus PATH"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--features", "nowhere"], "is not a feature store"),
        (["--set", "schedule.figure=rsum"], "has no figure 'rsum'; it has: error, score"),
    ],
)
def test_a_mistake_is_one_line(run, recipe, tmp_path, arguments, problem):
    code, out, err = run("train", recipe, "--out", tmp_path / "run", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert problem in err


def test_a_network_that_no_memory_holds_is_refused_in_one_line(run, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.training.toy.ToyKind.task", lambda *_: torch.empty(10**15))
    code, _, err = run("train", recipe, "--out", tmp_path / "run")
    assert code == 2
    assert "does not fit into memory" in err
    assert len(err.splitlines()) == 1


def test_too_few_captions_for_a_recipe_are_reported_before_a_picture_is_opened(run, tmp_path, monkeypatch):
    assert run("corpus", "cut", "scenes", tmp_path / "small", "--limit", 20, "--pictures")[0] == 0
    monkeypatch.setattr("deixis.training.running.features_for", None)
    for recipe in ("two-branch/sentences-bi", "two-branch/phrases-bi", "two-branch/phrases-cca", "two-branch/joint"):
        code, out, err = run("train", recipe, "--out", tmp_path / "run", "--corpus", tmp_path / "small")
        assert (code, out) == (2, "")
        assert re.fullmatch(r"deixis: text\.pca = 6000: \d+ training captions have .* --set text\.pca=\d+`\).*\n", err)
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_says_from_where(run, recipe, tmp_path, monkeypatch):
    log = RunFolder.log

    def killed(self, record):
        log(self, record)
        if getattr(record, "epoch", 0) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", killed)
        patch.setattr("deixis.training.trainer.CHECKPOINT_SHARE", 0)
        assert run("train", recipe, "--out", tmp_path / "run")[0] != 0
    code, _, err = run("train", recipe, "--out", tmp_path / "run")
    assert code == 0
    assert [line.split(":")[0] for line in err.splitlines()] == ["continuing after epoch 2", "epoch 3/3"]


def test_a_run_without_steps_is_shown_without_curves(run, recipe, tmp_path):
    run("train", recipe, "--out", tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_bytes(b"")
    code, out, _ = run("runs", "show", tmp_path / "run", "--plot")
    assert (code, out.splitlines()[-1]) == (0, "No curves: the run has no steps")
    assert run("runs", "show", tmp_path / "run", "--plot", "--json")[0] == 0


def test_a_recipe_is_printed_with_all_that_it_sets_and_trains_from_there(run, tmp_path):
    code, out, _ = run("recipes", "hm-lstm/hm-lstm")
    assert (code, tomllib.loads(out)["name"]) == (0, "hm-lstm/hm-lstm")
    (tmp_path / "my.toml").write_text(out, encoding="utf-8")
    settings = json.loads(run("recipes", tmp_path / "my.toml", "--json")[1])
    # Also what the file leaves to the default.
    assert settings["batch"] == 64
    assert "batch" not in tomllib.loads(out)
    # With what it inherits.
    extended = tomllib.loads(run("recipes", "two-branch/sentences-constraints")[1])
    assert (extended["model"]["image"], extended["loss"]["weights"]) == ([2048, 512], [1.0, 1.5, 0.0, 0.05])
    code, _, err = run("recipes", "hm-lstm/nothing")
    assert (code, "hm-lstm/nothing" in err) == (2, True)


def test_recipes_are_listed(run):
    code, groups, _ = run("recipes")
    listed = json.loads(run("recipes", "--json")[1])
    assert code == 0
    assert "two-branch/sentences-bi" in listed
    names = Counter(name.partition("/")[0] for name in listed)
    assert [line.split()[:2] for line in groups.splitlines()[:-1]] == [[group, str(names[group])] for group in names]
    for group in names:
        code, out, _ = run("recipes", group)
        of_group = json.loads(run("recipes", group, "--json")[1])
        assert (code, of_group) == (0, {name: listed[name] for name in listed if name.startswith(f"{group}/")})
        for name, recipe in of_group.items():
            assert f"{name}  ({recipe['kind']}, {recipe['corpus']})" in out


def test_long_work_is_reported_line_by_line_where_nobody_looks_on(capsys, monkeypatch):
    monkeypatch.setattr(output, "EVERY_SECONDS", 0.0)
    with output.progress_bar("Extracting features") as progress:
        progress(1, 2000)
    line = capsys.readouterr().err
    assert re.fullmatch(r"Extracting features: 1 of 2,000, [\d.]+ images/s, \d+ min \d+ s left\n", line)
    monkeypatch.setattr(output, "EVERY_SECONDS", 60.0)
    with output.progress_bar("Extracting features") as progress:
        progress(2000, 2000)
    assert capsys.readouterr().err == ""


def test_what_has_no_steps_is_reported_once_where_nobody_looks_on(capsys, monkeypatch):
    monkeypatch.setattr(output, "EVERY_SECONDS", 0.01)
    with output.busy("Reading"):
        time.sleep(0.2)
    monkeypatch.setattr(output, "EVERY_SECONDS", 60.0)
    with output.busy("Writing"):
        pass
    assert capsys.readouterr().err == "Reading …\n"
