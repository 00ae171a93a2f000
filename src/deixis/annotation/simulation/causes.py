"""Causes of the differences between a replay by perfect workers and the ground truth.

The workflow assumes that mentions of one caption are different entities, and so are mentions without a common type; and
it merges boxes and chains at the end. Differences that none of these explain are counted as unexplained; there should
be none.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from deixis.annotation.merging import MERGE_OVERLAP, merge_overlap
from deixis.annotation.simulation.agreement import Span, chain_of_mentions
from deixis.corpus import Chain, Corpus, Image
from deixis.corpus.boxes import box_array, iou_matrix


def count_causes(annotated: Corpus, truth: Corpus) -> Counter[str]:
    """Number of differences by cause, over all images; `chains` and `boxes` are the totals in the ground truth."""
    causes: Counter[str] = Counter()
    for image in annotated:
        _count_chain_causes(image, truth[image.id], causes)
        _count_box_causes(image, truth[image.id], causes)
    return causes


def _count_chain_causes(image: Image, gold: Image, causes: Counter[str]) -> None:
    predicted, known = chain_of_mentions(image), chain_of_mentions(gold)
    members: dict[str, set[Span]] = {}
    for span, name in known.items():
        members.setdefault(name, set()).add(span)
    types = _mention_types(gold)
    flags = {chain.id: (chain.scene, chain.no_box, bool(chain.boxes)) for chain in image.chains}
    causes["phrases that name two chains"] += sum(len(c.phrases) for c in gold.captions) - len(
        {(n, p.start, p.end) for n, c in enumerate(gold.captions) for p in c.phrases}
    )
    for chain in gold.chains:
        causes["chains"] += 1
        chain_mentions = members.get(chain.id, set())
        if not chain_mentions:
            causes["chain without mention"] += 1
            continue
        parts = {predicted[span] for span in chain_mentions}
        if len(parts) > 1:
            causes[f"chain split: {_split_cause(chain_mentions, types)}"] += 1
        if any(predicted[span] in parts and known[span] != chain.id for span in known):
            causes[f"chain joined with another: {_join_cause(chain, parts, predicted, known, gold)}"] += 1
        if any(flags[part] != (chain.scene, chain.no_box, bool(chain.boxes)) for part in parts):
            both = chain.scene and chain.no_box
            causes["flags: both set in the truth" if both else "flags: unexplained"] += 1


def _split_cause(mentions: set[Span], types: dict[Span, frozenset[str]]) -> str:
    if len({span[0] for span in mentions}) < len(mentions):
        return "two mentions in one caption"
    if any(types[first].isdisjoint(types[second]) for first, second in combinations(mentions, 2)):
        return "two types"
    return "unexplained"


def _join_cause(chain: Chain, parts: set[str], predicted: dict[Span, str], known: dict[Span, str], gold: Image) -> str:
    """`merging` if all joined chains have boxes: chains with equal boxes after merging become one."""
    others = {known[span] for span in known if predicted[span] in parts} - {chain.id}
    return "merging" if chain.boxes and all(gold.chain_boxes(other) for other in others) else "unexplained"


def _count_box_causes(image: Image, gold: Image, causes: Counter[str]) -> None:
    """Perfect workers draw the ground-truth boxes. Merging loses some; boxes that never merge occur twice."""
    causes["boxes"] += len(gold.boxes)
    present, due = Counter(image.boxes), Counter(gold.boxes)
    mentioned = set(chain_of_mentions(gold).values())
    overlap = iou_matrix(box_array(gold.boxes), box_array(gold.boxes)) if gold.boxes else None
    owners: dict[int, list[str]] = {}
    for chain in gold.chains:
        for index in chain.boxes:
            owners.setdefault(index, []).append(chain.id)
    chain_types = {name: frozenset(types) for name, types in gold.chain_types().items()}
    for index, box in enumerate(gold.boxes):
        if present[box]:
            extra = present[box] - due[box]
            if extra > 0 and _never_merge([chain_types[name] for name in owners.get(index, [])]):
                causes["box twice: types that never merge"] += extra
            elif extra > 0:
                causes["box twice: unexplained"] += extra
            present[box] = due[box] = 0
        elif mentioned.isdisjoint(owners.get(index, [])):
            causes["box lost: chain without mention"] += 1
        elif overlap is not None and (overlap[index] >= MERGE_OVERLAP).sum() > 1:
            causes["box lost: merged with a near-equal one"] += 1
        else:
            causes["box lost: unexplained"] += 1


def _never_merge(owners: list[frozenset[str]]) -> bool:
    """Whether some of the chains that share a box have types whose boxes never merge."""
    singles = [frozenset([type_]) for types in owners for type_ in types]
    return any(merge_overlap(first, second) is None for first, second in combinations(singles, 2))


def _mention_types(gold: Image) -> dict[Span, frozenset[str]]:
    return {
        (index, phrase.start, phrase.end): frozenset(phrase.types)
        for index, caption in enumerate(gold.captions)
        for phrase in caption.phrases
    }
