"""How much longer pictures of 150 kB take to decode than those of 320 pixels that extraction was measured on.

    python benchmarks/decoding.py [--out results/benchmarks/decoding.json]

Generated pictures, whose detail falls with frequency as that of photographs does, as JPEGs of both sizes; a file's
bytes are what its quality is chosen by. Each is made ready as `deixis extract --features regions` does, and as
`deixis index` does for its vector alone, in one thread. All take turns; the median of processor time counts, since
others may share the machine.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from telling import tell

from deixis.corpus import Image
from deixis.features.feature_recipe import BUILT_IN
from deixis.features.mapper import make_mapper
from deixis.loading import load_search_model
from deixis.vision.reading import decode_picture

#: Width and bytes: of Flickr8k's pictures at 320 pixels (the mean), and of those that `scale.py` assumes.
SIZES = {"small": (320, 16.5e3), "large": (960, 150e3)}
PICTURES, TURNS = 6, 8


def made_picture(width: int, random: np.random.Generator) -> Pillow.Image:
    """Noise of three colours whose amplitude is the inverse of its frequency."""
    height = width * 3 // 4
    down, across = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    falling = 1 / np.maximum(np.hypot(down, across), 1 / width)
    noise = np.fft.fft2(random.normal(size=(3, height, width)))
    values = np.fft.ifft2(noise * falling).real
    values -= values.mean((1, 2), keepdims=True)
    return Pillow.fromarray((128 + 50 * values / values.std()).clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def as_jpeg(picture: Pillow.Image, size: float) -> bytes:
    """The file whose bytes are nearest to `size`, of all qualities."""
    files = []
    for quality in range(20, 96, 3):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        files.append(file.getvalue())
    return min(files, key=lambda data: abs(len(data) - size))


def ways() -> dict[str, Callable[[bytes], object]]:
    mapper, model = make_mapper(BUILT_IN["regions"]), load_search_model("deixis-base")
    at_least = int(model.identity.preprocessing["at_least"])
    image = Image(id="made")
    return {
        "regions": lambda data: mapper.prepare(image, data),
        "index": lambda data: model.prepare(decode_picture(data, name="made", at_least=at_least)),
    }


def measure() -> dict[str, Any]:
    random = np.random.default_rng(0)
    files = {
        name: [as_jpeg(made_picture(width, random), size) for _ in range(PICTURES)]
        for name, (width, size) in SIZES.items()
    }
    found: dict[str, Any] = {"bytes": {name: round(statistics.mean(map(len, own))) for name, own in files.items()}}
    for way, prepare in ways().items():
        taken: dict[str, list[float]] = {name: [] for name in files}
        for turn in range(TURNS + 1):
            for name, own in files.items():
                for data in own:
                    start = time.process_time()
                    prepare(data)
                    if turn:
                        taken[name].append(1e3 * (time.process_time() - start))
        medians = {name: statistics.median(own) for name, own in taken.items()}
        found[way] = {
            "processor_ms": {name: round(own, 2) for name, own in medians.items()},
            "times_as_long": round(medians["large"] / medians["small"], 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/decoding.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "benchmark": "decoding",
        "command": "python benchmarks/decoding.py",
        "pictures": PICTURES,
        "turns": TURNS,
        "widths": {name: width for name, (width, _) in SIZES.items()},
        **measure(),
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    tell(record, options.out)


if __name__ == "__main__":
    main()
