"""Model assistance: proposed answers, shown beside a question if the project's server was started with models.

A coreference scorer (`deixis.text.coreference`) proposes answers to links and chains when its probability is high
enough. A localizer proposes the best box for a phrase among those that overlap no annotated box. The share of accepted
proposals is recorded (`Workbench.progress`), so that the assistance can be evaluated.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from deixis.annotation.workflow_records import (
    CHAIN,
    DIFFERENT,
    DRAWING,
    LINK,
    SAME,
    SMALLEST_SIDE,
    Answer,
    Document,
    Mention,
    Question,
    by_id,
)
from deixis.corpus import Box, Phrase
from deixis.corpus.boxes import box_array, iou_matrix
from deixis.errors import DeixisError
from deixis.metrics.localization import Localizer, PhraseQuery
from deixis.text.coreference import CoreferenceScorer, MentionText, mention_texts

#: The smallest probability of being right at which an answer to a link or chain is proposed.
SURE = 0.8
#: A region with a larger IoU with an annotated box is taken for the same thing.
COVERED = 0.5


class ModelAssistant:
    """Proposes answers with the models it was given."""

    def __init__(self, scorer: CoreferenceScorer | None = None, localizer: Localizer | None = None) -> None:
        self._scorer, self._localizer = scorer, localizer

    def propose(self, question: Question, document: Document) -> Answer | None:
        """A proposed answer to a link, a chain or a drawing, or None."""
        if self._scorer is not None and question.task in (LINK, CHAIN):
            return self._propose_same(self._scorer, question, document)
        if self._localizer is not None and question.task == DRAWING:
            return self._propose_box(self._localizer, question, document)
        return None

    def _propose_same(self, scorer: CoreferenceScorer, question: Question, document: Document) -> str | None:
        texts = document_texts(document)
        members = [texts[name] for name in question.mentions]
        same = scorer.probabilities(list(combinations(members, 2)))
        # A chain is one entity if its least similar pair is.
        smallest = float(same.min())
        return SAME if smallest >= SURE else DIFFERENT if smallest <= 1 - SURE else None

    def _propose_box(self, localizer: Localizer, question: Question, document: Document) -> Box | None:
        mention = by_id(document.mentions)[question.mentions[0]]
        caption = document.image.captions[mention.caption]
        phrase = Phrase(mention.start, mention.end, types=mention.types)
        try:
            grounding = localizer(document.image, [PhraseQuery(caption, phrase)])
        except DeixisError:
            # No proposal for a picture that cannot be read or has no features.
            return None
        boxes = np.asarray(grounding.boxes[0] if grounding.boxes.ndim == 3 else grounding.boxes, float).reshape(-1, 4)
        right, bottom = document.image.width or np.inf, document.image.height or np.inf
        boxes = boxes.clip(0, [right, bottom, right, bottom])
        usable = (boxes[:, 2:] - boxes[:, :2]).min(1) >= SMALLEST_SIDE
        if question.boxes:
            usable &= iou_matrix(boxes, box_array(question.boxes)).max(1) <= COVERED
        if not usable.any():
            return None
        best = int(np.argmax(np.where(usable, grounding.scores[0], -np.inf)))
        return Box(*(round(float(side), 1) for side in boxes[best]))


def document_texts(document: Document) -> dict[str, MentionText]:
    """The mentions of an image as input of the coreference scorer, by id."""
    mentions = sorted(document.mentions, key=_position)
    captions = document.image.captions
    texts = mention_texts((m.caption, captions[m.caption].tokens[m.start : m.end], m.types) for m in mentions)
    return {mention.id: text for mention, text in zip(mentions, texts, strict=True)}


def _position(mention: Mention) -> tuple[int, int]:
    return mention.caption, mention.start
