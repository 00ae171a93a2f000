"""The leak guard. Photo ids held out here are invented; tests/real checks the list that ships."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus import Corpus, leak_guard, make_caption, make_image
from deixis.corpus.combine import concat, join
from deixis.corpus.leak_guard import TrainingSet, assert_trainable, hash_photo_ids, is_held_out, training_set
from deixis.errors import DeixisError, LeakError

HELD_OUT = ("10000019", "2345678901", "99999999")
#: The same photo as Flickr8k, Entities, a download, COCO and a renamed copy know it.
NAMES = (
    lambda photo: {"id": photo},
    lambda photo: {"id": f"{photo}_0a1b2c3d4e", "file": f"{photo}_0a1b2c3d4e.jpg"},
    lambda photo: {"id": photo, "file": f"{photo}.jpg"},
    lambda photo: {"id": f"flickr30k/{photo}"},
    lambda photo: {"id": "1", "file": f"images/{photo}.jpg.1"},
    lambda photo: {"id": "391895", "file": "000000391895.jpg", "source_id": photo},
)
#: A picture of COCO as COCO, its older release, a download and a converted corpus name it.
COCO = "000000000074"
COCO_NAMES = (
    {"id": "74", "file": "000000000074.jpg"},
    {"id": "74", "file": "train2014/COCO_train2014_000000000074.jpg"},
    {"id": "COCO_val2014_000000000074"},
    {"id": "1", "source_id": "000000000074"},
)


@pytest.fixture(autouse=True)
def held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = frozenset(hash_photo_ids([*HELD_OUT, COCO]))
    monkeypatch.setattr(leak_guard, "_held_out", lambda: hashes)


@pytest.mark.parametrize("photo", HELD_OUT)
@pytest.mark.parametrize("name", NAMES)
def test_a_held_out_photo_is_caught_under_each_of_its_names(name, photo: str) -> None:  # type: ignore[no-untyped-def]
    image = make_image(split="train", **name(photo))
    assert is_held_out(image)
    with pytest.raises(LeakError, match=f"1 held-out pictures .*{re.escape(image.id)}"):
        TrainingSet(Corpus([image]))
    with pytest.raises(LeakError):
        assert_trainable([image])
    found = training_set(Corpus([image, make_image("5", split="train")]))
    assert [kept.id for kept in found] == ["5"]
    assert (len(found), found.excluded) == (1, 1)


@pytest.mark.parametrize("name", COCO_NAMES)
def test_a_held_out_coco_picture_is_caught_whatever_its_split(name: dict[str, str]) -> None:
    images = [make_image(split="train", **name), make_image("75", file="000000000075.jpg", split="train")]
    assert training_set(Corpus(images)).excluded == 1
    with pytest.raises(LeakError, match="COCO-mini"):
        TrainingSet(Corpus(images))
    prefixed = concat(Corpus(images), Corpus([make_image("x")]), prefixes=["coco/", "other/"])
    assert [is_held_out(image) for image in prefixed] == [True, False, False]


@pytest.mark.parametrize(
    "id",
    [
        "74",
        "0000000000741",
        "00000000074",
        "10000018",
        "1000001",
        "100000190",
        "110000019",
        "COCO_train2014_000000000019",
        "",
    ],
)
def test_neighbours_of_a_held_out_id_are_free(id: str) -> None:
    assert not is_held_out(id)


free_ids = st.integers(1, 10**12).map(str).filter(lambda id: id not in HELD_OUT)
images_of_train = st.one_of(
    st.builds(lambda name, id: (name(id), False), st.sampled_from(NAMES[:5]), free_ids),
    st.builds(lambda name, id: (name(id), True), st.sampled_from(NAMES), st.sampled_from(HELD_OUT)),
)


@given(
    st.lists(images_of_train, max_size=8),
    st.sampled_from([("train",), ("train", "val"), ("val", "test", "train")]),
    st.sampled_from(["part", "flickr", "coco201", "/"]),
    st.sampled_from(["", "/", "_", "0"]),
)
def test_no_mixture_lets_a_held_out_photo_in(
    drawn: list[tuple[dict[str, str], bool]], splits: tuple[str, ...], prefix: str, end: str
) -> None:
    parts = [
        Corpus([make_image(split=("train", "val", "test")[number % 3], **fields)])
        for number, (fields, _) in enumerate(drawn)
    ]
    parts.append(Corpus([make_image(f"free-{split}", split=split) for split in ("train", "val", "test")]))
    whole = concat(*parts, prefixes=[f"{number}{prefix}{number}{end}" for number in range(len(parts))])
    found = training_set(whole, splits)
    assert not any(is_held_out(image) for image in found)
    guarded = [held for number, (_, held) in enumerate(drawn) if ("train", "val", "test")[number % 3] in splits]
    assert found.excluded == sum(guarded)
    assert len(found) == guarded.count(False) + len(splits)
    assert {image.split for image in found} <= set(splits)


def test_only_the_train_split_enters_unless_others_are_named() -> None:
    corpus = Corpus([make_image(split or "none", split=split) for split in ("train", "val", "test", "restval", "")])
    assert [image.id for image in training_set(corpus)] == ["train"]
    assert [image.id for image in training_set(corpus, ("train", "restval"))] == ["train", "restval"]
    assert [image.id for image in training_set(corpus, ("",))] == ["none"]
    with pytest.raises(DeixisError, match="no split 'train'"):
        training_set(corpus.split("val"))


def test_unrelated_captions_are_left_out_and_counted_unless_wanted() -> None:
    captions = [make_caption("a dog"), make_caption("a cat", unrelated=True)]
    corpus = Corpus([make_image("1", split="train", captions=captions)])
    found = training_set(corpus)
    assert [caption.text for image in found for caption in image.captions] == ["a dog"]
    assert found.unrelated == 1
    assert training_set(corpus, unrelated=True).corpus == corpus
    assert training_set(corpus, unrelated=True).unrelated == 0


def test_a_training_set_cannot_be_changed_into_a_leak() -> None:
    found = training_set(Corpus([make_image("1", split="train")]))
    leak = Corpus([make_image(HELD_OUT[0])])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.corpus = leak  # type: ignore[misc]
    with pytest.raises(LeakError):
        dataclasses.replace(found, corpus=leak)


def test_joined_text_carries_the_guard_with_it() -> None:
    left = Corpus([make_image(f"{HELD_OUT[0]}_ab", split="train", captions=[make_caption("a dog")])])
    joined = join(left, Corpus([make_image(HELD_OUT[0], captions=[make_caption("a dog")])])).corpus
    assert training_set(joined).excluded == 1


def test_a_join_carries_the_ids_that_only_the_right_side_has() -> None:
    left = Corpus([make_image("12_ab", split="train")])
    for right in (make_image("7", file=f"{HELD_OUT[0]}.jpg", source_id="12"), make_image(HELD_OUT[0], source_id="12")):
        joined = join(left, Corpus([right])).corpus
        assert joined.images[0].source_id == f"12 {HELD_OUT[0]}"
        assert training_set(Corpus([*joined, make_image("5", split="train")])).excluded == 1
    (plain,) = join(Corpus([make_image("10000018_ab")]), Corpus([make_image("10000018")])).corpus
    assert plain.source_id == "", "the id itself says it already"


def test_a_leak_names_some_and_counts_all() -> None:
    with pytest.raises(LeakError, match=r"^3 held-out pictures .*: 10000019, 2345678901, 99999999$"):
        assert_trainable(["7", *HELD_OUT])
    with pytest.raises(LeakError, match=r"^6 held-out pictures .*, …$"):
        assert_trainable([*HELD_OUT, *HELD_OUT])


def test_the_list_that_ships_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hashes = leak_guard._held_out()
    assert len(hashes) == 4500
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in hashes)
    assert not hashes & set(hash_photo_ids(str(number) for number in range(1, 600_000, 97)))
