"""What workers read: title, question, rules, answers and examples of each task.

The texts are TOML files, one per task (`rules/link.toml`, …). A project can have its own, in its own language
(`deixis annotate rules`); they are stored in its database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from deixis.annotation import schema
from deixis.annotation.views import TaskView
from deixis.annotation.workflow_records import ANSWERS, BOX, DRAWING, LINK, TASKS
from deixis.corpus import Box
from deixis.errors import InputError
from deixis.files import read_toml

#: Pictures of the drawn corpus that examples can show.
EXAMPLE_PICTURES = frozenset({"scene-000000.png", "scene-000003.png", "scene-000006.png", "scene-000040.png"})
_FOLDER = files("deixis.annotation") / "rules"
#: Bytes of a file of rules, and examples in it: every worker's page shows them.
RULES_LIMIT, MOST_EXAMPLES = 200_000, 50
#: No picture has more pixels a side.
LARGEST_COORDINATE = 100_000


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A drawn picture with captions, whose phrases are in brackets, and boxes: a good answer, or one to avoid."""

    picture: str
    captions: tuple[str, ...]
    good: bool
    text: str
    boxes: tuple[Box, ...] = ()
    box: Box | None = None

    def pieces(self) -> list[list[tuple[str, bool]]]:
        """The captions in pieces, each with whether it is highlighted."""
        parts = [re.split(r"[\[\]]", caption) for caption in self.captions]
        return [[(text, index % 2 == 1) for index, text in enumerate(part)] for part in parts]


class TaskRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The texts of a task. `answers` are the labels of its buttons, by answer.

    `reasons` say why an answer would have been right. `group_question` and `group_answers` are for a link of more than
    two phrases.
    """

    title: str
    question: str
    rules: tuple[str, ...]
    answers: dict[str, str]
    reasons: dict[str, str] = {}
    group_question: str = ""
    group_answers: dict[str, str] = {}
    examples: tuple[Example, ...] = ()

    def question_of(self, view: TaskView) -> str:
        return self.group_question if _is_group(view) and self.group_question else self.question

    def labels_of(self, view: TaskView) -> Mapping[str, str]:
        return self.group_answers if _is_group(view) and self.group_answers else self.answers


def _is_group(view: TaskView) -> bool:
    return view.task == LINK and sum(len(caption.highlights) for caption in view.captions) > 2


@cache
def default_rules() -> dict[str, TaskRules]:
    """The rules that come with Deixis, by task."""
    with as_file(_FOLDER) as folder:
        return {task: _read(folder / f"{task}.toml", task) for task in TASKS}


def rule_files() -> dict[str, str]:
    """The files of `default_rules`, to be translated or changed: text by file name."""
    return {f"{task}.toml": (_FOLDER / f"{task}.toml").read_text(encoding="utf-8") for task in TASKS}


def read_rules(folder: Path) -> dict[str, TaskRules]:
    """The rules in a folder that has a file for some of the tasks, or for all."""
    rules = {task: _read(folder / f"{task}.toml", task) for task in TASKS if (folder / f"{task}.toml").exists()}
    if not rules:
        names = ", ".join(f"{task}.toml" for task in TASKS)
        raise InputError(folder, f"has no rules; a file is named after its task: {names}")
    return rules


def _read(path: Path, task: str) -> TaskRules:
    rules = read_toml(path, TaskRules, "is not a file of rules", RULES_LIMIT)
    for labels, field in ((rules.answers, "answers"), (rules.group_answers, "group_answers")):
        if (labels or field == "answers") and set(labels) != set(ANSWERS[task]):
            raise InputError(path, f"needs labels for exactly {', '.join(ANSWERS[task])}", field)
    possible = {*ANSWERS[task], BOX} if task == DRAWING else set(ANSWERS[task])
    if not set(rules.reasons) <= possible:
        raise InputError(path, f"can only have {', '.join(sorted(possible))}", "reasons")
    for example in rules.examples:
        if example.picture not in EXAMPLE_PICTURES:
            raise InputError(path, f"can only show {', '.join(sorted(EXAMPLE_PICTURES))}", "examples")
        for box in (*example.boxes, *([example.box] if example.box else [])):
            if not all(0 <= value <= LARGEST_COORDINATE for value in (box.x1, box.y1, box.x2, box.y2)):
                raise InputError(path, f"has a box that is not inside a picture: {box}", "examples")
    if len(rules.examples) > MOST_EXAMPLES:
        raise InputError(path, f"has {len(rules.examples)} examples, more than {MOST_EXAMPLES}", "examples")
    return rules


def store_rules(connection: Connection, rules: Mapping[str, TaskRules]) -> None:
    """Give a project its own rules for these tasks."""
    for task, texts in rules.items():
        schema.set_value(connection, _key(task), msgspec.json.encode(texts).decode())


def load_rules(connection: Connection) -> dict[str, TaskRules]:
    """The rules of a project: its own where it has any, else those that come with Deixis."""
    rules = dict(default_rules())
    for task in TASKS:
        stored = schema.get_value(connection, _key(task))
        if stored is not None:
            rules[task] = msgspec.json.decode(stored, type=TaskRules)
    return rules


def _key(task: str) -> str:
    return f"rules {task}"
