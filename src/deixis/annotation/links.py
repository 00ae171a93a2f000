"""Coreference links and chain verification (Entities, section 2.1), as pure functions of the answers given so far.

Captions are processed in order. Each mention of a caption is compared with one mention of every chain built from the
earlier captions, most similar wording first, so at most |M||C| questions are asked. Two mentions of the same caption
are assumed to be different entities, and so are mentions without a common type.

Most links are "same". If a project asks links together (`Settings.link_together`), three or more mentions that are
likely the same entity (`likely_same`) are first shown in one question; only if they are not all the same are they
compared in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from deixis.annotation.answers import Answers
from deixis.annotation.workflow_records import CHAIN, LINK, REVIEW, SAME, Mention, Question
from deixis.text.coreference import content
from deixis.text.entity_types import head_forms

#: The fewest mentions that are asked about together.
SMALLEST_GROUP = 3
#: Types of which captions mostly name a single entity, if each names one.
_SINGLE = frozenset({"people", "animals"})

Mentions = tuple[Mention, ...]


def link_mentions(
    mentions: Sequence[Mention], answers: Answers, *, together: bool = False
) -> tuple[list[Mentions], list[Question]]:
    """The chains of all mention groups whose links are settled, and the next question of every other group.

    Args:
        together: ask first about all mentions that are likely the same entity.
    """
    chains: list[Mentions] = []
    questions = []
    for group in type_groups(mentions):
        linked = _link_group(group, answers, likely_same(group) if together else [])
        if isinstance(linked, Question):
            questions.append(linked)
        else:
            chains += linked
    return chains, questions


def type_groups(mentions: Sequence[Mention]) -> list[list[Mention]]:
    """Groups of mentions connected by common types (a mention can have two). Chains never cross groups."""
    groups: list[tuple[set[str], list[Mention]]] = []
    for mention in mentions:
        types, members = set(mention.types), [mention]
        apart = []
        for group in groups:
            if group[0].isdisjoint(types):
                apart.append(group)
            else:
                types |= group[0]
                members = group[1] + members
        groups = [*apart, (types, members)]
    return [members for _, members in groups]


def likely_same(group: Sequence[Mention]) -> list[Mentions]:
    """Sets of three or more mentions of a type group, of as many captions, that are likely the same entity.

    People and animals: all mentions, if each caption has one. Otherwise the mentions with the same head noun. Of these
    sets, 88 % in the validation split of Flickr30k Entities are one entity.
    """
    if _SINGLE.issuperset(type_ for mention in group for type_ in mention.types) and _can_be_one(group):
        return [tuple(group)]
    by_head: dict[str, list[Mention]] = {}
    for mention in group:
        by_head.setdefault(head_noun(mention.text), []).append(mention)
    return [tuple(members) for members in by_head.values() if _can_be_one(members)]


def _can_be_one(mentions: Sequence[Mention]) -> bool:
    """Whether there are enough mentions to ask together, and never two of one caption."""
    return SMALLEST_GROUP <= len(mentions) == len({mention.caption for mention in mentions})


def link_key(*mentions: Mention) -> str:
    return " ".join([LINK, *sorted(mention.id for mention in mentions)])


def _link_group(
    group: Sequence[Mention], answers: Answers, asked_together: Sequence[Mentions]
) -> list[Mentions] | Question:
    agreed: dict[Mention, int] = {}
    for index, members in enumerate(asked_together):
        judgment = answers.first(link_key(*members))
        if judgment is None:
            return Question(LINK, link_key(*members), tuple(mention.id for mention in members))
        if judgment.answer == SAME:
            agreed |= dict.fromkeys(members, index)
    chains: list[list[Mention]] = []
    for caption in sorted({mention.caption for mention in group}):
        new = [mention for mention in group if mention.caption == caption]
        open_question = _extend_chains(new, chains, answers, agreed)
        if open_question is not None:
            return open_question
    return [tuple(chain) for chain in chains]


def _extend_chains(
    new: list[Mention], chains: list[list[Mention]], answers: Answers, agreed: dict[Mention, int]
) -> Question | None:
    """Add the mentions of one caption to their chains, or to new ones; or return the first open question.

    `agreed` has the set of each mention that was said to be the same as the others of its set.
    """
    placed: dict[int, int] = {}
    used_chains: set[int] = set()
    for row, mention in enumerate(new):
        members = [agreed[mention]] if mention in agreed else []
        column = next((i for i, chain in enumerate(chains) if any(agreed.get(m) in members for m in chain)), None)
        if column is not None and column not in used_chains:
            placed[row] = column
            used_chains.add(column)
    pairs = []
    for row, mention in enumerate(new):
        for column, chain in enumerate(chains):
            comparable = [other for other in chain if not set(other.types).isdisjoint(mention.types)]
            if comparable:
                similarity, other = max(
                    ((wording_similarity(mention.text, other.text), other) for other in comparable),
                    key=lambda pair: pair[0],
                )
                pairs.append((-similarity, row, column, other))
    for _, row, column, other in sorted(pairs, key=lambda pair: pair[:3]):
        if row in placed or column in used_chains:
            continue
        mention = new[row]
        judgment = answers.first(link_key(mention, other))
        if judgment is None:
            return Question(LINK, link_key(mention, other), (other.id, mention.id))
        if judgment.answer == SAME:
            placed[row] = column
            used_chains.add(column)
    for row, mention in enumerate(new):
        if row in placed:
            chains[placed[row]].append(mention)
        else:
            chains.append([mention])
    return None


def verify_chain(
    chain: Mentions, answers: Answers, *, one_opinion: bool = False
) -> tuple[list[Mentions], Question | None]:
    """Verify a chain. Returns the chain, its parts split by head noun, or no chains and the open question.

    A chain that was linked in one question has been seen as a whole. Another worker verifies it then, or nobody if
    `one_opinion` is enough.
    """
    if len(chain) == 1:
        return [chain], None
    ids = tuple(mention.id for mention in chain)
    key = " ".join([CHAIN, *sorted(ids)])
    linked = answers.first(link_key(*chain)) if len(chain) >= SMALLEST_GROUP else None
    if linked is not None and linked.answer == SAME and one_opinion:
        return [chain], None
    judgment = answers.first(key)
    if judgment is None:
        barred = (linked.worker,) if linked is not None and not one_opinion else ()
        return [], Question(CHAIN, key, ids, barred=barred)
    if judgment.answer == SAME:
        return [chain], None
    parts: dict[str, list[Mention]] = {}
    for mention in chain:
        parts.setdefault(head_noun(mention.text), []).append(mention)
    if len(parts) > 1:
        return [tuple(part) for part in parts.values()], None
    # Not one entity, but all head nouns are equal, so a reviewer has to split the chain.
    review = f"{REVIEW} {key}"
    if answers.accepted(review):
        return [chain], None
    reason = f"a worker says these are different things, but all are called “{head_noun(chain[0].text)}”"
    return [], Question(REVIEW, review, ids, reason=reason)


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
