"""How a phrase of a query is put to the model, and what is known of its words.

A noun is asked for in both numbers: "cat", "a cat" and "cats" are encoded and averaged, whichever of them was typed, so
all three find the same pictures. (On validation pictures the average also ranks better than any of them alone.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deixis.adapters.search_model import SearchModel, Texts
from deixis.text.plurals import plural, singular
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vocabulary import Vocabulary

#: Words that a noun phrase may begin with and that do not say what is meant.
DETERMINERS = frozenset(("a", "an", "the", "some"))
#: Words that do not name, count or describe anything one could see.
_FUNCTION_WORDS = (
    "and another are at each he her his in is it its of on one other she that their these they this those to with"
)
FUNCTION_WORDS = DETERMINERS | frozenset(_FUNCTION_WORDS.split())
#: Words that fix the number of a noun.
_NUMBERS = "one two three four five six seven eight nine ten both couple few group many pair several single"
NUMBERS = frozenset(_NUMBERS.split())
#: A noun phrase of more words than this is asked for as it was typed.
LONGEST_NOUN = 2
#: How often the model must have read both numbers of a noun for them to be asked together.
WELL_KNOWN = 20
#: The share of running text from which on a word counts as common.
COMMON = 0.00035


class Phrasing(NamedTuple):
    #: The texts that are encoded and averaged.
    forms: tuple[str, ...]
    #: How common the rarest word is: log(1 + its share of the model's training text / `COMMON`).
    commonness: float
    #: Whether more than one word says what is meant.
    several: bool
    #: The words that the model has never read, in either number.
    unknown: tuple[str, ...]


def phrasing(phrase: str, model: SearchModel) -> Phrasing:
    """Look up the words of a phrase; of a model that does not count words, little is known of them."""
    tokens, vocabulary = tokens_of(phrase), model.known_words
    telling = telling_words(tokens)
    if vocabulary is None:
        never = set(model.unknown_words(tokens))
        return Phrasing((phrase,), 0.0, len(telling) > 1, tuple(word for word in telling if word in never))
    tokens = tuple(word for token in tokens for word in _known_form(token, vocabulary))
    telling = telling_words(tokens)
    counts = [_count(word, vocabulary) for word in telling]
    share = min(counts, default=0) / max(1, vocabulary.total)
    unknown = tuple(
        dict.fromkeys(word for word, count in zip(telling, counts, strict=True) if not count and _has_letter(word))
    )
    commonness = math.log1p(share / COMMON)
    return Phrasing(_both_numbers(tokens, vocabulary) or (" ".join(tokens),), commonness, len(telling) > 1, unknown)


def telling_words(tokens: Sequence[str]) -> list[str]:
    """The words that say what is meant; all words where none does.

    >>> telling_words(("a", "man", "in", "the", "red", "hat"))
    ['man', 'red', 'hat']
    """
    words = [token for token in tokens if has_content(token)]
    return [word for word in words if word not in FUNCTION_WORDS] or words


def embed_phrases(model: SearchModel, phrasings: Sequence[Phrasing]) -> Texts:
    """One embedding for each phrase, the mean of its forms' (so of less than unit length where there are several).

    Likewise its words: those of all forms, each counting so much less.
    """
    texts = model.embed_queries([form for each in phrasings for form in each.forms])
    longest = texts.words.shape[1] * max((len(each.forms) for each in phrasings), default=0)
    rows = np.empty((len(phrasings), texts.rows.shape[1]), np.float32)
    words = np.zeros((len(phrasings), longest, texts.words.shape[2]), np.float32)
    start = 0
    for number, each in enumerate(phrasings):
        forms = slice(start, start := start + len(each.forms))
        rows[number] = texts.rows[forms].mean(0)
        flat = np.concatenate(texts.words[forms]) / len(each.forms)
        words[number, : len(flat)] = flat
    return Texts(rows, words)


def _both_numbers(tokens: Sequence[str], vocabulary: Vocabulary) -> tuple[str, ...]:
    """A short noun phrase in singular and plural; nothing where the phrase is another or a number is little known."""
    words = list(tokens)
    while words and words[0] in DETERMINERS:
        del words[0]
    if not 1 <= len(words) <= LONGEST_NOUN or not all(word.isalpha() for word in words):
        return ()
    if words[0] in NUMBERS:
        return ()
    one = singular(words[-1])
    many = plural(one)
    if one == many or min(vocabulary.count(one), vocabulary.count(many)) < WELL_KNOWN:
        return ()
    one, many = (" ".join([*words[:-1], noun]) for noun in (one, many))
    return one, f"{'an' if one[0] in 'aeiou' else 'a'} {one}", many


def _known_form(word: str, vocabulary: Vocabulary) -> Sequence[str]:
    """The word itself; its other number, or the parts that hyphens join, where only these are known."""
    if word in vocabulary:
        return (word,)
    parts = word.split("-")
    if len(parts) > 1 and all(part in vocabulary for part in parts):
        return parts
    return (next((other for other in (singular(word), plural(word)) if other in vocabulary), word),)


def _has_letter(word: str) -> bool:
    return any(map(str.isalpha, word))


def _count(word: str, vocabulary: Vocabulary) -> int:
    one = singular(word)
    return sum(vocabulary.count(each) for each in {word, one, plural(one)})
