"""Grounding between two objects of one name: does a model read more of a phrase than its noun?

Every choice is a phrase about one of two objects in a picture that have the same name. A model is right if its best box
on the phrase's object (IoU of at least 0.5) scores higher than its best box on the other one; a tie, or no box on the
object, is wrong. Choices come in pairs, one phrase for each of the two objects, so that a model that reads only the
noun is right in half of them at most: `noun_alone` is its figure when it is given no more than that. `direction_alone`
is the opposite: the model's proposals in the order of the expression's direction word, whatever they show. Between two
objects of one name that is enough; its `r@1` says how little is found without the noun.

Two sources of choices:

- labelled boxes (COCO instances), with expressions from geometry (`deixis.text.expressions`): kinds `side`, `height`,
  `size` and `distance`;
- phrases of captions (Flickr30k Entities) of different entities with the same noun, such as "a young boy" and "an older
  boy": kind `shared_noun`. `in_sentence` is the figure when the phrase is read in its caption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.corpus import Corpus, Image
from deixis.corpus.boxes import box_array, iou_matrix
from deixis.errors import DeixisError
from deixis.metrics.results import Protocol, Result, corpus_reference, make_result
from deixis.model import Localized, Mention, Model, Tokens
from deixis.text.expressions import KINDS, OVERLAP, expressions, labelled_boxes
from deixis.text.tokens import tokens_of
from deixis.vision.reading import read_picture

#: A box is on an object from this overlap.
IOU = 0.5
#: Words of a phrase that do not say which object it is about.
_DETERMINERS = frozenset({"a", "an", "the", "one", "another", "other", "his", "her", "its", "their", "this", "that"})

Boxes = NDArray[np.float64]

#: By the direction word, what is greatest: of boxes' centres, seen from that of the picture, and areas, both as shares.
_DIRECTIONS: tuple[tuple[frozenset[str], Callable[[Boxes, Boxes], Boxes]], ...] = (
    (frozenset({"left", "leftmost"}), lambda centres, areas: -centres[:, 0]),
    (frozenset({"right", "rightmost"}), lambda centres, areas: centres[:, 0]),
    (frozenset({"top", "upper", "above"}), lambda centres, areas: -centres[:, 1]),
    (frozenset({"bottom", "lower", "below"}), lambda centres, areas: centres[:, 1]),
    (frozenset({"bigger", "biggest", "larger", "largest", "big", "large"}), lambda centres, areas: areas),
    (frozenset({"smaller", "smallest", "small", "little"}), lambda centres, areas: -areas),
    (frozenset({"nearest", "closest", "next", "by"}), lambda centres, areas: -np.hypot(*centres.T)),
    (frozenset({"farthest", "far"}), lambda centres, areas: np.hypot(*centres.T)),
)


class Choice(NamedTuple):
    """Texts about the first of two boxes: `phrase`, `noun_alone` and, from a caption, `in_sentence`."""

    kind: str
    texts: Mapping[str, Mention]
    boxes: Boxes  # (2, 4) in the pixels of the image's boxes: that of the phrase, then the other one


def geometry_choices(image: Image, random: np.random.Generator) -> list[Choice]:
    """Expressions about objects of a label that the picture has exactly two of."""
    size = (image.width, image.height)
    objects = labelled_boxes(image, size)
    choices = []
    for expression in expressions(objects, random):
        if len(expression.others) == 1:
            texts = {"phrase": tokens_of(expression.text), "noun_alone": tokens_of(f"the {expression.noun}")}
            boxes = objects.boxes[[expression.target, expression.others[0]]] * np.tile(size, 2)
            choices.append(Choice(expression.kind, {name: Mention.of(tokens) for name, tokens in texts.items()}, boxes))
    return choices


def shared_noun_choices(image: Image) -> list[Choice]:
    """Two phrases for every two chains of one box each that share a noun, if each has words that the other has not."""
    boxes = {chain.id: image.boxes[chain.boxes[0]] for chain in image.chains if len(chain.boxes) == 1}
    by_noun: dict[str, dict[str, list[Mention]]] = {}
    for caption in image.captions:
        tokens = tokens_of(caption)
        for phrase in caption.phrases:
            mention = Mention(tokens, phrase.start, phrase.end)
            if phrase.chain in boxes and mention and "of" not in mention and mention[-1].isalpha():
                by_noun.setdefault(mention[-1], {}).setdefault(phrase.chain, []).append(mention)
    choices = []
    for noun, chains in by_noun.items():
        for pair in combinations(chains, 2):
            both = box_array(boxes[chain] for chain in pair)
            if iou_matrix(both, both)[0, 1] > OVERLAP:
                continue
            words_of_chains = [{word for mention in chains[chain] for word in _words(mention)} for chain in pair]
            telling = [
                [mention for mention in chains[chain] if _words(mention) - words_of_chains[1 - side]]
                for side, chain in enumerate(pair)
            ]
            if all(telling):
                choices += [
                    Choice("shared_noun", _caption_texts(telling[side][0], noun), both[[side, 1 - side]])
                    for side in (0, 1)
                ]
    return choices


def in_direction(phrase: Tokens, boxes: Boxes, size: tuple[int, int]) -> Localized | None:
    """Boxes, scored by the first direction word of the phrase alone; None if it has none.

    A distance is taken from the centre of the picture, since the thing that it is measured to is not read.
    """
    for word in phrase:
        for words, rank in _DIRECTIONS:
            if word in words:
                shares = boxes / np.tile(size, 2)
                centres, sides = (shares[:, :2] + shares[:, 2:]) / 2 - 0.5, shares[:, 2:] - shares[:, :2]
                return Localized(boxes, rank(centres, sides.prod(1)))
    return None


def _words(mention: Mention) -> set[str]:
    """The words of a phrase before its noun that may say which object it is about."""
    return set(mention[:-1]) - _DETERMINERS


def _caption_texts(mention: Mention, noun: str) -> dict[str, Mention]:
    return {"phrase": Mention.of(tuple(mention)), "noun_alone": Mention.of(("the", noun)), "in_sentence": mention}


class _Answers(NamedTuple):
    right: bool
    first_hits: bool
    both_covered: bool


def choice_accuracy(model: Model, corpus: Corpus, split: str, *, seed: int = 0) -> Result:
    """The share of choices that are right, in percent, overall and by kind: `two_objects`.

    `r@1` is how often the best of all boxes is on the phrase's object, `covered` how often the model has boxes on both
    objects. `direction_alone` is of expressions from geometry, if the model has proposals.

    Args:
        model: localizes phrases in pictures.
        corpus: with pictures, and labelled boxes or phrases with boxes.
        seed: of the wording of expressions.
    """
    start = time.monotonic()
    random = np.random.default_rng(seed)
    answers: dict[str, list[dict[str, _Answers]]] = {}
    images = 0
    for image in corpus.split(split):
        choices = [*shared_noun_choices(image), *(geometry_choices(image, random) if image.width else [])]
        images += bool(choices)
        for choice, answer in _answers(model, corpus, image, choices):
            answers.setdefault(choice.kind, []).append(answer)
    if not answers:
        raise DeixisError(f"no picture of the split {split} has two objects of one name that a phrase distinguishes")
    every = [answer for kind in answers.values() for answer in kind]
    figures: dict[str, Any] = {
        "overall": _figures(every),
        "by_kind": {kind: _figures(kind_answers) for kind, kind_answers in answers.items()},
    }
    return make_result(
        Protocol("two objects of one name", "a tie is wrong", {"seed": seed, "iou": IOU}),
        {"two_objects": figures},
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts={"images": images, "choices": len(every)},
    )


def _answers(
    model: Model, corpus: Corpus, image: Image, choices: Sequence[Choice]
) -> Iterator[tuple[Choice, dict[str, _Answers]]]:
    if not choices:
        return
    picture = read_picture(corpus, image)
    asked = list(
        dict.fromkeys((text, text.sentence, text.start) for choice in choices for text in choice.texts.values())
    )
    located = model.localize(picture, [text for text, _, _ in asked])
    width, height = image.width or picture.width, image.height or picture.height
    scale = np.tile(np.divide((width, height), picture.size), 2)
    proposals = model.proposals(picture)
    boxes = np.broadcast_to(located.boxes * scale, (len(asked), *located.boxes.shape[-2:]))
    for choice in choices:
        rows = {name: asked.index((text, text.sentence, text.start)) for name, text in choice.texts.items()}
        answers = {
            name: _answer(Localized(boxes[row], located.scores[row]), choice.boxes) for name, row in rows.items()
        }
        if proposals is not None and choice.kind in KINDS:
            directed = in_direction(choice.texts["phrase"], proposals * scale, (width, height))
            if directed is not None:
                answers["direction_alone"] = _answer(directed, choice.boxes)
        yield choice, answers


def _answer(located: Localized, two: Boxes) -> _Answers:
    """Of one phrase: `boxes` is `(regions, 4)`, `scores` `(regions,)`."""
    on = iou_matrix(located.boxes, two) >= IOU
    best = np.where(on, located.scores[:, None], -np.inf).max(0, initial=-np.inf)
    first = int(np.argmax(located.scores)) if len(located.scores) else None
    return _Answers(bool(best[0] > best[1]), first is not None and bool(on[first, 0]), bool(on.any(0).all()))


def _figures(answers: Sequence[Mapping[str, _Answers]]) -> dict[str, float]:
    def share(values: list[bool]) -> float:
        return 100 * float(np.mean(values))

    figures: dict[str, float] = {
        "accuracy": share([answer["phrase"].right for answer in answers]),
        "noun_alone": share([answer["noun_alone"].right for answer in answers]),
        "r@1": share([answer["phrase"].first_hits for answer in answers]),
        "noun_alone_r@1": share([answer["noun_alone"].first_hits for answer in answers]),
        "covered": share([answer["phrase"].both_covered for answer in answers]),
        "choices": len(answers),
    }
    if all("direction_alone" in answer for answer in answers):
        figures["direction_alone"] = share([answer["direction_alone"].right for answer in answers])
        figures["direction_alone_r@1"] = share([answer["direction_alone"].first_hits for answer in answers])
    if all("in_sentence" in answer for answer in answers):
        figures["in_sentence"] = share([answer["in_sentence"].right for answer in answers])
    return figures
