"""The demo's page: one HTML file beside its pictures, opened from disk, no script and no server needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from deixis.corpus import Caption, Image
from deixis.vision.drawing.palette import chain_styles
from deixis.vision.drawing.typesetting import as_written, stands_close

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fbfaf7; --soft: #6a7180; --line: #d9d6cd; --good: #1a7f4b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e0; --paper: #16181d; --soft: #a0a6b2; --line: #343842; --good: #5fd39a } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 0 auto; padding: 2rem 1.2rem 5rem }
h1 { font-size: 1.9rem; margin: 0 0 .2rem } h2 { margin: 2.6rem 0 .6rem; font-size: 1.25rem }
p.lead { color: var(--soft); margin-top: 0; max-width: 46rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 } th { color: var(--soft); font-weight: 600 }
.scenes { display: grid; gap: 1.6rem; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)) }
figure { margin: 0 } figure svg, figure img { width: 100%; height: auto; border-radius: 6px; display: block }
figcaption p { margin: .45rem 0 0; line-height: 1.8 }
mark { color: inherit; background: none; border-bottom: 3px solid var(--chain); padding-bottom: 1px }
mark.unboxed { border-bottom-style: dotted } mark.abstract { border-bottom: 1px dashed var(--soft) }
.hits { display: grid; grid-template-columns: repeat(5, 1fr); gap: .5rem; margin: .4rem 0 1.4rem }
.hits figure { position: relative } .hits figcaption { font-size: .8rem; color: var(--soft) }
.hits .right img { outline: 4px solid var(--good) } .hits .right figcaption { color: var(--good); font-weight: 600 }
@media (max-width: 40rem) { .hits { grid-template-columns: repeat(3, 1fr) } }
"""


def page(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """A whole document from headed sections of HTML."""
    body = "\n".join(f"<section><h2>{escape(heading)}</h2>\n{content}\n</section>" for heading, content in sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style></head>\n'
        f'<body>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{body}\n</body>\n</html>\n'
    )


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and the others figures."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def annotated(image: Image, picture: str) -> str:
    """A picture with its boxes, and its captions with phrases underlined in their chain's colour (Entities, Fig. 1)."""
    colours = {chain: _css(style.colour) for chain, style in chain_styles(image).items()}
    boxes = "\n".join(
        f'<rect x="{box.x1:g}" y="{box.y1:g}" width="{box.x2 - box.x1:g}" height="{box.y2 - box.y1:g}" fill="none" '
        f'stroke="{colours[chain.id]}" stroke-width="2.5"/>'
        for chain in image.chains
        for box in image.chain_boxes(chain.id)
    )
    boxed = frozenset(chain.id for chain in image.chains if chain.boxes)
    captions = "\n".join(f"<p>{_marked(caption, colours, boxed)}</p>" for caption in image.captions)
    alt = escape(as_written(image.captions[0].tokens) if image.captions else image.id)
    return (
        f'<figure><svg viewBox="0 0 {image.width} {image.height}" role="img" aria-label="{alt}">'
        f'<image href="{escape(picture)}" width="{image.width}" height="{image.height}"/>\n{boxes}</svg>\n'
        f"<figcaption>{captions}</figcaption></figure>"
    )


def hits(query: str, pictures: Iterable[tuple[str, float, bool]]) -> str:
    """What a sentence finds: pictures with their scores, the right one outlined."""
    cells = "\n".join(
        f'<figure{" class=right" if right else ""}><img src="{escape(picture)}" alt="" loading="lazy">'
        f"<figcaption>{score:.2f}{' · right' if right else ''}</figcaption></figure>"
        for picture, score, right in pictures
    )
    return f'<p>“{escape(query)}”</p>\n<div class="hits">{cells}</div>'


def drawing_of(file: str, alt: str) -> str:
    """A drawing as wide as the page, which leads to its file."""
    picture = f'<img src="{escape(file)}" alt="{escape(alt)}" loading="lazy">'
    return f'<figure><a href="{escape(file)}">{picture}</a><figcaption><p>{escape(alt)}.</p></figcaption></figure>'


def _marked(caption: Caption, colours: dict[str, str], boxed: frozenset[str]) -> str:
    """The caption as HTML; phrases may nest, since they come sorted outermost first."""
    opening: dict[int, list[str]] = {}
    closing: dict[int, int] = {}
    for phrase in caption.phrases:
        if phrase.visual:
            kind = "" if phrase.chain in boxed else ' class="unboxed"'
            tag = f'<mark{kind} style="--chain: {colours[phrase.chain]}">'
        else:
            tag = '<mark class="abstract">'
        opening.setdefault(phrase.start, []).append(tag)
        closing[phrase.end] = closing.get(phrase.end, 0) + 1
    html, previous = "", ""
    for index, token in enumerate(caption.tokens):
        gap = "" if not index or stands_close(previous, token) else " "
        html += gap + "".join(opening.get(index, [])) + escape(token) + "</mark>" * closing.get(index + 1, 0)
        previous = token
    return html


def _css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
