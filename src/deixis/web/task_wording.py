"""Texts of the worker's page: the title and rules of each task, the label and key of each answer."""

from __future__ import annotations

from typing import NamedTuple

from deixis.annotation.workflow_records import (
    ALL,
    BAD,
    BOX,
    CHAIN,
    COVERAGE,
    DIFFERENT,
    DRAWING,
    GOOD,
    LINK,
    MORE,
    NO_BOX,
    NO_MORE,
    QUALITY,
    REQUIREMENT,
    SAME,
    SCENE,
)


class TaskWording(NamedTuple):
    """Texts of a task. `answers` maps each answer to its button label and keyboard key."""

    title: str
    rules: tuple[str, ...]
    answers: dict[str, tuple[str, str]]


WORDING: dict[str, TaskWording] = {
    LINK: TaskWording(
        "Coreference link",
        (
            "Look at the picture first: “a man” and “the player” are the same if both refer to the same person in it.",
            "A group is the same only as a whole: “two men” and “one of the men” are different.",
        ),
        {SAME: ("Same", "y"), DIFFERENT: ("Different", "n")},
    ),
    CHAIN: TaskWording(
        "Chain verification",
        (
            "Choose “All the same” only if every highlighted phrase refers to the same thing, or the same group.",
            "If a single phrase refers to something else, choose “Not all”.",
        ),
        {SAME: ("All the same", "y"), DIFFERENT: ("Not all", "n")},
    ),
    REQUIREMENT: TaskWording(
        "Box requirement",
        (
            "Choose “A box” if the thing is visible in the picture and a box can be drawn around it.",
            "A place that fills the picture, such as “the beach” or “a street”, is a scene.",
            "Choose “No box” if it is not visible, or is nothing that a box could be drawn around.",
        ),
        {BOX: ("A box", "y"), SCENE: ("Scene or place", "s"), NO_BOX: ("No box", "n")},
    ),
    DRAWING: TaskWording(
        "Box drawing",
        (
            "Draw one box around one thing: as small as possible, with all its visible parts inside.",
            "Of several things, choose one that has no box yet. A crowd of people you cannot separate gets one box.",
            "Choose “Nothing to draw” if everything has a box already, or nothing is visible.",
        ),
        {NO_MORE: ("Nothing to draw", "n")},
    ),
    QUALITY: TaskWording(
        "Box quality",
        (
            "Good: tight around one thing that the phrase refers to, with all its visible parts inside.",
            "Bad: around something else, around a part only, much too large, or around a thing that already has a box.",
        ),
        {GOOD: ("Good", "y"), BAD: ("Bad", "n")},
    ),
    COVERAGE: TaskWording(
        "Box coverage",
        (
            "Look for another thing that the phrase refers to and that has no box.",
            "If there is none, everything has a box.",
        ),
        {ALL: ("Everything has a box", "y"), MORE: ("Something is missing", "n")},
    ),
}
