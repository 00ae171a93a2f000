"""Trees of a corpus as what a network over them has to compute (HM-LSTM): forests, and plans of batches.

A node's state depends on what is below it alone, so every different subtree of a corpus is one node of a `Forest`:
"a man" is worked out once a batch, however many captions have it. A batch of trees is a `Plan`: its nodes ordered by
their height, which NumPy makes from tables that were filled once a tree. A chain of words (a node a word, its only
child the word before) is a forest of another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.text.trees import Tree
from deixis.training.placing import send

Numbers = NDArray[np.int64]
Shape = Literal["h-lstm", "tree-lstm", "chain"]
#: The label of a noun phrase.
NOUN_PHRASE = "NP"
#: The word id of a node without a word; its x_j is zero.
NO_WORD = 0


class _Lists:
    """Lists of numbers of any length, one after another."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._ends: list[int] = [0]
        self._arrays = (np.empty(0, np.int64), np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, values: Sequence[int]) -> None:
        self._values.extend(values)
        self._ends.append(len(self._values))

    def gather(self, chosen: Numbers) -> tuple[Numbers, Numbers]:
        """The lists of these numbers end to end, and how long each is."""
        if len(self._arrays[1]) != len(self._ends):
            self._arrays = np.array(self._values, np.int64), np.array(self._ends, np.int64)
        values, ends = self._arrays
        lengths = ends[chosen + 1] - ends[chosen]
        shift = np.repeat(ends[chosen] - (np.cumsum(lengths) - lengths), lengths)
        return values[shift + np.arange(len(shift))], lengths


class Level(NamedTuple):
    """The nodes of one height, noun phrases first: bounds in a plan's rows, edges and words."""

    start: int
    nouns_end: int
    end: int
    first_edge: int
    last_edge: int
    first_word: int
    last_word: int


class PlanLevels(tuple[Level, ...]):
    """The levels of a plan: a type of its own, in which PyTorch does not look for tensors, since that takes a while."""


class Plan(NamedTuple):
    """What to compute for some trees, in which order; rows are nodes, from leaves to roots."""

    levels: PlanLevels
    rows: int
    #: By edge, ordered by the parent's row: the rows of child and parent.
    child: Tensor
    parent: Tensor
    #: Ids of words and the row of each one's node, by row.
    word: Tensor
    word_row: Tensor
    #: `(rows + 1,)`: where each row's edges to its children begin; the same to its parents, among `upward`, which are
    #: the edges ordered by the child's row. And by row its place in `word`, or -1.
    down_start: Tensor
    up_start: Tensor
    upward: Tensor
    word_of: Tensor
    #: Rows that are noun phrases, and the others.
    nouns: Tensor
    others: Tensor
    #: By tree: the row of its root.
    root: Tensor
    #: Rows of all noun phrases of the trees, and the place of each one's tree among them.
    phrase: Tensor
    phrase_tree: Tensor

    def padded(self, room: Any) -> tuple[Plan, Any]:
        """The same plan with room for larger ones (`plan_padding.py`); it must be on the host."""
        from deixis.papers.hm_lstm.fast.plan_padding import fit

        return fit(self, room)

    def to(self, device: torch.device | str) -> Plan:
        """All arrays go to a device in one piece, without waiting for it."""
        # "cuda" and "cuda:0" are one device here, but not equal.
        if self.root.device.type == torch.device(device).type:
            return self
        arrays = {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}
        moved = send(torch.cat(list(arrays.values())), device)
        parts = torch.split(moved, [len(value) for value in arrays.values()])
        moved_arrays: dict[str, Any] = dict(zip(arrays, parts, strict=True))
        return self._replace(**moved_arrays)


class Forest:
    """Trees over word ids, each different subtree held once.

    Args:
        shape: "h-lstm" separates noun-phrase children from others, "tree-lstm" treats children alike, "chain" reads a
            sentence and each of its noun phrases word by word and takes from the tree only where these phrases are.
    """

    def __init__(self, shape: Shape = "h-lstm") -> None:
        self.shape = shape
        self._numbers: dict[tuple[int, bool, tuple[int, ...]], int] = {}
        self._children, self._members, self._phrases = _Lists(), _Lists(), _Lists()
        self._word: list[int] = []
        self._noun: list[bool] = []
        self._level: list[int] = []
        self._root: list[int] = []
        self._tables: tuple[Numbers, NDArray[np.bool_], Numbers] | None = None

    def __len__(self) -> int:
        """How many trees there are."""
        return len(self._root)

    @property
    def nodes(self) -> int:
        """How many different nodes there are."""
        return len(self._word)

    def add(self, tree: Tree, words: Sequence[int]) -> int:
        """Put in a tree over the ids of its tokens (0: none); the number that it goes by.

        Its phrases are those of `Tree.spans`: each span of a noun phrase once, outer ones first.
        """
        if self.shape == "chain":
            root = self._chain(words)
            phrases = [self._chain(words[start:end]) for start, end in tree.spans(NOUN_PHRASE)]
        else:
            root, of_span = self._nodes(tree, words)
            phrases = [of_span[span] for span in tree.spans(NOUN_PHRASE)]
        self._root.append(root)
        self._phrases.append(phrases)
        self._members.append(list(self._below([root, *phrases])))
        return len(self._root) - 1

    def _nodes(self, tree: Tree, words: Sequence[int]) -> tuple[int, dict[tuple[int, int], int]]:
        """The root's number, and the numbers of noun phrases by span; of two with one span the outer."""
        numbers: dict[int, int] = {}
        of_span = {}
        # Children come before their parents in the reversed order.
        for node in reversed(list(tree.subtrees())):
            if node.is_leaf:
                numbers[id(node)] = self._node(words[node.token], False, ())
                continue
            noun = node.label == NOUN_PHRASE
            typed = noun and self.shape == "h-lstm"
            node_id = self._node(NO_WORD, typed, tuple(numbers[id(child)] for child in node.children))
            numbers[id(node)] = node_id
            if noun:
                of_span[node.span] = node_id
        return numbers[id(tree)], of_span

    def _chain(self, words: Sequence[int]) -> int:
        node_id = None
        for word in words or (NO_WORD,):
            node_id = self._node(word, False, () if node_id is None else (node_id,))
        assert node_id is not None
        return node_id

    def _node(self, word: int, noun: bool, children: tuple[int, ...]) -> int:
        key = (word, noun, children)
        node_id = self._numbers.setdefault(key, len(self._word))
        if node_id == len(self._word):
            self._word.append(word)
            self._noun.append(noun)
            self._level.append(1 + max((self._level[child] for child in children), default=-1))
            self._children.append(children)
            self._tables = None
        return node_id

    def _below(self, nodes: Sequence[int]) -> Iterator[int]:
        """These nodes and all below them, each once."""
        values, ends = self._children._values, self._children._ends
        waiting, seen = list(nodes), set(nodes)
        while waiting:
            node = waiting.pop()
            yield node
            new = set(values[ends[node] : ends[node + 1]]) - seen
            seen |= new
            waiting.extend(new)

    def plan(self, trees: Numbers) -> Plan:
        """What to compute for these trees."""
        if self._tables is None:
            self._tables = np.array(self._word, np.int64), np.array(self._noun, bool), np.array(self._level, np.int64)
        words, nouns, levels = self._tables
        nodes = np.unique(self._members.gather(trees)[0])
        order = np.lexsort((~nouns[nodes], levels[nodes]))
        row_of = np.empty(len(nodes), np.int64)
        row_of[order] = np.arange(len(nodes))

        def rows(chosen: Numbers) -> Numbers:
            return row_of[np.searchsorted(nodes, chosen)]

        roots = np.array([self._root[tree] for tree in trees.tolist()], np.int64)
        phrases, counts = self._phrases.gather(trees)
        ordered = nodes[order]
        children, child_counts = self._children.gather(ordered)
        level, word, noun = levels[ordered], words[ordered], nouns[ordered]
        starts = np.searchsorted(level, np.arange(level[-1] + 2 if len(level) else 1))
        parent = np.repeat(np.arange(len(ordered)), child_counts)
        worded = np.flatnonzero(word != NO_WORD)
        noun_counts = np.add.reduceat(noun.astype(np.int64), starts[:-1]) if len(ordered) else np.empty(0, np.int64)
        bounds = np.stack(
            [starts[:-1], starts[:-1] + noun_counts, starts[1:]]
            + [side for places in (parent, worded) for side in _between(np.searchsorted(places, starts))],
            axis=1,
        )

        child = rows(children)
        word_of = np.full(len(ordered), -1)
        word_of[worded] = np.arange(len(worded))
        arrays = {
            "child": child,
            "parent": parent,
            "word": word[worded],
            "word_row": worded,
            "down_start": starts_of(child_counts),
            "up_start": starts_of(np.bincount(child, minlength=len(ordered))),
            "upward": np.argsort(child, kind="stable"),
            "word_of": word_of,
            "nouns": np.flatnonzero(noun),
            "others": np.flatnonzero(~noun),
            "root": rows(roots),
            "phrase": rows(phrases),
            "phrase_tree": np.repeat(np.arange(len(trees)), counts),
        }
        levels_ = PlanLevels(Level(*line) for line in bounds.tolist())
        return Plan(levels_, len(ordered), **{name: torch.from_numpy(array) for name, array in arrays.items()})


def starts_of(counts: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(counts)])


def _between(bounds: Numbers) -> tuple[Numbers, Numbers]:
    return bounds[:-1], bounds[1:]
