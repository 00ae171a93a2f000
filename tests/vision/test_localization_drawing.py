"""Drawn localizations promise: a row per method, a column per caption, right and wrong marked, scores in brackets."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image as Pillow

from deixis.corpus import Box, Chain, Image, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from deixis.vision.drawing.pages import Example, FoundPhrase, _with_scores, draw_comparison
from deixis.vision.drawing.palette import PALETTE, PAPER


@pytest.fixture
def image() -> Image:
    phrases = [Phrase(0, 2, "1"), Phrase(3, 5, "2")]
    return make_image(
        "one",
        width=200,
        height=100,
        captions=[make_caption("A man rides a horse .", phrases=phrases)],
        boxes=[Box(10, 10, 60, 90), Box(100, 20, 180, 80)],
        chains=[Chain("1", (0,)), Chain("2", (1,))],
    )


def found(image: Image, *, right: tuple[bool, bool]) -> tuple[FoundPhrase, ...]:
    phrases = image.captions[0].phrases
    return tuple(
        FoundPhrase(phrase, box, 0.25 * number, ok)
        for number, (phrase, box, ok) in enumerate(zip(phrases, image.boxes, right, strict=True))
    )


def example(image: Image, *rows: tuple[bool, bool]) -> Example:
    # The picture at hand is half the original's size.
    picture = Pillow.new("RGB", (100, 50), (90, 90, 90))
    return Example(image, picture, image.captions[0], tuple(found(image, right=right) for right in rows))


def share(drawing: Pillow.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(drawing) == colour).all(axis=-1).sum())


def test_a_wrong_region_has_gaps_in_its_outline(image: Image) -> None:
    both = draw_comparison(["only"], [example(image, (True, True))])
    one = draw_comparison(["only"], [example(image, (True, False))])
    assert both.size == one.size
    assert share(one, PALETTE[0]) == share(both, PALETTE[0]) > 1000
    assert 0 < share(one, PALETTE[1]) < 0.85 * share(both, PALETTE[1])


def test_two_mentions_of_one_chain_have_colours_of_their_own(image: Image) -> None:
    phrases = [Phrase(0, 2, "1"), Phrase(3, 5, "1")]
    mentions = make_image("two", width=200, height=100, captions=[make_caption("a man and a man", phrases=phrases)])
    drawing = draw_comparison(["only"], [example(replace(image, captions=mentions.captions), (True, True))])
    assert min(share(drawing, colour) for colour in PALETTE[:2]) > 1000


def test_boxes_are_where_they_belong_on_the_enlarged_picture(image: Image) -> None:
    drawing = np.asarray(draw_comparison(["only"], [example(image, (True, True))]))
    ground = np.argwhere((drawing == (90, 90, 90)).all(axis=-1))
    (top, left), (bottom, right) = ground.min(axis=0), ground.max(axis=0) + 1
    assert (right - left) / (bottom - top) == pytest.approx(2, abs=0.02)
    colour = PALETTE[1]
    rows, columns = np.nonzero((drawing[top:bottom, left:right] == colour).all(axis=-1))
    scale = (right - left) / image.width
    assert [columns.min(), rows.min(), columns.max(), rows.max()] == pytest.approx(
        [100 * scale, 20 * scale, 180 * scale, 80 * scale], abs=3
    )


def test_rows_are_methods_and_columns_are_captions(image: Image) -> None:
    single = draw_comparison(["above"], [example(image, (True, True))])
    rows = draw_comparison(["above", "below"], [example(image, (True, True), (False, False))])
    columns = draw_comparison(["above"], [example(image, (True, True))] * 3)
    assert rows.width == single.width
    assert rows.height > 1.5 * single.height
    assert columns.height == single.height
    assert columns.width > 2.5 * single.width
    corners = np.asarray(columns)[[0, -1]]
    assert (corners == PAPER).all()


def test_scores_stand_after_their_phrases_inside_their_colour() -> None:
    # "a man in a hat" with "a hat" inside it: the inner phrase's score comes first, the outer one takes both in.
    phrases = [Phrase(0, 5, "1"), Phrase(3, 5, "2"), Phrase(7, 9, "3"), Phrase(8, 9, "4")]
    caption = make_caption("a man in a hat holds up big dogs now", phrases=phrases)
    box = Box(0, 0, 1, 1)
    scored = _with_scores(caption, [FoundPhrase(phrase, box, float(n), True) for n, phrase in enumerate(phrases)])
    assert scored.text == "a man in a hat (1.00) (0.00) holds up big dogs (3.00) (2.00) now"
    texts = {phrase.chain: scored.phrase_text(phrase) for phrase in scored.phrases}
    assert texts == {
        "1": "a man in a hat (1.00) (0.00)",
        "2": "a hat (1.00)",
        "3": "big dogs (3.00) (2.00)",
        "4": "dogs (3.00)",
    }


def test_every_method_must_have_looked_at_every_caption(image: Image) -> None:
    with pytest.raises(DeixisError, match="a result for every method"):
        draw_comparison(["above", "below"], [example(image, (True, True))])
    with pytest.raises(DeixisError, match="needs examples"):
        draw_comparison(["above"], [])
