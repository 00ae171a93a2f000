"""A picture with the boxes of a sentence's phrases, and under it the sentence in the colours of the boxes."""

from __future__ import annotations

from collections.abc import Sequence

from PIL.Image import Image as Picture

from deixis.corpus import Box
from deixis.model import Grounding
from deixis.text.phrase_finding import token_places
from deixis.text.tokens import tokenize
from deixis.vision.alignment_drawing import Part, draw_alignment


def draw_grounded(picture: Picture, sentence: str, found: Sequence[Grounding]) -> Picture:
    """A page; a phrase's score stands at its box."""
    tokens = tokenize(sentence)
    starts, ends = zip(*token_places(sentence, tokens), strict=True)
    parts = [
        Part(starts.index(each.start), ends.index(each.end) + 1, [Box(*each.box)], f"{each.score:.2f}", whole=False)
        for each in found
    ]
    return draw_alignment(picture, tokens, parts)
