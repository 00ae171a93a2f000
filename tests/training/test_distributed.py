"""Several processes promise: the loss and, to rounding, the weights of one; a death costs little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist

from deixis.corpus import Image
from deixis.corpus.boxes import box_array, merge
from deixis.errors import DeixisError
from deixis.training.distributed import ALONE, Ranks, _backend, _take_card, joined
from deixis.training.run_records import StepRecord, epochs_of
from deixis.training.runs import read_log, read_starts, read_weights
from deixis.training.tools.proposer_training import new_proposer
from deixis.vision.learned_proposals import save_proposer
from tests.stores import make_store, random_boxes
from tests.training.made_text import made_text
from tests.training.ranks import small_corpus

ROOT = Path(__file__).parents[2]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SCHEDULE = {"epochs": 2, "learning_rate": 0.02, "optimizer": "sgd", "momentum": 0.5, "clip": {"kind": "norm", "at": 1}}
RECURRENT = {"word": 6, "hidden": 7, "bidirectional": True, "pooling": "max", "dropout": 0.3}
SENTENCES: dict[str, Any] = {
    "name": "shared",
    "corpus": "scenes",
    "kind": "sentences",
    "features": "image",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8], "dropout": 0.5, "recurrent": RECURRENT},
    "loss": {"kind": "infonce"},
    "sampler": {"batch": 40},
    "schedule": {**SCHEDULE, "averaging": 0.8, "figure": "rsum"},
}
RECIPES: dict[str, dict[str, Any]] = {
    "infonce": {
        **SENTENCES,
        "schedule": {**SENTENCES["schedule"], "groups": [{"prefix": "network.encoder", "frozen_epochs": 1}]},
    },
    "constraints": {
        **SENTENCES,
        "text": {"kind": "tfidf"},
        "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8], "dropout": 0.5},
        "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.05], "hardest": 10},
        "sampler": {"batch": 40, "neighbourhood": "sampling"},
        # Adam makes whole steps of a gradient that is rounding.
        "schedule": {"epochs": 2, "learning_rate": 0.003, "optimizer": "adam", "figure": "rsum"},
    },
    "phrases-similarity": {
        **SENTENCES,
        "kind": "phrases",
        "features": {"backbone": "efficientnet-lite0", "regions": {"boxes": "grid", "count": 12}},
        "text": {"kind": "tfidf"},
        "model": {"kind": "similarity", "image": [16, 8], "text": [16, 8], "centred": True},
        "loss": {"kind": "logistic"},
        "sampler": {"batch": 64},
        "regions": 12,
        # Momentum would bring a hidden unit so near to 0 that rounding decides whether it is on.
        "schedule": {**SCHEDULE, "momentum": 0.0, "figure": "localization.r@1"},
    },
}
RECIPES["pictures"] = {
    "name": "shared",
    "corpus": "scenes",
    "kind": "pictures",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {"backbone": "efficientnet-lite0", "side": 64, "dim": 16, "queries": 2, "recurrent": RECURRENT},
    "sampler": {"images": 8, "captions": 2},
    "word_vectors": False,
    # With statistics of few and tiny maps a deep network makes much of every rounding: `test_a_network` is for that.
    "schedule": {**SCHEDULE, "groups": [{"prefix": "tower.backbone", "frozen_epochs": 2}], "figure": "rsum"},
}
RECIPES["pictures-fine"] = {
    **RECIPES["pictures"],
    "model": {**RECIPES["pictures"]["model"], "fine": 4, "dropout": 0.2},
}
REGIONS = RECIPES["phrases-similarity"]["features"]
RECIPES["phrases"] = {
    **RECIPES["phrases-similarity"],
    "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8], "dropout": 0.3},
    "loss": {"kind": "ranking", "weights": [1, 4, 0.1, 0.1], "hardest": 5},
    "sampler": {"batch": 64, "neighbourhood": "sampling", "negatives": "batch"},
}
RECIPES["joint"] = {
    **SENTENCES,
    "kind": "joint",
    "features": REGIONS,
    "text": {"kind": "tfidf"},
    "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8], "dropout": 0.5},
    "loss": {"kind": "hardest-negative"},
    "sampler": {"batch": 40},
    "phrase_loss": {"kind": "ranking"},
    "phrase_sampler": {"batch": 64},
    "regions": 12,
    "schedule": {**SCHEDULE, "momentum": 0.0, "figure": "both"},
}
GROUNDING: dict[str, Any] = {
    "backbone": "efficientnet-lite0",
    "side": 96,
    "regions": 12,
    "map_width": 16,
    "bins": 2,
    "width": 16,
    "hidden": 8,
    "compare": True,
    "colours": 8,
}
RECIPES["base"] = {
    **RECIPES["pictures-fine"],
    "kind": "base",
    "model": {**RECIPES["pictures-fine"]["model"], "side": 96},
    "grounding": {"images": 4, "model": GROUNDING, "loss": {"apart": 1.0}},
    "twins": {"captions": 4},
}
RECIPES["grounding"] = {
    **{"name": "shared", "corpus": "scenes", "kind": "grounding", "text": {"vectors": ""}, "batch_size": 4},
    **{"model": GROUNDING, "loss": {"apart": 1.0, "colours": 0.5}},
    "schedule": {
        **RECIPES["pictures"]["schedule"],
        "groups": [{"prefix": "network.proposer", "frozen_epochs": 2}],
        "figure": "r@1",
    },
}
RECIPES["hm-lstm"] = {
    "name": "shared",
    "corpus": "scenes",
    "kind": "hm-lstm",
    "features": REGIONS,
    "model": {"hidden": 7, "dim": 8, "dropout": 0.2, "text_dropout": 0.2, "statistics": "separate"},
    "alternation": {"coarse": 1, "rounds": 1},
    "regions": 5,
    "batch": 40,
    "schedule": {**SCHEDULE, "momentum": 0.0, "figure": "rsum"},
}
RECIPES["alignment"] = {
    "name": "shared",
    "corpus": "scenes",
    "kind": "alignment",
    "features": REGIONS,
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {"dim": 16, "word": 8, "dropout": 0.3},
    "word_vectors": "random",
    "regions": 9,
    "batch": 40,
    "fragment_weight": 0.5,
    "schedule": {**SCHEDULE, "momentum": 0.0, "figure": "rsum"},
}
RECIPES["concepts-order"] = {
    "name": "shared",
    "corpus": "scenes",
    "kind": "concepts-order",
    "features": "image",
    "model": {"hidden": 8, "word": 6, "dropout": 0.2},
    "loss": {"order": 1.0},
    "mismatched": 39,
    "schedule": {**SCHEDULE, "figure": "rsum"},
}
LINEAR: dict[str, Any] = {
    "name": "alone",
    "corpus": "scenes",
    "kind": "cca",
    "features": "image",
    "text": {"kind": "tfidf"},
    "pairs": "sentences",
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, corpus = tmp_path_factory.mktemp("stores"), small_corpus()
    near = random_boxes(8)

    def merged(image: Image) -> Any:
        return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]

    def some(image: Image) -> Any:
        return np.concatenate([near(image), [[0, 0, image.width, image.height]]])

    make_store(folder / "chains", corpus, merged, seed=1, provenance={"regions": {"boxes": "chains"}})
    make_store(folder / "proposals", corpus, some, seed=2)
    make_store(folder / "image", corpus, seed=3, provenance={"regions": None})
    return [str(folder / name) for name in ("chains", "proposals", "image")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DEIXIS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


#: How many processes train each recipe. The slow ones are variants of a kind that another recipe trains.
COUNTS = dict.fromkeys(RECIPES, (1, 2)) | {"pictures": (1, 4)}
SLOW = ("constraints", "phrases-similarity", "pictures", "pictures-fine")

Job = tuple[str, int, list[Any]]


def training_jobs(names: Iterable[str], folder: Path, stores: list[str]) -> dict[str, Job]:
    proposer = folder / "proposer.safetensors"
    save_proposer(new_proposer("efficientnet-lite0", 0), 96, proposer)
    recipes = {
        **RECIPES,
        "hm-lstm": {**RECIPES["hm-lstm"], "text": made_text(folder, small_corpus())},
        "grounding": {**RECIPES["grounding"], "proposer": str(proposer)},
    }
    return {
        f"{name} {count}": ("train", count, [recipes[name], str(folder / f"{name} {count}"), stores])
        for name in names
        for count in COUNTS[name]
    }


def run_jobs(jobs: dict[str, Job], environment: dict[str, str]) -> dict[str, list[Any]]:
    """By job what each of its processes returned."""
    command = [sys.executable, "-W", "error", "-m", "tests.training.ranks", json.dumps([*jobs.values()])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return dict(zip(jobs, msgspec.json.decode(done.stdout, type=list[list[Any]]), strict=True))


@pytest.fixture(scope="module")
def returned(folder: Path, stores: list[str], environment: dict[str, str]) -> dict[str, list[Any]]:
    """By job what each of its processes returned; runs are in the folders of that name."""
    jobs = training_jobs(RECIPES.keys() - set(SLOW), folder, stores)
    jobs |= {f"layers {rows} {count}": ("layers", count, [rows]) for rows in (7, 3) for count in (1, 2, 4)}
    jobs |= {f"one row {count}": ("one_row", count, []) for count in (1, 2)}
    jobs |= {f"masked {count}": ("masked", count, []) for count in (1, 2)}
    jobs |= {f"network {count}": ("network", count, []) for count in (1, 3)}
    jobs["cca"] = ("train", 2, [LINEAR, str(folder / "cca"), stores])
    return run_jobs(jobs, environment)


@pytest.fixture(scope="module")
def slow_returned(folder: Path, stores: list[str], environment: dict[str, str]) -> dict[str, list[Any]]:
    return run_jobs(training_jobs(SLOW, folder, stores), environment)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in COUNTS]
)
def test_one_global_batch_gives_the_losses_and_weights_of_one_process(
    name: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    returned = request.getfixturevalue("slow_returned" if name in SLOW else "returned")
    alone = folder / f"{name} 1"
    expected, right = steps_of(alone), read_weights(alone)
    for count in COUNTS[name]:
        out = folder / f"{name} {count}"
        assert returned[out.name] == [""] * count
        assert [start.processes for start in read_starts(out)] == [count]
        steps, weights = steps_of(out), read_weights(out)
        assert len(steps) == len(expected) > 4
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in expected], rel=1e-5)
        assert [step.gradient_norm for step in steps] == pytest.approx([s.gradient_norm for s in expected], rel=1e-4)
        assert weights.keys() == right.keys()
        for key, value in weights.items():
            torch.testing.assert_close(value, right[key], rtol=1e-4, atol=1e-6, msg=f"{count} processes: {key}")
        for record, other in zip(epochs_of(read_log(out)), epochs_of(read_log(alone)), strict=True):
            assert record.figures == other.figures


def steps_of(run: Path) -> list[StepRecord]:
    return [record for record in read_log(run) if isinstance(record, StepRecord)]


@pytest.mark.parametrize("rows", [7, 3])
def test_layers_see_the_whole_batch_also_where_a_process_holds_none_of_it(
    rows: int, returned: dict[str, list[Any]]
) -> None:
    same([*returned[f"layers {rows} 2"], *returned[f"layers {rows} 4"]], *returned[f"layers {rows} 1"])


def test_a_mask_counts_over_all_processes(returned: dict[str, list[Any]]) -> None:
    same(returned["masked 2"], *returned["masked 1"])


def test_one_row_has_no_statistics_whoever_holds_it(returned: dict[str, list[Any]]) -> None:
    said = [*returned["one row 1"], *returned["one row 2"]]
    assert all(each.startswith("Expected more than 1 value per channel when training") for each in said)


def test_a_network_has_the_loss_and_gradients_of_one_process(returned: dict[str, list[Any]]) -> None:
    same(returned["network 3"], *returned["network 1"])


def same(processes: list[Any], alone: Any) -> None:
    for process in processes:
        for name, value in process.items():
            found, right = (torch.tensor(given, dtype=torch.float64) for given in (value, alone[name]))
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12, msg=name)


def test_what_cannot_be_shared_is_refused(returned: dict[str, list[Any]]) -> None:
    assert len(returned["cca"]) == 2
    assert all("of the kind 'cca', which one process trains" in fault for fault in returned["cca"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX systems")
def test_a_run_goes_on_from_its_last_checkpoint_when_a_process_dies(
    folder: Path, stores: list[str], environment: dict[str, str], returned: dict[str, list[Any]]
) -> None:
    whole, broken = folder / "constraints 2", folder / "broken"
    elastic = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    # In the second epoch: after the first there is a checkpoint.
    given = json.dumps([RECIPES["constraints"], str(broken), stores, 1, 7])
    command = [sys.executable, *elastic, "-m", "tests.training.ranks", "killed", given]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    first, *_, last = read_starts(broken)
    assert (first.epoch, first.step) == (1, 0)
    assert (last.epoch, last.step) > (1, 0), "it began anew"
    # A sum of two does not depend on their order: the same bits as without the death.
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert steps_of(broken) == steps_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "count"),
    [("cpu", 1), pytest.param("cuda", 1, marks=needs_gpu), pytest.param("cuda", 2, marks=needs_gpu)],
)
def test_a_group_trains_as_a_process_without_one(
    device: str, count: int, folder: Path, stores: list[str], environment: dict[str, str]
) -> None:
    """All that is said among processes is said: by gloo, or by NCCL where each has a GPU of its own."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    for name, how in (("group", torchrun), ("alone", [])):
        given = json.dumps([RECIPES["constraints"], str(folder / f"{name} {device} {count}"), stores, device])
        command = [sys.executable, *how, "-m", "tests.training.ranks", "train", given, device]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    group, alone = (steps_of(folder / f"{name} {device} {count}") for name in ("group", "alone"))
    assert len(group) == len(alone) > 4
    # A GPU rounds the factors of its products to 10 bits.
    tolerance = 1e-4 if device == "cpu" else 5e-3
    assert [step.loss for step in group] == pytest.approx([step.loss for step in alone], rel=tolerance)


def test_shares_are_consecutive_and_nothing_is_left_out() -> None:
    for things in (0, 1, 3, 10, 1001):
        for count in (1, 2, 7):
            shares = [Ranks(number, count).share(things) for number in range(count)]
            assert [item for share in shares for item in share] == list(range(things))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert ALONE.broadcast(b"anything") == b"anything"


@pytest.mark.parametrize("own_cards", [(True, True, True), (True, False, True), (False, False, False)])
def test_all_processes_choose_the_same_way_to_talk_also_on_unequal_machines(own_cards: tuple[bool, ...]) -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(len(own_cards)) as pool:
        chosen = list(pool.map(lambda rank: _backend(store, rank, len(own_cards), own_cards[rank]), range(3)))
    assert chosen == ["cpu:gloo,cuda:nccl" if all(own_cards) else "gloo"] * len(own_cards)


def test_a_card_is_shared_only_by_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(DeixisError, match="LOCAL_WORLD_SIZE must be set to share GPUs; start training by torchrun"):
        _take_card()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert not _take_card()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _take_card()
    assert taken == [1, 1]


def test_a_world_of_one_without_torchrun_is_a_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for size in (None, "1"):
        monkeypatch.delenv("WORLD_SIZE", raising=False) if size is None else monkeypatch.setenv("WORLD_SIZE", size)
        with joined("cpu") as ranks:
            assert ranks is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DeixisError, match="torchrun"), joined("cpu"):
        pass
