"""How a phrase of a query is put to the model, and what is known of its words.

A noun is asked for in both numbers: "cat", "a cat" and "cats" are embedded and averaged, whichever of them was typed,
so all three find the same pictures. (On validation pictures the average also ranks better than any of them alone.)

A general word is asked for with its kinds too: the score of "people" is the best of those of "person", "man", "woman",
"boy", "girl" and "child". Captions say "a man", hardly ever "a person", so the model knows the kinds better. (Average
precision on COCO's validation pictures: people 0.92 by itself, 0.94 with its kinds; animal 0.82, 0.89; vehicle 0.72,
0.86; furniture 0.51, 0.67; food 0.56, 0.61; fruit 0.30, 0.42.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.search_model import Floats, Pictures, SearchModel, Texts, scores
from deixis.text.plurals import plural, singular
from deixis.text.tokens import has_content, tokens_of
from deixis.text.variants import variant
from deixis.text.vocabulary import SPECIALS, Vocabulary

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
#: The kinds of general words, by their singular.
KINDS = {
    "person": "man woman boy girl child",
    "animal": "dog cat horse bird cow sheep elephant bear zebra giraffe",
    "vehicle": "car truck bus train motorcycle bicycle boat airplane",
    "furniture": "chair couch bed table desk",
    "food": "pizza sandwich cake fruit banana broccoli donut plate meal vegetable",
    "fruit": "banana apple orange",
}
#: Further kinds of an excluded "people". (Of the fifth of 3,000 training pictures of COCO that score lowest for people,
#: 10% show somebody by COCO's boxes, and 6% with these; as kinds of what is wanted they rank worse.)
PEOPLE_IN_SCENES = ("people walking", "people standing")
#: Other words for people.
_PEOPLE = frozenset(("anybody", "anyone", "everybody", "everyone", "human", "somebody", "someone"))
#: The share of running text from which on a word counts as common.
COMMON = 0.00035
#: A word is rare if the model has read it hardly more often than this.
RARE = 100
#: Words from this rarity on are hardly known: read about 70 times or less.
HARDLY_KNOWN = 0.5


class Phrasing(NamedTuple):
    #: The texts that are encoded and averaged.
    forms: tuple[str, ...]
    #: How common the rarest word is: log(1 + its share of the model's training text / `COMMON`).
    commonness: float
    #: Whether more than one word says what is meant.
    several: bool
    #: The words that the model has never read, in either number.
    unknown: tuple[str, ...]
    #: Its last word that says what is meant, in the singular.
    noun: str = ""
    #: The same as `forms` for each kind of a general word; the best of all these is the phrase's score.
    kinds: tuple[tuple[str, ...], ...] = ()
    #: Of several words that say what is meant, each; the noun comes last.
    words: tuple[str, ...] = ()
    #: As `commonness`, of the noun alone.
    noun_commonness: float = 0.0
    #: The words that say what is meant, the noun in the singular.
    name: str = ""
    #: How rare its rarest word is, from 0 to 1, and what this word usually scores (`Relevance.usual`); 0 if unknown.
    rarity: float = 0.0
    usual_score: float = 0.0
    #: The words that the model has hardly read.
    rare: tuple[str, ...] = ()


def phrasing(phrase: str, model: SearchModel, *, excluded: bool = False) -> Phrasing:
    """Look up the words of a phrase; of a model that does not count words, little is known of them.

    Args:
        excluded: whether pictures must not show it.
    """
    tokens, vocabulary = tokens_of(phrase), model.known_words
    telling = telling_words(tokens)
    if vocabulary is None:
        never = set(model.unknown_words(tokens))
        return Phrasing((phrase,), 0.0, len(telling) > 1, tuple(word for word in telling if word in never))
    tokens = tuple(word for token in tokens for word in _known_form(token, vocabulary))
    telling = telling_words(tokens)
    counts = [_count(word, vocabulary) for word in telling]
    share = min(counts, default=0) / max(1, vocabulary.total)
    # A number that was never read changes little beside other words; alone it would match anything.
    unread = [word for word, count in zip(telling, counts, strict=True) if not count]
    unknown = tuple(dict.fromkeys(word for word in unread if _has_letter(word) or not any(counts)))
    forms = _both_numbers(tokens, vocabulary) or (" ".join(tokens),)
    noun = singular(telling[-1]) if telling else ""
    kinds = _kinds(telling, vocabulary)
    if excluded and kinds and noun not in KINDS.keys() - {"person"}:
        kinds += tuple((kind,) for kind in PEOPLE_IN_SCENES if all(word in vocabulary for word in kind.split()))
    return Phrasing(
        forms,
        math.log1p(share / COMMON),
        len(telling) > 1,
        unknown,
        noun,
        kinds,
        tuple(distinct_words(telling)) if len(telling) > 1 else (),
        math.log1p((counts[-1] if counts else 0) / max(1, vocabulary.total) / COMMON),
        name_of(telling),
        *_rarest(telling, model),
    )


def word_rarity(word: str, vocabulary: Vocabulary) -> float:
    """How rare a word is, from 0 to 1, by how often the model has read it in either number."""
    return math.exp(-_count(word, vocabulary) / RARE)


def _rarest(words: Sequence[str], model: SearchModel) -> tuple[float, float, tuple[str, ...]]:
    """`Phrasing.rarity`, `usual_score` and `rare`, of words for which it is known what they usually score."""
    usual, vocabulary = np.frombuffer(model.relevance.usual, np.int8), model.known_words
    if vocabulary is None or len(usual) != len(vocabulary.words):
        return 0.0, 0.0, ()
    scores = {word: usual[vocabulary.encode([word])[0] - len(SPECIALS)] / 100 for word in words if word in vocabulary}
    rarities = {word: word_rarity(word, vocabulary) for word, score in scores.items() if score}
    rarest = max(rarities, key=rarities.__getitem__, default="")
    rare = tuple(word for word, rarity in rarities.items() if rarity >= HARDLY_KNOWN)
    return rarities.get(rarest, 0.0), float(scores.get(rarest, 0.0)), rare


def telling_words(tokens: Sequence[str]) -> list[str]:
    """The words that say what is meant; all words where none does.

    >>> telling_words(("a", "man", "in", "the", "red", "hat"))
    ['man', 'red', 'hat']
    """
    words = [token for token in tokens if has_content(token)]
    return [word for word in words if word not in FUNCTION_WORDS] or words


def distinct_words(telling: Sequence[str]) -> list[str]:
    """The words that say what is meant, each once, the noun last.

    >>> distinct_words(["dog", "red", "dog"])
    ['red', 'dog']
    """
    return list(dict.fromkeys(reversed(telling)))[::-1]


def name_of(telling: Sequence[str]) -> str:
    """What a phrase is looked up by in the tables of `Relevance`.

    >>> name_of(["teddy", "bears"])
    'teddy bear'
    """
    return " ".join((*telling[:-1], singular(telling[-1]))) if telling else ""


class EmbeddedPhrases(NamedTuple):
    """Phrases, each as its alternatives: itself and, of a general word, its kinds."""

    #: `(alternatives, …)`, those of one phrase after one another.
    texts: Texts
    #: `(phrases,)`: the first alternative of each phrase.
    first: NDArray[np.intp]

    def scores(self, pictures: Pictures) -> Floats:
        """`(phrases, pictures)`: the score of the best alternative."""
        best: Floats = np.maximum.reduceat(scores(self.texts, pictures), self.first, axis=0)
        return best

    def split(self, counts: Sequence[int]) -> list[EmbeddedPhrases]:
        """The first phrases, the next ones, …: so many in each part."""
        bounds = np.cumsum([0, *counts]).tolist()
        starts = np.append(self.first, len(self.texts.embeddings))
        return [
            EmbeddedPhrases(
                Texts(*(field[starts[begin] : starts[end]] for field in self.texts)),
                self.first[begin:end] - starts[begin],
            )
            for begin, end in pairwise(bounds)
        ]


def embed_phrases(model: SearchModel, phrasings: Sequence[Phrasing]) -> EmbeddedPhrases:
    """Embed phrases.

    The embedding of an alternative is the mean of its forms', so of less than unit length if there are several. Its
    words are those of all forms, with their weights divided by the number of forms.
    """
    alternatives = [forms for phrase in phrasings for forms in (phrase.forms, *phrase.kinds)]
    texts = model.embed_queries([form for forms in alternatives for form in forms])
    longest = texts.words.shape[1] * max(map(len, alternatives), default=0)
    rows = np.empty((len(alternatives), texts.embeddings.shape[1]), np.float32)
    words = np.zeros((len(alternatives), longest, texts.words.shape[2]), np.float32)
    start = 0
    for index, forms in enumerate(alternatives):
        phrase_rows = slice(start, start := start + len(forms))
        rows[index] = texts.embeddings[phrase_rows].mean(0)
        flat = np.concatenate(texts.words[phrase_rows]) / len(forms)
        words[index, : len(flat)] = flat
    first = np.cumsum([0, *(1 + len(phrase.kinds) for phrase in phrasings)])[:-1]
    return EmbeddedPhrases(Texts(rows, words), first)


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


def _kinds(telling: Sequence[str], vocabulary: Vocabulary) -> tuple[tuple[str, ...], ...]:
    """The forms of each kind of a general word that stands alone."""
    word = singular(telling[0]) if len(telling) == 1 else ""
    kinds = KINDS.get("person" if word in _PEOPLE else word, "").split()
    return tuple(_both_numbers((kind,), vocabulary) or (kind,) for kind in kinds if kind in vocabulary)


def _known_form(word: str, vocabulary: Vocabulary) -> Sequence[str]:
    """The word itself; if that is hardly known, a variant that is; its other number, or the parts that hyphens join."""
    other_words = variant(word)
    if other_words and word_rarity(word, vocabulary) >= HARDLY_KNOWN:
        counts = [_count(other, vocabulary) for other in other_words]
        if min(counts) > _count(word, vocabulary):
            return [form for other in other_words for form in _known_form(other, vocabulary)]
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
    return sum(vocabulary.count(form) for form in {word, one, plural(one)})
