"""An API as its OpenAPI schema, with the schemas of our own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from deixis import __version__


class Problem(msgspec.Struct, frozen=True):
    error: str


def described(kind: type[msgspec.Struct], meaning: str) -> dict[str, Any]:
    """A reply with a record as JSON."""
    return {"description": meaning, "content": {"application/json": {"schema": _reference(kind)}}}


def problems(meanings: Mapping[int, str], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The replies of a route that say in `error` why it was not answered."""
    return {status: described(Problem, meanings[status]) for status in statuses}


def json_body(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a record as JSON."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _reference(kind)}}}}


def document(
    app: FastAPI,
    description: str,
    records: Sequence[type[msgspec.Struct]],
    schemes: Mapping[str, Any],
    security: Sequence[Mapping[str, Any]],
    reading: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Describe the API of an application.

    Args:
        app: the application, with all its routes.
        description: what it is for.
        records: what the routes take and give, each named by `described` or `json_body`.
        schemes: ways to sign in, as OpenAPI has them.
        security: which of them a route needs.
        reading: the same for routes that only read, where they need less.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=__version__, description=description, routes=app.routes)
            _, components = msgspec.json.schema_components(
                [*records, Problem], ref_template="#/components/schemas/{name}"
            )
            schema_components = schema.setdefault("components", {})
            schema_components["schemas"] = {**schema_components.get("schemas", {}), **components}
            schema_components["securitySchemes"] = dict(schemes)
            schema["security"] = [dict(scheme) for scheme in security]
            for operations in schema["paths"].values():
                if reading and "get" in operations:
                    operations["get"].setdefault("security", [dict(scheme) for scheme in reading])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
