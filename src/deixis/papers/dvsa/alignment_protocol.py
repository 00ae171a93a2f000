"""How well words find their regions, measured with the phrases and boxes of Flickr30k Entities; the paper could not.

The region of a phrase is the one with the largest sum of products with the words that are aligned with it, read in
their sentence. It is correct at IoU ≥ 0.5 with the phrase's merged box. Text-blind baselines: the whole picture, the
largest other region, the region that overlaps all others most, and a random one. Phrases with a number ("three people")
are also compared with each of their boxes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

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
from deixis.model import regions_of
from deixis.papers.dvsa.model import AlignmentModel
from deixis.papers.dvsa.snippets import OVERLAP, count_regions, number_of, phrase_scores
from deixis.text.tokens import tokens_of

#: Overlap with the ground-truth box from which a region is correct.
IOU = 0.5
#: Number of longest, and of shortest, words in the table of magnitudes.
ENDS = 40


class Smoothing(NamedTuple):
    """Arguments of `AlignmentModel.states`."""

    beta: float
    temperature: float = 0.0


def alignment(
    model: AlignmentModel,
    pictures: Pictures,
    best: Smoothing,
    shared: Smoothing | None = None,
    *,
    chosen_by_boxes: bool = False,
    **fields: Unpack[ResultFields],
) -> Result:
    """Phrases with the correct region: by the best region of each word (`word_alignment`), by the best path
    (`alignment`), and by expected overlap (`shared_alignment`).

    Args:
        best: smoothing of the best path, without a temperature.
        shared: smoothing with a temperature.
        chosen_by_boxes: both were chosen with ground-truth boxes of the validation split; the result says so.
    """
    start = time.monotonic()
    ways = {"alignment": best, "word_alignment": Smoothing(0.0)} | ({"shared_alignment": shared} if shared else {})
    recalls = {
        name: evaluate_localization(pictures.images, aligned_localizer(model, pictures, way), recall_at=(1,))
        for name, way in ways.items()
    }
    words = recalls["word_alignment"]
    parameters: dict[str, str | int | float | bool] = {
        **pictures.parameters,
        "boxes": "merged",
        "iou": IOU,
        "beta": best.beta,
    }
    if shared:
        parameters |= _parameters(shared)
    return make_result(
        Protocol("phrase alignment", TIES, parameters),
        {**{name: recall.as_dict() for name, recall in recalls.items()}, "wordless": wordless(pictures)},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(pictures.images), "phrases": words.phrases, "without_box": words.without_box},
        box_supervision=_supervision(pictures, words.overall.upper_bound, chosen_by_boxes),
        **fields,
    )


def wordless(pictures: Pictures) -> dict[str, float]:
    """Percentage of phrases with the correct region for text-blind baselines: `whole`, `largest`, `central` (the region
    that overlaps all others most), and `random` in expectation.
    """
    correct: dict[str, list[float]] = {"whole": [], "largest": [], "central": [], "random": []}
    for image in pictures.images:
        queries, gold = gold_queries(image)
        if not queries:
            continue
        features = pictures.features(image)
        boxes = np.concatenate([[[0, 0, *features.size]], regions_of(features)[1]])
        hits = iou_matrix(np.stack([merge(truth) for truth in gold]), boxes) >= IOU
        areas = (boxes[1:, 2:] - boxes[1:, :2]).prod(1)
        correct["whole"] += hits[:, 0].tolist()
        correct["largest"] += hits[:, 1 + int(areas.argmax()) if len(areas) else 0].tolist()
        correct["central"] += hits[:, iou_matrix(boxes, boxes).sum(0).argmax()].tolist()
        correct["random"] += hits.mean(1).tolist()
    return {name: 100 * float(np.mean(values)) for name, values in correct.items()}


def best_smoothing(model: AlignmentModel, pictures: Pictures, ways: Sequence[Smoothing]) -> Smoothing:
    """The smoothing with the most correct phrases; the first of several."""
    # By sentence: boxes and products. By phrase: its sentence, the phrase, and which regions are correct.
    boxes: list[NDArray[Any]] = []
    products: list[NDArray[Any]] = []
    phrases: list[tuple[int, Phrase, NDArray[np.bool_]]] = []
    for image in pictures.images:
        queries, gold = gold_queries(image)
        if not queries:
            continue
        sentences = list(dict.fromkeys(tokens_of(query.caption) for query in queries))
        image_boxes, scores = model.align_words(pictures.features(image), sentences)
        hits = iou_matrix(np.stack([merge(truth) for truth in gold]), image_boxes) >= IOU
        for query, correct in zip(queries, hits, strict=True):
            phrases.append((len(products) + sentences.index(tokens_of(query.caption)), query.phrase, correct))
        boxes += [image_boxes] * len(scores)
        products += scores
    counts = []
    for way in ways:
        states = model.states(boxes, products, *way)
        count = 0
        for sentence, phrase, correct in phrases:
            region = _aligned(products[sentence], states[sentence], phrase.start, phrase.end).argmax()
            count += bool(correct[region])
        counts.append(count)
    return ways[int(np.argmax(counts))]


def aligned_localizer(model: AlignmentModel, pictures: Pictures, way: Smoothing) -> Localizer:
    """Scores a phrase's regions by the products of its words that are aligned with them, in their sentence."""

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        sentences = list(dict.fromkeys(tokens_of(query.caption) for query in queries))
        boxes, products = model.align_words(pictures.features(image), sentences)
        states = dict(zip(sentences, model.states([boxes] * len(sentences), products, *way), strict=True))
        by_sentence = dict(zip(sentences, products, strict=True))
        scores = [
            _aligned(by_sentence[sentence], states[sentence], query.phrase.start, query.phrase.end)
            for query, sentence in ((query, tokens_of(query.caption)) for query in queries)
        ]
        return Localized(boxes, np.stack(scores))

    return localize


def _aligned(products: NDArray[Any], states: Sequence[int], start: int, end: int) -> NDArray[np.float64]:
    """`(regions,)`: the sums; regions without a word of the phrase rank behind all others."""
    scores = np.zeros(products.shape[1])
    for word in range(start, end):
        scores[states[word]] += products[word, states[word]]
    unused = ~np.isin(np.arange(len(scores)), states[start:end])
    scores[unused] = scores.min() - 1
    return scores


def counting(
    model: AlignmentModel,
    pictures: Pictures,
    shared: Smoothing,
    *,
    chosen_by_boxes: bool = False,
    **fields: Unpack[ResultFields],
) -> Result | None:
    """Phrases with a number and ground-truth boxes, in percent; None if the split has none.

    `counted` gives a phrase as many different regions as it says (`deixis.papers.dvsa.snippets.count_regions`), by the
    products of its words; `shared` the same by expected overlap; `repeated` the best regions, different or not;
    `single` only the best; `bound` all regions. `count_accuracy` is the share of phrases with as many regions as
    ground-truth boxes, `box_recall` that of boxes matched with a region of their own at IoU ≥ 0.5, `all_found` that of
    phrases with all boxes matched.

    Args:
        shared: smoothing with a temperature.
        chosen_by_boxes: it was chosen with ground-truth boxes of the validation split; the result says so.
    """
    start = time.monotonic()
    tallies: dict[str, list[tuple[bool, int, int]]] = defaultdict(list)
    for image in pictures.images:
        queries, gold = gold_queries(image)
        numbered = [
            (query, truth, number)
            for query, truth in zip(queries, gold, strict=True)
            if (number := number_of(query_tokens(query))) is not None
        ]
        if not numbered:
            continue
        boxes, products = model.align_words(
            pictures.features(image), [tokens_of(query.caption) for query, _, _ in numbered]
        )
        for (query, truth, number), words in zip(numbered, products, strict=True):
            span = (query.phrase.start, query.phrase.end)
            scores, expected = (phrase_scores(words, boxes, span, *way) for way in (Smoothing(0.0), shared))
            chosen = {
                "counted": count_regions(scores, boxes[1:], number),
                "shared": count_regions(expected, boxes[1:], number),
                "repeated": np.argsort(-scores, kind="stable")[:number].tolist(),
                "single": count_regions(scores, boxes[1:], 1),
                "bound": list(range(len(scores))),
            }
            for name, regions in chosen.items():
                matched = _matched(truth, boxes[1:][regions])
                tallies[name].append((len(regions) == len(truth), matched, len(truth)))
    if not tallies:
        return None
    counted = {name: _counted(tally) for name, tally in tallies.items()}
    # The upper bound takes all regions, so it has no count.
    del counted["bound"]["count_accuracy"]
    return make_result(
        Protocol("counting", TIES, {**pictures.parameters, "iou": IOU, "overlap": OVERLAP, **_parameters(shared)}),
        {"counting_alignment": counted},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"phrases": len(tallies["counted"]), "boxes": sum(boxes for _, _, boxes in tallies["counted"])},
        box_supervision=_supervision(pictures, counted["bound"]["box_recall"], chosen_by_boxes),
        **fields,
    )


def _parameters(shared: Smoothing) -> dict[str, float]:
    return {"shared_beta": shared.beta, "temperature": shared.temperature}


def _supervision(pictures: Pictures, upper_bound: float, chosen_by_boxes: bool) -> BoxSupervision:
    supervision = pictures.box_supervision(upper_bound)
    if not chosen_by_boxes:
        return supervision
    statement = f"{supervision.statement}; smoothing chosen by the boxes of the validation split"
    return msgspec.structs.replace(supervision, statement=statement)


def _matched(truth: NDArray[Any], chosen: NDArray[Any]) -> int:
    """The number of ground-truth boxes with a region of their own."""
    hits = iou_matrix(truth, chosen) >= IOU
    rows, columns = linear_sum_assignment(hits, maximize=True)
    return int(hits[rows, columns].sum())


def _counted(tally: Sequence[tuple[bool, int, int]]) -> dict[str, float]:
    exact, matched, boxes = (np.array(column, float) for column in zip(*tally, strict=True))
    return {
        "count_accuracy": 100 * float(exact.mean()),
        "box_recall": 100 * float(matched.sum() / boxes.sum()),
        "all_found": 100 * float((matched == boxes).mean()),
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
