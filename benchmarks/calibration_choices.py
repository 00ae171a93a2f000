"""What the constants of calibration do: each is changed alone, the thresholds are fitted again, and search is measured.

    python benchmarks/calibration_choices.py FLICKR8K COCO_MINI --boxes-of CORPUS --work FOLDER [--pictures-in PICTURES]
        [--bundle src/deixis/base/bundle] [--json results/search/validation.json]

Measured on validation pictures, those that photo_search.py embeds. Only `classes` is held out: its thresholds are
fitted on boxes of training pictures. Nouns, phrases, rare words, pairs and `people` are measured on the pictures that
their thresholds are fitted on. `rows` has for each change:

classes, nouns   mean F1 of what is called a match, as a share of what the best cut reaches (COCO's 80 classes by boxes;
                 nouns of captions, mean of both corpora), and `missed`, the things with ten pictures called absent
phrases …        how often "is it there?" is answered rightly, with as many absent as present ones: the mean
                 of both corpora and of collections of 200 and 1,000 pictures; `present` and `absent` are its two halves
people           of the first ten pictures of queries with `-people`, the share without people, by captions; `wanted`:
                 the share that also shows what is wanted
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import relevance
import without
from photo_collections import Trial
from reporting import write_report

from deixis.adapters.bundles import packaged_folder
from deixis.corpus import open_corpus
from deixis.metrics.results import versions
from deixis.search import calibration, list_end_calibration
from deixis.search.bundle_calibration import calibrate

#: The module, the constant and the values that are tried; the first run changes nothing.
CHANGES: tuple[tuple[ModuleType, str, Sequence[Any]], ...] = (
    (calibration, "PAIR_WEIGHT", (0.0, 0.3, 1.0)),
    (calibration, "COST_OF_RARE", (0.1, 0.5, 1.0)),
    (calibration, "BETWEEN", (0.5,)),
    (list_end_calibration, "MENTIONED", (1.0,)),
    (list_end_calibration, "LOST", (0.15,)),
    (list_end_calibration, "LABEL_COST", (0.2,)),
    (list_end_calibration, "MOVED_COST", (0.4,)),
    (calibration, "LOWER_MARGIN", (0.0,)),
)
KINDS = ("phrases", "words", "rare words", "pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K", type=Path)
    parser.add_argument("coco_mini", metavar="COCO_MINI", type=Path)
    parser.add_argument("--boxes-of", required=True, help="training pictures with labelled boxes")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the embeddings")
    parser.add_argument("--pictures-in", type=Path)
    parser.add_argument("--bundle", type=Path, default=packaged_folder())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = json.loads(options.json.read_text("utf-8")) if options.json and options.json.exists() else {}
    rows: list[dict[str, Any]] = known.get("rows", [])
    for module, name, values in ((None, "", (None,)), *CHANGES):
        for value in values:
            change = {name: value} if name else {}
            if any(row["change"] == change for row in rows):
                continue
            with tempfile.TemporaryDirectory() as folder:
                rows.append({"change": change, **measured(options, Path(folder) / "bundle", module, name, value)})
            record = {
                "about": "Constants of calibration, each changed alone; fitted and measured on validation pictures",
                "constants": {constant: getattr(changed, constant) for changed, constant, _ in CHANGES},
                "rows": rows,
                "command": "python benchmarks/calibration_choices.py FLICKR8K COCO_MINI --boxes-of CORPUS --work DIR",
                "versions": versions(),
            }
            write_report(record, options.json)


def measured(
    options: argparse.Namespace, bundle: Path, module: ModuleType | None, name: str, value: Any
) -> dict[str, Any]:
    shutil.copytree(options.bundle, bundle)
    trial = trial_of(options, bundle)
    before = None if module is None else getattr(module, name)
    try:
        if module is not None:
            setattr(module, name, value)
        boxes = open_corpus(options.boxes_of, pictures=options.pictures_in)
        calibrate(bundle, trial.corpora, trial.embeddings.of, boxes)
        trial = trial_of(options, bundle)
        relevance.SIZES = (200, 1000)  # type: ignore[assignment]
        relevance.DRAWS = 1
        found = relevance.measure(trial)
        excluded = without.measure(trial)
    finally:
        if module is not None:
            setattr(module, name, before)
    return summary(found, excluded, [corpus.name for corpus in trial.corpora])


def trial_of(options: argparse.Namespace, bundle: Path) -> Trial:
    return Trial(
        f"onnx:{bundle}",
        [str(options.flickr8k), str(options.coco_mini)],
        "val",
        options.coco_mini / "boxes_val_test.npz",
        options.coco_mini.parent / "coco_train2017" / "classes.txt",
        options.work,
        options.pictures_in,
    )


def summary(found: dict[str, Any], excluded: dict[str, Any], corpora: Sequence[str]) -> dict[str, Any]:
    def mean(values: Sequence[float]) -> float:
        return round(float(np.mean(values)), 4)

    nouns = [found[f"nouns, {corpus}"] for corpus in corpora]
    row: dict[str, Any] = {
        "classes": found["classes"]["share_of_best"],
        "nouns": mean([judged["share_of_best"] for judged in nouns]),
        "missed": sum(len(judged["said_absent_with_10_or_more"]) for judged in (found["classes"], *nouns)),
    }
    for kind in KINDS:
        own = [asked for asked in found["absence"] if asked["kind"] == kind]
        row[kind] = {
            "right": mean([asked["right"] for asked in own]),
            "present": mean([1 - asked["present_said_absent"] for asked in own]),
            "absent": mean([asked["recall_of_absent"] for asked in own]),
        }
    people = [excluded[corpus]["people"] for corpus in corpora]
    row["people"] = mean([judged["free"] for judged in people])
    row["wanted"] = mean([judged["wanted_and_free"] for judged in people])
    return row


if __name__ == "__main__":
    main()
