"""Precision and recall of found phrases, phrase types and trees, compared with the phrases of a corpus.

All phrases of the corpus count, non-visual ones included ("the background" is a chunk); `visual` compares only phrases
linked to a chain with found ones that have a visual type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from deixis.corpus.records import NOT_VISUAL, Caption
from deixis.corpus.spans import Span
from deixis.errors import DeixisError
from deixis.text.trees import Tree

#: Phrases of this many tokens or more are counted together.
LONGEST = 6


@dataclass(frozen=True)
class SpanScore:
    """The numbers of correct, found and ground-truth spans."""

    right: int
    found: int
    gold: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.gold) if self.found + self.gold else 0.0

    def figures(self) -> dict[str, float]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


@dataclass(frozen=True)
class ChunkingScore:
    """Scores over all captions; `by_length` counts found and ground-truth spans each under their own length."""

    overall: SpanScore
    visual: SpanScore
    by_length: dict[str, SpanScore]
    captions: int
    #: The number of captions in which all phrases are correct and none is missing.
    whole: int

    def figures(self) -> dict[str, Any]:
        by_length = {length: score.figures() for length, score in self.by_length.items()}
        shares = {"overall": self.overall.figures(), "visual": self.visual.figures(), "by_length": by_length}
        return {**shares, "captions_all_right": self.whole / self.captions if self.captions else 0.0}


def score_chunking(
    pairs: Iterable[tuple[Caption, Sequence[Span], Sequence[tuple[str, ...]]]],
) -> ChunkingScore:
    """Compare found phrases with the phrases of the captions.

    Args:
        pairs: captions, the spans found in each, and the types given to each span.
    """
    right: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    captions = whole = 0
    for caption, spans, types in pairs:
        gold_spans = {(phrase.start, phrase.end) for phrase in caption.phrases}
        own_visual = {(phrase.start, phrase.end) for phrase in caption.phrases if phrase.visual}
        visual = {span for span, names in zip(spans, types, strict=True) if names != (NOT_VISUAL,)}
        for counts, chosen, chosen_visual in (
            (gold, gold_spans, own_visual),
            (predicted, set(spans), visual),
            (right, gold_spans.intersection(spans), own_visual & visual),
        ):
            counts.update(["overall"] * len(chosen) + ["visual"] * len(chosen_visual))
            counts.update(_length(span) for span in chosen)
        captions += 1
        whole += gold_spans == set(spans)
    scores = {name: SpanScore(right[name], predicted[name], gold[name]) for name in predicted | gold}
    empty = SpanScore(0, 0, 0)
    overall, visual_score = scores.pop("overall", empty), scores.pop("visual", empty)
    return ChunkingScore(overall, visual_score, dict(sorted(scores.items())), captions, whole)


def _length(span: Span) -> str:
    length = span[1] - span[0]
    return str(length) if length < LONGEST else f"{LONGEST}+"


def score_nodes(pairs: Iterable[tuple[Caption, Tree]]) -> dict[str, float]:
    """Compare trees with the captions' phrases.

    Returns:
        Shares of the phrases: `np` have a noun phrase over exactly their words, `node` any node; `crossed` are partly
        inside and partly outside some node.
    """
    exact = over = crossed = phrases = 0
    for caption, tree in pairs:
        spans = {node.span for node in tree.subtrees()}
        noun_phrases = set(tree.spans("NP"))
        for phrase in caption.phrases:
            phrase_span = (phrase.start, phrase.end)
            phrases += 1
            exact += phrase_span in noun_phrases
            over += phrase_span in spans
            crossed += any(_cross(phrase_span, span) for span in spans)
    if not phrases:
        raise DeixisError("the captions have no phrases")
    return {"np": exact / phrases, "node": over / phrases, "crossed": crossed / phrases}


def _cross(one: Span, other: Span) -> bool:
    return one[0] < other[0] < one[1] < other[1] or other[0] < one[0] < other[1] < one[1]


def score_types(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> dict[str, float | dict[str, float]]:
    """Compare the types of phrases with predicted types.

    Args:
        pairs: for each phrase its types and the predicted ones.

    Returns:
        Shares of the phrases: `exact` got exactly their types, `any` at least one of them; `by_type` is the share of
        a type's phrases that got it.
    """
    exact = some = phrases = 0
    right: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    for true_types, predicted in pairs:
        both = set(true_types) & set(predicted)
        exact += set(true_types) == set(predicted)
        some += bool(both)
        phrases += 1
        right.update(both)
        gold.update(true_types)
    if not phrases:
        raise DeixisError("no phrase has a type")
    by_type = {name: right[name] / count for name, count in sorted(gold.items())}
    return {"exact": exact / phrases, "any": some / phrases, "by_type": by_type}
