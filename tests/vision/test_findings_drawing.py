"""A picture with what was found in it: texts beside it, and a label at the box itself."""

from __future__ import annotations

import numpy as np
from PIL import Image as Pillow

from deixis.corpus import Box
from deixis.vision.drawing.pages import Finding, draw_findings

PICTURE = Pillow.new("RGB", (360, 360), (90, 90, 90))
LINES = (("a white dog", "-1.20"), ("a dog", "-2.00"))


def test_a_label_stands_at_its_box_and_nowhere_else() -> None:
    plain, labelled = (
        np.asarray(draw_findings(PICTURE, [Finding(LINES, Box(40, 200, 120, 300), label)], "dogs"))
        for label in ("", "a white dog")
    )
    assert plain.shape == labelled.shape
    rows, columns = np.nonzero((plain != labelled).any(2))
    # The picture is drawn at twice its size, 28 pixels from the page's corner: the label is on the box's upper edge.
    assert columns.min() >= 28 + 2 * 40
    assert columns.max() < 28 + 2 * 360
    assert rows.min() >= 28 + 2 * 200 - 40
    assert rows.max() <= 28 + 2 * 300


def test_texts_are_beside_the_picture_and_make_the_page_longer() -> None:
    page, longer = (draw_findings(PICTURE, [Finding(LINES * times, Box(0, 0, 9, 9))]) for times in (1, 20))
    assert page.width == longer.width > 2 * PICTURE.width
    assert page.height < longer.height
