"""The workbench over HTTP: from the test to the export, with skips, reports, corrections and broken pictures."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import OperationalError

from deixis.annotation import schema
from deixis.annotation.simulation.truth import Truth
from deixis.annotation.views import CaptionView
from deixis.annotation.workbench import Workbench
from deixis.corpus import Box, Image, open_corpus
from deixis.corpus.formats import get_format
from deixis.web import admin_routes
from deixis.web.annotation_pictures import PictureShelf, _encode_for_browser
from deixis.web.limits import RateLimit
from deixis.web.work_routes import pieces
from tests.annotation.conftest import fresh_database
from tests.web.conftest import MakeSite
from tests.web.site import Site, Visitor, make_project, open_site, truths_of


def image_of(bench: Workbench, token: str) -> str:
    """The image behind a task: which its worker does not see."""
    with schema.reading(bench.engine) as connection:
        worker = connection.execute(select(schema.items.c.worker_id).where(schema.items.c.token == token)).scalar_one()
    return bench.picture_of(worker, token)[0].id


def right_answer(site: Site, truths: dict[str, Truth], task: dict[str, Any], worker: int) -> Any:
    view = next(v for v in site.bench.next_tasks(worker, task["task"], 2) if v.token == task["token"])
    answer = truths[view.image].right_answer(view)
    return [answer.x1, answer.y1, answer.x2, answer.y2] if isinstance(answer, Box) else answer


def work(site: Site, truths: dict[str, Truth], people: dict[int, Visitor], limit: int = 2000) -> int:
    """Right answers over HTTP until nobody finds a task."""
    state = {number: person.tasks() for number, person in people.items()}
    answered = 0
    idle = 0
    while idle < len(people) and answered < limit:
        number = list(people)[answered % len(people) if not idle else (answered + idle) % len(people)]
        tasks = state[number] or people[number].tasks()
        if not tasks:
            idle += 1
            continue
        idle = 0
        sent = {"token": tasks[0]["token"], "answer": right_answer(site, truths, tasks[0], number)}
        reply = people[number].post("/api/work/answer", sent)
        assert reply.status_code in (200, 409), reply.text
        state[number] = reply.json()["tasks"] if reply.status_code == 200 else []
        answered += 1
    return answered


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_two_servers_of_one_project_share_sessions_leases_and_answers(
    database: str, tmp_path: Path, corpora: tuple[Path, Path], request: pytest.FixtureRequest
) -> None:
    """As the team guide allows, behind one proxy: a worker's requests may reach either."""
    where = str(tmp_path / "project.db")
    if database == "postgresql":
        where = fresh_database(request.getfixturevalue("postgresql"))
    make_project(where, corpora, images=2)
    with open_site(where) as first, open_site(where) as second:
        ann, bob = first.join("ann"), first.join("bob")
        held = ann.tasks()
        ann.base_url = bob.base_url = second.address
        assert [task["token"] for task in ann.tasks()] == [task["token"] for task in held]
        assert not {task["token"] for task in bob.tasks()} & {task["token"] for task in held}
        number = first.bench.worker_number("ann")
        sent = {"token": held[0]["token"], "answer": right_answer(first, truths_of(corpora), held[0], number)}
        for site in (second, first, second):
            ann.base_url = site.address
            assert ann.post("/api/work/answer", sent).status_code == 200
        assert sum(task.judgments for task in second.bench.progress().tasks.values()) == 1
        assert first.bench.check() == []


def test_a_whole_project_over_http_and_the_export_is_what_was_annotated(
    make_site: MakeSite, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    site = make_site(images=2)
    administrator = site.join("ada", "administrator")
    people = {}
    for name in ("ann", "bob", "cleo"):
        visitor = site.join(name)
        people[site.bench.worker_number(name)] = visitor
    # The limit on requests is for people; this crowd is faster.
    site_limit(site)
    truths = truths_of(corpora)
    assert work(site, truths, people) > 50
    overview = administrator.get("/api/admin/overview").json()
    assert overview["progress"]["finished"] == overview["progress"]["images"] == 2
    assert administrator.get("/api/review/queue").json() == []
    annotated = site.bench.export().corpus
    for format in admin_routes.EXPORTS:
        download = administrator.get("/api/admin/export", params={"format": format})
        assert download.headers["content-disposition"].endswith(f'-{format}.zip"')
        with zipfile.ZipFile(io.BytesIO(download.content)) as archive:
            archive.extractall(tmp_path / format)
        (written,) = (tmp_path / format).iterdir()
        assert open_corpus(written, cache=False) == get_format(format).keep(annotated)
    # And that is the truth of the pictures.
    for image in annotated:
        gold = truths[image.id].image
        assert {frozenset(image.chain_boxes(c.id)) for c in image.chains} == {
            frozenset(gold.chain_boxes(c.id)) for c in gold.chains
        }
    assert site.bench.check() == []
    assert administrator.get("/api/admin/export", params={"format": "nonsense"}).status_code == 400


def site_limit(site: Site) -> None:
    site.app.state.sessions._limit = RateLimit(1e6, 10**6)


def test_a_person_qualifies_and_learns_only_how_far_it_is(make_site: MakeSite, corpora: tuple[Path, Path]) -> None:
    site = make_site(known=True, test_questions=3, first_items=0, hidden_share=0.0)
    ann = site.join("ann")
    truths = truths_of(corpora)
    seen = []
    for _ in range(3):
        task = ann.tasks("quality")[0]
        assert task["test"]
        assert ann.post("/api/work/skip", {"token": task["token"]}).status_code == 400
        answer = right_answer(site, truths, task, 1)
        reply = ann.post("/api/work/answer", {"token": task["token"], "answer": answer, "only": "quality"}).json()
        seen.append((reply["standings"]["quality"]["standing"], reply["standings"]["quality"]["test_answered"]))
    assert seen == [("test", 1), ("test", 2), ("trusted", 0)]
    assert ann.tasks("quality") == [], "what was loaded ahead of the test is gone, and no box waits yet"
    for _ in range(6):
        task = ann.tasks("link")[0]
        wrong = "same" if right_answer(site, truths, task, 1) == "different" else "different"
        reply = ann.post("/api/work/answer", {"token": task["token"], "answer": wrong, "only": "link"}).json()
    assert reply["standings"]["link"]["standing"] == "failed the test"
    assert ann.tasks("link") == []


def test_after_a_test_one_learns_what_was_wrong_and_why(make_site: MakeSite, corpora: tuple[Path, Path]) -> None:
    site, truths = make_site(known=True, test_questions=4, first_items=5), truths_of(corpora)
    ann, bob = site.join("ann"), site.join("bob")
    wrong: list[str] = []
    for _ in range(4):
        assert ann.get("/api/work/mistakes", params={"task": "quality"}).json() == [], "not before its end"
        task = ann.tasks("quality")[0]
        right = right_answer(site, truths, task, 1)
        wrong += [task["token"]] if right == "bad" else []
        ann.post("/api/work/answer", {"token": task["token"], "answer": "good", "only": "quality"}).raise_for_status()
    shown = ann.get("/api/work/mistakes", params={"task": "quality"}).json()
    assert [entry["token"] for entry in shown] == wrong != []
    for entry in shown:
        assert (entry["answer"], entry["right"]) == ("Good", "Bad")
        assert "yellow box is not tight" in entry["reason"]
        assert len(entry["evidence"]) == 1
        assert entry["evidence"][0] != entry["box"]
        assert ann.get(f"/api/work/pictures/{entry['token']}").status_code == 200
        assert bob.get(f"/api/work/pictures/{entry['token']}").status_code == 409
    assert bob.get("/api/work/mistakes", params={"task": "quality"}).json() == []
    assert ann.get("/api/work/mistakes", params={"task": "x"}).status_code == 400


def test_a_project_can_keep_the_answers_of_its_tests_to_itself(make_site: MakeSite) -> None:
    site = make_site(known=True, test_questions=1, first_items=5, test_explained=False)
    ann = site.join("ann")
    for _ in range(2):
        task = ann.tasks("link")[0]
        ann.post("/api/work/answer", {"token": task["token"], "answer": "same", "only": "link"})
        assert ann.get("/api/work/mistakes", params={"task": "link"}).json() == []


def test_the_last_answer_is_taken_back_and_asked_again(make_site: MakeSite) -> None:
    site = make_site()
    ann, bob = site.join("ann"), site.join("bob")
    task = ann.tasks("link")[0]
    ann.post("/api/work/answer", {"token": task["token"], "answer": "same", "only": "link"})
    assert bob.post("/api/work/take-back", {"token": task["token"]}).status_code == 409
    again = ann.post("/api/work/take-back", {"token": task["token"], "only": "link"}).json()
    assert again["tasks"][0]["captions"] == task["captions"]
    assert again["standings"]["link"]["answered"] == 0
    reply = ann.post("/api/work/answer", {"token": again["tasks"][0]["token"], "answer": "different"})
    assert reply.json()["standings"]["link"]["answered"] == 1
    assert ann.post("/api/work/take-back", {"token": "x"}).status_code == 409
    assert ann.post("/api/work/take-back", {"token": task["token"], "only": "x"}).status_code == 400
    assert site.bench.check() == []


def test_an_answer_sent_twice_counts_once_and_a_lost_task_is_reported(make_site: MakeSite) -> None:
    site = make_site()
    ann = site.join("ann")
    task = ann.tasks()[0]
    sent = {"token": task["token"], "answer": task["answers"][0][0], "comment": "seen"}
    assert ann.post("/api/work/answer", sent).status_code == ann.post("/api/work/answer", sent).status_code == 200
    assert site.bench.progress().tasks[task["task"]].judgments == 1
    late = ann.tasks()[0]
    site.clock.now += site.bench.settings.lease_seconds + 1
    bob = site.join("bob")
    taken = bob.tasks()[0]
    assert taken["captions"] == late["captions"]
    gone = ann.post("/api/work/answer", {"token": late["token"], "answer": late["answers"][0][0]})
    assert gone.status_code == 409
    assert "somebody else" in gone.json()["error"]


def test_skips_go_to_others_and_reports_to_the_reviewers(make_site: MakeSite) -> None:
    site = make_site(images=1)
    ann, ray = site.join("ann"), site.join("ray", "reviewer")
    first = ann.tasks()[0]
    after = ann.post("/api/work/skip", {"token": first["token"]}).json()["tasks"]
    assert first["captions"] not in [task["captions"] for task in after]
    second = after[0]
    assert ann.post("/api/work/report", {"token": second["token"], "comment": " "}).status_code == 400
    image = image_of(site.bench, second["token"])
    assert ann.post("/api/work/report", {"token": second["token"], "comment": "no such man"}).status_code == 200
    (waiting,) = [entry for entry in ray.get("/api/review/queue").json() if entry["task"] == "review"]
    assert (waiting["image"], waiting["reason"]) == (image, "no such man")
    view = ray.get("/api/review/image", params={"id": image}).json()
    accepted = {"type": "accept", "key": waiting["key"]}
    fixed = ray.post("/api/review/fix", {"image": image, "version": view["version"], "fix": accepted}).json()
    assert fixed["reviews"] == []
    assert [event["worker"] for event in fixed["history"]] == ["ann", "ray"]


def test_a_reviewer_corrects_phrases_chains_and_boxes_with_history(make_site: MakeSite) -> None:
    site = make_site(images=1)
    ray = site.join("ray", "reviewer")
    view = ray.get("/api/review/image", params={"id": "scene-000000"}).json()

    def fix(made: dict[str, Any], comment: str = "") -> dict[str, Any]:
        sent = {"image": "scene-000000", "version": view["version"], "fix": made, "comment": comment}
        answered = ray.post("/api/review/fix", sent)
        assert answered.status_code == 200, answered.text
        shown: dict[str, Any] = answered.json()
        return shown

    mentions = [entry["mention"] for entry in view["mentions"]]
    kept = mentions[:6]
    stale = view
    view = fix({"type": "mentions", "mentions": kept}, "the others are wrong")
    assert [entry["mention"] for entry in view["mentions"]] == kept
    ids = [entry["id"] for entry in view["mentions"]]
    view = fix({"type": "chains", "chains": [[id] for id in ids[2:]] + [ids[:2]]})
    assert sorted(map(len, (chain["mentions"] for chain in view["chains"]))) == [1, 1, 1, 1, 2]
    view = fix({"type": "boxes", "mention": ids[0], "boxes": [[10, 20, 60, 90]], "verdict": "box"})
    for id in ids[2:]:
        view = fix({"type": "boxes", "mention": id, "boxes": [], "verdict": "no box"})
    assert view["finished"]
    assert view["history"][0]["comment"] == "the others are wrong"
    assert len(view["history"]) == 7
    old = {"image": "scene-000000", "version": stale["version"], "fix": {"type": "chains", "chains": [ids]}}
    refused = ray.post("/api/review/fix", old)
    assert refused.status_code == 400
    assert "changed since" in refused.json()["error"]
    (image,) = site.bench.export().corpus
    assert image.boxes == (Box(10, 20, 60, 90),)
    assert ray.post("/api/review/fix", {**old, "fix": {"type": "nonsense"}}).status_code == 422


def test_the_list_of_images_has_thumbnails_and_neighbours(make_site: MakeSite) -> None:
    site = make_site()
    ray, ann = site.join("ray", "reviewer"), site.join("ann")
    task = ann.tasks("link")[0]
    image = image_of(site.bench, task["token"])
    ann.post("/api/work/answer", {"token": task["token"], "answer": "same", "comment": "odd"}).raise_for_status()
    listed = ray.get("/api/review/images").json()
    assert (listed["total"], listed["start"], len(listed["images"])) == (4, 0, 4)
    (touched,) = [entry for entry in listed["images"] if entry["answers"]]
    assert (touched["id"], touched["workers"], touched["waiting"]) == (image, ["ann"], 1)
    waiting = ray.get("/api/review/images", params={"part": "review"}).json()
    assert [entry["id"] for entry in waiting["images"]] == [image]
    assert ray.get("/api/review/images", params={"start": 3}).json()["images"] == listed["images"][3:]
    picture = ray.get("/api/review/thumbnail", params={"id": image})
    assert picture.headers["content-type"] == "image/jpeg"
    assert max(Pillow.open(io.BytesIO(picture.content)).size) <= 320
    names = [entry["id"] for entry in listed["images"]]
    around = ray.get("/api/review/neighbours", params={"id": names[1]}).json()
    assert around == {"place": 2, "total": 4, "previous": names[0], "next": names[2]}
    assert ray.get("/api/review/neighbours", params={"id": names[3]}).json()["next"] is None
    gone = ray.get("/api/review/neighbours", params={"id": names[1], "part": "review"}).json()
    assert gone == {"place": 0, "total": 1, "previous": None, "next": image}
    for path, query in (
        ("images", {"part": "x"}),
        ("neighbours", {"id": "x", "part": "x"}),
        ("thumbnail", {"id": "x"}),
    ):
        assert ray.get(f"/api/review/{path}", params=query).status_code == 400
    assert ray.get("/api/review/images", params={"start": -1}).status_code == 422


def test_a_reviewer_is_warned_of_two_chains_with_the_same_boxes(make_site: MakeSite) -> None:
    site = make_site()
    ray = site.join("ray", "reviewer")
    name = "scene-000000"
    view = ray.get("/api/review/image", params={"id": name}).json()

    def fix(made: dict[str, Any]) -> None:
        nonlocal view
        sent = {"image": name, "version": view["version"], "fix": made}
        view = ray.post("/api/review/fix", sent).json()

    people = [entry["id"] for entry in view["mentions"] if "people" in entry["mention"][4]]
    fix({"type": "chains", "chains": [people[:1], people[1:]]})
    assert view["equal_boxes"] == []
    fix({"type": "boxes", "mention": people[0], "boxes": [[73, 105, 125, 226]], "verdict": "box"})
    fix({"type": "boxes", "mention": people[1], "boxes": [[74, 105, 125, 225]], "verdict": "box"})
    (warning,) = view["equal_boxes"]
    chains = [view["chains"][warning[side]]["mentions"] for side in ("first", "second")]
    assert sorted(chains) == sorted([people[:1], people[1:]])
    assert warning["merged"]
    clothes = [entry["id"] for entry in view["mentions"] if "clothing" in entry["mention"][4]]
    fix({"type": "chains", "chains": [people, clothes[:1]]})
    fix({"type": "boxes", "mention": clothes[0], "boxes": [[74, 105, 125, 225]], "verdict": "box"})
    (warning,) = view["equal_boxes"]
    assert not warning["merged"], "a person and a shirt stay apart"


def test_an_administrator_invites_and_decides(make_site: MakeSite) -> None:
    site = make_site()
    ada, ann = site.join("ada", "administrator"), site.join("ann")
    path = ada.post("/api/admin/invite", {"role": "reviewer"}).json()["path"]
    assert path.startswith("/join#")
    guest = site.visitor()
    joined = guest.post("/api/join", {"secret": path.partition("#")[2], "name": "ray"})
    assert joined.json()["role"] == "reviewer"
    again = site.visitor().post("/api/join", {"secret": joined.json()["link"].partition("#")[2]})
    assert again.json() == {"role": "reviewer", "link": None}
    number = site.bench.worker_number("ann")
    back = ada.post("/api/admin/invite", {"worker": number}).json()["path"]
    assert back.startswith("/back#")
    decided = ada.post("/api/admin/decide", {"worker": number, "task": "link", "suspend": True, "reason": "asleep"})
    assert next(w for w in decided.json() if w["name"] == "ann")["standings"]["link"] == "suspended"
    assert ann.tasks("link") == []
    assert ada.get("/api/admin/overview").json()["decisions"][0]["reason"] == "asleep"
    ada.post("/api/admin/decide", {"worker": number, "task": "link", "suspend": False})
    assert ann.tasks("link")
    for suspend in (True, False):
        decided = ada.post("/api/admin/decide", {"worker": number, "task": None, "suspend": suspend})
        standings = next(w for w in decided.json() if w["name"] == "ann")["standings"]
        assert (set(standings.values()) == {"suspended"}) == suspend
    assert ada.post("/api/admin/decide", {"worker": number, "task": "tea", "suspend": True}).status_code == 400
    assert ada.post("/api/admin/invite", {"role": "emperor"}).status_code == 400


def test_a_project_can_ask_for_the_record_of_whoever_is_invited(make_site: MakeSite) -> None:
    ada = make_site(screen_answers=500, screen_accuracy=0.95).join("ada", "administrator")
    for record, status in (
        ({}, 400),
        ({"answers": 499, "accuracy": 1.0}, 400),
        ({"answers": 500, "accuracy": 0.94}, 400),
        ({"answers": 500, "accuracy": 0.95}, 200),
        ({"answers": 500, "accuracy": 2}, 422),
        ({"role": "reviewer"}, 200),
    ):
        assert ada.post("/api/admin/invite", record).status_code == status, record


def test_pictures_come_as_browsers_can_show_them(
    make_site: MakeSite, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    site = make_site()
    ann = site.join("ann")
    task = ann.tasks()[0]
    shown = ann.get(f"/api/work/pictures/{task['token']}")
    picture = (corpora[0] / "images" / f"{image_of(site.bench, task['token'])}.png").read_bytes()
    assert shown.content == picture
    assert shown.headers["content-type"] == "image/png"
    buffer = io.BytesIO()
    Pillow.new("RGB", (30, 20), "red").save(buffer, "TIFF")
    sent = _encode_for_browser(Image("x"), buffer.getvalue())
    assert (sent.media_type, sent.width, sent.height) == ("image/png", 30, 20)
    assert Pillow.open(io.BytesIO(sent.data)).getpixel((3, 3)) == (255, 0, 0)
    # A smaller copy: boxes stay in the pixels of the original.
    assert _encode_for_browser(Image("x", width=300, height=200), buffer.getvalue())[2:] == (300, 200)
    shelf = PictureShelf(site.bench.engine, known=False)
    image = open_corpus(corpora[0]).images[0]
    assert shelf.get(image) is shelf.get(image)


def test_a_broken_picture_is_reported_without_its_place(
    make_site: MakeSite, corpora: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    ann = site.join("ann")
    token = ann.tasks()[0]["token"]
    monkeypatch.setattr(type(open_corpus(corpora[0]).pictures), "read", lambda *_: b"GIF89a nonsense")
    refused = ann.get(f"/api/work/pictures/{token}")
    assert refused.status_code == 404
    assert str(corpora[0]) not in refused.text


def test_captions_are_cut_at_their_highlights() -> None:
    caption = CaptionView(0, ("A", "man", ",", "his", "dog", "'s", "ball", "."), ((0, 2), (3, 4), (4, 7)))
    assert pieces(caption) == [("A man", True), (",", False), (" ", False), ("his", True), (" ", False),
                               ("dog's ball", True), (".", False)]  # fmt: skip
    assert pieces(CaptionView(0, ("A", "dog", "."), ())) == [("A dog.", False)]


def test_a_limit_lets_a_burst_through_and_then_a_rate() -> None:
    now = 0.0
    limit = RateLimit(rate=2.0, burst=3, clock=lambda: now)
    assert [limit.allow("a") for _ in range(4)] == [True, True, True, False]
    assert limit.wait("a") == 0.5
    assert limit.allow("b")
    now = 0.5
    assert [limit.allow("a") for _ in range(2)] == [True, False]
    now = 100.0
    assert [limit.allow("a") for _ in range(4)] == [True, True, True, False]


@pytest.mark.slow
def test_a_restart_of_postgresql_is_not_seen(corpora: tuple[Path, Path], postgresql: str) -> None:
    where = fresh_database(postgresql)
    make_project(where, corpora, images=1)
    with open_site(where) as site:
        worker = site.join("ann")
        before = worker.tasks()
        # As a restart does, this ends the connections in the pool.
        engine = create_engine(postgresql, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            assert connection.execute(text(ended), {"name": site.bench.engine.url.database}).all()
        engine.dispose()
        assert worker.tasks() == before


def test_a_database_that_is_down_makes_the_page_try_again(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    worker = site.join("ann")

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, ConnectionError("connection refused"))

    monkeypatch.setattr(site.bench, "next_tasks", refuse)
    answered = worker.get("/api/work/tasks")
    # The script of the pages sends again what was answered with 502 or more (shell.js).
    assert (answered.status_code, answered.headers["Retry-After"]) == (503, "2")
    assert "SELECT" not in answered.text
