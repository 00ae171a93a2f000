"""Sentences about pictures with the graphs of a bundle, without PyTorch.

It says what `deixis.papers.dvsa.captioner` says, which is the same network in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from PIL.Image import Resampling

from deixis.adapters.bundles import CAPTION_START, CAPTION_STEP
from deixis.adapters.graph_runner import Array, GraphRunner
from deixis.adapters.search_model import Bytes
from deixis.model import Description
from deixis.text.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from deixis.vision.crops import squash

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Last words `(sentences,)`, states before them, and all words so far `(sentences, words)` → log-probabilities of the
#: next word and new states.
NextWord = Callable[[Array, tuple[Array, ...], Array], tuple[Array, tuple[Array, ...]]]


class DecodingSettings(msgspec.Struct, frozen=True):
    """As `deixis.papers.dvsa.captioner.DecodingRecipe`."""

    beam: Annotated[int, Meta(ge=1, le=1000)] = 5
    longest: Annotated[int, Meta(ge=1, le=1000)] = 25
    length_power: Annotated[float, Meta(ge=0)] = 0.0
    distinct_runs: Annotated[int, Meta(ge=0)] = 0


class RecurrenceSettings(msgspec.Struct, frozen=True):
    """What is needed here of a `deixis.papers.dvsa.captioner.CaptionerRecipe`."""

    cell: Literal["rnn", "lstm"]
    hidden: Annotated[int, Meta(ge=1, le=65536)]


class CaptionerSettings(msgspec.Struct, frozen=True):
    """`side` and `resampling` of pictures as those were that the captioner was trained with."""

    model: RecurrenceSettings
    decoding: DecodingSettings
    side: Annotated[int, Meta(ge=1, le=1024)]
    resampling: Literal["bilinear", "bicubic"]
    #: The sentences of the beam are ranked by their score plus so many times that of search.
    match: Annotated[float, Meta(ge=0)] = 0.0


class OnnxCaptioner:
    def __init__(self, run: GraphRunner, settings: CaptionerSettings, vocabulary: Vocabulary) -> None:
        self._run, self.settings, self._vocabulary = run, settings, vocabulary
        self._states = 1 if settings.model.cell == "rnn" else 2

    def prepare(self, picture: Picture) -> Bytes:
        """The picture as bytes `(3, side, side)`."""
        resampling = Resampling[self.settings.resampling.upper()]
        jpeg = self._run.bundle.manifest.jpeg
        return np.asarray(squash(picture, self.settings.side, resampling, jpeg)).transpose(2, 0, 1)

    def describe(self, maps: Array, count: int) -> list[Description]:
        """At most `count` sentences about a picture, given as the backbone's map; scores are log probabilities."""
        decoding = self.settings.decoding
        logits, *states = self._run(CAPTION_START, {"map": maps}, self._shapes(1))
        first = _allowed(logits, [PAD, UNKNOWN, START, END])
        sentences = beam_search(
            self._next, first, tuple(states), end=END, width=max(count, decoding.beam), longest=decoding.longest
        )
        rated = [(words, score / (len(words) + 1) ** decoding.length_power) for words, score in sentences]
        rated.sort(key=lambda caption: -caption[1])
        return [
            Description(" ".join(self._vocabulary.decode(words)), score, "generation") for words, score in rated[:count]
        ]

    def _next(self, last: Array, states: tuple[Array, ...], words: Array) -> tuple[Array, tuple[Array, ...]]:
        inputs = {"words": last, **{f"state_{index}": state for index, state in enumerate(states)}}
        logits, *after = self._run(CAPTION_STEP, inputs, self._shapes(len(last)))
        log_probabilities = _allowed(logits, [PAD, UNKNOWN, START])
        size = self.settings.decoding.distinct_runs
        if size and words.shape[1] + 1 >= size:
            # As if the start were a word.
            _forbid_repeats(log_probabilities, np.pad(words, ((0, 0), (1, 0)), constant_values=START), size)
        return log_probabilities, tuple(after)

    def _shapes(self, sentences: int) -> dict[str, tuple[int, ...]]:
        hidden = self.settings.model.hidden
        states = {f"next_{index}": (sentences, hidden) for index in range(self._states)}
        return {"logits": (sentences, len(self._vocabulary)), **states}


def _allowed(logits: Array, never: list[int]) -> Array:
    """Log-probabilities of words, −∞ of those that are never said."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    log_probabilities[:, never] = -np.inf
    return log_probabilities


def _forbid_repeats(log_probabilities: Array, words: Array, size: int) -> None:
    """−∞ for each word that would end a run of `size` words which the sentence has already."""
    runs = np.lib.stride_tricks.sliding_window_view(words, size, axis=1)
    before = words[:, words.shape[1] - size + 1 :]
    row, run = np.nonzero((runs[..., :-1] == before[:, None]).all(-1))
    log_probabilities[row, runs[row, run, -1]] = -np.inf


def beam_search(
    step: NextWord, first: Array, states: tuple[Array, ...], *, end: int, width: int, longest: int
) -> list[tuple[list[int], float]]:
    """`deixis.text.beam_search` in NumPy, for one picture: word ids and log-probabilities, best first.

    Args:
        first: log-probabilities `(1, words)` of the first word.
        states: `(1, …)` each, before it.
    """
    finished: list[tuple[list[int], float]] = []
    log_probabilities, words, scores = first.copy(), np.empty((1, 0), np.int64), np.zeros(1, first.dtype)
    for length in range(longest + 1):
        if length < longest:
            better = (log_probabilities > log_probabilities[:, [end]]).sum(1)
            log_probabilities[better >= width, end] = -np.inf
        following = scores[:, None] + log_probabilities
        finished += [
            (row.tolist(), float(score)) for row, score in zip(words, following[:, end], strict=True) if score > -np.inf
        ]
        finished = sorted(finished, key=lambda sentence: -sentence[1])[:width]
        following[:, end] = -np.inf
        flat = following.ravel()
        most = min(width, flat.size)
        chosen = np.argpartition(-flat, most - 1)[:most]
        chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
        chosen = chosen[flat[chosen] > -np.inf]
        # Scores only decrease, so a partial sentence worse than every finished one cannot win.
        if length == longest or not len(chosen) or (len(finished) == width and flat[chosen[0]] <= finished[-1][1]):
            break
        origin, word = np.divmod(chosen, following.shape[1])
        scores, words = flat[chosen], np.concatenate([words[origin], word[:, None]], 1)
        log_probabilities, states = step(word, tuple(state[origin] for state in states), words)
    return finished
