"""Phrase localization over a corpus (Flickr30k Entities, section 3; two-branch networks, section 4).

The proposals of an image are ranked for each phrase of its captions, and `deixis.metrics.box_recall` says at which rank
the first correct one is. The proposals' upper bound is part of every row.

Counted as in Table 2 of Flickr30k Entities: a phrase with two types counts under both and therefore twice in the
overall row (the 14,558 instances of the test split are 14,481 phrases). Phrases without a box are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from deixis.corpus.boxes import Boxes, box_array, iou_matrix, merge
from deixis.corpus.records import TYPES, Caption, Image, Phrase
from deixis.errors import DeixisError
from deixis.metrics.box_recall import Rule, proposal_ranks
from deixis.metrics.paper_tables import paper_tables
from deixis.metrics.score_blocks import Integers
from deixis.model import Localized as Localized

#: The token spans (start, end) of the phrases that a parser finds in a caption.
PhraseFinder = Callable[[Caption], Collection[tuple[int, int]]]

#: Words that Table 3 of Flickr30k Entities leaves off a phrase ("a man", "this man" and "one man" are its "man"). With
#: these the counts of the table's 24 phrases differ by at most 8; "man" has 1,095 instead of 1,100.
DETERMINERS = frozenset(
    {"a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "its", "our", "their"}
) | {"another", "other", "some", "one", "each", "every", "any", "both", "all", "no"}


class PhraseQuery(NamedTuple):
    """A phrase to localize, with its caption for models that read the context."""

    caption: Caption
    phrase: Phrase

    @property
    def text(self) -> str:
        return self.caption.phrase_text(self.phrase)


#: Scores an image's proposals for some phrases.
Localizer = Callable[[Image, Sequence[PhraseQuery]], Localized]


@dataclass(frozen=True)
class LocalizationRow:
    """One column of Table 2 or 3 of Flickr30k Entities. Recalls and the upper bound are percentages."""

    instances: int
    recall: dict[int, float]
    upper_bound: float
    #: Average precision after suppression, where it was computed (`deixis.metrics.phrase_detection`).
    ap_nms: float | None = None

    def as_dict(self) -> dict[str, Any]:
        recall = {f"r@{k}": value for k, value in self.recall.items()}
        precision = {} if self.ap_nms is None else {"ap_nms": self.ap_nms}
        return {"instances": self.instances, **precision, **recall, "upper_bound": self.upper_bound}


#: Why the best box of a phrase is wrong, in this order: it belongs to another phrase of the caption; it encloses the
#: phrase's box, or is inside it; otherwise by its IoU with the phrase's box.
FAILURES = ("other_phrase", "encloses", "enclosed", "overlap_0.3_to_0.5", "overlap_0.1_to_0.3", "overlap_below_0.1")


@dataclass(frozen=True)
class Localization:
    """Recalls over all instances, by type and by phrase, and what was left out."""

    overall: LocalizationRow
    by_type: dict[str, LocalizationRow]
    #: By phrase without its determiner, the most frequent first.
    by_phrase: dict[str, LocalizationRow]
    #: Counts: phrases with a box; visual phrases without one, which are left out; phrases the parser did not find.
    phrases: int
    without_box: int
    not_found: int
    #: Shares of the wrong best boxes in percent, by `FAILURES`; empty if none is wrong.
    failures: dict[str, float]

    def as_dict(self, frequent: int = 24) -> dict[str, Any]:
        """All figures, with the rows of the `frequent` most frequent phrases, and of the 24 in the paper's Table 3.

        With `frequent` 0 there are no rows of phrases. With AP, `perfect_phrases` counts the phrases whose AP is 100,
        and says how often the most frequent one occurs.
        """
        shown = {*list(self.by_phrase)[:frequent], *_phrases_of_table_3()} if frequent else set()
        by_phrase = {name: row.as_dict() for name, row in self.by_phrase.items() if name in shown}
        precise = [row for row in self.by_phrase.values() if row.ap_nms is not None]
        perfect = [row.instances for row in precise if row.ap_nms == 100]
        # The paper: 436 phrases, which occur seven times or less.
        remark = {"perfect_phrases": {"count": len(perfect), "most_instances": max(perfect, default=0)}}
        return {
            "overall": self.overall.as_dict(),
            "by_type": {name: row.as_dict() for name, row in self.by_type.items()},
            **({"by_phrase": by_phrase} if shown else {}),
            "failures": self.failures,
            **(remark if precise else {}),
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
        rule: merge the boxes of a plural phrase into one, or accept any of them.
        recall_at: the values of K.
        threshold: the smallest IoU that counts as a hit.
        find_phrases: finds phrases in a caption; a ground-truth phrase whose exact span it does not find counts as
            missed (Flickr30k Entities, section 3.2). Without it, ground-truth phrases are localized.
    """
    tally = _Tally()
    for image in images:
        queries, gold = gold_queries(image)
        tally.without_box += sum(phrase.visual for caption in image.captions for phrase in caption.phrases) - len(gold)
        if not queries:
            continue
        boxes, scores = checked(image, queries, localize(image, queries))
        ranks = proposal_ranks(boxes, scores, gold, rule=rule, threshold=threshold)
        tally.failures.update(_failures(queries, boxes, scores, gold, ranks, threshold))
        spans = {}
        if find_phrases is not None:
            spans = {caption: {(start, end) for start, end in find_phrases(caption)} for caption in image.captions}
        for query, rank in zip(queries, ranks.tolist(), strict=True):
            span = (query.phrase.start, query.phrase.end)
            tally.add(query, rank, phrase_found=find_phrases is None or span in spans[query.caption])
    return tally.localization(recall_at)


def _failures(
    queries: Sequence[PhraseQuery],
    boxes: Boxes,
    scores: Boxes,
    gold: Sequence[Boxes],
    ranks: Integers,
    threshold: float,
) -> list[str]:
    """Why the best box of each phrase whose rank is not 1 is wrong, by `FAILURES`.

    As the authors' released evaluation sorts them: phrases of the same caption, boxes of a plural phrase merged.
    """
    merged = np.array([merge(gold_boxes) for gold_boxes in gold])
    failures = []
    for index in np.flatnonzero(ranks != 1).tolist():
        if not scores.shape[1]:
            continue
        candidates, truth = (boxes if boxes.ndim == 2 else boxes[index]), merged[index]
        # Ties count against the model: of several best boxes a wrong one, always the same.
        tied = candidates[scores[index] == scores[index].max()]
        wrong = tied[iou_matrix(tied, truth[None])[:, 0] < threshold]
        best = np.array(min(map(tuple, wrong if len(wrong) else tied)))
        others = [
            other
            for other, query in enumerate(queries)
            if query.caption is queries[index].caption and query.phrase.chain != queries[index].phrase.chain
        ]
        overlap = float(iou_matrix(best[None], truth[None])[0, 0])
        if others and iou_matrix(best[None], merged[others]).max() >= threshold:
            failures.append("other_phrase")
        elif (best[:2] <= truth[:2]).all() and (best[2:] >= truth[2:]).all():
            failures.append("encloses")
        elif (best[:2] >= truth[:2]).all() and (best[2:] <= truth[2:]).all():
            failures.append("enclosed")
        elif overlap >= 0.3:
            failures.append("overlap_0.3_to_0.5")
        else:
            failures.append("overlap_0.1_to_0.3" if overlap >= 0.1 else "overlap_below_0.1")
    return failures


def gold_queries(image: Image) -> tuple[list[PhraseQuery], list[Boxes]]:
    """The phrases of an image that have a box, and the boxes of each, `(boxes, 4)`."""
    boxes = {chain.id: box_array(image.boxes[index] for index in chain.boxes) for chain in image.chains}
    queries = [
        PhraseQuery(caption, phrase)
        for caption in image.captions
        for phrase in caption.phrases
        if phrase.visual and len(boxes[phrase.chain])
    ]
    return queries, [boxes[query.phrase.chain] for query in queries]


def phrase_key(text: str) -> str:
    """A phrase in lower case without leading determiners, as Table 3 of Flickr30k Entities counts it.

    >>> phrase_key("A red shirt")
    'red shirt'
    """
    words = text.lower().split()
    while len(words) > 1 and words[0] in DETERMINERS:
        words = words[1:]
    return " ".join(words)


def checked(image: Image, queries: Sequence[PhraseQuery], answer: Localized) -> Localized:
    """A localizer's answer as arrays, or a `DeixisError` that names the image and the phrase."""
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
        index = tuple(wrong[0])
        raise DeixisError(f"image {image.id}: proposal {index[-1]} is not a box: {boxes[index].tolist()}")
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
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, query: PhraseQuery, rank: int, *, phrase_found: bool) -> None:
        self.texts.append(phrase_key(query.text))
        self.types.append(query.phrase.types)
        self.ranks.append(rank if phrase_found else 0)
        self.covered.append(rank > 0)
        self.not_found += not phrase_found

    def localization(self, recall_at: Sequence[int]) -> Localization:
        if not self.ranks:
            raise DeixisError("nothing to localize: no phrase of these images has a box")

        def row(chosen: Sequence[int]) -> LocalizationRow:
            ranks = np.array([self.ranks[index] for index in chosen])
            recall = {k: 100 * float(np.mean((ranks > 0) & (ranks <= k))) for k in recall_at}
            return LocalizationRow(len(chosen), recall, 100 * float(np.mean([self.covered[index] for index in chosen])))

        by_type: dict[str, list[int]] = {name: [] for name in TYPES}
        by_phrase: dict[str, list[int]] = {}
        instances: list[int] = []
        for index, (text, types) in enumerate(zip(self.texts, self.types, strict=True)):
            by_phrase.setdefault(text, []).append(index)
            instances += [index] * max(1, len(types))
            for name in types:
                by_type.setdefault(name, []).append(index)
        frequent = sorted(by_phrase.items(), key=lambda item: (-len(item[1]), item[0]))
        return Localization(
            overall=row(instances),
            by_type={name: row(chosen) for name, chosen in by_type.items() if chosen},
            by_phrase={text: row(chosen) for text, chosen in frequent},
            phrases=len(self.ranks),
            without_box=self.without_box,
            not_found=self.not_found,
            failures={
                name: 100 * self.failures[name] / self.failures.total() for name in FAILURES if self.failures.total()
            },
        )
