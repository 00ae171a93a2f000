"""Queries over a collection of plain colours, where it is plain what should be found."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from deixis.adapters.bundles import Relevance, Threshold
from deixis.errors import DeixisError, InputError
from deixis.search.doctor import examine
from deixis.search.engine import SearchEngine, rounded_down
from deixis.search.filters import Filter
from deixis.search.indexing import index_folders
from tests.search.fakes import COLOURS, ColourModel, paint, paint_quarters, unit

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
    assert [hit.relevant for hit in answer.hits] == [hit.score >= 0.5 for hit in answer.hits]
    assert not answer.absent
    assert answer.as_data()["hits"][0] == {
        "path": os.fsdecode(answer.hits[0].path),
        "score": answer.hits[0].score,
        "relevant": True,
    }


def test_all_phrases_must_be_there(engine: SearchEngine) -> None:
    assert names(engine, '"red" "blue"')[0] == "purple"
    assert names(engine, "red AND green")[0] == "yellow"


def test_one_of_several_alternatives_must_be_there(engine: SearchEngine) -> None:
    def matches(query: str) -> set[str]:
        return {Path(os.fsdecode(hit.path)).stem for hit in engine.search(query).hits if hit.relevant}

    assert {"red", "blue"} <= matches("red or blue")
    assert matches("red or blue") == matches("red") | matches("blue")
    assert matches("red or blue -red") == matches("blue -red")
    assert matches("red or zorblax") == matches("red")
    assert set(names(engine, '"red" or "blue"')[:2]) == {"red", "blue"}


def test_what_must_not_be_there_is_not_relevant(engine: SearchEngine) -> None:
    plain = {Path(os.fsdecode(hit.path)).stem for hit in engine.search("red").hits if hit.relevant}
    for query in ("red -red", "red and not red"):
        assert engine.search(query).absent
    denied = {Path(os.fsdecode(hit.path)).stem for hit in engine.search("red -yellow -green").hits if hit.relevant}
    assert denied <= plain
    assert "red" in denied


def test_a_query_may_only_say_what_must_not_be_there(engine: SearchEngine) -> None:
    for query in ("-red", "no red"):
        found = names(engine, query)
        assert len(found) == len(PAINTED)
        assert set(found[:3]) == {"green", "blue", "teal"}
        assert found[-1] == "red"


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


def test_more_matches_are_announced_only_where_there_are_some(engine: SearchEngine, tmp_path: Path) -> None:
    red = tmp_path / "pictures" / "red.png"
    for ask in (
        lambda count: engine.search("red", count),
        lambda count: engine.search("red", count, like=red),
        lambda count: engine.similar(red, count),
        lambda count: engine.search("something", count),
    ):
        matches = sum(hit.relevant for hit in ask(100).hits)
        for count in range(1, len(PAINTED)):
            answer = ask(count)
            assert len(answer.hits) == count
            assert answer.more_matches == answer.as_data()["more_matches"] == (matches > count)


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


def test_an_example_that_is_no_picture_is_reported(engine: SearchEngine, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(InputError, match=r"text\.jpg"):
        engine.search("red", like=tmp_path / "text.jpg")


def test_a_word_that_the_encoder_does_not_know_matches_nothing(engine: SearchEngine) -> None:
    assert not engine.search("red").absent
    for query in ("crimson", "the crimson", "crimson red", '"red" "crimson"'):
        answer = engine.search(query)
        assert answer.absent
        assert {hit.score for hit in answer.hits} == {0.0}
        assert answer.unknown == ["crimson"]
        assert answer.suggestion == ""
    assert engine.search("1234").absent
    assert engine.search("1234").unknown == ["1234"]
    assert engine.search("red 1234").unknown == []
    # What is excluded and not known excludes nothing, and finds nothing by itself.
    answer = engine.search("red -crimson")
    assert not answer.absent
    assert answer.unknown == ["crimson"]
    answer = engine.search("-crimson")
    assert answer.absent
    assert {hit.score for hit in answer.hits} == {0.0}
    assert not engine.search("-red").absent


def test_an_exclusion_without_effect_is_named_with_its_reason(engine: SearchEngine) -> None:
    def ignored(query: str, only: Filter | None = None) -> list[dict[str, str]]:
        reported: list[dict[str, str]] = engine.search(query, only=only).as_data()["ignored_exclusions"]
        return reported

    unknown, absent = {"phrase": "crimson", "reason": "unknown"}, {"phrase": "black", "reason": "absent"}
    for only in (None, Filter(name="w")):
        assert ignored("red -green", only) == ignored("crimson black", only) == []
        assert ignored("red -crimson", only) == [unknown]
        assert ignored("red -black -green without crimson", only) == [absent, unknown]
        assert ignored("-black", only) == [absent]
    # Nothing is found by an unknown word alone, so it is not without effect; another exclusion finds something.
    assert ignored("-crimson") == []
    assert ignored("-crimson -green") == [unknown]
    # Equal scores may come in another order.
    for query, same in (("-crimson -green", "-green"), ("red -crimson", "red")):
        assert {*engine.search(query).hits} == {*engine.search(same).hits}
    # What no picture matches leaves none out.
    plain, without_black = (engine.search(query, len(PAINTED)) for query in ("red", "red -black"))
    assert [hit.relevant for hit in plain.hits] == [hit.relevant for hit in without_black.hits]


def test_a_phrase_is_judged_by_its_words_in_its_best_picture(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The best picture of "red blue" is purple, whose cosine is a third with either.
    for needed, worst_word, absent in ((0.8, 0.0, False), (0.8, -100.0, True), (0.3, -100.0, False)):
        of_phrase = Threshold(0.5, worst_word=worst_word)
        relevance = Relevance(Threshold(needed), Threshold(0.5), 10.0, present_of_phrase=of_phrase)
        monkeypatch.setattr(engine.model, "relevance", relevance)
        assert engine.search("red blue").absent == absent
        assert not engine.search("red").absent
        # Words of phrases have a threshold of their own, whatever they need by themselves.
        own = replace(relevance, present=Threshold(0.1), present_in_phrase=Threshold(needed))
        monkeypatch.setattr(engine.model, "relevance", own)
        assert engine.search("red blue").absent == absent
    # Bundles of earlier versions were fitted with lower thresholds of words within phrases, too.
    lowered = replace(relevance, present=Threshold(0.8), lower_for={"red": 0.5, "blue": 0.5})
    monkeypatch.setattr(engine.model, "relevance", lowered)
    assert not engine.search("red blue").absent


def test_the_list_of_a_noun_may_end_elsewhere(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def matches(query: str, **end_for: float) -> int:
        relevance = Relevance(Threshold(0.5), Threshold(0.5), 10.0, end_for=end_for)
        monkeypatch.setattr(engine.model, "relevance", relevance)
        return sum(hit.relevant for hit in engine.search(query).hits)

    assert matches("red", red=0.45) < matches("red") < matches("red", red=-0.3)
    assert matches("blue", red=0.3) == matches("blue")
    assert matches("blue red", red=0.3) == matches("blue red")


def test_a_word_that_is_like_a_known_one_is_suggested(engine: SearchEngine) -> None:
    answer = engine.search('"wihte" -gren', count=3)
    assert answer.absent
    assert answer.as_data()["suggestion"] == '"white" -green'
    assert not engine.search(answer.suggestion).absent


def test_the_best_match_of_what_is_there_is_a_match_and_nothing_is_one_of_what_is_absent(engine: SearchEngine) -> None:
    model = ColourModel()
    for present, count in ((0.5, 1), (1.5, 0)):
        # The list ends above all scores.
        model.relevance = Relevance(Threshold(present), Threshold(2.0), slope=10.0)
        answer = SearchEngine(engine.collection.index, model).search("red")
        assert [hit.relevant for hit in answer.hits].count(True) == count
        assert [hit.score >= 0.5 for hit in answer.hits].count(True) == count
        assert Path(os.fsdecode(answer.hits[0].path)).stem == "red"


def test_scores_are_rounded_down_so_that_what_is_no_match_stays_below_a_half() -> None:
    assert rounded_down(0.49999) == 0.4999
    assert rounded_down(0.5) == 0.5


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("UPDATE details SET width = width + 1", "pictures"),
        ("UPDATE details SET width = -1", "catalogue"),
        ("UPDATE details SET height = 0", "catalogue"),
        ("UPDATE details SET height = 4000000000", "catalogue"),
        ("UPDATE details SET taken = 'yesterday'", "catalogue"),
        ("UPDATE details SET taken = '2001-01-01T00:00:00'", "pictures"),
        ("UPDATE details SET fingerprint = x'00'", "catalogue"),
        ("UPDATE details SET fingerprint = randomblob(32)", "pictures"),
        ("UPDATE details SET content = content + 100", "catalogue"),
        ("UPDATE contents SET sha256 = randomblob(32)", "pictures"),
        ("UPDATE contents SET sha256 = randomblob(31)", "catalogue"),
        ("UPDATE files SET path = CAST('/etc/passwd.png' AS BLOB) WHERE content = 1", "catalogue"),
        ("UPDATE files SET path = CAST(replace(path, 'red.png', '../red.png') AS BLOB)", "catalogue"),
        ("UPDATE files SET content = 999 WHERE content = 1", "catalogue"),
        ("DELETE FROM roots", "catalogue"),
    ],
)
def test_the_doctor_finds_entries_that_were_changed(
    change: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: ColourModel(name))
    index, pictures = tmp_path / "index", tmp_path / "pictures"
    for name, colour in COLOURS.items():
        # A plain surface has no fingerprint.
        paint_quarters(pictures / f"{name}.png", colour, colour, colour, (128, 128, 128))
    index_folders(index, [pictures], ColourModel(), "colours")
    assert [each for each in examine(index) if not each.ok] == []
    [catalogue] = index.glob("*/catalogue.sqlite")
    with closing(sqlite3.connect(catalogue)) as connection:
        assert connection.execute(change).rowcount > 0
        connection.commit()
    findings = {each.check: each for each in examine(index) if not each.ok}
    assert check in findings
    assert "deixis index" in findings[check].remedy


def test_the_doctor_finds_a_file_of_embeddings_that_is_far_too_large(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: ColourModel(name))
    [vectors] = engine.collection.index.rglob("*.f16")
    os.truncate(vectors, 1 << 40)
    [finding] = [each for each in examine(engine.collection.index) if not each.ok]
    assert (finding.check, str(vectors) in finding.message) == ("vectors", True)


def test_the_doctor_names_what_is_wrong(engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.search.doctor.load_search_model", lambda name: ColourModel(name))
    index = engine.collection.index
    assert [each for each in examine(index) if not each.ok] == []
    assert [each.check for each in examine(index, "other") if not each.ok] == ["model and index"]
    (tmp_path / "pictures" / "red.png").unlink()
    assert [each.check for each in examine(index) if not each.ok] == ["files"]
    for shard in index.rglob("*.f16"):
        shard.write_bytes(b"")
    [finding] = [each for each in examine(index) if not each.ok]
    assert "00000.f16" in finding.message
    assert [each.check for each in examine(tmp_path / "nothing") if not each.ok] == ["index"]
