"""Merges boxes, then chains, of an annotated image (Entities, section 2.3).

Boxes are drawn per chain, so the bride's box is drawn again for the couple. Boxes of different chains with an IoU of at
least 0.8 (0.9 if one of them has type `other`) become one; then chains with the same boxes become one. The paper names
one restriction: people and clothing do not merge. The other restrictions are taken from the released data, where
near-equal boxes stay separate between people or animals and clothing or body parts, and hardly anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deixis.corpus import Box
from deixis.corpus.boxes import box_array, iou_matrix

MERGE_OVERLAP = 0.8
MERGE_OVERLAP_OTHER = 0.9
#: Boxes of people and animals never merge with those of clothing and body parts.
_WEARERS = frozenset({"people", "animals"})
_WORN = frozenset({"clothing", "bodyparts"})


@dataclass(frozen=True)
class MergedChains:
    """`boxes` of the image; for each merged chain, the indexes of its original chains and of its boxes."""

    boxes: tuple[Box, ...]
    chains: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def equal_boxes(boxes: Sequence[Sequence[Box]]) -> list[tuple[int, int]]:
    """Pairs of chains that have equally many boxes, each with an IoU of at least 0.8 with one of the other's."""
    pairs = []
    for second, second_boxes in enumerate(boxes):
        for first in range(second if second_boxes else 0):
            if len(boxes[first]) == len(second_boxes):
                overlap = iou_matrix(box_array(boxes[first]), box_array(second_boxes)) >= MERGE_OVERLAP
                if overlap.any(0).all() and overlap.any(1).all():
                    pairs.append((first, second))
    return pairs


def merge_overlap(types: frozenset[str], others: frozenset[str]) -> float | None:
    """The IoU from which boxes of chains with these types merge; None if they never do."""
    for one, another in ((types, others), (others, types)):
        if one & _WEARERS and another & _WORN and one != another:
            return None
    return MERGE_OVERLAP_OTHER if "other" in types | others else MERGE_OVERLAP


def merge_chains(boxes: Sequence[Sequence[Box]], types: Sequence[frozenset[str]]) -> MergedChains:
    """Merge the boxes of an image's chains, then the chains. `boxes` and `types` have one entry per chain."""
    owners = [chain for chain, members in enumerate(boxes) for _ in members]
    flat = [box for members in boxes for box in members]
    cluster = _cluster(flat, owners, types)
    keepers = _keepers(flat, cluster)
    new_index = {old: new for new, old in enumerate(sorted(set(keepers.values())))}
    chain_boxes: list[set[int]] = [set() for _ in boxes]
    for index, chain in enumerate(owners):
        chain_boxes[chain].add(new_index[keepers[cluster[index]]])
    return MergedChains(tuple(flat[old] for old in new_index), _merge_equal_chains(chain_boxes, types))


def _cluster(flat: Sequence[Box], owners: Sequence[int], types: Sequence[frozenset[str]]) -> list[int]:
    """The cluster of each box. Pairs with the largest IoU join first, and all pairs in a cluster must be mergeable.

    Two boxes of one chain never merge: Box Quality accepted them as boxes of different things.
    """
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
    """The box kept for each cluster: the one with the largest total IoU with the others. Ties go by corners."""
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


def _merge_equal_chains(
    chain_boxes: Sequence[set[int]], types: Sequence[frozenset[str]]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Merge chains that have exactly the same boxes and types that may merge. Chains without boxes stay."""
    merged: list[tuple[list[int], set[int]]] = []
    for chain, box_set in enumerate(chain_boxes):
        for members, merged_set in merged:
            if (
                box_set
                and box_set == merged_set
                and all(merge_overlap(types[chain], types[m]) is not None for m in members)
            ):
                members.append(chain)
                break
        else:
            merged.append(([chain], box_set))
    return tuple((tuple(members), tuple(sorted(box_set))) for members, box_set in merged)
