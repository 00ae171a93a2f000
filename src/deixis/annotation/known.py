"""Verification questions: tasks with a known answer, made from an annotated corpus (Entities, section 2.3).

The answers of each task are balanced as far as the corpus allows, so that a worker who always gives the same answer is
wrong half of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import msgspec

from deixis.annotation.links import likely_same, type_groups
from deixis.annotation.mentions import given_document
from deixis.annotation.workflow_records import (
    ALL,
    ANSWERS,
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
    QUALITY,
    REQUIREMENT,
    SAME,
    SCENE,
    TASKS,
    Answer,
    Document,
    Mention,
    Question,
    representative,
)
from deixis.corpus import Box, Image
from deixis.corpus.boxes import box_array, iou_matrix

#: Smallest IoU with a missing box at which a drawing is right.
RIGHT_OVERLAP = 0.6
#: Largest IoU of a bad box, made for Box Quality, with any box of the chain.
WRONG_OVERLAP = 0.4

Truth = str | tuple[Box, ...]
_truth: msgspec.json.Decoder[Truth] = msgspec.json.Decoder(str | tuple[Box, ...])


class KnownQuestion(msgspec.Struct, frozen=True):
    """A question with its document and its true answer: a word, or for a drawing a choice of right boxes.

    `evidence` are boxes that explain the truth: one that is missing, or one that would be good.
    """

    document: Document
    question: Question
    truth: Truth
    evidence: tuple[Box, ...] = ()


def decode_truth(data: bytes) -> Truth:
    return _truth.decode(data)


def right_answer(answer: Answer, truth: bytes) -> bool:
    """Whether an answer is right. `truth` is the encoded true answer."""
    known = decode_truth(truth)
    if isinstance(known, str) or isinstance(answer, str):
        return answer == known
    return bool(iou_matrix(box_array([answer]), box_array(known)).max() >= RIGHT_OVERLAP)


def known_questions(
    images: Iterable[Image],
    per_task: int,
    chance: Random,
    skip_requirement: Iterable[str] = (),
    *,
    link_together: bool = False,
) -> dict[str, list[KnownQuestion]]:
    """Up to `per_task` questions per task, with balanced answers from the first on; from as few images as possible.

    Chains of the types in `skip_requirement` get no question on whether a box is needed. Such questions are rare in
    the real work, so workers would recognize them as verification. For the same reason, links of more than two phrases
    are made only if the real work has them (`link_together`).
    """
    skipped = frozenset(skip_requirement)
    images = list(images)
    chance.shuffle(images)
    kinds = [(task, answer) for task in TASKS for answer in (ANSWERS[task] if task != DRAWING else (BOX,))]
    pools: dict[tuple[str, str], list[KnownQuestion]] = {kind: [] for kind in kinds}
    for image in images:
        for question in _image_questions(image, chance, skipped, link_together):
            pools[question.question.task, answer_word(question.truth)].append(question)
        if min(map(len, pools.values())) >= per_task:
            break
    pools = {kind: pool for kind, pool in pools.items() if pool}
    by_task: dict[str, list[KnownQuestion]] = {task: [] for task in TASKS}
    for (task, _), pool in pools.items():
        chance.shuffle(pool)
        answers = sum(name == task for name, _ in pools)
        by_task[task] += pool[: -(-per_task // answers)]
    return {task: _by_turns(questions, chance)[:per_task] for task, questions in by_task.items()}


def answer_word(truth: Truth) -> str:
    """The true answer as a word; that of a drawing is `BOX`."""
    return truth if isinstance(truth, str) else BOX


def _by_turns(questions: list[KnownQuestion], chance: Random) -> list[KnownQuestion]:
    """The questions in random order, but so that each part of the list has the same number of every answer."""
    pools: dict[str, list[KnownQuestion]] = {}
    for question in questions:
        pools.setdefault(answer_word(question.truth), []).append(question)
    mixed: list[KnownQuestion] = []
    while pools:
        answers = sorted(pools)
        chance.shuffle(answers)
        mixed += [pools[answer].pop() for answer in answers]
        pools = {answer: pool for answer, pool in pools.items() if pool}
    return mixed


def _image_questions(
    image: Image, chance: Random, skipped: frozenset[str], link_together: bool
) -> Iterator[KnownQuestion]:
    document = given_document(image, "chains")
    chains = {given.id: given for given in document.given}
    mentions = {mention.id: mention for mention in document.mentions}
    members = {name: [mentions[id_] for id_ in given.mentions] for name, given in chains.items()}
    ungrouped = msgspec.structs.replace(document, given=())
    if link_together:
        yield from _group_links(
            ungrouped, {mention: name for name, group in members.items() for mention in group}, chance
        )
    for name, chain_mentions in members.items():
        chain = next(chain for chain in image.chains if chain.id == name)
        shown = representative(chain_mentions)
        boxes = image.chain_boxes(name)
        need = BOX if boxes else SCENE if chain.scene else NO_BOX
        if skipped.isdisjoint(type_ for mention in chain_mentions for type_ in mention.types):
            yield _make(ungrouped, REQUIREMENT, (shown,), need)
        yield from _coreference_questions(
            ungrouped, chain_mentions, [other for key, other in members.items() if key != name], chance
        )
        if boxes:
            yield from _box_questions(ungrouped, shown, boxes, image, chance)


def _make(
    document: Document,
    task: str,
    mentions: Iterable[Mention],
    truth: Truth,
    boxes: tuple[Box, ...] = (),
    box: Box | None = None,
    evidence: tuple[Box, ...] = (),
) -> KnownQuestion:
    question = Question(task, f"known {task}", tuple(mention.id for mention in mentions), boxes, box)
    return KnownQuestion(document, question, truth, evidence)


def _group_links(document: Document, chain_of: dict[Mention, str], chance: Random) -> Iterator[KnownQuestion]:
    """Links of three or more phrases as in the real work, and the same with a phrase of another chain."""
    for group in type_groups(tuple(chain_of)):
        for members in likely_same(group):
            chains = {chain_of[mention] for mention in members}
            yield _make(document, LINK, members, SAME if len(chains) == 1 else DIFFERENT)
            captions = {mention.caption for mention in members}
            strangers = [m for m in group if m.caption not in captions and chain_of[m] not in chains]
            if len(chains) == 1 and strangers:
                stranger = chance.choice(strangers)
                yield _make(document, LINK, sorted((*members, stranger), key=_position), DIFFERENT)


def _position(mention: Mention) -> tuple[int, int]:
    return mention.caption, mention.start


def _coreference_questions(
    document: Document, chain: list[Mention], others: list[list[Mention]], chance: Random
) -> Iterator[KnownQuestion]:
    """Links and chains: a true pair, a false pair of the same type, the whole chain, the chain plus a false mention."""
    first = chance.choice(chain)
    partners = [m for m in chain if m.caption != first.caption]
    if partners:
        yield _make(document, LINK, (first, chance.choice(partners)), SAME)
    if len({m.caption for m in chain}) == len(chain) > 1:
        yield _make(document, CHAIN, chain, SAME)
    strangers = [
        m for other in others for m in other if m.caption != first.caption and not set(m.types).isdisjoint(first.types)
    ]
    if strangers:
        stranger = chance.choice(strangers)
        yield _make(document, LINK, (first, stranger), DIFFERENT)
        if stranger.caption not in {m.caption for m in chain}:
            yield _make(document, CHAIN, (*chain, stranger), DIFFERENT)


def _box_questions(
    document: Document, shown: Mention, boxes: tuple[Box, ...], image: Image, chance: Random
) -> Iterator[KnownQuestion]:
    left_out = chance.randrange(len(boxes))
    rest = boxes[:left_out] + boxes[left_out + 1 :]
    missing = (boxes[left_out],)
    yield _make(document, DRAWING, (shown,), missing, rest, evidence=missing)
    yield _make(document, QUALITY, (shown,), GOOD, rest, boxes[left_out])
    yield _make(document, COVERAGE, (shown,), ALL, boxes)
    if rest:
        yield _make(document, COVERAGE, (shown,), MORE, rest, evidence=missing)
    wrong = _wrong_box(boxes, image, chance)
    if wrong is not None:
        yield _make(document, QUALITY, (shown,), BAD, rest, wrong, evidence=missing)


def _wrong_box(boxes: tuple[Box, ...], image: Image, chance: Random) -> Box | None:
    """A box of another chain, or one of random position and size, that overlaps no box of this chain much."""
    candidates = list(image.boxes)
    for _ in range(10):
        if not image.width or not image.height:
            break
        left, top = chance.uniform(0, 0.7 * image.width), chance.uniform(0, 0.7 * image.height)
        across, down = chance.uniform(0.1, 0.3) * image.width, chance.uniform(0.1, 0.3) * image.height
        candidates.append(Box(round(left), round(top), round(left + across), round(top + down)))
    far = [
        box
        for box in candidates
        if iou_matrix(box_array([box]), box_array(boxes)).max() <= WRONG_OVERLAP and box.x2 - box.x1 > 2
    ]
    return chance.choice(far) if far else None
