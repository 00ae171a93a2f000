"""How much of a training step the GPU computes, for each kind of recipe; the rest is launching kernels and waiting.

    python benchmarks/launches.py CORPUS [--trees FILE] [--only KIND] [--device cuda]
                                  [--out results/benchmarks/launches.json]

CORPUS has phrases and boxes (`scenes`, or Flickr8k with Entities); pictures are not read. Features are random, boxes
are moved ground-truth boxes, text vectors TF-IDF instead of Fisher vectors. A step is everything the trainer does for
one; `hm-lstm` is in its first round. `step_ms` is the median between two reads of the loss, `making_batches_ms` the
sampler alone, `computing_ms` the sum of all kernels and copies in the profiler. With `--only`, the other kinds in the
file at `--out` are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from reporting import write_report
from torch.profiler import ProfilerActivity, profile
from two_branch import machine

from deixis.corpus import Corpus, Image, open_corpus
from deixis.corpus.boxes import box_array, merge
from deixis.features.layout import ArraySpec, make_plan
from deixis.features.store import FeatureStore
from deixis.features.store_writing import StoreWriter, write_partition
from deixis.text.chunker import Chunker
from deixis.text.treebank import chunk_tree, corpus_texts
from deixis.text.trees import write_trees
from deixis.training.distributed import FollowingRun
from deixis.training.graph_capture import can_capture_graphs
from deixis.training.kinds import kind_of
from deixis.training.recipe import load_recipe
from deixis.training.trainer import READ_EVERY, Progress, train

CHANNELS, REGIONS, WORD = 1280, 200, 300
#: Of so many training images a sixth has regions; and those held out, of which nothing is asked.
IMAGES, HELD_OUT = 3000, 20
#: Looks that are timed after those that warm up, of which graphs have more: each shape of batch is captured first, and
#: captions have many lengths. One more is profiled.
LOOKS, WARM, WARM_GRAPHS = 2, 1, 20
TEXT = {"kind": "tfidf"}
#: More epochs than are needed, none of which is validated.
LONG = {"epochs": 400, "validate_every": 400, "figure": None, "patience": None, "first_kept": 1}
#: What is trained, what of its recipe is changed, and from which epoch on steps count.
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "sentences": ("two-branch/sentences-bi", {"text": TEXT}, 1),
    "sentences, similarity network": ("two-branch/sentences-similarity", {"text": TEXT}, 1),
    "sentences with second ones and constraints": ("two-branch/sentences-constraints", {"text": TEXT}, 1),
    "sentences read by an LSTM": ("two-branch/sentences-lstm", {}, 1),
    "phrases": ("two-branch/phrases-augmented", {"text": TEXT}, 1),
    "phrases, similarity network": ("two-branch/phrases-similarity-augmented", {"text": TEXT}, 1),
    "HM-LSTM": ("hm-lstm/hm-lstm", {"alternation": {"coarse": 1, "rounds": 1}}, 2),
    "concepts and order": ("concepts-order/ctx", {}, 1),
    "concepts and order, with generation": ("concepts-order/ctx-gen", {}, 1),
    "order from pictures, with generation": ("concepts-order/scenes-tuned-cnp-ctx-gen-order", {}, 1),
    "alignment, BRNN": ("dvsa/brnn", {}, 1),
    "captions, LSTM": ("dvsa/captions-lstm", {}, 1),
}


class Enough(Exception):
    """All looks were had."""


def some(corpus: Corpus, training: int) -> Corpus:
    parts = (("train", training), ("val", HELD_OUT))
    return corpus.with_images([image for split, count in parts for image in corpus.split(split).images[:count]])


def made_store(folder: Path, corpus: Corpus, boxes: str = "") -> FeatureStore:
    """Random vectors of pictures and, with `boxes`, of regions: the drawn ones ("chains"), or proposals near them."""
    arrays = {"image": ArraySpec((CHANNELS,)), "size": ArraySpec((2,), "float32")}
    if boxes:
        arrays |= {
            "regions": ArraySpec((CHANNELS,), ragged=True),
            "boxes": ArraySpec((4,), "float32", ragged=True),
        }
    ids = [image.id for image in corpus]
    plan = make_plan(ids, arrays, {"regions": {"boxes": boxes, "saw_boxes": False} if boxes else None}, 256)
    random = np.random.default_rng(0)
    # Drawing numbers for each picture anew would take longer than all steps.
    pool = random.normal(size=(4096, CHANNELS)).astype(np.float16)
    with StoreWriter(folder, plan, ids) as writer:
        for number in writer.pending():
            written = {}
            for item in plan.items(number):
                image = corpus.images[item]
                start = int(random.integers(len(pool) - 2 * REGIONS))
                size = np.array([image.width or 500, image.height or 375], np.float32)
                written[image.id] = {"image": pool[start], "size": size}
                if boxes:
                    own = boxes_of(image, boxes, size, random)
                    written[image.id] |= {"boxes": own, "regions": pool[start : start + len(own)]}
            write_partition(folder, plan, number, ids, written, [])
        writer.finish()
    return FeatureStore(folder)


def boxes_of(image: Image, kind: str, size: Any, random: np.random.Generator) -> Any:
    chains = [merge(box_array(image.chain_boxes(chain.id))) for chain in image.chains if chain.boxes]
    drawn = np.array(chains, np.float32).reshape(-1, 4)
    if kind == "chains":
        return drawn
    corners = np.sort(random.uniform(0, 1, (REGIONS, 2, 2)), axis=1)
    own = (corners * size).reshape(-1, 4).astype(np.float32)
    near = drawn[random.integers(0, len(drawn), REGIONS // 10)] if len(drawn) else drawn
    own[: len(near)] = near + random.uniform(-5, 5, near.shape)
    own[:, 2:] = np.maximum(own[:, 2:], own[:, :2] + 1)
    return own


def made_text(folder: Path, corpus: Corpus, trees: Path | None) -> dict[str, dict[str, str]]:
    """Sections of recipes that name random word vectors, and trees: the given ones, or flat ones of noun phrases."""
    texts = corpus_texts(corpus)
    words = sorted({word for tokens in texts for word in tokens})
    values = np.random.default_rng(0).normal(size=(len(words), WORD))
    lines = [f"{word} {' '.join(f'{value:.2f}' for value in row)}" for word, row in zip(words, values, strict=True)]
    vectors = folder / "words.vec"
    vectors.write_text("\n".join([f"{len(words)} {WORD}", *lines, ""]))
    if trees is None:
        trees = folder / "trees.jsonl"
        found = zip(texts, Chunker.load().phrases_of(texts), strict=True)
        write_trees(trees, [(tokens, chunk_tree(len(tokens), spans)) for tokens, spans in found])
    return {
        "hm-lstm/hm-lstm": {"trees": str(trees), "vectors": str(vectors)},
        "dvsa/brnn": {"kind": "tokens", "vectors": str(vectors)},
    }


class Looks:
    """Called by the trainer after bursts of steps: whenever it reads the losses, and at the end of an epoch.

    Only full bursts count: those of `READ_EVERY` steps, or of all steps of a short epoch.
    """

    def __init__(self, device: torch.device, first: int, warm: int) -> None:
        self._every, self._first, self._warm = READ_EVERY[device.type], first, warm
        #: Of the burst that is profiled.
        self.steps = 0
        self._step_ms: list[float] = []
        self.profiler = profile(activities=[ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU])
        self._profiling = False
        self._last = time.perf_counter()

    @property
    def step_ms(self) -> float:
        return statistics.median(self._step_ms[self._warm :])

    def __call__(self, now: Progress) -> None:
        ended, burst = now.epoch_record is not None, min(self._every, now.steps)
        begun = not ended and (now.step - 1) % burst == 0 and now.step + burst - 1 <= now.steps
        if begun and now.epoch >= self._first:
            if self._profiling:
                self.profiler.stop()
                raise Enough
            self._step_ms.append(1e3 * (time.perf_counter() - self._last) / burst)
        # Whether the next look is at so many steps, with nothing between.
        follows = now.steps if ended else now.steps - now.step if now.step % burst == 0 else 0
        if len(self._step_ms) == self._warm + LOOKS and follows >= burst:
            self.profiler.start()
            self._profiling, self.steps = True, burst
        self._last = time.perf_counter()


def measured(task: Any, recipe: Any, device: torch.device, first: int, graphs: bool) -> dict[str, Any]:
    looks = Looks(device, first, WARM_GRAPHS if graphs else WARM)
    with suppress(Enough):
        # A run that writes nothing.
        train(task, recipe.schedule, FollowingRun("."), seed=0, device=device, progress=looks, graphs=graphs)
    events = looks.profiler.key_averages()
    on_device = device.type == "cuda"
    kernels = [event for event in events if (event.device_type.name == "CUDA") == on_device]
    taken = sum(event.self_device_time_total if on_device else event.self_cpu_time_total for event in kernels)
    step, computing = looks.step_ms, taken / 1e3 / looks.steps
    return {
        "step_ms": round(step, 3),
        "computing_ms": round(computing, 3),
        "share_computing": round(computing / step, 3),
        "kernels": round(sum(event.count for event in kernels) / looks.steps, 1),
    }


def making_batches(task: Any, epoch: int, device: torch.device) -> float:
    """Milliseconds a batch, with nothing beside it."""
    count = LOOKS * READ_EVERY["cuda"]

    def batches() -> Iterator[Any]:
        for number in range(epoch, epoch + count):
            yield from task.batches(number)

    source = batches()
    next(source)
    start = time.perf_counter()
    for _ in islice(source, count):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(1e3 * (time.perf_counter() - start) / count, 3)


def kinds(
    corpus: Corpus, images: int, folder: Path, trees: Path | None, device: torch.device, only: list[str] | None
) -> Iterator[tuple[str, Any]]:
    large, small = some(corpus, images), some(corpus, images // 6)
    whole = made_store(folder / "image", large)
    regions = [made_store(folder / boxes, small, boxes) for boxes in ("edge-boxes", "chains")]
    texts = made_text(folder, small, trees)
    for name in only or KINDS:
        recipe_name, changes, first = KINDS[name]
        try:
            recipe: Any = load_recipe(recipe_name).recipe
            changed = msgspec.to_builtins(recipe) | changes
            changed["schedule"] |= LONG
            if recipe_name in texts:
                changed["text"] = texts[recipe_name]
            recipe = msgspec.convert(changed, type(recipe))
            pictures = recipe.kind in ("sentences", "concepts-order", "captioner")
            given = (large, [whole]) if pictures else (small, regions)
            task: Any = kind_of(recipe.kind).task(recipe, *given, device)
            found: dict[str, Any] = {
                "recipe": recipe_name,
                "load_average": os.getloadavg()[0],
                "kernel by kernel": measured(task, recipe, device, first, False),
            }
            found["making_batches_ms"] = making_batches(task, first, device)
            if can_capture_graphs(recipe.schedule, device):
                found["graphs"] = measured(task, recipe, device, first, True)
        # One kind that cannot be had here does not keep the others from being measured.
        except Exception as fault:
            found = {"recipe": recipe_name, "fault": " ".join(f"{type(fault).__name__}: {fault}".split())[:300]}
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--trees", type=Path, help="parses of the corpus' captions (without it: noun phrases)")
    parser.add_argument("--only", action="append", choices=[*KINDS], metavar="KIND", help="may be repeated")
    parser.add_argument("--images", type=int, default=IMAGES, help="of the training split")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    record: dict[str, Any] = {
        "benchmark": "launches",
        "command": f"python benchmarks/launches.py CORPUS{' --trees FILE' if options.trees else ''}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **machine(),
        "kinds": {},
    }
    if options.only and options.out and options.out.exists():
        record["kinds"] = json.loads(options.out.read_text("utf-8"))["kinds"]
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(options.corpus)
        for name, found in kinds(corpus, options.images, Path(folder), options.trees, device, options.only):
            record["kinds"][name] = found
            # Written after each kind, so that an interrupted run leaves what it measured.
            write_report(record, options.out)


if __name__ == "__main__":
    main()
