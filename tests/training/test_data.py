"""The training tensors promise: every row is what a loop over the corpus and the stores says it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, Image, TrainingSet, make_caption, make_image, open_corpus, training_set
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.errors import DeixisError
from deixis.features.arrays import Ragged
from deixis.features.store import FeatureStore
from deixis.text.featurizers import TextFeatures, TextRecipe, fit_text_features
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.training.phrase_pairs import PhraseData, of_items, phrase_data
from deixis.training.running import left_out
from deixis.training.sentence_pairs import encode_texts, sentence_data
from tests.stores import make_store, random_boxes


def merged_boxes(image: Image) -> list[list[float]]:
    return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen = whole.with_images([*whole.images[:40], *(image for image in whole if image.split == "val")][:60])
    # An image without any phrase, one whose phrases have no box, and one whose picture is broken.
    words = make_caption("nothing to see")
    return chosen.with_images([make_image("empty", width=10, height=10, split="train", captions=[words]), *chosen])


@pytest.fixture(scope="module")
def training(corpus: Corpus) -> TrainingSet:
    return training_set(corpus)


@pytest.fixture(scope="module")
def stores(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureStore, FeatureStore]:
    folder = tmp_path_factory.mktemp("stores")
    broken = (corpus.images[5].id,)
    chains = make_store(folder / "chains", corpus, merged_boxes, seed=1, broken=broken)
    return chains, make_store(folder / "proposals", corpus, random_boxes(30), seed=2, broken=broken)


@pytest.fixture(scope="module", params=["tfidf", "tokens"])
def text(training: TrainingSet, request: pytest.FixtureRequest) -> TextFeatures:
    return fit_text_features(TextRecipe(request.param), tokens_of_captions(training))


@pytest.fixture(scope="module")
def data(training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], text: TextFeatures) -> PhraseData:
    return phrase_data(training, *stores, text)


def test_sentences_are_those_of_the_images(
    training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], text: TextFeatures
) -> None:
    store = stores[1]
    made = sentence_data(training, store, text)
    assert made.without_features == 1
    expected = [(image.id, tokens_of(caption)) for image in training if image.id in store for caption in image.captions]
    found = [(made.image_ids[number], tokens) for number, tokens in zip(made.image_of, made.captions, strict=True)]
    assert found == expected
    vectors = store.image_vectors()
    for row, image_id in zip(made.images, made.image_ids, strict=True):
        assert row.dtype == torch.float32
        assert np.array_equal(row.numpy(), vectors[int(store.numbers([image_id])[0])].astype(np.float32))
    np.testing.assert_array_equal(made.texts.numpy(), text.transform(made.captions))


def test_pairs_are_the_mentions_with_a_box(
    training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], data: PhraseData
) -> None:
    expected, without_box = [], 0
    for image in training:
        if image.id not in stores[0]:
            continue
        for caption in image.captions:
            for phrase in caption.phrases:
                boxes = image.chain_boxes(phrase.chain)
                without_box += phrase.visual and not boxes
                if boxes:
                    expected.append((image.id, caption.phrase_text(phrase).lower(), merge(box_array(boxes)).tolist()))
    found = [
        (data.image_ids[image], " ".join(data.phrases[string]), data.region_boxes[region].tolist())
        for image, string, region in zip(data.pair_image, data.pair_string, data.pair_region, strict=True)
    ]
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected]
    np.testing.assert_allclose([pair[2] for pair in found], [pair[2] for pair in expected], rtol=1e-6)
    assert (data.without_box, data.without_features) == (without_box, 1)
    assert without_box > 0
    assert len(set(data.phrases)) == len(data.phrases) == len(data.strings)
    assert "empty" not in data.image_ids


def test_a_chain_has_one_number_and_one_region(data: PhraseData) -> None:
    chains = {}
    for chain, image, region in zip(data.pair_chain, data.pair_image, data.pair_region, strict=True):
        assert chains.setdefault(int(chain), (int(image), int(region))) == (int(image), int(region))
    assert len(set(chains.values())) == len(chains)
    assert len(chains) < len(data.pair_chain)


def test_regions_are_the_drawn_ones_and_then_the_proposals(
    data: PhraseData, stores: tuple[FeatureStore, FeatureStore]
) -> None:
    chains, proposals = stores
    for number, image_id in enumerate(data.image_ids):
        rows = slice(int(data.image_offsets[number]), int(data.image_offsets[number + 1]))
        expected = np.concatenate([chains.regions(image_id), proposals.regions(image_id)])
        assert np.array_equal(data.regions[rows].numpy(), expected)
        assert int(data.drawn[number]) == len(chains.regions(image_id))
        boxes = np.concatenate([chains.boxes(image_id), proposals.boxes(image_id)])
        np.testing.assert_allclose(data.region_boxes[rows].numpy(), boxes, rtol=1e-5)
        assert set(data.region_image[rows].tolist()) == {number}
    assert data.regions.dtype == torch.float16
    assert len(data.regions) == int(data.image_offsets[-1])


def test_drawn_regions_alone_need_no_proposals(
    training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], text: TextFeatures, data: PhraseData
) -> None:
    drawn = phrase_data(training, stores[0], None, text)
    assert len(drawn.regions) == int(data.drawn.sum()) < len(data.regions)
    torch.testing.assert_close(drawn.regions[drawn.pair_region], data.regions[data.pair_region])
    torch.testing.assert_close(drawn.region_boxes[drawn.pair_region], data.region_boxes[data.pair_region])
    assert drawn.pair_string.tolist() == data.pair_string.tolist()


def test_positives_and_negatives_by_brute_force(data: PhraseData) -> None:
    proposed = 0
    for pair in range(len(data.pair_image)):
        own = int(data.pair_region[pair])
        image = int(data.pair_image[pair])
        start, end = int(data.image_offsets[image]), int(data.image_offsets[image + 1])
        overlap = iou_matrix(data.region_boxes[own][None].numpy(), data.region_boxes[start:end].numpy())[0]
        first_proposal = start + int(data.drawn[image])
        positive = [
            row for row in range(start, end) if row == own or (row >= first_proposal and overlap[row - start] >= 0.7)
        ]
        negative = [row for row in range(start, end) if row != own and overlap[row - start] < 0.3]
        proposed += len(positive) - 1
        for rows, offsets, expected in (
            (data.positive_rows, data.positive_offsets, positive),
            (data.negative_rows, data.negative_offsets, negative),
        ):
            assert rows[int(offsets[pair]) : int(offsets[pair + 1])].tolist() == expected
    assert proposed > 50


def test_rows_of_chosen_items() -> None:
    rows = Ragged(np.array([7, 8, 9, 5]), np.array([0, 2, 2, 3, 4]))
    values, offsets = of_items(rows, np.array([3, 1, 0, 0]))
    assert (values.tolist(), offsets.tolist()) == ([5, 7, 8, 7, 8], [0, 1, 1, 3, 5])
    values, offsets = of_items(rows, np.empty(0, np.int64))
    assert (values.tolist(), offsets.tolist()) == ([], [0])


def test_half_precision_where_asked_for(training: TrainingSet, stores: tuple[FeatureStore, FeatureStore]) -> None:
    text = fit_text_features(TextRecipe("tfidf"), tokens_of_captions(training))
    made = sentence_data(training, stores[0], text, dtype=torch.float16)
    assert made.images.dtype == made.texts.dtype == torch.float16
    whole = encode_texts(text, made.captions)
    torch.testing.assert_close(made.texts.float(), whole, rtol=1e-3, atol=1e-6)


def test_a_store_of_other_boxes_is_refused(
    training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], text: TextFeatures
) -> None:
    with pytest.raises(DeixisError, match="with the recipe `chains`"):
        phrase_data(training, stores[1], stores[1], text)


def test_stores_of_other_channels_are_refused(
    corpus: Corpus, training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], text: TextFeatures, tmp_path: Path
) -> None:
    other = make_store(tmp_path, corpus, random_boxes(3), channels=5)
    with pytest.raises(DeixisError, match=r"regions of shape \(8,\), .* of \(5,\)"):
        phrase_data(training, stores[0], other, text)


def test_an_image_the_store_does_not_know_is_an_error(
    training: TrainingSet, text: TextFeatures, tmp_path: Path
) -> None:
    few = make_store(tmp_path, training.corpus.with_images(training.corpus.images[:3]))
    with pytest.raises(DeixisError, match="has no features of image"):
        sentence_data(training, few, text)


def test_images_without_boxed_phrases_give_no_pairs(
    stores: tuple[FeatureStore, FeatureStore], corpus: Corpus, text: TextFeatures
) -> None:
    with pytest.raises(DeixisError, match="no phrase of these images has a box"):
        phrase_data(corpus.subset(["empty"]), *stores, text)


def test_pictures_that_are_left_out_are_reported(training: TrainingSet, tmp_path: Path) -> None:
    ids = [image.id for image in training]
    whole, few = (
        make_store(tmp_path / str(count), training.corpus, broken=tuple(ids[:count]), seed=count) for count in (0, 4)
    )
    assert left_out([whole]) == ""
    assert left_out([whole, few]) == (f"4 pictures are left out: {ids[0]} broken; {ids[1]} broken; {ids[2]} broken; …")


def test_further_positives_are_positives_and_nothing_else(
    training: TrainingSet, stores: tuple[FeatureStore, FeatureStore], tmp_path: Path
) -> None:
    text = fit_text_features(TextRecipe("tfidf"), tokens_of_captions(training))
    present = [image for image in training if image.id in stores[0]]

    def shrunk(image: Image) -> list[list[float]]:
        return [
            [x1, y1, x2 - 0.1 * (x2 - x1), y2] for x1, y1, x2, y2 in merged_boxes(image)
        ]  # IoU 0.9 with the chain's box

    pool = make_store(tmp_path / "pool", training.corpus.with_images(present), shrunk, seed=3)
    plain, more = (phrase_data(training, *stores, text, positives=own) for own in (None, pool))
    added = sum(len(merged_boxes(image)) for image in present if image.id in plain.image_ids)
    assert len(more.regions) == len(plain.regions) + added
    assert (more.positive_offsets.diff() >= plain.positive_offsets.diff() + 1).all()
    assert torch.equal(more.negative_offsets, plain.negative_offsets)
    for pair in range(0, len(more.pair_chain), 7):
        rows = more.positive_rows[more.positive_offsets[pair] : more.positive_offsets[pair + 1]]
        overlap = iou_matrix(more.region_boxes[more.pair_region[pair]][None].numpy(), more.region_boxes[rows].numpy())
        assert overlap.min() >= 0.7
        assert (more.region_image[rows] == more.pair_image[pair]).all()
