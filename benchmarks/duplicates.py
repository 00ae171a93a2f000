"""How well fingerprints find edited copies of photos, and how often they take different photos for the same.

    python benchmarks/duplicates.py PICTURES NAMES

PICTURES is a folder of photos, NAMES a file with one file name per line (Flickr8k's test pictures; the share of bits
that may differ was chosen on the development pictures). `found` is the share of edited copies that differ from their
original by no more bits than `deixis duplicates` allows; `false_pairs` counts pairs of different photos that do so too,
and `closest` is the least share of bits in which two of them differ. Embeddings are not looked at here: `deixis
duplicates` uses them only to take pairs back.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from PIL import ImageEnhance

from deixis.search.duplicates import DIFFERENT
from deixis.vision.fingerprints import fingerprint, signs
from deixis.vision.picture_files import read_picture_file

RESULT = Path(__file__).parents[1] / "results" / "search" / "duplicates.json"
Edit = Callable[[Pillow.Image], Pillow.Image]


def compressed(picture: Pillow.Image, quality: int, smaller: int = 1) -> Pillow.Image:
    buffer = io.BytesIO()
    picture.resize((picture.width // smaller, picture.height // smaller)).save(buffer, "JPEG", quality=quality)
    return Pillow.open(buffer)


def cropped(picture: Pillow.Image, share: float) -> Pillow.Image:
    """Without this share of the width and height at every side."""
    left, top = round(share * picture.width), round(share * picture.height)
    return picture.crop((left, top, picture.width - left, picture.height - top))


EDITS: dict[str, Edit] = {
    "JPEG of quality 30": lambda picture: compressed(picture, 30),
    "half the size, quality 70": lambda picture: compressed(picture, 70, 2),
    "a third of the size, quality 20": lambda picture: compressed(picture, 20, 3),
    "brightness 1.2": lambda picture: ImageEnhance.Brightness(picture).enhance(1.2),
    "contrast 1.3": lambda picture: ImageEnhance.Contrast(picture).enhance(1.3),
    "grey": lambda picture: picture.convert("L"),
    "2% cut off at each side": lambda picture: cropped(picture, 0.02),
    "5% cut off at each side": lambda picture: cropped(picture, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("names", type=Path)
    options = parser.parse_args()
    names = options.names.read_text("utf-8").split()
    pictures = [read_picture_file(options.pictures / name) for name in names]
    own = signs([fingerprint(picture) for picture in pictures])
    bits = own.shape[1]
    apart = (1 - own @ own.T / bits)[np.triu_indices(len(own), 1)] / 2
    found = {}
    for name, edit in EDITS.items():
        edited = signs([fingerprint(edit(picture)) for picture in pictures])
        found[name] = round(float(((own != edited).mean(1) <= DIFFERENT).mean()), 4)
        print(f"{found[name]:.4f}  {name}", flush=True)
    record = {
        "pictures": len(names),
        "bits": bits,
        "different": DIFFERENT,
        "found": found,
        "pairs": len(apart),
        "false_pairs": int((apart <= DIFFERENT).sum()),
        "closest": round(float(apart.min()), 4),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    print(f"{record['false_pairs']} of {len(apart):,} pairs of different photos; the closest: {record['closest']}")


if __name__ == "__main__":
    main()
