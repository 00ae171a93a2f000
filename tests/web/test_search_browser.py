"""A person at the search pages in a real browser (Chromium through Playwright): typing, keys, a dropped picture, a map.

Set DEIXIS_SCREENSHOTS to a folder to keep what was seen.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
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
        self.page.wait_for_function(
            "words => document.getElementById('status-line').textContent.includes(words)", arg=words
        )

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
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('“red”')")
    answer = page.inner_text("#status-line")
    assert visitor.found()[0] == "red"
    matches = site.get("/api/search", q="red").json()["matches"]
    assert answer.startswith(f"{matches} picture")
    assert len(visitor.found()) == matches
    assert "red" not in visitor.found("#rest")
    assert page.inner_text("#found .tile:first-child .score").endswith(
        f"{site.get('/api/search', q='red').json()['hits'][0]['score']:.2f}"
    )
    assert page.url.endswith("/?q=red")
    visitor.search("black")
    assert "Nothing here matches “black”" in page.inner_text("#status-line")
    assert visitor.found() == []
    assert visitor.found("#rest")
    visitor.search("red mauve")
    assert "does not know “mauve”" in page.inner_text("#status-line")
    assert "English" not in page.inner_text("#status-line")
    visitor.search("crimson mauve")
    assert "Queries are in English." in page.inner_text("#status-line")
    visitor.search("gren wihte")
    assert "English" not in page.inner_text("#status-line")
    visitor.search("red -black -mauve")
    said = "not know “mauve”. Excluding “mauve” has no effect. Excluding “black” leaves no picture out: none matches."
    assert said in page.inner_text("#status-line")
    visitor.search("purple gren")
    assert visitor.found() == []
    visitor.search("gren")
    page.click("#status-line .meant")
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('“green”')")
    assert page.input_value("#words") == "green"
    assert visitor.found()[0] == "green"
    page.fill("#words", '"red')
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('not closed')")
    page.fill("#words", "")
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('newest first')")
    page.reload()
    page.wait_for_selector(".tile")
    assert visitor.faults == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]


def test_everything_can_be_done_with_the_keyboard(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/?q=green")
    page.wait_for_selector("#found .score")
    page.keyboard.press("ArrowDown")
    tiles = page.locator(".tile")
    assert page.evaluate("document.activeElement === document.querySelector('.tile .open')")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.tile .open')[1]")
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
    page.locator(".tile .open").first.click()
    page.wait_for_selector(".marks div")
    assert page.input_value("#sentence") == "red, blue"
    assert page.inner_text("#back").endswith('“"red" "blue" -green”')
    page.wait_for_selector("#captions button")
    assert page.inner_text("#captions li:first-child") == "Red and blue <b>."
    page.click("#captions button")
    page.wait_for_function("() => document.getElementById('sentence').value === 'Red and blue <b>.'")
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
            const details = { dataTransfer: carried, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent(name, details));
        }
    }"""
    page.evaluate(drop, [base64.b64encode(teal.read_bytes()).decode(), "image/png"])
    page.wait_for_selector("#found .score")
    assert visitor.found()[0] == "teal"
    assert page.is_visible("#example")
    assert not page.is_visible("#drop")
    # The picture is kept in the browser, so a reload searches by it again.
    assert "sent=" in page.url
    page.reload()
    page.wait_for_selector("#found .score")
    assert visitor.found()[0] == "teal"
    assert page.is_visible("#example")
    visitor.search("green")
    assert "“green”" in page.inner_text("#status-line")
    page.click("#example-away")
    page.wait_for_function("() => document.querySelector('#found .tile')?.title.endsWith('green.png')")
    page.set_input_files("#file", str(paint(tmp_path / "mine.png", COLOURS["blue"])))
    page.fill("#words", "")
    page.wait_for_function("() => document.querySelector('#found .tile')?.title.endsWith('blue.png')")
    page.evaluate(drop, [base64.b64encode(b"no picture").decode(), "image/png"])
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('not a picture')")
    assert [fault for fault in visitor.faults if "400" not in fault] == []


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchSite]:
    """Some hundred pictures of two folders and years, wide and tall ones."""
    made = SearchSite(tmp_path_factory.mktemp("library"))
    chance = np.random.default_rng(1)
    for number in range(320):
        colour = tuple(int(each) for each in chance.integers(0, 256, 3))
        size = [(90, 60), (60, 90), (180, 60)][number % 3]
        path = made.pictures / ("2019" if number % 2 else "2021") / f"photo-{number:03}.png"
        paint(path, colour, size)
        noon = datetime(2019 if number % 2 else 2021, 1 + number % 12, 1, 12).timestamp() + number
        os.utime(path, (noon, noon))
    made.update()
    with made.serve(is_local=True) as served:
        yield served


def scroll_until(visitor: Visitor, count: int) -> None:
    """Scroll down until so many pictures are listed."""
    page = visitor.page
    for _ in range(60):
        if page.locator(".tile").count() >= count:
            return
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(150)
    raise AssertionError(f"{page.locator('.tile').count()} pictures are listed")


@pytest.mark.parametrize("screen", ["desktop-light", pytest.param("phone-dark", marks=pytest.mark.slow)])
def test_the_list_goes_on_and_back_shows_it_as_it_was_left(browser: Any, library: SearchSite, screen: str) -> None:
    visitor = Visitor(browser, library, **SCREENS[screen])
    page = visitor.page
    visitor.open("/")
    total = len(library.desk.engine.collection)
    page.wait_for_selector(".tile")
    assert page.inner_text("#status-line") == f"{total} pictures, newest first"
    scroll_until(visitor, total)
    assert len(set(visitor.found())) == total
    visitor.search("green")
    scroll_until(visitor, 250)
    tiles = page.locator(".tile").count()
    page.evaluate("scrollTo(0, 1500)")
    page.wait_for_timeout(100)
    pictures = page.eval_on_selector_all(".tile", "all => all.map(each => each.dataset.picture)")
    at = page.evaluate(
        "() => [...document.querySelectorAll('.tile')].findIndex((t) => t.getBoundingClientRect().top > 150)"
    )
    page.locator(".tile .open").nth(at).click()
    # Arrow keys go through the list, and the browser's Back still leads to it.
    page.wait_for_selector("#next:not([hidden])")
    for key, place in (("ArrowRight", at + 1), ("ArrowLeft", at), ("ArrowRight", at + 1)):
        page.keyboard.press(key)
        page.wait_for_url(f"**/pictures/{pictures[place]}?q=green")
        page.wait_for_selector("#previous:not([hidden])")
    page.keyboard.press("Escape")
    page.wait_for_url("**/?q=green")
    page.wait_for_function("count => document.querySelectorAll('.tile').length >= count", arg=tiles)
    assert page.evaluate("scrollY") == pytest.approx(1500, abs=2)
    focused = page.evaluate("document.activeElement.closest('.tile')?.dataset.picture")
    assert focused == pictures[at + 1]
    shown = page.eval_on_selector_all(".tile", "all => all.map(each => each.dataset.picture)")
    assert shown[:tiles] == pictures[:tiles]
    # A picture far down is seen again, too.
    page.locator(".tile .open").nth(at).click()
    page.wait_for_selector("#next:not([hidden])")
    page.go_back()
    page.wait_for_function("count => document.querySelectorAll('.tile').length >= count", arg=tiles)
    assert page.evaluate("scrollY") == pytest.approx(1500, abs=2)
    assert visitor.faults == []


def test_filters_and_more_like_this(browser: Any, library: SearchSite) -> None:
    visitor = Visitor(browser, library)
    page = visitor.page
    visitor.open("/")
    page.wait_for_selector(".tile")
    page.click("#filters summary")
    page.fill("#filter-folder", "/2019")
    page.wait_for_function(
        "() => document.getElementById('status-line').textContent === '160 pictures with these filters, newest first'"
    )
    page.fill("#filter-since", "2019-11-01")
    page.fill("#filter-name", "photo-1*")
    page.wait_for_url("**/?folder=%2F2019&name=photo-1*&since=2019-11-01")
    expected = library.get("/api/pictures", folder="/2019", name="photo-1*", since="2019-11-01").json()["total"]
    page.wait_for_function("count => document.querySelectorAll('.tile').length === count", arg=expected)
    assert 0 < expected < 20
    assert page.inner_text("#filters-count").strip() == "(3)"
    page.reload()
    page.wait_for_function("count => document.querySelectorAll('.tile').length === count", arg=expected)
    assert page.input_value("#filter-folder") == "/2019"
    page.click("#filters-clear")
    page.wait_for_function("() => document.querySelectorAll('.tile').length > 20")
    options = page.eval_on_selector_all("#folders option", "all => all.map((each) => each.value)")
    assert options == ["/pictures/", "/pictures/2019/", "/pictures/2021/"]
    page.locator(".tile").nth(3).hover()
    like = page.get_attribute(".tile >> nth=3", "data-picture")
    page.locator(".tile .like").nth(3).click()
    page.wait_for_url(f"**/?like={like}")
    page.wait_for_selector("#found .score")
    assert page.is_visible("#example")
    assert like not in page.eval_on_selector_all(".tile", "all => all.map((each) => each.dataset.picture)")
    page.go_back()
    page.wait_for_selector(f".tile[data-picture='{like}']")
    assert visitor.faults == []


def test_selected_pictures_are_copied_and_downloaded(browser: Any, library: SearchSite) -> None:
    visitor = Visitor(browser, library)
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.page
    visitor.open("/?q=red")
    page.wait_for_selector("#found .score")
    paths = page.eval_on_selector_all(".tile", "all => all.map((each) => each.dataset.path)")
    page.click("#select")
    page.locator(".tile .open").nth(0).click()
    page.locator(".tile .open").nth(3).click(modifiers=["Shift"])
    page.locator(".tile .pick").nth(1).click()
    assert page.inner_text("#selected [data-count]") == "3 selected"
    # They stay selected in another search.
    visitor.search("blue")
    page.wait_for_timeout(300)
    assert page.inner_text("#selected [data-count]") == "3 selected"
    page.click("[data-do=copy]")
    page.wait_for_function("() => document.getElementById('notice').textContent.includes('3 paths')")
    assert page.evaluate("navigator.clipboard.readText()").split("\n") == [paths[0], paths[2], paths[3]]
    with page.expect_download() as downloading:
        page.click("[data-do=zip]")
    assert downloading.value.suggested_filename == "3 pictures.zip"
    with zipfile.ZipFile(downloading.value.path()) as archive:
        assert sorted(archive.namelist()) == sorted(Path(paths[number]).name for number in (0, 2, 3))
    page.keyboard.press("Escape")
    page.wait_for_selector("#selected", state="hidden")
    # Outside of selecting, a click opens.
    page.locator(".tile .open").first.click()
    page.wait_for_url("**/pictures/*")
    assert visitor.faults == []


def test_a_picture_can_be_opened_saved_and_shown_in_its_folder(
    browser: Any, library: SearchSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    monkeypatch.setattr("typer.launch", lambda path, locate: launched.append(path) or 0)
    visitor = Visitor(browser, library)
    page = visitor.page
    visitor.open(f"/pictures/{library.key('red')}")
    page.wait_for_selector("#near .tile")
    with page.expect_download() as downloading:
        page.click("text=Download")
    saved = downloading.value
    assert saved.suggested_filename == "red.png"
    assert Path(saved.path()).read_bytes() == (library.pictures / "red.png").read_bytes()
    with visitor.context.expect_page() as opening:
        page.click("text=Open original")
    opening.value.wait_for_load_state()
    assert opening.value.url.endswith("/original")
    page.click("#reveal")
    page.wait_for_timeout(500)
    assert launched == [str(library.pictures / "red.png")]
    assert page.inner_text("#date").startswith("File of ")
    assert visitor.faults == []


def test_a_search_shows_that_it_is_under_way(browser: Any, library: SearchSite) -> None:
    visitor = Visitor(browser, library)
    page = visitor.page
    visitor.open("/")
    page.wait_for_selector(".tile")

    def slowly(route: Any) -> None:
        page.wait_for_selector("main[aria-busy=true]")
        route.continue_()

    page.route("**/api/search?**", slowly)
    visitor.search("red")
    page.wait_for_selector("main[aria-busy=false]")
    assert visitor.found()


def test_tall_pictures_are_shown_whole(browser: Any, library: SearchSite) -> None:
    visitor = Visitor(browser, library)
    page = visitor.page
    visitor.open("/")
    page.wait_for_selector(".tile")
    page.wait_for_load_state("networkidle")
    shapes = page.eval_on_selector_all(
        ".tile img",
        """all => all.filter((image) => image.naturalWidth).map((image) =>
            [image.naturalWidth / image.naturalHeight, image.clientWidth / image.clientHeight])""",
    )
    assert len(shapes) > 10
    assert min(whole for whole, _ in shapes) < 0.7
    for whole, shown in shapes:
        # Only panoramas are cut off at their ends.
        assert shown == pytest.approx(min(whole, 2), rel=0.03)


def test_duplicates_are_shown_and_all_but_the_largest_selected(browser: Any, tmp_path: Path) -> None:
    made = SearchSite(tmp_path)
    chance = np.random.default_rng(5)
    for number in range(3):
        blobs = Pillow.fromarray(chance.integers(0, 256, (6, 8, 3), np.uint8)).resize((400, 300))
        blobs.save(made.pictures / f"large-{number}.png")
        blobs.resize((200, 150)).save(made.pictures / f"small-{number}.jpg")
    made.update()
    with made.serve() as site:
        visitor = Visitor(browser, site)
        page = visitor.page
        visitor.open("/duplicates")
        page.wait_for_selector(".group")
        assert page.inner_text("#status-line") == "3 groups of files"
        assert page.evaluate(INSPECTION) == []
        page.click("#others")
        assert page.inner_text("#selected [data-count]") == "3 selected"
        chosen = page.eval_on_selector_all(".chosen", "all => all.map((each) => each.dataset.path)")
        assert {Path(path).name for path in chosen} == {"small-0.jpg", "small-1.jpg", "small-2.jpg"}
        assert visitor.faults == []


def test_the_map_shows_lights_up_and_opens(browser: Any, site: SearchSite) -> None:
    visitor = Visitor(browser, site)
    page = visitor.page
    visitor.open("/map")
    page.wait_for_function("() => document.getElementById('status-line').textContent === ''", timeout=60_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(200)
    before = page.locator("#map").screenshot()
    assert len(Pillow.open(io.BytesIO(before)).convert("RGB").getcolors(1 << 24)) > 50
    page.fill("#words", "red")
    page.wait_for_function("() => document.getElementById('status-line').textContent.includes('found')")
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
        if (!own || !each.checkVisibility() || each.matches(".unseen, .unseen *, option, .score, .like")) continue;
        const style = getComputedStyle(each);
        const [one, other] = [luminance(channels(style.color)), luminance(behind(each))].sort((a, b) => b - a);
        const ratio = (one + 0.05) / (other + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const text = each.textContent.trim().slice(0, 60);
        if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: ${text}`);
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
    page.wait_for_function("() => document.getElementById('status-line').textContent === ''", timeout=60_000)
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"map-{screen}")
    visitor.open("/api")
    assert page.evaluate(INSPECTION) == []
    visitor.keep(f"api-{screen}")
    assert visitor.faults == []
