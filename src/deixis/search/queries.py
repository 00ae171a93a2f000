"""Queries: phrases that must all be in a picture, alternatives, and phrases that must not be there.

two dogs in the snow                one phrase
"a red car" "snow"                  two phrases; both must be there. The same: a red car AND snow
a dog or a cat                      two phrases; one of them must be there
a red or blue car                   the same of "a red car" and "a blue car"
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
from itertools import pairwise
from typing import NamedTuple

from deixis.adapters.phrasing import FUNCTION_WORDS
from deixis.errors import DeixisError
from deixis.text.tokens import tokens_of

#: Characters of a query; longer ones describe no picture, and take minutes to compare with known words.
LONGEST = 1000
#: What a query may begin with that does not say what is meant, where something follows.
_REQUEST = re.compile(
    r"\A\s*(?:find(?:\s+me)?+|(?:show|give)\s+me|search\s+for|i\s+want|(?:is|are)\s+there(?:\s+any)?+)\s+(?=[\s\S]*\w)",
    re.IGNORECASE,
)
_PHOTO = re.compile(
    r"\A\s*(?:(?:an?|the|some|my)\s+)?(?:photo(?:graph)?|picture|image|snapshot|pic)s?\s+"
    r"(?:of|with|showing|that\s+shows?)\s+(?=[\s\S]*\w)",
    re.IGNORECASE,
)
#: Words that do not say what is meant, wherever they are.
_ASIDES = frozenset(("please", "only", "just", "exactly"))
#: Marks that end a word or a sentence; commas are items of their own.
_MARKS = ".!?;:"
#: Dashes that stand alone say nothing: "a beach - at night", or a minus whose word is not typed yet.
_DASHES = "-–—"
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
#: Words that "or" may stand between for what follows: "a red or blue car", "two or three dogs".
_COLOURS = "black blue brown gold golden gray green grey orange pink purple red silver tan white yellow"
_MODIFIERS = frozenset((*_COLOURS.split(), *_COUNTS.split(), "big", "large", "small", "old", "young"))
#: Words after an "or" that separates nothing: "one or more dogs".
_AMOUNTS = frozenset(("more", "less", "fewer", "so"))
_ARTICLES = frozenset(("a", "an", "the"))
#: Notices such as "a no parking sign" begin within so many words before one of these.
_NOTICES, _NOTICE_WORDS = frozenset(("sign", "signs", "symbol")), 4


class Query(NamedTuple):
    text: str
    phrases: tuple[str, ...]
    without: tuple[str, ...]
    #: For each phrase a number; of phrases with the same number, one must be there. Empty: all must be there.
    either: tuple[int, ...] = ()


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
        elif words[position].strip(_DASHES) and words[position].lower() not in _ASIDES:
            sorter.add_word(_number_word(words[position], following), following)
    wanted = [(phrase, part.either) for part in sorter.alternatives() for phrase in _phrases([part.words])]
    phrases, either = tuple(phrase for phrase, _ in wanted), tuple(number for _, number in wanted)
    query = Query(text, phrases, _phrases(sorter.denied), either if len(set(either)) < len(either) else ())
    # "the" and "a" would match any picture.
    asked = {word.lower() for phrase in (*query.phrases, *query.without) for word in phrase.split()}
    if needs_words and asked <= FUNCTION_WORDS:
        raise DeixisError(f"the query {text!r} names nothing to look for")
    return query


class _Wanted(NamedTuple):
    """A wanted phrase; one phrase of those with the same number must be there."""

    words: list[str]
    either: int
    quoted: bool = False


class _Sorter:
    """Sorts the words of a query into phrases, lists of words."""

    def __init__(self) -> None:
        self.wanted: list[_Wanted] = [_Wanted([], 0)]
        self.quoted: list[_Wanted] = []
        self.denied: list[list[str]] = []
        #: The word that the current negation began with; empty outside of one.
        self.negation = ""
        #: The phrase that was added to last, and whether "or" came after it.
        self.last = self.wanted[0]
        self.after_or = False

    def add_quoted(self, phrase: str, minus: bool) -> None:
        if minus or (self.negation != "" and not self.denied[-1]):
            self.denied.append([phrase])
            return
        self.last = _Wanted([phrase], self._number(), quoted=True)
        self.quoted.append(self.last)

    def alternatives(self) -> list[_Wanted]:
        """All wanted phrases; what stands on one side of an "or" only and belongs to both sides is in both."""
        for left, right in pairwise(self.wanted):
            if left.either == right.either and left.words and right.words:
                _complete(left.words, right.words)
        return [*self.wanted, *self.quoted]

    def _number(self) -> int:
        """The number of a phrase that begins here."""
        joined, self.after_or = self.after_or, False
        return self.last.either if joined else len(self.wanted) + len(self.quoted)

    def _begin(self) -> None:
        if self.wanted[-1].words or self.after_or:
            self.wanted.append(_Wanted([], self._number()))

    def _add(self, word: str) -> None:
        if self.after_or:
            self._begin()
        self.wanted[-1].words.append(word)
        self.last = self.wanted[-1]

    def add_word(self, word: str, following: Sequence[str]) -> None:
        lower = word.lower()
        if lower in _WITHOUT or (lower in _NOT and not _NOTICES.intersection(following[:_NOTICE_WORDS])):
            while self.wanted[-1].words and self.wanted[-1].words[-1].lower() in _LEADING:
                self.wanted[-1].words.pop()
            self.negation = lower
            self.denied.append(["people"] if lower == "nobody" else [])
        elif word == "AND" and not self.negation:
            self._begin()
        elif lower == "or" and not self.negation and not _AMOUNTS.intersection(following[:1]):
            self.after_or = bool(self.last.words)
        elif not self.negation:
            self._add(word)
        elif lower in ("or", "nor") or (lower == "and" and self.negation in _WITHOUT):
            self.denied.append([])
        elif self.denied[-1] and lower in _ENDING:
            self._end_negation(lower)
            if lower not in _LEADING:
                self._add(word)
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
            self._begin()


def _complete(left: list[str], right: list[str]) -> None:
    """Complete two alternatives with what stands on one side and belongs to both.

    "a man in a red or blue shirt", "a girl in red or blue", "a dog on a beach or in the snow", "a man or woman riding a
    horse". With an article of its own the right side is complete: "a car or a man riding a horse".
    """
    left_details, right_details = _details(left), _details(right)
    if left[-1].lower() in _MODIFIERS and right[0].lower() in _MODIFIERS:
        before, after = left[:-1], right[1:]
        left += after
        right[:0] = before
    elif right[0].lower() in _ENDING and left_details:
        right[:0] = left[: left_details[-1]]
    elif right_details and not left_details and right[0].lower() not in _ARTICLES:
        left += right[right_details[0] :]


def _details(words: Sequence[str]) -> list[int]:
    """Where words begin that say where something is or what it does: "in the snow", "riding a horse"."""
    return [
        index for index, word in enumerate(words) if index and (word.lower() in _ENDING or word.lower().endswith("ing"))
    ]


def _number_word(word: str, following: Sequence[str]) -> str:
    """A number that counts something, in letters: "2 dogs", but not "a shirt with a 2"."""
    counted = following[0] if following else ""
    is_thing = counted[:1].isalpha() and counted not in FUNCTION_WORDS | _WITHOUT | _NOT | _ENDING | {"or", "nor"}
    return _DIGITS.get(word, word) if is_thing else word


def _phrases(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    phrases = (" ".join(words).strip(" ,") for words in parts)
    return tuple(phrase for phrase in phrases if any(map(str.isalnum, phrase)) and tokens_of(phrase))
