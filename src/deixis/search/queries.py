"""What a person asks for, taken apart: phrases that must all be there, and phrases that must not.

two dogs in the snow                one phrase
"a red car" "snow"                  two phrases, and both must be there; so does: a red car AND snow
a beach -people -"a red boat"       a phrase, and two that must not be there
a beach and not people              the same with words
"""

from __future__ import annotations

import re
from typing import NamedTuple

from deixis.errors import DeixisError
from deixis.text.tokens import tokens_of

#: A quoted phrase, or a word with a minus before it; either may not stand inside a word ("t-shirt", 5" nails).
_TERM = re.compile(r'(?<!\S)(-?)"([^"]*)"|(?<!\S)-(\w\S*)')
_AND_NOT = re.compile(r"\s+and\s+not\s+", re.IGNORECASE)
_AND = re.compile(r"\s+AND\s+")


class Query(NamedTuple):
    text: str
    phrases: tuple[str, ...]
    without: tuple[str, ...]


def parse_query(text: str, *, needs_phrase: bool = True) -> Query:
    """Take a query apart; with `needs_phrase` one that only says what must not be there is a `DeixisError`."""
    # A command line may hold bytes that are no text.
    text = text.encode(errors="replace").decode()
    plain = text.replace("“", '"').replace("”", '"')
    phrases: list[str] = []
    without: list[str] = []
    rest, place = [], 0
    for match in _TERM.finditer(plain):
        rest.append(plain[place : match.start()])
        place = match.end()
        minus, quoted, word = match.groups()
        after_not = _ends_in_not("".join(rest))
        if after_not:
            rest = [re.sub(r"\s*\band\s+not\s*$", " ", "".join(rest), flags=re.IGNORECASE)]
        (without if minus or word or after_not else phrases).append(quoted if word is None else word)
    rest.append(plain[place:])
    free = " ".join(rest)
    if '"' in re.sub(r'\d"', "", free):
        raise DeixisError(f"a quotation mark in {text!r} is not closed")
    kept, *denied = _AND_NOT.split(f" {free}")
    phrases = [*_AND.split(kept), *phrases]
    without = [*denied, *without]
    query = Query(text, *(tuple(part.strip() for part in parts if tokens_of(part)) for parts in (phrases, without)))
    if needs_phrase and not query.phrases:
        problem = "says only what must not be there" if query.without else "has no words"
        raise DeixisError(f"the query {text!r} {problem}; say what to look for")
    return query


def _ends_in_not(text: str) -> bool:
    return re.search(r"\band\s+not\s*$", text, flags=re.IGNORECASE) is not None
