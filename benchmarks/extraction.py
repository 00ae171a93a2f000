"""Feature extraction against a plain loop and against decoding alone: pictures per second, and time by stage.

    python benchmarks/extraction.py PICTURES [--pictures 200] [--device cpu] [--json results/benchmarks/extraction.json]

PICTURES is a corpus or a folder; if it has too few pictures, they are repeated.

1. On a CPU, against a plain loop and one pass per box (`plain_loop.py`).
2. The recipe `regions` with learned proposals, and each stage alone: decoding, the networks on decoded pictures,
   writing; and each part of the networks: copying pixels to the device (with and without pinned memory), proposals,
   backbone and regions. The lower bound is the longest of decoding on all cores at the speed of one undisturbed thread,
   and operations and bytes at the rates of the device.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import roofline
import torch
from plain_loop import against_a_plain_loop, pictures_of
from reporting import write_report
from torch.utils.flop_counter import FlopCounterMode

from deixis.corpus import Corpus
from deixis.features.extraction import batches, extract, map_batch
from deixis.features.feature_recipe import BUILT_IN
from deixis.features.mapper import BackboneMapper, BoxMapper, PreparedPicture, make_mapper
from deixis.features.picture_loading import read
from deixis.features.region_boxes import LearnedBoxes
from deixis.vision.backbones import stacked

#: At most so many pictures go through the plain loop, and through the networks alone.
COMPARED, READY = 1000, 512


def decoding_alone(corpus: Corpus, mapper: BoxMapper, workers: int) -> float:
    """Seconds to read, decode and resize every picture, with nothing beside it."""
    assert corpus.pictures is not None
    start = time.perf_counter()
    for _ in read(corpus.pictures, mapper, corpus, workers):
        pass
    return time.perf_counter() - start


def networks_alone(corpus: Corpus, mapper: BoxMapper, workers: int) -> float:
    """Seconds that proposals, backbone and regions take for pictures that are decoded already."""
    assert corpus.pictures is not None
    ready = list(batches(read(corpus.pictures, mapper, corpus, workers), mapper.batch_size))
    with mapper.running(), ThreadPoolExecutor(mapper.threads, initializer=mapper.begin_thread) as network:
        start = time.perf_counter()
        for mapped in [network.submit(map_batch, batch, mapper) for batch in ready]:
            mapped.result()
        return time.perf_counter() - start


def parts_of_networks(ready: Corpus, mapper: BoxMapper, workers: int) -> dict[str, float]:
    """Seconds that each part of the networks takes by itself, one batch after the other, and its operations."""
    assert isinstance(mapper, BackboneMapper)
    assert isinstance(mapper._box_source, LearnedBoxes)
    assert ready.pictures is not None
    device = torch.device(mapper._device)
    taken = dict.fromkeys(("to_device", "to_device_pageable", "proposals", "backbone_and_regions"), 0.0)
    operations = moved = 0.0
    # All are read before, so that no reader disturbs what is timed.
    read_already = list(batches(read(ready.pictures, mapper, ready, workers), mapper.batch_size))
    with mapper.running():
        for batch in read_already:
            pictures = [reading.picture for reading in batch if reading.picture is not None]
            pixels = [
                values for picture in pictures for values in (picture.squashed, picture.whole) if values is not None
            ]
            for name, together in (("to_device", stacked), ("to_device_pageable", pageable)):
                taken[name] += once(partial(to_device, pictures, device, together), device)
            taken["proposals"] += once(partial(mapper._with_boxes, pictures), device)
            boxed = [replace(picture, squashed=None) for picture in mapper._with_boxes(pictures)]
            taken["backbone_and_regions"] += once(partial(mapper, boxed), device)
            # Pixels in and features out, and nothing between: what no way of doing it can save.
            moved += sum(values.numel() for values in pixels)
            moved += sum(values.nbytes for each in mapper(boxed) for values in each.values())
            if not operations:
                with FlopCounterMode(display=False) as counter:
                    mapper(pictures)
                operations = counter.get_total_flops() / len(pictures) * len(ready)
    return {**taken, "operations": operations, "bytes": moved}


def to_device(
    pictures: Sequence[PreparedPicture],
    device: torch.device,
    together: Callable[[list[torch.Tensor], str], torch.Tensor],
) -> None:
    shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for picture in pictures:
        for values in (picture.squashed, picture.whole):
            if values is not None:
                shapes.setdefault(tuple(values.shape), []).append(values)
    for alike in shapes.values():
        together(alike, device.type)


def pageable(pictures: list[torch.Tensor], device: str) -> torch.Tensor:
    """What `stacked` does, without pinned memory."""
    return torch.stack([picture.movedim(-3, -1) for picture in pictures]).to(device).movedim(-1, -3)


def once(work: Callable[[], object], device: torch.device) -> float:
    roofline.wait(device)
    start = time.perf_counter()
    work()
    roofline.wait(device)
    return time.perf_counter() - start


def undisturbed(corpus: Corpus, mapper: BoxMapper) -> float:
    """Seconds of one thread that decodes a picture, with nothing beside it."""
    assert corpus.pictures is not None
    some = corpus.images[:64]
    start = time.perf_counter()
    for image in some:
        mapper.prepare(image, corpus.pictures.read(image))
    return (time.perf_counter() - start) / len(some)


def by_stage(corpus: Corpus, device: str) -> dict[str, Any]:
    mapper = make_mapper(BUILT_IN["regions"], device=device)
    workers = os.cpu_count() or 1
    ready = corpus.with_images(corpus.images[:READY])
    # Once for nothing: a GPU is set up, and the files are in the system's cache.
    networks_alone(ready if device == "cuda" else corpus.with_images(corpus.images[:2]), mapper, workers)
    before = decoding_alone(corpus, mapper, workers)
    moments: list[tuple[int, float]] = []
    began, work = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = extract(
            corpus,
            mapper,
            folder,
            workers=workers,
            progress=lambda done, _: moments.append((done, time.perf_counter() - began)),
        )
    work = time.process_time() - work
    # The first moment is before all work; then one after each batch.
    (first, begun), (last, ended) = moments[1], moments[-1]
    decoding = (before + decoding_alone(corpus, mapper, workers)) / 2
    networks = networks_alone(ready, mapper, workers)
    parts = parts_of_networks(ready, mapper, workers)
    operations, moved = parts.pop("operations"), parts.pop("bytes")
    floors = {"decoding on all processors": undisturbed(corpus, mapper) / workers}
    ceiling: dict[str, Any] = {}
    # On a CPU onnxruntime runs the networks, whose operations are not counted.
    if device == "cuda":
        rates = roofline.measure(torch.device(device), "float32", "bfloat16")
        # Proposals are found in half precision: its rate for all is the lower floor.
        own = rates.floor(operations, moved, "bfloat16")
        floors[f"{own['floor_is']} on the device"] = own["floor_s"] / len(ready)
        ceiling = rates.record() | own
    longest = max(floors, key=lambda name: floors[name])
    count, seconds = len(corpus), report.seconds
    return {
        "recipe": "regions",
        "pictures": count,
        "pictures_per_second": {
            "extract": count / seconds["all"],
            "decoding alone": count / decoding,
            "networks alone": len(ready) / networks,
            "writing alone": count / seconds["write"],
        },
        # Beginning: readers are forked, and the first batch is read. Ending: the last partition is written.
        "seconds_of_beginning": begun,
        "seconds_of_ending": seconds["all"] - ended,
        "pictures_per_second_between": (last - first) / (ended - begun) if last > first else None,
        "share_of_networks_alone_between": (last - first) / (ended - begun) / (len(ready) / networks)
        if last > first
        else None,
        "share_of_decoding_alone": decoding / seconds["all"],
        "ms_per_picture_of_networks_by_part": {name: 1e3 * value / len(ready) for name, value in parts.items()},
        "ms_per_picture": 1e3 * seconds["all"] / count,
        "floors_ms_per_picture": {name: 1e3 * value for name, value in floors.items()},
        "floor_is": longest,
        "floor_ms_per_picture": 1e3 * floors[longest],
        "share_of_floor": floors[longest] / (seconds["all"] / count),
        "roofline": ceiling,
        "processor_ms_per_picture": 1e3 * work / count,
        "ms_per_picture_by_stage": {name: 1e3 * seconds[name] / count for name in ("read", "map", "write")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    load = os.getloadavg()[0]
    result = {
        "benchmark": "extraction",
        "command": f"python benchmarks/extraction.py PICTURES --pictures {options.pictures} --device {options.device}",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        # Waiting programs before the run: with others at work, threads wait for each other and ratios mean little.
        "load_before": load,
        # On a GPU a plain loop would wait for cuDNN's plans most of the time: one for each shape of picture.
        "against_a_plain_loop": None
        if options.device == "cuda"
        else against_a_plain_loop(options.corpus, min(options.pictures, COMPARED)),
        "by_stage": by_stage(pictures_of(options.corpus, options.pictures), options.device),
    }
    write_report(result, options.json)


if __name__ == "__main__":
    main()
