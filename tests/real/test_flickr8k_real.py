"""Flickr8k as published, its join with Flickr30k Entities, and the leak guard's list."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest

from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.corpus.combine import join, photo_id
from deixis.corpus.leak_guard import hash_photo_ids, is_held_out, training_set

DATA = Path(os.environ.get("DEIXIS_DATA", "no data"))
FLICKR8K, ENTITIES = DATA / "flickr8k", DATA / "flickr30k_entities" / "annotations.zip"
pytestmark = pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs DEIXIS_DATA, a folder that holds flickr8k")


@pytest.fixture(scope="module")
def flickr8k() -> Corpus:
    return open_corpus(FLICKR8K)


@pytest.fixture(scope="module")
def entities() -> Corpus:
    if not ENTITIES.exists():
        pytest.skip("needs flickr30k_entities/annotations.zip in DEIXIS_DATA")
    return open_corpus(ENTITIES)


def test_every_picture_caption_and_split_is_there(flickr8k: Corpus) -> None:
    assert flickr8k.splits == {"train": 6000, "val": 1000, "test": 1000, "": 92}
    assert sum(len(image.captions) for image in flickr8k) == 40460
    assert flickr8k.pictures is not None
    missing = [image for image in flickr8k if not flickr8k.pictures.has(image)]
    assert [(image.id, image.split, len(image.captions)) for image in missing] == [("2258277193_586949ec62", "", 5)]
    assert flickr8k.pictures.read(flickr8k.images[0]).startswith(b"\xff\xd8")


def test_written_again_the_token_file_is_the_same_bytes(flickr8k: Corpus, tmp_path: Path) -> None:
    write_corpus(flickr8k, tmp_path, format="flickr8k")
    assert (tmp_path / "Flickr8k.token.txt").read_bytes() == (FLICKR8K / "Flickr8k.token.txt").read_bytes()
    for split in ("train", "dev", "test"):
        name = f"Flickr_8k.{split}Images.txt"
        assert set((tmp_path / name).read_text().split()) == set((FLICKR8K / name).read_text().split())


def test_the_list_held_out_is_that_of_the_release(flickr8k: Corpus) -> None:
    names = [
        name for split in ("dev", "test") for name in (FLICKR8K / f"Flickr_8k.{split}Images.txt").read_text().split()
    ]
    shipped = files("deixis.corpus").joinpath("held_out.txt").read_text("ascii")
    assert hash_photo_ids(name.partition("_")[0] for name in names) == shipped.split()
    assert {image.id for image in flickr8k if is_held_out(image)} == {name.removesuffix(".jpg") for name in names}
    assert (len(training_set(flickr8k)), training_set(flickr8k).excluded) == (6000, 0)


def test_the_entities_training_list_is_cleaned(entities: Corpus, flickr8k: Corpus) -> None:
    found = training_set(entities)
    assert (len(found), found.excluded) == (27900, 1883)
    unseen = {photo_id(image) for image in flickr8k.split("val", "test")}
    assert not unseen & {image.id for image in found}


def test_entities_give_flickr8k_its_phrases_and_boxes(flickr8k: Corpus, entities: Corpus) -> None:
    report = join(flickr8k, entities)
    assert report.counts == {
        "images_matched": 8092,
        "images_unmatched": 0,
        # 98.6 % of the captions; most of the others were respelled ("gray", "blond").
        "captions_exact": 39212,
        "captions_normalized": 677,
        "captions_unmatched": 571,
        "phrases_attached": 123973,
        # 1,921 of captions without a match, 48 that begin or end inside a word ("onstage").
        "phrases_unattached": 1969,
        "boxes_attached": 52318,
    }
    # 7 boxes and 12 phrases are on the one picture without pixels.
    assert flickr8k.pictures is not None
    at_hand = [entities[photo_id(image)] for image in flickr8k if flickr8k.pictures.has(image)]
    assert sum(len(image.boxes) for image in at_hand) == 52311
    assert sum(len(caption.phrases) for image in at_hand for caption in image.captions) == 125930
    for image in report.corpus:
        source = entities[photo_id(image)]
        assert (image.width, image.height, image.boxes) == (source.width, source.height, source.boxes)
