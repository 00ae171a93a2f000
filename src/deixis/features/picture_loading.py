"""The reader of an extraction: pictures decoded in order, by several at a time, and never far ahead of who takes them.

Readers are threads, or processes where the mapper wants that: they are forked, so they have the mapper and its networks
without copies, and end with the process that forked them.
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

#: Pictures that a reading process is given at a time, and bytes of shared memory that their pixels are sent through;
#: what needs more is sent through a pipe, which is slower.
SHARE, PLACE = 4, 8 << 20
#: prctl(2): the signal that a process is sent when the thread that forked it ends.
_PR_SET_PDEATHSIG = 1


class Prepared(Protocol):
    """A decoded picture, ready for the network. Those of one shape can share a batch."""

    @property
    def shape(self) -> tuple[int, ...]: ...


Picture = TypeVar("Picture", bound=Prepared)


class Mapper(Protocol[Picture]):
    """What makes features. Its outcome for a batch depends on the batch alone."""

    @property
    def arrays(self) -> Mapping[str, ArraySpec]:
        """The arrays it makes of each image."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Extractor, weights' hash, preprocessing: all that decides its outcome, as plain JSON values."""

    @property
    def batch_size(self) -> int:
        """How many pictures of one shape it takes at once."""

    @property
    def threads(self) -> int:
        """How many threads may call it at the same time."""

    @property
    def read_apart(self) -> bool:
        """Whether pictures are better prepared in processes: beside a GPU, which a thread keeps at work only as long as
        it need not wait for Python's lock."""

    def running(self) -> AbstractContextManager[None]:
        """Entered around all its work."""

    def begin_thread(self) -> None:
        """Called in each thread that will prepare pictures or map batches, before the first."""

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
    """The reader: pictures in the order of the images, at most two batches ahead."""
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
    """One picture, or why there is none."""
    start = time.perf_counter()
    picture, reason = None, ""
    try:
        picture = mapper.prepare(image, pictures.read(image))
    except InputError as fault:
        # Without the file's path, which differs between machines that read the same pictures.
        reason = fault.problem
    return Reading(image, picture, reason, time.perf_counter() - start)


def _read_apart(
    pictures: Pictures, mapper: Mapper[Picture], images: Iterable[Image], workers: int
) -> Generator[Reading[Picture]]:
    """`read` with processes, which are given a few pictures at a time."""
    images = list(images)
    # Each takes a while to fork beside a GPU.
    workers = max(1, min(workers, -(-len(images) // SHARE)))
    ahead = 2 * mapper.batch_size // SHARE + workers
    # As many places as there are shares under way: a place is free again when its share is handed on.
    memory = mmap(-1, (ahead + 1) * PLACE)
    # What is given to the first function of a forked process is inherited, not sent.
    pool = ProcessPoolExecutor(workers, get_context("fork"), _begin_process, (pictures, mapper, memory))
    waiting: deque[Future[_Sent]] = deque()
    rest = iter(images)
    place = cycle(range(0, len(memory), PLACE))
    try:
        with warnings.catch_warnings():
            # Python warns of forking beside threads, whose locks would stay locked; readers take none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(int)  # All processes are forked for the first work.
        while share := list(islice(rest, SHARE)):
            waiting.append(pool.submit(_read_share, share, next(place)))
            if len(waiting) > ahead:
                yield from _received(waiting.popleft().result(), memory)
        while waiting:
            yield from _received(waiting.popleft().result(), memory)
    except BrokenProcessPool:
        raise DeixisError("a process that read pictures was ended, for want of memory perhaps; run it again") from None
    finally:
        pool.shutdown(cancel_futures=True)
        memory.close()


class _Sent(NamedTuple):
    """Readings as a process sends them: pickled, but for the pixels, which lie in shared memory from `start` on."""

    pickled: bytes
    start: int
    lengths: list[int]


#: What a process reads with: pictures, mapper and shared memory.
_inherited: list[Any] = []


def _begin_process(pictures: Pictures, mapper: Mapper[Any], memory: mmap) -> None:
    # Else it would outlive who forked it, and keep the lock of its store.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if torch := sys.modules.get("torch"):
        # Threads are not inherited, and a network's own would be waited for in vain.
        torch.set_num_threads(1)
    mapper.begin_thread()
    # A copy opens archives anew: their place in the file would be shared by all.
    _inherited[:] = deepcopy(pictures), mapper, memory


def _read_share(images: Sequence[Image], start: int) -> _Sent:
    pictures, mapper, memory = _inherited
    readings = [read_one(image, pictures, mapper) for image in images]
    apart: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(readings, 5, buffer_callback=apart.append)
    pixels = [each.raw() for each in apart]
    if sum(map(len, pixels)) > PLACE:
        return _Sent(pickle.dumps(readings, 5), start, [])
    place = start
    for each in pixels:
        memory[place : place + len(each)] = each
        place += len(each)
    return _Sent(pickled, start, [len(each) for each in pixels])


def _received(sent: _Sent, memory: mmap) -> list[Reading[Any]]:
    ends = list(accumulate(sent.lengths, initial=sent.start))
    with memoryview(memory) as view:
        pixels = [bytearray(view[start:end]) for start, end in pairwise(ends)]
    # From this program's own processes.
    readings: list[Reading[Any]] = pickle.loads(sent.pickled, buffers=pixels)  # noqa: S301
    return readings
