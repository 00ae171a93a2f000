"""Phrase localization: point at the region that a phrase names (paper 0, section 3; paper 1, section 4).

The proposals of an image are ranked for each phrase of its captions. Recall@K is the percentage of phrases with a
right proposal among the first K; right means an intersection over union of at least 0.5 with the phrase's box. Boxes
of a plural phrase are merged into one, or, as a rule of its own, any of them will do. A right proposal ranks behind
every wrong one with the same score. The proposals' own recall, an upper bound, stands beside every row.

Counted as in paper 0, Table 2: a phrase with two types counts under both and therefore twice in the overall row
(14,558 instances in the test split of the release are 14,481 phrases). Phrases without a box are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from deixis.corpus.boxes import Boxes, box_array
from deixis.corpus.records import TYPES, Caption, Image, Phrase
from deixis.errors import DeixisError
from deixis.metrics.box_recall import Rule, proposal_ranks
from deixis.metrics.paper_tables import paper_tables
from deixis.model import Localized as Localized

#: The token spans (start, end) of the phrases that a parser finds in a caption.
PhraseFinder = Callable[[Caption], Collection[tuple[int, int]]]

#: Words that Table 3 of paper 0 leaves off a phrase ("a man", "this man" and "one man" are its "man"). With these the
#: table's 24 phrases come out at most 8 off, "man" with 1,095 of 1,100.
DETERMINERS = frozenset(
    {"a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "its", "our", "their"}
) | {"another", "other", "some", "one", "each", "every", "any", "both", "all", "no"}


class PhraseQuery(NamedTuple):
    """A phrase to localize, with the caption it stands in, for models that read the context."""

    caption: Caption
    phrase: Phrase

    @property
    def text(self) -> str:
        return self.caption.phrase_text(self.phrase)


#: Scores an image's proposals for some phrases.
Localizer = Callable[[Image, Sequence[PhraseQuery]], Localized]


@dataclass(frozen=True)
class LocalizationRow:
    """One column of Table 2 or 3 of paper 0. Recalls and the upper bound are percentages."""

    instances: int
    recall: dict[int, float]
    upper_bound: float
    #: Average precision after suppression, where it was asked for (`deixis.metrics.phrase_detection`).
    ap_nms: float | None = None

    def as_dict(self) -> dict[str, Any]:
        recall = {f"r@{k}": value for k, value in self.recall.items()}
        precision = {} if self.ap_nms is None else {"ap_nms": self.ap_nms}
        return {"instances": self.instances, **precision, **recall, "upper_bound": self.upper_bound}


@dataclass(frozen=True)
class Localization:
    """Recalls over all instances, by type and by phrase, and what was left out."""

    overall: LocalizationRow
    by_type: dict[str, LocalizationRow]
    #: By phrase without its determiner, the most frequent first.
    by_phrase: dict[str, LocalizationRow]
    #: Phrases with a box, visual phrases without one (left out), and those with one that the parser did not find.
    phrases: int
    without_box: int
    not_found: int

    def as_dict(self, frequent: int = 24) -> dict[str, Any]:
        """All figures, with the rows of the `frequent` most frequent phrases, and of the 24 in Table 3 of paper 0."""
        kept = {*list(self.by_phrase)[:frequent], *_phrases_of_table_3()}
        return {
            "overall": self.overall.as_dict(),
            "by_type": {name: row.as_dict() for name, row in self.by_type.items()},
            "by_phrase": {name: row.as_dict() for name, row in self.by_phrase.items() if name in kept},
        }


def _phrases_of_table_3() -> set[str]:
    return {str(row.at).removeprefix("localization.by_phrase.") for row in paper_tables()["entities-cca/table3"].rows}


def evaluate_localization(
    images: Iterable[Image],
    localize: Localizer,
    *,
    rule: Rule = "merged",
    recall_at: Sequence[int] = (1, 5, 10),
    threshold: float = 0.5,
    find_phrases: PhraseFinder | None = None,
) -> Localization:
    """Localize every phrase of the captions that has a box.

    Args:
        images: the split, read once; one image at a time is in memory.
        localize: gives an image's proposals and their scores for its phrases.
        rule: hold a proposal to the merged box or to any box of a phrase.
        recall_at: the K of the recalls.
        threshold: the intersection over union from which a proposal is right.
        find_phrases: finds phrases in a caption; a phrase whose exact span it does not find counts as missed (paper 0,
            section 3.2). Without it, gold phrases are localized.
    """
    tally = _Tally()
    for image in images:
        queries, gold = gold_queries(image)
        tally.without_box += sum(phrase.visual for caption in image.captions for phrase in caption.phrases) - len(gold)
        if not queries:
            continue
        boxes, scores = checked(image, queries, localize(image, queries))
        ranks = proposal_ranks(boxes, scores, gold, rule=rule, threshold=threshold)
        spans = {}
        if find_phrases is not None:
            spans = {caption: {(start, end) for start, end in find_phrases(caption)} for caption in image.captions}
        for query, rank in zip(queries, ranks.tolist(), strict=True):
            span = (query.phrase.start, query.phrase.end)
            tally.add(query, rank, found=find_phrases is None or span in spans[query.caption])
    return tally.localization(recall_at)


def gold_queries(image: Image) -> tuple[list[PhraseQuery], list[Boxes]]:
    """The phrases of an image that have a box, and the boxes of each, `(boxes, 4)`."""
    boxes = {chain.id: box_array(image.boxes[number] for number in chain.boxes) for chain in image.chains}
    queries = [
        PhraseQuery(caption, phrase)
        for caption in image.captions
        for phrase in caption.phrases
        if phrase.visual and len(boxes[phrase.chain])
    ]
    return queries, [boxes[query.phrase.chain] for query in queries]


def phrase_key(text: str) -> str:
    """A phrase without case and leading determiners, under which Table 3 of paper 0 counts it: "A man" is "man"."""
    words = text.lower().split()
    while len(words) > 1 and words[0] in DETERMINERS:
        words = words[1:]
    return " ".join(words)


def checked(image: Image, queries: Sequence[PhraseQuery], answer: Localized) -> Localized:
    """A localizer's answer as arrays, or a `DeixisError` that names the image and the phrase at fault."""
    boxes, scores = np.asarray(answer.boxes, np.float64), np.asarray(answer.scores)
    expected = (len(queries), boxes.shape[-2]) if boxes.ndim in (2, 3) else None
    if boxes.shape[-1:] != (4,) or scores.shape != expected or boxes.shape[:-2] not in ((), (len(queries),)):
        raise DeixisError(
            f"image {image.id}: the localizer gave boxes of shape {boxes.shape} and scores of shape {scores.shape} "
            f"for {len(queries)} phrases"
        )
    wrong = np.argwhere(~(scores < np.inf))
    if len(wrong):
        query, proposal = wrong[0]
        value = scores[query, proposal]
        raise DeixisError(f"image {image.id}: the score of {queries[query].text!r} at proposal {proposal} is {value}")
    wrong = np.argwhere(~np.isfinite(boxes).all(axis=-1))
    if len(wrong):
        place = tuple(wrong[0])
        raise DeixisError(f"image {image.id}: proposal {place[-1]} is not a box: {boxes[place].tolist()}")
    return Localized(boxes, scores)


@dataclass
class _Tally:
    """The rank of every phrase so far, 0 for missed."""

    texts: list[str] = field(default_factory=list)
    types: list[tuple[str, ...]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    without_box: int = 0
    not_found: int = 0

    def add(self, query: PhraseQuery, rank: int, *, found: bool) -> None:
        self.texts.append(phrase_key(query.text))
        self.types.append(query.phrase.types)
        self.ranks.append(rank if found else 0)
        self.covered.append(rank > 0)
        self.not_found += not found

    def localization(self, recall_at: Sequence[int]) -> Localization:
        if not self.ranks:
            raise DeixisError("nothing to localize: no phrase of these images has a box")

        def row(chosen: Sequence[int]) -> LocalizationRow:
            ranks = np.array([self.ranks[number] for number in chosen])
            recall = {k: 100 * float(np.mean((ranks > 0) & (ranks <= k))) for k in recall_at}
            return LocalizationRow(
                len(chosen), recall, 100 * float(np.mean([self.covered[number] for number in chosen]))
            )

        by_type: dict[str, list[int]] = {name: [] for name in TYPES}
        by_phrase: dict[str, list[int]] = {}
        instances: list[int] = []
        for number, (text, types) in enumerate(zip(self.texts, self.types, strict=True)):
            by_phrase.setdefault(text, []).append(number)
            instances += [number] * max(1, len(types))
            for name in types:
                by_type.setdefault(name, []).append(number)
        frequent = sorted(by_phrase.items(), key=lambda item: (-len(item[1]), item[0]))
        return Localization(
            overall=row(instances),
            by_type={name: row(chosen) for name, chosen in by_type.items() if chosen},
            by_phrase={text: row(chosen) for text, chosen in frequent},
            phrases=len(self.ranks),
            without_box=self.without_box,
            not_found=self.not_found,
        )
