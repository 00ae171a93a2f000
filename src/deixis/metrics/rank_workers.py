"""Ranking by several processes: each counts some of the tiles, and their counts are added.

The tiles are those of one process, and whole numbers add up in any order, so the ranks are the same. Arrays are not
sent: a memory-mapped one is opened by every process, another is first written to a temporary file. Each process keeps
a tile at a time, and sends back counts of the rows, or columns, that are its own and of all on the inner side.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deixis.errors import DeixisError
from deixis.metrics.ranks import count_off_diagonal
from deixis.metrics.score_blocks import Chosen, EmbeddingScores, Floats, Integers, MatrixScores, Scores

#: Pieces of work for each process, so that none waits long for the last.
PIECES = 4
#: Rows that are copied at a time.
_ROWS = 4096
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: Of each chunk of a piece on the outer side, and of the whole inner side.
Counts = tuple[list[Integers], npt.NDArray[np.unsignedinteger]]


class Mapped(NamedTuple):
    """Where an array lies in a file."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def opened(self) -> Any:
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


class _Work(NamedTuple):
    scores: Scores
    chunks: Sequence[tuple[Chosen, Chosen]]
    reach: tuple[Any, Any]


def count_by_workers(
    scores: Scores,
    chunks: Sequence[tuple[Chosen, Chosen]],
    reach: tuple[Floats, Floats],
    counts: tuple[Integers, Integers],
    workers: int,
) -> None:
    """Add to `counts` how many scores beside the diagonal reach what is asked for, by row and by column."""
    if not isinstance(scores, EmbeddingScores | MatrixScores):
        raise DeixisError("scores that a function gives are ranked by one process: give no workers")
    pieces = [range(first, len(chunks), workers * PIECES) for first in range(min(len(chunks), workers * PIECES))]
    with tempfile.TemporaryDirectory(prefix="deixis-ranking-") as folder, _threads(workers):
        limits = (mapped(reach[0], Path(folder)), mapped(reach[1], Path(folder)))
        work = _Work(scores.with_arrays(lambda array: mapped(array, Path(folder))), chunks, limits)
        # Started anew: a process that has threads cannot be forked safely.
        with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (work,)) as pool:
            for piece, (found, inner) in zip(pieces, pool.map(_count_piece, pieces), strict=True):
                outer = _outer(scores)
                counts[1 - outer][:] += inner
                for number, own in zip(piece, found, strict=True):
                    counts[outer][chunks[number][outer]] += own


def _outer(scores: Scores) -> int:
    return 0 if scores.rows_outermost else 1


def mapped(array: Any, folder: Path) -> Mapped:
    """An array that other processes can open: where it lies, or a copy in a file of the folder."""
    # A part of a mapped array has the array, not the file, for its base.
    base: Any = array.base
    if isinstance(array, np.memmap) and isinstance(base, mmap.mmap) and array.flags.c_contiguous:
        return Mapped(str(array.filename), array.dtype.str, array.shape, array.offset)
    path = folder / str(len(list(folder.iterdir())))
    copy = np.memmap(path, array.dtype, "w+", shape=array.shape)
    for start in range(0, len(array), _ROWS):
        copy[start : start + _ROWS] = array[start : start + _ROWS]
    copy.flush()
    return Mapped(str(path), array.dtype.str, array.shape, 0)


@contextmanager
def _threads(workers: int) -> Iterator[None]:
    """Processes that start inside share the processors: matrix products in each have their part of the threads."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ |= dict.fromkeys(_THREADS, str(max(1, (os.cpu_count() or 1) // workers)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_work: _Work


def _begin(work: _Work) -> None:
    global _work
    assert isinstance(work.scores, EmbeddingScores | MatrixScores)
    reach = (work.reach[0].opened(), work.reach[1].opened())
    _work = work._replace(scores=work.scores.with_arrays(lambda array: array.opened()), reach=reach)


def _count_piece(piece: range) -> Counts:
    # Pages of zeros that nothing is added to take no memory: on the outer side, all but the piece's own.
    counts = (np.zeros(len(_work.reach[0]), np.int64), np.zeros(len(_work.reach[1]), np.int64))
    with ThreadPoolExecutor(1) as pool:
        count_off_diagonal(_work.scores, _work.chunks, piece, _work.reach, counts, pool)
    outer = _outer(_work.scores)
    narrowest = np.min_scalar_type(len(counts[outer]))
    return [counts[outer][_work.chunks[number][outer]] for number in piece], counts[1 - outer].astype(narrowest)
