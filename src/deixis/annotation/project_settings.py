"""The settings of a project: their meaning, and changing them after the project was created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, insert, select

from deixis.annotation import schema
from deixis.annotation.workflow_records import Settings
from deixis.errors import DeixisError

#: No setting has a larger number; infinity could not be read again from JSON.
LARGEST = 10**9
#: Settings on which the questions of an image depend.
WORKFLOW = frozenset({"solo", "skip_requirement", "link_together", "cycle_limit", "bad_box_limit", "box_limit"})


class Setting(NamedTuple):
    """A setting with its default, its value in a project, and what it means."""

    name: str
    default: Any
    value: Any
    meaning: str


def describe_settings(settings: Settings | None = None) -> list[Setting]:
    """All settings, with the values of a project."""
    properties = msgspec.json.schema_components([Settings])[1]["Settings"]["properties"]
    defaults = msgspec.to_builtins(Settings())
    values = msgspec.to_builtins(settings or Settings())
    return [Setting(name, defaults[name], values[name], properties[name]["description"]) for name in defaults]


def load_settings(connection: Connection) -> Settings:
    return msgspec.json.decode(schema.get_value(connection, "settings") or "{}", type=Settings)


def store_settings(connection: Connection, settings: Settings) -> None:
    schema.set_value(connection, "settings", msgspec.json.encode(checked_settings(settings)).decode())


def checked_settings(settings: Settings) -> Settings:
    """The settings themselves; a `DeixisError` where they could not be read again, or a number is beyond all reason."""
    for name, value in msgspec.to_builtins(settings).items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise DeixisError(f"the settings do not fit: {name} is {str(value)[:40]}, more than {LARGEST:,}")
    return settings


def changed_settings(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """Settings with some values replaced. Values are as in a TOML file; text needs no quotes.

    >>> changed_settings(Settings(), {"first_items": "10", "address": "https://work.example.org"}).first_items
    10
    """
    fields = msgspec.to_builtins(settings)
    for name, value in changes.items():
        if name not in fields:
            raise DeixisError(f"{name!r} is not a setting; `deixis annotate settings` lists them")
        try:
            fields[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except (msgspec.DecodeError, ValueError, RecursionError):
            fields[name] = value
    try:
        return checked_settings(msgspec.convert(fields, Settings))
    except msgspec.ValidationError as fault:
        raise DeixisError(f"the settings do not fit: {fault}") from None


def change_settings(connection: Connection, changes: Mapping[str, str]) -> Settings:
    """Change settings of a project. If its questions may change, all images are marked to be computed again."""
    # The lock on the row keeps two changes from overwriting each other.
    project, stale, images = schema.project, schema.stale, schema.images
    connection.execute(select(project.c.value).where(project.c.key == "settings").with_for_update())
    settings = changed_settings(load_settings(connection), changes)
    store_settings(connection, settings)
    if WORKFLOW.isdisjoint(changes):
        return settings
    unmarked = select(images.c.id).where(images.c.id.not_in(select(stale.c.image_id)))
    connection.execute(insert(stale).from_select(["image_id"], unmarked))
    return settings
