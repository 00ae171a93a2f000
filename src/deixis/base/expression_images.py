"""Images whose captions are expressions made from their labelled boxes, in the form that grounding learns from.

Captions of people in which phrases name labelled objects may follow (`deixis.text.caption_objects`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from deixis.corpus.records import Caption, Chain, Image, Phrase, make_caption, make_image
from deixis.metrics.localization import gold_queries
from deixis.text.caption_objects import ObjectSpan, object_spans
from deixis.text.chunker import Chunker
from deixis.text.expressions import expressions, labelled_boxes, object_phrases
from deixis.text.tokens import tokens_of


class ExpressionImage(NamedTuple):
    """An image with expressions as its captions, and a chain for every labelled object, mentioned or not."""

    image: Image
    #: By caption, the chain of the thing that the distance is measured to ("nearest to the bench").
    landmarks: dict[int, str]


class NamingCaption(NamedTuple):
    """A caption some of whose phrases name labelled objects."""

    text: str
    spans: list[ObjectSpan]


def expression_image(
    image: Image, count: int, random: np.random.Generator, spoken: Sequence[NamingCaption] = ()
) -> ExpressionImage | None:
    """The image with at most `count` expressions as its captions, each a phrase with a box; None if there is nothing.

    Two thirds of them, if there are enough, distinguish one object from others of its label ("the dog on the left");
    the rest name all objects of a label ("a dog", "the three dogs").

    Args:
        spoken: captions that follow.
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
    if not chosen and not spoken:
        return None
    boxes = [chain.boxes[0] for chain in image.chains if chain.label and len(chain.boxes) == 1]
    chains = [Chain(_name((index,)), (box,), label=objects.labels[index]) for index, box in enumerate(boxes)]
    named = [*(indices for _, indices, _ in chosen), *(span.objects for caption in spoken for span in caption.spans)]
    several = dict.fromkeys(indices for indices in named if len(indices) > 1)
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
            *(_caption(text, [ObjectSpan(0, len(text.split()), indices)]) for text, indices, _ in chosen),
            *(_caption(*caption) for caption in spoken),
        ],
        boxes=image.boxes,
        chains=chains,
        source_id=image.source_id,
    )
    landmarks = {row: _name((landmark,)) for row, (_, _, landmark) in enumerate(chosen) if landmark is not None}
    return ExpressionImage(expressed, landmarks)


def expression_images(images: Iterable[Image], count: int, seed: int, *, spoken: int = 0) -> dict[str, ExpressionImage]:
    """By id, the images with expressions for captions, of those whose captions have no phrases.

    Args:
        spoken: at most so many captions of an image in which phrases name labelled objects are added.
    """
    random = np.random.default_rng(seed)
    chosen = [image for image in images if not gold_queries(image)[0]]
    naming = _naming_captions(chosen, spoken) if spoken else {}
    made = (expression_image(image, count, random, naming.get(image.id, ())) for image in chosen)
    return {
        image_expressions.image.id: image_expressions for image_expressions in made if image_expressions is not None
    }


def _naming_captions(images: Sequence[Image], count: int) -> dict[str, list[NamingCaption]]:
    """By id of the image, at most `count` of its captions in which phrases name labelled objects."""
    captions = [(image, tokens_of(caption)) for image in images if image.chains for caption in image.captions]
    phrases = Chunker.load().phrases_of(tokens for _, tokens in captions)
    naming: dict[str, list[NamingCaption]] = {}
    for (image, tokens), spans in zip(captions, phrases, strict=True):
        named = object_spans(tokens, spans, labelled_boxes(image))
        if named and len(naming.get(image.id, ())) < count:
            naming.setdefault(image.id, []).append(NamingCaption(" ".join(tokens), named))
    return naming


def _name(objects: tuple[int, ...]) -> str:
    """The id of the chain of some objects; `0` would be a phrase that refers to nothing visible."""
    return "+".join(str(index + 1) for index in objects)


def _caption(text: str, spans: Iterable[ObjectSpan]) -> Caption:
    return make_caption(text, phrases=[Phrase(span.start, span.end, _name(span.objects)) for span in spans])
