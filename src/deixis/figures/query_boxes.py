"""Why a picture was found: the phrases of a query as boxes on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from deixis.adapters.bundles import DEFAULT, open_bundle
from deixis.adapters.encoders import RUN
from deixis.base.phrase_pointer import GroundedPhrase, Grounder
from deixis.figures.grounding_drawing import draw_grounded
from deixis.search.queries import Query
from deixis.vision.picture_files import read_picture_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def grounder_for(encoder_name: str) -> Grounder:
    """What points at phrases for an index: its own encoder's bundle or run where that can, else `deixis-base`."""
    if encoder_name.startswith(RUN):
        from deixis.training.run_models import read_recipe

        can = read_recipe(Path(encoder_name.removeprefix(RUN))).kind == "base"
    else:
        bundle = open_bundle(encoder_name)
        can = bundle is not None and bundle.manifest.grounding is not None
    return Grounder.open(encoder_name if can else DEFAULT)


def explained(grounder: Grounder, query: Query, path: bytes) -> tuple[list[GroundedPhrase], Picture]:
    """The boxes of what was asked for on a picture that was found, and these drawn."""
    picture, sentence = read_picture_file(os.fsdecode(path)), ", ".join(query.phrases)
    found = grounder.ground(picture, sentence)
    return found, draw_grounded(picture, sentence, found)
