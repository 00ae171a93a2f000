"""Why a picture was found: the phrases of a query as boxes on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deixis.figures.grounding_drawing import draw_grounded
from deixis.loading import load_model
from deixis.model import Grounding, Model
from deixis.search.queries import Query
from deixis.vision.picture_files import read_picture_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def grounding_model(model: Model) -> Model:
    """What grounds phrases for an index: its own model where that can, else `deixis-base`."""
    return model if "ground" in model.abilities else load_model()


def explained(model: Model, query: Query, path: bytes) -> tuple[list[Grounding], Picture]:
    """The boxes of what was asked for on a picture that was found, and these drawn."""
    picture, sentence = read_picture_file(os.fsdecode(path)), ", ".join(query.phrases)
    found = model.ground(picture, sentence)
    return found, draw_grounded(picture, sentence, found)
