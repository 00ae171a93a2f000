"""The static site of alignments: a page a picture, ranks as the protocol has them, nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, make_caption, open_corpus, training_set
from deixis.features.store import FeatureStore
from deixis.figures import alignment_site
from deixis.figures.alignment_site import write_site
from deixis.model import Description, Model, store_images
from deixis.papers.dvsa.fragments import WordFragments
from deixis.papers.dvsa.model import AlignmentModel
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe
from deixis.papers.dvsa.snippets import is_sign
from deixis.text.featurizers import TextRecipe, TokenIds
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.text.vocabulary import Vocabulary
from deixis.vision.drawing.typesetting import as_written
from deixis.vision.reading import read_picture
from tests.stores import make_store, random_boxes

#: What a stranger may have written.
HOSTILE = '<script>alert("x")</script> & "quotes" </script>'


class Page(HTMLParser):
    """The tags of a page, with their attributes, and the text within `tag`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def of(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [own for name, own in self.tags if name == tag and kind in ["", *(own.get("class") or "").split(" ")]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    images = list(whole.images[:7])
    images[2] = msgspec.structs.replace(images[2], captions=(make_caption(HOSTILE), *images[2].captions))
    return whole.with_images(images)


@pytest.fixture(scope="module")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_store(tmp_path_factory.mktemp("store") / "proposals", corpus, random_boxes(10), seed=1)


@pytest.fixture(scope="module")
def matcher(corpus: Corpus) -> AlignmentModel:
    texts = tokens_of_captions(corpus)
    words = TokenIds(TextRecipe(kind="tokens"), Vocabulary.of(texts))
    torch.manual_seed(0)
    network = AlignmentNetwork(8, words.dim, AlignmentRecipe(dim=16, word=8))
    return AlignmentModel(network, WordFragments(words), 6, 0.1, torch.device("cpu"))


@pytest.fixture
def site(
    matcher: AlignmentModel, corpus: Corpus, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(alignment_site, "PER_PAGE", 3)
    monkeypatch.setattr(alignment_site, "BLOCK", 2)
    write_site(
        tmp_path, matcher, corpus, corpus.images, store, title="A <site>", beta=0.1, temperature=0.0, sentences=4
    )
    return tmp_path


def test_every_picture_has_a_page_that_the_index_leads_to(site: Path, corpus: Corpus) -> None:
    linked = []
    for name, count in (("index.html", 3), ("page-2.html", 3), ("page-3.html", 1)):
        page = Page(site / name)
        linked += [link["href"] for link in page.of("a") if str(link["href"]).startswith("pictures/")]
        assert len(page.of("img")) == count
    assert linked == [f"pictures/{number}.html" for number in range(1, 8)]
    for number, image in enumerate(corpus.images, start=1):
        text = (site / "pictures" / f"{number}.html").read_text("utf-8")
        assert image.id in text
        assert (site / "images" / f"{number}.jpg").stat().st_size > 0
        assert f'href="../{("index", "page-2", "page-3")[(number - 1) // 3]}.html"' in text


class Speaker(Model):
    """Says how large a picture is."""

    def describe(self, image: Any, count: int = 3) -> list[Description]:
        return [Description(f"<b>{image.width} by {image.height}</b> .", 0.0, "generation")][:count]


def test_captions_of_people_of_training_and_of_a_captioner_are_compared(
    matcher: AlignmentModel, corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    options: Any = {"title": "A site", "beta": 0.1, "temperature": 0.0, "sentences": 4}
    images = corpus.images[:4]
    write_site(tmp_path, matcher, corpus, images, store, captioner=Speaker(), **options)
    assert 'href="captions.html"' in (tmp_path / "index.html").read_text("utf-8")
    text = (tmp_path / "captions.html").read_text("utf-8")
    shown = [unescape(line) for line in re.findall("<dd>(.*?)</dd>", text)]
    assert len(shown) == 3 * len(images)
    captions = [caption for image in training_set(corpus) for caption in image.captions]
    training = list({tokens_of(caption) for caption in captions})
    written = {as_written(caption.tokens): tokens_of(caption) for caption in captions}
    features = list(store_images(store, [image.id for image in images]))
    best = matcher.score(features, training).max(1)
    for number, image in enumerate(images):
        human, nearest, generated = shown[3 * number : 3 * number + 3]
        assert human == as_written(image.captions[0].tokens)
        assert nearest in written
        assert matcher.score([features[number]], [written[nearest]]).max() == pytest.approx(best[number], rel=1e-5)
        picture = read_picture(corpus, image)
        assert generated == f"<b>{picture.width} by {picture.height}</b>."
    assert "<b>" not in text


def test_nothing_comes_from_elsewhere_and_strangers_words_are_only_words(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path)
        addresses = [own.get(name) for _, own in page.tags for name in ("href", "src") if own.get(name)]
        for address in addresses:
            assert not re.match(r"[a-z]+:|//", str(address))
            assert (path.parent / str(address)).exists()
        # The site's own script, and none that a caption brought.
        assert len(page.of("script")) == 1
    assert "&lt;script&gt;alert" in (site / "pictures" / "3.html").read_text("utf-8")
    assert (site / "captions.js").read_text("utf-8").startswith("window.CAPTIONS = [")


def test_words_name_the_regions_that_the_matcher_gives_them(
    site: Path, matcher: AlignmentModel, corpus: Corpus, store: FeatureStore
) -> None:
    for number, image in enumerate(corpus.images, start=1):
        page = Page(site / "pictures" / f"{number}.html")
        boxes = {own["data-region"] for own in page.of("rect")}
        snippets = page.of("span", "snippet")
        assert {own["data-region"] for own in snippets} <= boxes
        features = next(store_images(store, [image.id]))
        sentences = [tokens_of(caption) for caption in image.captions]
        places, aligned = matcher.align_captions(features, sentences)
        expected = {
            tuple(f"{side:.1f}" for side in (x1, y1, x2 - x1, y2 - y1))
            for text, own in zip(sentences, aligned, strict=True)
            for each in own
            # A sign by itself lies where the word before it does.
            if not all(map(is_sign, text[each.start : each.end]))
            for x1, y1, x2, y2 in [places[each.region].tolist()]
        }
        drawn = {tuple(own[name] for name in ("x", "y", "width", "height")) for own in page.of("rect")}
        assert expected <= drawn


def test_ranks_are_those_of_the_protocol(
    site: Path, matcher: AlignmentModel, corpus: Corpus, store: FeatureStore
) -> None:
    features = list(store_images(store, [image.id for image in corpus]))
    captions = [
        (tokens_of(caption), number) for number, image in enumerate(corpus.images) for caption in image.captions
    ]
    scores = matcher.score(features, [tokens for tokens, _ in captions])
    owner = np.array([number for _, number in captions])
    first_of = [
        captions[np.flatnonzero(owner == number)[scores[number, owner == number].argmax()]][0]
        for number in range(len(features))
    ]
    for number in range(len(features)):
        best = scores[number, owner == number].max()
        rank = 1 + int((scores[number, owner != number] >= best).sum())
        text = (site / "pictures" / f"{number + 1}.html").read_text("utf-8")
        found = [int(each) for each in re.findall(r'class="own">rank (\d+)', text)]
        assert min(found) == rank
        # Sentences that are shown as the best of all are in their places there, own ones too.
        best_of_all = text.split("The best of all sentences")[1]
        assert [int(each) for each in re.findall(r"rank (\d+)", best_of_all)] == [1, 2, 3, 4]
        index = (site / ("index.html" if number < 3 else f"page-{number // 3 + 1}.html")).read_text("utf-8")
        # With the caption that has it.
        [leading] = [caption for caption in corpus.images[number].captions if tokens_of(caption) == first_of[number]]
        said = escape(as_written(leading.tokens))
        assert re.search(rf'pictures/{number + 1}\.html".*rank {rank}(</span>)? {re.escape(said)}<', index)


def test_a_browser_shows_boxes_turns_pages_and_finds_captions_from_disk(site: Path, corpus: Corpus) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = os.environ.get("DEIXIS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine (DEIXIS_CHROMIUM can name one)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto((site / "pictures" / "1.html").as_uri())
        snippet = page.locator(".snippet").first
        snippet.focus()
        region = snippet.get_attribute("data-region")
        shown = page.locator("rect.on").evaluate_all("rects => rects.map((rect) => rect.dataset.region)")
        assert set(shown) == {region}
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**/pictures/2.html")
        page.goto((site / "index.html").as_uri())
        words = tokens_of(corpus.images[3].captions[0])[:3]
        page.fill("input[type=search]", " ".join(words))
        page.locator("#found a").first.wait_for()
        found = page.locator("#found a").all_inner_texts()
        assert all(word in each.lower() for each in found for word in words)
        page.fill("input[type=search]", "xyzzy")
        assert "Nothing" in page.locator("#found").inner_text()
        assert faults == []
        browser.close()
