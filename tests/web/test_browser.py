"""A person in a real browser (Chromium through Playwright): qualifies, does every task, draws by mouse and by keyboard.

Set DEIXIS_SCREENSHOTS to a folder to keep what was seen.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from deixis.annotation.simulation.truth import Truth
from deixis.annotation.views import TaskView
from deixis.annotation.workflow_records import TASKS, Answer, Document, Question
from deixis.corpus import Box, open_corpus
from tests.web.conftest import MakeSite
from tests.web.site import Site, truths_of

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (DEIXIS_CHROMIUM can name one)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Person:
    """Somebody at a browser who knows the truth of the pictures."""

    def __init__(self, browser: Any, site: Site, truths: dict[str, Truth], **options: Any) -> None:
        self.site, self.truths = site, truths
        self.context = browser.new_context(viewport={"width": 1100, "height": 700}, **options)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda fault: self.faults.append(str(fault)))
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)

    def join(self, name: str, role: str) -> None:
        self.page.goto(f"{self.site.address}/join#{self.site.accounts.invite(role)}")
        self.page.fill("#name", name)
        self.page.press("#name", "Enter")
        if role != "administrator":
            self.page.click("#go")
        self.page.wait_for_url("**/admin" if role == "administrator" else "**/work")
        self.number = self.site.bench.worker_number(name)

    def view(self) -> TaskView:
        """The task on the screen, with what the page does not know."""
        token = self.page.get_attribute("#work", "data-token")
        views = [v for task in TASKS for v in self.site.bench.next_tasks(self.number, task, 2)]
        return next(view for view in views if view.token == token)

    def wait_for_task(self, after: str = "") -> None:
        """Until another task than `after` is shown and ready, or a card with words; rules are read on the way."""
        self._wait_for_page(after)
        if self.page.is_visible("#card") and self.page.inner_text("#card-go") == "Begin":
            self.page.keyboard.press("Enter")
            self._wait_for_page(after)

    def _wait_for_page(self, after: str) -> None:
        self.page.wait_for_function(
            """after => !document.getElementById("card").hidden || (!document.getElementById("work").hidden
                && document.getElementById("work").getAttribute("aria-busy") === "false"
                && document.getElementById("work").dataset.token !== after)""",
            arg=after,
        )

    def card(self) -> str:
        """The heading of the card, where there is one instead of a task."""
        return self.page.inner_text("#card-title") if self.page.is_visible("#card") else ""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a place of the picture is on the screen."""
        place = self.page.evaluate(
            """([x, y]) => { const m = document.querySelector("#stage svg").getScreenCTM();
                return [m.a * x + m.e, m.d * y + m.f] }""",
            [x, y],
        )
        return place[0], place[1]

    def draw_by_mouse(self, box: Box) -> None:
        self.page.mouse.move(*self.at(box.x1, box.y1))
        self.page.mouse.down()
        self.page.mouse.move(*self.at((box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2), steps=3)
        self.page.mouse.move(*self.at(box.x2, box.y2), steps=3)
        self.page.mouse.up()

    def draw_by_keyboard(self, box: Box) -> None:
        self.page.keyboard.press("d")
        width, height = self.view().width, self.view().height
        self._walk(round(box.x1 - round(width / 2)), round(box.y1 - round(height / 2)))
        self.page.keyboard.press("Enter")
        self._walk(round(box.x2 - box.x1), round(box.y2 - box.y1))
        self.page.keyboard.press("Enter")

    def _walk(self, across: int, down: int) -> None:
        for distance, back, forth in ((across, "ArrowLeft", "ArrowRight"), (down, "ArrowUp", "ArrowDown")):
            key = back if distance < 0 else forth
            for _ in range(abs(distance) // 10):
                self.page.keyboard.press(f"Shift+{key}")
            for _ in range(abs(distance) % 10):
                self.page.keyboard.press(key)

    def shown_box(self) -> Box:
        """The box as the page tells its place, in whole pixels."""
        sides = self.page.inner_text("#place").partition(" ·")[0].split(", ")
        return Box(*map(float, sides))


def keep(person: Person, name: str) -> None:
    """Keep a picture of the page, small, where a folder for that is named."""
    folder = os.environ.get("DEIXIS_SCREENSHOTS")
    if folder:
        picture = Pillow.open(io.BytesIO(person.page.screenshot()))
        picture.quantize(128).save(Path(folder) / f"annotate-{name}.png", optimize=True)


@pytest.mark.slow
def test_a_person_qualifies_does_every_task_and_the_export_has_it(
    browser: Any, make_site: MakeSite, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    site = make_site(known=True, images=1, solo=True, test_questions=1, first_items=0, hidden_share=0.0)
    truths = truths_of(corpora)
    person = Person(browser, site, truths)
    page = person.page
    person.join("ann", "administrator")
    page.goto(f"{site.address}/work")
    seen: dict[str, int] = {}
    passed = set()
    drawn: list[Box] = []
    token = ""
    for _ in range(200):
        person.wait_for_task(token)
        heading = person.card()
        if heading == "Nothing to do":
            break
        if heading:
            if "test passed" in heading:
                passed.add(heading.partition(" · ")[0])
            elif not passed:
                keep(person, "test")
            page.keyboard.press("Enter")
            token = ""
            page.wait_for_function("old => document.getElementById('card-title').textContent !== old || "
                                   "document.getElementById('card').hidden", arg=heading)  # fmt: skip
            continue
        view = person.view()
        token = view.token
        right = truths[view.image].right_answer(view)
        if not view.test:
            seen[view.task] = seen.get(view.task, 0) + 1
        if isinstance(right, Box):
            if len(drawn) % 2:
                person.draw_by_keyboard(right)
            else:
                person.draw_by_mouse(right)
            got = person.shown_box()
            assert max(abs(a - b) for a, b in zip(sides(got), sides(right), strict=True)) <= 1, (got, right)
            if not view.test:
                drawn.append(right)
            keep(person, "drawing")
            page.keyboard.press("Enter")
            continue
        if seen.get(view.task) == 1 and not view.test:
            keep(person, view.task)
        button = page.locator(f'[data-answer="{right}"]')
        if seen.get(view.task, 0) % 2:
            button.click()
        else:
            page.keyboard.press(button.get_attribute("aria-keyshortcuts"))
    assert set(seen) == set(TASKS)
    assert len(passed) == 6
    assert len(drawn) >= 4
    assert person.faults == []
    page.goto(f"{site.address}/images")
    page.wait_for_selector("#images li")
    assert page.locator("#images .finished").count() == 1
    keep(person, "images")
    page.click("#images a")
    page.wait_for_selector(".chain")
    assert page.inner_text("#list") == "1 of 1"
    page.goto(f"{site.address}/admin")
    page.wait_for_selector("#workers tbody")
    keep(person, "project")
    with page.expect_download() as waiting:
        page.click("#download")
    with zipfile.ZipFile(waiting.value.path()) as archive:
        archive.extractall(tmp_path / "export")
    (written,) = (tmp_path / "export").iterdir()
    (image,) = open_corpus(written, cache=False)
    assert len(image.boxes) > 3
    for box in image.boxes:
        closest = min(max(abs(a - b) for a, b in zip(sides(box), sides(own), strict=True)) for own in drawn)
        assert closest <= 1.5
    gold = truths[image.id].image
    assert len(image.chains) == len(gold.chains)
    assert site.bench.check() == []
    page.goto(f"{site.address}/review?image={image.id}")
    page.click(".chain .head >> nth=0")
    keep(person, "review")
    person.context.close()


def sides(box: Box) -> tuple[float, float, float, float]:
    return box.x1, box.y1, box.x2, box.y2


@pytest.fixture
def drawing(browser: Any, make_site: MakeSite, corpora: tuple[Path, Path]) -> Iterator[Person]:
    """Somebody before a box to be drawn, on a device that can be touched too."""
    site = make_site(images=2, solo=True)
    person = Person(browser, site, truths_of(corpora), has_touch=True)
    person.join("ann", "worker")
    bench, number = site.bench, person.number
    while not bench.next_tasks(number, "drawing"):
        view = bench.next_task(number)
        assert view is not None
        answer = person.truths[view.image].right_answer(view)
        bench.submit(number, view.token, answer)
    person.page.goto(f"{site.address}/work?task=drawing")
    person.wait_for_task()
    yield person
    assert person.faults == []
    person.context.close()


def test_a_box_is_moved_sized_nudged_undone_and_taken_away(drawing: Person) -> None:
    person, page = drawing, drawing.page
    assert page.is_disabled("#save-box")
    person.draw_by_mouse(Box(60, 50, 160, 150))
    assert person.shown_box() == Box(60, 50, 160, 150)
    # Inside: moved. At a handle: sized. Each can be undone.
    page.mouse.move(*person.at(100, 100))
    page.mouse.down()
    page.mouse.move(*person.at(120, 110), steps=3)
    page.mouse.up()
    assert person.shown_box() == Box(80, 60, 180, 160)
    page.mouse.move(*person.at(180, 160))
    page.mouse.down()
    page.mouse.move(*person.at(220, 190), steps=3)
    page.mouse.up()
    assert person.shown_box() == Box(80, 60, 220, 190)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowUp")
    assert person.shown_box() == Box(79, 50, 219, 180)
    page.keyboard.press("h")
    page.keyboard.press("Shift+ArrowRight")
    assert person.shown_box() == Box(89, 50, 219, 180)
    keep(person, "handles")
    for expected in (Box(80, 60, 220, 190), Box(80, 60, 180, 160), Box(60, 50, 160, 150)):
        page.keyboard.press("u")
        assert person.shown_box() == expected
    page.keyboard.press("Control+y")
    assert person.shown_box() == Box(80, 60, 180, 160)
    # Not past the edge of the picture.
    for _ in range(12):
        page.keyboard.press("Shift+ArrowLeft")
    assert person.shown_box() == Box(0, 60, 100, 160)
    page.keyboard.press("Delete")
    assert page.inner_text("#place") == ""
    assert page.is_disabled("#save-box")
    page.keyboard.press("u")
    assert person.shown_box() == Box(0, 60, 100, 160)


def test_zoom_does_not_move_a_box_and_drawing_goes_on_in_it(drawing: Person) -> None:
    person, page = drawing, drawing.page
    person.draw_by_mouse(Box(60, 50, 160, 150))
    for _ in range(4):
        page.keyboard.press("+")
    assert page.evaluate("document.querySelector('#stage svg').viewBox.baseVal.width") < 100
    assert person.shown_box() == Box(60, 50, 160, 150)
    page.mouse.move(*person.at(110, 100))
    page.mouse.wheel(0, 300)
    page.keyboard.press("0")
    assert page.evaluate("document.querySelector('#stage svg').viewBox.baseVal.width") == person.view().width
    page.mouse.move(*person.at(200, 100))
    page.mouse.wheel(0, -600)
    person.draw_by_mouse(Box(190, 80, 230, 120))
    assert person.shown_box() == Box(190, 80, 230, 120)


def test_one_finger_draws_and_two_zoom(drawing: Person) -> None:
    person, page = drawing, drawing.page
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(person.at(*p) for p in places)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", (60, 50))
    for step in range(1, 6):
        send("touchMove", (60 + 20 * step, 50 + 15 * step))
    send("touchEnd")
    assert person.shown_box() == Box(60, 50, 160, 125)
    before = page.evaluate("document.querySelector('#stage svg').viewBox.baseVal.width")
    left, right = person.at(120, 100), person.at(200, 100)
    points = [{"x": left[0], "y": left[1], "id": 0}, {"x": right[0], "y": right[1], "id": 1}]
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points})
    for step in range(1, 6):
        apart = [{**points[0], "x": left[0] - 12 * step}, {**points[1], "x": right[0] + 12 * step}]
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": apart})
    send("touchEnd")
    assert page.evaluate("document.querySelector('#stage svg').viewBox.baseVal.width") < 0.85 * before
    assert person.shown_box() == Box(60, 50, 160, 125), "two fingers draw nothing"


def test_the_next_task_and_its_picture_are_loaded_before_the_answer(drawing: Person) -> None:
    person, page = drawing, drawing.page
    page.goto(f"{person.site.address}/work")
    person.wait_for_task()
    asked: list[str] = []
    page.wait_for_timeout(300)
    page.on("request", lambda request: asked.append(request.url))
    token = page.get_attribute("#work", "data-token")
    following = person.site.bench.next_tasks(person.number, None, 2)[1].token
    view = person.view()
    right = person.truths[view.image].right_answer(view)
    if isinstance(right, Box):
        person.draw_by_mouse(right)
        page.keyboard.press("Enter")
    else:
        page.click(f'[data-answer="{right}"]')
    person.wait_for_task(token)
    assert page.get_attribute("#work", "data-token") == following
    fetched = [url for url in asked if url.endswith(following)]
    assert fetched == [], "its picture was in the browser already"
    assert person.site.bench.progress().tasks[view.task].judgments >= 1


def test_comments_skips_reports_and_help_by_keyboard(drawing: Person) -> None:
    person, page = drawing, drawing.page
    page.keyboard.press("?")
    assert page.is_visible("#help-dialog")
    assert page.evaluate("document.getElementById('help-dialog').scrollTop") == 0, "it opens at its beginning"
    keep(person, "help")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.keyboard.type("n is for nothing")
    page.keyboard.press("Escape")
    first = page.get_attribute("#work", "data-token")
    person.draw_by_mouse(Box(60, 50, 160, 150))
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    page.goto(f"{person.site.address}/work")
    person.wait_for_task()
    second = page.get_attribute("#work", "data-token")
    assert second != first
    page.keyboard.press("x")
    person.wait_for_task(second)
    third = page.get_attribute("#work", "data-token")
    page.keyboard.press("r")
    page.keyboard.type("upside down")
    page.click("#report-dialog button.primary")
    person.wait_for_task(third)
    reasons = {entry.reason for entry in person.site.bench.review_queue()}
    assert {"n is for nothing", "upside down"} <= reasons


def test_answers_are_taken_back_one_after_the_other(drawing: Person) -> None:
    person, page = drawing, drawing.page
    page.goto(f"{person.site.address}/work?task=link")
    person.wait_for_task()
    assert page.is_disabled("#take-back")
    seen = []
    for _ in range(2):
        seen.append((page.get_attribute("#work", "data-token"), page.inner_text("#captions")))
        page.keyboard.press("n")
        person.wait_for_task(seen[-1][0] or "")
    before = person.site.bench.standings(person.number)["link"].answered
    page.reload()
    person.wait_for_task()
    for token, captions in reversed(seen):
        shown = page.get_attribute("#work", "data-token") or ""
        page.keyboard.press("b")
        person.wait_for_task(shown)
        assert page.inner_text("#captions") == captions
        assert page.get_attribute("#work", "data-token") != token
    assert person.site.bench.standings(person.number)["link"].answered == before - 2
    assert page.is_disabled("#take-back")


def test_on_a_phone_the_picture_keeps_its_size_and_the_answers_stay_in_sight(
    browser: Any, make_site: MakeSite, corpora: tuple[Path, Path]
) -> None:
    site = make_site(images=1, solo=True)
    person = Person(browser, site, truths_of(corpora), has_touch=True, is_mobile=True)
    page = person.page
    page.set_viewport_size({"width": 390, "height": 700})
    person.join("ann", "worker")

    def wide() -> bool:
        return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    while not site.bench.next_tasks(person.number, "drawing", 2):
        view = site.bench.next_task(person.number)
        assert view is not None
        page.goto(f"{site.address}/work?task={view.task}")
        person.wait_for_task()
        below = page.evaluate("document.querySelector('.answers').getBoundingClientRect().bottom - innerHeight")
        assert below <= 0, view.task
        assert wide()
        keep(person, f"phone-{view.task}")
        site.bench.submit(person.number, person.view().token, person.truths[view.image].right_answer(person.view()))
    page.goto(f"{site.address}/work?task=drawing")
    person.wait_for_task()
    height = "document.getElementById('stage').getBoundingClientRect().height"
    before = page.evaluate(height)
    person.draw_by_mouse(Box(60, 50, 160, 150))
    assert page.evaluate(height) == before > 250
    assert wide()
    keep(person, "phone-drawing")
    assert person.faults == []
    person.context.close()


def test_a_server_that_goes_away_and_comes_back_loses_nothing(drawing: Person) -> None:
    """The answer is sent again until it is acknowledged, and counted once."""
    person, page = drawing, drawing.page
    page.goto(f"{person.site.address}/work")
    person.wait_for_task()
    token = page.get_attribute("#work", "data-token")
    view = person.view()
    page.route("**/api/work/answer", lambda route: route.abort())
    right = person.truths[view.image].right_answer(view)
    if isinstance(right, Box):
        person.draw_by_mouse(right)
        page.keyboard.press("Enter")
    else:
        page.click(f'[data-answer="{right}"]')
    page.wait_for_function("() => document.getElementById('notice').textContent.includes('Trying again')")
    page.unroute("**/api/work/answer")
    person.wait_for_task(token)
    assert page.get_attribute("#work", "data-token") != token
    assert page.inner_text("#notice") == ""
    person.faults.clear()


class Proposing:
    """A model with one opinion on boxes."""

    def propose(self, question: Question, document: Document) -> Answer | None:
        return Box(40.5, 30, 120, 90) if question.task == "drawing" else None


def test_a_proposal_is_shown_taken_and_counted(browser: Any, make_site: MakeSite, corpora: tuple[Path, Path]) -> None:
    site = make_site(images=1, solo=True, assistant=Proposing())
    person = Person(browser, site, truths_of(corpora))
    person.join("ann", "worker")
    page = person.page
    while not site.bench.next_tasks(person.number, "drawing", 2):
        view = site.bench.next_task(person.number)
        assert view is not None
        site.bench.submit(person.number, view.token, person.truths[view.image].right_answer(view))
    page.goto(f"{site.address}/work?task=drawing")
    person.wait_for_task()
    assert page.locator(".proposed .line").count() == 1
    assert "proposes a box" in page.inner_text("#proposal")
    page.keyboard.press("p")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('standing').textContent === '1 answered' "
                           "|| !document.getElementById('card').hidden")  # fmt: skip
    progress = site.bench.progress().tasks["drawing"]
    assert (progress.proposed, progress.accepted) == (1, 1)
    assert person.faults == []
    person.context.close()


def test_a_reviewer_accepts_a_comment_moves_a_mention_and_draws_boxes(
    browser: Any, make_site: MakeSite, corpora: tuple[Path, Path]
) -> None:
    site = make_site(images=1)
    person = Person(browser, site, truths_of(corpora))
    page = person.page
    person.join("ray", "reviewer")
    worker = site.bench.add_worker("w")
    task = site.bench.next_task(worker)
    assert task is not None
    site.bench.submit(worker, task.token, task.answers[0], "<b>odd</b>")
    page.goto(f"{site.address}/admin")
    page.click("#queue a")
    page.wait_for_selector(".waiting")
    assert "<b>odd</b>" in page.inner_text(".waiting")

    def wait_for_events(count: int) -> None:
        page.wait_for_function("count => document.querySelectorAll('#history li').length === count", arg=count)

    page.click(".waiting button")
    wait_for_events(2)
    assert page.locator(".waiting button").count() == 0
    page.click(".chain .head >> nth=0")
    options = page.locator(".chain.open select option")
    target = next(n for n in range(options.count()) if options.nth(n).inner_text().startswith("with"))
    page.select_option(".chain.open select", index=target)
    wait_for_events(3)
    (chain,) = [chain for chain in site.bench.inspect_image("scene-000000").chains if len(chain.mentions) > 1]
    page.locator(".chain .head", has_text="open").first.click()
    person.draw_by_mouse(Box(60, 50, 160, 150))
    page.keyboard.press("Escape")
    person.draw_by_mouse(Box(80, 70, 120, 100))
    page.click("#remove")
    assert page.locator("#stage .line").count() == 1
    page.click("#undo")
    page.mouse.move(*person.at(150, 140))
    page.click(".chain.open .primary")
    wait_for_events(4)
    (drawn,) = [chain for chain in site.bench.inspect_image("scene-000000").chains if chain.boxes]
    assert drawn.mentions == chain.mentions
    assert [tuple(round(side) for side in sides(box)) for box in drawn.boxes] == [
        (60, 50, 160, 150),
        (80, 70, 120, 100),
    ]
    # The history is loaded again after the last event.
    # The worker's question, whichever it was, goes by its title and not by a name of the program.
    history = page.inner_text("#history")
    assert any(f"{title} “" in history for title in ("Same thing?", "All the same?", "Draw a box", "Needs a box?"))
    assert person.faults == []
    person.context.close()


def test_a_suspension_is_confirmed(browser: Any, make_site: MakeSite, corpora: tuple[Path, Path]) -> None:
    site = make_site(images=1)
    worker = site.bench.add_worker("bob")
    person = Person(browser, site, truths_of(corpora))
    page = person.page
    person.join("ada", "administrator")
    questions: list[str] = []

    def suspend(agree: bool) -> str:
        def decide(dialog: Any) -> None:
            questions.append(dialog.message)
            dialog.accept() if agree else dialog.dismiss()

        page.once("dialog", decide)
        page.select_option("#decide [name=worker]", label="bob")
        page.select_option("#decide [name=task]", "drawing")
        page.click("#decide button[value=suspend]")
        page.wait_for_timeout(300)
        page.reload()
        page.wait_for_selector("#workers tbody")
        return site.bench.standings(worker)["drawing"].standing

    assert suspend(agree=False) != "suspended"
    assert suspend(agree=True) == "suspended"
    assert "bob" in questions[0]
    assert "Draw a box" in questions[0]
    assert person.faults == []
    person.context.close()
