"""A real cut of COCO in one file with lists of ids beside it."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest

from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.corpus.leak_guard import _held_out, hash_photo_ids, is_held_out, training_set

DATA = Path(os.environ.get("DEIXIS_DATA", "no data"))
COCO = DATA / "coco_mini"
pytestmark = pytest.mark.skipif(not COCO.is_dir(), reason="needs DEIXIS_DATA, a folder that holds coco_mini")


@pytest.fixture(scope="module")
def coco() -> Corpus:
    return open_corpus(COCO, cache=False)


def test_every_picture_caption_and_split_is_there(coco: Corpus) -> None:
    assert coco.splits == {"test": 2000, "train": 10208, "val": 500}
    assert sum(len(image.captions) for image in coco) == 63569
    assert coco.pictures is not None
    assert all(coco.pictures.has(image) for image in coco)
    assert coco == open_corpus(COCO / "captions.json", cache=False)


def test_exactly_validation_and_test_pictures_are_held_out(coco: Corpus) -> None:
    """By their ids, whatever split a corpus puts them in."""
    assert {image.id for image in coco if is_held_out(image)} == {image.id for image in coco.split("val", "test")}
    assert training_set(coco, ("train", "val", "test")).excluded == 2500
    assert len(training_set(coco)) == 10208
    assert hash_photo_ids(f"{int(image.id):012}" for image in coco.split("val", "test")) == sorted(
        _held_out() - set(files("deixis.corpus").joinpath("held_out.txt").read_text().split())
    )


def test_every_format_that_holds_captions_gives_them_back(coco: Corpus, tmp_path: Path) -> None:
    texts = {image.id: [caption.text for caption in image.captions] for image in coco}
    for format in ("coco", "karpathy", "folder"):
        write_corpus(coco, tmp_path / format, format=format)
        again = open_corpus(tmp_path / format, cache=False)
        assert {image.id: [caption.text for caption in image.captions] for image in again} == texts
        assert {image.id: image.split for image in again} == {image.id: image.split for image in coco}
