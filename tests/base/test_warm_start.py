"""Training that begins with a bundle computes what the bundle computes, also with batch statistics."""

from __future__ import annotations

import torch

from deixis.base.warm_start import measure_batch_norms
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite


def test_measured_batch_norms_change_nothing_and_hold_the_statistics() -> None:
    torch.manual_seed(0)
    network = EfficientNetLite(VARIANTS["efficientnet-lite0"]).eval()
    pictures = torch.rand(16, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        before = network.map(pictures)
        measure_batch_norms(network, [pictures[:8], pictures[8:]])
        assert not network.training
        torch.testing.assert_close(network.map(pictures), before, atol=1e-4, rtol=1e-3)
        # The first norm sees the same in training: its batch statistics are those that were measured.
        first = network._bn0
        measured = first(network._conv_stem(pictures))
        torch.testing.assert_close(first.train()(network._conv_stem(pictures)), measured, atol=1e-3, rtol=1e-3)
