"""Every implementation of the index keeps the protocol's promises."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.stores import milvus as milvus_index
from deixis.search.stores.approximate import ApproximateIndex
from deixis.search.stores.exact import ExactIndex, Ids, VectorIndex
from deixis.search.stores.milvus import MilvusIndex

DIM = 16
Make = Callable[[], VectorIndex]
KINDS = ("exact", "approximate", "milvus-lite", "milvus server")


class RememberingIndex(ApproximateIndex):
    """An approximate index, and the rows that a collection would have on the disk."""

    disk: dict[int, Floats]

    def add(self, ids: Ids, rows: Floats) -> None:
        super().add(ids, rows)
        self.disk.update(zip(ids.tolist(), rows, strict=True))


def remembering_index() -> VectorIndex:
    disk: dict[int, Floats] = {}
    index = RememberingIndex.trained(unit_rows(400, 9), 1000, lambda ids: np.stack([disk[own] for own in ids.tolist()]))
    assert isinstance(index, RememberingIndex)
    index.disk = disk
    return index


def milvus_server() -> str:
    """Where `DEIXIS_TEST_MILVUS` says that a server is, as `milvus://HOST:PORT`."""
    return os.environ.get("DEIXIS_TEST_MILVUS", "")


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param in ("exact", "approximate"):
        yield {"exact": lambda: ExactIndex(DIM), "approximate": remembering_index}[request.param]
        return
    if importlib.util.find_spec("pymilvus") is None:
        pytest.skip("pymilvus is not installed")
    store = str(tmp_path / "rows.db") if request.param == "milvus-lite" else milvus_server()
    if not store:
        pytest.skip("no Milvus server: DEIXIS_TEST_MILVUS names none")
    made: list[MilvusIndex] = []

    def make_milvus() -> VectorIndex:
        made.append(MilvusIndex(store, f"deixis_test_{secrets.token_hex(6)}", DIM))
        return made[-1]

    yield make_milvus
    for index in made:
        index.drop()
        index.close()


def unit_rows(count: int, seed: int) -> Floats:
    """Floats that float16 can hold, of unit length as far as it can."""
    rows = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


def test_what_is_found_is_what_all_products_say(make: Make) -> None:
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


def test_what_is_removed_is_not_found_and_may_come_back(make: Make) -> None:
    index, rows = make(), unit_rows(50, 0)
    index.add(np.arange(50), rows)
    index.remove(np.array([7, 8, 999]))
    assert index.count() == 48
    assert not {7, 8} & set(index.search(rows[7:9], 48).ids.ravel().tolist())
    index.add(np.array([7]), rows[8:9])
    assert index.search(rows[8:9], 1).ids.tolist() == [[7]]
    assert index.count() == 49


def test_fewer_rows_than_asked_for_end_in_minus_one(make: Make) -> None:
    index, rows = make(), unit_rows(3, 0)
    assert index.search(rows, 2).ids.tolist() == [[-1, -1]] * 3
    index.add(np.arange(3), rows)
    assert index.search(rows[:1], 5).ids[0, 3:].tolist() == [-1, -1]
    assert index.search(rows[:0], 5).ids.shape == (0, 5)


def test_an_id_is_taken_once(make: Make) -> None:
    index, rows = make(), unit_rows(3, 0)
    index.add(np.arange(3), rows)
    for ids in ([2], [5, 5]):
        with pytest.raises(DeixisError, match="already"):
            index.add(np.array(ids), rows[: len(ids)])
    assert index.count() == 3


def test_all_ids_are_reported_rising(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MESSAGE_ROWS", "MESSAGE_IDS", "MESSAGE_FOUND"):
        monkeypatch.setattr(milvus_index, limit, 64)
    index, rows = make(), unit_rows(400, 0)
    assert index.ids().tolist() == []
    ids = np.random.default_rng(3).permutation(1000)[:400]
    index.add(ids[:300], rows[:300])
    index.add(ids[300:], rows[300:])
    index.remove(ids[100:250])
    assert index.ids().tolist() == sorted([*ids[:100].tolist(), *ids[250:].tolist()])
    assert len(index.search(rows[:70], 5).ids) == 70
