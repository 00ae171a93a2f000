"""The trained aligner: scores pictures with sentences, localizes phrases, aligns words with regions."""

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
from deixis.training.feature_model import FeatureModel, as_region

Array = NDArray[Any]
#: A region that covers this share of the picture counts as the whole picture: proposals end a pixel before its edges.
WHOLE_SHARE = 0.98


class Magnitude(NamedTuple):
    """A word, the mean length of its vectors over the sentences it occurs in, and its count."""

    word: str
    magnitude: float
    times: int


class FoundRegion(NamedTuple):
    """A region of a collection: the index of its image, its box, and its score (or the length of its vector)."""

    image: int
    box: tuple[float, float, float, float]
    score: float


class AlignmentModel(FeatureModel):
    """The network with its vocabulary.

    Args:
        regions: regions per picture: the picture itself and its best proposals.
        beta, temperature: of `align`, as in `states`.
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
        """Scores Σ_t v_i·s_t of each phrase, read alone, with the picture itself (first) and its regions."""
        boxes, products = self.align_words(self.look(image), phrases)
        return Localized(boxes, np.stack([phrase.sum(0) for phrase in products]))

    def align_words(
        self, image: ImageFeatures, sentences: Sequence[Tokens], most: int | None = None
    ) -> tuple[Array, list[Array]]:
        """Boxes `(regions, 4)`, the whole picture first, and the products `(words, regions)` of each sentence.

        Args:
            most: maximum number of regions, the picture itself included; None: all.
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
        # A counted phrase is a snippet of its own: a negative state separates it from its neighbours.
        for index, (start, end) in enumerate(numbers):
            states[start:end] = [-1 - index] * (end - start)
        snippets = []
        for snippet in snippets_of(states, products):
            span, chosen = (snippet.start, snippet.end), [snippet.region]
            if all(map(is_sign, tokens[span[0] : span[1]])):
                continue
            if snippet.region < 0:
                scores = phrase_scores(products, boxes, span, beta, temperature)
                chosen = [1 + region for region in count_regions(scores, boxes[1:], numbers[span])] or [0]
            snippets.append(
                AlignedSnippet(
                    " ".join(tokens[span[0] : span[1]]),
                    *span,
                    tuple(as_box(boxes[region]) for region in chosen),
                    float(products[span[0] : span[1], chosen].sum()),
                    chosen == [0] or all(_covers(boxes[region], boxes[0]) for region in chosen),
                )
            )
        score = float(self.score([features], [tokens])[0, 0])
        return Alignment(tokens, score, beta, temperature, tuple(snippets))

    def align_captions(self, image: ImageFeatures, sentences: Sequence[Tokens]) -> tuple[Array, list[list[Snippet]]]:
        """Boxes `(regions, 4)` of a picture's regions, and the snippets of each sentence."""
        boxes, products = self.align_words(image, sentences, self.regions)
        states = self.states([boxes] * len(products), products, self.beta, self.temperature)
        return boxes, [snippets_of(regions, scores) for regions, scores in zip(states, products, strict=True)]

    def states(
        self, boxes: Sequence[Array], products: Sequence[Array], beta: float, temperature: float = 0.0
    ) -> list[list[int]]:
        """The region of every word of each sentence.

        Args:
            boxes: `(regions, 4)` of each sentence's picture.
            products: `(words, regions)` of each sentence.
            beta: what neighbouring words in the same region add to the score.
            temperature: 0: the single best path (Viterbi). Above 0: the region with the largest expected overlap under
                the chain posterior.
        """
        lengths = [len(words) for words in products]
        if not any(lengths):
            return [[] for _ in products]
        regions = max(map(len, boxes))
        padded = torch.full((len(products), max(lengths), regions), -torch.inf)
        for row, words in zip(padded, products, strict=True):
            row[:, : words.shape[1]] = 0
            row[: len(words), : words.shape[1]] = torch.from_numpy(words)
        if temperature:
            # Sentences of one picture share its boxes.
            iou = {id(of_picture): iou_matrix(of_picture, of_picture) for of_picture in boxes}
            overlaps = torch.zeros(len(products), regions, regions)
            for table, of_picture in zip(overlaps, boxes, strict=True):
                table[: len(of_picture), : len(of_picture)] = torch.from_numpy(iou[id(of_picture)])
            states = most_shared(padded, torch.tensor(lengths), overlaps, beta, temperature)
        else:
            states = smooth(padded, torch.tensor(lengths), beta)
        return [sentence[:length] for sentence, length in zip(states.tolist(), lengths, strict=True)]

    def word_magnitudes(self, texts: Sequence[Tokens], minimum_count: int = 5) -> list[Magnitude]:
        """The words of texts by the mean length of their vectors, longest first (Table 1 of the supplement)."""
        lengths: dict[str, list[float]] = defaultdict(list)
        for start in range(0, len(texts), TEXTS):
            part = texts[start : start + TEXTS]
            for text, vectors in zip(part, self._read(part), strict=True):
                for word, length in zip(text, np.linalg.norm(vectors, axis=1).tolist(), strict=True):
                    lengths[word].append(length)
        magnitudes = [Magnitude(word, float(np.mean(values)), len(values)) for word, values in lengths.items()]
        frequent = [word for word in magnitudes if word.times >= minimum_count]
        return sorted(frequent, key=lambda word: (-word.magnitude, word.word))

    def longest_regions(
        self, images: Iterable[ImageFeatures], count: int, *, of_one: int | None = None
    ) -> list[FoundRegion]:
        """The regions of a collection with the longest vectors (Fig. 1 of the supplement), longest first.

        Args:
            of_one: maximum number of regions per picture; None: no limit.
        """
        regions = map(self._proposals, images)
        return _best_regions(regions, count, of_one, lambda rows: np.linalg.norm(self._embed(rows), axis=1)[:, None])[0]

    def find_regions(
        self, images: Iterable[ImageFeatures], snippets: Sequence[Tokens], count: int, *, of_one: int | None = None
    ) -> list[list[FoundRegion]]:
        """The best regions of a collection for each snippet (Figs. 2 and 3 of the supplement), best first.

        The score of a snippet and a region is Σ_t v·s_t over its words, read alone. The collection is read once.
        """
        words = self._snippets(snippets)
        return _best_regions(map(self._proposals, images), count, of_one, lambda rows: self._embed(rows) @ words)

    def best_regions(self, images: Iterable[ImageFeatures], snippets: Sequence[Tokens]) -> Array:
        """`(images, snippets)`: the best such score in each image."""
        words = self._snippets(snippets)
        return np.stack([(self._embed(self._proposals(image)[0]) @ words).max(0, initial=-np.inf) for image in images])

    def _proposals(self, image: ImageFeatures) -> tuple[Array, Array]:
        """Features and boxes of the regions that are used, without the picture itself."""
        rows, boxes = regions_of(image)
        return rows[: self.regions - 1], boxes[: self.regions - 1]

    def _snippets(self, snippets: Sequence[Tokens]) -> Array:
        """`(dim, snippets)`"""
        return np.stack([words.sum(0) for words in self._read(snippets)], 1)

    @torch.no_grad()
    def _embed(self, regions: Array) -> Array:
        rows = torch.from_numpy(np.array(regions, np.float32)).to(self._device)
        return self.network.embed_regions(rows).cpu().numpy()

    @torch.no_grad()
    def _read(self, texts: Sequence[Tokens]) -> list[Array]:
        """Word vectors `(words, dim)` of each text."""
        ids = torch.from_numpy(self.fragments.ids(texts)).to(self._device)
        vectors = torch.cat([self.network.embed_fragments(part) for part in torch.split(ids, TEXTS)]).cpu().numpy()
        return [words[: len(text)] for words, text in zip(vectors, texts, strict=True)]


def _covers(box: Array, picture: Array) -> bool:
    """Whether a region is the whole picture, except for a pixel or so at its edges."""
    sides = (box[2:] - box[:2]) / (picture[2:] - picture[:2])
    return bool(sides.prod() >= WHOLE_SHARE)


def with_picture(image: ImageFeatures, most: int | None = None) -> tuple[Array, Array]:
    """Features and boxes of the whole picture and then of its regions; at most `most`, itself included."""
    first = slice(None if most is None else most - 1)
    regions, boxes = (part[first] for part in regions_of(image))
    picture = as_region(image, image.image if image.whole is None else image.whole)
    whole = [[0.0, 0.0, *image.size]]
    return np.concatenate([picture[None], regions]), np.concatenate([np.array(whole, boxes.dtype), boxes])


def stacked(regions: Sequence[Array]) -> tuple[torch.Tensor, torch.Tensor]:
    """The regions of pictures, padded, `(images, regions, channels)`, and a mask of which are present."""
    padded = np.zeros((len(regions), max(map(len, regions)), regions[0].shape[1]), regions[0].dtype)
    present = np.zeros(padded.shape[:2], bool)
    for index, of_image in enumerate(regions):
        padded[index, : len(of_image)] = of_image
        present[index, : len(of_image)] = True
    return torch.from_numpy(padded), torch.from_numpy(present)


def _best_regions(
    regions: Iterable[tuple[Array, Array]], count: int, of_one: int | None, score: Callable[[Array], Array]
) -> list[list[FoundRegion]]:
    """The best regions for each column of the scores `(regions, columns)`.

    Args:
        regions: features and boxes of one image after another.
    """
    best: dict[int, list[tuple[float, int, int, tuple[float, float, float, float]]]] = defaultdict(list)
    for image, (features, boxes) in enumerate(regions):
        for column, scores in enumerate(score(features).T):
            for region in np.argsort(-scores, kind="stable")[: count if of_one is None else of_one].tolist():
                x1, y1, x2, y2 = boxes[region].tolist()
                best[column].append((float(scores[region]), -image, -region, (x1, y1, x2, y2)))
            best[column] = heapq.nlargest(count, best[column])
    return [[FoundRegion(-image, box, value) for value, image, _, box in best[column]] for column in sorted(best)]
