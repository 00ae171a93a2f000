"""Recorded steps promise: the losses and the log of steps that are taken one kernel at a time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from deixis.errors import DeixisError
from deixis.learning import graphs
from deixis.learning.data import SentenceData
from deixis.learning.distributed import ALONE, Sharing
from deixis.learning.graphs import WARM_UP, Graphed, can_be_recorded
from deixis.learning.recipe import check_recipe
from deixis.learning.run_records import RunPlan, StepRecord, epochs_of
from deixis.learning.runs import RunFolder, read_log
from deixis.learning.sampling import SentenceSampler
from deixis.learning.sentences import SentenceRecipe, SentenceTask
from deixis.learning.task import Loss
from deixis.learning.trainer import Progress, train
from deixis.learning.two_branch import TwoBranchModule
from tests.learning.generated_pairs import generated_sentences

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
pytestmark = pytest.mark.usefixtures("quick_runs")
IMAGES, DIM = 120, 24
SETTINGS: dict[str, Any] = {
    "name": "recorded",
    "corpus": "generated",
    "kind": "sentences",
    "features": "image",
    "text": {"kind": "tfidf"},
    "model": {"kind": "embedding", "image": [32, 16], "text": [32, 16], "dropout": 0.5},
    "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.0], "hardest": 10},
    "sampler": {"batch": 50},
    "schedule": {
        "epochs": 5,
        "learning_rate": 0.001,
        "averaging": 0.9,
        "clip": {"kind": "norm", "at": 1},
        "decay": {"kind": "cosine", "warm_up": 0.5},
        "groups": [{"prefix": "network.texts", "rate": 0.5}],
        "figure": "loss",
        "lower_is_better": True,
    },
}
PAIRS = {"model": {**SETTINGS["model"], "kind": "similarity"}, "loss": {"kind": "logistic"}}


class Generated(SentenceTask):
    """Sentences without a corpus."""

    def __init__(self, recipe: SentenceRecipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        made = generated_sentences(0, IMAGES, 10**6, DIM)
        images, texts, image_of = (value.to(device) for value in (made.images, made.texts, made.image_of))
        names = tuple(map(str, range(len(made.images))))
        captions: Any = tuple((str(number),) for number in made.captions)
        self.data = SentenceData(images, texts, image_of, names, captions, 0)
        self.module = TwoBranchModule(recipe, DIM, DIM).to(device)
        self.sharing = Sharing(ALONE, self.module)
        self.sampler = SentenceSampler(self.data, recipe.sampler, recipe.seed)

    def validate(self) -> Mapping[str, float]:
        return {"loss": float(self.loss(next(iter(self.batches(1)))).total)}

    def save(self, folder: Path) -> None: ...


def recipe_with(**changes: Any) -> SentenceRecipe:
    recipe = check_recipe({**SETTINGS, **changes}, "here")
    assert isinstance(recipe, SentenceRecipe)
    return recipe


class Stopped(Exception):
    """A run that came to the end of an epoch and was ended there."""


def trained(out: Path, recipe: SentenceRecipe, recorded: bool, *, last: int | None = None) -> list[StepRecord]:
    """The steps of a run on the GPU, which may be ended after the epoch `last`."""
    task, device = Generated(recipe, torch.device("cuda")), torch.device("cuda")

    def progress(now: Progress) -> None:
        if now.epoch == last and now.epoch_record is not None:
            raise Stopped

    with RunFolder(out, RunPlan(recipe=msgspec.to_builtins(recipe)), "# generated\n") as run, suppress(Stopped):
        train(task, recipe.schedule, run, seed=7, device=device, progress=progress, checkpoint_steps=2, graphs=recorded)
    return [record for record in read_log(out) if isinstance(record, StepRecord)]


def same_steps(steps: list[StepRecord], right: list[StepRecord], early: float, late: float) -> None:
    """Rounding adds up from epoch to epoch; another draw of dropout would show at once."""
    assert len(steps) == len(right) > 5 * (WARM_UP + 2)
    for one, other in zip(steps, right, strict=True):
        tolerance = early if one.epoch < 3 else late
        assert (one.epoch, one.step, one.learning_rate) == (other.epoch, other.step, other.learning_rate)
        assert one.loss == pytest.approx(other.loss, rel=tolerance)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=10 * tolerance)
        assert one.parts == pytest.approx(other.parts, rel=10 * tolerance, abs=5)


@needs_gpu
@pytest.mark.parametrize("changes", [{}, PAIRS, {"loss": {"kind": "infonce"}}], ids=["ranking", "pairs", "infonce"])
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_recorded_steps_have_the_losses_of_eager_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], precision: str
) -> None:
    recorded = []
    original = graphs._Graph
    monkeypatch.setattr(graphs, "_Graph", lambda *given: recorded.append(given) or original(*given))
    recipe = recipe_with(**changes, schedule={**SETTINGS["schedule"], "precision": precision})
    right = trained(tmp_path / "eager", recipe, False)
    assert not recorded
    steps = trained(tmp_path / "recorded", recipe, True)
    assert recorded
    same_steps(steps, right, *((1e-4, 0.01) if precision == "float32" else (0.01, 0.05)))
    figures = [epochs_of(read_log(tmp_path / name))[-1].figures for name in ("recorded", "eager")]
    assert figures[0] == pytest.approx(figures[1], rel=0.05)


@needs_gpu
def test_a_recorded_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    recipe = recipe_with()
    whole = trained(tmp_path / "whole", recipe, True)
    trained(tmp_path / "broken", recipe, True, last=2)
    same_steps(trained(tmp_path / "broken", recipe, True), whole, 1e-4, 0.01)


@needs_gpu
def test_a_loss_that_is_no_number_stops_a_recorded_run(tmp_path: Path) -> None:
    recipe = recipe_with(schedule={"epochs": 5, "learning_rate": 0.001})
    task = Generated(recipe, torch.device("cuda"))
    task.data.texts[:] = float("nan")
    with (
        pytest.raises(DeixisError, match=r"became nan in epoch 1, step 1, batch: sentences of images"),
        RunFolder(tmp_path / "run", RunPlan(recipe={}), "# generated\n") as run,
    ):
        train(task, recipe.schedule, run, seed=7, device=torch.device("cuda"))


@pytest.mark.parametrize("changes", [{}, PAIRS], ids=["ranking", "pairs"])
def test_batches_of_one_form_differ_in_their_numbers_alone(changes: dict[str, Any]) -> None:
    task = Generated(recipe_with(**changes), torch.device("cpu"))
    assert task.one_form
    assert can_be_recorded(task, task.recipe.schedule)
    for epoch in (1, 2):
        forms = [tuple(value.shape for value in graphs._tensors(batch)) for batch in task.batches(epoch)]
        assert len({*forms[:-1]}) == 1
        floats = [
            {name: value for name, value in task.loss(batch).parts.items() if isinstance(value, float)}
            for batch in task.batches(epoch)
        ]
        assert all(found == floats[0] for found in floats[:-1])


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({"sampler": {"batch": 50, "neighbourhood": "sampling"}}, {}),
        ({"text": {"kind": "tokens"}, "model": {**SETTINGS["model"], "recurrent": {}}}, {}),
        ({}, {"optimizer": "sgd"}),
        ({}, {"groups": [{"prefix": "network.texts", "frozen_epochs": 1}]}),
    ],
    ids=["second sentences", "recurrence", "another optimizer", "frozen"],
)
def test_what_changes_from_step_to_step_is_not_recorded(changes: dict[str, Any], schedule: dict[str, Any]) -> None:
    recipe = recipe_with(**changes, schedule={**SETTINGS["schedule"], **schedule})
    assert not can_be_recorded(Generated(recipe, torch.device("cpu")), recipe.schedule)


def test_a_form_is_recorded_once_it_has_come_up_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Fake:
        def __init__(self, step: Any, batch: Any) -> None:
            calls.append(f"record {len(batch)}")

        def step(self, batch: Any, factor: Any) -> Any:
            calls.append(f"replay {len(batch)} at {factor}")

    def eager(batch: Any, factor: Any) -> Any:
        calls.append(f"eager {len(batch)}")
        return Loss(torch.zeros(())), torch.zeros(())

    monkeypatch.setattr(graphs, "_Graph", Fake)
    take = Graphed(eager)
    for size in (5, 5, 2, 5, 5, 5, 2):
        take(torch.zeros(size), 0.5)
    assert calls == [
        *("eager 5", "eager 5", "eager 2", "eager 5", "record 5", "replay 5 at 0.5", "replay 5 at 0.5", "eager 2")
    ]
