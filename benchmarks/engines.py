"""What Ray costs on one machine: extraction by `--engine ray` and by the local engine, of the same pictures.

    python benchmarks/engines.py PICTURES [--pictures 192] [--out results/benchmarks/engines.json]

Both make the same store, byte by byte, in partitions of 16 pictures, with PyTorch as runtime. `seconds` are all of it;
`pictures_per_second` counts from the end of the first partition on, when programs and networks have been started; of so
few partitions that favours Ray by up to a tenth, whose actors end theirs together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from reporting import write_report
from two_branch import machine

from deixis.corpus import open_corpus
from deixis.features.extraction import extract
from deixis.features.feature_recipe import BUILT_IN
from deixis.features.mapper import MapperMaker
from deixis.features.ray_engine import extract_on_ray

PARTITION = 16


class Pace:
    """Told how many pictures are done."""

    def __init__(self) -> None:
        self._told: list[tuple[float, int]] = []

    def __call__(self, done: int, of: int) -> None:
        if done and (not self._told or done > self._told[-1][1]):
            self._told.append((time.perf_counter(), done))

    @property
    def per_second(self) -> float:
        (begin, first), (end, last) = self._told[0], self._told[-1]
        return (last - first) / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="PICTURES")
    parser.add_argument("--pictures", type=int, default=192)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    whole = open_corpus(options.corpus)
    corpus = whole.with_images(whole.images[: options.pictures])
    record: dict[str, Any] = {
        "benchmark": "engines",
        "command": f"python benchmarks/engines.py PICTURES --pictures {options.pictures}",
        **machine(),
        "pictures": len(corpus.images),
        "features": {},
    }
    for name in ("image", "regions"):
        makes = MapperMaker(BUILT_IN[name], "cpu")
        found: dict[str, Any] = {}
        prints = set()
        with tempfile.TemporaryDirectory() as folder:
            for engine in ("local", "ray"):
                pace, out = Pace(), Path(folder) / engine
                if engine == "ray":
                    report = extract_on_ray(corpus, makes, out, partition_size=PARTITION, progress=pace)
                else:
                    report = extract(corpus, makes.mapper(), out, partition_size=PARTITION, progress=pace)
                prints.add(report.manifest.fingerprint)
                found[engine] = {
                    "seconds": round(report.seconds["all"], 2),
                    "pictures_per_second": round(pace.per_second, 2),
                }
        assert len(prints) == 1, "the engines made different stores"
        record["features"][name] = found
        write_report(record, options.out)


if __name__ == "__main__":
    main()
