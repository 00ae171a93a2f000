"""The aligner as a model: it scores pictures with sentences, localizes phrases, and aligns each word with a region."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from deixis.corpus.boxes import iou_matrix
from deixis.errors import DeixisError
from deixis.model import (
    AlignedSnippet,
    Alignment,
    ImageFeatures,
    ImageInput,
    Localized,
    Text,
    Tokens,
    as_box,
    as_tokens,
    regions_of,
)
from deixis.papers.dvsa.fast.all_pairs import TEXTS
from deixis.papers.dvsa.fragments import Fragments
from deixis.papers.dvsa.network import AlignmentNetwork
from deixis.papers.dvsa.snippets import (
    Snippet,
    carry_signs,
    count_regions,
    is_sign,
    most_shared,
    number_of,
    phrase_scores,
    smooth,
    snippets_of,
)
from deixis.training.feature_model import FeatureModel

Array = NDArray[Any]
#: What regions whose features contain their coordinates would have for the whole picture.
WHOLE = (0.0, 0.0, 1.0, 1.0, 1.0)
#: A region of this share of the picture counts as the picture: proposals stop a pixel before its edges.
WHOLE_SHARE = 0.98


class Magnitude(NamedTuple):
    """A word, the mean length of its vectors in the sentences it stands in, and how often it was met."""

    word: str
    magnitude: float
    times: int


class FoundRegion(NamedTuple):
    """A region of a collection: the number of its image, its box, and how well it fits (or how long its vector is)."""

    image: int
    box: tuple[float, float, float, float]
    score: float


class AlignmentModel(FeatureModel):
    """An aligner with the texts it reads.

    Args:
        regions: how many a picture is scored by and aligned with: itself, and its best proposals.
        beta: what neighbouring words of one region add, for `align`.
        temperature: as in `states`, for `align`.
    """

    def __init__(
        self,
        network: AlignmentNetwork,
        fragments: Fragments,
        regions: int,
        beta: float,
        device: torch.device,
        *,
        temperature: float = 0.0,
    ) -> None:
        super().__init__(device)
        self.network, self.fragments = network.eval().to(device), fragments
        self.regions, self.beta, self.temperature = regions, beta, temperature

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        ids = torch.from_numpy(self.fragments.ids([as_tokens(text) for text in texts])).to(self._device)
        rows, present = stacked([with_picture(image, self.regions)[0] for image in self.features_of(images)])
        scores = self.network.score_all(rows.to(self._device), present.to(self._device), ids)
        return scores.cpu().numpy()

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if not is_sign(token) and not self.fragments.text.knows(token)]

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        """By Σ_t v_i·s_t of the phrase read by itself, among the picture's regions and, first, the picture itself."""
        boxes, products = self.align_words(self.look(image), phrases)
        return Localized(boxes, np.stack([own.sum(0) for own in products]))

    def align_words(
        self, image: ImageFeatures, sentences: Sequence[Tokens], most: int | None = None
    ) -> tuple[Array, list[Array]]:
        """Boxes (regions, 4), the whole picture's first, and the products (words, regions) of each sentence.

        Args:
            most: at most so many regions, the picture itself included; None takes all.
        """
        regions, boxes = with_picture(image, most)
        visual = self._embed(regions)
        return boxes, [words @ visual.T for words in self._read(sentences)]

    def align(
        self,
        image: ImageInput,
        sentence: Text,
        *,
        beta: float | None = None,
        temperature: float | None = None,
        counted: Sequence[tuple[int, int]] = (),
    ) -> Alignment:
        """Snippets of one sentence, in order; `score` is S of picture and sentence (eq. 1 of the supplement)."""
        beta = self.beta if beta is None else beta
        temperature = self.temperature if temperature is None else temperature
        tokens, features = tuple(as_tokens(sentence)), self.look(image)
        if all(map(is_sign, tokens)):
            raise DeixisError("the sentence has no words")
        boxes, (products,) = self.align_words(features, [tokens], self.regions)
        (states,) = self.states([boxes], [products], beta, temperature)
        states = carry_signs(tokens, states)
        numbers = {span: number for span in counted if (number := number_of(tokens[span[0] : span[1]])) is not None}
        # A counted phrase is a snippet of its own: a state that no region has keeps it apart from its neighbours.
        for place, (start, end) in enumerate(numbers):
            states[start:end] = [-1 - place] * (end - start)
        found = []
        for snippet in snippets_of(states, products):
            span, chosen = (snippet.start, snippet.end), [snippet.region]
            if all(map(is_sign, tokens[span[0] : span[1]])):
                continue
            if snippet.region < 0:
                scores = phrase_scores(products, boxes, span, beta, temperature)
                chosen = [1 + region for region in count_regions(scores, boxes[1:], numbers[span])] or [0]
            found.append(
                AlignedSnippet(
                    " ".join(tokens[span[0] : span[1]]),
                    *span,
                    tuple(as_box(boxes[region]) for region in chosen),
                    float(products[span[0] : span[1], chosen].sum()),
                    chosen == [0] or all(_covers(boxes[region], boxes[0]) for region in chosen),
                )
            )
        score = float(self.score([features], [tokens])[0, 0])
        return Alignment(tokens, score, beta, temperature, tuple(found))

    def align_captions(self, image: ImageFeatures, sentences: Sequence[Tokens]) -> tuple[Array, list[list[Snippet]]]:
        """Boxes (regions, 4) of what a picture is scored by, and each sentence as snippets of one region."""
        boxes, products = self.align_words(image, sentences, self.regions)
        states = self.states([boxes] * len(products), products, self.beta, self.temperature)
        return boxes, [snippets_of(own, scores) for own, scores in zip(states, products, strict=True)]

    def states(
        self, boxes: Sequence[Array], products: Sequence[Array], beta: float, temperature: float = 0.0
    ) -> list[list[int]]:
        """The region of every word, for all sentences at once: of the best chain, or, with a temperature, the one that
        shares most with those of all chains.

        Args:
            boxes: (regions, 4) those of each sentence's picture.
        """
        lengths = [len(own) for own in products]
        if not any(lengths):
            return [[] for _ in products]
        regions = max(map(len, boxes))
        padded = torch.full((len(products), max(lengths), regions), -torch.inf)
        for row, own in zip(padded, products, strict=True):
            row[:, : own.shape[1]] = 0
            row[: len(own), : own.shape[1]] = torch.from_numpy(own)
        if temperature:
            shared = {id(own): iou_matrix(own, own) for own in boxes}
            overlaps = torch.zeros(len(products), regions, regions)
            for table, own in zip(overlaps, boxes, strict=True):
                table[: len(own), : len(own)] = torch.from_numpy(shared[id(own)])
            found = most_shared(padded, torch.tensor(lengths), overlaps, beta, temperature)
        else:
            found = smooth(padded, torch.tensor(lengths), beta)
        return [own[:length] for own, length in zip(found.tolist(), lengths, strict=True)]

    def word_magnitudes(self, texts: Sequence[Tokens], minimum_count: int = 5) -> list[Magnitude]:
        """The words of texts by the mean length of their vectors, longest first (Table 1 of the supplement)."""
        lengths: dict[str, list[float]] = defaultdict(list)
        for start in range(0, len(texts), TEXTS):
            part = texts[start : start + TEXTS]
            for text, vectors in zip(part, self._read(part), strict=True):
                for word, length in zip(text, np.linalg.norm(vectors, axis=1).tolist(), strict=True):
                    lengths[word].append(length)
        kept = [Magnitude(word, float(np.mean(own)), len(own)) for word, own in lengths.items()]
        return sorted((each for each in kept if each.times >= minimum_count), key=lambda each: (-each[1], each[0]))

    def longest_regions(
        self, images: Iterable[ImageFeatures], count: int, *, of_one: int | None = None
    ) -> list[FoundRegion]:
        """The regions of greatest magnitude in a collection (Fig. 1 of the supplement), longest first.

        Args:
            of_one: at most so many of one picture; None sets no limit.
        """
        own = map(self._own, images)
        return _best_regions(own, count, of_one, lambda rows: np.linalg.norm(self._embed(rows), axis=1)[:, None])[0]

    def find_regions(
        self, images: Iterable[ImageFeatures], snippets: Sequence[Tokens], count: int, *, of_one: int | None = None
    ) -> list[list[FoundRegion]]:
        """The regions of a collection that fit pieces of text best (Figs. 2 and 3 of the supplement), best first.

        A snippet's score with a region is Σ_t v·s_t of its words, read by themselves. The collection is read once.
        """
        words = self._snippets(snippets)
        return _best_regions(map(self._own, images), count, of_one, lambda rows: self._embed(rows) @ words)

    def best_regions(self, images: Iterable[ImageFeatures], snippets: Sequence[Tokens]) -> Array:
        """`(images, snippets)`: the best of such scores of each image."""
        words = self._snippets(snippets)
        found = [(self._embed(self._own(image)[0]) @ words).max(0, initial=-np.inf) for image in images]
        return np.stack(found)

    def _own(self, image: ImageFeatures) -> tuple[Array, Array]:
        """Features and boxes of the proposals that a picture is scored by."""
        rows, boxes = regions_of(image)
        return rows[: self.regions - 1], boxes[: self.regions - 1]

    def _snippets(self, snippets: Sequence[Tokens]) -> Array:
        """(dim, snippets)"""
        return np.stack([own.sum(0) for own in self._read(snippets)], 1)

    @torch.no_grad()
    def _embed(self, regions: Array) -> Array:
        rows = torch.from_numpy(np.array(regions, np.float32)).to(self._device)
        return self.network.embed_regions(rows).cpu().numpy()

    @torch.no_grad()
    def _read(self, texts: Sequence[Tokens]) -> list[Array]:
        """Word vectors (words, dim) of each text."""
        ids = torch.from_numpy(self.fragments.ids(texts)).to(self._device)
        vectors = torch.cat([self.network.embed_fragments(part) for part in torch.split(ids, TEXTS)]).cpu().numpy()
        return [own[: len(text)] for own, text in zip(vectors, texts, strict=True)]


def _covers(box: Array, picture: Array) -> bool:
    """Whether a region is the picture, but for a pixel or so at its edges."""
    sides = (box[2:] - box[:2]) / (picture[2:] - picture[:2])
    return bool(sides.prod() >= WHOLE_SHARE)


def with_picture(image: ImageFeatures, most: int | None = None) -> tuple[Array, Array]:
    """Features and boxes of the whole picture and, after it, of its regions; at most so many, itself included."""
    kept = slice(None if most is None else most - 1)
    regions, boxes = (part[kept] for part in regions_of(image))
    picture = image.image if image.whole is None else image.whole
    if regions.shape[1] == len(picture) + len(WHOLE):
        picture = np.concatenate([picture, np.array(WHOLE, picture.dtype)])
    whole = [[0.0, 0.0, *image.size]]
    return np.concatenate([picture[None], regions]), np.concatenate([np.array(whole, boxes.dtype), boxes])


def stacked(regions: Sequence[Array]) -> tuple[torch.Tensor, torch.Tensor]:
    """The regions of pictures as (images, regions, channels), and which are there."""
    rows = np.zeros((len(regions), max(map(len, regions)), regions[0].shape[1]), regions[0].dtype)
    present = np.zeros(rows.shape[:2], bool)
    for line, there, own in zip(rows, present, regions, strict=True):
        line[: len(own)] = own
        there[: len(own)] = True
    return torch.from_numpy(rows), torch.from_numpy(present)


def _best_regions(
    regions: Iterable[tuple[Array, Array]], count: int, of_one: int | None, score: Callable[[Array], Array]
) -> list[list[FoundRegion]]:
    """By each column of the scores (regions, columns); `regions` are features and boxes of one image after another."""
    best: dict[int, list[tuple[float, int, int, tuple[float, float, float, float]]]] = defaultdict(list)
    for number, (rows, boxes) in enumerate(regions):
        for column, scores in enumerate(score(rows).T):
            for place in np.argsort(-scores, kind="stable")[: count if of_one is None else of_one].tolist():
                x1, y1, x2, y2 = boxes[place].tolist()
                best[column].append((float(scores[place]), -number, -place, (x1, y1, x2, y2)))
            best[column] = heapq.nlargest(count, best[column])
    return [[FoundRegion(-number, box, value) for value, number, _, box in best[column]] for column in sorted(best)]
