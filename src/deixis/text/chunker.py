"""Noun-phrase chunks of captions, found by a small network trained on Flickr30k Entities (Entities, section 2.1).

A phrase is what the Entities release puts in brackets: short, never nested, including non-visual ones ("the
background", "each other"), which `deixis.text.entity_types` identifies. A few convolutions over word and affix vectors
score the labels outside, begin and inside, and a conditional random field finds the best sequence. It needs only NumPy;
`deixis.training.tools.chunker_training` trains it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from threading import Lock

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from deixis.corpus.records import Caption
from deixis.corpus.spans import Span
from deixis.errors import InputError
from deixis.files import atomic_write, require_regular
from deixis.text.tokens import tokenize

Array = NDArray[np.float32]

#: The labels of a token: outside any phrase, first token of one, further token of one.
OUTSIDE, BEGIN, INSIDE = range(3)
LABELS = 3
#: Rows of padding and of unknown tokens in every table of vectors.
PAD, UNKNOWN = 0, 1
#: The views of a token, each with its own vectors. All but the last have a vocabulary of strings.
VIEWS: Mapping[str, Callable[[str], str]] = {
    "word": str,
    "ending2": lambda word: word[-2:],
    "ending3": lambda word: word[-3:],
    "beginning": lambda word: word[:3],
}
SHAPES = 6
#: Tokens scored at once, which limits memory to about 30 MB.
BLOCK_TOKENS = 16_384
#: Words whose vectors are cached between calls.
CACHED_WORDS = 30_000
#: Forbids a label pair.
_NEVER = np.float32(-1e4)


class Chunker:
    """Finds the phrases of tokenized captions.

    Args:
        vocabularies: the strings of each of the `VIEWS`; string `i` has row `i + 2` of the view's vectors.
        arrays: the weights, named as by `deixis.training.tools.chunker_training.export`: `vectors.<view>`
            (rows, width), `convolution.<n>.weight` (3 × inputs, outputs) for the previous, this and the next token,
            `convolution.<n>.bias`, `labels.weight` (outputs, 3), `labels.bias`, `pairs` (3, 3), `first`, `last` (3).

    >>> Chunker.load().phrases("a man in a red shirt rides a horse".split())
    [(0, 2), (3, 6), (7, 9)]
    """

    def __init__(self, vocabularies: Mapping[str, Sequence[str]], arrays: Mapping[str, NDArray[np.floating]]) -> None:
        self.vocabularies = {view: tuple(vocabularies[view]) for view in VIEWS}
        self.arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        self.depth = sum(name.startswith("convolution") for name in arrays) // 2
        self._rows = row_maps(self.vocabularies)
        self._pairs, self._first = self.arrays["pairs"].copy(), self.arrays["first"].copy()
        self._pairs[OUTSIDE, INSIDE] = self._first[INSIDE] = _NEVER
        self._lock = Lock()
        self._forget()

    @classmethod
    def load(cls, path: str | Path | None = None) -> Chunker:
        """Read a file written by `save`; by default the bundled model."""
        return _packaged() if path is None else _read(Path(path))

    def save(self, path: str | Path) -> None:
        """Write vocabularies and weights (as float16) into one safetensors file."""
        arrays = {name: array.astype(np.float16) for name, array in sorted(self.arrays.items())}
        with atomic_write(path) as stream:
            stream.write(safetensors.numpy.save(arrays, {"vocabularies": json.dumps(self.vocabularies)}))

    def phrases(self, caption: str | Caption | Sequence[str]) -> list[Span]:
        """The phrases of one caption as spans of tokens; text is tokenized first."""
        return self.phrases_of([caption])[0]

    def phrases_of(self, captions: Iterable[str | Caption | Sequence[str]]) -> list[list[Span]]:
        """The phrases of many captions."""
        token_lists = [caption_tokens(caption) for caption in captions]
        phrases: list[list[Span]] = [[] for _ in token_lists]
        # Captions of similar length are decoded together, without padding.
        order = sorted((index for index, tokens in enumerate(token_lists) if tokens), key=lambda n: len(token_lists[n]))
        block: list[int] = []
        size = 0
        for index in order:
            if block and size + len(token_lists[index]) > BLOCK_TOKENS:
                self._label(block, token_lists, phrases)
                block, size = [], 0
            block.append(index)
            size += len(token_lists[index])
        if block:
            self._label(block, token_lists, phrases)
        return phrases

    def scores(self, token_lists: Sequence[Sequence[str]]) -> tuple[Array, NDArray[np.intp]]:
        """Label scores of all tokens, (rows, 3), and the row of each list's first token.

        Before, between and after the lists there is a row of padding for the convolutions.
        """
        lengths = np.array([len(tokens) for tokens in token_lists])
        starts = np.concatenate([[1], 1 + np.cumsum(lengths + 1)[:-1]])
        rows = np.zeros(int(lengths.sum()) + len(lengths) + 1, np.intp)
        real = np.ones(len(rows), bool)
        real[0] = real[starts + lengths] = False
        rows[real], table = self._look_up([token for tokens in token_lists for token in tokens])
        real = real[:, None]
        # The first convolution is linear in its three tokens, so each word's part is computed once.
        hidden = self.arrays["convolution.0.bias"] + table[rows, 1]
        hidden[1:] += table[rows[:-1], 0]
        hidden[:-1] += table[rows[1:], 2]
        hidden = np.maximum(hidden, 0) * real
        for layer in range(1, self.depth):
            edge = np.zeros_like(hidden[:1])
            neighbours = np.concatenate(
                [np.concatenate([edge, hidden[:-1]]), hidden, np.concatenate([hidden[1:], edge])], axis=1
            )
            change = neighbours @ self.arrays[f"convolution.{layer}.weight"] + self.arrays[f"convolution.{layer}.bias"]
            hidden = hidden + np.maximum(change, 0) * real
        return hidden @ self.arrays["labels.weight"] + self.arrays["labels.bias"], starts

    def _label(self, block: list[int], token_lists: Sequence[Sequence[str]], phrases: list[list[Span]]) -> None:
        """Write the phrases of the captions with indices `block` to `found`."""
        lists = [token_lists[index] for index in block]
        scores, starts = self.scores(lists)
        lengths = np.array([len(tokens) for tokens in lists])
        labels = best_labels(scores, starts, lengths, self._pairs, self._first, self.arrays["last"])
        begins = np.flatnonzero(labels == BEGIN)
        others = np.flatnonzero(labels != INSIDE)
        # The padding row after each list is labelled outside, so every phrase ends.
        ends = others[np.searchsorted(others, begins, side="right")]
        owners = np.searchsorted(starts, begins, side="right") - 1
        for owner, start, end in zip(
            owners.tolist(), (begins - starts[owners]).tolist(), ends - starts[owners], strict=True
        ):
            phrases[block[owner]].append((start, int(end)))

    def _forget(self) -> None:
        self._word_rows: dict[str, int] = {}
        self._table = np.zeros((1, 3, len(self.arrays["convolution.0.bias"])), np.float32)

    def _look_up(self, tokens: Sequence[str]) -> tuple[list[int], Array]:
        """The rows of tokens in a table (rows, 3, outputs) of each word's part in the first convolution's outputs."""
        with self._lock:
            if len(self._table) > CACHED_WORDS:
                self._forget()
            new = [token for token in dict.fromkeys(tokens) if token not in self._word_rows]
            if new:
                rows = np.array([view_rows(token, self._rows) for token in new])
                vectors = [self.arrays[f"vectors.{view}"][rows[:, n]] for n, view in enumerate((*VIEWS, "shape"))]
                joined = np.concatenate(vectors, axis=1)
                weight = self.arrays["convolution.0.weight"].reshape(3, joined.shape[1], -1)
                shares = np.stack([joined @ part for part in weight], axis=1)
                self._word_rows.update(zip(new, range(len(self._table), len(self._table) + len(new)), strict=True))
                # A new array: other threads may be reading the old one.
                self._table = np.concatenate([self._table, shares])
            return [self._word_rows[token] for token in tokens], self._table


def caption_tokens(caption: str | Caption | Sequence[str]) -> Sequence[str]:
    """The tokens of a caption, to which its phrases refer; free text is tokenized."""
    if isinstance(caption, Caption):
        return caption.tokens
    return tokenize(caption) if isinstance(caption, str) else caption


def best_labels(
    scores: Array, starts: NDArray[np.intp], lengths: NDArray[np.intp], pairs: Array, first: Array, last: Array
) -> NDArray[np.int8]:
    """The best sequence of labels for each list of tokens (Viterbi's algorithm, over all lists at once).

    Args:
        scores: (rows, 3) label scores of all lists, concatenated.
        starts, lengths: the rows of each list in `scores`.
        pairs: (3, 3) score of a label (first axis) before another; `first` and `last`: (3,) scores at the ends.

    Returns:
        (rows,) labels, `OUTSIDE` in rows of no list.
    """
    rows = np.arange(len(lengths))
    best = first + scores[starts]
    origins = []
    for step in range(1, int(lengths.max())):
        live = (step < lengths)[:, None]
        candidates = best[:, :, None] + pairs
        origin = candidates.argmax(axis=1)
        reached = candidates.max(axis=1) + scores[np.minimum(starts + step, len(scores) - 1)]
        best = np.where(live, reached, best)
        # A list that has ended keeps its label, so that all can be traced back from the last step.
        origins.append(np.where(live, origin, np.arange(LABELS)).astype(np.int8))
    label = (best + last).argmax(axis=1)
    labels = np.full(len(scores), OUTSIDE, np.int8)
    for step in range(len(origins), -1, -1):
        live = step < lengths
        labels[starts[live] + step] = label[live]
        if step:
            label = origins[step - 1][rows, label]
    return labels


def row_maps(vocabularies: Mapping[str, Sequence[str]]) -> list[dict[str, int]]:
    """For each view, the row of each string in its vectors."""
    return [{text: row for row, text in enumerate(vocabularies[view], start=UNKNOWN + 1)} for view in VIEWS]


def view_rows(token: str, rows: Sequence[Mapping[str, int]]) -> tuple[int, ...]:
    """The rows of a token in the vectors of each view; the shape is last."""
    word = token.lower()
    return (*(known.get(view(word), UNKNOWN) for view, known in zip(VIEWS.values(), rows, strict=True)), shape(token))


def shape(token: str) -> int:
    """Lower case, capitalized, all capitals, with a digit, or other: 1 to 5.

    >>> [shape(token) for token in ("dog", "Rome", "NBA", "3rd", ",")]
    [1, 2, 3, 4, 5]
    """
    if any(character.isdigit() for character in token):
        return 4
    if token.islower():
        return 1
    if token.isupper() and len(token) > 1:
        return 3
    return 2 if token[:1].isupper() else 5


@cache
def _packaged() -> Chunker:
    with as_file(files("deixis.text") / "models" / "chunker.safetensors") as path:
        return _read(path)


def _read(path: Path) -> Chunker:
    try:
        with safetensors.safe_open(require_regular(path), "numpy") as file:
            vocabularies = json.loads(file.metadata()["vocabularies"])
            chunker = Chunker(vocabularies, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        # Fails if the arrays do not fit together.
        chunker.phrases(("a", "dog"))
    except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as fault:
        raise InputError(path, f"is not a chunker ({fault})") from None
    return chunker
