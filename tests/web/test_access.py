"""Who may do what: roles, other people's tasks, other sites, files outside the corpus, sessions and limits."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from deixis.annotation.accounts import SESSION_SECONDS
from deixis.web import admin_routes, review_routes, work_routes
from deixis.web.annotation_app import WORKER_BURST, WRONG_BURST, pages
from deixis.web.security import HEADERS, LARGEST_BODY
from tests.web.conftest import MakeSite
from tests.web.site import Visitor

#: What anybody may ask for.
OPEN = {"/", "/join", "/back", "/api/join"}


def ask(visitor: Visitor, route: APIRoute) -> int:
    if "POST" in route.methods:
        return visitor.post(route.path, {}).status_code
    return visitor.get(route.path.replace("{token}", "x"), params={"id": "x"}).status_code


def routes(*routers: Any) -> list[APIRoute]:
    return [route for router in routers for route in router.routes]


def test_every_route_requires_signing_in(make_site: MakeSite) -> None:
    visitor = make_site().visitor()
    everything = routes(pages, work_routes.router, review_routes.router, admin_routes.router)
    assert len(everything) > 15
    for route in everything:
        if route.path not in OPEN:
            answered = ask(visitor, route)
            assert answered == (401 if route.path.startswith("/api") else 303), route.path


def test_a_worker_reaches_no_reviewers_and_no_administrators_route(make_site: MakeSite) -> None:
    site = make_site()
    worker, reviewer = site.join("ann"), site.join("ray", "reviewer")
    for route in routes(review_routes.router, admin_routes.router):
        assert ask(worker, route) == 403, route.path
    for path in ("/review", "/images", "/admin"):
        assert worker.get(path).status_code == 403
        assert reviewer.get(path).status_code == 200
    for path, sent in (
        ("/api/admin/invite", {"role": "administrator"}),
        ("/api/admin/decide", {"worker": 1, "task": "link", "suspend": True}),
    ):
        assert reviewer.post(path, sent).status_code == 403
    assert reviewer.get("/api/admin/export").status_code == 403
    assert len(site.bench.workers()) == 2


def test_nobody_answers_sees_or_gives_back_anothers_task(make_site: MakeSite) -> None:
    site = make_site()
    ann, bob = site.join("ann"), site.join("bob")
    task = ann.tasks()[0]
    assert ann.get(f"/api/work/pictures/{task['token']}").status_code == 200
    assert bob.get(f"/api/work/pictures/{task['token']}").status_code == 409
    answer = {"token": task["token"], "answer": task["answers"][0][0]}
    assert bob.post("/api/work/answer", answer).status_code == 409
    assert bob.post("/api/work/report", {"token": task["token"], "comment": "mine"}).status_code == 409
    bob.post("/api/work/skip", {"token": task["token"]})
    assert ann.tasks()[0]["token"] == task["token"]
    assert task["token"] not in [other["token"] for other in bob.tasks()]
    assert sum(entry.judgments for entry in site.bench.progress().tasks.values()) == 0
    assert ann.post("/api/work/answer", answer).status_code == 200


def test_a_task_shows_only_what_its_worker_needs(make_site: MakeSite) -> None:
    """Hidden verification questions look like others, and no answer, key or image id is shown."""
    rules = {"test_questions": 0, "first_items": 0, "hidden_share": 0.5, "alarm": 1e9, "link_together": False}
    site = make_site(known=True, **rules)
    worker = site.join("ann")
    shapes: dict[bool, set[Any]] = {True: set(), False: set()}
    for _ in range(12):
        reply_ = worker.get("/api/work/tasks", params={"only": "link"})
        assert not any(word in reply_.text for word in ("scene-0", '"truth"', '"key"', '"known', '"image"', '"barred"'))
        task = reply_.json()["tasks"][0]
        hidden = site.bench.picture_of(1, task["token"])[1]
        shapes[hidden].add((frozenset(task), task["test"], task["prompt"], len(task["token"]), len(task["captions"])))
        answered = worker.post("/api/work/answer", {"token": task["token"], "answer": "same", "only": "link"})
        assert set(answered.json()) == {"standing", "standings", "tasks"}
    assert shapes[True] == shapes[False]
    assert len(shapes[True]) == 1
    (shape,) = shapes[True]
    assert shape[0] == {
        "token", "task", "test", "prompt", "answers", "width", "height", "captions", "boxes", "box", "proposal"
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "/static/../workbench.py",
        "/static/%2e%2e/workbench.py",
        "/static/..%2f..%2fworkbench.py",
        "/static//etc/passwd",
        "/api/work/pictures/..%2f..%2fproject.db",
        "/api/work/pictures//etc/passwd",
        "/api/review/picture?id=../../../etc/passwd",
        "/api/review/picture?id=/etc/passwd",
        "/api/review/picture?id=scene-000030",
        "/api/review/image?id=..%2fproject.db",
    ],
)
def test_no_file_outside_the_corpus_is_served(make_site: MakeSite, path: str) -> None:
    administrator = make_site().join("ada", "administrator")
    answered = administrator.get(path)
    assert answered.status_code in (400, 404, 409), answered.text
    assert b"root:" not in answered.content
    assert b"import" not in answered.content
    assert administrator.get("/api/review/picture?id=scene-000000").headers["content-type"] == "image/png"


def test_a_request_that_our_page_did_not_make_changes_nothing(make_site: MakeSite) -> None:
    site = make_site()
    ann, bob = site.join("ann", "administrator"), site.join("bob")
    task = ann.tasks()[0]
    sent = {"token": task["token"], "answer": task["answers"][0][0]}
    own = ann.token
    for wrong in ("", "0" * 64, bob.token):
        ann.token = wrong
        assert ann.post("/api/work/answer", sent).status_code == 403
    ann.token = own
    assert ann.post("/api/work/answer", sent, Origin="https://elsewhere.example").status_code == 403
    assert ann.post("/api/work/answer", sent, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    form = super(Visitor, ann).post("/api/admin/invite", data={"role": "administrator"}, headers={"X-CSRF-Token": own})
    assert form.status_code == 415
    assert site.bench.progress().tasks[task["task"]].judgments == 0
    assert ann.post("/api/work/answer", sent, Origin=site.address).status_code == 200
    # Nobody is signed in from another site either.
    joining = {"secret": site.accounts.invite(), "name": "eve"}
    assert site.visitor().post("/api/join", joining, Origin="https://elsewhere.example").status_code == 403


def test_the_session_cookie_is_closed_to_scripts_and_ends(make_site: MakeSite) -> None:
    site = make_site()
    visitor = site.visitor()
    joined = visitor.post("/api/join", {"secret": site.accounts.invite(), "name": "ann"})
    cookie = joined.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    visitor.load("/work")
    assert visitor.get("/api/work/tasks").status_code == 200
    other = site.visitor()
    other.cookies = visitor.cookies
    assert visitor.post("/api/leave", {}).status_code == 200
    assert other.get("/api/work/tasks").status_code == 401, "the session is over, not only the cookie gone"
    bob = site.join("bob")
    site.clock.now += SESSION_SECONDS + 1
    assert bob.get("/api/work/tasks").status_code == 401
    assert bob.get("/work").headers["location"] == "/"
    # The sign-in link opens a new session of the same worker, on any device, until another link is made.
    link = {"secret": site.accounts.sign_in_link(site.bench.worker_number("bob"))}
    assert bob.post("/api/join", link).json() == {"role": "worker", "link": None}
    assert "bob" in bob.load("/work").text
    assert site.visitor().post("/api/join", link).status_code == 200
    newer = bob.post("/api/link", {}).json()["path"]
    assert site.visitor().post("/api/join", link).status_code == 400
    assert site.visitor().post("/api/join", {"secret": newer.partition("#")[2]}).status_code == 200


def test_an_invitation_works_once_and_guessing_is_slow(make_site: MakeSite) -> None:
    site = make_site()
    secret = site.accounts.invite()
    assert site.visitor().post("/api/join", {"secret": secret, "name": "ann"}).status_code == 200
    visitor = site.visitor()
    tried = [visitor.post("/api/join", {"secret": secret, "name": f"eve {n}"}).status_code for n in range(WRONG_BURST)]
    assert set(tried) == {400}
    assert visitor.post("/api/join", {"secret": secret, "name": "eve"}).status_code == 429
    # Who has a right one comes in, also from an address that wrong ones come from.
    assert visitor.post("/api/join", {"secret": site.accounts.invite(), "name": "eve"}).status_code == 200


def test_one_worker_cannot_flood_the_server(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine sends fewer requests per second than a worker may.
    monkeypatch.setattr("deixis.web.annotation_app.WORKER_RATE", 1.0)
    site = make_site()
    ann, bob = site.join("ann"), site.join("bob")
    answered = [ann.get("/api/work/pictures/x") for _ in range(2 * WORKER_BURST)]
    refused = [reply for reply in answered if reply.status_code == 429]
    assert refused
    assert refused[0].headers["retry-after"] == "1"
    assert bob.get("/api/work/tasks").status_code == 200


def test_what_is_too_large_or_not_ours_is_refused(make_site: MakeSite) -> None:
    ann = make_site().join("ann")
    large = {"token": "x" * LARGEST_BODY, "answer": "same"}
    assert ann.post("/api/work/answer", large).status_code == 413

    def chunks() -> Any:
        for _ in range(LARGEST_BODY // 10_000 + 2):
            yield b" " * 10_000

    headers = {"X-CSRF-Token": ann.token, "Content-Type": "application/json"}
    piecewise = super(Visitor, ann).post("/api/work/answer", content=chunks(), headers=headers)
    assert piecewise.status_code == 413
    for nonsense in (
        "[",
        {"token": 1, "answer": "same"},
        {"token": "x"},
        {"token": "x", "answer": "same", "role": "y"},
        {"token": "x", "answer": "same", "comment": "a\0b"},
    ):
        assert ann.post("/api/work/answer", nonsense).status_code == 422
    no_text = b'{"token": "x", "answer": "\xff"}'
    assert super(Visitor, ann).post("/api/work/answer", content=no_text, headers=headers).status_code == 422


@pytest.mark.parametrize("place", ["work/pictures/%00", "review/image?id=a%00b", "review/neighbours?id=%00&part=all"])
def test_an_address_with_a_null_character_is_refused(make_site: MakeSite, place: str) -> None:
    """PostgreSQL would not take it, and the server would answer that something went wrong."""
    assert make_site().join("lead", "administrator").get(f"/api/{place}").status_code == 422


def test_the_page_of_work_gives_no_reviews_and_counts_refusals(make_site: MakeSite) -> None:
    site = make_site()
    ann, rev = site.join("ann"), site.join("rev", "reviewer")
    task = ann.tasks()[0]
    ann.post("/api/work/report", {"token": task["token"], "comment": "odd"}).raise_for_status()
    for only in ("review", "report", ""):
        assert rev.get("/api/work/tasks", params={"only": only}).status_code == 400
    answer = {"token": rev.tasks()[0]["token"], "answer": "same", "only": "review"}
    assert rev.post("/api/work/answer", answer).status_code == 400
    refused = [ann.get("/api/admin/overview").status_code for _ in range(2 * WORKER_BURST)]
    assert set(refused) == {403, 429}


def test_the_fractions_of_a_box_do_not_reveal_where_it_was_drawn(make_site: MakeSite) -> None:
    site = make_site()
    ann, bob = site.join("ann"), site.join("bob")
    task = ann.tasks("drawing")[0]
    drawn = {"token": task["token"], "answer": [10.3, 20.7, 60.2, 80.9]}
    ann.post("/api/work/answer", drawn).raise_for_status()
    assert [judged["box"] for judged in bob.tasks("quality")] == [[10, 21, 60, 81]]
    site.bench.submit(2, bob.tasks("quality")[0]["token"], "good")
    assert [10.3, 20.7, 60.2, 80.9] in [
        [box.x1, box.y1, box.x2, box.y2] for image in site.bench.export().corpus for box in image.boxes
    ]


def test_every_answer_carries_the_headers_of_a_careful_server(make_site: MakeSite) -> None:
    site = make_site()
    ann = site.join("ann")
    token = ann.tasks()[0]["token"]
    paths = ("/", "/work", "/admin", "/nowhere", "/static/work.js", "/api/work/tasks", f"/api/work/pictures/{token}")
    for path in paths:
        headers = ann.get(path).headers
        assert {name: headers.get(name) for name in HEADERS} == HEADERS, path
        assert "server" not in headers
        assert ("no-store" in headers["cache-control"]) == (not path.startswith(("/static", "/api/work/pictures")))
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


def test_names_and_comments_of_strangers_are_text(make_site: MakeSite) -> None:
    site = make_site()
    visitor = site.join("<script>alert(1)</script>")
    page = visitor.load("/work").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_an_internal_fault_reveals_nothing(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    ann = site.join("ann")

    def broken(*_: object) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(site.bench, "next_tasks", broken)
    answered = ann.get("/api/work/tasks")
    assert answered.status_code == 500
    assert "secret of the house" not in answered.text
    assert answered.headers["content-security-policy"]


def test_only_own_names_are_answered_to(make_site: MakeSite) -> None:
    visitor = make_site().visitor()
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.7", "[", "localhost@evil.example"):
        assert visitor.get("/", headers={"Host": host}).status_code in (400, 421), host
        assert visitor.post("/api/join", {"secret": "x"}, Host=host).status_code in (400, 421), host
    for host in ("localhost", "127.0.0.1:1234", "[::1]"):
        assert visitor.get("/", headers={"Host": host}).status_code == 200, host


def test_a_second_and_different_answer_is_a_conflict(make_site: MakeSite) -> None:
    site = make_site()
    ann = site.join("ann")
    [task, *_] = ann.tasks("link")
    sent = {"token": task["token"], "answer": "same"}
    first = ann.post("/api/work/answer", sent)
    assert first.status_code == 200
    # Sent again after a lost reply, it is the same answer.
    assert ann.post("/api/work/answer", sent).status_code == 200
    other = ann.post("/api/work/answer", {**sent, "answer": "different"})
    assert other.status_code == 409
    assert "answered differently" in other.json()["error"]
    assert sum(report.judgments.get("link", 0) for report in site.bench.workers()) == 1
