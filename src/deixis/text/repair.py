"""Make a dependency parse agree with the phrases of the chunker.

General parsers make errors in captions (the DVSA paper's supplement, "Plug and play use of Natural Language Processing
toolkits"): in "people sitting on rocking chairs" spaCy takes "rocking" for a verb. The caption chunker is more
reliable, so each of its phrases gets one head, a noun if there is one, on which the rest of the phrase depends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from deixis.corpus.spans import Span
from deixis.text.constituency import NOMINAL_RELATIONS, NOMINAL_TAGS, Word

#: The relation of a word to the noun after it, by the beginning of its tag; others have `dep`.
_RELATIONS = {
    "DT": "det", "PDT": "predet", "PRP$": "poss", "CD": "nummod", "JJ": "amod", "VB": "amod", "NN": "compound",
    "RB": "advmod", "CC": "cc", "POS": "case", "IN": "prep",
}  # fmt: skip


def with_phrases(words: Sequence[Word], phrases: Iterable[Span]) -> list[Word]:
    """The words with heads changed so that each phrase (spans that do not overlap) depends on one of its words."""
    changed = list(words)
    for start, end in phrases:
        _gather(changed, start, end)
    return changed


def _gather(words: list[Word], start: int, end: int) -> None:
    inside = range(start, end)
    tops = [n for n in inside if words[n].head not in inside or words[n].head == n]
    # No word of the phrase is above the top nearest to the root, so attaching the phrase there makes no cycle.
    top = min(tops, key=lambda index: _depth(words, index))
    head = top if len(tops) == 1 and _nominal(words[top]) else _head(words, inside, tops)
    outer = head if words[top].head == top else words[top].head
    relation = _outer_relation(words, top, head)
    words[head] = replace(words[head], head=outer, relation=relation, phrase=(start, end))
    for index in inside:
        if index != head and index in tops:
            words[index] = replace(words[index], head=head, relation=_inner_relation(words[index], index < head))
    for index, word in enumerate(words):
        if index not in inside and word.head in inside:
            words[index] = replace(word, head=head)


def _head(words: Sequence[Word], inside: range, tops: Sequence[int]) -> int:
    """The last noun of a phrase, before any preposition in it ("a group of people"); else its only top or last word."""
    first_preposition = next((n for n in inside if words[n].tag == "IN" and n > inside.start), inside.stop)
    nouns = [n for n in inside if n < first_preposition and words[n].tag.startswith("NN")]
    return nouns[-1] if nouns else tops[0] if len(tops) == 1 else inside.stop - 1


def _nominal(word: Word) -> bool:
    return word.tag.startswith("NN") or word.tag in NOMINAL_TAGS or word.relation in NOMINAL_RELATIONS


def _outer_relation(words: Sequence[Word], top: int, head: int) -> str:
    relation, outer = words[top].relation, words[top].head
    if outer == top or relation in NOMINAL_RELATIONS or relation in ("attr", "conj", "poss", "npadvmod"):
        return relation
    if words[outer].tag in ("IN", "TO"):
        return "pobj"
    return "nsubj" if head < outer else "dobj"


def _inner_relation(word: Word, before: bool) -> str:
    if not any(character.isalnum() for character in word.text):
        return "punct"
    known = next((name for tag, name in _RELATIONS.items() if word.tag.startswith(tag)), "dep")
    return known if before or known in ("prep", "cc", "case") else "dep"


def _depth(words: Sequence[Word], index: int) -> int:
    depth = 0
    while words[index].head != index and depth <= len(words):
        index = words[index].head
        depth += 1
    return depth
