"""A sentence beside others in which one thing is changed: which of them fits a picture better?

"A red bus" may find a picture of a yellow one. Asked about that one picture, a model mostly knows better: `deixis-base`
prefers the right colour in nine of ten pairs (`deixis.metrics.caption_twins`).
"""

from __future__ import annotations

import msgspec

from deixis.model import ImageInput, Model, Tokens
from deixis.text.false_captions import FalseCaption, Kind, every_change
from deixis.text.tokens import tokens_of

#: A change is clearly better from this difference of scores on, times the number of words: of a short text, each word
#: counts for more. On validation pictures, 11% of true captions have another colour that fits clearly better, 5%
#: another number, 2% another attribute and 2% exchanged roles; of false ones 82, 45, 46 and 37% do
#: (results/choices/composition.json). It suits the scores of deixis-base.
CLEAR = 0.8


class Changed(msgspec.Struct, frozen=True):
    """A sentence with one thing changed, its score, and whether the sentence itself scores higher."""

    kind: Kind
    word: str
    became: str
    sentence: str
    score: float
    supported: bool
    #: Whether the changed sentence scores so much higher that the given one is probably wrong.
    clearly_better: bool


def changed_sentences(model: Model, image: ImageInput, tokens: Tokens) -> list[Changed]:
    """The changes of a sentence (`deixis.text.false_captions.every_change`); of a colour, the one that fits best."""
    changes = every_change(tuple(tokens))
    if not changes or "score" not in model.abilities:
        return []
    given, *scores = map(float, model.score_texts(image, [tokens, *(change.tokens for change in changes)]))
    best: dict[object, Changed] = {}
    for number, (change, score) in enumerate(zip(changes, scores, strict=True)):
        # "A" may become "an" beside it.
        place = _changed_word(tokens, change) if change.kind == "colour" else f"change {number}"
        if place not in best or score > best[place].score:
            clear = len(tokens) * (score - given) > CLEAR
            sentence = " ".join(change.tokens)
            best[place] = Changed(change.kind, change.before, change.after, sentence, score, given > score, clear)
    return list(best.values())


def fits_better(model: Model, image: ImageInput, text: str) -> list[str]:
    """The text with one thing changed, where that fits a picture clearly better and is there; the best first.

    Args:
        image: a picture, or what `model.look` returned.
    """
    changes = changed_sentences(model, image, tokens_of(text.rstrip(" .")))
    clear = sorted((change for change in changes if change.clearly_better), key=lambda change: -change.score)
    # Where there is no bus, a blue one may fit better than a red one.
    return [
        change.sentence
        for change in clear
        if all(grounding.is_there for grounding in model.ground(image, change.sentence))
    ]


def _changed_word(tokens: Tokens, change: FalseCaption) -> int:
    return [*zip(tokens, change.tokens, strict=True)].index((change.before, change.after))
