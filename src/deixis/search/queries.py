"""Queries: phrases that must all be in a picture, and phrases that must not.

two dogs in the snow                one phrase
"a red car" "snow"                  two phrases; both must be there. The same: a red car AND snow
a beach -people -"a red boat"       a phrase, and two that must not be there
a beach without people or boats     the same in words; "no", "not", "but not" and "nobody" work too
no people                           only what must not be there

Words in quotes are never read as negations: "a no parking sign" in quotes is one phrase.

Wording that does not say what is meant changes nothing outside of quotes: "Find me photos of 2 dogs!" asks for
"two dogs".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from deixis.adapters.phrasing import FUNCTION_WORDS
from deixis.errors import DeixisError
from deixis.text.tokens import tokens_of

#: Characters of a query; longer ones describe no picture, and take minutes to compare with known words.
LONGEST = 1000
#: What a query may begin with that does not say what is meant, where something follows.
_REQUEST = re.compile(
    r"\A\s*(?:find(?:\s+me)?+|(?:show|give)\s+me|search\s+for|i\s+want)\s+(?=[\s\S]*\w)", re.IGNORECASE
)
_PHOTO = re.compile(
    r"\A\s*(?:(?:an?|the|some|my)\s+)?(?:photo(?:graph)?|picture|image|snapshot|pic)s?\s+"
    r"(?:of|with|showing|that\s+shows?)\s+(?=[\s\S]*\w)",
    re.IGNORECASE,
)
#: Marks that end a word or a sentence; commas are items of their own.
_MARKS = ".!?;:"
_COUNTS = "one two three four five six seven eight nine ten"
_DIGITS = {str(number): word for number, word in enumerate(_COUNTS.split(), 1)}
#: A quoted phrase or a word, each with or without a minus (not inside a word: "t-shirt", 5" nails); or a comma.
_ITEM = re.compile(
    r"""(?<!\S)(?P<minus>-?)"(?P<quoted>[^"]*)"|(?<!\S)-(?P<denied>\w[^\s,]*)|(?P<comma>,)|(?P<word>[^\s,]+)"""
)
#: Words after which comes what must not be there. After "without", "and" adds to it; after the others it does not:
#: "no cars and a blue sky".
_WITHOUT, _NOT = frozenset(("without", "excluding")), frozenset(("no", "not", "nobody"))
_NOBODY = re.compile(r"\bno[- ]one\b", re.IGNORECASE)
#: Words that lead to a negation and mean nothing by themselves.
_LEADING = frozenset(("and", "but", "with", "there", "is", "are", "that", "has", "have"))
#: Words that a denied phrase may begin with and that are not part of it.
_FILLERS = frozenset(("any", "wearing", "having", "holding", "in", "on", "at", "with", "a", "an", "the"))
#: Words that end what must not be there: "without people at sunset" asks for a sunset.
_PLACES = "above around at behind below beside by during in inside near next on over under when where while"
_ENDING = frozenset(("and", "but", "with", *_PLACES.split()))
#: Notices such as "a no parking sign" begin within so many words before one of these.
_NOTICES, _NOTICE_WORDS = frozenset(("sign", "signs", "symbol")), 4


class Query(NamedTuple):
    text: str
    phrases: tuple[str, ...]
    without: tuple[str, ...]


def parse_query(text: str, *, needs_words: bool = True) -> Query:
    """Read a query; one that is too long is a `DeixisError`, and with `needs_words` one without any words."""
    if len(text) > LONGEST:
        raise DeixisError(f"the query has {len(text):,} characters; up to {LONGEST:,} are read")
    # A command line may hold bytes that are not text.
    text = text.encode(errors="replace").decode()
    asked_for = _PHOTO.sub("", _REQUEST.sub("", text.replace("“", '"').replace("”", '"')))
    items = list(_ITEM.finditer(_NOBODY.sub("nobody", asked_for)))
    words = [(item["word"] or "").rstrip(_MARKS) for item in items]
    if any('"' in re.sub(r'\d"', "", word) for word in words):
        raise DeixisError(f"a quotation mark in {text!r} is not closed")
    sorter = _Sorter()
    for position, item in enumerate(items):
        following = [word.lower() for word in words[position + 1 :]]
        if item["quoted"] is not None:
            sorter.add_quoted(item["quoted"], bool(item["minus"]))
        elif item["denied"] is not None:
            sorter.denied.insert(0, [item["denied"].rstrip(_MARKS)])
        elif item["comma"]:
            sorter.add_comma(following)
        elif words[position]:
            sorter.add_word(_number_word(words[position], following), following)
    query = Query(text, _phrases([*sorter.wanted, *sorter.quoted]), _phrases(sorter.denied))
    # "the" and "a" would match any picture.
    asked = {word.lower() for phrase in (*query.phrases, *query.without) for word in phrase.split()}
    if needs_words and asked <= FUNCTION_WORDS:
        raise DeixisError(f"the query {text!r} names nothing to look for")
    return query


class _Sorter:
    """Sorts the words of a query into phrases, lists of words."""

    def __init__(self) -> None:
        self.wanted: list[list[str]] = [[]]
        self.quoted: list[list[str]] = []
        self.denied: list[list[str]] = []
        #: The word that the current negation began with; empty outside of one.
        self.negation = ""

    def add_quoted(self, phrase: str, minus: bool) -> None:
        denied = minus or (self.negation != "" and not self.denied[-1])
        (self.denied if denied else self.quoted).append([phrase])

    def add_word(self, word: str, following: Sequence[str]) -> None:
        lower = word.lower()
        if lower in _WITHOUT or (lower in _NOT and not _NOTICES.intersection(following[:_NOTICE_WORDS])):
            while self.wanted[-1] and self.wanted[-1][-1].lower() in _LEADING:
                self.wanted[-1].pop()
            self.negation = lower
            self.denied.append(["people"] if lower == "nobody" else [])
        elif word == "AND" and not self.negation:
            self.wanted.append([])
        elif not self.negation:
            self.wanted[-1].append(word)
        elif lower in ("or", "nor") or (lower == "and" and self.negation in _WITHOUT):
            self.denied.append([])
        elif self.denied[-1] and lower in _ENDING:
            self._end_negation(lower)
            self.wanted[-1] += [] if lower in _LEADING else [word]
        elif self.denied[-1] or lower not in _FILLERS:
            self.denied[-1].append(word)

    def add_comma(self, following: Sequence[str]) -> None:
        """A comma ends a negation, except in a list: "without cars, trucks or buses"."""
        if not self.negation:
            return
        if self.negation in _WITHOUT and {"or", "nor", "and"}.intersection(following):
            self.denied.append([])
        else:
            self._end_negation(following[0] if following else "")

    def _end_negation(self, next_word: str) -> None:
        """What comes next is a phrase of its own, except where it says where or when: "no cars at night"."""
        self.negation = ""
        if next_word == "and" or next_word not in _ENDING:
            self.wanted.append([])


def _number_word(word: str, following: Sequence[str]) -> str:
    """A number that counts something, in letters: "2 dogs", but not "a shirt with a 2"."""
    counted = following[0] if following else ""
    is_thing = counted[:1].isalpha() and counted not in FUNCTION_WORDS | _WITHOUT | _NOT | _ENDING | {"or", "nor"}
    return _DIGITS.get(word, word) if is_thing else word


def _phrases(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    phrases = (" ".join(words).strip(" ,") for words in parts)
    return tuple(phrase for phrase in phrases if any(map(str.isalnum, phrase)) and tokens_of(phrase))
