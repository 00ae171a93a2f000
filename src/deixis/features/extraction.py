"""Extraction: reader → mapper → writer, a partition at a time.

The reader (`deixis.features.picture_loading`) decodes pictures while the network runs, in order and at most two batches
ahead. The mapper turns batches of pictures of one shape into features. The writer is the store. Batches never cross
partitions and follow the order of the corpus, so the bytes depend neither on the number of readers nor on where a run
was interrupted. A fast stage waits for a slow one, so memory does not grow with the corpus.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from deixis.corpus import Corpus, Image
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError, InputError
from deixis.features.layout import Manifest, Plan, SkippedImage, make_plan
from deixis.features.picture_loading import Mapper, Picture, Reading, read
from deixis.features.store_writing import Features, StoreWriter, write_partition

#: Images per partition: a crash costs one partition, and one must fit in memory (100 regions of 1,280 float16: 66 MB).
PARTITION_SIZE = 256
#: The bytes of this many pictures are part of a store's provenance, since copies of a corpus may have other pixels.
SAMPLED_PICTURES = 16


@dataclass(frozen=True)
class Mapped:
    """A mapped batch: features by image id, or the reasons why there are none."""

    features: dict[str, Features]
    skipped: list[SkippedImage]
    read_seconds: float
    map_seconds: float


@dataclass(frozen=True)
class Report:
    """Images done by this run, images that were done before, and the seconds of each stage.

    Stages overlap and the reader has several threads, so the stages' seconds may add up to more than those of `all`.
    """

    plan: Plan
    manifest: Manifest
    done: int
    found: int
    seconds: dict[str, float]


def extract(
    corpus: Corpus,
    mapper: Mapper[Picture],
    out: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    partition_size: int = PARTITION_SIZE,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Write the features of a corpus' pictures to the store `out`, or finish one that was begun.

    Args:
        corpus: all its images are used.
        mapper: computes the features.
        out: the store's folder; a finished store of the same recipe stays as it is.
        provenance: recorded beside that of the mapper.
        partition_size: images per partition.
        workers: decoding threads or processes; by default one per CPU.
        progress: called with the number of finished images and of all images.

    Raises:
        DeixisError: no pictures, another process is writing, or `out` holds features of another recipe.
    """
    start = time.perf_counter()
    pictures, plan = plan_extraction(corpus, mapper, provenance, partition_size)
    ids = [image.id for image in corpus]
    with (
        StoreWriter(out, plan, ids) as store,
        mapper.running(),
        ThreadPoolExecutor(mapper.threads, "deixis-mapper", mapper.begin_thread) as network,
        ThreadPoolExecutor(1, "deixis-writer") as writer,
    ):
        pending = store.pending()
        images = [corpus.images[item] for index in pending for item in plan.items(index)]
        stored = done = plan.images - len(images)
        progress(stored, plan.images)
        seconds = dict.fromkeys(("read", "map", "write"), 0.0)
        under_way: deque[Future[Mapped]] = deque()
        written: deque[Future[float]] = deque()

        def finish_oldest(at_most: int) -> None:
            nonlocal done
            while len(under_way) > at_most:
                mapped = under_way.popleft().result()
                seconds["read"] += mapped.read_seconds
                seconds["map"] += mapped.map_seconds
                done += len(mapped.features) + len(mapped.skipped)
                progress(done, plan.images)

        with closing(read(pictures, mapper, images, workers or os.cpu_count() or 1)) as readings:
            for partition in pending:
                futures: list[Future[Mapped]] = []
                for batch in batches(islice(readings, len(plan.items(partition))), mapper.batch_size):
                    finish_oldest(at_most=mapper.threads)
                    futures.append(network.submit(map_batch, batch, mapper))
                    under_way.append(futures[-1])
                # One partition is written while the next is mapped; more would only use memory.
                while written:
                    seconds["write"] += written.popleft().result()
                written.append(writer.submit(_write_when_mapped, store.folder, plan, partition, ids, futures))
        finish_oldest(at_most=0)
        seconds["write"] += written.popleft().result() if written else 0.0
        manifest = store.finish()
    return Report(plan, manifest, len(images), stored, seconds | {"all": time.perf_counter() - start})


def plan_extraction(
    corpus: Corpus, mapper: Mapper[Any], provenance: Mapping[str, Any] | None, partition_size: int
) -> tuple[Pictures, Plan]:
    """The pictures of a corpus and the plan of the store."""
    pictures = _pictures_of(corpus)
    origin = {**mapper.provenance, **(provenance or {}), "pictures_sha256": sample_hash(pictures, corpus)}
    return pictures, make_plan((image.id for image in corpus), mapper.arrays, origin, partition_size)


def batches(readings: Iterable[Reading[Picture]], size: int) -> Iterator[list[Reading[Picture]]]:
    """Group pictures of one shape, in their order; broken pictures form their own groups."""
    waiting: dict[tuple[int, ...] | None, list[Reading[Picture]]] = {}
    for reading in readings:
        shape = reading.picture.shape if reading.picture is not None else None
        group = waiting.setdefault(shape, [])
        group.append(reading)
        if len(group) == size:
            yield waiting.pop(shape)
    yield from waiting.values()


def map_batch(batch: Sequence[Reading[Picture]], mapper: Mapper[Picture]) -> Mapped:
    """Map a batch to features; broken pictures to reasons."""
    start = time.perf_counter()
    pictures = [reading.picture for reading in batch if reading.picture is not None]
    computed = mapper(pictures) if pictures else []
    ids = [reading.image.id for reading in batch]
    return Mapped(
        features=dict(zip(ids, computed, strict=True)) if pictures else {},
        skipped=[] if pictures else [SkippedImage(reading.image.id, reading.reason) for reading in batch],
        read_seconds=sum(reading.seconds for reading in batch),
        map_seconds=time.perf_counter() - start,
    )


def _write_when_mapped(
    folder: Path, plan: Plan, partition: int, ids: Sequence[str], mapped: Sequence[Future[Mapped]]
) -> float:
    partition_ids = {item: ids[item] for item in plan.items(partition)}
    return write_mapped(folder, plan, partition, partition_ids, [future.result() for future in mapped])


def write_mapped(folder: Path, plan: Plan, partition: int, ids: Mapping[int, str], parts: Sequence[Mapped]) -> float:
    """Write one partition, whose ids are in `ids`; returns the seconds."""
    start = time.perf_counter()
    features = {image_id: image_features for part in parts for image_id, image_features in part.features.items()}
    try:
        write_partition(folder, plan, partition, ids, features, [image for part in parts for image in part.skipped])
    except OSError as fault:
        raise DeixisError(f"{folder}: cannot be written ({fault.strerror}); run it again to continue") from None
    return time.perf_counter() - start


def _pictures_of(corpus: Corpus) -> Pictures:
    pictures = corpus.pictures
    if pictures is None or not any(pictures.has(image) for image in corpus):
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'}: its pictures are missing")
    return pictures


def sample_hash(pictures: Pictures, images: Iterable[Image]) -> str:
    """SHA-256 of the first pictures' bytes, to distinguish copies of a corpus with other pixels."""
    digest = hashlib.sha256()
    for image in islice((image for image in images if pictures.has(image)), SAMPLED_PICTURES):
        try:
            data = pictures.read(image)
        except InputError:
            continue
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()
