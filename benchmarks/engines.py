"""The cost of Ray on one machine: extraction with `--engine ray` and with the local engine, on the same pictures.

    python benchmarks/engines.py PICTURES [--pictures 192] [--out results/benchmarks/engines.json]

Both write the same store, byte for byte, in partitions of 16 pictures. `seconds` is the total; `pictures_per_second`
starts after the first partition, when processes and networks are running. With this few partitions that favours Ray by
up to a tenth, because its actors finish theirs together.
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
    """Records when how many pictures are done."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, int]] = []

    def __call__(self, done: int, of: int) -> None:
        if done and (not self._moments or done > self._moments[-1][1]):
            self._moments.append((time.perf_counter(), done))

    @property
    def per_second(self) -> float:
        (begin, first), (end, last) = self._moments[0], self._moments[-1]
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
