"""What the search server answers: the engine's own answers, under load, while the index changes, and with models."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from PIL import Image as Pillow
from prometheus_client.parser import text_string_to_metric_families

from deixis.errors import DeixisError
from deixis.search.engine import SearchEngine
from deixis.search.queries import parse_query
from deixis.web import search_desk
from deixis.web.shelf import Shelf
from tests.search.fakes import COLOURS, ColourModel, paint
from tests.web.search_site import PAINTED, SIZE, SearchSite


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    with SearchSite(tmp_path_factory.mktemp("served")).serve() as served:
        yield served


@pytest.mark.parametrize(
    "query", ["red", '"red" "blue"', "red -green", "black", "white and not red", "crimson red", "red -black -crimson"]
)
def test_search_answers_as_the_engine_does(site: SearchSite, query: str) -> None:
    reply_ = site.get("/api/search", q=query, count=5).json()
    expected = SearchEngine(site.index, site.model).search(query, 5).as_data()
    assert [{name: hit[name] for name in ("path", "score", "relevant")} for hit in reply_["hits"]] == expected["hits"]
    same = ("query", "absent", "unknown_words", "suggestion", "rare_words", "ignored_exclusions")
    assert {name: reply_[name] for name in same} == {name: expected[name] for name in same}


def test_what_cannot_be_answered_is_reported(site: SearchSite) -> None:
    for parameters, status in (
        ({"q": "-"}, 400),
        ({"q": "   "}, 400),
        ({"q": 'an "open quote'}, 400),
        ({"q": ""}, 422),
        ({}, 422),
        ({"q": "red", "count": 0}, 422),
        ({"q": "red", "count": 1000}, 422),
        ({"q": "r" * 501}, 422),
    ):
        reply_ = site.get("/api/search", **parameters)
        assert reply_.status_code == status
        assert reply_.json()["error"]


def test_similar_is_the_engines_without_the_picture_itself(site: SearchSite) -> None:
    engine = SearchEngine(site.index, site.model)
    reply_ = site.get("/api/similar", picture=site.key("red"), count=4).json()
    expected = [hit.path.decode() for hit in engine.similar(site.pictures / "red.png", 4).hits]
    assert [hit["path"] for hit in reply_["hits"]] == expected
    assert str(site.pictures / "red.png") not in expected


def test_a_picture_that_is_sent_finds_others_and_may_come_with_words(site: SearchSite) -> None:
    data = (site.pictures / "red.png").read_bytes()
    alone = site.post("/api/similar", data, count=3).json()
    assert Path(alone["hits"][0]["path"]).stem == "red"
    assert not alone["absent"]
    both = site.post("/api/similar", data, q="green", count=1).json()
    engine = SearchEngine(site.index, site.model)
    expected = engine.search("green", 1, like=site.pictures / "red.png").hits[0]
    assert both["hits"][0]["path"] == expected.path.decode()
    assert site.post("/api/similar", data, kind="application/octet-stream").status_code == 200


def test_many_at_once_each_get_their_own_answer_in_fewer_batches(tmp_path: Path) -> None:
    """While the model is held up, questions gather; all are then answered together, and rightly."""

    class Slow(ColourModel):
        batches: list[int]

        def embed_queries(self, texts):  # type: ignore[no-untyped-def]
            self.batches.append(len(texts))
            go.wait(10)
            return super().embed_queries(texts)

    go = Event()
    go.set()
    site = SearchSite(tmp_path)
    site.model = Slow()
    site.model.batches = []
    desk = search_desk.Desk(site.index, site.model)
    try:
        go.clear()
        colours = [name for name in PAINTED if name in COLOURS] * 10
        waiting = [desk.ask(desk.engine, parse_query(name), search_desk.Part(1)) for name in ["red", *colours]]
        while not site.model.batches[1:]:
            time.sleep(0.01)
        go.set()
        for name, answer in zip(["red", *colours], waiting, strict=True):
            (found,) = answer.result(10).found
            assert Path(desk.engine.collection.paths(found.picture)[0].decode()).stem == name
        # What was asked before need not be encoded again.
        assert sum(site.model.batches) <= 1 + 1 + len(colours)
        assert len(site.model.batches) <= len(colours) // 3
    finally:
        desk.close()


def test_one_query_that_fails_spoils_no_other(tmp_path: Path) -> None:
    class Picky(ColourModel):
        def embed_queries(self, texts):  # type: ignore[no-untyped-def]
            time.sleep(0.05)
            if "poison" in texts:
                raise DeixisError("no")
            return super().embed_queries(texts)

    site = SearchSite(tmp_path)
    desk = search_desk.Desk(site.index, Picky())
    try:
        texts = ["red", "green", "poison", "blue", "white"]
        waiting = [desk.ask(desk.engine, parse_query(text), search_desk.Part(1)) for text in texts]
        for text, answer in zip(texts, waiting, strict=True):
            if text == "poison":
                with pytest.raises(DeixisError):
                    answer.result(10)
            else:
                (found,) = answer.result(10).found
                assert Path(desk.engine.collection.paths(found.picture)[0].decode()).stem == text
    finally:
        desk.close()


def test_too_many_questions_are_refused_at_once(site: SearchSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_desk, "WAITING", 0)
    assert site.get("/api/search", q="red").status_code == 429


def until(holds, seconds: float = 15.0) -> bool:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_what_is_indexed_anew_is_found_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_desk, "LOOK", 0.05)
    with SearchSite(tmp_path).serve() as site:
        key = site.key("red")
        assert "black" not in site.names("black", count=200)
        paint(site.pictures / "black.png", COLOURS["black"], SIZE)
        site.update()
        assert until(lambda: site.names("black", count=1) == ["black"])
        (site.pictures / "black.png").unlink()
        site.update()
        assert until(lambda: "black" not in site.names("black", count=200))
        assert site.get(f"/api/pictures/{key}").status_code == 200


def test_another_models_index_takes_over_and_keys_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_desk, "LOOK", 0.05)
    other = ColourModel("other colours")
    monkeypatch.setattr("deixis.search.engine.load_search_model", lambda name: other)
    site = SearchSite(tmp_path)
    monkeypatch.setattr(site, "model", site.model)
    with site.serve() as served:
        served.desk._given = None
        key = served.key("teal")
        assert served.get("/api/status").json()["model"] == "colours"
        served.update(other)
        assert until(lambda: served.get("/api/status").json()["model"] == "other colours")
        assert served.key("teal") == key
        assert served.names("red", count=1) == ["red"]


def test_an_index_that_breaks_is_reported_and_the_old_state_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_desk, "LOOK", 0.05)
    with SearchSite(tmp_path).serve() as site:
        (site.index / "current").write_text("nowhere\n")
        assert until(lambda: site.get("/api/status").json()["problem"] != "")
        assert site.names("red", count=1) == ["red"]
        assert site.get("/healthz").json() == {"status": "ok"}


def test_pictures_come_small_upright_and_without_metadata(tmp_path: Path) -> None:
    site = SearchSite(tmp_path)
    turned = Pillow.new("RGB", (2000, 1000), "red")
    turned.paste((0, 0, 255), (0, 0, 1000, 1000))
    exif = Pillow.Exif()
    exif[0x0112] = 6  # Turned by a quarter: the left half comes to lie above.
    exif[0x010E] = "a secret place"
    turned.save(site.pictures / "turned.jpg", exif=exif, quality=95)
    site.update()
    with site.serve():
        found = site.get("/api/search", q="purple", count=200).json()["hits"]
        key = next(hit["picture"] for hit in found if hit["path"].endswith("turned.jpg"))
        reply_ = site.get(f"/api/pictures/{key}").json()
        assert (reply_["picture"], reply_["paths"]) == (key, [str(site.pictures / "turned.jpg")])
        assert (reply_["width"], reply_["height"]) == (1000, 2000)
        for size, longest in (("thumbnail", 400), ("screen", 1600)):
            reply_ = site.get(f"/api/pictures/{key}/{size}")
            assert reply_.headers["content-type"] == "image/jpeg"
            assert "immutable" in reply_.headers["cache-control"]
            picture = Pillow.open(io.BytesIO(reply_.content))
            assert picture.size == (longest // 2, longest)
            assert not picture.getexif()
            assert b"secret" not in reply_.content
            red, _, blue = picture.convert("RGB").getpixel((longest // 4, longest // 8))  # type: ignore[misc]
            assert blue > 200 > 60 > red


def test_grounding_looks_at_a_picture_once(site: SearchSite) -> None:
    key, before = site.key("white"), site.eye.looks
    for text in ("red", "red and", "red and blue"):
        reply_ = site.get("/api/ground", picture=key, text=text)
        assert reply_.status_code == 200
    assert site.eye.looks == before + 1
    width, height = SIZE
    left, right = [0, 0, width / 2, height], [width / 2, 0, width, height]
    sure = {"score": 0.9, "presence": 0.93}
    assert reply_.json() == {
        "text": "red and blue",
        "width": width,
        "height": height,
        "phrases": [
            {"phrase": "red", "start": 0, "end": 3, "box": left, "boxes": [left], **sure},
            {"phrase": "blue", "start": 8, "end": 12, "box": right, "boxes": [right], **sure},
        ],
        "fits_better": [],
    }
    sent = site.post("/api/ground", (site.pictures / "white.png").read_bytes(), text="red and blue")
    assert sent.json() == reply_.json()
    # The same content, however it came, is looked at once.
    assert site.eye.looks == before + 1


def test_grounding_names_what_fits_the_picture_better(site: SearchSite) -> None:
    for text, better in (("a red bus", ["a yellow bus"]), ("a yellow bus", []), ("a red car", [])):
        assert site.get("/api/ground", picture=site.key("white"), text=text).json()["fits_better"] == better


def test_describing_returns_captions_and_the_boxes_of_their_phrases(site: SearchSite) -> None:
    reply_ = site.get("/api/describe", picture=site.key("red")).json()
    assert [each["text"] for each in reply_["captions"]] == ["Red and blue <b>.", "White, red."]
    # Each phrase once.
    assert [(each["text"], each["box"]) for each in reply_["regions"]] == [
        ("red", [0, 0, 60, 80]),
        ("blue", [60, 0, 120, 80]),
        ("white", [0, 0, 60, 80]),
    ]
    assert site.post("/api/describe", (site.pictures / "red.png").read_bytes()).json() == reply_


def test_without_models_it_is_said_plainly(tmp_path: Path) -> None:
    with SearchSite(tmp_path).serve(models=False) as site:
        key = site.key("red")
        status = site.get("/api/status").json()
        assert (status["grounds"], status["describes"]) == (False, False)
        refused = site.get("/api/ground", picture=key, text="red")
        assert refused.status_code == 409
        assert "no model that points" in refused.json()["error"]
        assert site.get("/api/describe", picture=key).status_code == 409
        assert "no model that points" in site.get(f"/pictures/{key}").text


def test_the_map_has_every_picture_of_a_small_collection(site: SearchSite) -> None:
    reply_ = site.get("/api/map").json()
    assert reply_["pictures"] == len(PAINTED)
    assert {point["picture"] for point in reply_["points"]} == {site.key(name) for name in PAINTED}
    assert all(0 <= point[axis] <= 1 for point in reply_["points"] for axis in "xy")


def test_metrics_count_what_was_asked(tmp_path: Path) -> None:
    with SearchSite(tmp_path).serve() as site:
        for _ in range(3):
            site.get("/api/search", q="red")
        site.get("/api/search", q="-")
        site.get("/made-up/path")
        families = {each.name: each for each in text_string_to_metric_families(site.get("/metrics").text)}
        counts = {
            (sample.labels["route"], sample.labels["status"]): sample.value
            for sample in families["deixis_requests"].samples
            if sample.name == "deixis_requests_total"
        }
        assert counts[("/api/search", "200")] == 3
        assert counts[("/api/search", "400")] == 1
        assert counts[("other", "404")] == 1
        assert families["deixis_pictures"].samples[0].value == len(PAINTED)


def test_an_empty_index_is_served(tmp_path: Path) -> None:
    site = SearchSite(tmp_path)
    for path in site.pictures.iterdir():
        path.unlink()
    paint(site.pictures / "only.png", COLOURS["red"])
    site.update()
    with site.serve():
        assert site.names("red") == ["only"]
        assert site.get("/api/map").status_code == 400
        assert site.get("/").status_code == 200


def test_a_shelf_keeps_within_its_room() -> None:
    shelf: Shelf[int, bytes] = Shelf(100, len)
    made = []

    def make(number: int) -> bytes:
        made.append(number)
        return bytes(30)

    for number in (1, 2, 3, 1, 4, 1, 2):
        shelf.get(number, lambda number=number: make(number))  # type: ignore[misc]
    # 2 was unused for longest when 4 came, and had to be made again; 1 was not.
    assert made == [1, 2, 3, 4, 2]


def test_clients_side_by_side_all_get_answers(site: SearchSite) -> None:
    def ask(number: int) -> bool:
        name = list(PAINTED)[number % 4]
        return site.names(name, count=1) == [name]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(80)))
