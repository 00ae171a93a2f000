"""Training by the trainer itself, steps kernel by kernel and captured as CUDA graphs: milliseconds, and the losses.

    python benchmarks/recorded_steps.py [--device cuda] [--images 6000] [--out results/benchmarks/recorded_steps.json]

Two-branch networks for sentences, 4,096 + 6,000 dimensions, batches of 500 pairs, with the moving average of the
weights: 6,000 images with five captions each, made as in `two_branch.py`. A step is all that the trainer does for one:
sampling, forward, backward, Adam, averaging, and looking at the losses. Of the epochs the last four count; the first
checkpoint falls into the second. On a processor there are no graphs, and nothing to compare.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from telling import tell
from two_branch import IMAGE_DIM, SETTINGS, TEXT_DIM, Made, machine, made

from deixis.papers.two_branch.sentences_task import SentenceRecipe, SentenceTask
from deixis.papers.two_branch.task import TwoBranchModule
from deixis.training.pair_data import SentenceData
from deixis.training.recipe import check_recipe
from deixis.training.run_records import RunPlan, epochs_of
from deixis.training.runs import RunFolder, read_log
from deixis.training.sampling import SentenceSampler
from deixis.training.trainer import train

BATCH, EPOCHS, COUNTED = 500, 6, 4
#: How far apart mean losses of the last epoch may be, beside the eager one.
SAME = 1e-3
MODEL = {"image": SETTINGS["sentences"][1], "text": SETTINGS["sentences"][1], "dropout": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "embedding": {
        "model": {"kind": "embedding", **MODEL},
        "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.0], "hardest": 10},
    },
    "similarity": {"model": {"kind": "similarity", **MODEL}, "loss": {"kind": "logistic"}},
}


class MadeTask(SentenceTask):
    """Sentences without a corpus, validated by the loss of a batch."""

    def __init__(self, recipe: SentenceRecipe, data: Made) -> None:
        self.recipe, self.device = recipe, data.images.device
        names = tuple(map(str, range(len(data.images))))
        captions = tuple((str(number),) for number in data.captions)
        self.data = SentenceData(data.images, data.texts, data.image_of, names, captions, 0)
        self.module = TwoBranchModule(recipe, IMAGE_DIM, TEXT_DIM).to(self.device)
        self.sampler = SentenceSampler(self.data, recipe.sampler, recipe.seed)

    def validate(self) -> Mapping[str, float]:
        batch: Any = next(iter(self.batches(1)))
        return {"loss": float(self.loss(batch).total)}

    def save(self, folder: Path) -> None: ...


def steps(kind: str, data: Made, graphs: bool) -> dict[str, Any]:
    recipe = check_recipe(
        {
            "name": kind,
            "corpus": "made",
            "kind": "sentences",
            "features": "image",
            "text": {"kind": "tfidf"},
            **KINDS[kind],
            "sampler": {"batch": BATCH},
            "schedule": {"epochs": EPOCHS, "learning_rate": 1e-4, "averaging": 0.99},
        },
        "here",
    )
    assert isinstance(recipe, SentenceRecipe)
    task: Any = MadeTask(recipe, data)
    with tempfile.TemporaryDirectory() as folder:
        with RunFolder(folder, RunPlan(recipe=msgspec.to_builtins(recipe)), "") as run:
            train(task, recipe.schedule, run, seed=1, device=task.device, checkpoint_minutes=100, graphs=graphs)
        records = epochs_of(read_log(folder))
    ends = [0.0, *(record.seconds for record in records)]
    taken = [1e3 * (end - start) / records[0].steps for start, end in pairwise(ends)]
    return {
        "steps_of_an_epoch": records[0].steps,
        "step_ms_by_epoch": [round(each, 2) for each in taken],
        "step_ms": round(statistics.median(taken[-COUNTED:]), 2),
        "last_loss": round(records[-1].loss, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/recorded_steps.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    data = made(options.images, 5, device)
    kinds: dict[str, Any] = {}
    same = True
    for kind in KINDS:
        own = kinds[kind] = {"kernel by kernel": steps(kind, data, graphs=False)}
        if device.type != "cuda":
            continue
        own["graphs"] = steps(kind, data, graphs=True)
        own["times_as_fast"] = round(own["kernel by kernel"]["step_ms"] / own["graphs"]["step_ms"], 2)
        losses = [own[way]["last_loss"] for way in ("graphs", "kernel by kernel")]
        same = same and abs(losses[0] / losses[1] - 1) < SAME
    record = {
        "benchmark": "recorded_steps",
        "command": "python benchmarks/recorded_steps.py",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "images": options.images,
        "pairs": BATCH,
        "kinds": kinds,
        "losses_are_the_same": same,
        **machine(),
    }
    tell(record, options.out)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
