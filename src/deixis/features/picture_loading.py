"""The reader of an extraction: several threads or processes decode pictures, in order and at most two batches ahead.

Processes are used if the mapper asks for it. They are forked, so they share the mapper and its networks without copies,
and end with the process that forked them.
"""

from __future__ import annotations

import ctypes
import pickle
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, pairwise
from mmap import mmap
from multiprocessing import get_context
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deixis.corpus import Image
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError, InputError
from deixis.features.layout import ArraySpec
from deixis.features.store_writing import Features

#: Pictures per task of a reading process, and bytes of shared memory for their pixels; larger ones are sent through a
#: pipe, which is slower.
SHARE, PLACE = 4, 8 << 20
#: prctl(2): the signal that a process gets when the thread that forked it ends.
_PR_SET_PDEATHSIG = 1


class Prepared(Protocol):
    """A decoded picture, ready for the network. Pictures of one shape can share a batch."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Picture = TypeVar("Picture", bound=Prepared)


class Mapper(Protocol[Picture]):
    """Computes features. The result for a batch depends on nothing but the batch."""

    @property
    def arrays(self) -> Mapping[str, ArraySpec]:
        """The arrays of each image."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Extractor, hash of the weights, preprocessing: all that determines the features, as JSON values."""

    @property
    def batch_size(self) -> int:
        """Pictures of one shape per batch."""

    @property
    def threads(self) -> int:
        """Number of threads that call it at the same time."""

    @property
    def read_apart(self) -> bool:
        """Whether pictures are prepared in processes: with a GPU, decoding threads would keep the thread that launches
        kernels waiting for the interpreter lock."""

    def running(self) -> AbstractContextManager[None]:
        """A context around the whole extraction."""

    def begin_thread(self) -> None:
        """Called first in each thread that prepares pictures or maps batches."""

    def prepare(self, image: Image, data: bytes) -> Picture:
        """Decode and resize one picture file, in a reader's thread or process; `InputError` for a broken one."""

    def __call__(self, batch: Sequence[Picture]) -> Sequence[Features]:
        """The features of pictures of one shape, in the same order."""


@dataclass(frozen=True)
class Reading(Generic[Picture]):
    """An image as the reader hands it on: its picture, or None and the reason; and how long reading took."""

    image: Image
    picture: Picture | None
    reason: str
    seconds: float


def read(
    pictures: Pictures, mapper: Mapper[Picture], images: Iterable[Image], workers: int
) -> Generator[Reading[Picture]]:
    """Pictures in the order of the images, decoded at most two batches ahead."""
    if mapper.read_apart and sys.platform == "linux":
        yield from _read_apart(pictures, mapper, images, workers)
        return
    waiting: deque[Future[Reading[Picture]]] = deque()
    pool = ThreadPoolExecutor(workers, "deixis-reader", mapper.begin_thread)
    try:
        for image in images:
            waiting.append(pool.submit(read_one, image, pictures, mapper))
            if len(waiting) > 2 * mapper.batch_size + workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def read_one(image: Image, pictures: Pictures, mapper: Mapper[Picture]) -> Reading[Picture]:
    """Read one picture, or give the reason why it cannot be read."""
    start = time.perf_counter()
    picture, reason = None, ""
    try:
        picture = mapper.prepare(image, pictures.read(image))
    except InputError as fault:
        # Without the path, which may differ between machines.
        reason = fault.problem
    return Reading(image, picture, reason, time.perf_counter() - start)


def _read_apart(
    pictures: Pictures, mapper: Mapper[Picture], images: Iterable[Image], workers: int
) -> Generator[Reading[Picture]]:
    """`read` with processes, which get a few pictures per task."""
    images = list(images)
    # Forking a process takes a while when a GPU is in use.
    workers = max(1, min(workers, -(-len(images) // SHARE)))
    ahead = 2 * mapper.batch_size // SHARE + workers
    # One slot per task in flight; a slot is free again when its task has been received.
    memory = mmap(-1, (ahead + 1) * PLACE)
    # Arguments of the initializer are inherited by forked processes, not pickled.
    pool = ProcessPoolExecutor(workers, get_context("fork"), _begin_process, (pictures, mapper, memory))
    waiting: deque[Future[_Sent]] = deque()
    rest = iter(images)
    offsets = cycle(range(0, len(memory), PLACE))
    try:
        with warnings.catch_warnings():
            # Python warns about forking with threads, whose locks would stay locked; readers use none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(int)  # The first task forks all processes.
        while share := list(islice(rest, SHARE)):
            waiting.append(pool.submit(_read_share, share, next(offsets)))
            if len(waiting) > ahead:
                yield from _received(waiting.popleft().result(), memory)
        while waiting:
            yield from _received(waiting.popleft().result(), memory)
    except BrokenProcessPool:
        raise DeixisError("a process that read pictures was killed, perhaps for lack of memory; run it again") from None
    finally:
        pool.shutdown(cancel_futures=True)
        memory.close()


class _Sent(NamedTuple):
    """Readings as a process sends them: pickled, except for the pixels, which are in shared memory from `start` on."""

    pickled: bytes
    start: int
    lengths: list[int]


#: In a reading process: pictures, mapper and shared memory.
_inherited: list[Any] = []


def _begin_process(pictures: Pictures, mapper: Mapper[Any], memory: mmap) -> None:
    # Otherwise it would outlive its parent and keep the lock of the store.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if torch := sys.modules.get("torch"):
        # Threads are not inherited: torch would wait for its own forever.
        torch.set_num_threads(1)
    mapper.begin_thread()
    # A copy opens archives again: file positions would be shared by all processes.
    _inherited[:] = deepcopy(pictures), mapper, memory


def _read_share(images: Sequence[Image], start: int) -> _Sent:
    pictures, mapper, memory = _inherited
    readings = [read_one(image, pictures, mapper) for image in images]
    apart: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(readings, 5, buffer_callback=apart.append)
    pixels = [picture.raw() for picture in apart]
    if sum(map(len, pixels)) > PLACE:
        return _Sent(pickle.dumps(readings, 5), start, [])
    offset = start
    for part in pixels:
        memory[offset : offset + len(part)] = part
        offset += len(part)
    return _Sent(pickled, start, [len(picture) for picture in pixels])


def _received(sent: _Sent, memory: mmap) -> list[Reading[Any]]:
    ends = list(accumulate(sent.lengths, initial=sent.start))
    with memoryview(memory) as view:
        pixels = [bytearray(view[start:end]) for start, end in pairwise(ends)]
    # Pickled by this program's own processes.
    readings: list[Reading[Any]] = pickle.loads(sent.pickled, buffers=pixels)  # noqa: S301
    return readings
