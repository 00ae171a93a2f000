"""Extraction against a plain loop, and against decoding alone: pictures a second, time by stage.

    python benchmarks/extraction.py PICTURES [--pictures 200] [--device cpu] [--json results/benchmarks/extraction.json]

PICTURES is any corpus or folder of pictures; where it has fewer than asked for, they are seen again.

1. On a processor, against a plain loop and a pass a box: each picture is seen whole and with 100 regions at fixed
   random boxes, so that proposals play no part. All see the same pictures in the same run, by turns, and must give the
   same features. The loop runs the network as it is published, and once more as extraction has it: normalizations
   folded, convolutions in oneDNN's layout.
2. The recipe `regions`, learned proposals and all, and each of its stages by itself: reading and decoding alone, the
   networks alone on pictures that are ready, writing alone. Extraction is bound by decoding where it is about as fast
   as that alone. Of the networks, what each part takes by itself: putting pixels together and bringing them to the
   device, proposals, backbone and regions. The floor is the longest of what decoding takes on all processors at the
   speed of one thread that nobody disturbs, and what operations and bytes take at the rates of the device.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import roofline
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from telling import tell
from torch.utils.flop_counter import FlopCounterMode

from deixis.corpus import Corpus, Image, open_corpus
from deixis.features import FeatureStore, extract
from deixis.features.boxes import LearnedBoxes
from deixis.features.extraction import batches, map_batch
from deixis.features.mapper import BackboneMapper, BoxMapper, PreparedPicture, make_mapper
from deixis.features.reading import read
from deixis.features.recipe import BUILT_IN, FeatureRecipe, RegionRecipe
from deixis.vision.backbones import DEFAULT, Backbone, NetworkBackbone, NetworkInput, load_backbone, stacked
from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite
from deixis.vision.reading import read_picture
from deixis.vision.regions import region_vectors

REGIONS, SIDE, BLOCKS = 100, 384, 4
#: At most so many pictures go through the plain loop, and through the networks alone.
COMPARED, READY = 1000, 512
#: Features are the same up to half precision and the order of sums: so much of an array's largest value.
SAME = 0.005


class RandomBoxes:
    """The same boxes for the same image id, anywhere in the picture, at least a tenth of it wide and high."""

    provenance: Mapping[str, Any] = {"boxes": "random", "saw_boxes": False}

    def __call__(self, image: Image, picture: Pillow.Image, count: int) -> NDArray[np.float32]:
        generator = np.random.default_rng(list(image.id.encode()))
        low = generator.uniform(0, 0.9, (count, 2))
        high = low + 0.1 + generator.uniform(size=(count, 2)) * (0.9 - low)
        return np.asarray(np.concatenate([low, high], 1) * np.tile(picture.size, 2), np.float32)


Vectors = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def plain_loop(corpus: Corpus, backbone: Backbone) -> Vectors:
    """What one would write first: read, decode, network, regions, one picture after the other."""
    features = {}
    boxes_of = RandomBoxes()
    for image in corpus:
        picture = read_picture(corpus, image)
        pixels = backbone.whole(picture, SIDE)
        boxes = torch.from_numpy(boxes_of(image, picture, REGIONS))
        scale = torch.tensor([pixels.shape[2] / picture.width, pixels.shape[1] / picture.height] * 2)
        with torch.inference_mode():
            maps = backbone.maps(pixels[None])
            regions = region_vectors(maps, [boxes * scale])
        vector = maps.values.mean((-2, -1))[0]
        features[image.id] = (vector.cpu().numpy().astype(np.float16), regions.cpu().numpy().astype(np.float16))
    return features


def pictures_of(path: Path, count: int) -> Corpus:
    """So many pictures of a corpus or folder; where it has fewer, they are seen again."""
    opened = open_corpus(path)
    there = [image for image in opened if opened.pictures and opened.pictures.has(image)]
    again = (
        image if number < len(there) else msgspec.structs.replace(image, id=f"{image.id} {number}")
        for number, image in enumerate(cycle(there))
    )
    return opened.with_images(islice(again, count))


def published_backbone() -> Backbone:
    """The network as it is published, with its normalizations."""
    network = load_efficientnet_lite(DEFAULT)
    return NetworkBackbone(
        DEFAULT,
        network,
        NetworkInput(VARIANTS[DEFAULT].side, 1.0, (127.0,) * 3, (128.0,) * 3),
        vectors=lambda batch: network.map(batch).mean((-2, -1)),
        maps=network.map,
        weights_sha256="",
        stride=network.stride,
        origin=network.map_origin,
    )


def plain_process(orders: Connection, path: Path, count: int, prepared: bool) -> None:
    """The plain loop as a program of its own, so that nothing that extraction sets up helps it; it waits by turns."""
    corpus, backbone = pictures_of(path, count), load_backbone() if prepared else published_backbone()
    plain_loop(corpus.with_images(corpus.images[:4]), backbone)
    orders.send(None)
    while (part := orders.recv()) is not None:
        start, work = time.perf_counter(), time.process_time()
        features = plain_loop(corpus.with_images(corpus.images[part]), backbone)
        orders.send((time.perf_counter() - start, time.process_time() - work, features))


def largest_difference(store: FeatureStore, plain: Vectors) -> float:
    """Over all values, relative to the largest value of the array."""
    worst = 0.0
    for number, image_id in enumerate(store.ids):
        for ours, theirs in zip((store["image"][number], store["regions"][number]), plain[image_id], strict=True):
            difference = np.abs(ours.astype(np.float32) - theirs.astype(np.float32)).max()
            worst = max(worst, float(difference / np.abs(theirs).max()))
    return worst


def against_a_plain_loop(path: Path, count: int) -> dict[str, Any]:
    corpus = pictures_of(path, count)
    backbone = load_backbone()
    recipe = FeatureRecipe(crops="whole", side=SIDE, regions=RegionRecipe(count=REGIONS))
    mapper = BackboneMapper(recipe, backbone, RandomBoxes())
    crops = FeatureRecipe(crops="whole", side=SIDE, regions=RegionRecipe(count=REGIONS, features="crops"))
    per_crop = BackboneMapper(crops, backbone, RandomBoxes())

    programs = {name: Pipe() for name in ("plain", "plain with our network")}
    for name, (orders, theirs) in programs.items():
        get_context("spawn").Process(target=plain_process, args=(theirs, path, count, name != "plain")).start()
        orders.recv()
    seconds = dict.fromkeys((*programs, "extract"), 0.0)
    processor = dict.fromkeys(seconds, 0.0)
    stages = dict.fromkeys(("read", "map", "write"), 0.0)
    difference = 0.0
    for block in range(BLOCKS):
        for name, (orders, _) in programs.items():
            orders.send(slice(block, None, BLOCKS))
            took, worked, plain = orders.recv()
            seconds[name] += took
            processor[name] += worked
        part = corpus.with_images(corpus.images[block::BLOCKS])
        with tempfile.TemporaryDirectory() as folder:
            work = time.process_time()
            report = extract(part, mapper, folder)
            processor["extract"] += time.process_time() - work
            seconds["extract"] += report.seconds["all"]
            for stage in stages:
                stages[stage] += report.seconds[stage]
            difference = max(difference, largest_difference(FeatureStore(folder), plain))
    for orders, _ in programs.values():
        orders.send(None)
    if difference > SAME:
        raise SystemExit(f"the loop and extraction give other features: {difference:.2g} of the largest value apart")
    for few in (corpus.with_images(corpus.images[:1]), corpus.with_images(corpus.images[:2])):
        with tempfile.TemporaryDirectory() as folder:
            crop_seconds = extract(few, per_crop, folder).seconds["all"] / len(few)

    return {
        "pictures": count,
        "regions_per_picture": REGIONS,
        "pictures_per_second": {name: count / value for name, value in seconds.items()},
        "processor_ms_per_picture": {name: 1e3 * value / count for name, value in processor.items()},
        "ms_per_picture_by_stage": {name: 1e3 * value / count for name, value in stages.items()},
        "ratio_to_plain_loop": seconds["plain"] / seconds["extract"],
        "ratio_to_plain_loop_with_our_network": seconds["plain with our network"] / seconds["extract"],
        "ratio_to_a_pass_a_box": crop_seconds / (seconds["extract"] / count),
        "largest_relative_difference": difference,
    }


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
    taken = dict.fromkeys(("to_device", "proposals", "backbone_and_regions"), 0.0)
    operations = moved = 0.0
    # All are read before, so that no reader disturbs what is timed.
    read_already = list(batches(read(ready.pictures, mapper, ready, workers), mapper.batch_size))
    with mapper.running():
        for batch in read_already:
            pictures = [reading.picture for reading in batch if reading.picture is not None]
            pixels = [values for each in pictures for values in (each.squashed, each.whole) if values is not None]
            taken["to_device"] += once(partial(to_device, pictures, device), device)
            taken["proposals"] += once(partial(mapper._with_boxes, pictures), device)
            boxed = [replace(each, squashed=None) for each in mapper._with_boxes(pictures)]
            taken["backbone_and_regions"] += once(partial(mapper, boxed), device)
            # Pixels in and features out, and nothing between: what no way of doing it can save.
            moved += sum(values.numel() for values in pixels)
            moved += sum(values.nbytes for each in mapper(boxed) for values in each.values())
            if not operations:
                with FlopCounterMode(display=False) as counter:
                    mapper(pictures)
                operations = counter.get_total_flops() / len(pictures) * len(ready)
    return {**taken, "operations": operations, "bytes": moved}


def to_device(pictures: Sequence[PreparedPicture], device: torch.device) -> None:
    shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for each in pictures:
        for values in (each.squashed, each.whole):
            if values is not None:
                shapes.setdefault(tuple(values.shape), []).append(values)
    for alike in shapes.values():
        stacked(alike, device.type)


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
    # On a processor convolutions are oneDNN's own, whose operations are not counted.
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
    tell(result, options.json)


if __name__ == "__main__":
    main()
