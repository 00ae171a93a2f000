"""Records of the workflow (Entities, section 2): mentions, questions, answers, fixes, and the settings of a project.

The key of a question is made of what it asks, not a running number. An answer therefore stays valid when other
questions of the image come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Annotated, Literal

import msgspec

from deixis.corpus import Box, Image
from deixis.errors import DeixisError

LINK, CHAIN, REQUIREMENT, DRAWING, QUALITY, COVERAGE = "link", "chain", "requirement", "drawing", "quality", "coverage"
#: The six tasks, in the order of the workflow.
TASKS = (LINK, CHAIN, REQUIREMENT, DRAWING, QUALITY, COVERAGE)
#: Questions for reviewers: chains that cycle, chains that cannot be split, comments.
REVIEW = "review"
#: A judgment of this task is not an answer but a comment on why the question cannot be answered.
REPORT = "report"

SAME, DIFFERENT = "same", "different"
BOX, SCENE, NO_BOX = "box", "scene", "no box"
NO_MORE = "no more"
GOOD, BAD = "good", "bad"
ALL, MORE = "all", "more"
#: The possible answers of each task. Drawing is also answered with a box.
ANSWERS: dict[str, tuple[str, ...]] = {
    LINK: (SAME, DIFFERENT),
    CHAIN: (SAME, DIFFERENT),
    REQUIREMENT: (BOX, SCENE, NO_BOX),
    DRAWING: (NO_MORE,),
    QUALITY: (GOOD, BAD),
    COVERAGE: (ALL, MORE),
}
#: The key that gives each answer.
KEYS = {
    **dict.fromkeys((SAME, BOX, GOOD, ALL), "y"),
    **dict.fromkeys((DIFFERENT, NO_BOX, NO_MORE, BAD, MORE), "n"),
    SCENE: "s",
}
#: Smallest width and height of a box, in pixels; anything smaller is drawn by accident.
SMALLEST_SIDE = 2.0
#: Assumed width and height, in pixels, of a picture of unknown size.
LARGEST_SIDE = 65_535.0

Answer = str | Box


class Mention(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A phrase to annotate: tokens `start` to `end` (exclusive) of the caption with index `caption`."""

    caption: int
    start: int
    end: int
    text: str
    types: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.caption}:{self.start}-{self.end}"


class GivenChain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chain imported for correction: the ids of its mentions, and the boxes to be judged."""

    id: str
    mentions: tuple[str, ...]
    boxes: tuple[Box, ...] = ()


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image as the workflow starts from it.

    `image` has captions without phrases and no boxes. `nonvisual` are the chunks that are not mentions (pronouns, "the
    background"), as (caption, start, end). `given` is empty unless chains were imported.
    """

    image: Image
    mentions: tuple[Mention, ...] = ()
    nonvisual: tuple[tuple[int, int, int], ...] = ()
    given: tuple[GivenChain, ...] = ()


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question about an image. `mentions` are ids: two or more of a link, all of a chain, else the representative.

    `boxes` are the accepted ones, `box` the one to be judged. `barred` are workers who must not be asked, because they
    answered this question before or drew the box. `reason` explains a review to the reviewer.
    """

    task: str
    key: str
    mentions: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    box: Box | None = None
    barred: tuple[int, ...] = ()
    reason: str = ""


class Judgment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One answer of one worker. Judgments are never changed or deleted; `id` gives their order."""

    id: int
    task: str
    key: str
    worker: int
    answer: Answer
    comment: str = ""


class MentionsFix(msgspec.Struct, frozen=True, tag="mentions"):
    """A reviewer's list of the image's mentions and their types, which corrects chunking errors."""

    mentions: tuple[Mention, ...]


class ChainsFix(msgspec.Struct, frozen=True, tag="chains"):
    """A reviewer's chains of mention ids. No more link or chain questions are asked about these mentions."""

    chains: tuple[tuple[str, ...], ...]


class BoxesFix(msgspec.Struct, frozen=True, tag="boxes"):
    """A reviewer's boxes for the chain of this mention, or the reason why it has none."""

    mention: str
    boxes: tuple[Box, ...] = ()
    verdict: Literal["box", "scene", "no box"] = "box"


class AcceptFix(msgspec.Struct, frozen=True, tag="accept"):
    """A reviewer accepts the subject of a review, given by its key, as it is."""

    key: str


Fix = MentionsFix | ChainsFix | BoxesFix | AcceptFix


# Allowed ranges of the settings.
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Odds = Annotated[float, msgspec.Meta(gt=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a project. The defaults are the paper's where it states them."""

    #: Types whose chains skip the question on whether a box is needed.
    skip_requirement: tuple[str, ...] = ("people", "clothing", "bodyparts")
    #: One person annotates alone: one opinion settles every question, and workers may judge their own boxes.
    solo: bool = False
    #: Ask first whether three or more phrases that are likely the same thing all are; the paper asks in pairs only.
    link_together: bool = True
    #: A chain goes to review if more workers than this answer "no more" where others want a box.
    cycle_limit: Count = 3
    #: Number of bad boxes in a row that sends a chain to review.
    bad_box_limit: Count = 6
    #: Number of boxes that sends a chain to review; the released data has at most 40.
    box_limit: Count = 60
    #: Seconds after which an unanswered task goes to another worker.
    lease_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    #: Length of the qualification test of each task, and the share of right answers needed to pass.
    test_questions: Count = 10
    test_share: Share = 0.8
    test_attempts: Count = 2
    #: After a test, show which answers were wrong and why. Switch it off if workers could pass them on.
    test_explained: bool = True
    #: Number of first items of a worker in a task, and the share of right answers (or good boxes) needed.
    first_items: Count = 30
    first_share: Share = 0.8
    first_share_drawing: Share = 0.65
    #: Share of hidden verification questions after the first items.
    hidden_share: Share = 0.02
    #: A trusted worker is suspended when the checked answers are `alarm` times more likely at an error rate of
    #: `bad_error` than at `usual_error`. Drawing has a higher usual error, because judges of boxes err too.
    usual_error: Rate = 0.1
    usual_error_drawing: Rate = 0.2
    bad_error: Rate = 0.5
    alarm: Odds = 100.0
    alarm_drawing: Odds = 1000.0

    @property
    def agreement(self) -> int:
        """Number of workers who must agree that no box, or no further box, is needed."""
        return 1 if self.solo else 2


def representative(mentions: Iterable[Mention]) -> Mention:
    """The longest mention of a chain, likely the most specific one. Ties go to the earliest."""
    return max(mentions, key=lambda m: (m.end - m.start, len(m.text), -m.caption, -m.start))


def check_answer(question: Question, answer: Answer, width: int, height: int) -> Answer:
    """Check an answer and return it as it is recorded. Raises `DeixisError` if it does not fit the question.

    A box is clipped to the picture. `width` and `height` are 0 if they are unknown.
    """
    if isinstance(answer, str):
        if answer not in ANSWERS[question.task]:
            words = [repr(word) for word in ANSWERS[question.task]]
            expected = " or ".join(["a box", *words] if question.task == DRAWING else words)
            raise DeixisError(f"{answer!r} is not an answer to {question.task}; use {expected}")
        return answer
    if question.task != DRAWING:
        raise DeixisError(f"{question.task} cannot be answered with a box")
    return check_box(answer, width, height)


def check_box(box: Box, width: int, height: int) -> Box:
    """Clip a box to the picture. Raises `DeixisError` if the rest is too small."""
    right, bottom = width or LARGEST_SIDE, height or LARGEST_SIDE
    cut = Box(max(0.0, float(box.x1)), max(0.0, float(box.y1)), min(right, float(box.x2)), min(bottom, float(box.y2)))
    finite = all(map(isfinite, msgspec.structs.astuple(box)))
    if not finite or cut.x2 - cut.x1 < SMALLEST_SIDE or cut.y2 - cut.y1 < SMALLEST_SIDE:
        raise DeixisError(
            f"a box must be at least {SMALLEST_SIDE:g} pixels wide and high inside the picture; got {box}"
        )
    return cut


def by_id(mentions: Sequence[Mention]) -> dict[str, Mention]:
    return {mention.id: mention for mention in mentions}
