"""What a worker reads: the tasks' names, their rules in a few words, and the answers with their keys."""

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
    """A task as it is shown: `answers` gives the label and the key of each answer that is a word."""

    title: str
    rules: tuple[str, ...]
    answers: dict[str, tuple[str, str]]


WORDING: dict[str, TaskWording] = {
    LINK: TaskWording(
        "Coreference link",
        (
            "Look at the picture first: “a man” and “the player” are the same if both mean the same person in it.",
            "A group is the same only as a whole: “two men” and “one of the men” are different.",
        ),
        {SAME: ("Same", "y"), DIFFERENT: ("Different", "n")},
    ),
    CHAIN: TaskWording(
        "Chain verification",
        (
            "Say “all the same” only if every highlighted phrase means the same thing, or the same group.",
            "One odd phrase is enough to say no.",
        ),
        {SAME: ("All the same", "y"), DIFFERENT: ("Not all", "n")},
    ),
    REQUIREMENT: TaskWording(
        "Box requirement",
        (
            "A box is needed if the thing can be seen in the picture and a box can hold it.",
            "A place that fills the picture, such as “the beach” or “a street”, is a scene.",
            "Neither, if it cannot be seen or is nothing one could draw a box around.",
        ),
        {BOX: ("A box", "y"), SCENE: ("Scene or place", "s"), NO_BOX: ("No box", "n")},
    ),
    DRAWING: TaskWording(
        "Box drawing",
        (
            "One box around one thing: as small as can be, with all of it that can be seen inside.",
            "Of several things, draw one that has no box yet; a crowd that cannot be told apart gets one box.",
            "Say “nothing to draw” if every thing has its box, or none can be seen.",
        ),
        {NO_MORE: ("Nothing to draw", "n")},
    ),
    QUALITY: TaskWording(
        "Box quality",
        (
            "Good: around one thing the phrase means, with all of it that can be seen inside and little room left.",
            "Bad: another thing, only a part, much too large, or a thing that has a box already.",
        ),
        {GOOD: ("Good", "y"), BAD: ("Bad", "n")},
    ),
    COVERAGE: TaskWording(
        "Box coverage",
        ("Look for one more thing the phrase means that has no box.", "If you find none, everything has a box."),
        {ALL: ("Everything has a box", "y"), MORE: ("Something is missing", "n")},
    ),
}
