"""Caption twins: a true caption of a picture against a false one, by kind of change (`deixis.text.false_captions`).

A pair is right if the true caption scores higher with its picture (`Model.score_texts`); a tie is wrong. False captions
are made so that the words alone help little: each change is as frequent as its reverse, and pairs are chosen so that a
trigram language model, fitted to the training captions, prefers the false caption as often as the true one, by as much.
`other_pictures` is how often the scored model prefers the true caption when it sees another picture: what it knows from
the words. `accuracy_low` and `accuracy_high` are the ends of a 95% interval (bootstrap over pictures).
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deixis.corpus import Corpus, Image
from deixis.corpus.leak_guard import training_set
from deixis.errors import DeixisError
from deixis.metrics.results import Protocol, Result, corpus_reference, make_result
from deixis.metrics.word_order import TOLERANCE, Leads, lead_figures, score_leads
from deixis.model import Model, Tokens
from deixis.text.false_captions import KINDS, Kind, balanced, colour_counts, false_captions
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.vision.reading import read_picture

#: Pairs are balanced within so many groups of each kind, from the smallest to the largest difference in likelihood.
GROUPS = 10
#: Other pictures that each pair is asked of: few, since models may look for the phrases of each caption.
OTHER_PICTURES = 5
#: How often pictures are drawn for the interval of an accuracy.
DRAWS = 10_000


class CaptionTwins(NamedTuple):
    image: str
    kind: Kind
    true: tuple[str, ...]
    false: tuple[str, ...]
    #: log p(true) − log p(false) of the language model.
    likelier: float


def caption_twins(corpus: Corpus, split: str, *, seed: int = 0) -> list[CaptionTwins]:
    """Twins of the captions of a split, balanced; the language model reads the captions of the split `train`."""
    random = np.random.default_rng(seed)
    training = tokens_of_captions(training_set(corpus))
    model, counts = Trigrams(training), colour_counts(training)
    twins, changes = [], []
    for image in corpus.split(split):
        captions = [tokens_of(caption) for caption in image.captions]
        for index, caption in enumerate(captions):
            true = model.log_probability(caption)
            for change in false_captions(caption, [*captions[:index], *captions[index + 1 :]], random, counts):
                likelier = true - model.log_probability(change.tokens)
                twins.append(CaptionTwins(image.id, change.kind, caption, change.tokens, likelier))
                changes.append(change)
    return equally_likely(balanced(twins, changes, random), random)


def equally_likely(twins: Sequence[CaptionTwins], random: np.random.Generator) -> list[CaptionTwins]:
    """As many pairs whose true caption is the likelier one as others, at every size of the difference."""
    chosen: list[int] = []
    for kind in KINDS:
        rows = np.array([row for row, twin in enumerate(twins) if twin.kind == kind and twin.likelier], np.int64)
        likelier = np.array([twins[row].likelier for row in rows])
        for group in np.array_split(np.argsort(abs(likelier), kind="stable"), GROUPS):
            sides = [rows[group[likelier[group] > 0]], rows[group[likelier[group] < 0]]]
            count = min(map(len, sides))
            chosen += [row for side in sides for row in random.permutation(side)[:count].tolist()]
    return [twins[row] for row in sorted(chosen)]


def twin_accuracy(
    model: Model,
    corpus: Corpus,
    split: str,
    *,
    seed: int = 0,
) -> Result:
    """The share of twins whose true caption scores higher with its picture, in percent, by kind: `twins.colour`, ….

    Args:
        model: scores pictures and texts.
        corpus: with pictures, and a split `train`.
    """
    start = time.monotonic()
    twins = caption_twins(corpus, split, seed=seed)
    if not twins:
        raise DeixisError(f"no caption of the split {split} can be changed into a false one")
    leads = _leads(model, corpus, corpus.split(split).images, twins)
    figures = {}
    for kind in KINDS:
        rows = [row for row, twin in enumerate(twins) if twin.kind == kind]
        if rows:
            likelier = [twins[row].likelier > 0 for row in rows]
            blind = {"language_model": 100 * float(np.mean(likelier))}
            of_kind = Leads(leads.by[rows], leads.tie[rows])
            low, high = accuracy_interval(of_kind.by[:, 0] > of_kind.tie[:, 0], [twins[row].image for row in rows])
            figures[kind] = {**lead_figures(of_kind), "accuracy_low": low, "accuracy_high": high, **blind}
    return make_result(
        Protocol(
            "caption twins",
            "a tie is wrong",
            {"seed": seed, "tie_tolerance": TOLERANCE, "other_pictures": leads.by.shape[1] - 1},
        ),
        {"twins": figures},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts={"images": len({twin.image for twin in twins}), "pairs": len(twins)},
    )


def accuracy_interval(right: ArrayLike, pictures: Sequence[str], *, seed: int = 0) -> tuple[float, float]:
    """Where 95% of the accuracies lie, in percent, when as many pictures are drawn again and again, with replacement.

    >>> accuracy_interval([True, True, True], ["1", "1", "2"])
    (100.0, 100.0)
    """
    names, rows = np.unique(pictures, return_inverse=True)
    hits, pairs = np.bincount(rows, np.asarray(right)), np.bincount(rows)
    drawn = np.random.default_rng(seed).integers(len(names), size=(DRAWS, len(names)))
    low, high = np.percentile(100 * hits[drawn].sum(1) / pairs[drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def _leads(model: Model, corpus: Corpus, images: Sequence[Image], twins: Sequence[CaptionTwins]) -> Leads:
    """The differences in the scores of twins, with their own picture first, then with others of the split."""
    spread = np.linspace(0, len(images) - 1, min(OTHER_PICTURES + 1, len(images))).astype(int)
    others = [images[index] for index in spread]
    texts: list[Tokens] = [text for twin in twins for text in (twin.true, twin.false)]
    shown = np.array([model.score_texts(read_picture(corpus, image), texts) for image in others], np.float64)
    rows_of: dict[str, list[int]] = {}
    for row, twin in enumerate(twins):
        rows_of.setdefault(twin.image, []).append(row)
    scores: NDArray[np.float64] = np.empty((len(others), len(texts)))
    for image in images:
        if image.id not in rows_of:
            continue
        columns = [column for row in rows_of[image.id] for column in (2 * row, 2 * row + 1)]
        scores[0, columns] = model.score_texts(read_picture(corpus, image), [texts[column] for column in columns])
        other_rows = [row for row, other in enumerate(others) if other.id != image.id][: len(others) - 1]
        scores[1:, columns] = shown[np.ix_(other_rows, columns)]
    return score_leads(scores)


#: Around every sentence.
_START, _END = "<s>", "</s>"


class Trigrams:
    """Fitted to sentences, each a sequence of tokens.

    >>> model = Trigrams([("a", "red", "bus"), ("a", "red", "bus"), ("a", "blue", "bus")])
    >>> model.log_probability(("a", "red", "bus")) > model.log_probability(("a", "blue", "bus"))
    True
    """

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        self._counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for history, word in _steps(sentence):
                for length in range(len(history) + 1):
                    self._counts[history[length:]][word] += 1
        self._totals = {history: counts.total() for history, counts in self._counts.items()}
        self._words = len(self._counts[()]) + 1

    def log_probability(self, sentence: Sequence[str]) -> float:
        """log p(sentence), its end included."""
        return sum(math.log(self._probability(history, word)) for history, word in _steps(sentence))

    def _probability(self, history: tuple[str, ...], word: str) -> float:
        shorter = self._probability(history[1:], word) if history else 1 / self._words
        counts = self._counts.get(history)
        if not counts:
            return shorter
        return (counts[word] + len(counts) * shorter) / (self._totals[history] + len(counts))


def _steps(sentence: Sequence[str]) -> Iterable[tuple[tuple[str, str], str]]:
    """Every word with the two before it."""
    padded = (_START, _START, *sentence, _END)
    return (((padded[index - 2], padded[index - 1]), padded[index]) for index in range(2, len(padded)))
