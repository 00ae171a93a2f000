"""A corpus whose pictures are a few bytes, and a mapper whose features anyone can recompute.

Also a program that extracts slowly, to be killed, or that kills itself at a given step towards the disk:
`python -m tests.features.fakes OUT IMAGES SECONDS [STEP]`; with "apart" for a step it reads in processes.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from deixis.corpus import Corpus, Image, make_image
from deixis.corpus.pictures import RenderedPictures
from deixis.errors import InputError
from deixis.features.extraction import extract
from deixis.features.layout import ArraySpec

ARRAYS = {
    "image": ArraySpec((6,)),
    "regions": ArraySpec((4,), ragged=True),
    "boxes": ArraySpec((4,), "float32", ragged=True),
}
BROKEN = b"broken"


def make_corpus(images: int, *, broken: Sequence[int] = (), salt: str = "") -> Corpus:
    ids = [f"image {number}" for number in range(images)]

    def render(image_id: str) -> bytes:
        return BROKEN if int(image_id.split()[1]) in broken else f"{salt}{image_id}".encode()

    pictures = RenderedPictures(ids, render)
    return Corpus((make_image(image_id) for image_id in ids), name="fake", pictures=pictures)


def features_of(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """What the fake mapper makes of a picture: random, but always the same; 0 to 5 regions."""
    generator = np.random.default_rng(list(sha256(data).digest()))
    regions = int(generator.integers(0, 6))
    return {
        "image": generator.normal(size=6).astype(np.float16),
        "regions": generator.normal(size=(regions, 4)).astype(np.float16),
        "boxes": generator.uniform(0, 100, size=(regions, 4)).astype(np.float32),
    }


@dataclass(frozen=True)
class FakePicture:
    data: bytes
    shape: tuple[int, ...]


class FakeMapper:
    arrays = ARRAYS
    threads = 2
    read_apart = False

    def __init__(self, *, batch_size: int = 4, seconds: float = 0.0, name: str = "fake") -> None:
        self.provenance = {"extractor": name, "weights_sha256": "0" * 64}
        self.batch_size, self.seconds = batch_size, seconds
        self.batches: list[list[bytes]] = []

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_thread(self) -> None:
        pass

    def prepare(self, image: Image, data: bytes) -> FakePicture:
        if data == BROKEN:
            raise InputError(f"/somewhere/{image.id}", "is not a picture")
        # Readers finish out of order.
        time.sleep(self.seconds * (data[-1] % 3) / 3)
        return FakePicture(data, (3, data[-1] % 3))

    def __call__(self, batch: Sequence[FakePicture]) -> list[dict[str, np.ndarray[Any, Any]]]:
        assert len({picture.shape for picture in batch}) == 1
        assert len(batch) <= self.batch_size
        time.sleep(self.seconds)
        self.batches.append([picture.data for picture in batch])
        # The batch leaves its trace, as rounding does in a real network: batches must be the same in every run.
        mark = np.float16(sum(picture.data[-1] for picture in batch) / 100)
        made = [features_of(picture.data) for picture in batch]
        return [{**item, "image": np.append(item["image"][:-1], mark)} for item in made]


@dataclass(frozen=True)
class FakeMaker:
    """Makes fake mappers wherever it is sent; those that fail, fail on every picture.

    Who finds the file `fatal` removes it, and ends its process as a lack of memory would; `deadly` does so at every try
    of one picture. Without weights no mapper can be made.
    """

    seconds: float = 0.0
    fails: bool = False
    fatal: str = ""
    deadly: bytes = b""
    weights: bool = True

    def reader(self) -> FakeMapper:
        return FakeMapper()

    def mapper(self) -> FakeMapper:
        if not self.weights:
            raise InputError("/somewhere/weights", "is not there")
        if self.deadly:
            return DeadlyMapper(self.deadly)
        if self.fatal:
            return DyingMapper(Path(self.fatal))
        return FailingMapper() if self.fails else FakeMapper(seconds=self.seconds)


class FailingMapper(FakeMapper):
    def __call__(self, batch: Sequence[FakePicture]) -> list[dict[str, np.ndarray[Any, Any]]]:
        return [{**item, "image": np.full(6, 1e6)} for item in super().__call__(batch)]


class DyingMapper(FakeMapper):
    def __init__(self, fatal: Path) -> None:
        super().__init__()
        self._fatal = fatal

    def __call__(self, batch: Sequence[FakePicture]) -> list[dict[str, np.ndarray[Any, Any]]]:
        if len(self.batches) == 3 and self._fatal.exists():
            self._fatal.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


class DeadlyMapper(FakeMapper):
    def __init__(self, deadly: bytes) -> None:
        super().__init__()
        self._deadly = deadly

    def __call__(self, batch: Sequence[FakePicture]) -> list[dict[str, np.ndarray[Any, Any]]]:
        if any(picture.data == self._deadly for picture in batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def die_at(step: int) -> None:
    """Kill this process just before its `step`-th sync or rename."""
    steps = itertools.count()
    for name in ("fsync", "replace"):

        def counted(*arguments: Any, _call: Any = getattr(os, name)) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return _call(*arguments)

        setattr(os, name, counted)


if __name__ == "__main__":
    out, images, seconds, *step = sys.argv[1:]
    mapper = FakeMapper(seconds=float(seconds))
    mapper.read_apart = step == ["apart"]
    if step and not mapper.read_apart:
        die_at(int(step[0]))
    print("ready", flush=True)
    extract(make_corpus(int(images), broken=[3]), mapper, out, partition_size=8, workers=3)
