"""Overlap against counted pixels, merging, and suppression against the textbook loop."""

from __future__ import annotations

import numpy as np
import pytest

from deixis.corpus.boxes import box_array, iou_matrix, merge, suppress, suppress_each
from deixis.corpus.records import Box


def random_boxes(generator, count, size=12, least=0):
    corner = generator.integers(0, size, (count, 2))
    sides = generator.integers(least, size, (count, 2))
    return np.concatenate([corner, corner + sides], axis=1).astype(float)


def pixels(box, size=24):
    mask = np.zeros((size, size), bool)
    x1, y1, x2, y2 = box.astype(int)
    mask[y1:y2, x1:x2] = True
    return mask


def test_overlap_is_what_counting_pixels_gives():
    generator = np.random.default_rng(0)
    for _ in range(40):
        first, second = random_boxes(generator, 6), random_boxes(generator, 5)
        found = iou_matrix(first, second)
        for i, one in enumerate(first):
            for j, other in enumerate(second):
                union = (pixels(one) | pixels(other)).sum()
                expected = (pixels(one) & pixels(other)).sum() / union if union else 0
                assert found[i, j] == pytest.approx(expected)


def test_the_merged_box_is_the_smallest_that_holds_all():
    generator = np.random.default_rng(1)
    for _ in range(50):
        boxes = random_boxes(generator, int(generator.integers(1, 6)), least=1)
        x1, y1, x2, y2 = merge(boxes).astype(int)
        together = np.any([pixels(box) for box in boxes], axis=0)
        rows, columns = np.nonzero(together)
        assert (x1, y1, x2, y2) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_suppression_is_the_textbook_loop_for_every_query():
    generator = np.random.default_rng(2)
    for _ in range(150):
        count = int(generator.integers(0, 15))
        boxes = random_boxes(generator, count, least=1)
        scores = generator.integers(0, 6, (4, count)).astype(np.float32)
        overlaps = iou_matrix(boxes, boxes)
        budget = int(generator.integers(0, 8))
        for own, kept in zip(scores, suppress_each(boxes, scores, 0.5), strict=True):
            expected: list[int] = []
            for box in sorted(range(count), key=lambda box: (-own[box], box)):
                if all(overlaps[box, better] <= 0.5 for better in expected):
                    expected.append(box)
            assert np.flatnonzero(kept).tolist() == sorted(expected)
            assert suppress(boxes, own, 0.5, count).tolist() == expected
            assert suppress(boxes, own, 0.5, budget).tolist() == expected[:budget]
        least = generator.integers(0, 6, 4).astype(np.float32)
        wanted = suppress_each(boxes, scores, 0.5) & (scores >= least[:, None])
        assert np.array_equal(suppress_each(boxes, scores, 0.5, least), wanted)


def test_records_become_rows():
    assert box_array([Box(1, 2, 3, 4)]).tolist() == [[1, 2, 3, 4]]
    assert box_array([]).shape == (0, 4)
