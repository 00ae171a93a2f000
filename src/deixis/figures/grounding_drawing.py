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
    """A page; at each box, how likely its phrase is there. Phrases that are probably not there are only listed."""
    tokens = tokenize(sentence)
    starts, ends = zip(*token_places(sentence, tokens), strict=True)
    parts = [
        Part(starts.index(each.start), ends.index(each.end) + 1, [Box(*each.box)], _percent(each), whole=False)
        for each in found
        if each.is_there
    ]
    absent = [f"{each.phrase} ({_percent(each)})" for each in found if not each.is_there]
    note = f"Probably not in the picture: {', '.join(absent)}" if absent else ""
    return draw_alignment(picture, tokens, parts, note)


def _percent(grounding: Grounding) -> str:
    return "" if grounding.presence is None else f"{grounding.presence:.0%}"
