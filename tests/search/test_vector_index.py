"""Every implementation of the index keeps the protocol's promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deixis.errors import DeixisError
from deixis.search.encoders import Rows
from deixis.search.vector_index import ExactIndex, VectorIndex

DIM = 16


@pytest.fixture(params=[ExactIndex])
def make(request: pytest.FixtureRequest) -> Callable[[], VectorIndex]:
    return lambda: request.param(DIM)  # type: ignore[no-any-return]


def unit_rows(count: int, seed: int) -> Rows:
    rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_what_is_found_is_what_all_products_say(make: Callable[[], VectorIndex]) -> None:
    index, rows, queries = make(), unit_rows(500, 0), unit_rows(20, 1)
    ids = np.random.default_rng(2).permutation(10**12 + np.arange(500))
    index.add(ids[:300], rows[:300])
    index.add(ids[300:], rows[300:])
    assert index.count() == 500
    found = index.search(queries, 10)
    products = queries @ rows.T
    order = np.argsort(-products, 1)[:, :10]
    assert np.array_equal(found.ids, ids[order])
    assert np.allclose(found.scores, np.take_along_axis(products, order, 1), atol=1e-6)


def test_what_is_removed_is_not_found_and_may_come_back(make: Callable[[], VectorIndex]) -> None:
    index, rows = make(), unit_rows(50, 0)
    index.add(np.arange(50), rows)
    index.remove(np.array([7, 8, 999]))
    assert index.count() == 48
    assert not {7, 8} & set(index.search(rows[7:9], 48).ids.ravel().tolist())
    index.add(np.array([7]), rows[8:9])
    assert index.search(rows[8:9], 1).ids.tolist() == [[7]]


def test_fewer_rows_than_asked_for_end_in_minus_one(make: Callable[[], VectorIndex]) -> None:
    index, rows = make(), unit_rows(3, 0)
    assert index.search(rows, 2).ids.tolist() == [[-1, -1]] * 3
    index.add(np.arange(3), rows)
    assert index.search(rows[:1], 5).ids[0, 3:].tolist() == [-1, -1]
    assert index.search(rows[:0], 5).ids.shape == (0, 5)


def test_an_id_is_taken_once(make: Callable[[], VectorIndex]) -> None:
    index, rows = make(), unit_rows(3, 0)
    index.add(np.arange(3), rows)
    for ids in ([2], [5, 5]):
        with pytest.raises(DeixisError, match="already"):
            index.add(np.array(ids), rows[: len(ids)])
    assert index.count() == 3
