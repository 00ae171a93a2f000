"""The API as its OpenAPI schema describes it: whatever the schema allows or forbids gets a documented answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from tests.web.search_site import SearchSite

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
positive_data_acceptance = pytest.importorskip("schemathesis.checks").positive_data_acceptance


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    with SearchSite(tmp_path_factory.mktemp("schema")).serve() as served:
        yield served


def schema_of(site: SearchSite) -> Any:
    reply_ = httpx.get(f"{site.address}/api/openapi.json", trust_env=False)
    return schemathesis.openapi.from_dict(reply_.json())


@pytest.mark.parametrize("examples", [6, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_one_that_the_schema_tells(site: SearchSite, mode: str, examples: int) -> None:
    """No 5xx, no status, content type or field that is not in the schema; what the schema forbids is refused."""
    asked = 0
    for found in schema_of(site).get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            # No schema tells which bytes are a picture.
            case.call_and_validate(base_url=site.address, timeout=60, excluded_checks=[positive_data_acceptance])

        try:
            ask()
        except Unsatisfiable:
            # Nothing that it forbids can be asked of a route without parameters.
            continue
        asked += 1
    assert asked >= 8


def test_pictures_that_are_there_are_answered_as_the_schema_tells(site: SearchSite) -> None:
    """Keys are not guessed by chance, so the good answers are asked for here."""
    loaded = schema_of(site)
    key, data = site.key("red"), (site.pictures / "red.png").read_bytes()
    for method, path, query in (
        ("GET", "/api/search", {"q": "red"}),
        ("GET", "/api/similar", {"picture": key, "q": "blue"}),
        ("GET", "/api/ground", {"picture": key, "text": "red and blue"}),
        ("GET", "/api/describe", {"picture": key}),
        ("GET", "/api/pictures/{picture}", {}),
        ("GET", "/api/pictures", {"folder": "pictures", "since": "2020"}),
        ("GET", "/api/folders", {}),
        ("GET", "/api/duplicates", {}),
        ("GET", "/api/map", {}),
        ("GET", "/api/status", {}),
        ("GET", "/healthz", {}),
        ("POST", "/api/similar", {}),
        ("POST", "/api/ground", {"text": "red"}),
        ("POST", "/api/describe", {}),
    ):
        sent = {"content": data, "headers": {"Content-Type": "image/png"}} if method == "POST" else {}
        reply_ = site.client.request(method, path.replace("{picture}", key), params=query, **sent)  # type: ignore[arg-type]
        assert reply_.status_code == 200
        loaded[path][method].validate_response(reply_)
