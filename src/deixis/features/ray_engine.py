"""Extraction on a Ray cluster: the reader, mapper and writer of `deixis.features.extraction` as stages of Ray Data.

A row of the dataset is a partition. Tasks read and decode its pictures on any processor; they stream to an actor for
every GPU, or for every processor, which takes them through the network; tasks write what it gives. A partition is the
unit of everything: it is read, mapped and written by the same functions as on one machine, so its bytes are the same.
What is finished has its sidecar in the store. Ray begins a partition whose worker or machine died again elsewhere, and
the same command after the death of the driver does only what is missing. Pictures and the store lie on a file system
that all machines see.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from deixis.corpus import Corpus
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError
from deixis.features.extraction import PARTITION_SIZE, Report, batches, map_batch, plan_extraction, write_mapped
from deixis.features.layout import Plan
from deixis.features.picture_loading import Mapper, read_one
from deixis.features.store_writing import StoreWriter

#: Of a processor: an actor and some readers and writers fit on one, as both take a small part of the network's time.
ACTOR_CPUS, READER_CPUS, WRITER_CPUS = 0.7, 0.2, 0.1
#: Partitions that are sent to an actor: one is fetched while the other is mapped.
AT_A_TIME = 2
#: A partition as the stages hand it on: its number, and what was made of it so far, pickled.
Row = dict[str, Any]


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _unpacked(value: bytes) -> Any:
    return pickle.loads(value)  # noqa: S301 – the stage before packed it


class MakesMappers(Hashable, Protocol):
    """What workers make their mapper of; it travels to them in place of the mapper, and a worker makes one of each."""

    def reader(self) -> Mapper[Any]:
        """A mapper that prepares pictures, on a machine that may have no GPU."""

    def mapper(self) -> Mapper[Any]: ...


class Job(NamedTuple):
    """What every reader needs; it is put into the cluster once."""

    makes: MakesMappers
    pictures: Pictures


def read_partition(row: Row, job: Any) -> Row:
    """A task: the pictures of a partition, in order. `job` holds the reference of a `Job`, which is opened once."""
    pictures, reader = _opened(job[0])
    readings = [read_one(image, pictures, reader) for image in _unpacked(row["images"])]
    return {"number": row["number"], "readings": _packed(readings)}


@lru_cache(maxsize=1)
def _opened(reference: Any) -> tuple[Pictures, Mapper[Any]]:
    import ray

    job: Job = ray.get(reference)
    reader = job.makes.reader()
    reader.begin_thread()
    return job.pictures, reader


class Network:
    """An actor: takes partitions through the mapper one by one, in one thread."""

    def __init__(self, makes: MakesMappers) -> None:
        self._mapper = makes.mapper()
        self._running = ExitStack()
        self._running.enter_context(self._mapper.running())

    def __call__(self, row: Row) -> Row:
        self._mapper.begin_thread()
        readings = _unpacked(row["readings"])
        mapped = [map_batch(batch, self._mapper) for batch in batches(readings, self._mapper.batch_size)]
        ids = [reading.image.id for reading in readings]
        return {"number": row["number"], "mapped": _packed((ids, mapped))}


def write_one(row: Row, folder: Path, plan: Plan) -> Row:
    """A task: a partition into the store; gives how many images it has, and the seconds of each stage."""
    number = int(row["number"])
    ids, mapped = _unpacked(row["mapped"])
    # Of the ids of the store only those of the partition are sent.
    seconds = write_mapped(folder, plan, number, dict(zip(plan.items(number), ids, strict=True)), mapped)
    return {
        "images": len(ids),
        "read": sum(part.read_seconds for part in mapped),
        "map": sum(part.map_seconds for part in mapped),
        "write": seconds,
    }


def extract_on_ray(
    corpus: Corpus,
    makes: MakesMappers,
    out: str | Path,
    *,
    address: str | None = None,
    gpu: bool = False,
    provenance: Mapping[str, Any] | None = None,
    partition_size: int = PARTITION_SIZE,
    readers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """`extract` on a cluster, with the same outcome.

    Args:
        corpus: whose images, all of them.
        makes: the mapper's maker.
        out: the store's folder, which all machines see under this name.
        address: of the cluster; without one, a cluster of this machine alone is started, unless one is connected.
        gpu: whether each actor has a GPU of its own; else each has a processor.
        provenance: what else to record of the features' origin, beside the mapper's own.
        partition_size: images in a partition.
        readers: partitions that are decoded at a time; as many as the cluster has processors where not given.
        progress: called with the number of images done so far and of all images.
        say: told before a cluster of this machine alone is started.
    """
    ray = _import_ray()
    start = time.perf_counter()
    ids = [image.id for image in corpus]
    pictures, plan = plan_extraction(corpus, makes.reader(), provenance, partition_size)
    with StoreWriter(Path(out).absolute(), plan, ids) as store:
        pending = store.pending()
        images = sum(len(plan.items(number)) for number in pending)
        seconds = dict.fromkeys(("read", "map", "write"), 0.0)
        done = found = plan.images - images
        progress(done, plan.images)
        if pending:
            with _connected(ray, address, say), _told_in_one_line(ray):
                for row in _partitions(ray, corpus, Job(makes, pictures), store, gpu, readers).iter_rows():
                    done += row["images"]
                    for stage in seconds:
                        seconds[stage] += row[stage]
                    progress(done, plan.images)
        manifest = store.finish()
    return Report(plan, manifest, images, found, seconds | {"all": time.perf_counter() - start})


def _partitions(ray: Any, corpus: Corpus, job: Job, store: StoreWriter, gpu: bool, readers: int | None) -> Any:
    """The dataset of pending partitions, read, mapped and written; nothing is done before its rows are asked for."""
    resources = ray.cluster_resources()
    processors = max(1, int(resources.get("CPU", 1)))
    actors = int(resources.get("GPU", 0)) if gpu else processors
    if not actors:
        raise DeixisError("no machine of the Ray cluster has a GPU; use --device cpu")
    pending = store.pending()
    actors = min(actors, len(pending))
    rows = [
        {"number": number, "images": _packed([corpus.images[item] for item in store.plan.items(number)])}
        for number in pending
    ]
    # The pool shrinks once all partitions are with actors: so there is room for one to begin again, whose machine died.
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=AT_A_TIME
    )
    return (
        ray.data.from_items(rows, override_num_blocks=len(rows))
        .map(
            read_partition,
            fn_kwargs={"job": [ray.put(job)]},
            concurrency=min(readers or processors, len(pending)),
            num_cpus=READER_CPUS,
        )
        .map(
            Network,
            fn_constructor_args=(job.makes,),
            compute=pool,
            num_cpus=ACTOR_CPUS,
            num_gpus=int(gpu),
        )
        .map(
            write_one,
            fn_kwargs={"folder": store.folder, "plan": store.plan},
            num_cpus=WRITER_CPUS,
        )
    )


@contextmanager
def _told_in_one_line(ray: Any) -> Iterator[None]:
    try:
        yield
    except Exception as fault:
        cause: BaseException | None = fault
        while cause is not None:
            if isinstance(cause, DeixisError):
                raise DeixisError(str(cause)) from None
            cause = getattr(cause, "cause", None) or cause.__cause__
        if isinstance(fault, ray.exceptions.RayActorError):
            raise DeixisError(f"a worker could not begin: {_last_line(fault)}") from None
        if isinstance(fault, ray.data.exceptions.ExecutionTimeoutError):
            # What ends its worker is begun again as long as others are finished.
            raise DeixisError(
                "the last partitions are not finished: they may need more memory than a machine has (see Ray's logs); "
                "run the same again to go on"
            ) from None
        raise


def _last_line(fault: BaseException) -> str:
    return [line for line in str(fault).splitlines() if line.strip()][-1].strip()


@contextmanager
def _connected(ray: Any, address: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """A cluster, and Ray Data that keeps its own progress to itself."""
    connected = ray.is_initialized()
    if not connected:
        if address is None and "RAY_ADDRESS" not in os.environ:
            say("starting Ray on this machine alone; --address takes a cluster's …")
        try:
            # Workers run this very program: the environment of the machines is the person's to prepare.
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=None if address else False,
            )
        except (ConnectionError, ValueError) as fault:
            raise DeixisError(f"no Ray cluster at {address!r} ({_last_line(fault)})") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.raise_original_map_exception = True
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        if not connected:
            ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise DeixisError("the engine `ray` needs Ray: pip install 'deixis[ray]'") from None
    return ray
