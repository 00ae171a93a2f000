"""Between tokens and characters of a caption: some formats give phrases as spans of characters, Deixis of tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from deixis.corpus.records import Caption, Phrase

#: First, and one past the last, of characters or of tokens.
Span = tuple[int, int]


def token_offsets(caption: Caption) -> list[Span]:
    """Where each token stands in the caption's text, as spans of characters, ascending.

    Tokens may be in other case than the text, and punctuation may be missing among them. A token that a tokenizer
    rewrote takes the next run of characters without white space.

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
    """The characters from a phrase's first token to its last."""
    return offsets[phrase.start][0], offsets[phrase.end - 1][1]


def tokens_of(characters: Span, offsets: list[Span]) -> Span:
    """The tokens that a span of characters touches, whole; an empty span where it touches none."""
    first = bisect_right(offsets, characters[0], key=lambda offset: offset[1])
    return first, max(first, bisect_left(offsets, characters[1], key=lambda offset: offset[0]))
