"""Proposal recall against a plain recount, and that it is the upper bound of phrase localization."""

from __future__ import annotations

import numpy as np
import pytest

from deixis.corpus import Box, Chain, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from deixis.metrics.localization import Localized, evaluate_localization
from deixis.metrics.proposal_recall import COUNTS, IOUS, positives_per_phrase, proposal_recall, recall_figures

KINDS = ("people", "clothing", "scene")


def random_image(generator, number):
    """Chains of no, one or several boxes; phrases of no, one or two types, some not visual."""
    corner = generator.uniform(0, 60, (8, 2))
    boxes = [Box(x, y, x + w, y + h) for (x, y), (w, h) in zip(corner, generator.uniform(5, 40, (8, 2)), strict=True)]
    chains = [
        Chain(str(chain), tuple(generator.permutation(8)[: generator.integers(0, 4)].tolist())) for chain in range(1, 5)
    ]
    captions = []
    for _ in range(3):
        phrases = [
            Phrase(
                place, place + 1, str(generator.integers(0, 5)), tuple(generator.permutation(KINDS)[:types].tolist())
            )
            for place, types in enumerate(generator.integers(0, 3, 4))
        ]
        captions.append(make_caption("one two three four", phrases=phrases))
    return make_image(str(number), width=100, height=100, captions=captions, boxes=boxes, chains=chains)


def merged(boxes):
    return (
        min(box.x1 for box in boxes),
        min(box.y1 for box in boxes),
        max(box.x2 for box in boxes),
        max(box.y2 for box in boxes),
    )


def overlap(a, b):
    inner = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    return inner / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner)


def recounted(pairs, name, iou, count):
    """Percentage of phrases, each as often as it has types, that one of the first boxes covers; and how many."""
    hits = total = 0
    for image, boxes in pairs:
        for caption in image.captions:
            for phrase in caption.phrases:
                own = image.chain_boxes(phrase.chain)
                if not phrase.visual or not own:
                    continue
                times = phrase.types.count(name) if name else max(1, len(phrase.types))
                total += times
                hits += times * any(overlap(merged(own), box) >= iou for box in boxes[:count].tolist())
    return 100 * hits / total, total


def test_recall_is_what_a_plain_recount_gives():
    generator = np.random.default_rng(0)
    pairs = []
    for number in range(12):
        corner = generator.uniform(0, 70, (int(generator.choice([0, 5, 60, 250])), 2))
        boxes = np.concatenate([corner, corner + generator.uniform(5, 60, corner.shape)], 1)
        pairs.append((random_image(generator, number), boxes))
    recall = proposal_recall(pairs)
    figures = recall_figures(recall)
    assert set(figures["by_type"]) == set(KINDS)
    for iou in IOUS:
        for count in COUNTS:
            expected, total = recounted(pairs, "", iou, count)
            assert figures["overall"][f"iou{100 * iou:.0f}"][f"r@{count}"] == pytest.approx(expected)
            assert recall[iou].overall.instances == total
            for name in KINDS:
                expected, _ = recounted(pairs, name, iou, count)
                assert figures["by_type"][name][f"iou{100 * iou:.0f}"][f"r@{count}"] == pytest.approx(expected)
    assert 0 < figures["overall"]["iou70"]["r@50"] < figures["overall"]["iou50"]["r@200"] < 100


def test_no_model_can_beat_the_recall_of_its_proposals():
    generator = np.random.default_rng(1)
    images = [random_image(generator, number) for number in range(10)]
    corner = generator.uniform(0, 70, (100, 2))
    boxes = np.concatenate([corner, corner + generator.uniform(5, 40, corner.shape)], 1)

    def localize(image, queries):
        return Localized(boxes, generator.standard_normal((len(queries), len(boxes))))

    bound = proposal_recall([(image, boxes) for image in images])[0.5].overall.recall[100]
    found = evaluate_localization(images, localize, recall_at=(1, 10, 100))
    assert found.overall.upper_bound == pytest.approx(bound)
    assert found.overall.recall[10] < found.overall.recall[100] == pytest.approx(bound)


def test_a_corpus_without_boxes_cannot_be_measured():
    image = make_image("a", captions=[make_caption("a dog", phrases=[Phrase(0, 2, "1", ("animals",))])])
    with pytest.raises(DeixisError, match="no phrase of these images has a box"):
        proposal_recall([(image, np.zeros((3, 4)))])


def test_positives_are_the_proposals_that_overlap_a_phrase_well() -> None:
    generator = np.random.default_rng(3)
    pairs = []
    for number in range(6):
        image = random_image(generator, number)
        near = [merged(image.chain_boxes(chain.id)) for chain in image.chains if image.chain_boxes(chain.id)]
        pairs.append((image, np.array(near * 2, float).reshape(-1, 4) + generator.uniform(-4, 4, (2 * len(near), 4))))
    counts = [
        sum(overlap(merged(image.chain_boxes(phrase.chain)), box) >= 0.7 for box in boxes.tolist())
        for image, boxes in pairs
        for caption in image.captions
        for phrase in caption.phrases
        if phrase.visual and image.chain_boxes(phrase.chain)
    ]
    found = positives_per_phrase(pairs)
    assert min(sum(count >= 2 for count in counts), sum(count == 1 for count in counts)) > 0
    assert found["per_phrase"] == pytest.approx(np.mean(counts))
    assert found["one_or_more"] == pytest.approx(100 * np.mean([count >= 1 for count in counts]))
    assert found["two_or_more"] == pytest.approx(100 * np.mean([count >= 2 for count in counts]))
    assert positives_per_phrase([]) == {}
