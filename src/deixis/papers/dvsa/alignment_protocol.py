"""How well words find their regions, which the paper could not measure: phrases and boxes of Flickr30k Entities tell.

A phrase's region is the one that its words are aligned with most, by the sum of their products, read in its sentence.
It is right where it covers the phrase's merged box at IoU 0.5. Beside that stand answers that read no word: the whole
picture, the largest of its other regions, the one that shares most with all, and one at random. Phrases that say a
number ("three people") are also held against each of their boxes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack
from typing import Protocol as Interface

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from deixis.corpus.boxes import iou_matrix, merge
from deixis.corpus.records import Image, Phrase
from deixis.metrics.localization import Localized, Localizer, PhraseQuery, evaluate_localization, gold_queries
from deixis.metrics.paper_tables import paper_tables
from deixis.metrics.protocols import Pictures, ResultFields, query_tokens
from deixis.metrics.ranking import TIES
from deixis.metrics.results import BoxSupervision, CorpusReference, Protocol, Result, make_result
from deixis.model import ImageFeatures, Tokens, regions_of
from deixis.papers.dvsa.snippets import OVERLAP, count_regions, number_of, phrase_scores
from deixis.text.tokens import tokens_of

#: Overlap with a drawn box from which a region is right.
IOU = 0.5
#: Words at either end of the table of magnitudes.
ENDS = 40


class AlignsWords(Interface):
    """What is needed of an aligner (`deixis.papers.dvsa.model.AlignmentModel`)."""

    def align_words(self, image: ImageFeatures, sentences: Sequence[Tokens]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """Boxes `(regions, 4)`, the whole picture's first, and the products `(words, regions)` of each sentence."""

    def states(
        self, boxes: Sequence[NDArray[Any]], products: Sequence[NDArray[Any]], beta: float, temperature: float = 0.0
    ) -> list[list[int]]:
        """The region of every word of each sentence."""


class Smoothing(NamedTuple):
    """What neighbouring words of one region add, and the temperature of `AlignmentModel.states`."""

    beta: float
    temperature: float = 0.0


def alignment(
    model: AlignsWords,
    pictures: Pictures,
    best: Smoothing,
    shared: Smoothing | None = None,
    *,
    chosen_by_boxes: bool = False,
    **fields: Unpack[ResultFields],
) -> Result:
    """Phrases whose region is right: by the best region of each word (`word_alignment`), smoothed (`alignment`), and by
    what all chains of regions share (`shared_alignment`).

    Args:
        best: of the best chain, without a temperature.
        shared: with one.
        chosen_by_boxes: both were chosen by the drawn boxes of the validation split, which the result then says.
    """
    start = time.monotonic()
    ways = {"alignment": best, "word_alignment": Smoothing(0.0)} | ({"shared_alignment": shared} if shared else {})
    found = {
        name: evaluate_localization(pictures.images, aligned_localizer(model, pictures, way), recall_at=(1,))
        for name, way in ways.items()
    }
    words = found["word_alignment"]
    parameters: dict[str, str | int | float | bool] = {
        **pictures.parameters,
        "boxes": "merged",
        "iou": IOU,
        "beta": best.beta,
    }
    if shared:
        parameters |= _told(shared)
    return make_result(
        Protocol("phrase alignment", TIES, parameters),
        {**{name: each.as_dict() for name, each in found.items()}, "wordless": wordless(pictures)},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(pictures.images), "phrases": words.phrases, "without_box": words.without_box},
        box_supervision=_supervision(pictures, words.overall.upper_bound, chosen_by_boxes),
        **fields,
    )


def wordless(pictures: Pictures) -> dict[str, float]:
    """The percentage of phrases that are right without a word read: `whole`, `largest`, `central`, which shares most
    with all regions, and `random` in expectation.
    """
    found: dict[str, list[float]] = {"whole": [], "largest": [], "central": [], "random": []}
    for image in pictures.images:
        queries, gold = gold_queries(image)
        if not queries:
            continue
        features = pictures.features(image)
        boxes = np.concatenate([[[0, 0, *features.size]], regions_of(features)[1]])
        right = iou_matrix(np.stack([merge(drawn) for drawn in gold]), boxes) >= IOU
        areas = (boxes[1:, 2:] - boxes[1:, :2]).prod(1)
        found["whole"] += right[:, 0].tolist()
        found["largest"] += right[:, 1 + int(areas.argmax()) if len(areas) else 0].tolist()
        found["central"] += right[:, iou_matrix(boxes, boxes).sum(0).argmax()].tolist()
        found["random"] += right.mean(1).tolist()
    return {name: 100 * float(np.mean(own)) for name, own in found.items()}


def best_smoothing(model: AlignsWords, pictures: Pictures, ways: Sequence[Smoothing]) -> Smoothing:
    """The one with which most phrases of a split have a region that is right; the first of several."""
    # Of every sentence; and of every phrase its sentence, itself, and which regions are right.
    boxes: list[NDArray[Any]] = []
    products: list[NDArray[Any]] = []
    asked: list[tuple[int, Phrase, NDArray[np.bool_]]] = []
    for image in pictures.images:
        queries, gold = gold_queries(image)
        if not queries:
            continue
        sentences = list(dict.fromkeys(tokens_of(query.caption) for query in queries))
        own, scores = model.align_words(pictures.features(image), sentences)
        right = iou_matrix(np.stack([merge(drawn) for drawn in gold]), own) >= IOU
        for query, there in zip(queries, right, strict=True):
            asked.append((len(products) + sentences.index(tokens_of(query.caption)), query.phrase, there))
        boxes += [own] * len(scores)
        products += scores
    hits = []
    for way in ways:
        states = model.states(boxes, products, *way)
        chosen = (_aligned(products[of], states[of], phrase.start, phrase.end).argmax() for of, phrase, _ in asked)
        hits.append(sum(bool(there[region]) for region, (_, _, there) in zip(chosen, asked, strict=True)))
    return ways[int(np.argmax(hits))]


def aligned_localizer(model: AlignsWords, pictures: Pictures, way: Smoothing) -> Localizer:
    """Scores of a phrase's regions: the products of those of its words that are aligned with them, in its sentence."""

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        sentences = list(dict.fromkeys(tokens_of(query.caption) for query in queries))
        boxes, products = model.align_words(pictures.features(image), sentences)
        states = dict(zip(sentences, model.states([boxes] * len(sentences), products, *way), strict=True))
        own = dict(zip(sentences, products, strict=True))
        scores = [
            _aligned(own[sentence], states[sentence], query.phrase.start, query.phrase.end)
            for query, sentence in ((query, tokens_of(query.caption)) for query in queries)
        ]
        return Localized(boxes, np.stack(scores))

    return localize


def _aligned(products: NDArray[Any], states: Sequence[int], start: int, end: int) -> NDArray[np.float64]:
    """(regions,): the sums; a region that no word of the phrase has is behind all that one has."""
    scores = np.zeros(products.shape[1])
    for word in range(start, end):
        scores[states[word]] += products[word, states[word]]
    unused = ~np.isin(np.arange(len(scores)), states[start:end])
    scores[unused] = scores.min() - 1
    return scores


def counting(
    model: AlignsWords,
    pictures: Pictures,
    shared: Smoothing,
    *,
    chosen_by_boxes: bool = False,
    **fields: Unpack[ResultFields],
) -> Result | None:
    """Phrases that say a number and have boxes, in percent; None where the split has none.

    `counted` gives them as many different regions (`deixis.papers.dvsa.snippets.count_regions`) by the products of
    their
    words, `shared` by what all chains of regions share; `repeated` the best so many, different or not; `single` the
    best region alone; `bound` all regions. `count_accuracy` is the share of phrases with as many regions as drawn
    boxes, `box_recall` that of drawn boxes with a region of their own at IoU 0.5, `all_found` that of phrases with all
    their boxes found.

    Args:
        shared: how chains are weighted, with a temperature.
        chosen_by_boxes: it was chosen by the drawn boxes of the validation split, which the result then says.
    """
    start = time.monotonic()
    tallies: dict[str, list[tuple[bool, int, int]]] = defaultdict(list)
    for image in pictures.images:
        queries, gold = gold_queries(image)
        numbered = [
            (query, drawn, number)
            for query, drawn in zip(queries, gold, strict=True)
            if (number := number_of(query_tokens(query))) is not None
        ]
        if not numbered:
            continue
        boxes, products = model.align_words(
            pictures.features(image), [tokens_of(query.caption) for query, _, _ in numbered]
        )
        for (query, drawn, number), own in zip(numbered, products, strict=True):
            span = (query.phrase.start, query.phrase.end)
            scores, worth = (phrase_scores(own, boxes, span, *way) for way in (Smoothing(0.0), shared))
            chosen = {
                "counted": count_regions(scores, boxes[1:], number),
                "shared": count_regions(worth, boxes[1:], number),
                "repeated": np.argsort(-scores, kind="stable")[:number].tolist(),
                "single": count_regions(scores, boxes[1:], 1),
                "bound": list(range(len(scores))),
            }
            for name, regions in chosen.items():
                found = _found(drawn, boxes[1:][regions])
                tallies[name].append((len(regions) == len(drawn), found, len(drawn)))
    if not tallies:
        return None
    counted = {name: _counted(tally) for name, tally in tallies.items()}
    # All regions are no count.
    del counted["bound"]["count_accuracy"]
    return make_result(
        Protocol("counting", TIES, {**pictures.parameters, "iou": IOU, "overlap": OVERLAP, **_told(shared)}),
        {"counting_alignment": counted},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"phrases": len(tallies["counted"]), "boxes": sum(drawn for _, _, drawn in tallies["counted"])},
        box_supervision=_supervision(pictures, counted["bound"]["box_recall"], chosen_by_boxes),
        **fields,
    )


def _told(shared: Smoothing) -> dict[str, float]:
    return {"shared_beta": shared.beta, "temperature": shared.temperature}


def _supervision(pictures: Pictures, upper_bound: float, chosen_by_boxes: bool) -> BoxSupervision:
    supervision = pictures.box_supervision(upper_bound)
    if not chosen_by_boxes:
        return supervision
    statement = f"{supervision.statement}; smoothing chosen by the boxes of the validation split"
    return msgspec.structs.replace(supervision, statement=statement)


def _found(drawn: NDArray[Any], chosen: NDArray[Any]) -> int:
    """How many drawn boxes have a region of their own."""
    right = iou_matrix(drawn, chosen) >= IOU
    rows, columns = linear_sum_assignment(right, maximize=True)
    return int(right[rows, columns].sum())


def _counted(tally: Sequence[tuple[bool, int, int]]) -> dict[str, float]:
    exact, found, drawn = (np.array(column, float) for column in zip(*tally, strict=True))
    return {
        "count_accuracy": 100 * float(exact.mean()),
        "box_recall": 100 * float(found.sum() / drawn.sum()),
        "all_found": 100 * float((found == drawn).mean()),
    }


def magnitudes(
    words: Sequence[tuple[str, float, int]],
    pictures: Pictures,
    captions: CorpusReference,
    **fields: Unpack[ResultFields],
) -> Result:
    """Table 1 of the DVSA paper's supplement: the mean length of the vectors of words.

    Args:
        words: words, the mean lengths of their vectors and their counts, longest first. The result has the first and
            the last 40, and those of the paper. Tokens that are no plain words are left out.
        pictures: the pictures whose features the model takes.
        captions: the corpus and split of the captions in which the words were measured.
    """
    start = time.monotonic()
    plain = [(word, length) for word, length, _ in words if word.isalpha()]
    in_paper = {row.id for row in paper_tables()["dvsa/table1"].rows}
    chosen = dict([*plain[:ENDS], *plain[-ENDS:], *((word, length) for word, length in plain if word in in_paper)])
    return make_result(
        Protocol("word magnitudes", "none", {**pictures.parameters}),
        {"words": {word: {"magnitude": length} for word, length in chosen.items()}},
        duration=time.monotonic() - start,
        corpus=captions,
        counts={"words": len(words)},
        box_supervision=pictures.box_supervision(),
        **fields,
    )
