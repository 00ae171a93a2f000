"""Whether search is right about what matches and what is absent; `photo_search.py` runs it.

Matches. Asked for are COCO's 80 classes, over those pictures of COCO-mini that have boxes (complete truth), and the
nouns that captions of at least ten pictures have (incomplete: captions leave things out). The F1 of what is called a
match is compared with that of the best cut of the same ranking, which knows the truth.

Absence. Collections of 200, 1,000 and 3,000 pictures are asked for what their captions mention and what they do not:

phrases    noun phrases of the collection's own captions; and of the other corpus' captions, those whose last word the
           collection's captions do not have in either number
words      frequent words that at least three pictures' captions have, and those that none has
rare words rarer nouns, which the model hardly knows, that two captions of a picture have, and those that none has
pairs      phrases of two words ("red bus"), and such words that the captions have apart, but in no caption together; at
           least five pictures have each of the words

With as many absent as present queries, `precision_of_absent` is how often "absent" is right, `right` how often either
answer is; `right_equally_common` weights the queries so that absent ones are as common words as present ones. Where a
split has too few pictures, the rest are training pictures, and `training_pictures` counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from photo_collections import Bools, Collection, Trial

from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.phrasing import phrasing, telling_words
from deixis.adapters.search_model import Floats
from deixis.corpus import Image, training_set
from deixis.search.bundle_calibration import drawn, fitted_on, validation_pictures
from deixis.search.calibration import PAIR_MATCHES, alike_weights, modified_pairs
from deixis.search.caption_queries import caption_matches, frequent_words, names_in, noun_phrases, rare_words
from deixis.search.engine import Ranking
from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of

#: Pictures of the collections that are asked for what is absent, and how many of the smallest are drawn.
SIZES, DRAWS = (200, 1000, 3000), 3
#: Pictures that a noun needs to be asked for, and phrases of either kind at most.
MATCHES, PHRASES = 10, 1000
#: A noun is an everyday one if it is among so many of the most frequent words.
EVERYDAY = 1000
#: Queries by how many pictures match.
FREQUENCIES = ((1, 9), (10, 29), (30, 99), (100, 10**6))
#: Queries asked together.
TOGETHER = 64


def measure(trial: Trial) -> dict[str, Any]:
    model, (_, coco) = trial.model, trial.corpora
    record: dict[str, Any] = {}
    record["corpora"] = {corpus.name: corpus.split_hash(trial.split) for corpus in trial.corpora}
    having = list(trial.boxed)
    with_boxes = trial.collection(coco, [trial.splits[1][number] for number in having])
    odds = all_odds(with_boxes, [(name,) for name in trial.classes])
    record["classes"] = judge_matches(odds, trial.shown[:, having], trial.classes)
    rare = rare_words(model.vocabulary, [image for corpus in trial.corpora for image in training_set(corpus).corpus])
    absence: list[dict[str, Any]] = []
    for asked, other in zip(trial.whole, trial.splits[::-1], strict=True):
        nouns = caption_nouns(model, asked.images)
        record[f"nouns, {asked.corpus.name}"] = judge_matches(
            all_odds(asked, nouns), caption_matches(asked.images, nouns), [noun for (noun,) in nouns], everyday(model)
        )
        # Larger collections are filled with training pictures that no threshold was fitted on.
        seen = {image.id for image in fitted_on(asked.corpus, validation_pictures(asked.corpus))}
        for size in SIZES:
            for draw in range(DRAWS if size == min(SIZES) else 1):
                images, training = drawn(asked.corpus, asked.images, size, np.random.default_rng(draw), seen)
                some = trial.collection(asked.corpus, images, training)
                absence += [{**each, "draw": draw} for each in judge_absence(some, model, other, rare)]
    return {**record, "absence": absence}


def rankings(asked: Collection, queries: Sequence[tuple[str, ...]], count: int) -> Iterator[Ranking]:
    """What the engine answers."""
    for start in range(0, len(queries), TOGETHER):
        texts = [" ".join(query) for query in queries[start : start + TOGETHER]]
        yield from asked.engine.rank(asked.engine.terms_of(texts), count)


def said_absent(asked: Collection, queries: Sequence[tuple[str, ...]]) -> Bools:
    return np.array([ranking.odds[0] < 0 for ranking in rankings(asked, queries, 1)], bool)


def all_odds(asked: Collection, queries: Sequence[tuple[str, ...]]) -> Floats:
    """The log odds of every picture for every query, `(queries, images)`."""
    odds = np.empty((len(queries), len(asked.images)), np.float32)
    for row, ranking in zip(odds, rankings(asked, queries, len(asked.images)), strict=True):
        row[ranking.ids] = ranking.odds
    return odds


def judge_matches(
    odds: Floats, truth: Bools, names: Sequence[str], common: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """F1, precision and recall of what is called a match, and the F1 of the best cut of each ranking.

    Args:
        odds: log odds of a match `(queries, pictures)`.
        truth: what matches, of the same shape.
        common: the queries that are everyday ones.
    """
    counts = truth.sum(1)
    right = ((odds >= 0) & truth).sum(1)
    called = (odds >= 0).sum(1)
    precision, recall = right / np.maximum(called, 1), right / np.maximum(counts, 1)
    f1 = 2 * right / np.maximum(called + counts, 1)
    order = np.argsort(-odds, 1, kind="stable")
    hits = np.cumsum(np.take_along_axis(truth, order, 1), 1)
    best = (2 * hits / (np.arange(1, truth.shape[1] + 1) + counts[:, None])).max(1)
    absent = (called == 0) & (counts >= MATCHES)

    def mean(chosen: Bools) -> dict[str, Any]:
        figures = {"f1": f1, "best_f1": best, "precision": precision, "recall": recall}
        record: dict[str, Any] = {name: round(float(values[chosen].mean()), 4) for name, values in figures.items()}
        return {"queries": int(chosen.sum()), **record, "share_of_best": round(record["f1"] / record["best_f1"], 4)}

    there = counts > 0
    by_frequency = {
        f"{low}–{high}" if high < 10**6 else f"{low} or more": mean(chosen)
        for low, high in FREQUENCIES
        if (chosen := (counts >= low) & (counts <= high)).any()
    }
    return {
        "pictures": truth.shape[1],
        **mean(there),
        "by_matching_pictures": by_frequency,
        "said_absent_with_10_or_more": [name for name, bad in zip(names, absent, strict=True) if bad],
        **({"everyday": mean(there & np.array([name in common for name in names]))} if common else {}),
    }


def judge_absence(
    asked: Collection, model: OnnxModel, other: Sequence[Image], rare: Sequence[tuple[str, ...]]
) -> list[dict[str, Any]]:
    vocabulary, random = model.vocabulary, np.random.default_rng(0)
    mentioned = {name for image in asked.images for caption in image.captions for name in names_in(tokens_of(caption))}
    own, others = (noun_phrases(vocabulary, images) for images in (asked.images, other))
    words: list[tuple[str, ...]] = [(word,) for word in frequent_words(vocabulary)]
    matching = dict(zip(words, caption_matches(asked.images, words).sum(1).tolist(), strict=True))
    there = np.asarray(caption_matches(asked.images, rare, captions=2).any(1))
    kinds: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {
        "phrases": (own, [phrase for phrase in others if mentioned.isdisjoint(names_in(phrase[-1:]))]),
        "words": (
            [word for word in words if matching[word] >= 3],
            [word for word in words if mentioned.isdisjoint(names_in(word))],
        ),
        "rare words": (
            [word for word, shown in zip(rare, there.tolist(), strict=True) if shown],
            [word for word in rare if mentioned.isdisjoint(names_in(word))],
        ),
        "pairs": caption_pairs(asked.images, own),
    }
    record = []
    for kind, queries in kinds.items():
        present, absent = ([some[place] for place in random.permutation(len(some))[:PHRASES]] for some in queries)
        missed, right = (said_absent(asked, some) for some in (present, absent))
        common = [
            np.array([phrasing(" ".join(query), model).commonness for query in some], np.float32)
            for some in (present, absent)
        ]
        weights = alike_weights(common[0], common[1]), alike_weights(common[1], common[0])
        said, wrong = float(right.mean()), float(missed.mean())
        record.append(
            {
                "collection": asked.corpus.name,
                "pictures": len(asked.images),
                "training_pictures": asked.training,
                "kind": kind,
                "present": len(present),
                "absent": len(absent),
                "precision_of_absent": round(said / max(1e-9, said + wrong), 4),
                "recall_of_absent": round(said, 4),
                "present_said_absent": round(wrong, 4),
                "right": round((said + 1 - wrong) / 2, 4),
                "right_equally_common": round(float(weights[1] @ right + weights[0] @ ~missed) / 2, 4),
                "examples": {"absent": [" ".join(query) for query in absent[:5]]},
            }
        )
    return record


def caption_pairs(
    images: Sequence[Image], phrases: Sequence[tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Pairs of a modifier and a noun that some caption has, and others that none has."""
    together = sorted({tuple(words) for phrase in phrases if len(words := telling_words(phrase)) == 2})
    pairs = [*together, *modified_pairs(together, np.random.default_rng(0))]
    words = sorted({word for pair in pairs for word in pair})
    counts = dict(zip(words, caption_matches(images, [(word,) for word in words]).sum(1).tolist(), strict=True))
    frequent = [pair for pair in pairs if min(counts[word] for word in pair) >= PAIR_MATCHES]
    there = np.asarray(caption_matches(images, frequent).any(1))
    shown, known = set(together), list(zip(frequent, there.tolist(), strict=True))
    return [pair for pair, _ in known if pair in shown], [pair for pair, has in known if not has]


def caption_nouns(model: OnnxModel, images: Sequence[Image]) -> list[tuple[str, ...]]:
    """The nouns of captions, in the singular, that enough pictures match."""
    heads = {singular(phrase[-1]) for phrase in noun_phrases(model.vocabulary, images)}
    nouns = [(head,) for head in sorted(heads) if head in model.vocabulary]
    counts = caption_matches(images, nouns).sum(1)
    return [noun for noun, count in zip(nouns, counts, strict=True) if count >= MATCHES]


def everyday(model: OnnxModel) -> frozenset[str]:
    return frozenset(singular(word) for word in model.vocabulary.words[:EVERYDAY])
