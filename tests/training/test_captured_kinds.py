"""Each kind of training that is captured promises: steps that wait for nothing, with the losses of eager ones.

On a CPU batches are padded as they would be on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deixis.corpus import Corpus, open_corpus
from deixis.features.store import FeatureStore
from deixis.training.bucket_padding import Padding, has_dimensions
from deixis.training.graph_capture import shapes_of
from deixis.training.kinds import kind_of
from deixis.training.placing import to_device
from deixis.training.recipe import Recipe, check_recipe
from deixis.training.run_records import RunPlan, StepRecord
from deixis.training.runs import RunFolder, read_log
from deixis.training.task import Task
from deixis.training.trainer import train
from tests.stores import drawn_store, make_store, random_boxes
from tests.training.made_text import made_text
from tests.training.recording import same_steps

SCHEDULE: dict[str, Any] = {"epochs": 5, "learning_rate": 1e-3, "validate_every": 5}
BRANCHES = {"kind": "embedding", "image": [16, 8], "text": [16, 8], "dropout": 0.5}
SENTENCES: dict[str, Any] = {
    "kind": "sentences",
    "features": "image",
    "text": {"kind": "tfidf"},
    "model": BRANCHES,
    "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.05], "hardest": 5},
    "sampler": {"batch": 20, "neighbourhood": "sampling"},
    "schedule": SCHEDULE,
}
REGIONS = {"backbone": "efficientnet-lite0", "regions": {"boxes": "grid", "count": 12}}
PHRASES: dict[str, Any] = {**SENTENCES, "kind": "phrases", "features": REGIONS, "regions": 12}
ORDER: dict[str, Any] = {
    "kind": "concepts-order",
    "features": "image",
    "model": {"hidden": 8, "word": 6, "dropout": 0.2},
    "mismatched": 19,
    "schedule": {**SCHEDULE, "clip": {"kind": "norm", "at": 2.0}},
}
ALIGNMENT: dict[str, Any] = {
    "kind": "alignment",
    "features": REGIONS,
    "model": {"dim": 16, "word": 8, "dropout": 0.1},
    "word_vectors": "random",
    "regions": 6,
    "batch": 20,
    "schedule": {**SCHEDULE, "optimizer": "sgd", "momentum": 0.9, "clip": {"kind": "value", "at": 5.0}},
}
KINDS: dict[str, dict[str, Any]] = {
    "sentences with seconds": SENTENCES,
    "sentences read word by word": {
        **SENTENCES,
        "text": {"kind": "tokens"},
        "model": {**BRANCHES, "recurrent": {"word": 6, "hidden": 7}},
    },
    "phrases": {
        **PHRASES,
        "loss": {"kind": "ranking", "weights": [1, 4, 0.1, 0.1], "hardest": 5, "constraints_after": 3},
    },
    "phrases, similarity": {**PHRASES, "model": {**BRANCHES, "kind": "similarity"}, "loss": {"kind": "logistic"}},
    "both": {
        **SENTENCES,
        "kind": "joint",
        "features": REGIONS,
        "regions": 12,
        "phrase_loss": {"kind": "ranking"},
        "phrase_sampler": {"batch": 20},
    },
    "HM-LSTM": {
        "kind": "hm-lstm",
        "features": REGIONS,
        "model": {"hidden": 7, "dim": 8, "text_dropout": 0.1},
        "alternation": {"coarse": 2, "rounds": 1},
        "regions": 5,
        "batch": 16,
        "schedule": SCHEDULE,
    },
    "order": ORDER,
    "order with sampling and twins": {**ORDER, "loss": {"sampling": 0.5, "sampling_epochs": 4, "order": 1.0}},
    "order from pictures": {
        **ORDER,
        "kind": "order-pictures",
        "features": None,
        "mismatched": None,
        "looking": {"side": 64, "dim": 16, "queries": 2, "relating": 1},
        "images": 4,
        "captions": 2,
        "schedule": {**ORDER["schedule"], "epochs": 3, "averaging": 0.9},
    },
    "alignment": ALIGNMENT,
    "alignment by its mean": {**ALIGNMENT, "model": {**ALIGNMENT["model"], "score": "mean"}, "fragment_weight": 1.0},
}
#: Trained with and without graphs in `make test-all` alone: others of the same paper are trained in `make test`.
VARIANTS = (
    "sentences read word by word",
    "phrases, similarity",
    "both",
    "order with sampling and twins",
    "order from pictures",
    "alignment by its mean",
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images([*whole.split("train").images[:40], *whole.split("val").images[:6]])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def stores(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[FeatureStore]:
    folder = tmp_path_factory.mktemp("stores")
    return [make_store(folder / "proposals", corpus, random_boxes(12), seed=1), drawn_store(corpus, folder / "drawn")]


@pytest.fixture(scope="module")
def text(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made_text(tmp_path_factory.mktemp("text"), corpus)


def recipe_of(name: str, text: dict[str, str]) -> Recipe:
    own = {"name": "recorded", "corpus": "scenes", **KINDS[name], **({"text": text} if name == "HM-LSTM" else {})}
    return check_recipe({key: value for key, value in own.items() if value is not None}, name)


def built(recipe: Recipe, corpus: Corpus, stores: list[FeatureStore], device: torch.device) -> Task[Any]:
    task: Task[Any] = kind_of(recipe.kind).task(recipe, corpus, stores, device)
    return task


class NothingWaits(TorchDispatchMode):
    """Refuses what needs a number of a tensor before it can go on."""

    ASKING = frozenset({
        "_local_scalar_dense", "_pack_padded_sequence", "_unique2", "bincount", "equal", "is_nonzero", "masked_select",
        "multinomial", "nonzero", "unique_dim",
    })  # fmt: skip

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0]
        asked = name in self.ASKING
        if name.startswith("index"):
            places = [value for value in given if isinstance(value, list | tuple)]
            asked |= any(place is not None and place.dtype == torch.bool for own in places for place in own)
        assert not asked, f"{name} waits for the device"
        return function(*given, **(named or {}))


@pytest.mark.parametrize("name", KINDS)
def test_a_step_waits_for_nothing_and_shapes_are_few(
    name: str, corpus: Corpus, stores: list[FeatureStore], text: dict[str, str], device: torch.device
) -> None:
    recipe = recipe_of(name, text)
    task, padded = built(recipe, corpus, stores, device), Padding()
    for epoch in (1, recipe.schedule.epochs):
        batches = list(task.batches(epoch))
        assert all(map(has_dimensions, batches))
        for batch in batches:
            padded(batch)
        # What pads itself has found its room by now.
        batches = [to_device(padded(batch), device) for batch in batches]
        assert len({shapes_of(batch) for batch in batches}) <= 5
        # What an optimizer does is torch's own matter.
        for batch in batches[:3]:
            with NothingWaits():
                task.loss(batch).total.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in KINDS])
def test_captured_steps_have_the_losses_of_eager_ones(
    name: str,
    corpus: Corpus,
    stores: list[FeatureStore],
    text: dict[str, str],
    device: torch.device,
    replayed: list[int],
    tmp_path: Path,
) -> None:
    recipe = recipe_of(name, text)
    steps = []
    for recorded in (False, True):
        out = tmp_path / str(recorded)
        with RunFolder(out, RunPlan(recipe=msgspec.to_builtins(recipe)), "# made\n") as run:
            task = built(recipe, corpus, stores, device)
            train(task, recipe.schedule, run, seed=7, device=device, graphs=recorded)
        steps.append([record for record in read_log(out) if isinstance(record, StepRecord)])
        assert bool(replayed) == recorded
    assert len(replayed) > len(steps[0]) / 3
    same_steps(*steps, 1e-4, 0.01)
