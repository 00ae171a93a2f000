"""The trainer promises: a killed run ends with the same bits; a loss that is no number stops it; the best is kept."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from deixis.errors import DeixisError, InputError
from deixis.training.run_records import EpochRecord, Record, StepRecord, epochs_of
from deixis.training.runs import RunFolder, read_log, read_model, read_starts, read_weights
from deixis.training.task import Loss
from deixis.training.trainer import READ_EVERY, Progress, train
from tests.training.recording import needs_gpu
from tests.training.toy import CPU, ToyTask, plan, schedule, toy_run

ROOT = Path(__file__).parents[2]
#: Every optimizer, averaging, clipping, freezing and decay once.
SCHEDULES: dict[str, dict[str, Any]] = {
    "adam": {"clip": {"kind": "norm", "at": 0.5}, "averaging": 0.8},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "groups": [{"prefix": "0", "rate": 0.5, "frozen_epochs": 1}]},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "decay": {"kind": "cosine", "warm_up": 0.5}},
    "rmsprop": {"optimizer": "rmsprop", "clip": {"kind": "value", "at": 0.1}, "patience": 1, "precision": "bfloat16"},
}


def without_times(records: list[Record]) -> list[Record]:
    return [
        msgspec.structs.replace(record, seconds=0.0) if isinstance(record, EpochRecord) else record
        for record in records
    ]


def train_and_kill(jobs: list[tuple[Path, dict[str, Any], list[int]]]) -> list[int]:
    """Train each job in processes that are killed one after another at its moments; how many were."""
    given = json.dumps([(str(out), changes, moments) for out, changes, moments in jobs])
    command = [sys.executable, "-m", "tests.training.toy", given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=list[int])


def same_outcome(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert without_times(read_log(one)) == without_times(read_log(other))
    assert read_model(one).report.figures == read_model(other).report.figures
    assert read_model(one).report.epoch == read_model(other).report.epoch


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX systems")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_killed_again_and_again_a_run_ends_with_the_same_bits_and_an_undoubled_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kills = 12 if seed else 5
    moments = [[chance.randrange(1, 25) for _ in range(kills)] for _ in SCHEDULES]
    jobs = [(tmp_path / name, changes, moments.pop()) for name, changes in SCHEDULES.items()]
    assert min(train_and_kill(jobs)) > 2, "the kills came too late to mean anything"
    for out, changes, _ in jobs:
        toy_run(tmp_path / f"{out.name}, whole", **changes)
        toy_run(out, **changes)
        same_outcome(out, tmp_path / f"{out.name}, whole")
        assert len(read_starts(out)) > 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX systems")
@pytest.mark.parametrize("name", SCHEDULES)
def test_killed_at_each_step_sync_and_rename_a_run_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    changes = SCHEDULES[name]
    toy_run(tmp_path / "whole", **changes)
    # Later moments are not in every run: a checkpoint at an epoch's end is left out soon after another.
    moments = range(1, 80)
    killed = train_and_kill([(tmp_path / str(moment), changes, [moment]) for moment in moments])
    assert sum(killed) > 50
    for moment in moments:
        toy_run(tmp_path / str(moment), **changes)
        same_outcome(tmp_path / str(moment), tmp_path / "whole")


@pytest.mark.parametrize(("fault", "every"), [("loss", 1), ("gradient", 1), ("loss", 4)])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run_and_names_step_and_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, every: int
) -> None:
    monkeypatch.setitem(READ_EVERY, "cpu", every)
    task = ToyTask()
    bad = next(iter(task.batches(2)))[:1]

    class Failing(ToyTask):
        def loss(self, rows):  # type: ignore[no-untyped-def]
            loss = super().loss(rows)
            if bad not in rows:
                return loss
            # The square root of 0 is a number, its slope is not.
            return loss._replace(total=loss.total * torch.nan if fault == "loss" else (loss.total * 0).sqrt())

    failing = Failing()
    position = next(
        (epoch, step, rows)
        for epoch in (1, 2)
        for step, rows in enumerate(failing.batches(epoch), start=1)
        if bad in rows
    )
    with pytest.raises(
        DeixisError, match=rf"the {fault} became (nan|inf) in epoch {position[0]}, step {position[1]}, "
    ):
        toy_run(tmp_path, failing)
    with pytest.raises(DeixisError) as raised:
        toy_run(tmp_path, failing)
    assert str(position[2].tolist()) in str(raised.value)
    # What was saved is whole: without the fault the run goes on to the end an undisturbed one has.
    toy_run(tmp_path)
    toy_run(tmp_path.with_name("whole"))
    same_outcome(tmp_path, tmp_path.with_name("whole"))


@pytest.mark.parametrize(("lower", "sign"), [(False, 1), (True, -1)])
def test_early_stopping_keeps_the_best_epoch(tmp_path: Path, lower: bool, sign: int) -> None:
    figures = [sign * value for value in (1.0, 3.0, 2.0, 3.0, 2.0, 9.0)]
    weights: list[dict[str, torch.Tensor]] = []

    class Watched(ToyTask):
        def validate(self):  # type: ignore[no-untyped-def]
            weights.append({name: value.clone() for name, value in self.module.state_dict().items()})
            return super().validate()

    task = Watched(figures=figures)
    report = toy_run(tmp_path, task, epochs=9, patience=3, lower_is_better=lower)
    assert (report.epoch, report.epochs, report.stopped_early) == (2, 5, True)
    assert report.figures["score"] == figures[1]
    kept = read_weights(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in weights[2].items()), "the first are of before"
    assert any(not torch.equal(kept[name], value) for name, value in weights[4].items())
    assert [record.best for record in epochs_of(read_log(tmp_path))] == [True, True, False, False, False]


def test_epochs_before_the_first_that_may_be_kept_do_not_compete(tmp_path: Path) -> None:
    report = toy_run(tmp_path, ToyTask(figures=[1.0, 9.0, 3.0, 5.0, 4.0, 2.0]), epochs=5, first_kept=3, patience=2)
    assert (report.epoch, report.epochs, report.figures["score"]) == (4, 5, 5.0)
    assert [record.best for record in epochs_of(read_log(tmp_path))] == [False, False, True, True, False]


def test_without_a_figure_the_last_epoch_is_kept(tmp_path: Path) -> None:
    task = ToyTask()
    report = toy_run(tmp_path, task, figure=None, validate_every=2)
    assert (report.epoch, report.epochs, report.stopped_early) == (3, 3, False)
    assert all(torch.equal(value, task.module.state_dict()[name]) for name, value in read_weights(tmp_path).items())
    assert [record.figures is not None for record in epochs_of(read_log(tmp_path))] == [False, True, True]


def test_a_figure_that_is_not_there_or_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="no figure 'rsum'; it has: error, score"):
        toy_run(tmp_path / "missing", figure="rsum")
    assert read_log(tmp_path / "missing") == [], "reported before anything is learned"
    with pytest.raises(DeixisError, match="score is nan after epoch 1"):
        toy_run(tmp_path / "nan", ToyTask(figures=[float("nan")]))


def test_figures_and_parts_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    class Odd(ToyTask):
        def loss(self, rows):  # type: ignore[no-untyped-def]
            return super().loss(rows)._replace(parts={"odd": float("nan")})

        def validate(self):  # type: ignore[no-untyped-def]
            return {**super().validate(), "average_precision": float("nan")}

    toy_run(tmp_path, Odd())
    for record in read_log(tmp_path):
        if isinstance(record, EpochRecord):
            assert (record.parts, sorted(record.figures or {})) == ({}, ["error", "score"])


def test_the_log_has_every_step_and_the_means_of_every_epoch(tmp_path: Path) -> None:
    toy_run(tmp_path, learning_rate=0.01)
    records = read_log(tmp_path)
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert [(record.epoch, record.step) for record in steps] == [(e, s) for e in (1, 2, 3) for s in range(1, 6)]
    assert all(record.learning_rate == 0.01 for record in steps)
    for epoch in epochs_of(records):
        own = [record for record in steps if record.epoch == epoch.epoch]
        assert epoch.loss == pytest.approx(sum(record.loss for record in own) / 5)
        assert epoch.parts["error"] == epoch.loss
        assert epoch.parts["rows"] == 16
    assert steps[-1].loss < steps[0].loss


def test_the_outcome_depends_on_the_seed_alone_and_leaves_torch_as_it_was(tmp_path: Path) -> None:
    for number, seed in enumerate((7, 7, 8)):
        torch.rand(number)
        before = torch.get_rng_state()
        with RunFolder(tmp_path / str(number), plan()) as run:
            train(ToyTask(), schedule(), run, seed=seed, device=CPU)
        assert torch.equal(torch.get_rng_state(), before)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "012"]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.usefixtures("with_curves")
def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    first = toy_run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    idle = ToyTask()
    idle.before_loss = lambda rows: pytest.fail("a finished run was trained")
    assert toy_run(tmp_path, idle) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) - {".lock"} == {
        "recipe.toml", "run.json", "environment.json", "log.jsonl", "model.safetensors", "README.md", "curves.png",
        "model.json",
    }  # fmt: skip


def test_it_does_not_matter_how_often_losses_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_run(tmp_path / "always")
    monkeypatch.setitem(READ_EVERY, "cpu", 4)
    toy_run(tmp_path / "seldom")
    same_outcome(tmp_path / "seldom", tmp_path / "always")
    interrupt_after(tmp_path / "interrupted", steps=8)
    toy_run(tmp_path / "interrupted")
    same_outcome(tmp_path / "interrupted", tmp_path / "always")


def test_figures_of_every_dtype_stay_with_their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(step: int) -> dict[str, torch.Tensor | float]:
        third = step / 3
        kinds = {"bfloat16": torch.bfloat16, "float64": torch.float64, "int64": torch.int64}
        return {name: torch.tensor(third, dtype=kind) for name, kind in kinds.items()} | {"plain": third}

    class Mixed(ToyTask):
        step = 0

        def loss(self, rows):  # type: ignore[no-untyped-def]
            self.step += 1
            return super().loss(rows)._replace(parts=parts(self.step))

    monkeypatch.setitem(READ_EVERY, "cpu", 4)
    toy_run(tmp_path, Mixed())
    steps = [record for record in read_log(tmp_path) if isinstance(record, StepRecord)]
    assert [record.parts for record in steps] == [
        {name: float(value) for name, value in parts(step).items()} for step in range(1, 16)
    ]


def test_progress_is_reported_from_the_first_step_to_the_last_epoch(tmp_path: Path) -> None:
    printed: list[Progress] = []
    with RunFolder(tmp_path, plan()) as run:
        train(ToyTask(), schedule(), run, seed=7, device=CPU, progress=printed.append)
    times = [at.epoch - 1 + at.step / at.steps for at in printed]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.2, 3.0)
    assert [at.epoch_record.epoch for at in printed if at.epoch_record] == [1, 2, 3]


def test_an_epoch_without_batches_is_refused(tmp_path: Path) -> None:
    task = ToyTask()
    task.inputs, task.targets, task.count = task.inputs[:0], task.targets[:0], 0
    with pytest.raises(DeixisError, match="epoch 1 has no batches"):
        toy_run(tmp_path, task)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    interrupt_after(tmp_path, steps=7)
    with pytest.raises(InputError, match="does not fit the model"):
        toy_run(tmp_path, ToyTask(width=9))


def interrupt_after(folder: Path, steps: int, **changes: Any) -> None:
    """Train so many steps, then end as by Ctrl-C."""
    task = ToyTask()
    left = iter(range(steps))

    def before_loss(rows: torch.Tensor) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    task.before_loss = before_loss
    with pytest.raises(KeyboardInterrupt):
        toy_run(folder, task, **changes)


@needs_gpu
def test_gradients_through_attention_are_numbers_where_all_that_is_looked_at_is_unlike(tmp_path: Path) -> None:
    class Attending(ToyTask):
        """Its 64 cells have products of −120 with each other, of which cuDNN's gradients are no numbers."""

        def loss(self, rows):  # type: ignore[no-untyped-def]
            cells = 0.1 * torch.randn(3, 1, 8, 64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
            cells[0, ..., 0], cells[1, ..., 0] = 1.0, -120 * 64**0.5
            learning = cells * (1 + 0 * self.module[4].weight.sum())
            seen = torch.nn.functional.scaled_dot_product_attention(*learning.bfloat16(), dropout_p=0.1)
            return Loss(seen.float().square().sum(), {})

        def validate(self):  # type: ignore[no-untyped-def]
            return {}

    task = Attending()
    task.module.to("cuda")
    changes = {"figure": None, "epochs": 1}
    with RunFolder(tmp_path, plan(**changes), "# toy\n") as run:
        assert train(task, schedule(**changes), run, seed=7, device=torch.device("cuda")).epochs == 1
