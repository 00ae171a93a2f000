"""Functions that a paper's README names for an equation, against the equation written as loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deixis.papers.concepts_order.loss import exchanged_ranking
from deixis.papers.dvsa.captioner import captioner_input
from deixis.papers.entities_cca.covariances import JointCovariance, canonical_directions
from deixis.papers.hm_lstm.loss import contrasted_phrases, contrasted_roots, contrastive_loss, total_loss
from deixis.papers.two_branch.loss import hardest_triplets, pairwise_distance
from deixis.papers.two_branch.reference import hardest_losses


def units(count: int, dim: int = 4) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, dim))


def test_hm_lstm_equation_9_contrasts_other_images_and_other_words() -> None:
    image, string = torch.tensor([0, 0, 1, 2]), torch.tensor([5, 6, 5, 7])
    roots = contrasted_roots(image, string)
    for first in range(4):
        for second in range(4):
            assert roots[first, second] == (image[first] != image[second] and string[first] != string[second])
    region = torch.tensor([0, 1, 2, 3])
    within = contrasted_phrases(image, string, region, within_image=True)
    # Only the first two share an image.
    assert within.nonzero().tolist() == [[0, 1], [1, 0]]
    # Of all images, those with other words and another region.
    assert (
        contrasted_phrases(image, string, region, within_image=False).tolist()
        == ((string[:, None] != string) & (region[:, None] != region)).tolist()
    )
    # Two phrases of one region are not contrasted.
    assert not contrasted_phrases(image[:2], string[:2], torch.tensor([4, 4]), within_image=True).any()


def test_hm_lstm_equations_9_and_10_by_loops() -> None:
    visual, texts, margin = units(4), units(4), 0.3
    contrast = contrasted_roots(torch.tensor([0, 0, 1, 2]), torch.tensor([5, 6, 7, 8]))
    losses = contrastive_loss(visual, texts, contrast, margin)
    for k in range(4):
        expected = 0.0
        for other in range(4):
            if contrast[k, other]:
                matching = float(visual[k] @ texts[k])
                expected += max(0.0, margin - matching + float(visual[k] @ texts[other]))
                expected += max(0.0, margin - matching + float(visual[other] @ texts[k]))
        assert float(losses[k]) == pytest.approx(expected, abs=1e-6)
    by_phrase, confidence = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.0, 1.0])
    assert float(total_loss(losses, by_phrase, confidence)) == pytest.approx(float(losses.sum()) + 3.5)


def test_two_branch_triplets_are_the_hardest_of_each_pair() -> None:
    images, texts = units(5), units(7)
    match = torch.zeros(5, 7, dtype=torch.bool)
    match[torch.tensor([0, 1, 2, 3, 4, 0, 1]), torch.arange(7)] = True
    distance = pairwise_distance(images, texts)
    for hardest in (1, 3, 30):
        hinges = hardest_triplets(distance, match, ~match, 0.2, hardest)
        expected = hardest_losses(images, texts, texts, match, ~match, 0.2, hardest)
        assert float(hinges.sum()) == pytest.approx(float(sum(expected)), abs=1e-4)


def test_exchanged_captions_cost_a_hinge_unless_there_is_none() -> None:
    images, texts, twins = units(3), units(3), units(3)
    ids = torch.tensor([[4, 5], [0, 0], [6, 0]])
    hinges = [max(0.0, 0.2 - float(images[row] @ texts[row]) + float(images[row] @ twins[row])) for row in (0, 2)]
    assert float(exchanged_ranking(images, texts, twins, ids, 0.2)) == pytest.approx(sum(hinges), abs=1e-6)


def test_regions_are_captioned_with_the_picture_beside_them() -> None:
    regions, picture = np.arange(6.0).reshape(2, 3), np.array([7.0, 8.0, 9.0])
    assert captioner_input(regions, picture, False) is regions
    assert captioner_input(regions, picture, True).tolist() == [[0, 1, 2, 7, 8, 9], [3, 4, 5, 7, 8, 9]]


def test_canonical_directions_of_sums_have_the_correlations_of_all_rows() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(300, 2))
    x = np.hstack([shared, random.normal(size=(300, 2))]) @ random.normal(size=(4, 4))
    y = np.hstack([shared + 0.5 * random.normal(size=(300, 2)), random.normal(size=(300, 1))])
    sums = JointCovariance(4, 3)
    for start in range(0, 300, 70):
        sums.add(torch.from_numpy(x[start : start + 70]), torch.from_numpy(y[start : start + 70]))
    directions = canonical_directions(sums, 3, ridge=0.0)
    # The correlations are the singular values of the product of orthonormal bases of the centred views.
    bases = [np.linalg.qr(view - view.mean(0))[0] for view in (x, y)]
    expected = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    np.testing.assert_allclose(directions.correlations.numpy(), expected, atol=1e-8)
