"""Queries over a collection of plain colours, where it is plain what should be found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.adapters.search_model import Rows, whole_pictures, whole_texts
from deixis.corpus import Image, make_caption
from deixis.errors import DeixisError, InputError
from deixis.search.calibration import fitted, held_out_phrases
from deixis.search.doctor import examine
from deixis.search.engine import SearchEngine
from deixis.search.indexing import index_folders
from deixis.search.relevance import thresholds
from deixis.text.vocabulary import Vocabulary
from tests.search.fakes import COLOURS, ColourModel, paint, unit

PAINTED = {
    **{name: COLOURS[name] for name in ("red", "green", "blue", "white")},
    "purple": (255, 0, 250),
    "yellow": (255, 255, 0),
    "orange": (255, 120, 0),
    "teal": (0, 200, 180),
}


@pytest.fixture
def engine(tmp_path: Path) -> SearchEngine:
    for name, colour in PAINTED.items():
        paint(tmp_path / "pictures" / f"{name}.png", colour)
    model = ColourModel()
    index_folders(tmp_path / "index", [tmp_path / "pictures"], model, "colours")
    return SearchEngine(tmp_path / "index", model)


def names(engine: SearchEngine, query: str, like: Path | None = None) -> list[str]:
    return [Path(os.fsdecode(hit.path)).stem for hit in engine.search(query, 20, like=like).hits]


def test_one_phrase_is_ranked_by_its_cosine(engine: SearchEngine) -> None:
    answer = engine.search("red")
    red = unit([COLOURS["red"]])[0]
    cosines = {name: float(unit([colour])[0] @ red) for name, colour in PAINTED.items()}
    found = [cosines[Path(os.fsdecode(hit.path)).stem] for hit in answer.hits]
    assert found == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-3)
    assert [hit.relevant for hit in answer.hits] == [hit.score > 0.5 for hit in answer.hits]
    assert not answer.absent
    assert answer.as_data()["hits"][0] == {
        "path": os.fsdecode(answer.hits[0].path),
        "score": answer.hits[0].score,
        "relevant": True,
    }


def test_all_phrases_must_be_there(engine: SearchEngine) -> None:
    assert names(engine, '"red" "blue"')[0] == "purple"
    assert names(engine, "red AND green")[0] == "yellow"


def test_what_must_not_be_there_is_not_relevant(engine: SearchEngine) -> None:
    plain = {Path(os.fsdecode(hit.path)).stem for hit in engine.search("red").hits if hit.relevant}
    for query in ("red -red", "red and not red"):
        assert engine.search(query).absent
    denied = {Path(os.fsdecode(hit.path)).stem for hit in engine.search("red -yellow -green").hits if hit.relevant}
    assert denied <= plain
    assert "red" in denied


def test_an_example_counts_beside_words(engine: SearchEngine, tmp_path: Path) -> None:
    example = paint(tmp_path / "example.png", (250, 10, 10))
    assert names(engine, "", example)[0] == "red"
    assert names(engine, "blue", example)[0] == "purple"
    assert names(engine, "-red", example)[0] != "red"


def test_similar_leaves_the_file_itself_out_but_not_its_copies(engine: SearchEngine, tmp_path: Path) -> None:
    red = tmp_path / "pictures" / "red.png"
    found = [Path(os.fsdecode(hit.path)).stem for hit in engine.similar(red, 7).hits]
    assert found[0] == "orange"
    assert len(found) == 7
    assert "red" not in found
    copy = tmp_path / "copy.png"
    copy.write_bytes(red.read_bytes())
    assert Path(os.fsdecode(engine.similar(copy, 1).hits[0].path)).stem == "red"


def test_what_is_absent_is_said_to_be(engine: SearchEngine) -> None:
    answer = engine.search("something grey")
    assert answer.absent
    assert answer.hits
    assert answer.unknown == ["something", "grey"]


def test_an_empty_collection_answers_nothing(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    index_folders(tmp_path / "index", [tmp_path / "pictures"], ColourModel(), "colours")
    engine = SearchEngine(tmp_path / "index", ColourModel())
    assert engine.search("red").hits == []
    assert engine.search('"red" "blue" -green').absent


def test_another_model_is_refused(engine: SearchEngine) -> None:
    with pytest.raises(DeixisError, match="deixis index --index"):
        SearchEngine(engine.collection.index, ColourModel("other"))


def test_an_example_that_is_no_picture_is_told(engine: SearchEngine, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(InputError, match=r"text\.jpg"):
        engine.search("red", like=tmp_path / "text.jpg")


def test_the_curve_lies_between_what_is_shown_and_what_is_not() -> None:
    random = np.random.default_rng(0)
    rows = unit(random.integers(0, 255, (200, 3)))
    pictures = whole_pictures(rows)
    # Words of what is shown point at pictures; others point away from all of them.
    shown, away, nothing = whole_texts(rows[:50]), whole_texts(-rows[:50] * np.float32(0.5)), rows[:0]
    own = np.arange(50)
    relevance = fitted(pictures, shown, own, away, nothing, random)
    assert relevance.share == 0
    assert (away.rows @ rows.T).max() < relevance.threshold < 1
    assert relevance.alike == pytest.approx(np.quantile((rows @ rows.T)[np.triu_indices(200, 1)], 0.99), abs=1e-6)
    with pytest.raises(DeixisError, match="do not tell"):
        fitted(pictures, away, own, shown, nothing, random)


def test_phrases_that_are_shown_and_phrases_that_are_not_are_told_by_captions() -> None:
    def image(number: int, *captions: str) -> Image:
        return Image(id=str(number), captions=tuple(map(make_caption, captions)))

    images = [image(1, "A man rides a horse.", "Two dogs run."), image(2, "A dog in the snow.")]
    others = [image(3, "A giraffe stands beside a dog.", "Three horses eat grass."), image(4, "A quagga rests.")]
    words = Vocabulary.of([["a", "man", "horse", "horses", "dog", "dogs", "two", "the", "snow", "giraffe", "grass"]])
    shown, absent = held_out_phrases(words, images, others, np.random.default_rng(0))
    assert sorted(shown) == ["a dog", "a horse", "a man", "the snow", "two dogs"]
    # Horses are mentioned as one; a quagga is a word that the model does not know.
    assert sorted(absent) == ["a giraffe", "grass"]


def test_the_threshold_of_words_moves_with_how_the_background_meets_them() -> None:
    """Words of two kinds: cosines of the second are twice as high, whether a picture shows them or not."""
    random = np.random.default_rng(1)
    count, dim = 200, 64
    axes = np.eye(dim, dtype=np.float32)
    strength = np.where(np.arange(count) % 2, 0.4, 0.8).astype(np.float32)
    words = axes[random.integers(0, dim, count)] * strength[:, None]
    background = axes
    pictures = whole_pictures(axes[: dim // 2])
    is_shown = words[:, : dim // 2].any(1)
    noise = random.uniform(0.45, 0.55, (count, 1)).astype(np.float32)
    # Of words that are not shown, the best picture gets about half of what it would get.
    faint = np.concatenate([words[:, dim // 2 :] * noise, words[:, : dim // 2]], 1)
    not_shown = whole_texts(words[~is_shown] + faint[~is_shown])
    own = words[is_shown, : dim // 2].argmax(1)
    relevance = fitted(pictures, whole_texts(words[is_shown]), own, not_shown, background, random)
    assert relevance.share > 0.2

    class SearchModel(ColourModel):
        pass

    model = SearchModel()
    model.relevance, model.background = relevance, background  # type: ignore[assignment]
    least = thresholds(words, np.zeros(count, bool), model, 1000)
    assert least[strength > 0.5].min() > least[strength < 0.5].max()
    assert (thresholds(words, np.ones(count, bool), model, 1000) == np.float32(relevance.alike)).all()


def test_the_larger_a_collection_the_more_must_its_best_get() -> None:
    random = np.random.default_rng(2)

    def directions(values: Any) -> Rows:
        return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True), np.float32)

    pictures = whole_pictures(directions(random.normal(size=(1000, 24))))
    own = np.arange(200)
    shown = whole_texts(directions(pictures.rows[own] + 0.15 * random.normal(size=(200, 24))))
    absent = whole_texts(directions(random.normal(size=(200, 24))))
    relevance = fitted(pictures, shown, own, absent, pictures.rows[:0], random)
    assert relevance.growth > 0

    class SearchModel(ColourModel):
        pass

    model = SearchModel()
    model.relevance, model.background = relevance, None  # type: ignore[assignment]
    words = np.zeros(1, bool)
    few, usual, many = (thresholds(absent.rows[:1], words, model, size)[0] for size in (50, 1000, 100_000))
    assert few < usual < many
    assert usual == np.float32(relevance.threshold)
    # In a small collection the threshold lies between what is there and what is not, as in a large one.
    for size in (50, 1000):
        some = random.permutation(1000)[:size]
        least = thresholds(absent.rows[:1], words, model, size)[0]
        there = (shown.rows * pictures.rows[own]).sum(1) > least
        assert there.mean() > 0.7
        assert ((absent.rows @ pictures.rows[some].T).max(1) > least).mean() < 0.3


def test_nothing_is_what_no_known_word_tells(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not engine.search("red").absent
    monkeypatch.setattr(type(engine.model), "unknown_words", lambda self, text: ["red"])
    for query in ("red", "the red"):
        answer = engine.search(query)
        assert answer.absent
        assert {hit.score for hit in answer.hits} == {0.0}


def test_the_doctor_names_what_is_wrong(engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: ColourModel(name))
    index = engine.collection.index
    assert [each for each in examine(index) if not each.well] == []
    assert [each.what for each in examine(index, "other") if not each.well] == ["model and index"]
    (tmp_path / "pictures" / "red.png").unlink()
    assert [each.what for each in examine(index) if not each.well] == ["files"]
    for shard in index.rglob("*.f16"):
        shard.write_bytes(b"")
    [finding] = [each for each in examine(index) if not each.well]
    assert "00000.f16" in finding.told
    assert [each.what for each in examine(tmp_path / "nothing") if not each.well] == ["index"]
