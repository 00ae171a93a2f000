"""Records of the workflow (Entities, section 2): mentions, questions, answers, fixes, and the settings of a project.

The key of a question is made of what it asks, not a running number. An answer therefore stays valid when other
questions of the image come and go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Annotated, Any, Literal

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


def about(description: str, **limits: Any) -> msgspec.Meta:
    """What a setting means, for `deixis annotate settings`, and the values it allows."""
    return msgspec.Meta(description=description, **limits)


#: The address of a project's pages.
ADDRESS = r"https?://[\w.:\[\]-]{1,260}"
#: Mentions that an image may have. Linking compares each with every chain; images of Flickr30k have fewer than 100.
MOST_MENTIONS = 1_000


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a project. The defaults are the paper's where it states them."""

    address: Annotated[str, about("The public address of the pages, such as https://work.example.org.")] = ""
    solo: Annotated[
        bool,
        about("One person annotates alone: one opinion settles every question, and workers judge their own boxes."),
    ] = False
    skip_requirement: Annotated[
        tuple[str, ...], about("Types whose chains skip the question whether a box is needed.")
    ] = ("people", "clothing", "bodyparts")
    link_together: Annotated[
        bool,
        about("Ask first whether three or more phrases that are likely the same all are. The paper asks in pairs."),
    ] = True
    cycle_limit: Annotated[
        int, about("A chain goes to review if more workers than this find nothing to draw where others do.", ge=0)
    ] = 3
    bad_box_limit: Annotated[int, about("Number of bad boxes in a row that sends a chain to review.", ge=0)] = 6
    box_limit: Annotated[
        int, about("Number of boxes that sends a chain to review. The released data has at most 40.", ge=0)
    ] = 60
    lease_seconds: Annotated[float, about("Seconds after which an unanswered task goes to another worker.", gt=0)] = (
        600.0
    )
    screen_answers: Annotated[
        int,
        about("Earlier answers that a worker must have to be invited. The paper: 500 tasks on Mechanical Turk.", ge=0),
    ] = 0
    screen_accuracy: Annotated[
        float, about("The share of them that must have been right, if `screen_answers` is set.", ge=0, le=1)
    ] = 0.95
    test_questions: Annotated[int, about("Length of the test of each task.", ge=0)] = 10
    test_share: Annotated[float, about("Share of right answers needed to pass the test.", ge=0, le=1)] = 0.8
    test_share_each: Annotated[
        float,
        about(
            "The same among the questions with the same right answer, so that always giving one answer fails.",
            ge=0,
            le=1,
        ),
    ] = 0.5
    test_attempts: Annotated[int, about("How often a worker may take the test of a task.", ge=0)] = 2
    test_explained: Annotated[
        bool, about("After a test, show which answers were wrong and why. Switch it off if workers could pass them on.")
    ] = True
    first_items: Annotated[int, about("Number of first items of a worker in a task that are checked.", ge=0)] = 30
    first_share: Annotated[float, about("Share of right answers needed in the first items.", ge=0, le=1)] = 0.8
    first_share_drawing: Annotated[
        float, about("Share of good boxes needed in the first items of drawing.", ge=0, le=1)
    ] = 0.65
    hidden_share: Annotated[
        float, about("Share of hidden verification questions after the first items.", ge=0, le=1)
    ] = 0.02
    usual_error: Annotated[float, about("Error rate of a good worker; see `alarm`.", gt=0, lt=1)] = 0.1
    usual_error_drawing: Annotated[
        float, about("The same for drawing; higher, because judges of boxes err, too.", gt=0, lt=1)
    ] = 0.2
    bad_error: Annotated[float, about("Error rate of a worker to be suspended; see `alarm`.", gt=0, lt=1)] = 0.5
    alarm: Annotated[
        float,
        about("Suspend a worker whose checked answers are so many times more likely at `bad_error`.", gt=1),
    ] = 100.0
    alarm_drawing: Annotated[float, about("The same for drawing.", gt=1)] = 1000.0

    def __post_init__(self) -> None:
        if self.address and not re.fullmatch(ADDRESS, self.address):
            raise ValueError(
                f"address is {self.address[:100]!r}; it begins with https:// or http:// and has no path, "
                "as in https://work.example.org"
            )

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
