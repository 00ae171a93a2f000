"""Converts between token and character spans of a caption. Some formats store phrases as character spans."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from deixis.corpus.records import Caption, Phrase

#: Start and end (exclusive), in characters or tokens.
Span = tuple[int, int]


def token_offsets(caption: Caption) -> list[Span]:
    """The character span of each token in the caption's text, ascending.

    Tokens may differ from the text in case, and may lack its punctuation. A token that was rewritten by a tokenizer
    gets the next run of characters without white space.

    >>> from deixis.corpus import make_caption
    >>> token_offsets(make_caption("A dog, running.", ["a", "dog", "running"]))
    [(0, 1), (2, 5), (7, 14)]
    """
    if caption.words is None:
        return [match.span() for match in re.finditer(r"\S+", caption.text)]
    offsets = []
    end = 0
    for token in caption.words:
        match = re.compile(rf"\W*?({re.escape(token)})", re.IGNORECASE).match(caption.text, end)
        match = match or re.compile(r"\s*(\S*)").match(caption.text, end)
        assert match is not None  # the second pattern matches anything
        offsets.append(match.span(1))
        end = match.end()
    return offsets


def characters_of(phrase: Phrase, offsets: list[Span]) -> Span:
    """The character span from a phrase's first token to its last."""
    return offsets[phrase.start][0], offsets[phrase.end - 1][1]


def tokens_of(characters: Span, offsets: list[Span]) -> Span:
    """The span of all tokens that a character span overlaps; empty if there are none."""
    first = bisect_right(offsets, characters[0], key=lambda offset: offset[1])
    return first, max(first, bisect_left(offsets, characters[1], key=lambda offset: offset[0]))
