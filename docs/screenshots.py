"""Screenshots of the search pages, over photos in the public domain that come with Python packages.

    python docs/screenshots.py [--model NAME] [--work FOLDER] [--out docs/pictures]

The photos are indexed, searched and served with deixis-base, as anybody's would be. It needs Chromium, and the packages
that `pip install 'deixis[test]'` brings (Playwright, scikit-image, matplotlib); one photo comes from the archive of an
old SciPy, which pip downloads. `pictures/CREDITS.md` says who took the photos.
"""

from __future__ import annotations

import argparse
import bz2
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from playwright.sync_api import sync_playwright

from deixis.files import cache_folder

#: Photos that scikit-image says are in the public domain or under CC0, and what they are called here.
SCIKIT_IMAGE = {
    "astronaut.png": "astronaut",
    "brick.png": "wall",
    "camera.png": "photographer",
    "chelsea.png": "chelsea",
    "coffee.png": "coffee",
    "hubble_deep_field.jpg": "galaxies",
    "rocket.jpg": "rocket",
}
#: The last SciPy whose archive holds a photo, of a raccoon.
SCIPY, RACCOON, RACCOON_SHAPE = "scipy==1.9.3", "scipy/misc/face.dat", (768, 1024, 3)
QUERY = "a cup of coffee on a table"
#: What finds the picture that is opened, its name, and what is typed at it.
FINDS, PICTURE = "a man with a camera", "photographer"
SENTENCE = "a man in a black coat looks through a camera on a tripod"
DESKTOP = {"viewport": {"width": 1180, "height": 780}}
#: Whether every picture on the screen is there.
LOADED = """() => [...document.images].filter((image) => {
    const place = image.getBoundingClientRect();
    return image.checkVisibility() && place.bottom > 0 && place.top < innerHeight;
}).every((image) => image.complete && image.naturalWidth)"""


def gather(folder: Path) -> None:
    """Write the photos into a folder."""
    import matplotlib
    import skimage

    folder.mkdir(parents=True, exist_ok=True)
    for file, name in SCIKIT_IMAGE.items():
        save(Pillow.open(Path(skimage.__file__).parent / "data" / file), folder / f"{name}.jpg")
    save(Pillow.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"), folder / "hopper.jpg")
    if not (folder / "raccoon.jpg").exists():
        save(raccoon(), folder / "raccoon.jpg")


def save(picture: Pillow.Image, target: Path) -> None:
    picture.convert("RGB").save(target, quality=92)


def raccoon() -> Pillow.Image:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--dest", folder)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, SCIPY], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            pixels = bz2.decompress(archive.read(RACCOON))
    return Pillow.fromarray(np.frombuffer(pixels, np.uint8).reshape(RACCOON_SHAPE))


def look(address: str, out: Path) -> None:
    chromium = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(**DESKTOP).new_page()
        page.set_default_timeout(120_000)

        def keep(name: str) -> None:
            page.wait_for_load_state("networkidle")
            page.wait_for_function(LOADED)
            page.wait_for_timeout(300)
            picture = Pillow.open(io.BytesIO(page.screenshot()))
            picture.quantize(256).save(out / f"search-{name}.png", optimize=True)

        def search(words: str) -> None:
            page.fill("#words", words)
            answered = "words => document.getElementById('status-line').textContent.includes(words)"
            page.wait_for_function(answered, arg=f"“{words}”")

        page.goto(address)
        search(QUERY)
        keep("found")
        search(FINDS)
        page.click(f".tile[title*={PICTURE}] .open")
        page.wait_for_selector("#captions button")
        page.wait_for_selector("#near .tile")
        page.fill("#sentence", SENTENCE)
        page.wait_for_function("() => document.getElementById('said').textContent.includes('tripod')")
        keep("picture")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deixis-base", help="what searches, points at phrases and describes")
    parser.add_argument("--work", type=Path, default=cache_folder() / "screenshots")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures")
    options = parser.parse_args()
    photos, index = options.work / "photos", options.work / "index"
    gather(photos)
    deixis = [sys.executable, "-m", "deixis"]
    model = ["--index", str(index), "--model", options.model]
    subprocess.run([*deixis, "index", str(photos), *model], check=True)
    with subprocess.Popen([*deixis, "serve", *model, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            look(server.stdout.readline().partition(" at ")[2].split()[0], options.out)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
