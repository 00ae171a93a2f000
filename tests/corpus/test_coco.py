"""COCO's captions and instances as they are published, and what the reader says of damaged files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deixis.corpus import Box, Chain, Corpus, Phrase, leak_guard, make_caption, make_image, open_corpus, write_corpus
from deixis.errors import InputError

IMAGES: list[dict[str, Any]] = [
    {
        "license": 3,
        "file_name": "000000000009.jpg",
        "height": 480,
        "width": 640,
        "id": 9,
        "flickr_url": "http://farm9.staticflickr.com/8186/8119368305_4e622c8349_z.jpg",
    },
    {"file_name": "000000000025.jpg", "height": 426, "width": 640, "id": 25},
]
CAPTIONS: dict[str, Any] = {
    "info": {},
    "images": IMAGES,
    "annotations": [
        {"id": 51, "image_id": 25, "caption": "A giraffe. "},
        {"id": 50, "image_id": 9, "caption": "A meal."},
    ],
}
INSTANCES: dict[str, Any] = {
    "images": IMAGES,
    "annotations": [
        {
            "id": 7,
            "image_id": 9,
            "category_id": 51,
            "iscrowd": 1,
            "bbox": [1.5, 2, 638.5, 478.2],
            "segmentation": {"counts": [1, 2], "size": [480, 640]},
        },
        {"id": 3, "image_id": 9, "category_id": 1, "iscrowd": 0, "bbox": [0, 0, 10, 10], "segmentation": [[0, 0]]},
    ],
    "categories": [{"id": 51, "name": "bowl", "supercategory": "kitchen"}, {"id": 1, "name": "person"}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    (annotations / "captions_train2017.json").write_text(json.dumps(CAPTIONS))
    (annotations / "instances_train2017.json").write_text(json.dumps(INSTANCES))
    return tmp_path


def test_captions_and_instances_of_an_image_come_together(folder: Path) -> None:
    corpus = open_corpus(folder)
    assert [image.id for image in corpus] == ["9", "25"]
    image = corpus["9"]
    assert (image.split, image.width, image.height, image.source_id) == ("train", 640, 480, "8119368305")
    assert [(caption.id, caption.text) for caption in image.captions] == [("50", "A meal.")]
    assert [(chain.id, chain.label) for chain in image.chains] == [("3", "person"), ("7", "bowl")]
    assert image.chain_boxes("3") == (Box(0, 0, 10, 10),)
    # 2 + 478.2 passes the edge by rounding.
    assert image.chain_boxes("7") == (Box(1.5, 2, 640, 480),)


@pytest.mark.parametrize(
    ("url", "source_id"),
    [
        ("http://farm9.staticflickr.com/8186/{}_4e622c8349.jpg", "{}"),
        ("http://farm9.staticflickr.com/8186/{}_164f0c0b83_z.jpg?zz=1", "{}"),
        ("https://live.staticflickr.com/65535/{}_164f0c0b83_4k.jpg", "{}"),
        ("https://www.flickr.com/photos/u/{}", "{}"),
        ("https://www.flickr.com/photos/12345678@N00/{}/", "{}"),
        ("https://www.flickr.com/photos/u/{}/in/photostream?x=1", "{}"),
        ("https://www.flickr.com/photo.gne?id={}", "{}"),
        ("https://live.staticflickr.com/65535/{}_164f0c0b83_z_d.jpg", "https://live.staticflickr.com/65535/{}_164f0c0b83_z_d.jpg"),
        ("https://mirror.example/{}", "https://mirror.example/{}"),
    ],
)  # fmt: skip
def test_the_guard_knows_a_photo_by_any_of_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, source_id: str
) -> None:
    photo = "2345678901"
    monkeypatch.setattr(leak_guard, "_held_out", lambda: frozenset(leak_guard.hash_photo_ids([photo])))
    content = {"images": [{"id": 9, "flickr_url": url.format(photo)}], "annotations": []}
    (tmp_path / "captions_train2017.json").write_text(json.dumps(content))
    corpus = open_corpus(tmp_path)
    assert corpus["9"].source_id == source_id.format(photo)
    assert leak_guard.is_held_out(corpus["9"])
    write_corpus(corpus, tmp_path / "again", format="coco")
    assert open_corpus(tmp_path / "again") == corpus


def test_each_file_adds_what_it_knows_of_an_image(folder: Path) -> None:
    whole = open_corpus(folder)
    bare = {**INSTANCES, "images": [{"id": 9}, {"id": 25}]}
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(bare))
    assert open_corpus(folder) == whole
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(INSTANCES))
    bare = {**CAPTIONS, "images": [{"id": 9}, {"id": 25}]}
    (folder / "annotations/captions_train2017.json").write_text(json.dumps(bare))
    assert open_corpus(folder) == whole


def test_instances_written_and_read_again_keep_ids_and_categories(folder: Path, tmp_path: Path) -> None:
    corpus = open_corpus(folder)
    write_corpus(corpus, tmp_path / "again", format="coco")
    assert open_corpus(tmp_path / "again") == corpus
    written = json.loads((tmp_path / "again/annotations/instances_train.json").read_text())
    assert [annotation["id"] for annotation in written["annotations"]] == [3, 7]
    assert written["annotations"][0]["bbox"] == [0, 0, 10, 10]


def test_a_chain_of_several_boxes_survives_and_its_type_is_the_category(tmp_path: Path) -> None:
    image = make_image(
        "a",
        captions=[make_caption("two dogs", phrases=[Phrase(0, 2, "5", ("animals",))])],
        boxes=[Box(0, 0, 1, 1), Box(1, 1, 2, 2)],
        chains=[Chain("5", (0, 1))],
    )
    write_corpus(Corpus([image]), tmp_path, format="coco")
    (again,) = open_corpus(tmp_path)
    assert again.chains == (Chain("5", (0, 1), label="animals"),)
    assert again.boxes == image.boxes


def test_one_file_with_lists_of_ids_beside_it(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    (tmp_path / "test.txt").write_text("9\n")
    (tmp_path / "train.txt").write_text("25\n\n")
    for path in (tmp_path, tmp_path / "captions.json"):
        corpus = open_corpus(path)
        assert {image.id: image.split for image in corpus} == {"9": "test", "25": "train"}


def test_an_annotation_numbered_zero_is_a_visual_chain(tmp_path: Path) -> None:
    annotation = {"id": 0, "image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1]}
    content = {**INSTANCES, "annotations": [annotation]}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    assert [chain.id for chain in open_corpus(tmp_path)["9"].chains] == ["id0"]


def test_pictures_of_each_split_are_found_in_their_own_zip(folder: Path) -> None:
    (folder / "annotations/captions_val2017.json").write_text(
        json.dumps({"images": [{"id": 30, "file_name": "000000000030.jpg"}], "annotations": []})
    )
    for name, number in (("train2017", 9), ("val2017", 30)):
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr(f"{name}/{number:012}.jpg", f"picture {number}")
    corpus = open_corpus(folder)
    assert corpus.pictures is not None
    assert [corpus.pictures.has(image) for image in corpus] == [True, False, True]
    assert corpus.pictures.read(corpus["30"]) == b"picture 30"
    with pytest.raises(InputError, match="25"):
        corpus.pictures.read(corpus["25"])


def changed(content: dict[str, Any], part: str, index: int, **fields: Any) -> str:
    copy = json.loads(json.dumps(content))
    copy[part][index].update(fields)
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("name", "text", "place", "problem"),
    [
        (
            "captions_train2017.json",
            changed(CAPTIONS, "annotations", 1, image_id=77),
            "annotations[1]",
            "image_id 77 is not among",
        ),
        ("captions_train2017.json", changed(CAPTIONS, "annotations", 1, caption=5), "annotations[1].caption", "str"),
        ("captions_train2017.json", changed(CAPTIONS, "images", 1, width="wide"), "images[1].width", "int"),
        ("captions_train2017.json", json.dumps(CAPTIONS)[:-30], "", "not JSON"),
        (
            "instances_train2017.json",
            changed(INSTANCES, "annotations", 1, bbox=[1, 2, 3]),
            "annotations[1].bbox",
            "length 4",
        ),
        (
            "instances_train2017.json",
            changed(INSTANCES, "annotations", 1, bbox=[600, 0, 90, 5]),
            "annotations[1]",
            "bbox .* is not in the picture of 640 × 480",
        ),
        (
            "instances_train2017.json",
            changed(INSTANCES, "annotations", 1, bbox=[9, 0, -5, 5]),
            "annotations[1]",
            "bbox .* is not in",
        ),
        (
            "instances_train2017.json",
            changed(INSTANCES, "annotations", 1, category_id=6),
            "annotations[1]",
            "category_id 6",
        ),
        (
            "instances_train2017.json",
            changed(INSTANCES, "images", 1, width=7),
            "images[1]",
            "width of image 25 is 7 here",
        ),
        ("captions_train2017.json", changed(CAPTIONS, "images", 1, id=9), "images[1]", "image 9 is in the file twice"),
        ("captions_val2017.json", json.dumps(CAPTIONS), "images[0]", "in annotations/captions_train2017.json too"),
    ],
)
def test_a_fault_names_file_and_field(folder: Path, name: str, text: str, place: str, problem: str) -> None:
    (folder / "annotations" / name).write_text(text)
    with pytest.raises(InputError, match=problem) as caught:
        open_corpus(folder)
    assert caught.value.place == f"annotations/{name} {place}".rstrip()


def test_a_list_that_names_an_unknown_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    (tmp_path / "val.txt").write_text("9\n26\n")
    with pytest.raises(InputError, match=r"val\.txt line 2: image 26"):
        open_corpus(tmp_path)


def test_a_size_below_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text(changed(CAPTIONS, "images", 1, width=-640))
    with pytest.raises(InputError, match=r"captions\.json: image 25: the size -640 × 426 is negative"):
        open_corpus(tmp_path)
