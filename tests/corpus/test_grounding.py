"""Grounding JSON: MDETR's and GLIP's variants are read, and what we write is what their loaders expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from deixis.corpus import Box, Caption, Chain, Corpus, Phrase, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.opening import detect_format
from deixis.corpus.spans import characters_of, token_offsets, tokens_of
from deixis.corpus.tree import open_tree
from deixis.errors import InputError

from .strategies import corpora

CLOWNS = "Two clowns juggle beside a clown ."


def flickr(**changes: Any) -> dict[str, Any]:
    """The layout of MDETR's Flickr files, where sizes are strings and each caption is an "image"."""
    entry = {
        "file_name": "77.jpg",
        "height": "80",
        "width": "100",
        "dataset_name": "flickr",
        "original_img_id": 77,
    }
    return {
        "info": [],
        "licenses": [],
        "images": [
            {**entry, "id": 0, "sentence_id": 0, "caption": CLOWNS, "tokens_negative": [[0, 34]]}
            | {"tokens_positive_eval": [[[0, 10]], [[25, 32]]]},
            {**entry, "id": 1, "sentence_id": 1, "caption": "A clown waits in a park .", "tokens_negative": [[0, 25]]}
            | {"tokens_positive_eval": [[[0, 7]], [[17, 23]]]},
        ],
        "annotations": [
            {"id": 0, "image_id": 0, "bbox": [1.0, 2.0, 29.0, 78.0], "tokens_positive": [[0, 10], [25, 32]]},
            {"id": 1, "image_id": 0, "bbox": [40.0, 5.0, 60.0, 55.0], "tokens_positive": [[0, 10]]},
            {"id": 2, "image_id": 1, "bbox": [1.0, 2.0, 29.0, 78.0], "tokens_positive": [[0, 7]]},
        ],
        "categories": [{"supercategory": "object", "id": 1, "name": "object"}],
    } | changes


def save(file: Path, content: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def test_the_flickr_layout_gives_images_phrases_and_chains(tmp_path: Path) -> None:
    save(tmp_path / "final_flickr_separateGT_val.json", flickr())
    (image,) = open_corpus(tmp_path, cache=False)
    assert (image.id, image.file, image.width, image.height, image.split) == ("77", "77.jpg", 100, 80, "val")
    assert image.boxes == (Box(1, 2, 30, 80), Box(40, 5, 100, 60))
    # Both captions speak of the left clown; the park has no box and is a chain of its own.
    assert image.chains == (Chain("1", (0, 1)), Chain("2", (0,)), Chain("3"))
    first, second = image.captions
    assert first == make_caption(CLOWNS, None, [Phrase(0, 2, "1"), Phrase(4, 6, "2")])
    assert second == make_caption("A clown waits in a park .", None, [Phrase(0, 2, "2"), Phrase(4, 6, "3")])


def test_referring_expressions_are_grouped_by_picture(tmp_path: Path) -> None:
    entry = {"file_name": "COCO_train2014_000000000009.jpg", "height": 480, "width": 640, "dataset_name": "refcoco"}
    content = {
        "images": [
            {**entry, "id": 4, "original_id": 9, "caption": "left bowl", "tokens_negative": []},
            {**entry, "id": 5, "original_id": 9, "caption": "green food", "tokens_negative": []},
        ],
        "annotations": [
            {"id": 1, "image_id": 4, "bbox": [0, 0, 10.5, 20], "tokens_positive": [[5, 9]], "original_id": 3},
            {"id": 2, "image_id": 5, "bbox": [5, 5, 635.4, 20], "tokens_positive": [[0, 10]], "original_id": 4},
        ],
    }
    (image,) = open_corpus(save(tmp_path / "finetune_refcoco_train.json", content), cache=False)
    assert (image.id, image.split) == ("COCO_train2014_000000000009", "train")
    assert [caption.text for caption in image.captions] == ["left bowl", "green food"]
    assert [phrase for caption in image.captions for phrase in caption.phrases] == [
        Phrase(1, 2, "1"),
        Phrase(0, 2, "2"),
    ]
    # A box that passes the edge by rounding is brought back to it.
    assert image.boxes == (Box(0, 0, 10.5, 20), Box(5, 5, 640, 25))


def test_several_files_are_several_splits(tmp_path: Path) -> None:
    other = flickr(images=[{"id": 9, "file_name": "8.jpg", "caption": "x", "original_img_id": 8}], annotations=[])
    other["images"][0]["tokens_positive_eval"] = []
    save(tmp_path / "final_flickr_mergedGT_train.json", flickr())
    save(tmp_path / "final_flickr_mergedGT_test.json", other)
    assert {image.id: image.split for image in open_corpus(tmp_path, cache=False)} == {"77": "train", "8": "test"}
    save(tmp_path / "final_flickr_mergedGT_val.json", other)
    with pytest.raises(InputError, match=r"val\.json: image 8 is also in final_flickr_mergedGT_test\.json"):
        open_corpus(tmp_path, cache=False)


def test_plain_coco_is_not_taken_for_grounding(tmp_path: Path) -> None:
    content = {"images": [{"id": 1, "file_name": "tokens_positive.jpg", "width": 9, "height": 9}]}
    content["annotations"] = [{"id": 1, "image_id": 1, "caption": 'say "tokens_positive": now'}]
    save(tmp_path / "captions_train2017.json", content)
    assert detect_format(open_tree(tmp_path)) == "coco"


@pytest.mark.parametrize(
    ("key", "index", "change", "problem"),
    [
        (
            "annotations",
            1,
            {"bbox": [40, 5, 62, 55]},
            "annotation 1: box [40.0, 5.0, 62.0, 55.0] is outside the picture",
        ),
        ("annotations", 0, {"tokens_positive": [[12, 5]]}, "image 0: span [12, 5] is not in the caption"),
        ("annotations", 0, {"tokens_positive": [[90, 95]]}, "image 0: span [90, 95] is not in the caption"),
        ("annotations", 0, {"tokens_positive": [[0]]}, "Expected `array` of length 2"),
        ("annotations", 0, {"bbox": [1, 2, 3]}, "Expected `array` of length 4"),
        ("images", 0, {"width": "wide"}, "image 0: 'wide' × '80' is not a size"),
        ("images", 1, {"caption": 7}, "Expected `str | null`, got `int`"),
    ],
)
def test_faults_name_the_file_and_the_entry(
    tmp_path: Path, key: str, index: int, change: dict[str, Any], problem: str
) -> None:
    content = flickr()
    content[key][index] |= change
    with pytest.raises(InputError) as caught:
        open_corpus(save(tmp_path / "grounding.json", content), format="grounding", cache=False)
    assert caught.value.place.startswith("grounding.json")
    assert problem in caught.value.problem


@settings(max_examples=50)
@given(corpus=corpora())
def test_loaders_find_what_they_expect(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> None:
    out = tmp_path_factory.mktemp("out") / "all.json"
    write_corpus(corpus, out, format="grounding")
    content = json.loads(out.read_text())
    entries = {entry["id"]: entry for entry in content["images"]}
    assert len(entries) == len(content["images"]) == sum(len(image.captions) for image in corpus)
    asked = (
        "caption file_name height width dataset_name tokens_negative sentence_id original_img_id tokens_positive_eval"
    )
    assert all(set(asked.split()) <= entry.keys() for entry in content["images"])
    assert len({annotation["id"] for annotation in content["annotations"]}) == len(content["annotations"])
    found: dict[tuple[str, int], set[tuple[str, tuple[float, ...]]]] = {}
    for annotation in content["annotations"]:
        entry = entries[annotation["image_id"]]
        assert annotation["area"] == annotation["bbox"][2] * annotation["bbox"][3]
        assert (annotation["iscrowd"], annotation["category_id"]) == (0, 1)
        for start, end in annotation["tokens_positive"]:
            place = (str(entry["original_img_id"]), entry["sentence_id"])
            found.setdefault(place, set()).add((entry["caption"][start:end], tuple(annotation["bbox"])))
    for image in corpus:
        for number, caption in enumerate(image.captions):
            expected = {
                (caption.phrase_text(phrase), (box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1))
                for phrase in caption.phrases
                for box in image.chain_boxes(phrase.chain)
            }
            assert found.get((image.id, number), set()) == expected


def test_a_corpus_in_mixed_order_comes_back_in_its_order(tmp_path: Path) -> None:
    images = [make_image(str(9 - n), split=split) for n, split in enumerate(["val", "train", "val", "a/b: c", ""])]
    write_corpus(Corpus(images), tmp_path, format="grounding")
    assert len(list(tmp_path.iterdir())) == 4
    assert open_corpus(tmp_path, cache=False).images == tuple(images)


@pytest.mark.parametrize(
    ("text", "tokens", "pieces"),
    [
        ("A man, a Dog.", ["a", "man", "a", "dog"], ["A", "man", "a", "Dog"]),
        ("The man's hat", ["The", "man", "'s", "hat"], ["The", "man", "'s", "hat"]),
        ('He said "no" (twice)', ["He", "said", "``", "no", "''", "-LRB-", "twice"], None),
        ("cannot stop", ["can", "not", "stop"], ["can", "not", "stop"]),
        ("one", ["one", "two", "three"], ["one", "", ""]),
    ],
)
def test_tokens_are_found_in_the_text(text: str, tokens: list[str], pieces: list[str] | None) -> None:
    offsets = token_offsets(make_caption(text, tokens))
    assert len(offsets) == len(tokens)
    assert offsets == sorted(offsets)
    if pieces is not None:
        assert [text[start:end] for start, end in offsets] == pieces


@settings(max_examples=50)
@given(corpus=corpora())
def test_token_spans_and_character_spans_are_inverse(corpus: Corpus) -> None:
    for image in corpus:
        for caption in image.captions:
            offsets = token_offsets(caption)
            for phrase in caption.phrases:
                start, end = characters_of(phrase, offsets)
                assert caption.text[start:end] == caption.phrase_text(phrase)
                assert tokens_of((start, end), offsets) == (phrase.start, phrase.end)


@pytest.mark.parametrize(
    ("span", "tokens"),
    [((0, 3), (0, 1)), ((1, 2), (0, 1)), ((2, 5), (0, 2)), ((3, 4), (1, 1)), ((4, 99), (1, 3)), ((11, 99), (3, 3))],
)
def test_a_span_that_cuts_a_token_takes_it_whole(span: tuple[int, int], tokens: tuple[int, int]) -> None:
    caption: Caption = make_caption("The dog ran")
    assert tokens_of(span, token_offsets(caption)) == tokens
