"""Regions for concepts, and the maximum over them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus.boxes import iou_matrix
from deixis.model import ImageFeatures
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.concepts import ConceptNetwork, box_centres, diverse_regions
from deixis.text.concept_words import Concept, ConceptVocabulary

CPU = torch.device("cpu")


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 99))
def test_at_most_so_many_regions_are_chosen_each_once_best_first(boxes: int, count: int, seed: int) -> None:
    corners = np.sort(np.random.default_rng(seed).uniform(0, 100, (boxes, 2, 2)), axis=1).reshape(-1, 4)
    chosen = diverse_regions(corners, count)
    assert len(chosen) == min(boxes, count)
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] == 0, "the best box stands for its group"


def test_of_boxes_that_are_nearly_the_same_the_best_is_chosen() -> None:
    random = np.random.default_rng(0)
    places = np.array([[0, 0, 20, 20], [50, 0, 90, 30], [10, 60, 30, 95], [60, 60, 99, 99]], float)
    of = np.array([0, 0, 1, 0, 2, 2, 1, 3, 0, 3])
    boxes = places[of] + random.uniform(-1, 1, (len(of), 4))
    assert diverse_regions(boxes, 4).tolist() == [0, 2, 4, 7]
    chosen = boxes[diverse_regions(boxes, 4)]
    assert (iou_matrix(chosen, chosen) - np.eye(4)).max() == 0
    assert iou_matrix(boxes[:4], boxes[:4])[0, 1] > 0.5, "the four most confident are not diverse"


def test_confidences_are_the_maximum_over_the_picture_and_its_regions() -> None:
    torch.manual_seed(0)
    network = ConceptNetwork(3, 4)
    wholes, regions = torch.randn(3, 3), torch.randn(5, 3)
    image_of = torch.tensor([0, 0, 2, 2, 2])
    found = network.confidences(wholes, regions, image_of)
    for number in range(3):
        own = torch.cat([wholes[number : number + 1], regions[image_of == number]])
        torch.testing.assert_close(found[number], torch.sigmoid(network(own)).amax(0))
    torch.testing.assert_close(network.confidences(wholes), torch.sigmoid(network(wholes)))


def test_places_are_the_centres_of_where_concepts_are_seen_best() -> None:
    torch.manual_seed(0)
    network = ConceptNetwork(3, 4)
    wholes, regions, image_of = torch.randn(2, 3), torch.randn(5, 3), torch.tensor([0, 0, 1, 1, 1])
    boxes = np.random.default_rng(0).uniform(0, 50, (5, 2)).repeat(2, 1).astype(np.float32)[:, [0, 2, 1, 3]]
    boxes[:, 2:] += 10
    centres = torch.from_numpy(box_centres(boxes, (60, 80)))
    assert box_centres(np.array([[0, 20, 30, 40]]), (60, 80)).tolist() == [[-0.5, -0.25]]
    found = network.confidences(wholes, regions, image_of, centres, places=True)
    torch.testing.assert_close(found[:, :4], network.confidences(wholes, regions, image_of))
    for number in range(2):
        rows = torch.cat([wholes[number : number + 1], regions[image_of == number]])
        own = torch.cat([torch.zeros(1, 2), centres[image_of == number]])
        for concept, place in enumerate(network(rows).argmax(0).tolist()):
            report = found[number, [concept, 4 + concept, 8 + concept]]
            torch.testing.assert_close(report[1:], report[0] * own[place])


def test_a_matcher_reports_concepts_and_their_regions() -> None:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    vocabulary = ConceptVocabulary(Concept(word, "noun", 1, (word,)) for word in ("dog", "cat"))
    network = ConceptNetwork(3, 2)
    boxes = np.array([[0, 0, 5, 5], [0, 0, 5, 5.1], [6, 6, 9, 9]], np.float32)
    image = ImageFeatures(np.zeros(8), random.normal(size=(3, 3)).astype(np.float16), boxes, (10, 20), np.ones(3))
    seen = ConceptModel(network, vocabulary, 2, CPU).places(image)
    assert seen.boxes.tolist() == [[0, 0, 10, 20], boxes[0].tolist(), boxes[2].tolist()]
    rows = np.concatenate([np.ones((1, 3)), np.asarray(image.regions)[[0, 2]]]).astype(np.float32)
    expected = torch.sigmoid(network(torch.from_numpy(rows))).detach().numpy()
    np.testing.assert_allclose(seen.confidences, expected, rtol=1e-5)
    whole = ConceptModel(network, vocabulary, 0, CPU)
    np.testing.assert_allclose(whole.predict([image]), expected[:1], rtol=1e-5)
    np.testing.assert_allclose(ConceptModel(network, vocabulary, 2, CPU).predict([image])[0], expected.max(0))


def test_features_may_be_brought_to_one_length_which_is_kept_with_the_weights() -> None:
    torch.manual_seed(0)
    network = ConceptNetwork(3, 2, length=4.0)
    regions = torch.randn(5, 3)
    torch.testing.assert_close(network(7 * regions), network(regions))
    plain = ConceptNetwork.of(network.output.state_dict(prefix="output."))
    assert not torch.equal(plain(7 * regions), plain(regions)), "weights without a length are of features as they come"
    torch.testing.assert_close(plain(4 * torch.nn.functional.normalize(regions)), network(regions))
    again = ConceptNetwork.of(network.state_dict())
    torch.testing.assert_close(again(regions), network(regions))
