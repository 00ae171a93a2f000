"""Alignment and counting held against boxes: by hand, on a matcher with given answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.features.store import FeatureStore
from deixis.metrics.localization import gold_queries
from deixis.metrics.protocols import Pictures
from deixis.metrics.results import load, save
from deixis.papers.dvsa.alignment_protocol import (
    Smoothing,
    aligned_localizer,
    alignment,
    best_smoothing,
    counting,
    magnitudes,
)
from deixis.papers.dvsa.snippets import most_shared, number_of, smooth
from deixis.text.tokens import tokens_of
from tests.stores import make_store


class Told:
    """Aligns by rules: `right` gives each word of a phrase the regions at its chain's boxes."""

    def __init__(self, corpus: Corpus, store: FeatureStore, right: bool) -> None:
        self.right = right
        self.images = {store.boxes(image.id).tobytes(): image for image in corpus}

    def align_words(self, image: Any, sentences: Any) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        boxes = np.concatenate([[[0, 0, *image.size]], image.boxes])
        own = self.images[np.asarray(image.boxes).tobytes()]
        products = []
        for sentence in sentences:
            scores = np.zeros((len(sentence), len(boxes)))
            for caption in own.captions:
                if tokens_of(caption) == tuple(sentence):
                    for phrase in caption.phrases:
                        wanted = box_array(own.chain_boxes(phrase.chain)) if phrase.chain else np.empty((0, 4))
                        if len(wanted):
                            overlap = iou_matrix(boxes, np.concatenate([wanted, [merge(wanted)]])).max(1)
                            # Single boxes a little before merged ones.
                            single = (
                                iou_matrix(boxes, wanted).max(1)
                                if number_of(sentence[phrase.start : phrase.end])
                                else 0
                            )
                            scores[phrase.start : phrase.end] = overlap + single if self.right else -overlap
            products.append(scores)
        return boxes, products

    def states(self, boxes: Any, products: Any, beta: float, temperature: float = 0.0) -> list[list[int]]:
        found = []
        for its, own in zip(boxes, products, strict=True):
            overlaps = torch.from_numpy(iou_matrix(its, its))
            scores, lengths = torch.from_numpy(own)[None], torch.tensor([len(own)])
            states = (
                most_shared(scores, lengths, overlaps, beta, temperature)
                if temperature
                else smooth(scores, lengths, beta)
            )
            found.append(states[0].tolist())
        return found


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images([image for image in whole if image.split == "val"][:25])


@pytest.fixture(scope="module")
def pictures(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pictures, FeatureStore]:
    def drawn(image: Any) -> Any:
        """Every drawn box, and every chain's merged box."""
        merged = [merge(box_array(image.chain_boxes(chain.id))) for chain in image.chains if chain.boxes]
        return np.concatenate([box_array(image.boxes), np.array(merged).reshape(-1, 4)])

    store = make_store(tmp_path_factory.mktemp("store") / "drawn", corpus, drawn)
    return Pictures(corpus, "val", store, learned_from_boxes=False), store


def test_words_on_the_right_boxes_are_all_right_and_on_wrong_ones_wrong(
    corpus: Corpus, pictures: tuple[Pictures, FeatureStore]
) -> None:
    shown, store = pictures
    figures = []
    for right in (True, False):
        found = alignment(Told(corpus, store, right), shown, Smoothing(0.1), Smoothing(0.1, 0.05))
        metrics: Any = found.metrics
        assert found.box_supervision is not None
        assert found.counts["phrases"] == sum(len(gold_queries(image)[0]) for image in shown.images)
        assert metrics["alignment"]["overall"]["upper_bound"] == 100
        figures.append(
            [metrics[name]["overall"]["r@1"] for name in ("word_alignment", "alignment", "shared_alignment")]
        )
        boxes = [np.concatenate([[[0, 0, image.width, image.height]], store.boxes(image.id)]) for image in shown.images]
        right_ones = [
            iou_matrix(merge(drawn)[None], own)[0] >= 0.5
            for image, own in zip(shown.images, boxes, strict=True)
            for drawn in gold_queries(image)[1]
        ]
        repeated = [own for image, own in zip(shown.images, boxes, strict=True) for _ in gold_queries(image)[1]]
        assert metrics["wordless"]["whole"] == pytest.approx(100 * np.mean([each[0] for each in right_ones]))
        assert metrics["wordless"]["random"] == pytest.approx(100 * np.mean([each.mean() for each in right_ones]))
        assert metrics["wordless"]["whole"] <= metrics["wordless"]["largest"]
        central = [own[iou_matrix(its, its).mean(1).argmax()] for own, its in zip(right_ones, repeated, strict=True)]
        assert metrics["wordless"]["central"] == pytest.approx(100 * np.mean(central))
    assert min(figures[0]) > 60
    assert max(figures[1]) < 10


def test_the_smoothing_that_is_chosen_is_the_one_under_which_most_phrases_are_right(
    corpus: Corpus, pictures: tuple[Pictures, FeatureStore]
) -> None:
    shown, store = pictures

    class Noisy(Told):
        """Right words among wrong ones: some smoothing helps, much of it does not."""

        def align_words(self, image: Any, sentences: Any) -> tuple[NDArray[Any], list[NDArray[Any]]]:
            boxes, products = super().align_words(image, sentences)
            random = np.random.default_rng(int(boxes.sum()))
            return boxes, [own + random.normal(0, 0.8, own.shape) for own in products]

    matcher = Noisy(corpus, store, True)
    ways = [Smoothing(beta) for beta in (0.0, 0.5, 1.0, 4.0)]
    right = []
    for way in ways:
        metrics: Any = alignment(matcher, shown, way).metrics
        right.append(metrics["alignment"]["overall"]["r@1"])
    assert len(set(right)) > 2
    assert best_smoothing(matcher, shown, ways) == ways[int(np.argmax(right))]
    report = alignment(matcher, shown, ways[0], chosen_by_boxes=True).box_supervision
    assert report is not None
    assert "validation" in report.statement


def test_a_phrase_s_region_is_the_one_that_its_words_weigh_most_in(pictures: tuple[Pictures, FeatureStore]) -> None:
    shown, _ = pictures
    image = next(image for image in shown.images if gold_queries(image)[0])

    class Random:
        def align_words(self, image: Any, sentences: Any) -> Any:
            random = np.random.default_rng(0)
            return np.zeros((5, 4)), [random.normal(size=(len(text), 5)) for text in sentences]

        def states(self, boxes: Any, products: Any, beta: float, temperature: float = 0.0) -> Any:
            return [own.argmax(1).tolist() for own in products]

    queries, _ = gold_queries(image)
    found = aligned_localizer(Random(), shown, Smoothing(0.0))(image, queries)
    sentences = list(dict.fromkeys(tokens_of(query.caption) for query in queries))
    products = dict(zip(sentences, Random().align_words(image, sentences)[1], strict=True))
    for query, scores in zip(queries, found.scores, strict=True):
        words = products[tokens_of(query.caption)][query.phrase.start : query.phrase.end]
        sums = {state: sum(row[state] for row in words if row.argmax() == state) for state in words.argmax(1).tolist()}
        assert int(scores.argmax()) == max(sums, key=sums.__getitem__)
        assert {state: scores[state] for state in sums} == pytest.approx(sums)
        assert all(scores[other] < min(sums.values()) for other in range(5) if other not in sums)


def test_numbered_phrases_are_held_against_each_of_their_boxes(
    corpus: Corpus, pictures: tuple[Pictures, FeatureStore], tmp_path: Path
) -> None:
    shown, store = pictures
    found = counting(Told(corpus, store, True), shown, Smoothing(0.1, 0.05), chosen_by_boxes=True)
    assert found is not None
    save(found, tmp_path / "counting.json")
    assert load(tmp_path / "counting.json") == found
    metrics: Any = found.metrics
    ways = ("counted", "single", "repeated", "shared", "bound")
    counted, single, repeated, shared, bound = (metrics["counting_alignment"][name] for name in ways)
    numbers = [
        (len(drawn), number_of(tokens_of(query.caption)[query.phrase.start : query.phrase.end]))
        for image in shown.images
        for query, drawn in zip(*gold_queries(image), strict=True)
    ]
    numbered = [(drawn, number) for drawn, number in numbers if number]
    assert found.counts == {"phrases": len(numbered), "boxes": sum(drawn for drawn, _ in numbered)}
    assert counted["count_accuracy"] == pytest.approx(100 * np.mean([drawn == number for drawn, number in numbered]))
    assert counted["box_recall"] > 80
    assert single["box_recall"] <= 100 * len(numbered) / sum(drawn for drawn, _ in numbered)
    # Every drawn box is a region.
    assert bound == {"box_recall": 100, "all_found": 100}
    assert single["box_recall"] < repeated["box_recall"] <= 100
    assert shared["count_accuracy"] == counted["count_accuracy"]
    assert shared["box_recall"] > 60
    assert found.box_supervision is not None
    assert found.box_supervision.upper_bound == 100
    assert "validation" in found.box_supervision.statement


def test_magnitudes_list_both_ends_and_the_words_of_the_paper(pictures: tuple[Pictures, FeatureStore]) -> None:
    words = [f"w{chr(97 + k // 26)}{chr(97 + k % 26)}" for k in range(200)]
    words[100], words[0] = "kitchen", "."
    table = [(word, 5.0 - 0.01 * place, 9) for place, word in enumerate(words)]
    found: Any = magnitudes(table, pictures[0], pictures[0].reference).metrics
    assert found["words"]["kitchen"]["magnitude"] == pytest.approx(4.0)
    assert len(found["words"]) == 81
    assert "." not in found["words"]
