"""The coarse types of a phrase: people, clothing, bodyparts, animals … or notvisual (the Entities paper, section 2.1).

The release typed phrases by dictionaries of head words (a chunk's last word), so a lexicon from its training captions
nearly reproduces it: exceptions for whole phrases, then heads, then other forms of the head, and for unknown words a
small linear model over affixes and neighbours. `deixis.training.tools.entity_types_training` trains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from deixis.corpus.records import NOT_VISUAL, TYPES
from deixis.corpus.spans import Span
from deixis.errors import InputError
from deixis.files import RECORD_LIMIT, atomic_write, read_regular

#: Between several types of one phrase: `vehicles/scene`.
SEPARATOR = "/"
#: A chunk that is only a colour means clothing (Entities, footnote 1). Colours that are also things (gold, silver,
#: cream, peach) are left to the lexicon.
# fmt: off
COLOURS = frozenset({
    "aqua", "beige", "black", "blue", "brown", "burgundy", "crimson", "cyan", "gray", "green", "grey", "indigo",
    "khaki", "lavender", "magenta", "maroon", "mauve", "navy", "orange", "pink", "purple", "red", "scarlet",
    "tan", "teal", "turquoise", "violet", "white", "yellow",
})
# fmt: on
#: Words that may accompany a colour in such a chunk.
_COLOUR_COMPANY = frozenset({"all", "and", "or", ",", "light", "dark", "bright", "pale", "neon"})


class Lexicon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the file. Types are joined with `SEPARATOR`; words are in lower case.

    `weights` has one number per class of `classes` for each feature, in hundredths; `""` is the bias.
    """

    heads: dict[str, list[str]]
    phrases: dict[str, list[str]]
    classes: list[str]
    weights: dict[str, list[int]]


class EntityTypes:
    """Finds the types of phrases.

    >>> EntityTypes.load().types(["a", "muddy", "bicycle"])
    ('vehicles',)
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self._heads = _turned(lexicon.heads)
        self._phrases = _turned(lexicon.phrases)
        self._classes = [split_types(name) for name in lexicon.classes]

    @classmethod
    def load(cls, path: str | Path | None = None) -> EntityTypes:
        """Read a file written by `save`; by default the bundled lexicon."""
        if path is None:
            return _packaged()
        return _decoded(path, read_regular(path, RECORD_LIMIT))

    def save(self, path: str | Path) -> None:
        with atomic_write(path) as stream:
            stream.write(msgspec.json.encode(self.lexicon, order="sorted") + b"\n")

    def types(self, phrase: Sequence[str]) -> tuple[str, ...]:
        """The types of a phrase outside a caption, given as tokens."""
        return self.types_in(phrase, [(0, len(phrase))])[0]

    def types_in(self, tokens: Sequence[str], spans: Sequence[Span]) -> list[tuple[str, ...]]:
        """The types of phrases in a caption; `(NOT_VISUAL,)` for phrases that refer to nothing visible."""
        words = [token.lower() for token in tokens]
        return [self._known(words[start:end]) or self._guess(words, start, end) for start, end in spans]

    def knows(self, word: str) -> bool:
        """Whether a lower-case word is among the heads of the training captions."""
        return word in self._heads

    def _known(self, phrase: Sequence[str]) -> tuple[str, ...] | None:
        if is_colour(phrase):
            return ("clothing",)
        types = self._phrases.get(" ".join(phrase))
        if types is None and phrase:
            types = next((self._heads[form] for form in head_forms(phrase[-1]) if form in self._heads), None)
        return types

    def _guess(self, words: Sequence[str], start: int, end: int) -> tuple[str, ...]:
        scores = list(self.lexicon.weights[""])
        for feature in features(words, start, end):
            for index, weight in enumerate(self.lexicon.weights.get(feature, ())):
                scores[index] += weight
        return self._classes[scores.index(max(scores))]


def is_colour(phrase: Sequence[str]) -> bool:
    """Whether lower-case words are only a colour.

    >>> is_colour(["red", "and", "white"]), is_colour(["light"]), is_colour(["red", "light"])
    (True, False, False)
    """
    return bool(phrase) and phrase[-1] in COLOURS and all(word in COLOURS | _COLOUR_COMPANY for word in phrase)


def head_forms(head: str) -> Iterator[str]:
    """The head, the last part of a compound, and its singular or plural.

    >>> list(head_forms("police-men"))
    ['police-men', 'men', 'mens', 'man']
    """
    yield head
    last = head.rpartition("-")[2]
    if last != head and len(last) > 2:
        yield last
    if len(last) < 3:
        return
    if last.endswith("s"):
        yield last[:-1]
        if last.endswith("ies"):
            yield last[:-3] + "y"
        elif last.endswith("es"):
            yield last[:-2]
    else:
        yield last + "s"
    if last.endswith("men"):
        yield last[:-3] + "man"


def features(words: Sequence[str], start: int, end: int) -> Iterator[str]:
    """Features of the phrase `words[start:end]` for the linear model."""
    head = words[end - 1] if end > start else ""
    for length in (1, 2, 3, 4):
        if len(head) >= length:
            yield f"-{head[-length:]}"
    for length in (3, 4):
        if len(head) >= length:
            yield f"{head[:length]}-"
    for word in words[start : end - 1]:
        yield f"with {word}"
    yield f"after {words[start - 1] if start else ''}"
    yield f"before {words[end] if end < len(words) else ''}"
    if end - start == 1:
        yield "alone"


def split_types(joined: str) -> tuple[str, ...]:
    return tuple(joined.split(SEPARATOR))


def _turned(words_of: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {word: split_types(name) for name, words in words_of.items() for word in words}


@cache
def _packaged() -> EntityTypes:
    file = files("deixis.text") / "models" / "entity_types.json"
    return _decoded(str(file), file.read_bytes())


def _decoded(path: str | Path, data: bytes) -> EntityTypes:
    try:
        lexicon = msgspec.json.decode(data, type=Lexicon)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise InputError(path, f"is not a lexicon of types ({fault})") from None
    known = {*TYPES, NOT_VISUAL}
    for name in (*lexicon.heads, *lexicon.phrases, *lexicon.classes):
        if not known.issuperset(split_types(name)):
            raise InputError(path, f"{name!r} is none of the types {', '.join((*TYPES, NOT_VISUAL))}")
    wrong = next((name for name, row in lexicon.weights.items() if len(row) != len(lexicon.classes)), None)
    if wrong is not None or "" not in lexicon.weights or not lexicon.classes:
        raise InputError(
            path, f"has not one weight a class, of {len(lexicon.classes)}", f"weights {wrong or ''}".strip()
        )
    return EntityTypes(lexicon)
