"""Images whose captions are expressions made from their labelled boxes, in the form that grounding learns from."""

from __future__ import annotations

import numpy as np

from deixis.corpus.records import Caption, Chain, Image, Phrase, make_caption, make_image
from deixis.text.expressions import expressions, labelled_boxes, object_phrases


def expression_image(image: Image, count: int, random: np.random.Generator) -> Image | None:
    """The image with at most `count` expressions as its captions, each a phrase with a box; None if there is nothing.

    Half of them, if there are enough, tell one object from others of its label ("the dog on the left"); the rest name
    all objects of a label ("a dog", "the three dogs").
    """
    if not any(chain.label for chain in image.chains):
        return None
    objects = labelled_boxes(image)
    telling = [(one.text, (one.target,)) for one in expressions(objects, random)]
    naming = [(one.text, one.objects) for one in object_phrases(objects, random)]
    for texts in (telling, naming):
        random.shuffle(texts)
    naming = naming[: max(count // 2, count - len(telling))]
    made = [*telling[: count - len(naming)], *naming]
    if not made:
        return None
    indexes = [chain.boxes[0] for chain in image.chains if chain.label and len(chain.boxes) == 1]
    groups = {own: str(number) for number, own in enumerate(dict.fromkeys(own for _, own in made), 1)}
    return make_image(
        image.id,
        file=image.file,
        width=image.width,
        height=image.height,
        split=image.split,
        captions=[_caption(text, groups[own]) for text, own in made],
        boxes=image.boxes,
        chains=[
            Chain(name, tuple(indexes[place] for place in own), label="expression") for own, name in groups.items()
        ],
        source_id=image.source_id,
    )


def _caption(text: str, chain: str) -> Caption:
    return make_caption(text, phrases=[Phrase(0, len(text.split()), chain)])
