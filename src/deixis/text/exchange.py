"""Captions with the roles of two things exchanged: "a cheetah chases a gazelle", "a gazelle chases a cheetah".

SCO (section 1) asks that a picture be told from the same concepts in another order. The two noun phrases of a verb,
or of a preposition that is not the same both ways, change places; what they wear and where they stand stays. A parser
must read the exchanged sentence with the roles exchanged, or it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from deixis.corpus.spans import Span
from deixis.text.constituency import Word
from deixis.text.parsing import Parser, Sentence

Tokens = tuple[str, ...]

#: Relations that hold both ways, by lemma.
MUTUAL = frozenset(
    {
        *("alongside", "among", "beside", "between", "by", "close", "near", "next", "together", "with"),
        *("accompany", "embrace", "face", "fight", "hug", "kiss", "meet", "resemble", "touch"),
    }
)
#: Captions that are parsed, exchanged and parsed again together.
BATCH = 256


class Exchanged(NamedTuple):
    """The tokens of an exchanged caption, and what relates its parties: the lemma of a verb, or a preposition."""

    tokens: Tokens
    relation: str


class Parties(NamedTuple):
    """Two noun phrases and the number of the word that relates them, a verb or a preposition."""

    first: Span
    second: Span
    relation: int


def parties(sentence: Sentence) -> Parties | None:
    """The first two noun phrases of a sentence that could change places: nouns of one number, in one relation."""
    words = sentence.words
    heads = {_head(words, span): span for span in sentence.noun_chunks}
    # "a group" of "a group of people" is not all of it.
    partial = {word.head for word in words if word.text == "of"}
    phrase_of = {head: span for head, span in heads.items() if head not in partial}
    objects = [number for number in phrase_of if words[number].relation in ("dobj", "pobj")]
    # Objects of a verb before those of a preposition: what a man pushes before what he stands on.
    for number in sorted(objects, key=lambda each: (words[each].relation, each)):
        relation = words[number].head
        subject = _subject(words, relation)
        if subject is None or subject not in phrase_of:
            continue
        found = Parties(phrase_of[subject], phrase_of[number], relation)
        if _exchangeable(words, found, words[subject].tag, words[number].tag):
            return found
    return None


def _exchangeable(words: Sequence[Word], found: Parties, first_tag: str, second_tag: str) -> bool:
    """Whether an exchange would be grammatical, and say something else."""
    relation = words[found.relation]
    lemmas = {words[relation.head].lemma} | ({relation.lemma} if relation.relation != "agent" else set())
    return (
        first_tag == second_tag in ("NN", "NNS")
        and found.first[1] <= found.second[0]
        and not lemmas & MUTUAL
        and _text(words, found.first) != _text(words, found.second)
    )


def exchange(sentence: Sentence, found: Parties) -> Tokens:
    """The lower-case tokens of a sentence with its parties exchanged."""
    tokens = tuple(token.lower() for token in sentence.tokens)
    (start, end), (second_start, second_end) = found.first, found.second
    return (
        *tokens[:start],
        *tokens[second_start:second_end],
        *tokens[end:second_start],
        *tokens[start:end],
        *tokens[second_end:],
    )


def exchanged_captions(captions: Iterable[Sequence[str]], parser: Parser) -> Iterator[Exchanged | None]:
    """Each tokenized caption with its parties exchanged; None where it has none, or the parser reads other roles."""
    waiting = iter(captions)
    while batch := list(islice(waiting, BATCH)):
        read = list(parser.parse([tuple(token.lower() for token in tokens) for tokens in batch]))
        roles = [parties(sentence) for sentence in read]
        made = [exchange(each, role) if role else None for each, role in zip(read, roles, strict=True)]
        again = iter(parser.parse([tokens for tokens in made if tokens is not None]))
        for sentence, found, tokens in zip(read, roles, made, strict=True):
            if tokens is None or found is None:
                yield None
                continue
            reread = next(again)
            other = parties(reread)
            kept = other is not None and (
                _text(reread.words, other.first) == _text(sentence.words, found.second)
                and _text(reread.words, other.second) == _text(sentence.words, found.first)
                and reread.words[other.relation].text == sentence.words[found.relation].text
            )
            yield Exchanged(tokens, _name(sentence.words, found.relation)) if kept else None


def _subject(words: Sequence[Word], relation: int) -> int | None:
    """The noun that a verb or a preposition relates to its object."""
    word = words[relation]
    if word.relation in ("prep", "agent"):
        # One that hangs from a noun tells what it wears or has: "a man in a red shirt".
        above = word.head
        return None if above == relation or words[above].tag.startswith("NN") else _subject(words, above)
    for index, other in enumerate(words):
        if other.head == relation and other.relation in ("nsubj", "nsubjpass"):
            return index
    # "a man holding a child": the noun that the clause describes.
    return word.head if word.relation == "acl" and words[word.head].tag.startswith("NN") else None


def _name(words: Sequence[Word], relation: int) -> str:
    """A verb's lemma, also where the relation is the "by" of its passive; a preposition as it stands."""
    word = words[relation]
    lemma = words[word.head].lemma if word.relation == "agent" else word.lemma
    return "ride" if lemma == "rid" else lemma  # spaCy's lemma of "riding"


def _head(words: Sequence[Word], span: Span) -> int:
    """The word of a span that hangs from outside of it."""
    inside = range(*span)
    return next((each for each in inside if words[each].head == each or words[each].head not in inside), span[1] - 1)


def _text(words: Sequence[Word], span: Span) -> str:
    return " ".join(word.text for word in words[span[0] : span[1]])
