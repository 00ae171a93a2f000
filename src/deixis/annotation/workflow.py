"""The workflow of one image as a pure function of its document and the answers so far (Entities, section 2).

It returns what is settled and what must be asked next. There is no other state than the log of answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deixis.annotation.answers import Answers
from deixis.annotation.box_steps import BoxSteps
from deixis.annotation.links import Mentions, link_mentions, verify_chain
from deixis.annotation.workflow_records import (
    BAD,
    BOX,
    CHAIN,
    DIFFERENT,
    LINK,
    REVIEW,
    Document,
    Fix,
    GivenChain,
    Judgment,
    Mention,
    Question,
    Settings,
    by_id,
    representative,
)
from deixis.corpus import Box


@dataclass(frozen=True)
class ChainState:
    """A chain with settled mentions. `verdict` is None until its boxes are settled; `given` is its imported id."""

    mentions: Mentions
    boxes: tuple[Box, ...] = ()
    verdict: str | None = None
    given: str = ""


@dataclass
class ImageState:
    """`chains` are those with settled mentions, `questions` all that are open.

    `passed` maps the ids of drawing judgments to whether the box was good. `used` are the ids of the judgments that
    count, `unused` is the number of those whose questions are no longer asked. `links` counts the link judgments in
    use, `disputed` the questions on which workers disagree.
    """

    mentions: Mentions
    chains: list[ChainState] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    passed: dict[int, bool] = field(default_factory=dict)
    links: int = 0
    used: set[int] = field(default_factory=set)
    unused: int = 0
    disputed: int = 0

    @property
    def finished(self) -> bool:
        return not self.questions


def image_state(
    document: Document, judgments: Iterable[Judgment], fixes: Iterable[Fix], settings: Settings
) -> ImageState:
    """Run the workflow as far as the answers allow."""
    judgments = list(judgments)
    answers = Answers(judgments, fixes)
    mentions = answers.mentions.mentions if answers.mentions else document.mentions
    state = ImageState(mentions)
    for chain in _settled_chains(document, answers, settings, state):
        _follow_boxes(chain, document, answers, settings, state)
    for judgment in answers.comments:
        key = f"{REVIEW} comment {judgment.id}"
        if not answers.accepted(key):
            ids = tuple(word for word in judgment.key.split() if word in by_id(mentions))
            state.questions.append(Question(REVIEW, key, ids, reason=judgment.comment))
    state.used = answers.used
    in_use = [judgment for judgment in judgments if judgment.id in answers.used]
    state.links = sum(judgment.task == LINK for judgment in in_use)
    state.unused = len(judgments) - len(in_use)
    state.disputed = _count_disputed(in_use)
    return state


def _count_disputed(judgments: Iterable[Judgment]) -> int:
    """Number of questions with different answers, of boxes judged bad and of chains judged not to be one entity."""
    opinions: dict[str, set[str]] = {}
    for judgment in judgments:
        opinions.setdefault(judgment.key, set()).add(judgment.answer if isinstance(judgment.answer, str) else BOX)
        if judgment.answer == BAD or (judgment.task == CHAIN and judgment.answer == DIFFERENT):
            # Somebody else thought otherwise: the drawer of the box, or those who answered the links.
            opinions[judgment.key].add("")
    return sum(len(answers) > 1 for answers in opinions.values())


def _settled_chains(document: Document, answers: Answers, settings: Settings, state: ImageState) -> list[Mentions]:
    """Chains that are linked and verified. Adds the open questions of the others to `state`."""
    known = by_id(state.mentions)
    fixed = [tuple(known.pop(name) for name in chain if name in known) for chain in answers.chains]
    if document.given:
        linked = _given_chains(document.given, known)
    else:
        linked, questions = link_mentions(tuple(known.values()), answers, together=settings.link_together)
        state.questions += questions
    settled = [chain for chain in fixed if chain]
    for chain in linked:
        parts, question = verify_chain(chain, answers, one_opinion=settings.solo)
        settled += parts
        if question is not None:
            state.questions.append(question)
    return settled


def _given_chains(given: Iterable[GivenChain], known: dict[str, Mention]) -> list[Mentions]:
    chains = [tuple(known[name] for name in chain.mentions if name in known) for chain in given]
    placed = {mention for chain in chains for mention in chain}
    return [chain for chain in chains if chain] + [(m,) for m in known.values() if m not in placed]


def _follow_boxes(chain: Mentions, document: Document, answers: Answers, settings: Settings, state: ImageState) -> None:
    ids = {mention.id for mention in chain}
    source = next((given for given in document.given if not ids.isdisjoint(given.mentions)), None)
    name = source.id if source is not None and ids == set(source.mentions) else ""
    fix = next((answers.boxes[key] for key in reversed(answers.boxes) if key in ids), None)
    if fix is not None:
        state.chains.append(ChainState(chain, fix.boxes, fix.verdict, name))
        return
    skip = any(type_ in settings.skip_requirement for mention in chain for type_ in mention.types)
    steps = BoxSteps(representative(chain).id, answers, settings)
    boxes = steps.run(skip, source.boxes if source is not None else ())
    state.chains.append(ChainState(chain, tuple(boxes.boxes), boxes.verdict, name))
    state.passed |= boxes.passed
    if boxes.question is not None:
        state.questions.append(boxes.question)
