"""Drawings: one colour a chain, boxes where they belong at any scale, captions whole and within their column."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image as Pillow

from deixis.corpus import Box, Chain, Corpus, Image, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from deixis.vision.drawing.pages import draw_annotations
from deixis.vision.drawing.palette import GREY, INK, PALETTE, PAPER, Colour, chain_styles, contrast, readable, text_on
from deixis.vision.drawing.typesetting import font, printable, set_caption, underline_levels
from tests.corpus.strategies import corpora


class OnePicture:
    """Pictures of which all are the same grey rectangle."""

    def __init__(self, width: int, height: int) -> None:
        stream = io.BytesIO()
        Pillow.new("RGB", (width, height), (90, 90, 90)).save(stream, "PNG")
        self.data = stream.getvalue()

    def has(self, image: Image) -> bool:
        return image.id != "absent"

    def read(self, image: Image) -> bytes:
        return self.data


def wedding(image_id: str = "wedding") -> Image:
    """The bride, the groom, the couple (both boxes), outside (no box), and a non-visual "love"."""
    bride, groom, couple = (
        Phrase(0, 2, "1", ("people",)),
        Phrase(3, 5, "2", ("people",)),
        Phrase(0, 2, "3", ("people",)),
    )
    captions = [
        make_caption("A bride and a groom .", phrases=[bride, groom]),
        make_caption("A couple in love outside .", phrases=[couple, Phrase(3, 4), Phrase(4, 5, "4", ("scene",))]),
    ]
    chains = [Chain("1", (0,)), Chain("2", (1,)), Chain("3", (0, 1)), Chain("4", scene=True)]
    boxes = [Box(100, 60, 200, 280), Box(260, 40, 360, 280)]
    return make_image(image_id, width=500, height=300, captions=captions, boxes=boxes, chains=chains)


def where(page: Pillow.Image, colour: Colour) -> np.ndarray:
    """Coordinates (y, x) of the pixels of exactly this colour."""
    return np.argwhere((np.asarray(page) == colour).all(-1))


def test_boxes_and_phrases_of_a_chain_share_its_colour() -> None:
    # The picture at hand is half the original's size; on the page it is 900 wide, so a box pixel is 1.8 page pixels.
    page = draw_annotations(Corpus([wedding()], pictures=OnePicture(250, 150)), "wedding")
    styles = chain_styles(wedding())
    assert len({style.colour for style in styles.values()}) == 4
    picture_bottom = 28 + 540
    for chain, box in (("1", Box(100, 60, 200, 280)), ("2", Box(260, 40, 360, 280))):
        spots = where(page, styles[chain].colour)
        in_picture, in_text = spots[spots[:, 0] < picture_bottom], spots[spots[:, 0] >= picture_bottom]
        left, top, right, bottom = (round(28 + value * 1.8) for value in (box.x1, box.y1, box.x2, box.y2))
        assert tuple(in_picture.max(0) + 1) == (bottom, right)
        assert in_picture[:, 1].min() == left
        # The label stands on the upper edge.
        assert top - 30 < in_picture[:, 0].min() <= top
        # One phrase and its underline, on the first line.
        assert len(in_text) > 20
        assert np.ptp(in_text[:, 0]) < 34
    couple = where(page, styles["3"].colour)
    assert {bool(x < 28 + 230 * 1.8) for y, x in couple if y < picture_bottom} == {True, False}


def test_boxes_of_a_picture_of_unknown_size_grow_with_it() -> None:
    known = wedding()
    unknown = msgspec.structs.replace(known, width=0, height=0)
    drawn, expected = (
        draw_annotations(Corpus([own], pictures=OnePicture(500, 300)), "wedding") for own in (unknown, known)
    )
    assert drawn.tobytes() == expected.tobytes()


def test_without_a_box_the_line_is_dotted_and_not_visual_is_grey() -> None:
    page = draw_annotations(Corpus([wedding()]), "wedding", caption=1)
    outside = where(page, chain_styles(wedding())["4"].colour)
    row = np.sort(outside[outside[:, 0] == outside[-1, 0]][:, 1])
    assert (np.diff(row) > 1).sum() >= 5
    couple = where(page, chain_styles(wedding())["3"].colour)
    line = np.sort(couple[couple[:, 0] == couple[-1, 0]][:, 1])
    assert (np.diff(line) == 1).all()
    assert len(where(page, GREY)) > 0


def test_one_caption_shows_only_the_chains_it_mentions() -> None:
    corpus = Corpus([wedding()])
    styles = chain_styles(wedding())
    page = draw_annotations(corpus, "wedding", caption=0)
    assert len(where(page, styles["1"].colour))
    assert not len(where(page, styles["3"].colour))
    assert not len(where(page, styles["4"].colour))
    assert page.height < draw_annotations(corpus, "wedding").height
    with pytest.raises(DeixisError, match="has 2 captions; there is no number 2"):
        draw_annotations(corpus, "wedding", caption=2)


def test_without_pixels_the_boxes_stand_on_a_blank_that_says_so() -> None:
    without = draw_annotations(Corpus([wedding()]), "wedding")
    missing = draw_annotations(Corpus([wedding("absent")], pictures=OnePicture(250, 150)), "absent")
    for page in (without, missing):
        assert page.getpixel((28 + 890, 28 + 10)) == (238, 239, 241)
        # The words stand in the middle, where the grey of the note is found and no box is.
        middle = np.asarray(page)[28 + 250 : 28 + 290, 28 + 365 : 28 + 460]
        assert (middle == GREY).all(-1).any()


def test_captions_keep_a_readable_column_under_a_narrow_picture() -> None:
    assert draw_annotations(Corpus([wedding()], pictures=OnePicture(250, 150)), "wedding").width == 900 + 56
    assert draw_annotations(Corpus([wedding()], pictures=OnePicture(10, 150)), "wedding").width == 640 + 56


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(corpora())
def test_any_corpus_can_be_drawn(corpus: Corpus) -> None:
    with_pictures = Corpus(corpus, pictures=OnePicture(37, 53))
    for image in corpus:
        for source in (corpus, with_pictures):
            assert draw_annotations(source, image.id).mode == "RGB"


def test_odd_text_and_tiny_boxes_are_drawn() -> None:
    words = ["二人", "émigré", "\ud800", "e\u0301", "\u200b", "שלום", "–", "x" * 400, "a\x07b", "😀"]
    image = make_image(
        "odd",
        width=50,
        height=50,
        captions=[make_caption("odd", words, [Phrase(0, 10, "1"), Phrase(7, 8, "2")]), make_caption("")],
        boxes=[Box(3, 3, 3, 3), Box(50, 50, 50, 50), Box(0, 0, 50, 50)],
        chains=[Chain("1", (0, 1, 2)), Chain("2", (0, 2)), Chain("unnamed", (2,))],
    )
    page = draw_annotations(Corpus([image]), "odd")
    assert page.width == 900 + 56


def test_the_font_shows_a_letter_its_base_letter_or_a_visible_replacement() -> None:
    assert printable("A man's cafe, 12%") == "A man's cafe, 12%"
    assert printable("émigré – naïve") == "emigre - naive"
    assert printable("e\u0301\u200b") == "e"
    assert printable("二\ud800") == "\ufffd\ufffd"
    assert font(20).getmask("\ufffd").getbbox() is not None


def test_lines_keep_to_the_column_and_lose_nothing() -> None:
    tokens = ("two", "men", ",", "one", "of", "them", "w" * 70, "(", "left", ")", "wave", "to", "a", "dog", ".") * 3
    caption = make_caption("", tokens)
    for column in (120.0, 333.0, 900.0):
        setting = set_caption(caption, 22, column)
        assert "".join(word.text for word in setting.words) == "".join(tokens)
        ends = [word.x + word.width for word in setting.words]
        # Only closing punctuation may hang over, and by no more than the size of the text.
        assert all(
            end <= column + (22 if tokens[word.token] in ",.)" else 0)
            for end, word in zip(ends, setting.words, strict=True)
        )
        for before, after in zip(setting.words, setting.words[1:], strict=False):
            assert after.line > before.line or after.x >= before.x + before.width - 1e-6
        firsts = {min(w.token for w in setting.words if w.line == line) for line in range(setting.lines)}
        assert not any(tokens[token] in ",.)" for token in firsts)


def test_underlines_of_nested_phrases_lie_apart() -> None:
    outer, inner, other = Phrase(0, 6, "1"), Phrase(4, 6, "2"), Phrase(7, 9, "3")
    assert underline_levels([outer, inner, other]) == {inner: 0, other: 0, outer: 1}
    # Equal spans of two chains, and crossing ones, never share a level.
    levels = underline_levels([Phrase(0, 3, "1"), Phrase(0, 3, "2"), Phrase(2, 5, "3")])
    assert len(set(levels.values())) == 3


def test_the_thirteenth_chain_comes_dashed() -> None:
    chains = [Chain(str(number), (number - 1,)) for number in range(1, 15)]
    boxes = [Box(number * 20, 10, number * 20 + 15, 90) for number in range(14)]
    image = make_image("many", width=300, height=100, boxes=boxes, chains=chains)
    styles = chain_styles(image)
    assert len(set(styles.values())) == 14
    assert [style.dashed for style in styles.values()] == [False] * 12 + [True] * 2
    page = np.asarray(draw_annotations(Corpus([image]), "many"))
    # Down the left line of a box: one colour, or the colour and gaps.
    for number, dashed in ((0, False), (12, True)):
        line = page[28 + 120 : 28 + 240, 28 + number * 60 + 1]
        assert ((line == PAPER).all(-1).any()) == dashed


def test_chains_with_boxes_get_the_first_colours() -> None:
    styles = chain_styles(wedding())
    assert [styles[chain].colour for chain in "1234"] == list(PALETTE[:4])
    swapped = make_image("x", captions=[make_caption("a b", phrases=[Phrase(0, 1, "9"), Phrase(1, 2, "2")])])
    assert list(chain_styles(swapped)) == ["9", "2"]


def test_text_is_readable_in_every_colour() -> None:
    for colour in PALETTE:
        assert contrast(readable(colour), PAPER) >= 4.5
        assert contrast(text_on(colour), colour) >= 4.5
    assert contrast(INK, PAPER) > 12


#: What people with protanopia, deuteranopia and tritanopia see (Machado et al. 2009, severity 1), on linear RGB.
VISIONS = {
    "common": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_differ_for_every_colour_vision(vision: str) -> None:
    encoded = np.array(PALETTE) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ VISIONS[vision].T, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratios = seen @ to_xyz.T / np.array([0.9505, 1.0, 1.089])
    curve = np.where(ratios > 0.008856, np.cbrt(ratios), 7.787 * ratios + 16 / 116)
    lab = np.stack([116 * curve[:, 1] - 16, 500 * (curve[:, 0] - curve[:, 1]), 200 * (curve[:, 1] - curve[:, 2])], 1)
    distances = np.linalg.norm(lab[:, None] - lab[None], axis=-1)[np.triu_indices(len(PALETTE), 1)]
    # ΔE 2.3 is just noticeable.
    assert distances.min() > 19
