"""A static site of alignments (DVSA's web demo): the pictures of a split, and how sentences lie over them.

A page a picture: its own captions with their ranks, and the sentences of the whole split that score highest; words in
the colour of their region, whose box shows under the pointer or the keyboard's focus. Index pages list the pictures, so
many a page. With a captioner, one more page compares captions as Fig. 5 of the supplement does. Everything opens from
disk: no server, no other host, no module or request that a browser forbids there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from deixis.corpus import Caption, Corpus, Image, training_set
from deixis.features.store import FeatureStore
from deixis.files import atomic_write, write_text
from deixis.metrics.captioning_protocol import best_sentences
from deixis.model import Alignment, Box, ImageFeatures, Model, store_images
from deixis.text.tokens import tokens_of
from deixis.vision.drawing.palette import PALETTE
from deixis.vision.drawing.typesetting import as_written, stands_close
from deixis.vision.reading import read_picture

#: Pictures of an index page; the longer side of a picture; images that are scored together.
PER_PAGE, LONGER_SIDE, BLOCK = 60, 720, 512
STATIC = ("site.css", "site.js")
#: The page that compares captions, its headings, and pictures that are described together.
COMPARISON, COMPARED, DESCRIBED = "captions.html", ("Person", "Nearest training caption", "Generated"), 32


class SiteReport(NamedTuple):
    pictures: int
    captions: int
    #: Pictures of which the best-scoring sentence of all is one of their own captions.
    first: int


class Snippet(NamedTuple):
    """Words `start` to `end` (exclusive) of a sentence, their region (0: the whole picture), and their score."""

    start: int
    end: int
    region: int
    score: float


@dataclass(frozen=True)
class Line:
    """A sentence on a picture's page: its tokens as written, its snippets, its score, and its rank among all."""

    tokens: tuple[str, ...]
    snippets: tuple[Snippet, ...]
    score: float
    rank: int
    own: bool


@dataclass(frozen=True)
class Shown:
    """A picture's page: boxes of regions, the whole picture's first; its own captions, and the best of all."""

    image: Image
    size: tuple[float, float]
    boxes: Sequence[Box]
    own: tuple[Line, ...]
    best: tuple[Line, ...]


def write_site(
    folder: Path,
    model: Model,
    corpus: Corpus,
    images: Sequence[Image],
    store: FeatureStore,
    *,
    title: str,
    beta: float,
    temperature: float,
    sentences: int,
    captioner: Model | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SiteReport:
    """Write the site into an empty or new folder.

    Args:
        corpus: where the pictures are.
        images: those that are shown; their captions are ranked for each.
        store: their regions.
        title: of every page.
        beta: what neighbouring words of one region add.
        temperature: above 0, all chains of regions have a say.
        sentences: the best so many of all are shown on each page.
        captioner: describes the pictures for the page that compares captions; None: without that page.
        progress: called with the number of pictures done and of all.
    """
    for name in STATIC:
        write_text(folder / name, (files(__package__) / "static" / "alignments" / name).read_text("utf-8"))
    names = [f"{number:0{len(str(len(images)))}d}" for number in range(1, len(images) + 1)]
    best: list[Line | None] = []
    for index, shown in enumerate(_shown(model, images, store, (beta, temperature), sentences)):
        around = [names[other] if 0 <= other < len(names) else "" for other in (index - 1, index + 1)]
        write_text(folder / "pictures" / f"{names[index]}.html", _picture_page(shown, names[index], around, title))
        _write_picture(corpus, shown.image, folder / "images" / f"{names[index]}.jpg")
        best.append(min(shown.own, key=lambda line: line.rank, default=None))
        progress(index + 1, len(images))
    first = sum(line is not None and line.rank == 1 for line in best)
    captions = [(names[position], caption) for position, image in enumerate(images) for caption in image.captions]
    report = SiteReport(len(images), len(captions), first)
    _write_captions(folder / "captions.js", captions)
    if captioner is not None:
        described = compared_captions(model, captioner, corpus, images, store)
        rows = [_compared(name, texts) for name, texts in zip(names, described, strict=True)]
        write_text(folder / COMPARISON, _comparison_page(rows, title))
    pages = -(-len(images) // PER_PAGE)
    for page in range(pages):
        chosen = range(page * PER_PAGE, min(len(images), (page + 1) * PER_PAGE))
        cells = [_cell(images[position], names[position], best[position]) for position in chosen]
        page_text = _index_page(cells, page, pages, title, report, compared=captioner is not None)
        write_text(folder / _page_name(page), page_text)
    return report


def _shown(
    model: Model, images: Sequence[Image], store: FeatureStore, smoothing: tuple[float, float], count: int
) -> Iterator[Shown]:
    captions = [caption for image in images for caption in image.captions]
    owner = np.array([index for index, image in enumerate(images) for _ in image.captions], np.int64)
    texts = [tokens_of(caption) for caption in captions]
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK]
        features = list(store_images(store, [image.id for image in block]))
        scores = model.score(features, texts) if texts else np.zeros((len(block), 0))
        for index, (image, seen, row) in enumerate(zip(block, features, scores, strict=True), start=start):
            yield _page_of(model, image, seen, row, captions, owner == index, smoothing, count)


def _page_of(
    model: Model,
    image: Image,
    features: ImageFeatures,
    scores: NDArray[Any],
    captions: Sequence[Caption],
    of_image: NDArray[np.bool_],
    smoothing: tuple[float, float],
    count: int,
) -> Shown:
    order = np.argsort(-scores, kind="stable")
    wanted = list(dict.fromkeys([*np.flatnonzero(of_image).tolist(), *order[:count].tolist()]))
    texts = [tokens_of(captions[index]) for index in wanted]
    width, height = features.size
    regions: dict[Box, int] = {(0.0, 0.0, width, height): 0}
    aligned = [model.align(features, text, beta=smoothing[0], temperature=smoothing[1]) for text in texts]
    lines = {
        index: Line(
            captions[index].tokens,
            _snippets(own_alignment, regions),
            float(scores[index]),
            # A wrong sentence of the same score goes before a right one.
            1 + int((scores > scores[index]).sum() + (of_image[index] and (scores[~of_image] == scores[index]).sum())),
            bool(of_image[index]),
        )
        for index, own_alignment in zip(wanted, aligned, strict=True)
    }
    own_lines = sorted((line for line in lines.values() if line.own), key=lambda line: -line.score)
    return Shown(
        image, features.size, list(regions), tuple(own_lines), tuple(lines[index] for index in order[:count].tolist())
    )


def _snippets(aligned: Alignment, regions: dict[Box, int]) -> tuple[Snippet, ...]:
    """All words of a sentence; punctuation before a snippet goes with it. New regions are added to `regions`."""
    snippets, end = [], 0
    for snippet in aligned.snippets:
        region = regions.setdefault(snippet.boxes[0], len(regions))
        snippets.append(Snippet(end, snippet.end, region, snippet.score))
        end = snippet.end
    return tuple(snippets)


def _picture_page(shown: Shown, name: str, around: Sequence[str], title: str) -> str:
    used = dict.fromkeys(
        snippet.region for line in (*shown.own, *shown.best) for snippet in line.snippets if snippet.region
    )
    colours = {region: position for position, region in enumerate(used)}
    width, height = shown.size
    boxes = "\n".join(_box(region, shown.boxes[region], colours) for region in (0, *used))
    parts = []
    for heading, lines in (("Its own captions", shown.own), ("The best of all sentences", shown.best)):
        items = "\n".join(_sentence(line, colours) for line in lines)
        if items:
            parts.append(f'<h2>{heading}</h2>\n<ol class="sentences">\n{items}\n</ol>')
    links = "\n".join(
        f'<a rel="{rel}" href="{other}.html">{text}</a>'
        for rel, other, text in zip(("prev", "next"), around, ("← before", "next →"), strict=True)
        if other
    )
    index = _page_name((int(name) - 1) // PER_PAGE)
    alt = as_written(shown.image.captions[0].tokens) if shown.image.captions else shown.image.id
    body = f"""<nav><a href="../{index}">All pictures</a>
{links}
<span class="soft">image {escape(shown.image.id)}</span></nav>
</header>
<main class="stage">
<figure class="picture"><svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}">
<image href="../images/{name}.jpg" width="{width:g}" height="{height:g}" preserveAspectRatio="none"/>
{boxes}</svg><figcaption aria-live="polite"></figcaption></figure>
<div>
<noscript><p>Boxes need JavaScript; words have the colours of their regions without it.</p></noscript>
{chr(10).join(parts)}
</div>
</main>"""
    return _document(f"{shown.image.id} · {title}", title, body, "../")


def _box(region: int, box: Box, colours: dict[int, int]) -> str:
    x1, y1, x2, y2 = box
    attributes = f'data-region="{region}" x="{x1:.1f}" y="{y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}"'
    return f'<rect class="halo" {attributes}/><rect {_style(region, colours)} {attributes}/>'


def _style(region: int, colours: dict[int, int], also: str = "") -> str:
    """Class and colour of a region; after twelve, colours come again, dashed."""
    if not region:
        return f'class="{f"{also} whole".strip()}" style="--c: var(--soft)"'
    index = colours[region]
    again = "again" if index >= len(PALETTE) else ""
    red, green, blue = PALETTE[index % len(PALETTE)]
    return f'class="{f"{also} {again}".strip()}" style="--c: #{red:02x}{green:02x}{blue:02x}"'


def _sentence(line: Line, colours: dict[int, int]) -> str:
    words = ""
    for snippet in line.snippets:
        tokens = line.tokens[snippet.start : snippet.end]
        before = line.tokens[snippet.start - 1] if snippet.start else ""
        gap = "" if not before or stands_close(before, tokens[0]) else " "
        where = "the whole picture" if not snippet.region else f"region {snippet.region}"
        title = escape(f"{as_written(tokens)}: {where}, {snippet.score:.2f}")
        words += (
            f'{gap}<span tabindex="0" {_style(snippet.region, colours, "snippet")} data-region="{snippet.region}" '
            f'title="{title}">{escape(as_written(tokens))}</span>'
        )
    rank = f'<span class="own">rank {line.rank:,}</span>' if line.own else f"rank {line.rank:,}"
    return f'<li><div class="figures">{rank}<br>{line.score:.2f}</div><p>{words}</p></li>'


def _cell(image: Image, name: str, best: Line | None) -> str:
    """With the best of the picture's own captions, and its rank."""
    sentence = as_written(best.tokens) if best else image.id
    mark = "" if best is None else f"rank {best.rank:,}"
    if mark == "rank 1":
        mark = f'<span class="first">{mark}</span>'
    return (
        f'<li><a href="pictures/{name}.html"><img src="images/{name}.jpg" alt="" loading="lazy">'
        f"<small>{mark} {escape(sentence)}</small></a></li>"
    )


class ComparedCaptions(NamedTuple):
    """Of one picture: a person's caption, the training caption that the aligner scores highest, and a generated one."""

    human: str
    nearest: str
    generated: str


def compared_captions(
    aligner: Model, captioner: Model, corpus: Corpus, images: Sequence[Image], store: FeatureStore
) -> list[ComparedCaptions]:
    """Captions of each picture (Fig. 5 of the supplement); the training captions are those of the corpus."""
    of_people = {tokens_of(caption): caption.tokens for image in training_set(corpus) for caption in image.captions}
    captions = list(of_people)
    features = list(store_images(store, [image.id for image in images]))
    nearest = best_sentences(aligner, features, captions, 1)
    people = [image.captions[0].tokens if image.captions else () for image in images]
    generated: list[str] = []
    for start in range(0, len(images), DESCRIBED):
        pictures = [read_picture(corpus, image) for image in images[start : start + DESCRIBED]]
        generated += [descriptions[0].text for descriptions in captioner.describe_all(pictures)]
    return [
        ComparedCaptions(as_written(human), as_written(of_people[captions[index]]), as_written(text.split()))
        for human, (index,), text in zip(people, nearest, generated, strict=True)
    ]


def _compared(name: str, texts: ComparedCaptions) -> str:
    lines = "".join(f"<dt>{heading}</dt><dd>{escape(text)}</dd>" for heading, text in zip(COMPARED, texts, strict=True))
    picture = f'<a href="pictures/{name}.html"><img src="images/{name}.jpg" alt="" loading="lazy"></a>'
    return f"<li>{picture}<dl>{lines}</dl></li>"


def _comparison_page(rows: Sequence[str], title: str) -> str:
    listing = "\n".join(rows)
    body = f"""<p class="lead">Each picture with a person's caption, the training caption that the aligner scores best,
and a generated one.</p>
<nav><a href="{_page_name(0)}">All pictures</a></nav>
</header>
<main><ul class="grid compared">
{listing}
</ul></main>"""
    return _document(f"Captions compared · {title}", f"Captions compared: {title}", body, "")


def _index_page(
    cells: Sequence[str], page: int, pages: int, title: str, report: SiteReport, *, compared: bool = False
) -> str:
    share = f"{100 * report.first / report.pictures:.1f}%" if report.pictures else "none"
    lead = (
        f"{report.pictures:,} pictures, {report.captions:,} captions. Of {share} of the pictures the best-scoring "
        "sentence of all is one of their own. Ranks are those of a picture's best own caption among all captions."
    )
    numbers = "\n".join(
        f'<span class="here" aria-current="page">{other + 1}</span>'
        if other == page
        else f'<a href="{_page_name(other)}">{other + 1}</a>'
        for other in range(pages)
    )
    listing = "\n".join(cells)
    comparison = f'<p><a href="{COMPARISON}">Captions compared</a></p>\n' if compared else ""
    body = f"""<p class="lead">{escape(lead)}</p>
{comparison}<label>Find a caption: <input type="search" placeholder="dog water" autocomplete="off"></label>
<ol id="found" aria-live="polite"></ol>
<nav aria-label="Pages">{numbers}</nav>
</header>
<main><ul class="grid">
{listing}
</ul></main>
<footer><nav aria-label="Pages again">{numbers}</nav></footer>"""
    return _document(f"{title}, page {page + 1}" if page else title, title, body, "")


def _document(head: str, title: str, body: str, root: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(head)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{root}site.css"><script src="{root}site.js" defer></script></head>
<body>
<header><h1>{escape(title)}</h1>
{body}
</body>
</html>
"""


def _page_name(page: int) -> str:
    return f"page-{page + 1}.html" if page else "index.html"


def _write_captions(path: Path, captions: Sequence[tuple[str, Caption]]) -> None:
    listed = [(name, as_written(caption.tokens)) for name, caption in captions]
    write_text(path, f"window.CAPTIONS = {msgspec.json.encode(listed).decode()};\n")


def _write_picture(corpus: Corpus, image: Image, path: Path) -> None:
    picture = read_picture(corpus, image)
    picture.thumbnail((LONGER_SIDE, LONGER_SIDE), Pillow.Resampling.LANCZOS)
    with atomic_write(path, sync=False) as stream:
        picture.save(stream, "JPEG", quality=85)
