"""The words of the workflow (Entities, section 2): mentions, questions, answers, fixes, and the settings of a project.

Everything here is data. A question is identified inside its image by what it asks, not by a number, so that an answer
stays of use whatever happens around it.
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
#: What a reviewer is asked: chains that cycle, chains that cannot be split, comments.
REVIEW = "review"
#: A judgment of this task is no answer: a worker tells with a comment why the question cannot be answered.
REPORT = "report"

SAME, DIFFERENT = "same", "different"
BOX, SCENE, NO_BOX = "box", "scene", "no box"
NO_MORE = "no more"
GOOD, BAD = "good", "bad"
ALL, MORE = "all", "more"
#: The answers of each task that are words; drawing is also answered with a box.
ANSWERS: dict[str, tuple[str, ...]] = {
    LINK: (SAME, DIFFERENT),
    CHAIN: (SAME, DIFFERENT),
    REQUIREMENT: (BOX, SCENE, NO_BOX),
    DRAWING: (NO_MORE,),
    QUALITY: (GOOD, BAD),
    COVERAGE: (ALL, MORE),
}
#: Narrower than this, in pixels, is a slip of the hand.
SMALLEST_SIDE = 2.0
#: No picture whose size is unknown is taken to be larger, in pixels, than this.
LARGEST_SIDE = 65_535.0

Answer = str | Box


class Mention(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk of a caption (by position) that names something; tokens `start` to `end` (exclusive)."""

    caption: int
    start: int
    end: int
    text: str
    types: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.caption}:{self.start}-{self.end}"


class GivenChain(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chain that was imported for correction: its mentions' ids, and the boxes that wait to be judged."""

    id: str
    mentions: tuple[str, ...]
    boxes: tuple[Box, ...] = ()


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """All the workflow knows of an image before anybody is asked.

    `image` has captions without phrases and no boxes. `nonvisual` are the chunks that are no mentions (pronouns, "the
    background"), as caption, start, end. `given` is empty unless chains were imported.
    """

    image: Image
    mentions: tuple[Mention, ...] = ()
    nonvisual: tuple[tuple[int, int, int], ...] = ()
    given: tuple[GivenChain, ...] = ()


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to ask about an image. `mentions` are ids: the two of a link, all of a chain, else the representative.

    `boxes` are those accepted so far, `box` the one to be judged. `barred` are workers who must not be asked: they
    answered this very question before, or drew the box. `reason` tells a reviewer why.
    """

    task: str
    key: str
    mentions: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    box: Box | None = None
    barred: tuple[int, ...] = ()
    reason: str = ""


class Judgment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One answer of one worker. Judgments are only ever added; `id` gives their order."""

    id: int
    task: str
    key: str
    worker: int
    answer: Answer
    comment: str = ""


class MentionsFix(msgspec.Struct, frozen=True, tag="mentions"):
    """A reviewer's word on which chunks are mentions, and their types (chunking errors)."""

    mentions: tuple[Mention, ...]


class ChainsFix(msgspec.Struct, frozen=True, tag="chains"):
    """A reviewer's word on which mentions, by id, name the same; of those it holds, no more is asked about that."""

    chains: tuple[tuple[str, ...], ...]


class BoxesFix(msgspec.Struct, frozen=True, tag="boxes"):
    """A reviewer's word on the boxes of the chain that holds this mention; without boxes, why there are none."""

    mention: str
    boxes: tuple[Box, ...] = ()
    verdict: Literal["box", "scene", "no box"] = "box"


class AcceptFix(msgspec.Struct, frozen=True, tag="accept"):
    """A reviewer found what a review (by its key) asks about to be right as it stands."""

    key: str


Fix = MentionsFix | ChainsFix | BoxesFix | AcceptFix


#: Settings come from people: a share is between 0 and 1, a count not below 0.
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Odds = Annotated[float, msgspec.Meta(gt=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a project is run. The defaults are the paper's where it gives them."""

    #: Types whose chains go to drawing without being asked whether a box is needed.
    skip_requirement: tuple[str, ...] = ("people", "clothing", "bodyparts")
    #: One person does it all: one opinion settles every question, and own boxes may be judged.
    solo: bool = False
    #: "No more" while others want a box, so often about the same boxes, sends a chain to review.
    cycle_limit: Count = 3
    #: Bad boxes one after the other that send a chain to review.
    bad_box_limit: Count = 6
    #: So many boxes of one chain send it to review; the release has 40 at most.
    box_limit: Count = 60
    #: A task that is not answered within these seconds goes to the next worker.
    lease_seconds: Annotated[float, msgspec.Meta(gt=0)] = 600.0
    #: Questions of the qualification test of each task, and the share of right answers that passes it.
    test_questions: Count = 10
    test_share: Share = 0.8
    test_attempts: Count = 2
    #: The first items of a worker in a task, and the share of right answers (or good boxes) that earns trust.
    first_items: Count = 30
    first_share: Share = 0.8
    first_share_drawing: Share = 0.65
    #: Share of hidden verification questions afterwards.
    hidden_share: Share = 0.02
    #: A trusted worker is suspended once the answers whose truth is known speak `alarm` times more for one who errs at
    #: `bad_error` than for one who errs at `usual_error`. A drawer's boxes also suffer from errors of those who judge.
    usual_error: Rate = 0.1
    usual_error_drawing: Rate = 0.2
    bad_error: Rate = 0.5
    alarm: Odds = 100.0
    alarm_drawing: Odds = 1000.0

    @property
    def agreement(self) -> int:
        """How many must agree that no box, or no further box, is needed."""
        return 1 if self.solo else 2


def representative(mentions: Iterable[Mention]) -> Mention:
    """The longest mention of a chain, which is likely the most specific; the earliest of several."""
    return max(mentions, key=lambda m: (m.end - m.start, len(m.text), -m.caption, -m.start))


def check_answer(question: Question, answer: Answer, width: int, height: int) -> Answer:
    """The answer as it is recorded, or a `DeixisError` that says what is wrong with it.

    A drawn box is cut at the picture's edge; `width` and `height` are 0 where they are unknown.
    """
    if isinstance(answer, str):
        if answer not in ANSWERS[question.task]:
            said = [repr(known) for known in ANSWERS[question.task]]
            known = " or ".join(["a box", *said] if question.task == DRAWING else said)
            raise DeixisError(f"{answer!r} does not answer {question.task}, but {known}")
        return answer
    if question.task != DRAWING:
        raise DeixisError(f"{question.task} is not answered with a box")
    return check_box(answer, width, height)


def check_box(box: Box, width: int, height: int) -> Box:
    """A drawn box within the picture, or a `DeixisError` if nothing worth the name is left of it."""
    right, bottom = width or LARGEST_SIDE, height or LARGEST_SIDE
    cut = Box(max(0.0, float(box.x1)), max(0.0, float(box.y1)), min(right, float(box.x2)), min(bottom, float(box.y2)))
    finite = all(map(isfinite, msgspec.structs.astuple(box)))
    if not finite or cut.x2 - cut.x1 < SMALLEST_SIDE or cut.y2 - cut.y1 < SMALLEST_SIDE:
        raise DeixisError(f"a box needs {SMALLEST_SIDE:g} pixels each way inside the picture; this has {box}")
    return cut


def by_id(mentions: Sequence[Mention]) -> dict[str, Mention]:
    return {mention.id: mention for mention in mentions}
