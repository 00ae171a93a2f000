"""Finds the phrases of a typed sentence, and the positions of its tokens.

Phrases are found by the chunker that comes with the package (it needs only NumPy). Phrases that refer to nothing
visible are left out. A sentence without phrases is one phrase.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

from deixis.corpus.records import NOT_VISUAL
from deixis.errors import DeixisError
from deixis.text.tokens import has_content, tokenize

#: Longer sentences are refused; they do not describe a picture.
LONGEST = 200


def find_phrases(sentence: str) -> list[tuple[int, int]]:
    """The phrases of a sentence as token spans of `tokenize`. Raises `DeixisError` if it has no words."""
    tokens = tokenize(sentence)
    if not any(map(has_content, tokens)):
        raise DeixisError(f"the sentence {sentence[:80]!r} has no words")
    if len(tokens) > LONGEST:
        raise DeixisError(f"the sentence has {len(tokens):,} words; up to {LONGEST} are read")
    return with_sides(tokens, phrases_in(tokens)) or [trimmed(tokens, sentence)]


#: Sides of a picture, and what may stand before and after them.
SIDES = {"left", "right", "top", "bottom", "middle", "center", "centre"}
_BEFORE, _AFTER, _PICTURE = {"on", "at", "in", "to"}, {"of", "in"}, {"picture", "image", "photo"}


def with_sides(tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Phrases together with the side of the picture that follows them, which says which of several things is meant.

    >>> with_sides("the dog on the left bites the dog on the left leg".split(), [(0, 2), (3, 5), (6, 8), (9, 12)])
    [(0, 5), (6, 8), (9, 12)]
    """
    words = [token.lower() for token in tokens]
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and end <= joined[-1][1]:
            continue
        after = _after_side(words, end)
        if any(other_start < after < other_end for other_start, other_end in spans):
            # "On the left leg"
            after = end
        joined.append((start, after))
    return joined


def without_side(phrase: str) -> str:
    """A phrase without the side of the picture that it ends with.

    >>> without_side("the dog on the far left")
    'the dog'
    """
    words = phrase.split()
    lower = phrase.lower().split()
    ends = (end for end in range(1, len(words)) if _after_side(lower, end) == len(words))
    return " ".join(words[: next(ends, len(words))])


def _after_side(words: Sequence[str], end: int) -> int:
    """Where "on the left" ends, if that begins at `end`; otherwise `end`."""
    if not (_BEFORE.intersection(words[end : end + 1]) and words[end + 1 : end + 2] == ["the"]):
        return end
    side = end + 3 if words[end + 2 : end + 3] == ["far"] else end + 2
    if not SIDES.intersection(words[side : side + 1]):
        return end
    after = side + 2 if words[side + 1 : side + 2] == ["side"] else side + 1
    if _AFTER.intersection(words[after : after + 1]) and _PICTURE.intersection(words[after + 2 : after + 3]):
        return after + 3
    # "On the left of the car" is no side of the picture.
    return end if words[after : after + 1] == ["of"] else after


def phrases_in(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """The visible phrases among tokens, or all phrases if none is visible; empty without phrases."""
    from deixis.text.chunker import Chunker
    from deixis.text.entity_types import EntityTypes

    spans = Chunker.load().phrases(tokens)
    types = EntityTypes.load().types_in(tokens, spans)
    return [span for span, span_types in zip(spans, types, strict=True) if NOT_VISUAL not in span_types] or spans


def token_places(sentence: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end (characters) in a sentence of each token of `tokenize(sentence)`.

    >>> token_places("A man’s  cafe\u0301.", tokenize("A man’s  cafe\u0301."))
    [(0, 1), (2, 5), (5, 7), (9, 14), (14, 15)]
    """
    composed = unicodedata.normalize("NFC", sentence).replace("\u2019", "'")
    # For each place in the sentence, the place in its composed form.
    places = list(range(len(sentence) + 1))
    if len(composed) != len(sentence):
        places = [len(unicodedata.normalize("NFC", sentence[:position])) for position in places]
    token_spans, position = [], 0
    for token in tokens:
        start = composed.index(token, position)
        position = start + len(token)
        # A composed character ends where the last of its parts does.
        token_spans.append((bisect_right(places, start) - 1, bisect_right(places, position) - 1))
    return token_spans


def trimmed(tokens: Sequence[str], text: str) -> tuple[int, int]:
    """The span of all tokens except punctuation at either end. Raises `DeixisError` if there are no words."""
    real = [index for index, token in enumerate(tokens) if any(map(str.isalnum, token))]
    if not real:
        raise DeixisError(f"the phrase {text[:80]!r} has no words")
    return real[0], real[-1] + 1
