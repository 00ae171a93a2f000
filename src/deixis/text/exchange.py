"""Captions with the roles of two things exchanged: "a cheetah chases a gazelle", "a gazelle chases a cheetah".

SCO (section 1) asks to separate a picture from the same concepts in another order. The two noun phrases of a verb,
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
    objects = [object_index for object_index in phrase_of if words[object_index].relation in ("dobj", "pobj")]
    # Objects of a verb before those of a preposition: what a man pushes before what he stands on.
    for object_index in sorted(objects, key=lambda index: (words[index].relation, index)):
        relation = words[object_index].head
        subject = _subject(words, relation)
        if subject is None or subject not in phrase_of:
            continue
        candidate = Parties(phrase_of[subject], phrase_of[object_index], relation)
        if _exchangeable(words, candidate, words[subject].tag, words[object_index].tag):
            return candidate
    return None


def _exchangeable(words: Sequence[Word], candidate: Parties, first_tag: str, second_tag: str) -> bool:
    """Whether an exchange would be grammatical, and say something else."""
    relation = words[candidate.relation]
    lemmas = {words[relation.head].lemma} | ({relation.lemma} if relation.relation != "agent" else set())
    return (
        first_tag == second_tag in ("NN", "NNS")
        and candidate.first[1] <= candidate.second[0]
        and not lemmas & MUTUAL
        and _text(words, candidate.first) != _text(words, candidate.second)
    )


def exchange(sentence: Sentence, roles: Parties) -> Tokens:
    """The lower-case tokens of a sentence with its parties exchanged."""
    tokens = tuple(token.lower() for token in sentence.tokens)
    (start, end), (second_start, second_end) = roles.first, roles.second
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
        exchanged = [exchange(sentence, role) if role else None for sentence, role in zip(read, roles, strict=True)]
        again = iter(parser.parse([tokens for tokens in exchanged if tokens is not None]))
        for sentence, role, tokens in zip(read, roles, exchanged, strict=True):
            if tokens is None or role is None:
                yield None
                continue
            reread = next(again)
            other = parties(reread)
            survives = other is not None and (
                _text(reread.words, other.first) == _text(sentence.words, role.second)
                and _text(reread.words, other.second) == _text(sentence.words, role.first)
                and reread.words[other.relation].text == sentence.words[role.relation].text
            )
            yield Exchanged(tokens, _name(sentence.words, role.relation)) if survives else None


def _subject(words: Sequence[Word], relation: int) -> int | None:
    """The noun that a verb or a preposition relates to its object."""
    word = words[relation]
    if word.relation in ("prep", "agent"):
        # A preposition of a noun says what the noun wears or has: "a man in a red shirt".
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
    return next(
        (index for index in inside if words[index].head == index or words[index].head not in inside), span[1] - 1
    )


def _text(words: Sequence[Word], span: Span) -> str:
    return " ".join(word.text for word in words[span[0] : span[1]])
