"""Sources of scores to rank: a matrix, two sets of embeddings, or a function. Scores are computed block by block.

Higher is better. −inf is allowed (a pair that was masked out); NaN and +inf are refused, and the error names the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deixis.errors import DeixisError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: Some rows or columns: a slice with both ends where they are consecutive, else their indices.
Selection = slice | Integers
#: A block of scores, in float32 or float64.
Block = npt.NDArray[Any]

#: Default number of scores in a block: 32 MB in float32. Smaller blocks wait more often for the product's threads.
BLOCK_SIZE = 8_000_000


class ScoreError(DeixisError):
    """A score that cannot be ranked, and its place."""

    def __init__(self, problem: str, place: str) -> None:
        self.problem, self.place = problem, place
        super().__init__(f"{place}: {problem}")


class Scores(Protocol):
    """A matrix of scores that is computed block by block."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns."""

    @property
    def block_size(self) -> int:
        """The number of scores to compute at a time. A single group may exceed it."""

    @property
    def rows_outermost(self) -> bool:
        """Whether to compute all columns of some rows before other rows, or the other way round."""

    @property
    def slack(self) -> tuple[Floats, Floats]:
        """By row and by column: scores this far below a correct answer's still count as ties."""

    def block(self, rows: Selection, columns: Selection) -> Block:
        """The scores of some rows and columns, `(rows, columns)`; the next call may reuse the array."""


def tie_tolerance(scores: Scores) -> float:
    """The largest difference that counts as a tie: what rounding may do to equal embeddings; 0 for a matrix."""
    return max((float(side.max(initial=0.0)) for side in scores.slack), default=0.0)


class FunctionScores:
    """Scores computed by a function: `function(rows, columns)` for two slices returns an array `(rows, columns)`.

    It is called once per block. Groups must be consecutive: captions are listed image by image.
    """

    rows_outermost = True

    def __init__(
        self, function: Callable[[slice, slice], npt.ArrayLike], shape: tuple[int, int], block_size: int = BLOCK_SIZE
    ) -> None:
        self.function, self.shape, self.block_size = function, shape, block_size

    @property
    def slack(self) -> tuple[Floats, Floats]:
        return np.broadcast_to(0.0, self.shape[0]), np.broadcast_to(0.0, self.shape[1])

    def block(self, rows: Selection, columns: Selection) -> Block:
        if not (isinstance(rows, slice) and isinstance(columns, slice)):
            raise DeixisError("a scorer is called with slices: list the captions image by image")
        values = np.asarray(self.function(rows, columns))
        expected = (rows.stop - rows.start, columns.stop - columns.start)
        if values.shape != expected:
            raise DeixisError(f"the scorer gave an array of shape {values.shape}, not {expected}")
        return _checked(values.astype(_working_type(values.dtype), copy=False), rows, columns)


class MatrixScores:
    """Scores in an array. It may be memory-mapped: it is read in row blocks, one at a time."""

    rows_outermost = True

    def __init__(self, scores: npt.ArrayLike, block_size: int = BLOCK_SIZE) -> None:
        self.scores, self.block_size = np.asanyarray(scores), block_size
        if self.scores.ndim != 2:
            raise DeixisError(f"scores must be a matrix, not an array of shape {self.scores.shape}")
        self._type = _working_type(self.scores.dtype)
        self.shape = (self.scores.shape[0], self.scores.shape[1])

    @property
    def slack(self) -> tuple[Floats, Floats]:
        return np.broadcast_to(0.0, self.shape[0]), np.broadcast_to(0.0, self.shape[1])

    def block(self, rows: Selection, columns: Selection) -> Block:
        values = self.scores[rows][:, columns]
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size:
            _check_exact(values, rows, columns)
        return _checked(np.asarray(values, dtype=self._type), rows, columns)


class EmbeddingScores:
    """Cosines (dot products, with `normalize=False`) of two sets of embeddings, `(rows, dim)` and `(columns, dim)`.

    Only a block of scores and its embeddings are in memory, about `memory` bytes; both arrays may be memory-mapped. An
    embedding of zeros has a cosine of 0 with everything.

    The last bits of a product depend on its position in a block, so equal embeddings may get unequal scores. Scores
    within 2 √dim ε |row| |column| of a correct answer's therefore count as ties: the size of √dim rounding errors, 5e-6
    for cosines of 512 dimensions in float32. For dot products the largest norm is used for the other side.
    """

    def __init__(
        self, rows: npt.ArrayLike, columns: npt.ArrayLike, *, normalize: bool = True, memory: int = 128 << 20
    ) -> None:
        self._sides = (np.asanyarray(rows), np.asanyarray(columns))
        for name, side in zip(("first", "second"), self._sides, strict=True):
            if side.ndim != 2 or side.dtype.kind != "f":
                raise DeixisError(
                    f"the {name} embeddings must be a matrix of floats, not {side.dtype} of shape {side.shape}"
                )
        dimensions = [side.shape[1] for side in self._sides]
        if dimensions[0] != dimensions[1]:
            raise DeixisError(f"embeddings of {dimensions[0]} and of {dimensions[1]} dimensions cannot be compared")
        self._type = np.result_type(*(_working_type(side.dtype) for side in self._sides))
        self._normalize = normalize
        self.shape = (len(self._sides[0]), len(self._sides[1]))
        self.block_size = _size_within(memory, self.shape, dimensions[0], self._type.itemsize)
        # Embeddings of the outer side are normalized once, those of the inner side once per outer block.
        self.rows_outermost = self.shape[0] >= self.shape[1]
        self._norms = (self._measured(0), self._measured(1))
        largest = self._norms[0].max(initial=0.0) * self._norms[1].max(initial=0.0)
        if not normalize and largest > np.finfo(self._type).max:
            raise DeixisError(f"the norms of these embeddings are too large for dot products in {self._type}")
        self._prepared: list[tuple[Selection | None, Block]] = [(None, np.empty(0))] * 2
        self._buffer = np.empty(0, dtype=self._type)

    @property
    def slack(self) -> tuple[Floats, Floats]:
        unit = 2 * np.sqrt(self._sides[0].shape[1]) * float(np.finfo(self._type).eps)
        if self._normalize:
            return np.broadcast_to(unit, self.shape[0]), np.broadcast_to(unit, self.shape[1])
        rows, columns = self._norms
        return unit * columns.max(initial=0.0) * rows, unit * rows.max(initial=0.0) * columns

    def block(self, rows: Selection, columns: Selection) -> Block:
        left, right = self._embeddings(0, rows), self._embeddings(1, columns)
        shape = (len(left), len(right))
        size = shape[0] * shape[1]
        if self._buffer.size < size:
            self._buffer = np.empty(size, dtype=self._type)
        return np.matmul(left, right.T, out=self._buffer[:size].reshape(shape))

    def _embeddings(self, side: int, selection: Selection) -> Block:
        previous, embeddings = self._prepared[side]
        if previous is selection:
            return embeddings
        # Free the previous ones before the next are made.
        del embeddings
        self._prepared[side] = (None, np.empty(0))
        embeddings = np.asarray(self._sides[side][selection], dtype=self._type)
        if self._normalize:
            norms = self._norms[side][selection]
            embeddings = embeddings / np.where(norms > 0, norms, 1.0).astype(self._type)[:, None]
        self._prepared[side] = (selection, embeddings)
        return embeddings

    def _measured(self, side: int) -> Floats:
        """The norm of every embedding, in double precision so that no square overflows."""
        embeddings = self._sides[side]
        step = max(1, self.block_size // max(1, embeddings.shape[1]))
        norms = np.empty(len(embeddings))
        for start in range(0, len(embeddings), step):
            part = embeddings[start : start + step]
            norms[start : start + step] = np.sqrt(np.einsum("ij,ij->i", part, part, dtype=np.float64))
        wrong = np.flatnonzero(~np.isfinite(norms))
        if wrong.size:
            raise ScoreError("NaN or infinite", f"{('first', 'second')[side]} embeddings, row {wrong[0]}")
        return norms


def _working_type(stored_type: np.dtype[Any]) -> np.dtype[Any]:
    """The type to compare in: half precision is slow on CPUs, and integers have no infinity."""
    if stored_type.kind == "f" and stored_type.itemsize in (2, 4):
        return np.dtype(np.float32)
    if stored_type.kind in "iu" or (stored_type.kind == "f" and stored_type.itemsize == 8):
        return np.dtype(np.float64)
    raise DeixisError(f"scores must be floats of 16, 32 or 64 bits or whole numbers, not {stored_type}")


def _size_within(memory: int, shape: tuple[int, int], dimensions: int, item_bytes: int) -> int:
    """The number of scores, up to `BLOCK_SIZE`, that fit in `memory` bytes with their comparisons and embeddings.

    A block of n scores with the proportions r of the whole matrix has √n (√r + 1/√r) rows and columns together, each
    with an embedding; comparisons take 4 bytes per score.
    """
    proportions = np.sqrt(max(shape[0], 1) / max(shape[1], 1))
    per_score, per_root = item_bytes + 4, (proportions + 1 / proportions) * dimensions * item_bytes
    root = (np.sqrt(per_root**2 + 4 * per_score * memory) - per_root) / (2 * per_score)
    return max(1, min(BLOCK_SIZE, int(root**2)))


def _check_exact(values: npt.NDArray[np.integer], rows: Selection, columns: Selection) -> None:
    """Whole numbers beyond 2⁵³ would be rounded, and their order lost."""
    wrong = np.argwhere((values > 2**53) | (values < -(2**53)))
    if len(wrong):
        cell = f"row {indices(rows)[wrong[0, 0]]}, column {indices(columns)[wrong[0, 1]]}"
        raise ScoreError("the score is a whole number beyond 2⁵³; give it as float64", cell)


def _checked(values: Block, rows: Selection, columns: Selection) -> Block:
    if values.size and not values.max() < np.inf:
        row, column = np.argwhere(~(values < np.inf))[0]
        cell = f"row {indices(rows)[row]}, column {indices(columns)[column]}"
        raise ScoreError(f"the score is {values[row, column]}, which cannot be ranked", cell)
    return values


def indices(selection: Selection) -> Integers:
    """The indices of selected rows or columns."""
    return np.arange(selection.start, selection.stop) if isinstance(selection, slice) else selection
