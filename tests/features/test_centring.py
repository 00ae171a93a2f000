"""Directions less the mean one."""

import torch

from deixis.features.centring import centred, mean_direction


def test_the_length_of_a_feature_and_what_all_have_in_common_do_not_count() -> None:
    torch.manual_seed(0)
    features = torch.randn(50, 8) + 5.0
    centre = mean_direction([features[:20], features[20:]])
    directions = features / features.norm(dim=1, keepdim=True)
    assert torch.allclose(centre, directions.mean(0), atol=1e-6)
    expected = directions - directions.mean(0)
    expected /= expected.norm(dim=1, keepdim=True)
    assert torch.allclose(centred(features * torch.rand(50, 1), centre), expected, atol=1e-5)
    # With the common part neighbours look alike; without it they do not.
    assert (directions @ directions.T).min() > 0.5 > (expected @ expected.T).min()
