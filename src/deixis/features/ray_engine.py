"""Extraction on a Ray cluster: the reader, mapper and writer of `deixis.features.extraction`, on many machines.

Tasks read and decode the pictures of a partition on any processor; an actor for every GPU, or for every processor,
takes what they read through the network and writes the partition while the next is mapped. A partition is the unit of
everything: it is read, mapped and written by the same functions as on one machine, so its bytes are the same. What is
finished has its sidecar in the store. A partition whose worker or machine died is begun again elsewhere, and the same
command after the death of the driver does only what is missing. Pictures and the store lie on a file system that all
machines see.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

from deixis.corpus import Corpus, Image
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError
from deixis.features.extraction import PARTITION_SIZE, Report, batches, map_batch, plan_extraction, write_mapped
from deixis.features.layout import Plan
from deixis.features.reading import Mapper, Reading, read_one
from deixis.features.writing import StoreWriter

#: Of a processor: an actor and a reader fit on one, as decoding takes a small part of the time of the network.
ACTOR_CPUS, READER_CPUS = 0.8, 0.2
#: Partitions that an actor has at a time: one is written while the next is mapped.
AT_A_TIME = 2
#: A partition, or an actor's start, that ends its process so often is not tried again.
DEATHS = 5


class MakesMappers(Hashable, Protocol):
    """What workers make their mapper of; it travels to them in place of the mapper, and a worker makes one of each."""

    def reader(self) -> Mapper[Any]:
        """A mapper that prepares pictures, on a machine that may have no GPU."""

    def mapper(self) -> Mapper[Any]: ...


class Outcome(NamedTuple):
    images: int
    read_seconds: float
    map_seconds: float
    write_seconds: float


class Network:
    """An actor: takes partitions through the mapper one by one, in one thread, and writes each when it is mapped."""

    def __init__(self, makes: MakesMappers, folder: Path, plan: Plan) -> None:
        self._mapper, self._folder, self._plan = makes.mapper(), folder, plan
        self._one_at_a_time = Lock()
        self._running = ExitStack()
        self._running.enter_context(self._mapper.running())

    def ready(self) -> None:
        """Answers when the mapper is made."""

    def extract(self, number: int, ids: Sequence[str], readings: Sequence[Reading[Any]]) -> Outcome:
        with self._one_at_a_time:
            self._mapper.begin_thread()
            mapped = [map_batch(batch, self._mapper) for batch in batches(readings, self._mapper.batch_size)]
        # Of the ids of the store only those of the partition are sent.
        places = dict(zip(self._plan.items(number), ids, strict=True))
        seconds = write_mapped(self._folder, self._plan, number, places, mapped)
        return Outcome(
            len(ids), sum(part.read_seconds for part in mapped), sum(part.map_seconds for part in mapped), seconds
        )


class Job(NamedTuple):
    """What every reader needs; it is put into the cluster once."""

    makes: MakesMappers
    pictures: Pictures


def read_partition(job: Any, images: Sequence[Image]) -> list[Reading[Any]]:
    """A task: the pictures of a partition, in order. `job` holds the reference of a `Job`, which is opened once."""
    pictures, reader = _opened(job[0])
    return [read_one(image, pictures, reader) for image in images]


@lru_cache(maxsize=1)
def _opened(reference: Any) -> tuple[Pictures, Mapper[Any]]:
    import ray

    job: Job = ray.get(reference)
    reader = job.makes.reader()
    reader.begin_thread()
    return job.pictures, reader


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
            connected = ray.is_initialized()
            if not connected:
                _connect(ray, address)
            try:
                running = _Running(ray, corpus, Job(makes, pictures), store, gpu=gpu, readers=readers)
                for outcome in running.partitions(pending):
                    done += outcome.images
                    for stage in seconds:
                        seconds[stage] += getattr(outcome, f"{stage}_seconds")
                    progress(done, plan.images)
            finally:
                if not connected:
                    ray.shutdown()
        manifest = store.finish()
    return Report(plan, manifest, images, found, seconds | {"all": time.perf_counter() - start})


class _Running:
    """The driver's view of a run: what is read, what is mapped, and who is alive."""

    def __init__(
        self, ray: Any, corpus: Corpus, job: Job, store: StoreWriter, *, gpu: bool, readers: int | None
    ) -> None:
        self._ray, self._corpus, self._store = ray, corpus, store
        resources = ray.cluster_resources()
        processors = max(1, int(resources.get("CPU", 1)))
        actors = int(resources.get("GPU", 0)) if gpu else processors
        if not actors:
            raise DeixisError("no machine of the Ray cluster has a GPU; use --device cpu")
        self._actors = min(actors, len(store.pending()))
        self._readers = readers or processors
        self._job = [ray.put(job)]
        self._read = ray.remote(read_partition).options(
            num_cpus=READER_CPUS, max_retries=-1, scheduling_strategy="SPREAD"
        )
        self._network = ray.remote(Network).options(
            num_cpus=ACTOR_CPUS, num_gpus=int(gpu), max_concurrency=AT_A_TIME, scheduling_strategy="SPREAD"
        )
        self._arguments = (job.makes, store.folder, store.plan)
        #: By the reference that will tell of it: partitions that are read, actors that begin, partitions at an actor.
        self._reading: dict[Any, int] = {}
        self._beginning: dict[Any, Any] = {}
        self._mapping: dict[Any, tuple[Any, int]] = {}
        #: Decoded partitions that wait for an actor, and actors that wait for one (as often as they may take one).
        self._decoded: deque[tuple[int, Any]] = deque()
        self._free: deque[Any] = deque()
        self._deaths: Counter[int | str] = Counter()

    def partitions(self, pending: Sequence[int]) -> Any:
        """Extract partitions and give what is told of each, as they are finished."""
        waiting = deque(pending)
        for _ in range(self._actors):
            self._begin_actor()
        while waiting or self._reading or self._decoded or self._mapping:
            # Decoded pictures fill the memory of the cluster: no more than the actors will want soon.
            while waiting and len(self._reading) + len(self._decoded) < self._readers + self._actors:
                self._begin_reading(waiting.popleft())
            while self._decoded and self._free:
                self._begin_mapping()
            told, _ = self._ray.wait([*self._reading, *self._beginning, *self._mapping])
            for reference in told:
                if reference in self._reading:
                    self._decoded.append((self._reading.pop(reference), reference))
                elif reference in self._beginning:
                    self._end_beginning(reference)
                else:
                    actor, number = self._mapping.pop(reference)
                    outcome = self._outcome(reference, actor, number)
                    if outcome is None:
                        waiting.appendleft(number)
                    else:
                        yield outcome

    def _begin_reading(self, number: int) -> None:
        images = [self._corpus.images[item] for item in self._store.plan.items(number)]
        self._reading[self._read.remote(self._job, images)] = number

    def _begin_actor(self) -> None:
        actor = self._network.remote(*self._arguments)
        self._beginning[actor.ready.remote()] = actor

    def _end_beginning(self, reference: Any) -> None:
        actor = self._beginning.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayActorError as fault:
            if fault.actor_init_failed:
                raise DeixisError(f"a worker could not begin: {_last_line(fault)}") from None
            self._count_death("an actor's start")
            self._begin_actor()
        else:
            self._free.extend([actor] * AT_A_TIME)

    def _begin_mapping(self) -> None:
        (number, reference), actor = self._decoded.popleft(), self._free.popleft()
        ids = [self._corpus.images[item].id for item in self._store.plan.items(number)]
        self._mapping[actor.extract.remote(number, ids, reference)] = (actor, number)

    def _outcome(self, reference: Any, actor: Any, number: int) -> Outcome | None:
        """What an actor tells of a partition, or nothing where it died; another then takes its place."""
        faults = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except faults.RayTaskError as fault:
            if isinstance(fault.cause, DeixisError):
                raise DeixisError(str(fault.cause)) from None
            raise
        except faults.RayActorError:
            self._count_death(number)
            if actor in self._free or not any(actor is other for other, _ in self._mapping.values()):
                self._begin_actor()
            self._free = deque(other for other in self._free if other is not actor)
            return None
        except faults.RayError:
            # What it was to work on is lost; the actor is well.
            self._count_death(number)
            self._free.append(actor)
            return None
        self._free.append(actor)
        return outcome

    def _count_death(self, what: int | str) -> None:
        self._deaths[what] += 1
        if self._deaths[what] > DEATHS:
            named = f"partition {what}" if isinstance(what, int) else what
            raise DeixisError(
                f"{named} ended its worker {DEATHS + 1} times; there may be too little memory for it (see Ray's logs)"
            )


def _last_line(fault: BaseException) -> str:
    return [line for line in str(fault).splitlines() if line.strip()][-1].strip()


def _connect(ray: Any, address: str | None) -> None:
    try:
        # Workers run this very program: the environment of the machines is the person's to prepare.
        ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=None if address else False
        )
    except (ConnectionError, ValueError) as fault:
        raise DeixisError(f"no Ray cluster at {address!r} ({_last_line(fault)})") from None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise DeixisError("the engine `ray` needs Ray: pip install 'deixis[ray]'") from None
    return ray
