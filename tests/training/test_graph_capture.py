"""Captured steps promise: the losses and the log of steps that are taken one kernel at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor

from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.papers.dvsa import captioner_task as captioning
from deixis.papers.dvsa.captioner_task import CaptioningRecipe
from deixis.papers.two_branch.task import SentenceRecipe, SentenceTask, TwoBranchModule
from deixis.training import graph_capture as graphs
from deixis.training.bucket_padding import Padding, has_dimensions
from deixis.training.graph_capture import WARM_UP, GraphedSteps, can_capture_graphs, shapes_of
from deixis.training.recipe import check_recipe
from deixis.training.run_records import RunPlan, StepRecord, epochs_of
from deixis.training.runs import RunFolder, read_log
from deixis.training.sentence_pairs import SentenceData, SentenceSampler
from deixis.training.task import Loss, Task
from deixis.training.trainer import Progress, train
from tests.stores import make_store
from tests.training.generated_pairs import generated_sentences
from tests.training.recording import same_steps

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


CAPTIONS: dict[str, Any] = {
    "name": "recorded",
    "corpus": "scenes",
    "kind": "captioner",
    "features": "image",
    "text": {"kind": "tokens"},
    "model": {"cell": "lstm", "word": 16, "hidden": 24},
    "batch": 10,
    "schedule": {"epochs": 5, "optimizer": "rmsprop", "learning_rate": 0.001, "clip": {"kind": "value", "at": 0.1}},
}


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


def captions_task(folder: Path, recipe: CaptioningRecipe, device: torch.device) -> Task[Any]:
    whole = open_corpus("scenes")
    corpus = whole.with_images([*whole.split("train").images[:60], *whole.split("val").images[:2]])
    return captioning.CaptionerKind().task(recipe, corpus, [make_store(folder, corpus)], device)


def trained(
    out: Path,
    recipe: SentenceRecipe | CaptioningRecipe,
    device: torch.device,
    recorded: bool,
    *,
    last: int | None = None,
) -> list[StepRecord]:
    """The steps of a run, which may be ended after the epoch `last`."""
    task: Task[Any]
    if isinstance(recipe, SentenceRecipe):
        task = Generated(recipe, device)
    else:
        task = captions_task(out.with_suffix(".store"), recipe, device)

    def progress(now: Progress) -> None:
        if now.epoch == last and now.epoch_record is not None:
            raise Stopped

    with RunFolder(out, RunPlan(recipe=msgspec.to_builtins(recipe)), "# generated\n") as run, suppress(Stopped):
        train(task, recipe.schedule, run, seed=7, device=device, progress=progress, checkpoint_steps=2, graphs=recorded)
    return [record for record in read_log(out) if isinstance(record, StepRecord)]


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        pytest.param({}, "float32", id="float32-ranking"),
        pytest.param(PAIRS, "float32", id="float32-pairs"),
        pytest.param({}, "mixed", id="mixed-ranking"),
        pytest.param({"loss": {"kind": "infonce"}}, "float32", id="float32-infonce", marks=pytest.mark.slow),
        pytest.param(PAIRS, "mixed", id="mixed-pairs", marks=pytest.mark.slow),
        pytest.param({"loss": {"kind": "infonce"}}, "mixed", id="mixed-infonce", marks=pytest.mark.slow),
    ],
)
def test_captured_steps_have_the_losses_of_eager_ones(
    tmp_path: Path, device: torch.device, replayed: list[int], changes: dict[str, Any], precision: str
) -> None:
    recipe = recipe_with(**changes, schedule={**SETTINGS["schedule"], "precision": precision})
    right = trained(tmp_path / "eager", recipe, device, False)
    assert not replayed
    steps = trained(tmp_path / "recorded", recipe, device, True)
    # Batches of 50 and the last one of an epoch are padded to 64 alike; twice as many pairs of them are not.
    shapes = 2 if changes == PAIRS else 1
    assert len(replayed) == len(steps) - shapes * WARM_UP
    assert {*replayed} == {64}
    same_steps(steps, right, *((1e-4, 0.01) if precision == "float32" else (0.01, 0.05)))
    figures = [epochs_of(read_log(tmp_path / name))[-1].figures for name in ("recorded", "eager")]
    assert figures[0] == pytest.approx(figures[1], rel=0.05)


@pytest.mark.parametrize("cell", ["lstm", pytest.param("rnn", marks=pytest.mark.slow)])
def test_captions_are_captured_for_few_lengths(
    tmp_path: Path, device: torch.device, replayed: list[int], cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    recipe = check_recipe({**CAPTIONS, "model": {**CAPTIONS["model"], "cell": cell}}, "here")
    assert isinstance(recipe, CaptioningRecipe)
    task = captions_task(tmp_path / "store", recipe, device)
    batches, padded = list(task.batches(1)), Padding()
    assert len({batch.ids.shape for batch in batches}) > len({padded(batch).ids.shape for batch in batches})
    right = trained(tmp_path / "eager", recipe, device, False)
    assert not replayed
    steps = trained(tmp_path / "recorded", recipe, device, True)
    assert len(steps) / 2 < len(replayed) < len(steps) - 2 * WARM_UP
    same_steps(steps, right, 1e-4, 0.01)


def test_no_graph_outlives_its_run(tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    class Watched(graphs._Graph):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(weakref.ref(self))

    monkeypatch.setattr(graphs, "_Graph", Watched)
    gc.disable()
    try:
        trained(tmp_path, recipe_with(), device, True)
        assert [graph() for graph in made] == [None]
    finally:
        gc.enable()


def test_a_captured_run_goes_on_from_its_checkpoint(tmp_path: Path, device: torch.device) -> None:
    recipe = recipe_with()
    whole = trained(tmp_path / "whole", recipe, device, True)
    trained(tmp_path / "broken", recipe, device, True, last=2)
    same_steps(trained(tmp_path / "broken", recipe, device, True), whole, 1e-4, 0.01)


def test_a_loss_that_is_no_number_stops_a_captured_run(
    tmp_path: Path, device: torch.device, replayed: list[int]
) -> None:
    recipe = recipe_with(schedule={"epochs": 5, "learning_rate": 0.001})
    task = Generated(recipe, device)
    poisoned: Any = next(islice(task.batches(1), WARM_UP + 1, None))
    task.data.texts[poisoned.texts[0]] = float("nan")
    with (
        pytest.raises(DeixisError, match=rf"became nan in epoch 1, step {WARM_UP + 2}, batch: sentences of images"),
        RunFolder(tmp_path / "run", RunPlan(recipe={}), "# generated\n") as run,
    ):
        train(task, recipe.schedule, run, seed=7, device=device)
    assert len(replayed) > 1
    assert not [record for record in read_log(tmp_path / "run") if record.step >= WARM_UP + 2]


class Sized(NamedTuple):
    """A batch of any size, which is not padded."""

    values: Annotated[Tensor, None]


def test_another_size_is_stepped_as_ever_beside_a_graph(device: torch.device, replayed: list[int]) -> None:
    weight, sizes = torch.zeros((), device=device), [*[5] * (WARM_UP + 2), 2, 5, 2]

    def step(batch: Sized, factor: float | Tensor) -> tuple[Loss, Tensor]:
        weight.add_(batch.values.sum() * factor)
        return Loss(weight.clone()), batch.values.sum()

    take, right = GraphedSteps(step, device), 0.0
    for number, size in enumerate(sizes):
        loss, norm = take(Sized(torch.full((size,), float(number), device=device)), 0.5)
        right += 0.5 * number * size
        assert (float(loss.total), float(norm)) == (right, number * size)
    assert replayed == [5, 5, 5]


def test_what_declares_no_dimensions_is_stepped_as_ever(device: torch.device, replayed: list[int]) -> None:
    take = GraphedSteps(lambda batch, factor: (Loss(batch.sum() * factor), batch.sum()), device)
    for _ in range(2 * WARM_UP):
        assert float(take(torch.ones(5, device=device), 0.5)[0].total) == 2.5
    assert not replayed


def test_a_step_that_cannot_be_captured_is_taken_as_ever(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: graphs.TakeStep, batch: Any, pool: Any) -> None:
        raise RuntimeError("no capture\nmore")

    if device.type == "cpu":
        monkeypatch.setattr(graphs, "_Graph", refuse)
    taken = []

    def step(batch: Sized, factor: float | Tensor) -> tuple[Loss, Tensor]:
        torch.nn.functional.dropout(batch.values)
        taken.append(batch.values.sum().item())  # which a graph cannot hold
        return Loss(batch.values.sum()), batch.values.sum()

    take = GraphedSteps(step, device)
    for _ in range(WARM_UP):
        take(Sized(torch.ones(5, device=device)), 0.5)
    with pytest.warns(UserWarning, match="without CUDA graphs: capturing a step failed"):
        take(Sized(torch.ones(5, device=device)), 0.5)
    for size in (5, 5, *[2] * (WARM_UP + 1)):
        loss, _ = take(Sized(torch.ones(size, device=device)), 0.5)
        assert float(loss.total) == size
    assert taken == [5.0] * (WARM_UP + 3) + [2.0] * (WARM_UP + 1)


@pytest.mark.parametrize("changes", [{}, PAIRS], ids=["ranking", "pairs"])
def test_batches_of_one_shape_differ_in_their_numbers_alone(changes: dict[str, Any]) -> None:
    task, padded = Generated(recipe_with(**changes), torch.device("cpu")), Padding()
    for epoch in (1, 2):
        batches = list(task.batches(epoch))
        assert all(map(has_dimensions, batches))
        assert len({shapes_of(padded(batch)) for batch in batches[:-1]}) == 1
        # A float would be that of the batch that was captured.
        assert all(isinstance(value, Tensor) for batch in batches for value in task.loss(batch).parts.values())


@pytest.mark.parametrize(
    "schedule",
    [{"optimizer": "adagrad"}, {"groups": [{"prefix": "network.texts", "frozen_epochs": 1}]}],
    ids=["another optimizer", "frozen"],
)
def test_what_changes_from_step_to_step_is_not_captured(schedule: dict[str, Any]) -> None:
    recipe = recipe_with(schedule={**SETTINGS["schedule"], **schedule})
    assert not can_capture_graphs(recipe.schedule, torch.device("cuda"))
    assert can_capture_graphs(recipe_with().schedule, torch.device("cuda"))
    assert not can_capture_graphs(recipe_with().schedule, torch.device("cpu"))


def test_a_shape_is_captured_once_it_has_come_up_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Fake:
        pool = None

        def __init__(self, step: Any, batch: Any, pool: Any) -> None:
            calls.append(f"capture {len(batch.values)}")

        def step(self, batch: Any, factor: Any) -> Any:
            calls.append(f"replay {len(batch.values)} at {factor}")

    def eager(batch: Any, factor: Any) -> Any:
        calls.append(f"eager {len(batch.values)}")
        return Loss(torch.zeros(())), torch.zeros(())

    monkeypatch.setattr(graphs, "_Graph", Fake)
    take = GraphedSteps(eager, torch.device("cpu"))
    for size in (5, 5, 2, 5, 5, 5, 2):
        take(Sized(torch.zeros(size)), 0.5)
    assert calls == [
        *("eager 5", "eager 5", "eager 2", "eager 5", "capture 5", "replay 5 at 0.5", "replay 5 at 0.5", "eager 2")
    ]
