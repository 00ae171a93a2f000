"""Plans of one shape: those of many batches of trees padded to the same numbers of nodes and edges, level by level.

Nodes that are added come behind the real ones of their kind, and no real node is above them; edges that are added go
from the added nodes of a level to added leaves. So the states of real nodes and their gradients stay as they are. Only
`deixis.training.bucket_padding` asks for it, by `Plan.padded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deixis.papers.hm_lstm.fast.forest import NO_WORD, Level, Plan, PlanLevels, starts_of
from deixis.training.bucket_padding import bucket_size

Numbers = NDArray[np.int64]
#: Sizes are multiples of so many.
STEP = 8


def fit(plan: Plan, sizes: PaddedSizes | None) -> tuple[Plan, PaddedSizes]:
    """A plan padded to these sizes, and the sizes; a plan that is too large for them gets larger ones."""
    if sizes is None or (padded := sizes.pad(plan)) is None:
        sizes = PaddedSizes([plan], smaller=sizes)
        padded = sizes.pad(plan)
        assert padded is not None
    return padded, sizes


class PaddedSizes:
    """The numbers of nodes and edges of every level to which plans are padded: a fifth more than the largest plan has.

    Args:
        plans: all of them fit.
        smaller: sizes which these are not to fall below.
    """

    def __init__(self, plans: Iterable[Plan], smaller: PaddedSizes | None = None) -> None:
        counts = [_counts(plan.levels) for plan in plans]
        if smaller is not None:
            counts.append(smaller.most)
        #: By level: noun phrases, other nodes, edges, words.
        self.most: Numbers = np.max([_extended(level_counts, max(map(len, counts))) for level_counts in counts], axis=0)
        sizes = STEP * -(-(self.most * 6 // 5) // STEP)
        #: By level. At least one other node is added to each, for edges to begin at.
        self.nouns, self.others, self.edges = sizes[:, 0], sizes[:, 1] + STEP, sizes[:, 2]
        self.worded = self.most[:, 3] > 0
        self.row_start, self.edge_start = starts_of(self.nouns + self.others), starts_of(self.edges)

    @cached_property
    def fixed(self) -> tuple[PlanLevels, dict[str, Numbers]]:
        """What all padded plans have in common. In a level with words every node has one, if only `NO_WORD`."""
        sizes, rows = self.nouns + self.others, np.arange(self.row_start[-1])
        noun = rows < np.repeat(self.row_start[:-1] + self.nouns, sizes)
        worded = np.repeat(self.worded, sizes)
        word_row = np.flatnonzero(worded)
        word_start = np.searchsorted(word_row, self.row_start)
        bounds = [self.row_start[:-1], self.row_start[:-1] + self.nouns, self.row_start[1:]]
        bounds += [self.edge_start[:-1], self.edge_start[1:], word_start[:-1], word_start[1:]]
        arrays = {
            "word_row": word_row,
            "word_of": np.where(worded, np.cumsum(worded) - 1, -1),
            "nouns": np.flatnonzero(noun),
            "others": np.flatnonzero(~noun),
        }
        return PlanLevels(Level(*line) for line in np.stack(bounds, 1).tolist()), arrays

    def pad(self, plan: Plan) -> Plan | None:
        """A plan on the host, padded; None if it is too large."""
        if len(plan.levels) > len(self.nouns):
            return None
        nouns, others, edges, words = _extended(_counts(plan.levels), len(self.nouns)).T
        larger = (nouns > self.nouns) | (others >= self.others) | (edges > self.edges) | ((words > 0) & ~self.worded)
        if larger.any():
            return None
        levels, arrays = self.fixed
        # Where the plan's rows are now: noun phrases may have been added before a level's other nodes.
        level, position = _numbered(nouns + others)
        new = self.row_start[level] + position + (position >= nouns[level]) * (self.nouns - nouns)[level]
        child, parent = np.empty((2, self.edge_start[-1]), np.int64)
        level, position = _numbered(edges)
        at = self.edge_start[level] + position
        child[at], parent[at] = new[plan.child.numpy()], new[plan.parent.numpy()]
        # Edges that are added are dealt out evenly, in the order of the nodes that they begin at.
        first, added, missing = self.row_start[:-1] + self.nouns + others, self.others - others, self.edges - edges
        level, position = _numbered(missing)
        at = self.edge_start[level] + edges[level] + position
        child[at] = first[0] + position * added[0] // missing[level]
        parent[at] = first[level] + position * added[level] // missing[level]
        rows = int(self.row_start[-1])
        word = np.full(rows, NO_WORD)
        word[new[plan.word_row.numpy()]] = plan.word.numpy()
        arrays = {
            **arrays,
            "child": child,
            "parent": parent,
            "word": word[arrays["word_row"]],
            "down_start": starts_of(np.bincount(parent, minlength=rows)),
            "up_start": starts_of(np.bincount(child, minlength=rows)),
            "upward": np.argsort(child, kind="stable"),
            "root": _padded(new[plan.root.numpy()], "sentences"),
            "phrase": _padded(new[plan.phrase.numpy()], "phrases"),
            "phrase_tree": _padded(plan.phrase_tree.numpy(), "phrases"),
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return plan._replace(levels=levels, rows=rows, **tensors)


def _padded(numbers: Numbers, dimension: str) -> Numbers:
    """As the batch around the plan is padded."""
    return _extended(numbers, bucket_size(len(numbers), dimension))


def _counts(levels: Sequence[Level]) -> Numbers:
    """`(levels, 4)`: noun phrases, other nodes, edges, words."""
    start, nouns_end, end, *rest = np.array(levels, np.int64).reshape(-1, len(Level._fields)).T
    return np.stack([nouns_end - start, end - nouns_end, rest[1] - rest[0], rest[3] - rest[2]], 1)


def _extended(numbers: Numbers, length: int) -> Numbers:
    """With zeros at the end. `np.pad` takes ten times as long, and this is done five times a step."""
    extended = np.zeros((length, *numbers.shape[1:]), np.int64)
    extended[: len(numbers)] = numbers
    return extended


def _numbered(counts: Numbers) -> tuple[Numbers, Numbers]:
    """For things of which a level has so many: the level of each, and its number there."""
    level = np.repeat(np.arange(len(counts)), counts)
    return level, np.arange(len(level)) - starts_of(counts)[level]
