"""Merging boxes, then chains, once an image is annotated (the Entities paper, section 2.3).

Drawing works chain by chain, so the bride's box is drawn again for the couple. Boxes of different chains that overlap
by at least 0.8 (0.9 where one of them is of type `other`) become one, then chains with the same boxes become one. The
paper names one restriction: people and clothing do not merge. The release shows the others: near-equal boxes were left
apart between people or animals and clothing or body parts, and hardly anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deixis.corpus import Box
from deixis.corpus.boxes import box_array, iou_matrix

MERGE_OVERLAP = 0.8
MERGE_OVERLAP_OTHER = 0.9
#: A box of the first kind never merges with one of the second, whatever they overlap.
_BEARERS = frozenset({"people", "animals"})
_BORNE = frozenset({"clothing", "bodyparts"})


@dataclass(frozen=True)
class MergedChains:
    """`boxes` of the image; for each merged chain its members (numbers of the chains given) and its boxes' numbers."""

    boxes: tuple[Box, ...]
    chains: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def merge_overlap(types: frozenset[str], others: frozenset[str]) -> float | None:
    """The overlap at which boxes of chains with these types are one; None where they never are."""
    for one, another in ((types, others), (others, types)):
        if one & _BEARERS and another & _BORNE and one != another:
            return None
    return MERGE_OVERLAP_OTHER if "other" in types | others else MERGE_OVERLAP


def merge_chains(boxes: Sequence[Sequence[Box]], types: Sequence[frozenset[str]]) -> MergedChains:
    """Merge the boxes of an image's chains, given chain by chain with the chains' types."""
    owners = [chain for chain, own in enumerate(boxes) for _ in own]
    flat = [box for own in boxes for box in own]
    cluster = _cluster(flat, owners, types)
    keepers = _keepers(flat, cluster)
    order = {kept: number for number, kept in enumerate(sorted(set(keepers.values())))}
    own_boxes: list[set[int]] = [set() for _ in boxes]
    for index, chain in enumerate(owners):
        own_boxes[chain].add(order[keepers[cluster[index]]])
    return MergedChains(tuple(flat[kept] for kept in order), _equal_sets(own_boxes, types))


def _cluster(flat: Sequence[Box], owners: Sequence[int], types: Sequence[frozenset[str]]) -> list[int]:
    """Each box's cluster. The best overlaps join first; all boxes of a cluster overlap enough and none share a chain:
    two boxes of one chain passed Box Quality side by side, so they are two things."""
    overlap = iou_matrix(box_array(flat), box_array(flat)) if flat else None
    pairs = []
    for first in range(len(flat)):
        for second in range(first + 1, len(flat)):
            assert overlap is not None
            if _may_merge(first, second, overlap[first, second], owners, types):
                corners = sorted(msgspec.structs.astuple(flat[index]) for index in (first, second))
                pairs.append((-overlap[first, second], corners, first, second))
    cluster = list(range(len(flat)))
    members = {index: [index] for index in cluster}
    joinable = {(first, second) for *_, first, second in pairs}
    for *_, first, second in sorted(pairs):
        left, right = cluster[first], cluster[second]
        if left != right and all((min(a, b), max(a, b)) in joinable for a in members[left] for b in members[right]):
            for index in members.pop(right):
                cluster[index] = left
                members[left].append(index)
    return cluster


def _may_merge(first: int, second: int, overlap: float, owners: Sequence[int], types: Sequence[frozenset[str]]) -> bool:
    if owners[first] == owners[second] or overlap < MERGE_OVERLAP:
        return False
    needed = merge_overlap(types[owners[first]], types[owners[second]])
    return needed is not None and overlap >= needed


def _keepers(flat: Sequence[Box], cluster: Sequence[int]) -> dict[int, int]:
    """The box that stands for each cluster: the one that overlaps the others most; of equals, by its corners."""
    members: dict[int, list[int]] = {}
    for index, name in enumerate(cluster):
        members.setdefault(name, []).append(index)
    keepers = {}
    for name, indexes in members.items():
        array = box_array([flat[index] for index in indexes])
        nearness = iou_matrix(array, array).sum(1).round(9)
        ranked = zip(nearness, map(msgspec.structs.astuple, (flat[index] for index in indexes)), indexes, strict=True)
        keepers[name] = max(ranked)[-1]
    return keepers


def _equal_sets(
    own_boxes: Sequence[set[int]], types: Sequence[frozenset[str]]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Chains that point to exactly the same boxes, and may merge by type, are one; chains without boxes stay."""
    merged: list[tuple[list[int], set[int]]] = []
    for chain, own in enumerate(own_boxes):
        for members, known in merged:
            if own and own == known and all(merge_overlap(types[chain], types[m]) is not None for m in members):
                members.append(chain)
                break
        else:
            merged.append(([chain], own))
    return tuple((tuple(members), tuple(sorted(own))) for members, own in merged)
