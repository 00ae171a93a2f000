"""One score of a text and a picture, wherever it is asked for: embeddings, and the best cells of the words."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deixis.adapters import search_model
from deixis.adapters.phrasing import EmbeddedPhrases, embed_phrases, phrasing
from deixis.adapters.search_model import Floats, Identity, Pictures, Texts, rounded, scores, whole_pictures, whole_texts
from deixis.base import word_cells as fine
from deixis.errors import DeixisError
from deixis.search import engine as engine_module
from deixis.search.catalogue import Catalogue
from deixis.search.collection import Collection
from deixis.search.doctor import examine
from deixis.search.engine import SearchEngine
from deixis.search.generations import current_generation, new_generation, put_in_use
from deixis.search.indexing import index_folders
from deixis.search.relevance import Best, Known, likelihoods, list_ends
from tests.search.fakes import COLOURS, CellModel, ColourModel, paint, paint_many, paint_quarters

#: Of a text nothing is known.
NOTHING = Known(np.zeros(1, np.float32), np.zeros(1, bool), *[np.zeros(1, np.float32)] * 3)
RED, GREEN, BLUE, WHITE = (COLOURS[name] for name in ("red", "green", "blue", "white"))


def best_picture(scores: Floats) -> Best:
    """Of a collection that is so small that its one best picture counts."""
    return Best(scores.max(1), scores.max(1))


def some_unit(random: np.random.Generator, *shape: int) -> np.ndarray:  # type: ignore[type-arg]
    values = random.normal(size=shape).astype(np.float32)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_scores_are_those_that_the_towers_were_trained_with(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_model, "VALUES_AT_ONCE", block)
    random = np.random.default_rng(0)
    rows, texts = some_unit(random, 7, 12), some_unit(random, 5, 12)
    cells, vectors = some_unit(random, 7, 9, 6), some_unit(random, 5, 4, 6)
    weights = random.random((5, 4)).astype(np.float32) * (np.arange(4) < np.array([4, 1, 3, 2, 4])[:, None])
    weights /= weights.sum(1, keepdims=True)
    owner, place = np.nonzero(weights)
    words = fine.Words(
        torch.from_numpy(vectors[owner, place]), torch.from_numpy(weights[owner, place]), torch.from_numpy(owner), 5
    )
    kept = rounded(cells)
    read = F.normalize(torch.from_numpy(kept).float(), dim=-1)
    wanted = (torch.from_numpy(rows @ texts.T) + fine.best_cells(read, words)).T.numpy()
    found = scores(Texts(texts, vectors * weights[..., None]), Pictures(rows, kept))
    assert np.allclose(found, wanted, atol=1e-5)
    # Eight bits tell a direction to about a degree.
    assert ((read.numpy() * cells).sum(-1) > 0.9998).all()
    for text, picture in ((whole_texts(texts), Pictures(rows, kept)), (Texts(texts, vectors), whole_pictures(rows))):
        assert np.allclose(scores(text, picture), texts @ rows.T)


def painted(folder: Path) -> dict[str, Path]:
    mixed = tuple((np.array([RED, GREEN, BLUE, WHITE]).mean(0)).round().astype(int).tolist())
    return {
        "mixed": paint(folder / "mixed.png", mixed, (8, 8)),
        "apart": paint_quarters(folder / "apart.png", RED, GREEN, BLUE, WHITE),
        "halves": paint_quarters(folder / "halves.png", RED, RED, BLUE, BLUE),
        "red": paint(folder / "red.png", RED, (8, 8)),
    }


@pytest.fixture
def engine(tmp_path: Path) -> SearchEngine:
    painted(tmp_path / "pictures")
    index_folders(tmp_path / "index", [tmp_path / "pictures"], CellModel(), "cells")
    return SearchEngine(tmp_path / "index", CellModel())


def found(engine: SearchEngine, query: str, **options: Path) -> dict[str, float]:
    return {
        Path(os.fsdecode(hit.path)).stem: hit.score
        for hit in engine.search(query, 20, **options).hits  # type: ignore[arg-type]
    }


def test_words_are_looked_for_in_cells(engine: SearchEngine) -> None:
    """To their embeddings "mixed" and "apart" are alike."""
    rows = engine.collection.embeddings_of(engine.collection.ids)
    names = [Path(os.fsdecode(engine.collection.paths(int(each))[0])).stem for each in engine.collection.ids]
    assert rows[names.index("mixed")] @ rows[names.index("apart")] > 0.999
    assert next(iter(found(engine, "red green blue"))) == "apart"
    assert next(iter(found(engine, "red blue"))) == "halves"


def test_a_score_is_the_same_whoever_asks(engine: SearchEngine, tmp_path: Path) -> None:
    model = CellModel()
    paths = painted(tmp_path / "pictures")
    for text in ("red", "red blue", "green"):
        plain = found(engine, text)
        printed = model.score(list(paths.values()), [text])[:, 0]
        relevance = model.relevance
        (end,) = list_ends(printed[None], best_picture(printed[None]), NOTHING, relevance)
        wanted = likelihoods(relevance.slope * (printed - end))
        assert plain == pytest.approx(dict(zip(paths, wanted, strict=True)), abs=2e-3)
        # All of one is one; what must not be there turns it round.
        assert found(engine, f'"{text}" "{text}"') == pytest.approx(plain, abs=1e-4)
        denied = found(engine, f'"{text}" -"{text}"')
        assert denied == pytest.approx({name: min(score, 1 - score) for name, score in plain.items()}, abs=2e-4)


def test_an_example_beside_words_adds_its_cosine(engine: SearchEngine, tmp_path: Path) -> None:
    model = CellModel()
    paths = painted(tmp_path / "pictures")
    files = list(paths.values())
    words = model.score(files, ["red blue"])[:, 0]
    cosines = model.embed_images(files) @ model.embed_images([paths["halves"]])[0]
    wanted = [list(paths)[place] for place in np.argsort(-(words + cosines), kind="stable")]
    wanted.remove("halves")
    assert list(found(engine, "red blue", like=paths["halves"])) == wanted
    # Where the list ends, the example does not count, whether it is indexed or not.
    relevance = model.relevance
    others = [place for place, name in enumerate(paths) if name != "halves"]
    together, alone = (words + cosines)[None, others], words[others]
    (end,) = list_ends(together, best_picture(together), NOTHING, relevance, None, best_picture(alone[None]))
    scores_with_example = dict(
        zip(wanted, np.sort(likelihoods(relevance.slope * (together[0] - end)))[::-1], strict=True)
    )
    assert found(engine, "red blue", like=paths["halves"]) == pytest.approx(scores_with_example, abs=2e-3)
    outside = tmp_path / "outside.png"
    outside.write_bytes(paths["halves"].read_bytes())
    with_copy = found(engine, "red blue", like=outside)
    assert {name: with_copy[name] for name in wanted} == pytest.approx(scores_with_example, abs=2e-3)


def test_whether_words_are_there_is_decided_without_the_example(engine: SearchEngine, tmp_path: Path) -> None:
    example = painted(tmp_path / "pictures")["halves"]
    # No picture is black, however much the example resembles them.
    assert engine.search("black", 20).absent
    assert engine.search("black", 20, like=example).absent
    assert not engine.search("red", 20, like=example).absent


def test_phrases_that_were_embedded_together_score_as_if_embedded_alone(engine: SearchEngine) -> None:
    asked = [phrasing(text, engine.model) for text in ("red", "green", "red green")]
    collection = engine.collection
    pictures = Pictures(collection.embeddings_of(collection.ids), collection.cells_of(collection.ids))
    whole = embed_phrases(engine.model, asked)
    for counts in ([1, 2], [0, 3, 0], [2, 1], [3]):
        parts = whole.split(counts)
        assert [len(part.first) for part in parts] == counts
        scores = [part.scores(pictures) for part in parts if len(part.first)]
        assert np.concatenate(scores) == pytest.approx(whole.scores(pictures))
    assert embed_phrases(engine.model, []).split([]) == []
    assert engine.terms([], []) == []


def test_the_nearest_by_embedding_are_ranked_by_the_whole_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CellModel()
    random = np.random.default_rng(3)
    for number in range(60):
        paint_quarters(tmp_path / "pictures" / f"{number}.png", *map(tuple, random.integers(0, 256, (4, 3)).tolist()))
    index_folders(tmp_path / "index", [tmp_path / "pictures"], model, "cells")
    engine = SearchEngine(tmp_path / "index", model)
    ids = engine.collection.ids
    texts = model.embed_queries(["red blue"])
    no = np.array([False])
    terms = engine_module.Terms(EmbeddedPhrases(texts, np.zeros(1, np.intp)), no, NOTHING, *[no] * 3)
    pictures = Pictures(engine.collection.embeddings_of(ids), engine.collection.cells_of(ids))
    whole, all_scores = (texts.embeddings @ pictures.embeddings.T)[0], scores(texts, pictures)[0]
    for candidates in (60, 20, 5):
        monkeypatch.setattr(engine_module, "CANDIDATES", candidates)
        (ranking,) = engine.rank([terms], 5)
        near = np.argsort(-whole, kind="stable")[:candidates]
        wanted = ids[near[np.argsort(-all_scores[near], kind="stable")]]
        assert ranking.ids.tolist() == wanted.tolist()
    # Whoever wants more gets more.
    (ranking,) = engine.rank([terms], 40)
    assert len(ranking.ids) == 40


def test_an_index_from_before_cells_is_refused_and_built_again(tmp_path: Path) -> None:
    paint_many(tmp_path / "pictures", 6)
    model = CellModel()
    old = Identity(model.identity.name, model.identity.weights_sha256, 4, model.identity.preprocessing)
    before = ColourModel()
    before.identity = old
    index_folders(tmp_path / "index", [tmp_path / "pictures"], before, "cells")
    with pytest.raises(DeixisError, match=r"another form of cells .* 4 cells of 4\); .* deixis index"):
        SearchEngine(tmp_path / "index", model)
    report = index_folders(tmp_path / "index", [], model, "cells")
    assert report.pictures == 6
    collection = Collection(tmp_path / "index")
    assert collection.cells_of(collection.ids).shape == (6, 4, 4)
    assert SearchEngine(tmp_path / "index", model).search("red").hits


def test_an_identity_without_cells_is_read(tmp_path: Path) -> None:
    """As catalogues have it that were written before there were cells."""
    identity = Identity("old", "0" * 64, 4, {})
    generation = new_generation(tmp_path, identity)
    Catalogue.create(generation, identity, "old")
    catalogue = Catalogue.write(generation)
    with catalogue.transaction():
        catalogue.set_meta("identity", '{"name":"old","weights_sha256":"00","dim":4,"preprocessing":{}}')
    assert (catalogue.identity.cells, catalogue.identity.cell_dim) == (0, 0)
    catalogue.close()
    put_in_use(tmp_path, generation)
    assert Collection(tmp_path).identity.cells == 0


def test_cells_that_are_lost_are_reported(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: CellModel(name))
    index = engine.collection.index
    assert [each for each in examine(index) if not each.ok] == []
    generation = current_generation(index)
    assert generation is not None
    shard = generation / "cells" / "00000.i8"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert [each.check for each in examine(index) if not each.ok] == ["vectors"]
    shard.unlink()
    [finding] = [each for each in examine(index) if not each.ok]
    assert "00000.i8" in finding.message
