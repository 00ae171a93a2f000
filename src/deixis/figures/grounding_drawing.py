"""A picture with the boxes of a sentence's phrases, and under it the sentence in the colours of the boxes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from PIL.Image import Image as Picture

from deixis.adapters.changed_sentences import fits_better
from deixis.corpus import Box
from deixis.loading import load_model
from deixis.model import Grounding, Model
from deixis.search.queries import Query
from deixis.text.phrase_finding import token_places
from deixis.text.tokens import tokenize
from deixis.vision.drawing.pages import Part, draw_alignment
from deixis.vision.picture_files import read_picture_file


class Explained(NamedTuple):
    """Why a picture was found: the boxes of the query's phrases, what fits the picture better, and a drawing."""

    groundings: list[Grounding]
    fits_better: list[str]
    drawing: Picture


def draw_grounded(
    picture: Picture, sentence: str, groundings: Sequence[Grounding], better: Sequence[str] = ()
) -> Picture:
    """A page; at each box, how likely its phrase is there. Phrases that are probably not there are only listed.

    Args:
        better: sentences that fit the picture better.
    """
    tokens = tokenize(sentence)
    starts, ends = zip(*token_places(sentence, tokens), strict=True)
    parts = [
        Part(
            starts.index(phrase.start),
            ends.index(phrase.end) + 1,
            [Box(*box) for box in phrase.boxes],
            _percent(phrase),
            whole=False,
        )
        for phrase in groundings
        if phrase.is_there
    ]
    absent = [f"{phrase.phrase} ({_percent(phrase)})" for phrase in groundings if not phrase.is_there]
    notes = [f"Probably not in the picture: {', '.join(absent)}"] if absent else []
    notes += [f"Fits better: {', '.join(better)}"] if better else []
    return draw_alignment(picture, tokens, parts, ". ".join(notes))


def _percent(grounding: Grounding) -> str:
    return grounding.presence_percent


def grounding_model(model: Model) -> Model:
    """The model that grounds phrases for an index: its own model where that can, else `deixis-base`."""
    return model if "ground" in model.abilities else load_model()


def explained(model: Model, query: Query, path: bytes) -> Explained:
    """Look for the phrases of a query in a picture."""
    picture, sentence = read_picture_file(os.fsdecode(path)), ", ".join(query.phrases)
    looked = model.look(picture)
    groundings, better = model.ground(looked, sentence), fits_better(model, looked, sentence)
    return Explained(groundings, better, draw_grounded(picture, sentence, groundings, better))
