"""The annotation API as its OpenAPI schema tells it: whatever the schema allows, and much that it forbids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from deixis.web import admin_routes, review_routes, work_routes
from deixis.web.annotation_app import pages
from tests.web.conftest import MakeSite
from tests.web.site import Site, Visitor

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
checks = pytest.importorskip("schemathesis.checks")

#: No schema tells which tokens, images and workers there are, so that a well-formed request may be refused. A visitor
#: without a session gets no further than that; `test_access.py` asks every route without one.
EXCLUDED = [checks.positive_data_acceptance]


@pytest.fixture
def site(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("WORKER", "WRONG"):
        monkeypatch.setattr(f"deixis.web.annotation_app.{name}_RATE", 1e6)
        monkeypatch.setattr(f"deixis.web.annotation_app.{name}_BURST", 10**6)
    return make_site()


def signed_in(visitor: Visitor) -> dict[str, Any]:
    """What a browser sends with every request."""
    return {"headers": {"X-CSRF-Token": visitor.token}, "cookies": dict(visitor.cookies)}


def schema_of(visitor: Visitor) -> Any:
    """Without the ways to sign in: the session comes with every request, and is not made up."""
    reply_ = visitor.get("/api/openapi.json").json()
    for operations in (reply_, *reply_["paths"].values()):
        for part in (operations, *(each for each in operations.values() if isinstance(each, dict))):
            part.pop("security", None)
    return schemathesis.openapi.from_dict(reply_)


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_one_that_the_schema_tells(site: Site, mode: str, examples: int) -> None:
    """No 5xx, no status, content type or field that is not in the schema; what the schema forbids is refused."""
    visitor = site.join("ada", "administrator")
    asked = 0
    for found in schema_of(visitor).get_all_operations():
        operation = found.ok()
        if operation.path == "/api/leave":
            continue  # It would end the session of all that follows.

        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            case.call_and_validate(base_url=site.address, timeout=60, excluded_checks=EXCLUDED, **signed_in(visitor))

        try:
            ask()
        except Unsatisfiable:
            continue
        asked += 1
    assert asked >= 8


def test_good_requests_are_answered_as_the_schema_tells(site: Site) -> None:
    """Tokens and images are not guessed by chance, so the good answers are asked for here."""
    visitor = site.join("ada", "administrator")
    loaded = schema_of(visitor)
    task = visitor.tasks("link")[0]
    image = site.bench.export().corpus.images[0].id
    other = visitor.tasks("link")[1]
    for method, path, sent in (
        ("GET", "/api/work/tasks", {}),
        ("GET", "/api/work/pictures/{token}", {"token": task["token"]}),
        ("POST", "/api/work/answer", {"token": task["token"], "answer": "same", "comment": "odd"}),
        ("POST", "/api/work/skip", {"token": other["token"]}),
        ("GET", "/api/review/queue", {}),
        ("GET", "/api/review/image", {"id": image}),
        ("GET", "/api/review/picture", {"id": image}),
        ("GET", "/api/admin/overview", {}),
        ("POST", "/api/admin/invite", {"role": "worker"}),
        ("POST", "/api/admin/decide", {"worker": 1, "task": "drawing", "suspend": True}),
        ("GET", "/api/admin/export", {"format": "deixis"}),
        ("POST", "/api/join", {"secret": site.accounts.invite("worker"), "name": "bob"}),
    ):
        if method == "POST":
            answered = visitor.post(path, sent)
        else:
            answered = visitor.get(path.format(**sent), params=sent if "{" not in path else {})
        assert answered.status_code == 200, (path, answered.text)
        loaded[path][method].validate_response(answered)


def test_the_schema_is_for_those_who_are_signed_in_and_lists_every_route(site: Site) -> None:
    assert site.visitor().get("/api/openapi.json").status_code == 401
    reply_ = site.join("ann").get("/api/openapi.json").json()
    routers = (pages, work_routes.router, review_routes.router, admin_routes.router)
    paths = {route.path for router in routers for route in router.routes if route.path.startswith("/api/")}
    assert reply_["paths"].keys() == paths - {"/api/openapi.json"}
