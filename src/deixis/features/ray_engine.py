"""Extraction on a Ray cluster: the reader, mapper and writer of `deixis.features.extraction` as stages of Ray Data.

A row of the dataset is a partition. Tasks read and decode its pictures on any CPU; an actor per GPU, or per CPU, runs
the network; tasks write the features. A partition is read, mapped and written by the same functions as on one machine,
so its bytes are the same. A finished partition has its sidecar in the store. If a worker or machine dies, Ray starts
its partition again elsewhere; if the driver dies, the same command continues. Pictures and store must be on a file
system that all machines share.
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

#: Shares of a CPU: an actor with some readers and writers fits on one, since these take little time.
ACTOR_CPUS, READER_CPUS, WRITER_CPUS = 0.7, 0.2, 0.1
#: Partitions in flight per actor: one is fetched while another is mapped.
AT_A_TIME = 2
#: A partition between stages: its number, and the pickled result of the last stage.
Row = dict[str, Any]


def _packed(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _unpacked(value: bytes) -> Any:
    return pickle.loads(value)  # noqa: S301 – pickled by the stage before


class MakesMappers(Hashable, Protocol):
    """Sent to workers instead of the mapper; each worker builds its own."""

    def reader(self) -> Mapper[Any]:
        """A mapper that only prepares pictures, and needs no GPU."""

    def mapper(self) -> Mapper[Any]: ...


class Job(NamedTuple):
    """What all readers need; stored in the cluster once."""

    makes: MakesMappers
    pictures: Pictures


def read_partition(row: Row, job: Any) -> Row:
    """Task: read the pictures of a partition, in order. `job` contains the reference of a `Job`."""
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
    """Actor: maps one partition after the other, in one thread."""

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
    """Task: write a partition; returns its number of images and the seconds of each stage."""
    partition = int(row["number"])
    ids, mapped = _unpacked(row["mapped"])
    # Only the ids of the partition are sent.
    seconds = write_mapped(folder, plan, partition, dict(zip(plan.items(partition), ids, strict=True)), mapped)
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
    """`extract` on a cluster, with the same result.

    Args:
        corpus: all its images are used.
        makes: builds the mapper.
        out: the store's folder, under a path that all machines share.
        address: of the cluster; by default the connected one, or a new one on this machine.
        gpu: one actor per GPU; otherwise one per CPU.
        provenance: recorded beside that of the mapper.
        partition_size: images per partition.
        readers: partitions that are decoded at a time; by default one per CPU of the cluster.
        progress: called with the number of finished images and of all images.
        say: called with a message before a cluster on this machine is started.
    """
    ray = _import_ray()
    start = time.perf_counter()
    ids = [image.id for image in corpus]
    pictures, plan = plan_extraction(corpus, makes.reader(), provenance, partition_size)
    with StoreWriter(Path(out).absolute(), plan, ids) as store:
        pending = store.pending()
        images = sum(len(plan.items(partition)) for partition in pending)
        seconds = dict.fromkeys(("read", "map", "write"), 0.0)
        done = stored = plan.images - images
        progress(done, plan.images)
        if pending:
            with _connected(ray, address, say), _told_in_one_line(ray):
                for row in _partitions(ray, corpus, Job(makes, pictures), store, gpu, readers).iter_rows():
                    done += row["images"]
                    for stage in seconds:
                        seconds[stage] += row[stage]
                    progress(done, plan.images)
        manifest = store.finish()
    return Report(plan, manifest, images, stored, seconds | {"all": time.perf_counter() - start})


def _partitions(ray: Any, corpus: Corpus, job: Job, store: StoreWriter, gpu: bool, readers: int | None) -> Any:
    """The dataset of pending partitions, read, mapped and written; it is lazy."""
    resources = ray.cluster_resources()
    cores = max(1, int(resources.get("CPU", 1)))
    actors = int(resources.get("GPU", 0)) if gpu else cores
    if not actors:
        raise DeixisError("no machine of the Ray cluster has a GPU; use --device cpu")
    pending = store.pending()
    actors = min(actors, len(pending))
    rows = [
        {"number": partition, "images": _packed([corpus.images[item] for item in store.plan.items(partition)])}
        for partition in pending
    ]
    # The pool shrinks when all partitions are assigned, which leaves room to restart one whose machine died.
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=AT_A_TIME
    )
    return (
        ray.data.from_items(rows, override_num_blocks=len(rows))
        .map(
            read_partition,
            fn_kwargs={"job": [ray.put(job)]},
            concurrency=min(readers or cores, len(pending)),
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
            raise DeixisError(f"a worker could not start: {_last_line(fault)}") from None
        if isinstance(fault, ray.data.exceptions.ExecutionTimeoutError):
            # Ray restarts a partition that kills its worker as long as others make progress.
            raise DeixisError(
                "the last partitions are not finished: they may need more memory than a machine has (see Ray's logs); "
                "run the same command again to continue"
            ) from None
        raise


def _last_line(fault: BaseException) -> str:
    return [line for line in str(fault).splitlines() if line.strip()][-1].strip()


@contextmanager
def _connected(ray: Any, address: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """A connection to a cluster, without the progress bars of Ray Data."""
    connected = ray.is_initialized()
    if not connected:
        if address is None and "RAY_ADDRESS" not in os.environ:
            say("starting Ray on this machine; use --address for a cluster …")
        try:
            # Workers run this program; the machines' environments must be prepared by the user.
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
