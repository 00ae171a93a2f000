"""Regions and phrases in Visual Genome's shape, and what the reader says of damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deixis.corpus import Box, Chain, Corpus, Phrase, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import InputError


def region(number: int, phrase: str, x: float = 0, y: float = 0, width: float = 9, height: float = 9) -> dict[str, Any]:
    return {
        "region_id": number,
        "image_id": 5,
        "x": x,
        "y": y,
        "width": width,
        "height": height,
        "phrase": phrase,
        "synsets": [],
    }


def put(folder: Path, *regions: dict[str, Any], image_id: str = "id") -> None:
    (folder / "region_descriptions.json").write_text(json.dumps([{image_id: 5, "regions": regions}]))
    data = {
        "image_id": 5,
        "url": "https://example.org/people/VG_100K_2/5.jpg",
        "width": 100,
        "height": 80,
        "coco_id": None,
        "flickr_id": 12345678,
    }
    (folder / "image_data.json").write_text(json.dumps([data]))


@pytest.mark.parametrize("image_id", ["id", "image_id"])
def test_a_region_is_a_chain_whose_phrases_are_whole_captions(tmp_path: Path, image_id: str) -> None:
    put(
        tmp_path,
        region(7, "the red car", 1, 2, 3, 4),
        region(8, "a wheel."),
        region(7, "a car", 1, 2, 3, 4),
        image_id=image_id,
    )
    assert detect_format(open_tree(tmp_path)) == "region-phrase"
    (image,) = open_corpus(tmp_path)
    assert (image.id, image.file, image.width, image.height) == ("5", "VG_100K_2/5.jpg", 100, 80)
    assert image.source_id == "12345678"
    assert image.chain_boxes("7") == (Box(1, 2, 4, 6),)
    mentions = [(caption.phrase_text(phrase), phrase.chain) for caption in image.captions for phrase in caption.phrases]
    assert mentions == [("the red car", "7"), ("a wheel.", "8"), ("a car", "7")]


def test_published_regions_outside_their_picture_are_clipped_or_lose_their_box(tmp_path: Path) -> None:
    put(tmp_path, region(1, "edge", -2, 70, 10, 20), region(2, "a cloud", 10, -904, 50, 25))
    (image,) = open_corpus(tmp_path)
    assert image.chain_boxes("1") == (Box(0, 70, 8, 80),)
    assert image.chain_boxes("2") == ()
    assert [caption.text for caption in image.captions] == ["edge", "a cloud"]


def test_an_annotated_corpus_gives_each_chain_as_a_region_with_its_mentions(tmp_path: Path) -> None:
    phrases = [Phrase(0, 2, "3", ("people",)), Phrase(4, 6, "4", ("scene",))]
    image = make_image(
        "5",
        width=20,
        height=20,
        split="test",
        captions=[make_caption("two men stand on a beach", phrases=phrases)],
        boxes=[Box(0, 0, 5, 5), Box(8, 1, 9, 9), Box(1, 1, 2, 2)],
        chains=[Chain("3", (0, 1)), Chain("6", (2,))],
    )
    write_corpus(Corpus([image]), tmp_path, format="region-phrase")
    (again,) = open_corpus(tmp_path)
    assert again.split == "test"
    assert again.chain_boxes("3") == (Box(0, 0, 9, 9),)
    assert again.chain_boxes("6") == (Box(1, 1, 2, 2),)
    assert [caption.text for caption in again.captions] == ["two men"]


def test_the_region_file_alone_finds_the_sizes_beside_it(tmp_path: Path) -> None:
    put(tmp_path, region(1, "a tree"))
    assert open_corpus(tmp_path / "region_descriptions.json") == open_corpus(tmp_path)


@pytest.mark.parametrize(
    ("regions", "place", "problem"),
    [
        ([region(1, "x"), {**region(2, "y"), "phrase": None}], "[0].regions[1].phrase", "str"),
        ([region(1, "x", width=-4)], "[0]", "region 1: width and height"),
        ([region(1, "x"), region(1, "y", x=3)], "[0]", "region 1 has two boxes"),
        ([{"region_id": 4}], "[0].regions[0]", "missing required field `x`"),
    ],
)
def test_a_fault_names_file_and_field(tmp_path: Path, regions: list[dict[str, Any]], place: str, problem: str) -> None:
    put(tmp_path, *regions)
    with pytest.raises(InputError, match=problem) as caught:
        open_corpus(tmp_path)
    assert caught.value.place == f"region_descriptions.json {place}"


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    put(tmp_path, region(1, "x"))
    text = (tmp_path / "region_descriptions.json").read_text()
    (tmp_path / "region_descriptions.json").write_text(text[:-20])
    with pytest.raises(InputError, match=r"region_descriptions\.json: is not JSON"):
        open_corpus(tmp_path)
