"""The walk-through's pictures: drawn scenes are indexed, searched and served, and a browser looks at the pages.

    python docs/screenshots.py [--model NAME] [--work FOLDER] [--out docs/pictures]

Models of photos know little of drawings, so a small encoder of the scenes is trained first (a quarter of an hour on two
cores; `--work` keeps it for the next time). The pictures that are searched are not among those it learned from. It
needs Chromium and Playwright (`pip install 'deixis[test]'`), and prints what the commands of the walk-through print.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image as Pillow
from playwright.sync_api import sync_playwright

from deixis.corpus import open_corpus
from deixis.files import cache_folder
from deixis.vision.reading import read_picture

RECIPE = """name = "scenes/pictures"
kind = "pictures"
about = "Drawn scenes: both towers, small."
corpus = "scenes"
seed = 0
word_vectors = false

[text]
kind = "tokens"
minimum_count = 2

[model]
backbone = "efficientnet-lite0"
side = 112
dim = 256
queries = 4
recurrent = { cell = "gru", word = 100, hidden = 256, bidirectional = true, pooling = "max", dropout = 0.1 }

[loss]
kind = "infonce"

[sampler]
images = 32
captions = 5
zoom = 0.2
hide_words = 0.05

[schedule]
epochs = 8
optimizer = "adamw"
learning_rate = 1e-3
weight_decay = 0.02
decay = { kind = "cosine", warm_up = 1.0 }
clip = { kind = "norm", at = 2.0 }
validate_every = 4
figure = "rsum"

[[schedule.groups]]
prefix = "tower.backbone"
rate = 0.3
"""
QUERY, ABSENT = "a girl in the snow", "a duck with an umbrella"
#: The picture that is opened, from the results of a query, and what is typed at it.
FINDS, PICTURE = "a girl throws a green ball to a woman in the park", "scene-001395"
SENTENCE = "a young girl throws a green ball to a woman"
DESKTOP = {"viewport": {"width": 1180, "height": 780}}
PHONE = {
    "viewport": {"width": 390, "height": 780},
    "device_scale_factor": 2,
    "color_scheme": "dark",
    "is_mobile": True,
    "has_touch": True,
}


def deixis(*arguments: str | Path) -> None:
    sys.stdout.write(f"$ deixis {' '.join(map(str, arguments))}\n")
    sys.stdout.flush()
    subprocess.run([sys.executable, "-m", "deixis", *map(str, arguments)], check=True)


def prepare(work: Path) -> Path:
    """The index of scenes that the encoder has not seen."""
    work.mkdir(parents=True, exist_ok=True)
    recipe, run, encoder, pictures, index = (
        work / name for name in ("scenes.toml", "run", "encoder", "scenes", "index")
    )
    recipe.write_text(RECIPE, encoding="utf-8")
    deixis("train", recipe, "--out", run)
    if not encoder.exists():
        deixis("export", "onnx", run, "--out", encoder)
    pictures.mkdir(exist_ok=True)
    scenes = open_corpus("scenes")
    for image in scenes.split("test"):
        read_picture(scenes, image).save(pictures / f"{image.id}.png")
    deixis("index", pictures, "--index", index, "--model", f"onnx:{encoder}")
    return index


def look(address: str, out: Path) -> None:
    chromium = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for prefix, options in (("search", DESKTOP), ("search-phone", PHONE)):
            page = browser.new_context(**options).new_page()

            def keep(name: str, page: Any = page, prefix: str = prefix) -> None:
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(300)
                picture = Pillow.open(io.BytesIO(page.screenshot()))
                picture.quantize(256).save(out / f"{prefix}-{name}.png", optimize=True)

            page.goto(address)
            page.fill("#words", ABSENT)
            page.wait_for_selector(".absent")
            keep("absent")
            page.fill("#words", QUERY)
            page.wait_for_selector("#found .score")
            keep("found")
            page.fill("#words", FINDS)
            page.click(f".tile[title*={PICTURE}]")
            page.wait_for_selector("#near .tile")
            if page.locator("#sentence").count():
                page.fill("#sentence", SENTENCE)
                page.wait_for_selector(".marks div >> nth=2", timeout=60_000)
            keep("picture")
            page.goto(f"{address}/map")
            page.wait_for_function("() => document.getElementById('told').textContent === ''", timeout=120_000)
            keep("map")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deixis-base", help="what points at phrases and describes")
    parser.add_argument("--work", type=Path, default=cache_folder() / "screenshots")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures")
    options = parser.parse_args()
    index = prepare(options.work)
    for query in (QUERY, ABSENT):
        deixis("search", query, "-n", "3", "--index", index)
    command = [sys.executable, "-m", "deixis", "serve", "--index", str(index), "--model", options.model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            look(server.stdout.readline().partition(" at ")[2].split()[0], options.out)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
