"""The pictures of a served index: lists with filters, page after page, originals, downloads, duplicates."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.search.filters import Filter
from deixis.web import search_desk
from deixis.web.downloads import SENT, file_name, zipped
from tests.search.fakes import paint, paint_many
from tests.search.test_filters import photograph
from tests.web.search_site import PAINTED, SearchSite


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    made = SearchSite(tmp_path_factory.mktemp("pictures"))
    photograph(made.pictures / "2019" / "red 1.jpg", (250, 5, 5), "2019:07:14 15:20:31")
    photograph(made.pictures / "2019" / "deep" / "red 2.jpg", (245, 9, 9), "2019:08:01 00:00:00")
    (made.pictures / "2019" / "copy of red.png").write_bytes((made.pictures / "red.png").read_bytes())
    made.update()
    with made.serve() as served:
        yield served


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    made = SearchSite(tmp_path_factory.mktemp("large"))
    paint_many(made.pictures / "many", 1500)
    made.update()
    with made.serve() as served:
        yield served


def names(hits: list[dict[str, str]]) -> list[str]:
    return [Path(hit["path"]).stem for hit in hits]


def test_all_pictures_are_listed_those_taken_last_first(site: SearchSite) -> None:
    answer = site.get("/api/pictures").json()
    assert answer["total"] == len(PAINTED) + 2
    assert not answer["more"]
    assert names(answer["pictures"])[-2:] == ["red 2", "red 1"]
    assert answer["pictures"][-1] | {"picture": ""} == {
        "picture": "",
        "path": str(site.pictures / "2019" / "red 1.jpg"),
        "date": "2019-07-14T15:20:31",
        "width": 60,
        "height": 40,
    }
    pages = [site.get("/api/pictures", count=3, offset=offset).json() for offset in range(0, 10, 3)]
    assert [hit for page in pages for hit in page["pictures"]] == answer["pictures"]
    assert [page["more"] for page in pages] == [True, True, True, False]


def test_filters_leave_pictures_out_of_lists_and_searches(site: SearchSite) -> None:
    for parameters, expected in (
        ({"folder": "2019/"}, {"red 1", "red 2", "copy of red"}),
        ({"folder": "2019/deep"}, {"red 2"}),
        ({"name": "RED*"}, {"red", "red 1", "red 2"}),
        ({"until": "2019-07"}, {"red 1"}),
        ({"since": "2019-08-01", "until": "2019-12-31"}, {"red 2"}),
        ({"name": "no such name"}, set()),
    ):
        listed = site.get("/api/pictures", **parameters).json()
        assert set(names(listed["pictures"])) == expected
        assert listed["total"] == len(expected)
        assert set(site.names("red", **parameters)) == expected
        like = site.get("/api/similar", picture=site.key("white"), **parameters).json()
        assert set(names(like["hits"])) == expected
        sent = site.post("/api/similar", (site.pictures / "white.png").read_bytes(), **parameters).json()
        assert set(names(sent["hits"])) == expected
    assert site.get("/api/pictures", since="July").status_code == 422


def test_folders_are_listed_with_their_files(site: SearchSite) -> None:
    folders = {each["folder"]: each["files"] for each in site.get("/api/folders").json()["folders"]}
    root = f"{site.pictures}{os.sep}"
    assert folders == {root: 11, f"{root}2019/": 3, f"{root}2019/deep/": 1}


@pytest.mark.parametrize("query", ["red", '"red" -blue', "white"])
def test_pages_past_two_hundred_go_on_to_the_last_picture(large: SearchSite, query: str) -> None:
    """Every picture comes once, in the same order whatever the pages; the count of matches is that of all."""
    total = len(large.desk.engine.collection)
    hits: list[dict[str, object]] = []
    more = True
    while more:
        answer = large.get("/api/search", q=query, count=200, offset=len(hits)).json()
        hits += answer["hits"]
        more = answer["more"]
    assert len({hit["picture"] for hit in hits}) == len(hits) == total
    assert answer["matches"] == sum(bool(hit["relevant"]) for hit in hits)
    again = large.get("/api/search", q=query, count=50, offset=790).json()
    assert again["hits"] == hits[790:840]
    large.desk._rankings = type(large.desk._rankings)(search_desk.KEPT_BYTES, lambda ranked: ranked.bytes)
    anew = large.get("/api/search", q=query, count=50, offset=790).json()
    assert anew["hits"] == hits[790:840]


def test_where_most_pictures_match_more_are_ranked_so_that_matches_come_first(
    large: SearchSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large.model, "relevance", large.model.relevance.__class__(**_lenient(large)))
    answer = large.get("/api/search", q="green", count=200).json()
    engine = large.desk.engine
    whole = engine.rank(engine.terms([search_desk.Query("green", ("green",), ())], [None]), len(engine.collection))[0]
    assert answer["matches"] == int((whole.odds >= 0).sum()) > search_desk.FIRST
    assert all(hit["relevant"] for hit in answer["hits"])


def _lenient(site: SearchSite) -> dict[str, object]:
    """The thresholds of the model, with an end of lists that half of all pictures pass."""
    fields = msgspec.structs.asdict(site.model.relevance)
    return {**fields, "end": fields["end"].__class__(0.0), "present": fields["present"].__class__(0.0)}


def test_a_picture_that_was_sent_is_embedded_once_for_all_its_pages(site: SearchSite) -> None:
    data = paint(site.index.parent / "sent.png", (12, 200, 33)).read_bytes()
    before = site.model.encoded
    first = site.post("/api/similar", data, count=3).json()
    second = site.post("/api/similar", data, count=3, offset=3).json()
    assert site.model.encoded == before + 1
    assert not {hit["picture"] for hit in first["hits"]} & {hit["picture"] for hit in second["hits"]}


def test_originals_come_byte_for_byte_with_their_names(site: SearchSite) -> None:
    hits = site.get("/api/pictures", count=200).json()["pictures"]
    key = next(hit["picture"] for hit in hits if hit["path"].endswith("red 1.jpg"))
    answer = site.client.get(f"/api/pictures/{key}/original")
    assert answer.content == (site.pictures / "2019" / "red 1.jpg").read_bytes()
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["content-disposition"] == "inline; filename*=UTF-8''red%201.jpg"
    saved = site.client.get(f"/api/pictures/{key}/original", params={"download": "true"})
    assert saved.headers["content-disposition"].startswith("attachment;")
    assert saved.content == answer.content
    info = site.client.get(f"/api/pictures/{key}").json()
    assert (info["date"], info["dated_by_camera"]) == ("2019-07-14T15:20:31", True)


def test_a_selection_is_downloaded_as_one_zip(site: SearchSite) -> None:
    hits = site.get("/api/pictures", count=200).json()["pictures"]
    keys = [hit["picture"] for hit in hits]
    answer = site.client.post("/api/downloads", json={"pictures": [*keys, keys[0]]}).json()
    reply = site.client.get(answer["address"])
    assert reply.headers["content-type"] == "application/zip"
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''10%20pictures.zip"
    with zipfile.ZipFile(io.BytesIO(reply.content)) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(keys)
        member = archive.getinfo("red 1.jpg")
        assert member.date_time == (2019, 7, 14, 15, 20, 30)
        assert archive.read(member) == (site.pictures / "2019" / "red 1.jpg").read_bytes()
    # As often as one likes, until it is forgotten.
    assert site.client.get(answer["address"]).status_code == 200
    assert site.client.get("/api/downloads/made-up").status_code == 404
    for wrong in (
        {"pictures": []},
        {"pictures": ["x"]},
        {},
        {"pictures": keys, "more": 1},
        [],
        {"pictures": keys * 600},
    ):
        assert site.client.post("/api/downloads", json=wrong).status_code == 422


def test_names_in_a_zip_are_safe_and_differ(tmp_path: Path) -> None:
    site = SearchSite(tmp_path)
    for number, folder in enumerate(("a", "b", "c")):
        paint(site.pictures / folder / "IMG_1.png", (number, 2, 3))
    evil = paint(site.pictures / "evil.png", (9, 9, 9))
    os.rename(evil, os.fsencode(site.pictures) + b"/e\\..\\vil:\x01\xff?.png")
    site.update()
    with site.serve():
        collection = site.desk.engine.collection
        keys = [collection.key(int(each)) for each in collection.listed(Filter())]
        data = b"".join(zipped(collection, keys))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = archive.namelist()
    assert {"IMG_1.png", "IMG_1 (2).png", "IMG_1 (3).png", "e_.._vil___xff_.png"} <= set(listed)
    assert len({name.lower() for name in listed}) == len(keys)
    assert [file_name(name) for name in (b"/x/ . ", b"/x/..", b"/x/a/b.jpg")] == ["picture", "picture", "b.jpg"]


def test_few_zips_are_sent_at_a_time_and_an_abandoned_one_makes_room(tmp_path: Path) -> None:
    site = SearchSite(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), np.uint8)
    for number in range(6):
        Pillow.fromarray(np.roll(noise, number)).save(site.pictures / f"large-{number}.bmp")
    site.update()
    with site.serve():
        keys = [hit["picture"] for hit in site.get("/api/pictures", count=200).json()["pictures"]]
        address = site.client.post("/api/downloads", json={"pictures": keys}).json()["address"]
        open_replies = [site.client.send(site.client.build_request("GET", address), stream=True) for _ in range(SENT)]
        assert [reply.status_code for reply in open_replies] == [200] * SENT
        assert site.client.get(address).status_code == 429
        open_replies[0].close()
        for _ in range(100):
            status = site.client.get(address).status_code
            if status == 200:
                break
        assert status == 200
        for reply in open_replies[1:]:
            reply.close()


def test_duplicates_are_reported_in_groups(site: SearchSite) -> None:
    answer = site.get("/api/duplicates").json()
    assert answer["total"] == len(answer["groups"])
    (group,) = answer["groups"]
    assert {Path(copy["path"]).stem for copy in group} == {"red", "copy of red"}
    assert {copy["picture"] for copy in group} == {site.key("red")}
    assert group[0]["bytes"] == os.path.getsize(group[0]["path"])
    assert site.get("/api/duplicates", count=1, offset=answer["total"]).json() == {
        "groups": [],
        "total": answer["total"],
    }


def test_dates_without_a_camera_are_those_of_files(site: SearchSite) -> None:
    info = site.client.get(f"/api/pictures/{site.key('blue')}").json()
    assert not info["dated_by_camera"]
    modified = os.path.getmtime(site.pictures / "blue.png")
    assert info["date"] == datetime.fromtimestamp(modified).isoformat(timespec="seconds")
