"""Every measurement of photo search, with the thresholds of a bundle, in one run.

    python benchmarks/photo_search.py FLICKR8K COCO_MINI --work FOLDER [--pictures-in PICTURES] [--model onnx:BUNDLE]
        [--split test] [--only relevance …] [--out results/search]

relevance       which pictures are called matches, and what is called absent (`relevance.py`)
without         what a query says must not be there (`without.py`)
with_example    an example picture beside words (`with_example.py`)
presence        whether a picture shows a phrase (`presence.py`)

Each is written to a file of its name in --out. Pictures are embedded once and kept in --work for the next run with the
same weights and pictures, so fitting thresholds again and measuring again takes minutes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import presence
import relevance
import with_example
import without
from photo_collections import Trial
from reporting import measured_with, write_report

from deixis.metrics.results import versions

MEASUREMENTS = {
    "relevance": relevance.measure,
    "without": without.measure,
    "with_example": with_example.measure,
    "presence": presence.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K", type=Path)
    parser.add_argument("coco_mini", metavar="COCO_MINI", type=Path)
    parser.add_argument("--boxes", type=Path, help="boxes of COCO-mini (default: COCO_MINI/boxes_val_test.npz)")
    parser.add_argument("--classes", type=Path, help="its classes (default: COCO_MINI/../coco_train2017/classes.txt)")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the embeddings")
    parser.add_argument("--pictures-in", type=Path, help="a folder with the pictures, if they are not in the corpora")
    parser.add_argument("--split", default="test")
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--out", type=Path, help="the folder of the result files")
    options = parser.parse_args()
    trial = Trial(
        options.model,
        [str(options.flickr8k), str(options.coco_mini)],
        options.split,
        options.boxes or options.coco_mini / "boxes_val_test.npz",
        options.classes or options.coco_mini.parent / "coco_train2017" / "classes.txt",
        options.work,
        options.pictures_in,
    )
    for name in options.only:
        start, cpu_start = time.perf_counter(), time.process_time()
        record = {**measured_with(trial.model), "split": options.split, **MEASUREMENTS[name](trial)}
        record["seconds"] = round(time.perf_counter() - start, 1)
        record["cpu_seconds"] = round(time.process_time() - cpu_start, 1)
        pictures = " --pictures-in PICTURES" if options.pictures_in else ""
        record["command"] = (
            f"python benchmarks/photo_search.py FLICKR8K COCO_MINI --work FOLDER{pictures} "
            f"--split {options.split} --only {name}"
        )
        record["versions"] = versions()
        write_report(record, options.out / f"{name}.json" if options.out else None)


if __name__ == "__main__":
    main()
