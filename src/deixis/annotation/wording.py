"""Similarity of wording, which decides the order of link questions, and head nouns, by which chains are split.

See Entities, section 2.1.
"""

from __future__ import annotations

from functools import lru_cache

from deixis.text.coreference import content
from deixis.text.entity_types import head_forms


def head_noun(text: str) -> str:
    """The last word of a chunk, in lower case."""
    return text.lower().rsplit(maxsplit=1)[-1]


@lru_cache(maxsize=1 << 18)
def wording_similarity(first: str, second: str) -> float:
    """1 for the same words, at least 0.5 for the same head noun (plural equals singular), 0 for no common word.

    >>> wording_similarity("a dog", "The dog"), wording_similarity("a brown dog", "two dogs")
    (1.0, 0.5)
    """
    words, others = _content(first), _content(second)
    shared = len(words & others) / max(len(words | others), 1)
    same_head = not _head_forms(first).isdisjoint(_head_forms(second))
    return (0.5 + 0.5 * shared) if same_head else 0.5 * shared


@lru_cache(maxsize=1 << 16)
def _content(text: str) -> frozenset[str]:
    return frozenset(content(text.lower().split()))


@lru_cache(maxsize=1 << 16)
def _head_forms(text: str) -> frozenset[str]:
    return frozenset(head_forms(head_noun(text)))
