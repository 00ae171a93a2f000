"""Coreference links and chain verification (Entities, section 2.1), as pure functions of the answers given so far.

Captions are processed in order. Each mention of a caption is compared with one mention of every chain built from the
earlier captions, most similar wording first, so at most |M||C| questions are asked. Two mentions of the same caption
are assumed to be different entities, and so are mentions without a common type.
"""

from __future__ import annotations

from collections.abc import Sequence

from deixis.annotation.answers import Answers
from deixis.annotation.wording import head_noun, wording_similarity
from deixis.annotation.workflow_records import CHAIN, LINK, REVIEW, SAME, Mention, Question

Mentions = tuple[Mention, ...]


def link_mentions(mentions: Sequence[Mention], answers: Answers) -> tuple[list[Mentions], list[Question]]:
    """The chains of all mention groups whose links are settled, and the next question of every other group."""
    chains: list[Mentions] = []
    questions = []
    for group in type_groups(mentions):
        linked = _link_group(group, answers)
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


def link_key(first: Mention, second: Mention) -> str:
    return " ".join([LINK, *sorted((first.id, second.id))])


def _link_group(group: Sequence[Mention], answers: Answers) -> list[Mentions] | Question:
    chains: list[list[Mention]] = []
    for caption in sorted({mention.caption for mention in group}):
        new = [mention for mention in group if mention.caption == caption]
        open_question = _extend_chains(new, chains, answers)
        if open_question is not None:
            return open_question
    return [tuple(chain) for chain in chains]


def _extend_chains(new: list[Mention], chains: list[list[Mention]], answers: Answers) -> Question | None:
    """Add the mentions of one caption to their chains, or to new ones; or return the first open question."""
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
    placed: dict[int, int] = {}
    used_chains: set[int] = set()
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


def verify_chain(chain: Mentions, answers: Answers) -> tuple[list[Mentions], Question | None]:
    """Verify a chain. Returns the chain, its parts split by head noun, or no chains and the open question."""
    if len(chain) == 1:
        return [chain], None
    ids = tuple(mention.id for mention in chain)
    key = " ".join([CHAIN, *sorted(ids)])
    judgment = answers.first(key)
    if judgment is None:
        return [], Question(CHAIN, key, ids)
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
    reason = "said not to be one entity, but all mentions have the same head noun"
    return [], Question(REVIEW, review, ids, reason=reason)
