"""The probability that two mentions in different captions of a picture are the same entity, from their words.

Its features are learned vectors of the heads and of all words, the words in common, numbers, colours and types, and how
many other mentions of the same type a caption has. `deixis.training.tools.coreference_training` trains it. The
annotation workbench uses it to propose answers to link questions (in Entities, section 2.1, only people answer them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from deixis.corpus.records import TYPES, Image
from deixis.errors import InputError
from deixis.files import atomic_write, require_regular
from deixis.text.entity_types import COLOURS, head_forms

# fmt: off
DETERMINERS = frozenset({
    "a", "an", "the", "this", "that", "these", "those", "some", "his", "her", "its", "their", "one", "another", "other",
})
#: Number words.
NUMBERS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "couple": 2, "pair": 2, "both": 2, "three": 3, "four": 4,
    "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
}
OTHERS = frozenset({"another", "other", "others", "second", "third"})
# fmt: on
#: The row of unknown words.
UNKNOWN = 0
#: Number of content words of a mention that are used, from the head backwards.
LONGEST = 6
#: Larger numbers of mentions of a type in a caption are counted as this.
RIVALS = 3
_RIVAL_PAIRS = [(low, high) for low in range(1, RIVALS + 1) for high in range(low, RIVALS + 1)]
FEATURES = 13 + len(TYPES) + len(_RIVAL_PAIRS)

Array = NDArray[np.float32]


class MentionText(NamedTuple):
    """A mention: lower-case words, types, and its position among the mentions of its types in the caption.

    `place` is the number of those before it, `rivals` the number of all, including itself.
    """

    words: tuple[str, ...]
    types: tuple[str, ...]
    place: int
    rivals: int


def mention_texts(mentions: Iterable[tuple[int, Sequence[str], tuple[str, ...]]]) -> list[MentionText]:
    """The mentions of one image, from the index of the caption, tokens and types, in the order of the captions."""
    mentions = list(mentions)
    texts = []
    for index, (caption, tokens, types) in enumerate(mentions):
        beside = [
            n
            for n, (other, _, other_types) in enumerate(mentions)
            if other == caption and not set(other_types).isdisjoint(types)
        ]
        words = tuple(token.lower() for token in tokens)
        texts.append(MentionText(words, types, sum(n < index for n in beside), len(beside)))
    return texts


def image_mentions(image: Image) -> tuple[list[MentionText], list[int], list[str]]:
    """The visual mentions of an image, each with the index of its caption and its chain."""
    phrases = [(index, phrase) for index, caption in enumerate(image.captions) for phrase in caption.phrases]
    visual = [(index, phrase) for index, phrase in phrases if phrase.visual]
    texts = mention_texts(
        (index, image.captions[index].tokens[phrase.start : phrase.end], phrase.types) for index, phrase in visual
    )
    return texts, [index for index, _ in visual], [phrase.chain for _, phrase in visual]


def labelled_pairs(image: Image) -> Iterator[tuple[MentionText, MentionText, bool]]:
    """Pairs of mentions, of different captions and with a type in common, and whether they are the same entity."""
    texts, captions, chains = image_mentions(image)
    for first, second in combinations(range(len(texts)), 2):
        if captions[first] != captions[second] and not set(texts[first].types).isdisjoint(texts[second].types):
            yield texts[first], texts[second], chains[first] == chains[second]


def content(words: Sequence[str]) -> list[str]:
    """The words without determiners, or all words if nothing else is left."""
    return [word for word in words if word not in DETERMINERS] or list(words)


def pair_features(first: MentionText, second: MentionText) -> list[float]:
    """Features shared by two mentions, independent of their order."""
    words, others = set(content(first.words)), set(content(second.words))
    heads = first.words[-1], second.words[-1]
    counts = [next((NUMBERS[word] for word in mention.words if word in NUMBERS), 0) for mention in (first, second)]
    colours = [COLOURS.intersection(mention.words) for mention in (first, second)]
    plural = [
        mention.words[-1].endswith("s") or mention.words[-1] in ("men", "women", "people", "children")
        for mention in (first, second)
    ]
    low, high = sorted((min(first.rivals, RIVALS), min(second.rivals, RIVALS)))
    values = [
        words == others,
        len(words & others) / len(words | others),
        heads[0] == heads[1],
        not set(head_forms(heads[0])).isdisjoint(head_forms(heads[1])),
        plural[0] == plural[1],
        min(counts) > 0 and counts[0] == counts[1],
        min(counts) > 0 and counts[0] != counts[1],
        bool(colours[0] and colours[1] and colours[0] & colours[1]),
        bool(colours[0] and colours[1] and not colours[0] & colours[1]),
        first.place == second.place,
        first.place == second.place == 0,
        OTHERS.isdisjoint(first.words) != OTHERS.isdisjoint(second.words),
        words <= others or others <= words,
        *(type_ in first.types and type_ in second.types for type_ in TYPES),
        *((low, high) == pair for pair in _RIVAL_PAIRS),
    ]
    return [float(value) for value in values]


class CoreferenceScorer:
    """Computes the probability that two mentions are the same entity.

    Args:
        vocabulary: the words that have a vector; word `i` has row `i + 1`.
        arrays: `vectors` (rows, width), `hidden.weight` (inputs, hidden), `hidden.bias`, `out.weight` (hidden, 1),
            `out.bias`, as exported by `deixis.training.tools.coreference_training`.

    >>> words = ["a", "man"], ["a", "guy"], ["two", "men"]
    >>> man, guy, men = mention_texts((number, own, ("people",)) for number, own in enumerate(words))
    >>> scorer = CoreferenceScorer.load()
    >>> scorer.probability(man, guy) > 0.9, scorer.probability(man, men) < 0.2
    (True, True)
    """

    def __init__(self, vocabulary: Sequence[str], arrays: Mapping[str, NDArray[np.floating]]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        self._rows = {word: row for row, word in enumerate(self.vocabulary, start=1)}

    @classmethod
    def load(cls, path: str | Path | None = None) -> CoreferenceScorer:
        """Read a file written by `save`; by default the bundled model."""
        return _packaged() if path is None else _read(Path(path))

    def save(self, path: str | Path) -> None:
        """Write vocabulary and weights (as float16) into one safetensors file."""
        arrays = {name: array.astype(np.float16) for name, array in sorted(self.arrays.items())}
        with atomic_write(path) as stream:
            stream.write(safetensors.numpy.save(arrays, {"vocabulary": json.dumps(self.vocabulary)}))

    def probability(self, first: MentionText, second: MentionText) -> float:
        return float(self.probabilities([(first, second)])[0])

    def probabilities(self, pairs: Sequence[tuple[MentionText, MentionText]]) -> Array:
        """(pairs,)"""
        if not pairs:
            return np.zeros(0, np.float32)
        shared = np.array([pair_features(*pair) for pair in pairs], np.float32)
        sides = [np.stack([self._vector(pair[side]) for pair in pairs]) for side in (0, 1)]
        inputs = np.hstack([sides[0] * sides[1], np.abs(sides[0] - sides[1]), shared])
        hidden = np.maximum(inputs @ self.arrays["hidden.weight"] + self.arrays["hidden.bias"], 0)
        logits = (hidden @ self.arrays["out.weight"] + self.arrays["out.bias"])[:, 0]
        scores: Array = 1 / (1 + np.exp(-logits))
        return scores

    def _vector(self, mention: MentionText) -> Array:
        """The vector of the head and the mean of the words' vectors (2 × width)."""
        rows = word_rows(mention, self._rows)
        vectors = self.arrays["vectors"]
        return np.concatenate([vectors[rows[0]], vectors[rows[1:]].mean(0)])


def word_rows(mention: MentionText, rows: Mapping[str, int]) -> list[int]:
    """The rows of the head and of the last content words."""
    return [rows.get(word, UNKNOWN) for word in (mention.words[-1], *content(mention.words)[-LONGEST:])]


@cache
def _packaged() -> CoreferenceScorer:
    with as_file(files("deixis.text") / "models" / "coreference.safetensors") as path:
        return _read(path)


def _read(path: Path) -> CoreferenceScorer:
    try:
        with safetensors.safe_open(require_regular(path), "numpy") as file:
            vocabulary = json.loads(file.metadata()["vocabulary"])
            scorer = CoreferenceScorer(vocabulary, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        # Fails if the arrays do not fit together.
        dog = MentionText(("a", "dog"), ("animals",), 0, 1)
        scorer.probability(dog, dog)
    except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as fault:
        raise InputError(path, f"is not a coreference scorer ({fault})") from None
    return scorer
