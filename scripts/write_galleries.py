"""Write the galleries on drawn scenes: docs/pictures/grounding-gallery.png and alignment-gallery.png.

    python scripts/write_galleries.py --work FOLDER [--out docs/pictures]

The demo's recipes of CCA, the two-branch network and the aligner are trained on 1,600 drawn scenes first, about a
quarter of an hour on two cores; `--work` keeps the runs for the next time. Scenes are taken from the test split in the
order of the corpus or by a fixed seed, whatever the models find.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image as Pillow

from deixis.corpus import open_corpus
from deixis.files import atomic_write
from deixis.vision.reading import read_picture

ROOT = Path(__file__).parents[1]
RECIPES = {
    "CCA": "entities-cca/demo-phrases",
    "two-branch": "two-branch/demo-phrases",
    "aligner": "dvsa/demo-alignment",
}
#: Pictures in the gallery of alignments, and how many are side by side.
SHOWN, ACROSS = 6, 3
#: The longest side of a gallery, in pixels.
WIDTH = 1500


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures", metavar="FOLDER")
    given = options.parse_args()
    os.environ["DEIXIS_CACHE"] = str(given.work / "cache")
    for name, recipe in RECIPES.items():
        _deixis("train", recipe, "--corpus", "scenes", "--out", str(given.work / name))
    _save(_grounding(given.work), given.out / "grounding-gallery.png")
    _save(_alignment(given.work), given.out / "alignment-gallery.png")


def _grounding(work: Path) -> Pillow.Image:
    drawn = work / "grounding.png"
    runs = [str(work / "CCA"), str(work / "two-branch")]
    _deixis("localize", "compare", *runs, "--corpus", "scenes", "--out", str(drawn), "--force")
    return Pillow.open(drawn)


def _alignment(work: Path) -> Pillow.Image:
    corpus = open_corpus("scenes")
    images = corpus.split("test").images[:SHOWN]
    pages = []
    for image in images:
        picture, drawn = work / f"{image.id}.png", work / f"{image.id}-aligned.png"
        read_picture(corpus, image).save(picture)
        text = image.captions[0].text
        _deixis("align", str(picture), text, "--model", str(work / "aligner"), "--out", str(drawn), "--force")
        pages.append(Pillow.open(drawn).convert("RGB"))
    width, height = max(page.width for page in pages), max(page.height for page in pages)
    sheet = Pillow.new("RGB", (ACROSS * width, -(-len(pages) // ACROSS) * height), pages[0].getpixel((0, 0)))
    for number, page in enumerate(pages):
        sheet.paste(page, (number % ACROSS * width, number // ACROSS * height))
    return sheet


def _save(picture: Pillow.Image, path: Path) -> None:
    """In 256 colours: drawings lose nothing that can be seen, and the files are small."""
    picture = picture.convert("RGB")
    picture.thumbnail((WIDTH, WIDTH), Pillow.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.quantize(256, dither=Pillow.Dither.NONE).save(stream, "PNG", optimize=True)
    with atomic_write(path) as file:
        file.write(stream.getvalue())


def _deixis(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "deixis", *words], check=True)


if __name__ == "__main__":
    main()
