"""A person at the search pages in a real browser (Chromium through Playwright): typing, keys, a dropped picture, a map.

Set DEIXIS_SCREENSHOTS to a folder to keep what was seen.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from deixis.corpus import open_corpus
from deixis.vision.reading import read_picture
from deixis.web.entrance import Entrance
from deixis.web.security import Hosts
from tests.search.fakes import COLOURS, paint
from tests.web.search_site import SearchSite

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (DEIXIS_CHROMIUM can name one)")

DESKTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
SCREENS = {
    "desktop-light": DESKTOP,
    "desktop-dark": {**DESKTOP, "color_scheme": "dark"},
    "phone-light": PHONE,
    "phone-dark": {**PHONE, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    """Plain colours, and a few drawn scenes among them."""
    made = SearchSite(tmp_path_factory.mktemp("browsed"))
    scenes = open_corpus("scenes")
    for image in scenes.images[:12]:
        read_picture(scenes, image).save(made.pictures / f"{image.id}.png")
    made.update()
    with made.serve() as served:
        yield served


class Visitor:
    """Somebody at a browser; faults of the page and requests to other places are noted."""

    def __init__(self, browser: Any, site: SearchSite, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**(options or DESKTOP))
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda fault: self.faults.append(str(fault)))
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith(self.site.address):
            self.faults.append(f"asks {request.url}")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site.address}{path}")

    def search(self, words: str) -> None:
        self.page.fill("#words", words)
        self.page.wait_for_function("words => document.getElementById('told').textContent.includes(words)", arg=words)

    def found(self, grid: str = "#found") -> list[str]:
        """The names of the pictures in a grid."""
        return [
            Path(title).stem
            for title in self.page.eval_on_selector_all(f"{grid} .tile", "all => all.map(t => t.title)")
        ]

    def keep(self, name: str) -> None:
        folder = os.environ.get("DEIXIS_SCREENSHOTS")
        if folder:
            self.page.wait_for_load_state("networkidle")
            picture = Pillow.open(io.BytesIO(self.page.screenshot()))
            picture.quantize(200).save(Path(folder) / f"search-{name}.png", optimize=True)


def test_results_come_while_one_types_and_what_is_absent_is_said(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/")
    assert page.evaluate("document.activeElement.id") == "words"
    page.keyboard.type("red")
    page.wait_for_selector("#found .score")
    page.wait_for_function("() => document.getElementById('told').textContent.includes('“red”')")
    told = page.inner_text("#told")
    assert visitor.found()[0] == "red"
    assert told.startswith(f"{len(visitor.found())} picture")
    assert "red" not in visitor.found("#rest")
    assert page.inner_text("#found .tile:first-child .score").endswith(
        f"{site.get('/api/search', q='red').json()['hits'][0]['score']:.2f}"
    )
    assert page.url.endswith("/?q=red")
    visitor.search("black")
    assert "Nothing here matches “black”" in page.inner_text("#told")
    assert visitor.found() == []
    assert visitor.found("#rest")
    visitor.search("red mauve")
    assert "does not know “mauve”" in page.inner_text("#told")
    visitor.search("purple gren")
    assert visitor.found() == []
    visitor.search("gren")
    page.click("#told .meant")
    page.wait_for_function("() => document.getElementById('told').textContent.includes('“green”')")
    assert page.input_value("#words") == "green"
    assert visitor.found()[0] == "green"
    page.fill("#words", '"red')
    page.wait_for_function("() => document.getElementById('told').textContent.includes('not closed')")
    page.fill("#words", "")
    page.wait_for_function("() => document.getElementById('told').textContent === ''")
    page.reload()
    assert visitor.faults == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]


def test_everything_can_be_done_with_the_keyboard(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/?q=green")
    page.wait_for_selector("#found .score")
    page.keyboard.press("ArrowDown")
    tiles = page.locator(".tile")
    assert page.evaluate("document.activeElement === document.querySelector('.tile')")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.tile')[1]")
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert below > tiles.nth(1).bounding_box()["y"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "words"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "words"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.wait_for_url("**/pictures/*")
    assert page.inner_text("h1") == "green.png"
    assert visitor.faults == []


def test_phrases_are_shown_on_the_picture_as_they_are_typed(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open(f"/pictures/{site.key('white')}")
    page.fill("#sentence", "a red thing")
    page.wait_for_selector(".marks div")
    page.keyboard.press("End")
    page.keyboard.type(" and 🐕 a blue one")
    page.wait_for_function("() => document.querySelectorAll('.marks div').length === 2")
    frame = page.locator("#image").bounding_box()
    for place, half in enumerate((0.0, 0.5)):
        box = page.locator(".marks div").nth(place).bounding_box()
        assert box["x"] == pytest.approx(frame["x"] + half * frame["width"], abs=1.5)
        assert box["width"] == pytest.approx(frame["width"] / 2, abs=1.5)
        assert box["height"] == pytest.approx(frame["height"], abs=1.5)
    assert page.inner_text("#said").replace("93 %", "").split() == [
        "a",
        "red",
        "thing",
        "and",
        "🐕",
        "a",
        "blue",
        "one",
    ]
    colours = [
        page.eval_on_selector_all(selector, "all => all.map(each => each.style.getPropertyValue('--colour'))")
        for selector in (".marks div", "#said button")
    ]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == 2
    page.hover("#said button >> nth=1")
    assert page.eval_on_selector_all(".marks .lit", "all => all.map(each => each.textContent)") == ["blue"]
    # What is probably not there gets no box.
    page.fill("#sentence", "a red and a black one")
    page.wait_for_selector(".said .not-there")
    assert page.inner_text(".not-there").split() == ["black", "not", "found,", "4", "%"]
    assert page.locator(".marks div").count() == 1
    page.fill("#sentence", "")
    page.wait_for_function("() => !document.querySelector('.marks div')")
    assert visitor.faults == []


def test_a_hit_opens_with_the_words_of_the_query_pointed_at(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/")
    visitor.search('"red" "blue" -green')
    page.locator(".tile").first.click()
    page.wait_for_selector(".marks div")
    assert page.input_value("#sentence") == "red, blue"
    assert page.inner_text("#back").endswith('“"red" "blue" -green”')
    page.wait_for_selector("#captions button")
    assert page.inner_text("#captions li:first-child") == "red and blue <b>"
    page.click("#captions button")
    page.wait_for_function("() => document.getElementById('sentence').value === 'red and blue <b>'")
    page.click("#regions button >> text=white")
    page.wait_for_function("() => document.querySelector('.marks div')?.textContent === 'white'")
    page.wait_for_selector("#near .tile")
    assert "120 × 80" in page.inner_text("#size")
    page.click("#back")
    page.wait_for_selector("#found .score, #rest .score")
    assert page.input_value("#words") == '"red" "blue" -green'
    assert visitor.faults == []


def test_a_picture_that_is_dropped_or_chosen_finds_others_like_it(
    browser: Any, site: SearchSite, tmp_path: Path
) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/")
    teal = paint(tmp_path / "of my own.png", (5, 195, 175))
    drop = """([data, kind]) => {
        const bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
        const carried = new DataTransfer();
        carried.items.add(new File([bytes], "../../evil.png", { type: kind }));
        for (const name of ["dragenter", "dragover", "drop"]) {
            const told = { dataTransfer: carried, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent(name, told));
        }
    }"""
    page.evaluate(drop, [base64.b64encode(teal.read_bytes()).decode(), "image/png"])
    page.wait_for_selector("#found .score")
    assert visitor.found()[0] == "teal"
    assert page.is_visible("#example")
    assert not page.is_visible("#drop")
    visitor.search("green")
    assert "“green”" in page.inner_text("#told")
    page.click("#example-away")
    page.wait_for_function("() => document.querySelector('#found .tile')?.title.endsWith('green.png')")
    page.set_input_files("#file", str(paint(tmp_path / "mine.png", COLOURS["blue"])))
    page.fill("#words", "")
    page.wait_for_function("() => document.querySelector('#found .tile')?.title.endsWith('blue.png')")
    page.evaluate(drop, [base64.b64encode(b"no picture").decode(), "image/png"])
    page.wait_for_function("() => document.getElementById('told').textContent.includes('not a picture')")
    assert [fault for fault in visitor.faults if "400" not in fault] == []


def test_the_map_shows_lights_up_and_opens(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/map")
    page.wait_for_function("() => document.getElementById('told').textContent === ''", timeout=60_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(200)
    before = page.locator("#map").screenshot()
    assert len(Pillow.open(io.BytesIO(before)).convert("RGB").getcolors(1 << 24)) > 50
    page.fill("#words", "red")
    page.wait_for_function("() => document.getElementById('told').textContent.includes('found')")
    page.wait_for_timeout(200)
    assert page.locator("#map").screenshot() != before
    page.focus("#map")
    page.keyboard.press("n")
    page.wait_for_selector("#card a")
    address = page.get_attribute("#card a", "href")
    page.keyboard.press("+")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address}")
    assert visitor.faults == []


def test_a_browser_comes_in_by_the_printed_link(browser: Any, tmp_path: Path) -> None:
    token = "signs & letters/+ 17"
    with SearchSite(tmp_path).serve(entrance=Entrance(token), hosts=Hosts("127.0.0.1")) as site:
        visitor = Visitor(browser, site)
        page = visitor.page
        visitor.open("/map")
        assert page.url.endswith("/enter")
        page.fill("#token", "wrong token, quite")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.getElementById('notice').textContent.includes('not the token')")
        visitor.open("/enter#signs%20%26%20letters%2F%2B%2017")
        page.wait_for_url(f"{site.address}/")
        visitor.search("red")
        assert visitor.found()[0] == "red"
        assert token not in page.url


#: Names of what can be used, texts whose contrast is below 4.5 (3 for large ones), and what is wider than the screen.
INSPECTION = """() => {
    const problems = [];
    for (const each of document.querySelectorAll("a, button, input:not([type=hidden]), textarea, canvas[tabindex]")) {
        if (!each.checkVisibility()) continue;
        const named = each.getAttribute("aria-label") || each.textContent.trim() || each.labels?.[0]?.textContent.trim()
            || each.querySelector("img")?.alt || each.title;
        if (!named) problems.push("without a name: " + each.outerHTML.slice(0, 120));
    }
    if (document.querySelector("img:not([alt])")) problems.push("a picture without alt");
    const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const channels = (colour) => {
        paint.clearRect(0, 0, 1, 1);
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (colour) => {
        const [red, green, blue] = colour.slice(0, 3).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92
            : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = channels(getComputedStyle(at).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return [255, 255, 255];
    };
    for (const each of document.querySelectorAll("body *")) {
        const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !each.checkVisibility() || each.matches(".unseen, .unseen *, option, .score")) continue;
        const style = getComputedStyle(each);
        const [one, other] = [luminance(channels(style.color)), luminance(behind(each))].sort((a, b) => b - a);
        const ratio = (one + 0.05) / (other + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const told = each.textContent.trim().slice(0, 60);
        if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: ${told}`);
    }
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    if (wide > 0) problems.push(`${wide} pixels wider than the screen`);
    if (document.documentElement.lang !== "en" || !document.title || !document.querySelector("main h1")) {
        problems.push("no language, title or heading");
    }
    return problems;
}"""


@pytest.mark.parametrize(
    "screen",
    [
        "desktop-light",
        "phone-dark",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("desktop-dark", "phone-light")),
    ],
)
def test_pages_have_names_contrast_and_room_on_every_screen(browser: Any, site: SearchSite, screen: str) -> None:
    visitor = Visitor(browser, site, **SCREENS[screen])
    page = visitor.page
    visitor.open("/")
    assert page.evaluate(INSPECTION) == []
    visitor.search("red")
    page.wait_for_selector("#found .score")
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"found-{screen}")
    visitor.search("black")
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"absent-{screen}")
    visitor.open(f"/pictures/{site.key('scene-000000')}?q=red+and+blue")
    page.wait_for_selector(".marks div")
    page.wait_for_selector("#captions button")
    page.wait_for_selector("#near .tile")
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"picture-{screen}")
    visitor.open("/map")
    page.wait_for_function("() => document.getElementById('told').textContent === ''", timeout=60_000)
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"map-{screen}")
    visitor.open("/api")
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"api-{screen}")
    assert visitor.faults == []
