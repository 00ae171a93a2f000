"""Average precision of concepts against its definition, picture by picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from deixis.metrics.concept_prediction import concept_precision


def by_definition(scores: list[float], right: list[bool]) -> float:
    """The best precision at each right picture's recall or a higher one, meaned; of equal scores wrong ones first."""
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], right[number]))
    precisions, hits = [], 0
    for place, number in enumerate(order, start=1):
        if right[number]:
            hits += 1
            precisions.append(hits / place)
    return 100 * float(np.mean([max(precisions[place:]) for place in range(len(precisions))]))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 9), st.booleans()), min_size=1, max_size=20))
def test_average_precision_of_each_concept_with_ties_against_us(rows: list[tuple[int, bool, int, bool]]) -> None:
    table = np.array(rows)
    scores, labels = table[:, ::2].astype(float), table[:, 1::2].astype(bool)
    found = concept_precision(scores, labels)
    for concept in range(2):
        if labels[:, concept].any():
            expected = by_definition(scores[:, concept].tolist(), labels[:, concept].tolist())
            assert found[concept] == pytest.approx(expected)
        else:
            assert np.isnan(found[concept])


def test_without_ties_it_is_scikit_learn_s_or_more_through_interpolation() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.random((200, 5)), random.random((200, 5)) < 0.3
    found = concept_precision(scores, labels) / 100
    plain = np.array([average_precision_score(labels[:, k], scores[:, k]) for k in range(5)])
    assert (found >= plain).all()
    np.testing.assert_allclose(found, plain, atol=0.03)


def test_one_score_for_all_pictures_gets_the_share_of_right_ones() -> None:
    labels = np.array([[True, False], [False, True], [False, True], [False, False]])
    np.testing.assert_allclose(concept_precision(np.zeros((4, 2)), labels), [25, 50])
