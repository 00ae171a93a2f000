"""Whether search leaves out what a query says must not be there; `photo_search.py` runs it.

Queries are "WANTED -DENIED" for pairs of frequent nouns of captions, and for people as what is denied. A pair is asked
if captions of at least ten pictures have the wanted noun and not the denied one, and captions of at least five have
both. Of the first ten pictures, `free` is the share whose captions do not mention what is denied, `all_free` the share
of queries where that is all ten, and `wanted_and_free` the share that also mentions the wanted noun. `ignored` is the
same of a search for the wanted noun alone. `by_boxes` judges what is denied by COCO's boxes too, where it is one of
COCO's classes: these know also what captions leave out, people in the background for instance. Of all pictures,
`called` is the share of those whose captions have the wanted noun and not the denied one that is called a match, and
`ignored` the same of the wanted noun alone; `no_match` is the share of queries without any match.

Words of captions that count as people are in `PEOPLE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from photo_collections import Bools, Collection, Trial

from deixis.adapters.phrasing import FUNCTION_WORDS
from deixis.adapters.search_model import SearchModel
from deixis.corpus import Image
from deixis.search.caption_queries import caption_matches, head_counts, noun_phrases
from deixis.search.engine import Ranking
from deixis.search.queries import parse_query
from deixis.text.plurals import singular

#: Nouns that are wanted, and that are denied: the most frequent ones of a collection's captions.
WANTED, DENIED = 40, 15
FIRST = 10
#: Pictures that must show the wanted noun and not the denied one, and both.
LEAST_FREE, LEAST_BOTH = 10, 5
PEOPLE = """
    person man woman boy girl child kid lady guy crowd toddler someone player rider skier surfer snowboarder
    skateboarder skater climber hiker biker cyclist bicyclist gentleman teenager worker dancer athlete pedestrian
"""


def measure(trial: Trial) -> dict[str, Any]:
    by_boxes = dict(zip(trial.classes, trial.shown, strict=True))
    record: dict[str, Any] = {"without": trial.model.relevance.without}
    for asked, shown in zip(trial.whole, (None, by_boxes), strict=True):
        record[asked.corpus.name] = judge(asked, trial.model, shown)
    return record


def judge(asked: Collection, model: SearchModel, shown: dict[str, Bools] | None) -> dict[str, Any]:
    nouns = frequent_nouns(model, asked.images)
    mentions = dict(zip(nouns, caption_matches(asked.images, [(noun,) for noun in nouns]), strict=True))
    people: Bools = np.asarray(caption_matches(asked.images, [(word,) for word in PEOPLE.split()]).any(0))
    denied_nouns = ["people", *nouns[:DENIED]]
    rows: list[dict[str, Any]] = []
    for wanted in nouns:
        for denied in denied_nouns:
            has = people if denied == "people" else mentions[denied]
            both, free = mentions[wanted] & has, mentions[wanted] & ~has
            if wanted == denied or both.sum() < LEAST_BOTH or free.sum() < LEAST_FREE:
                continue
            queries = (f"{wanted} -{denied}", wanted)
            first = {query: ranking_of(asked, query, FIRST).ids[:FIRST].tolist() for query in queries}
            answers = {query: ranking_of(asked, query, len(asked.images)) for query in queries}
            row: dict[str, Any] = {"wanted": wanted, "denied": denied}
            for name, query in (("", f"{wanted} -{denied}"), ("ignored_", wanted)):
                matches = answers[query].ids[answers[query].odds >= 0]
                row |= {f"{name}free": (~has)[first[query]].mean(), f"{name}wanted_and_free": free[first[query]].mean()}
                row |= {f"{name}called": free[matches].sum() / free.sum(), f"{name}no_match": len(matches) == 0}
            box = {"people": "person"}.get(denied, denied)
            if shown is not None and box in shown:
                row["by_boxes"] = (~(has | shown[box]))[first[f"{wanted} -{denied}"]].mean()
                row["ignored_by_boxes"] = (~(has | shown[box]))[first[wanted]].mean()
            rows.append(row)
    worst = sorted(rows, key=lambda row: row["free"])[:10]
    return {
        "pictures": len(asked.images),
        "all": means(rows),
        "people": means([row for row in rows if row["denied"] == "people"]),
        "worst": [f"{row['wanted']} -{row['denied']}: {row['free']:.1f}" for row in worst],
    }


def means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if name in row]
        return round(float(np.mean(values)), 4) if values else None

    record: dict[str, Any] = {"queries": len(rows), "free": mean("free")}
    record["all_free"] = round(float(np.mean([row["free"] == 1 for row in rows])), 4)
    record |= {name: mean(name) for name in ("wanted_and_free", "by_boxes", "called", "no_match")}
    ignored = {name: mean(f"ignored_{name}") for name in ("free", "wanted_and_free", "by_boxes", "called", "no_match")}
    return {**record, "ignored": ignored}


def ranking_of(asked: Collection, query: str, count: int) -> Ranking:
    """At least the `count` first pictures that the engine answers with."""
    (ranking,) = asked.engine.rank(asked.engine.terms([parse_query(query)], [None]), count)
    return ranking


def frequent_nouns(model: SearchModel, images: Sequence[Image]) -> list[str]:
    """The last words of the captions' noun phrases, in the singular, those of most pictures first."""
    vocabulary = model.known_words
    assert vocabulary is not None
    heads = sorted({singular(phrase[-1]) for phrase in noun_phrases(vocabulary, images)} & set(vocabulary.words))
    heads = [head for head in heads if head not in FUNCTION_WORDS and head not in ("people", "person", "there")]
    counts = head_counts(images, [(head,) for head in heads])
    return [heads[place] for place in np.argsort(-counts, kind="stable").tolist()][:WANTED]
