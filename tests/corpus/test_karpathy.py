"""Karpathy's JSON as it is published, and what its reader says of damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deixis.corpus import open_corpus, write_corpus
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import InputError

COCO: dict[str, Any] = {
    "dataset": "coco",
    "images": [
        {
            "filepath": "val2014",
            "sentids": [770337, 771687],
            "filename": "COCO_val2014_000000391895.jpg",
            "imgid": 0,
            "split": "restval",
            "sentences": [
                {"tokens": ["a", "man", "on", "a", "hill"], "raw": "A man on a hill. ", "imgid": 0, "sentid": 770337},
                {"tokens": ["a", "bike"], "raw": "a bike", "imgid": 0, "sentid": 771687},
            ],
            "cocoid": 391895,
        }
    ],
}
FLICKR: dict[str, Any] = {
    "images": [
        {"sentids": [0], "imgid": 0, "filename": "111_aa.jpg", "split": "train", "sentences": [{"raw": "A dog ."}]}
    ],
    "dataset": "flickr8k",
}


def test_coco_ids_tokens_and_restval(tmp_path: Path) -> None:
    (tmp_path / "dataset_coco.json").write_text(json.dumps(COCO))
    assert detect_format(open_tree(tmp_path)) == "karpathy"
    corpus = open_corpus(tmp_path)
    image = corpus["391895"]
    assert (image.file, image.split) == ("val2014/COCO_val2014_000000391895.jpg", "restval")
    first, second = image.captions
    assert (first.text, first.id) == ("A man on a hill. ", "770337")
    assert first.tokens == ("a", "man", "on", "a", "hill")
    assert second.words is None  # The tokens say nothing that the text does not.


def test_writing_gives_the_published_fields_back(tmp_path: Path) -> None:
    source = tmp_path / "dataset_coco.json"
    source.write_text(json.dumps(COCO))
    write_corpus(open_corpus(source), tmp_path / "again.json", format="karpathy")
    assert json.loads((tmp_path / "again.json").read_text()) == COCO


def test_flickr_images_are_named_by_their_file(tmp_path: Path) -> None:
    source = tmp_path / "dataset_flickr8k.json"
    source.write_text(json.dumps(FLICKR))
    corpus = open_corpus(source)
    assert [(image.id, image.file) for image in corpus] == [("111_aa", "111_aa.jpg")]
    assert corpus.name == "flickr8k"


def damaged(path: list[Any], value: Any) -> str:
    content = json.loads(json.dumps(COCO))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (damaged(["images", 0, "sentences", 1, "raw"], 7), "images[0].sentences[1].raw"),
        (damaged(["images", 0, "filename"], None), "images[0].filename"),
        (damaged(["images"], {}), "images"),
        (damaged(["images", 0, "sentences"], "none"), "images[0].sentences"),
        (json.dumps(COCO)[:-40], ""),
        (json.dumps({"images": COCO["images"] * 2}), ""),
        ("[]", ""),
    ],
)
def test_a_fault_names_file_and_field(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError) as caught:
        open_corpus(tmp_path, format="karpathy")
    assert caught.value.place == f"dataset.json {place}".rstrip()
