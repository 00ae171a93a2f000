"""Right and wrong answers to a task, from an annotated corpus.

Answers depend only on what a worker sees, so they can be given through any interface of the workbench.
"""

from __future__ import annotations

from random import Random

import numpy as np

from deixis.annotation.views import TaskView
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
    NO_MORE,
    QUALITY,
    REQUIREMENT,
    SAME,
    SCENE,
    Answer,
)
from deixis.corpus import Box, Corpus, Image
from deixis.corpus.boxes import box_array, iou_matrix
from deixis.errors import DeixisError

#: Smallest IoU at which a box covers a ground-truth box, and at which it counts as good.
COVERS = 0.5
TIGHT = 0.7


class Truth:
    """The annotations of one image, by the spans of its mentions."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._chain_of: dict[tuple[int, int, int], str] = {}
        for caption_index, caption in enumerate(image.captions):
            for phrase in caption.phrases:
                if phrase.visual:
                    self._chain_of.setdefault((caption_index, phrase.start, phrase.end), phrase.chain)
        self._verdicts = {c.id: BOX if c.boxes else SCENE if c.scene else NO_BOX for c in image.chains}

    def chain_of(self, caption: int, start: int, end: int) -> str | None:
        """The chain of a mention; None if the ground truth has no such mention."""
        return self._chain_of.get((caption, start, end))

    def boxes(self, chain: str | None) -> tuple[Box, ...]:
        return self.image.chain_boxes(chain) if chain is not None else ()

    def verdict(self, chain: str | None) -> str:
        """Whether the chain has boxes, and if not, why."""
        return self._verdicts.get(chain, NO_BOX) if chain is not None else NO_BOX

    def right_answer(self, view: TaskView) -> Answer:
        chains = [self.chain_of(c.number, *span) for c in view.captions for span in c.highlights]
        if view.task in (LINK, CHAIN):
            return SAME if None not in chains and len(set(chains)) == 1 else DIFFERENT
        if view.task == REQUIREMENT:
            return self.verdict(chains[0])
        missing = uncovered(self.boxes(chains[0]), view.boxes)
        if view.task == DRAWING:
            return missing[0] if missing else NO_MORE
        if view.task == COVERAGE:
            return MORE if missing else ALL
        if view.task != QUALITY or view.box is None:
            raise DeixisError(f"there is no simulated answer to {view.task}")
        tight = missing and iou_matrix(box_array([view.box]), box_array(missing)).max() >= TIGHT
        return GOOD if tight else BAD

    def wrong_answer(self, view: TaskView, chance: Random) -> Answer:
        """Any answer but the right one. A wrong box is another ground-truth box or a random one."""
        right = self.right_answer(view)
        others: list[Answer] = [answer for answer in ANSWERS[view.task] if answer != right]
        if view.task == DRAWING:
            others += [random_box(view, chance), *chance.sample(self.image.boxes, min(1, len(self.image.boxes)))]
            others = [answer for answer in others if answer != right]
        return chance.choice(others)


def uncovered(truth: tuple[Box, ...], drawn: tuple[Box, ...]) -> list[Box]:
    """The ground-truth boxes that no drawn box covers. Each drawn box covers one; largest IoUs are matched first."""
    if not truth or not drawn:
        return list(truth)
    overlap = iou_matrix(box_array(truth), box_array(drawn))
    left = set(range(len(truth)))
    while overlap.size and overlap.max() >= COVERS:
        row, column = np.unravel_index(overlap.argmax(), overlap.shape)
        left.discard(int(row))
        overlap[row, :] = overlap[:, column] = -1.0
    return [truth[row] for row in sorted(left)]


def random_box(view: TaskView, chance: Random) -> Box:
    width, height = view.width or 500, view.height or 500
    left, top = chance.uniform(0, 0.7) * width, chance.uniform(0, 0.7) * height
    across, down = chance.uniform(0.05, 0.3) * width, chance.uniform(0.05, 0.3) * height
    return Box(round(left), round(top), round(left + across) + 2, round(top + down) + 2)


def jittered(box: Box, view: TaskView, jitter: float, chance: Random) -> Box:
    """Simulate drawing by hand: add a normal error, of deviation `jitter` times the extent, to each side."""
    if not jitter:
        return box
    across, down = jitter * (box.x2 - box.x1), jitter * (box.y2 - box.y1)
    moved = Box(
        box.x1 + chance.gauss(0, across),
        box.y1 + chance.gauss(0, down),
        box.x2 + chance.gauss(0, across),
        box.y2 + chance.gauss(0, down),
    )
    right, bottom = view.width or float("inf"), view.height or float("inf")
    cut = Box(max(moved.x1, 0.0), max(moved.y1, 0.0), min(moved.x2, right), min(moved.y2, bottom))
    return cut if cut.x2 - cut.x1 >= 2 and cut.y2 - cut.y1 >= 2 else box


def truths(*corpora: Corpus) -> dict[str, Truth]:
    """The ground truth of every image, by image id."""
    return {image.id: Truth(image) for corpus in corpora for image in corpus}
