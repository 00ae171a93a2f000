"""Training that begins with a bundle computes what the bundle computes, also with batch statistics."""

from __future__ import annotations

import msgspec
import pytest
import torch

from deixis.adapters.bundles import open_bundle
from deixis.base.bundle_networks import bundle_grounder
from deixis.base.warm_start import _open, measure_batch_norms, start_grounder
from deixis.errors import DeixisError
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


def test_a_bundle_is_named_with_the_hash_of_its_weights() -> None:
    bundle = open_bundle("deixis-base")
    assert bundle is not None
    sha256 = bundle.manifest.weights_sha256
    assert _open(f"deixis-base@{sha256[:12]}").manifest.weights_sha256 == sha256
    for name, message in (
        ("deixis-base", "HASH"),
        ("deixis-base@", "HASH"),
        ("elsewhere@12", "no bundle"),
        ("deixis-base@000000000000", f"{sha256[:12]}.*--set start=onnx:FOLDER@000000000000"),
    ):
        with pytest.raises(DeixisError, match=message):
            _open(name)


def test_the_colours_of_a_bundle_are_left_out_where_none_are_compared() -> None:
    bundle = open_bundle("deixis-base")
    assert bundle is not None
    known, name = bundle_grounder(bundle).network, f"deixis-base@{bundle.manifest.weights_sha256[:12]}"
    for colours in (0, 64):
        recipe = msgspec.structs.replace(known.recipe, colours=colours)
        begun = start_grounder(name, recipe, seed=0).network.state_dict()
        assert any(weight.startswith("colours.") for weight in begun) == bool(colours)
        assert all(torch.equal(value, begun[weight]) for weight, value in known.state_dict().items() if weight in begun)
