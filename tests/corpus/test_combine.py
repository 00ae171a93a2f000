"""Joining, concatenating and cutting corpora."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.corpus import Box, Caption, Chain, Corpus, Image, Phrase, make_caption, make_image
from deixis.corpus.combine import concat, cut, join
from deixis.corpus.pictures import RenderedPictures
from deixis.errors import DeixisError

from .strategies import corpora


def entities(*captions: Caption, id: str = "12") -> Corpus:
    chains = [Chain("1", (0,)), Chain("2", (0, 1)), Chain("3", scene=True)]
    boxes = [Box(0, 0, 50, 60), Box(10, 10, 500, 300)]
    return Corpus([make_image(id, width=500, height=375, captions=captions, boxes=boxes, chains=chains)])


def flickr(*texts: str, id: str = "12_ab") -> Corpus:
    captions = [make_caption(text) for text in texts]
    return Corpus([make_image(id, file=f"{id}.jpg", split="test", captions=captions)], name="left")


def phrase_texts(image: Image) -> list[list[tuple[str, str]]]:
    return [[(caption.phrase_text(phrase), phrase.chain) for phrase in caption.phrases] for caption in image.captions]


def test_phrases_boxes_and_size_come_from_the_right_the_rest_from_the_left() -> None:
    right = entities(
        make_caption("The dog runs .", phrases=[Phrase(0, 2, "2", ("animals",))], unrelated=True),
        make_caption("A man runs .", phrases=[Phrase(0, 2, "1", ("people",))]),
    )
    report = join(flickr("A man runs .", "The dog runs .", "Nobody said this ."), right)
    (image,) = report.corpus
    assert (image.id, image.file, image.split) == ("12_ab", "12_ab.jpg", "test")
    assert (image.width, image.height) == (500, 375)
    assert phrase_texts(image) == [[("A man", "1")], [("The dog", "2")], []]
    assert [caption.unrelated for caption in image.captions] == [False, True, False]
    assert image.chains == right.images[0].chains
    assert image.boxes == right.images[0].boxes
    assert report.corpus.name == "left"
    assert report.counts == {
        "images_matched": 1,
        "images_unmatched": 0,
        "captions_exact": 2,
        "captions_normalized": 0,
        "captions_unmatched": 1,
        "phrases_attached": 2,
        "phrases_unattached": 0,
        "boxes_attached": 2,
    }


@pytest.mark.parametrize(
    ("left", "right", "span", "expected"),
    [
        ("a man in a T-shirt", "A man in a t - shirt .", (3, 7), "a T-shirt"),
        ("a near by stroller ,", "a nearby stroller", (0, 3), "a near by stroller"),
        ('" The dog " sits', "the dog sits", (0, 2), "The dog"),
        ("the dog sits", 'the " dog " sits', (1, 4), "dog"),
        ("he is onstage", "he is on stage", (3, 4), None),
        ("he is on stage", "he is onstage", (2, 3), "on stage"),
        ("it ends", "it ends .", (2, 3), None),
    ],
)
def test_a_caption_that_differs_in_case_and_punctuation_gets_the_same_words(
    left: str, right: str, span: tuple[int, int], expected: str | None
) -> None:
    report = join(flickr(left), entities(make_caption(right, phrases=[Phrase(*span, "1")])))
    assert phrase_texts(report.corpus.images[0]) == [[] if expected is None else [(expected, "1")]]
    assert (report.captions_exact, report.captions_normalized) == (0, 1)
    assert (report.phrases_attached, report.phrases_unattached) == (expected is not None, expected is None)


def test_an_exact_match_goes_before_one_that_only_sounds_alike() -> None:
    right = entities(
        make_caption("a dog", phrases=[Phrase(0, 2, "1")]), make_caption("A dog .", phrases=[Phrase(0, 2, "2")])
    )
    report = join(flickr("A dog .", "A dog"), right)
    assert phrase_texts(report.corpus.images[0]) == [[("A dog", "2")], [("A dog", "1")]]


def test_a_caption_said_twice_takes_two_partners() -> None:
    right = entities(
        make_caption("a dog", phrases=[Phrase(0, 2, "1")]), make_caption("a dog", phrases=[Phrase(1, 2, "2")])
    )
    report = join(flickr("a dog", "a dog", "a dog"), right)
    assert phrase_texts(report.corpus.images[0]) == [[("a dog", "1")], [("dog", "2")], []]
    assert report.captions_unmatched == 1


def test_images_without_a_counterpart_stay_and_are_counted() -> None:
    left = flickr("a dog", id="99_zz")
    report = join(left, entities())
    assert report.corpus == left
    assert (report.images_matched, report.images_unmatched, report.captions_unmatched) == (0, 1, 1)


def test_an_annotated_left_side_is_refused() -> None:
    with pytest.raises(DeixisError, match="already has chains"):
        join(entities(), entities())


@settings(max_examples=50)
@given(corpora())
def test_joined_with_its_own_bare_text_a_corpus_comes_back(corpus: Corpus) -> None:
    whole = Corpus(
        make_image(
            f"{number}_{image.id}",
            file=image.file,
            width=image.width,
            height=image.height,
            split=image.split,
            captions=image.captions,
            boxes=image.boxes,
            chains=image.chains,
        )
        for number, image in enumerate(corpus)
    )
    bare = Corpus(
        make_image(
            image.id,
            file=image.file,
            split=image.split,
            captions=[make_caption(c.text, c.words) for c in image.captions],
        )
        for image in whole
    )
    report = join(bare, whole)
    assert report.corpus == whole
    assert report.captions_unmatched == report.phrases_unattached == 0


def pictured(name: str, *ids: str) -> Corpus:
    images = [make_image(id, file="same.jpg") for id in ids]
    return Corpus(images, name=name, pictures=RenderedPictures(ids, lambda id: f"{name} {id}".encode()))


def test_concatenated_corpora_find_their_own_pictures() -> None:
    whole = concat(pictured("a", "1", "2"), Corpus([make_image("x")]), pictured("b", "1"), prefixes=("", "", "b/"))
    assert [image.id for image in whole] == ["1", "2", "x", "b/1"]
    assert whole.name == "a+b"
    again = concat(whole, prefixes=("again/",)).where(lambda image: image.id != "again/2")
    assert again.pictures is not None
    assert [again.pictures.has(image) for image in again] == [True, False, True]
    assert again.pictures.read(again["again/1"]) == b"a 1"
    assert again.pictures.read(again["again/b/1"]) == b"b 1"


def test_clashing_ids_are_an_error_without_prefixes() -> None:
    with pytest.raises(DeixisError, match="'1' occurs twice"):
        concat(pictured("a", "1"), pictured("b", "1"))
    with pytest.raises(DeixisError, match="as many prefixes"):
        concat(pictured("a", "1"), pictured("b", "1"), prefixes=("a/",))


NUMBERED = Corpus([make_image(str(number), split="train" if number % 2 else "test") for number in range(20)])


def test_cut_by_split_ids_and_count() -> None:
    assert [image.id for image in cut(NUMBERED, ("test",), limit=3)] == ["0", "2", "4"]
    assert [image.id for image in cut(NUMBERED, ids=["7", "3"])] == ["7", "3"]
    assert cut(NUMBERED, limit=99) == NUMBERED
    assert cut(NUMBERED, ("all",)) == NUMBERED
    assert NUMBERED.split_hash("all") == NUMBERED.split_hash()
    unsplit = Corpus([make_image("1")])
    assert unsplit.split_hash("(none)") == unsplit.split_hash("") == unsplit.split_hash("all")
    named = Corpus([make_image("1", split="all"), make_image("2", split="train")])
    assert [image.id for image in named.split("all")] == ["1"]
    with pytest.raises(DeixisError, match="no split 'dev'"):
        cut(NUMBERED, ("dev",))
    with pytest.raises(DeixisError, match="no image '77'"):
        cut(NUMBERED, ids=["77"])
    with pytest.raises(DeixisError, match="-1"):
        cut(NUMBERED, limit=-1)


@given(st.integers(0, 20), st.integers(0, 2**32))
def test_a_random_cut_draws_without_repetition_keeps_the_order_and_follows_the_generator(limit: int, seed: int) -> None:
    drawn = cut(NUMBERED, limit=limit, generator=np.random.default_rng(seed))
    numbers = [int(image.id) for image in drawn]
    assert len(numbers) == limit
    assert numbers == sorted(set(numbers))
    assert drawn == cut(NUMBERED, limit=limit, generator=np.random.default_rng(seed))


def test_a_random_cut_reaches_every_image() -> None:
    generator = np.random.default_rng(0)
    seen = {image.id for _ in range(100) for image in cut(NUMBERED, limit=2, generator=generator)}
    assert len(seen) == 20
