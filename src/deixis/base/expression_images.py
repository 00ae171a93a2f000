"""Images whose captions are expressions made from their labelled boxes, in the form that grounding learns from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from deixis.corpus.records import Chain, Image, Phrase, make_caption, make_image
from deixis.metrics.localization import gold_queries
from deixis.text.expressions import expressions, labelled_boxes, object_phrases


class ExpressionImage(NamedTuple):
    """An image with expressions as its captions, and a chain for every labelled object, mentioned or not."""

    image: Image
    #: By caption, the chain of the thing that the distance is measured to ("nearest to the bench").
    landmarks: dict[int, str]


def expression_image(image: Image, count: int, random: np.random.Generator) -> ExpressionImage | None:
    """The image with at most `count` expressions as its captions, each a phrase with a box; None if there is nothing.

    Two thirds of them, if there are enough, distinguish one object from others of its label ("the dog on the left");
    the rest name all objects of a label ("a dog", "the three dogs").
    """
    if not any(chain.label for chain in image.chains):
        return None
    objects = labelled_boxes(image)
    telling = [
        (expression.text, (expression.target,), expression.landmark) for expression in expressions(objects, random)
    ]
    naming = [(phrase.text, phrase.objects, None) for phrase in object_phrases(objects, random)]
    for texts in (telling, naming):
        random.shuffle(texts)
    naming = naming[: max(count // 3, count - len(telling))]
    chosen = [*telling[: count - len(naming)], *naming]
    if not chosen:
        return None
    boxes = [chain.boxes[0] for chain in image.chains if chain.label and len(chain.boxes) == 1]
    chains = [Chain(_name((index,)), (box,), label=objects.labels[index]) for index, box in enumerate(boxes)]
    several = dict.fromkeys(indices for _, indices, _ in chosen if len(indices) > 1)
    chains += [
        Chain(_name(indices), tuple(boxes[index] for index in indices), label=objects.labels[indices[0]])
        for indices in several
    ]
    expressed = make_image(
        image.id,
        file=image.file,
        width=image.width,
        height=image.height,
        split=image.split,
        captions=[
            make_caption(text, phrases=[Phrase(0, len(text.split()), _name(indices))]) for text, indices, _ in chosen
        ],
        boxes=image.boxes,
        chains=chains,
        source_id=image.source_id,
    )
    landmarks = {row: _name((landmark,)) for row, (_, _, landmark) in enumerate(chosen) if landmark is not None}
    return ExpressionImage(expressed, landmarks)


def expression_images(images: Iterable[Image], count: int, seed: int) -> dict[str, ExpressionImage]:
    """By id, the images with expressions for captions, of those whose captions have no phrases."""
    random = np.random.default_rng(seed)
    made = (expression_image(image, count, random) for image in images if not gold_queries(image)[0])
    return {expressed.image.id: expressed for expressed in made if expressed is not None}


def _name(objects: tuple[int, ...]) -> str:
    """The id of the chain of some objects; `0` would be a phrase that refers to nothing visible."""
    return "+".join(str(index + 1) for index in objects)
