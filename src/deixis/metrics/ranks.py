"""The rank of the best correct answer, counted tile by tile: the core of every retrieval metric.

Rows and columns of a score matrix belong to groups (an image and its captions are one), and everything in a row's group
is a correct answer to it. Ties count against the model: the best correct answer's rank is 1 + the number of wrong
answers that score at least as high.

Tile borders follow the groups. A tile on the diagonal then holds every correct answer of its rows and columns, so after
the diagonal all thresholds are known exactly and the other tiles need only be counted. Each score is computed once, and
only one tile is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from deixis.metrics.score_blocks import Block, Floats, Integers, Scores, Selection, indices

#: Scores that one thread counts at a time: few enough for its own cache, many enough to be worth a thread.
STRIP = 1 << 19


def best_ranks(
    scores: Scores, row_groups: Integers, column_groups: Integers, *, itself: bool = False
) -> tuple[Integers, Integers]:
    """The rank, from 1, of the best correct answer to every row (among columns) and to every column (among rows).

    Args:
        scores: `(rows, columns)`.
        row_groups: `(rows,)`, the group of each row; rows with a negative group are left out.
        column_groups: `(columns,)`, likewise.
        itself: rows and columns are the same items, and no item is an answer to itself.

    Returns:
        `(rows,)` and `(columns,)`, with 0 where there is no correct answer or the row or column was left out.
    """
    # Tiles have the proportions of the whole matrix.
    height = max(1, int(np.sqrt(scores.block_size * len(row_groups) / max(1, len(column_groups)))))
    chunks = list(_chunks(row_groups, column_groups, (height, max(1, scores.block_size // height))))
    slacks = scores.slack
    # The score from which a wrong answer ranks before the best correct one, by row and by column.
    thresholds = (np.full(len(row_groups), np.inf), np.full(len(column_groups), np.inf))
    counts = (np.zeros(len(row_groups), np.int64), np.zeros(len(column_groups), np.int64))

    with ThreadPoolExecutor() as pool:
        for rows, columns in chunks:
            if _empty(rows, columns):
                continue
            block = scores.block(rows, columns)
            same = row_groups[rows][:, None] == column_groups[columns]
            right = same & (indices(rows)[:, None] != indices(columns)) if itself else same
            for side, selection in enumerate((rows, columns)):
                best = np.max(block, axis=1 - side, where=right, initial=-np.inf)
                has_right = right.any(axis=1 - side)
                thresholds[side][selection] = np.where(has_right, best - slacks[side][selection], np.inf)
            _count(block, (rows, columns), thresholds, counts, pool, ~same)
        for outer, (outer_rows, outer_columns) in enumerate(chunks):
            for inner, (inner_rows, inner_columns) in enumerate(chunks):
                rows, columns = (outer_rows, inner_columns) if scores.rows_outermost else (inner_rows, outer_columns)
                if inner != outer and not _empty(rows, columns):
                    _count(scores.block(rows, columns), (rows, columns), thresholds, counts, pool)
    for threshold, count in zip(thresholds, counts, strict=True):
        count += 1
        count[threshold == np.inf] = 0
    return counts


def _count(
    block: Block,
    tile: tuple[Selection, Selection],
    thresholds: tuple[Floats, Floats],
    counts: tuple[Integers, Integers],
    pool: Executor,
    wrong: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Add to `counts` how many scores of a block reach the threshold of their row, and of their column."""
    # Comparing in the block's own type is several times faster; where no slack was subtracted the cast is exact.
    limits = (thresholds[0][tile[0]].astype(block.dtype)[:, None], thresholds[1][tile[1]].astype(block.dtype))
    height = max(1, STRIP // block.shape[1])

    def count(start: int) -> list[npt.NDArray[np.unsignedinteger]]:
        strip = slice(start, start + height)
        scores = block[strip]
        sums = []
        for side, limit in enumerate((limits[0][strip], limits[1])):
            reached = scores >= limit
            if wrong is not None:
                reached &= wrong[strip]
            narrowest = np.min_scalar_type(scores.shape[1 - side])
            sums.append(np.add.reduce(reached.view(np.uint8), axis=1 - side, dtype=narrowest))
        return sums

    starts = range(0, len(block), height)
    by_row, by_column = zip(*(pool.map(count, starts) if len(starts) > 1 else map(count, starts)), strict=True)
    counts[0][tile[0]] += np.concatenate(by_row)
    for part in by_column:
        counts[1][tile[1]] += part


def _chunks(
    row_groups: Integers, column_groups: Integers, tile: tuple[int, int]
) -> Iterator[tuple[Selection, Selection]]:
    """The rows and columns of consecutive groups, as many groups at a time as fit in a tile."""
    orders, ends = [], []
    groups = max(row_groups.max(initial=-1), column_groups.max(initial=-1)) + 1
    for side in (row_groups, column_groups):
        order = np.argsort(side, kind="stable")
        order = order[np.count_nonzero(side < 0) :]
        orders.append(order)
        ends.append(np.searchsorted(side[order], np.arange(groups + 1)))
    first = 0
    while first < groups:
        # The last group with which both sides still fit; a single group is taken whatever its size.
        fitting = [
            np.searchsorted(end, end[first] + limit, side="right") - 1 for end, limit in zip(ends, tile, strict=True)
        ]
        last = max(first + 1, min(fitting))
        rows, columns = (_compact(order[end[first] : end[last]]) for order, end in zip(orders, ends, strict=True))
        yield rows, columns
        first = last


def _compact(selection: Integers) -> Selection:
    """A slice where the indices are consecutive, so that blocks are views and not copies."""
    if len(selection) == 0:
        return slice(0, 0)
    if selection[-1] - selection[0] == len(selection) - 1 and bool(np.all(np.diff(selection) == 1)):
        return slice(int(selection[0]), int(selection[-1]) + 1)
    return selection


def _empty(rows: Selection, columns: Selection) -> bool:
    """Whether the tile has no rows or no columns: images without captions have no columns."""
    return len(indices(rows)) == 0 or len(indices(columns)) == 0
