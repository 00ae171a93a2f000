"""Extraction against a plain loop and against one pass per box, on a CPU: the first part of `extraction.py`.

Each picture is encoded whole and with 100 regions at fixed random boxes, without proposals. All methods see the same
pictures in the same run, alternately, and must give the same features. The loop runs the published network in PyTorch,
once with batch norm and once with batch norm folded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from itertools import cycle, islice
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus import Corpus, Image, open_corpus
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe, RegionRecipe
from deixis.features.mapper import BackboneMapper
from deixis.features.store import FeatureStore
from deixis.vision.backbones import DEFAULT, Backbone, NetworkBackbone, NetworkInput, load_backbone
from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite
from deixis.vision.reading import read_picture
from deixis.vision.regions import region_vectors

REGIONS, SIDE, BLOCKS = 100, 384, 4
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
        image if index < len(there) else msgspec.structs.replace(image, id=f"{image.id} {index}")
        for index, image in enumerate(cycle(there))
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
    for index, image_id in enumerate(store.ids):
        for ours, theirs in zip((store["image"][index], store["regions"][index]), plain[image_id], strict=True):
            difference = np.abs(ours.astype(np.float32) - theirs.astype(np.float32)).max()
            worst = max(worst, float(difference / np.abs(theirs).max()))
    return worst


def against_a_plain_loop(path: Path, count: int) -> dict[str, Any]:
    corpus = pictures_of(path, count)
    backbone = load_backbone(exported=True)
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
