"""Whether pointing is right about what is in a picture at all.

    python benchmarks/presence.py FLICKR8K COCO_MINI --work FOLDER [--split test] [--json results/search/presence.json]

Asked are phrases of a picture's own captions (`shown`), phrases of other pictures whose last word its captions do not
have (`any`), and such phrases of the same entity type as a shown one (`same type`), which are harder. Some of what
captions do not mention is there, so the figures for absent phrases are lower bounds. `right` is the share of phrases of
each kind that are called there, or not there, rightly. `calibration` has for each tenth of the predicted probability
its mean and the share of phrases that are shown, with shown and other phrases weighing the same.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from relevance import Remembering, collection
from reporting import write_report
from sklearn.metrics import roc_auc_score

from deixis.adapters.search_model import Pictures
from deixis.corpus import open_corpus
from deixis.metrics.results import versions
from deixis.search.presence_calibration import phrase_questions, question_features

EXAMPLES = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K")
    parser.add_argument("coco_mini", metavar="COCO_MINI")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    model = Remembering(options.model)
    fitted = model.relevance.presence
    assert fitted is not None, "the bundle was not calibrated"
    record: dict[str, Any] = {"model": str(model.identity), "split": options.split, "presence": fitted}
    for name in (options.flickr8k, options.coco_mini):
        corpus = open_corpus(name)
        images = [image for image in corpus.split(options.split) if image.captions]
        asked = collection(model, corpus, images, 0, options.work / corpus.name)
        ids = {column: picture for picture, column in asked.columns.items()}
        order = np.array([ids[column] for column in range(len(images))], np.int64)
        pictures = Pictures(asked.engine.collection.rows_of(order), asked.engine.collection.cells_of(order))
        questions = phrase_questions(model.vocabulary, images, np.random.default_rng(0))
        features = question_features(model, pictures, questions)
        odds = fitted.base + features @ [fitted.score, fitted.commonness, fitted.several]
        chances = 1 / (1 + np.exp(-odds))
        kinds = np.array([question.kind for question in questions])
        shown = kinds == "shown"
        weights = np.where(shown, 0.5 / shown.sum(), 0.5 / (~shown).sum())
        tenths = np.digitize(chances, np.linspace(0, 1, 11)[1:-1])
        wrong = (chances >= 0.5) != shown
        record[corpus.name] = {
            "pictures": len(images),
            "phrases": {kind: int((kinds == kind).sum()) for kind in ("shown", "any", "same type")},
            "right": {kind: round(float((~wrong)[kinds == kind].mean()), 4) for kind in ("shown", "any", "same type")},
            "right_of_all": round(float(weights @ ~wrong), 4),
            "area_under_curve": {
                kind: round(float(roc_auc_score(shown[own], chances[own])), 4)
                for kind in ("any", "same type")
                if (own := shown | (kinds == kind)).any()
            },
            "calibration": [
                [round(float(np.average(values[own], weights=weights[own])), 3) for values in (chances, shown)]
                for tenth in range(10)
                if (own := tenths == tenth).any()
            ],
            "examples_of_wrong": {
                kind: [questions[place].phrase for place in np.flatnonzero(wrong & (kinds == kind))[:EXAMPLES].tolist()]
                for kind in ("shown", "same type")
            },
        }
    record["seconds"] = round(time.perf_counter() - start, 1)
    record["command"] = f"python benchmarks/presence.py FLICKR8K COCO_MINI --work FOLDER --split {options.split}"
    record["versions"] = versions()
    write_report(record, options.json)


if __name__ == "__main__":
    main()
