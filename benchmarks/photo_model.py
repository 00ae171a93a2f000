"""Memory and time of a model for photo search, as Immich's table of models has them.

    python benchmarks/photo_model.py [--model deixis-base] [--json results/search/photo_model.json]

memory_mib       the largest memory of a process that opens the model, embeds a query and 101 pictures, one at a time
cpu_ms           CPU time for one picture, all threads together: mean of 100 passes after a first one, without decoding
wall_ms          the median time that passed for one; only worth reading if nothing else ran on the machine
bytes            of the model's files
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from reporting import write_report

from deixis.adapters.bundles import open_bundle
from deixis.loading import load_search_model
from deixis.metrics.results import versions

PASSES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    import resource

    model = load_search_model(options.model)
    model.embed_queries(["two dogs in the snow"])
    noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    prepared = model.prepare(Pillow.fromarray(noise))
    model.embed_prepared([prepared])
    walls, start = [], time.process_time()
    for _ in range(PASSES):
        begun = time.perf_counter()
        model.embed_prepared([prepared])
        walls.append(time.perf_counter() - begun)
    bundle = open_bundle(options.model)
    record = {
        "model": str(model.identity),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "cpu_ms": round(1000 * (time.process_time() - start) / PASSES, 1),
        "wall_ms": round(1000 * statistics.median(walls), 1),
        "load_average": round(os.getloadavg()[0], 1),
        "bytes": None if bundle is None else sum(file.bytes for file in bundle.manifest.files.values()),
        "command": f"python benchmarks/photo_model.py --model {options.model}",
        "versions": versions(),
    }
    write_report(record, options.json)


if __name__ == "__main__":
    main()
