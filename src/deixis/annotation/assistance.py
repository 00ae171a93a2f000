"""Model assistance: answers that are proposed beside a question, where a project's server was started with models.

Words propose coreference (`deixis.text.coreference`): of a link, or of all pairs of a chain, unless in doubt. A
localizer proposes the box that fits the phrase best among those that no drawn box covers. Whether workers accept
proposals is recorded (`Workbench.progress`), so that assistance can be judged.
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

#: A link or chain is proposed from this probability of being right on.
SURE = 0.8
#: A region that overlaps a drawn box by more than this is the same thing again.
COVERED = 0.5


class ModelAssistant:
    """Proposes with whatever models it was given."""

    def __init__(self, scorer: CoreferenceScorer | None = None, localizer: Localizer | None = None) -> None:
        self._scorer, self._localizer = scorer, localizer

    def propose(self, question: Question, document: Document) -> Answer | None:
        """An answer to a link, a chain or a drawing, or None."""
        if self._scorer is not None and question.task in (LINK, CHAIN):
            return self._same(self._scorer, question, document)
        if self._localizer is not None and question.task == DRAWING:
            return self._box(self._localizer, question, document)
        return None

    def _same(self, scorer: CoreferenceScorer, question: Question, document: Document) -> str | None:
        texts = document_texts(document)
        members = [texts[name] for name in question.mentions]
        same = scorer.probabilities(list(combinations(members, 2)))
        # All of a chain are the same if its least alike two are.
        least = float(same.min())
        return SAME if least >= SURE else DIFFERENT if least <= 1 - SURE else None

    def _box(self, localizer: Localizer, question: Question, document: Document) -> Box | None:
        mention = by_id(document.mentions)[question.mentions[0]]
        caption = document.image.captions[mention.caption]
        phrase = Phrase(mention.start, mention.end, types=mention.types)
        try:
            found = localizer(document.image, [PhraseQuery(caption, phrase)])
        except DeixisError:
            # A picture without features, or that cannot be read, gets no proposal.
            return None
        boxes = np.asarray(found.boxes[0] if found.boxes.ndim == 3 else found.boxes, float).reshape(-1, 4)
        right, bottom = document.image.width or np.inf, document.image.height or np.inf
        boxes = boxes.clip(0, [right, bottom, right, bottom])
        large = (boxes[:, 2:] - boxes[:, :2]).min(1) >= SMALLEST_SIDE
        if question.boxes:
            large &= iou_matrix(boxes, box_array(question.boxes)).max(1) <= COVERED
        if not large.any():
            return None
        best = int(np.argmax(np.where(large, found.scores[0], -np.inf)))
        return Box(*(round(float(side), 1) for side in boxes[best]))


def document_texts(document: Document) -> dict[str, MentionText]:
    """The mentions of an image as the scorer sees them, by id."""
    mentions = sorted(document.mentions, key=_position)
    captions = document.image.captions
    texts = mention_texts((m.caption, captions[m.caption].tokens[m.start : m.end], m.types) for m in mentions)
    return {mention.id: text for mention, text in zip(mentions, texts, strict=True)}


def _position(mention: Mention) -> tuple[int, int]:
    return mention.caption, mention.start
