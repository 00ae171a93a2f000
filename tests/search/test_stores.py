"""Wherever rows are searched, the answers are those of all rows: after changes, kills, losses, and another model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.catalogue import Catalogue
from deixis.search.collection import Collection
from deixis.search.doctor import examine
from deixis.search.generations import current_generation
from deixis.search.indexing import index_folders
from deixis.search.status import index_status
from deixis.search.stores import vector_stores as stores
from deixis.search.stores.approximate import ApproximateIndex
from deixis.search.stores.exact import ExactIndex, LiveIndex
from deixis.search.stores.milvus import MilvusIndex
from deixis.search.stores.vector_stores import NAME, NEAREST, check_store
from tests.search.fakes import ColourModel, paint, paint_many, unit
from tests.search.test_vector_index import milvus_server

needs_milvus = pytest.mark.skipif(importlib.util.find_spec("pymilvus") is None, reason="pymilvus is not installed")
STORES = [
    "exact",
    "approximate",
    pytest.param("rows.db", marks=needs_milvus),
    pytest.param("server", marks=needs_milvus),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "server" and not milvus_server():
        pytest.skip("no Milvus server: DEIXIS_TEST_MILVUS names none")
    return {"server": milvus_server(), "rows.db": str(tmp_path / "rows.db")}.get(request.param, request.param)


def update(folder: Path, store: str | None = None, name: str = "colours") -> None:
    index_folders(folder / "index", [folder / "pictures"], ColourModel(name), name, store=store)


def answers(folder: Path, queries: Floats, count: int = 5) -> list[list[float]]:
    """Scores of the nearest, after checking them against a product with every row."""
    collection = Collection(folder / "index")
    try:
        found = collection.nearest.search(queries, count)
        rows = collection.embeddings_of(collection.ids)
        scores = -np.sort(-(queries @ rows.T), axis=1)[:, :count]
        assert np.allclose(found.scores[:, : scores.shape[1]], scores, atol=2e-3)
        assert (found.ids[:, : scores.shape[1]] >= 0).all()
        return [[round(float(score), 2) for score in own] for own in found.scores]
    finally:
        collection.close()


QUERIES = unit([(255, 0, 0), (10, 200, 30), (0, 0, 255)])


def test_answers_follow_what_comes_and_goes(store: str, tmp_path: Path) -> None:
    paths = paint_many(tmp_path / "pictures", 60)
    update(tmp_path, store)
    first = answers(tmp_path, QUERIES)
    for path in paths[:30]:
        path.unlink()
    paint_many(tmp_path / "pictures" / "more", 25, seed=1)
    paint(tmp_path / "pictures" / "red.png", (255, 0, 0))
    update(tmp_path)
    second = answers(tmp_path, QUERIES)
    assert second != first
    assert second[0][0] == 1
    assert index_status(tmp_path / "index").store == store
    update(tmp_path)
    assert answers(tmp_path, QUERIES) == second
    assert len(answers(tmp_path, QUERIES, 100)[0]) == 100


def test_another_model_gets_an_index_of_its_own_that_takes_the_place(store: str, tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 20)
    update(tmp_path, store)
    before = milvus_name(tmp_path)
    update(tmp_path, None, "other colours")
    status = index_status(tmp_path / "index")
    assert (status.model, status.store) == ("other colours", store)
    answers(tmp_path, QUERIES)
    assert milvus_name(tmp_path) != before or not before
    if before:
        with pytest.raises(DeixisError, match="Milvus lost the embeddings"):
            MilvusIndex(store, before, 4, create=False)


def milvus_name(folder: Path) -> str:
    catalogue = Catalogue.read(generation_of(folder))
    try:
        return catalogue.setting(NAME)
    finally:
        catalogue.close()


def generation_of(folder: Path) -> Path:
    generation = current_generation(folder / "index")
    assert generation is not None
    return generation


def test_a_store_may_be_left_for_another(store: str, tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 20)
    update(tmp_path, "approximate")
    before = answers(tmp_path, QUERIES)
    for other in (store, "exact", "approximate", ""):
        update(tmp_path, other)
        assert answers(tmp_path, QUERIES) == before
    assert not (generation_of(tmp_path) / NEAREST).exists()


def test_what_an_index_has_not_got_yet_is_found_too(store: str, tmp_path: Path) -> None:
    """As after a kill between the catalogue and the store, and for who opened an index that has changed since."""
    paint_many(tmp_path / "pictures", 30)
    update(tmp_path, store)
    collection = Collection(tmp_path / "index")
    before = collection.nearest.search(QUERIES, 5)
    paint(tmp_path / "pictures" / "red.png", (255, 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores.Follower, "add", lambda *_: None)
        patch.setattr("deixis.search.indexing.bring_store_up_to_date", lambda generation: None)
        update(tmp_path)
    assert np.array_equal(collection.nearest.search(QUERIES, 5).ids, before.ids)
    assert answers(tmp_path, QUERIES)[0][0] == 1
    update(tmp_path)
    assert np.array_equal(collection.nearest.search(QUERIES, 5).ids, before.ids)
    collection.close()
    assert answers(tmp_path, QUERIES)[0][0] == 1


@needs_milvus
@pytest.mark.parametrize("store", ["rows.db", "server"], indirect=True)
def test_rows_that_milvus_lost_come_back(store: str, tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 30)
    update(tmp_path, store)
    index = MilvusIndex(store, milvus_name(tmp_path), 4)
    index.remove(index.ids()[::2])
    answers(tmp_path, QUERIES)
    index.drop()
    index.close()
    assert "Milvus lost the embeddings" in next(
        each.message for each in examine(tmp_path / "index") if each.check == "search"
    )
    with pytest.raises(DeixisError, match="deixis index"):
        answers(tmp_path, QUERIES)
    update(tmp_path)
    answers(tmp_path, QUERIES)
    assert next(each.ok for each in examine(tmp_path / "index") if each.check == "search")


@needs_milvus
def test_a_milvus_that_is_away_is_reported(tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 3)
    update(tmp_path, "approximate")
    with pytest.raises(DeixisError, match="is the server running"):
        update(tmp_path, "milvus://127.0.0.1:9")
    # What served goes on serving.
    assert index_status(tmp_path / "index").store == "approximate"
    answers(tmp_path, QUERIES)


@pytest.mark.parametrize("name", ["faiss", "milvus://", "milvus://user:secret@host:1", "milvus://host", "rows.txt"])
def test_a_store_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(DeixisError, match="known: exact"):
        check_store(name)


def test_past_the_limit_rows_are_searched_approximately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_many(tmp_path / "pictures", 30)
    update(tmp_path)
    assert isinstance(Collection(tmp_path / "index").nearest, ExactIndex)
    monkeypatch.setattr(stores, "EXACT_ROWS", 29)
    update(tmp_path)
    assert isinstance(Collection(tmp_path / "index").nearest, LiveIndex)
    answers(tmp_path, QUERIES)
    file = generation_of(tmp_path) / NEAREST
    file.write_bytes(file.read_bytes()[:-100])
    assert isinstance(Collection(tmp_path / "index").nearest, ExactIndex)
    update(tmp_path)
    assert isinstance(Collection(tmp_path / "index").nearest, LiveIndex)


def test_an_approximate_index_finds_nearly_all_of_many_rows_and_grows() -> None:
    """Floats in clusters, and queries that lie apart from all of them, as texts do."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(50, 64))
    rows = centres[random.integers(50, size=20_000)] + 0.5 * random.normal(size=(20_000, 64))
    queries = centres[random.integers(50, size=100)] + 3 * random.normal(size=(1, 64))
    rows, queries = (np.float32(each / np.linalg.norm(each, axis=1, keepdims=True)) for each in (rows, queries))
    index = ApproximateIndex.trained(rows[:4000], 4000, lambda ids: rows[ids])
    assert not index.outgrown_by(4000)
    assert index.outgrown_by(100_000)
    for start in range(0, 20_000, 5000):
        index.add(np.arange(start, start + 5000), rows[start : start + 5000])
    index.remove(np.arange(0, 20_000, 3))
    kept = np.setdiff1d(np.arange(20_000), np.arange(0, 20_000, 3))
    wanted = kept[np.argsort(-(queries @ rows[kept].T), 1)[:, :10]]
    found = index.search(queries, 10).ids
    assert np.mean([len(set(own) & set(all_)) for own, all_ in zip(found, wanted, strict=True)]) > 9.5
