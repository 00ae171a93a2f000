"""Whether search with an example picture and words calls the right pictures matches.

    python benchmarks/with_example.py FLICKR8K COCO_MINI --boxes FILE --classes FILE --work FOLDER [--split test]
        [--json results/search/with_example.json]

A query is a picture of the split and words that it does not show; a match shows the example's main thing and the words.

boxes       COCO's pictures: the main thing is the class of the largest box (at least 15% of the picture), the words are
            another class; at least five other pictures show both. The truth is complete.
captions    the main thing is the noun that most captions have, the words are a noun that none of them has; captions of
            at least three other pictures have both. Captions leave things out, so precision is a lower bound.

F1 is that of what is called a match, `best_f1` that of the best cut of the same ranking. `nothing` is the share of
queries without any match, and `nothing_although_good` that among queries with three right pictures or more in the first
five.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from relevance import Bools, Collection, Remembering, box_classes, collection
from reporting import write_report

from deixis.corpus import Image, open_corpus
from deixis.metrics.results import versions
from deixis.search.example_calibration import ExampleQuery, example_queries
from deixis.search.queries import parse_query

#: Queries of each kind at most, pictures that must match by boxes, and the least area of the example's main thing.
QUERIES, LEAST, LARGE = 400, 5, 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K")
    parser.add_argument("coco_mini", metavar="COCO_MINI")
    parser.add_argument("--boxes", type=Path, required=True, help="image_ids, offsets, classes and boxes (.npz)")
    parser.add_argument("--classes", type=Path, required=True, help="the classes' names, one per line")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    model = Remembering(options.model)
    names = options.classes.read_text().split("\n")[:-1]
    record: dict[str, Any] = {
        "model": str(model.identity),
        "split": options.split,
        "end_with_example": model.relevance.end_with_example,
    }
    for name in (options.flickr8k, options.coco_mini):
        corpus = open_corpus(name)
        images = [image for image in corpus.split(options.split) if image.captions]
        asked = collection(model, corpus, images, 0, options.work / corpus.name)
        queries, matches = example_queries(model.vocabulary, images, np.random.default_rng(0))
        record[f"captions, {corpus.name}"] = judge(asked, queries[:QUERIES], matches[:QUERIES])
        if name == options.coco_mini:
            queries, matches = box_queries(options.boxes, images, names, np.random.default_rng(0))
            record[f"boxes, {corpus.name}"] = judge(asked, queries[:QUERIES], matches[:QUERIES])
    record["seconds"] = round(time.perf_counter() - start, 1)
    record["command"] = (
        "python benchmarks/with_example.py FLICKR8K COCO_MINI --boxes coco_mini/boxes_val_test.npz "
        f"--classes coco_train2017/classes.txt --work FOLDER --split {options.split}"
    )
    record["versions"] = versions()
    write_report(record, options.json)


def judge(asked: Collection, queries: Sequence[ExampleQuery], matches: Bools) -> dict[str, Any]:
    ids = {column: picture for picture, column in asked.columns.items()}
    figures = []
    for query, own in zip(queries, matches, strict=True):
        example = asked.engine.collection.rows_of(np.array([ids[query.example]], np.int64))[0]
        terms = asked.engine.terms([parse_query(query.wanted)], [example])
        (ranking,) = asked.engine.rank(terms, len(asked.images))
        columns = np.array([asked.columns[picture] for picture in ranking.ids.tolist()])
        others = columns != query.example
        columns, called = columns[others], int((ranking.odds[others] >= 0).sum())
        total, hits = own.sum(), np.cumsum(own[columns])
        right = hits[called - 1] if called else 0
        figures.append(
            {
                "precision_at_5": hits[4] / 5,
                "best_f1": (2 * hits / (np.arange(1, len(columns) + 1) + total)).max(),
                "f1": 2 * right / (called + total),
                "precision": right / max(called, 1),
                "recall": right / total,
                "called": called,
                "nothing": called == 0,
            }
        )
    good = [each["nothing"] for each in figures if each["precision_at_5"] >= 0.6]
    means = {name: round(float(np.mean([each[name] for each in figures])), 4) for name in figures[0]}
    return {
        "pictures": len(asked.images),
        "queries": len(figures),
        **means,
        "good": len(good),
        "nothing_although_good": round(float(np.mean(good)), 4) if good else None,
    }


def box_queries(
    file: Path, images: Sequence[Image], names: Sequence[str], random: np.random.Generator
) -> tuple[list[ExampleQuery], Bools]:
    """Queries by COCO's classes, and what matches them `(queries, images)`, the example excluded."""
    boxes = dict(np.load(file))
    classes, having = box_classes(file, images, len(names))
    shown = np.zeros((len(names), len(images)), bool)
    shown[:, having] = classes
    together = shown.astype(int) @ shown.T.astype(int)
    places = {str(number): place for place, number in enumerate(boxes["image_ids"].tolist())}
    queries, matches = [], []
    for number in random.permutation(having).tolist():
        place = places[images[number].id]
        own = slice(boxes["offsets"][place], boxes["offsets"][place + 1])
        corners = boxes["boxes"][own].astype(float) / 65535
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        if not len(areas) or areas.max() < LARGE:
            continue
        main_class = int(boxes["classes"][own][areas.argmax()])
        fitting = np.flatnonzero(~shown[:, number] & (together[main_class] >= LEAST))
        if len(fitting):
            wanted = int(random.choice(fitting))
            queries.append(ExampleQuery(number, names[main_class], names[wanted]))
            matches.append(shown[main_class] & shown[wanted])
    return queries, np.array(matches)


if __name__ == "__main__":
    main()
