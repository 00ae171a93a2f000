"""Box requirement, drawing, quality and coverage of one chain (Entities, section 2.2), as a pure function of answers.

Workers vote on whether a box, or another box, is needed; a worker asked to draw who finds nothing to draw votes "no".
The majority wins, but "no" needs two votes that agree. This gives the paper's rules: one "box" or one "more" leads to
drawing at once, a "no" needs a second opinion, and a tie a third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deixis.annotation.answers import Answers
from deixis.annotation.workflow_records import (
    ALL,
    BOX,
    COVERAGE,
    DRAWING,
    GOOD,
    MORE,
    NO_BOX,
    QUALITY,
    REQUIREMENT,
    REVIEW,
    Question,
    Settings,
)
from deixis.corpus import Box

Step = Callable[[], Any]


@dataclass
class BoxState:
    """State of a chain: settled with a verdict (`box`, `scene`, `no box`), or waiting for the answer to a question.

    `passed` maps the id of each drawing judgment to whether Box Quality found its box good.
    """

    boxes: list[Box] = field(default_factory=list)
    verdict: str | None = None
    question: Question | None = None
    passed: dict[int, bool] = field(default_factory=dict)


class Votes:
    """Votes on whether a box, or another box, is needed."""

    def __init__(self) -> None:
        self.workers: list[int] = []
        self.heard = 0  # Votes by answers to the question itself; the others come from workers asked to draw.
        self.wanted = 0
        self.refusals: list[str] = []

    def add(self, worker: int, wanted: bool, label: str) -> None:
        self.workers.append(worker)
        if wanted:
            self.wanted += 1
        else:
            self.refusals.append(label)

    def decide(self, agreement: int) -> str | None:
        """`BOX`, the label of the winning refusal, or None if another vote is needed."""
        if self.wanted > len(self.refusals):
            return BOX
        if len(self.refusals) <= self.wanted:
            return None
        label = max(self.refusals, key=self.refusals.count)
        # If two refusals give different reasons (scene, no box), a third vote decides.
        if self.refusals.count(label) >= agreement or len(self.workers) > agreement:
            return label
        return None


class BoxSteps:
    """Takes one chain, shown by its representative mention, through the four box tasks."""

    def __init__(self, mention: str, answers: Answers, settings: Settings) -> None:
        self.mention, self.answers, self.settings = mention, answers, settings
        self.state = BoxState()
        self._accepted_ids: list[str] = []
        self._need, self._cover = Votes(), Votes()
        self._draws: list[int] = []  # Workers who were asked to draw since the last accepted box.
        self._refused_draws = self._bad_boxes = 0

    def run(self, skip_requirement: bool, given: tuple[Box, ...] = ()) -> BoxState:
        """Read answers until the chain is settled or an answer is missing. Boxes `given` are judged first."""
        for index, box in enumerate(given):
            if self._judge(f"given{index}", box, None) is None:
                return self.state
        step: Step | None = self._requirement
        if self._accepted_ids:
            step = self._coverage
        elif skip_requirement or given:
            step = self._drawing
        while step is not None:
            step = step()
        return self.state

    # Each step returns the next one, or None if the chain is settled or waits for an answer.

    def _requirement(self) -> Step | None:
        verdict = self._vote(self._need, REQUIREMENT, self._key(REQUIREMENT), BOX)
        if verdict == BOX:
            return self._drawing
        self.state.verdict = verdict
        return None

    def _drawing(self) -> Step | None:
        key = self._key(DRAWING, *self._accepted_ids)
        judgment = self.answers.nth(key, len(self._draws))
        if judgment is None:
            self._ask(DRAWING, key, self._draws)
            return None
        self._draws.append(judgment.worker)
        if isinstance(judgment.answer, Box):
            good = self._judge(str(judgment.id), judgment.answer, judgment.worker)
            if good is not None:
                self.state.passed[judgment.id] = good
            return None if good is None or self._in_review() else self._coverage if good else self._drawing
        self._refused_draws += 1
        if self._in_review():
            return None
        votes = self._cover if self._accepted_ids else self._need
        votes.add(judgment.worker, False, ALL if self._accepted_ids else NO_BOX)
        return self._coverage if self._accepted_ids else self._requirement

    def _coverage(self) -> Step | None:
        verdict = self._vote(self._cover, COVERAGE, self._key(COVERAGE, *self._accepted_ids), MORE)
        if verdict == BOX:
            return self._drawing
        self.state.verdict = None if verdict is None else BOX
        return None

    def _judge(self, box_id: str, box: Box, drawer: int | None) -> bool | None:
        """Box Quality: whether the box is good; None until somebody has judged it."""
        key = self._key(QUALITY, box_id)
        judgment = self.answers.first(key)
        if judgment is None:
            self._ask(QUALITY, key, [] if drawer is None else [drawer], box)
            return None
        if judgment.answer != GOOD:
            self._bad_boxes += 1
            return False
        self.state.boxes.append(box)
        self._accepted_ids.append(box_id)
        self._cover = Votes()
        self._draws = []
        self._refused_draws = self._bad_boxes = 0
        return True

    def _vote(self, votes: Votes, task: str, key: str, wanting: str) -> str | None:
        """Count votes until they decide. Returns the decision, or None if a vote is missing."""
        while (verdict := votes.decide(self.settings.agreement)) is None:
            judgment = self.answers.nth(key, votes.heard)
            if judgment is None:
                self._ask(task, key, votes.workers)
                return None
            assert isinstance(judgment.answer, str)
            votes.add(judgment.worker, judgment.answer == wanting, judgment.answer)
            votes.heard += 1
        return verdict

    def _in_review(self) -> bool:
        """Whether the chain reached a limit and goes to review. It is settled once a reviewer accepts it as it is."""
        settings = self.settings
        if self._refused_draws > settings.cycle_limit:
            reason = "workers disagree whether a box is missing"
        elif self._bad_boxes >= settings.bad_box_limit:
            reason = f"{self._bad_boxes} boxes in a row were judged bad"
        elif len(self._accepted_ids) >= settings.box_limit:
            reason = f"it has {len(self._accepted_ids)} boxes; is one missing?"
        else:
            return False
        key = self._key(REVIEW, *self._accepted_ids)
        if self.answers.accepted(key):
            self.state.verdict = BOX if self._accepted_ids else NO_BOX
        else:
            boxes = tuple(self.state.boxes)
            self.state.question = Question(REVIEW, key, (self.mention,), boxes, reason=reason)
        return True

    def _ask(self, task: str, key: str, excluded: list[int], box: Box | None = None) -> None:
        self.state.question = Question(
            task,
            key,
            (self.mention,),
            tuple(self.state.boxes),
            box,
            () if self.settings.solo else tuple(sorted(set(excluded))),
        )

    def _key(self, task: str, *parts: str) -> str:
        return " ".join([task, self.mention, *parts])
