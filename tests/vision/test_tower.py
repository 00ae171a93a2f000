"""A picture tower comes back from its file as it was, opens as a backbone, and a foreign file is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors.torch import save_file

from deixis.errors import InputError
from deixis.vision.backbones import load_backbone
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.tower import PictureTower, load_tower, save_tower

NAME = "efficientnet-lite0"


@pytest.fixture(scope="module")
def tower() -> PictureTower:
    torch.manual_seed(0)
    tower = PictureTower(EfficientNetLite(VARIANTS[NAME]), NAME, side=64, dim=24, queries=3).eval()
    # Weights that survive float16 exactly, so that the file can be held to equality.
    for value in tower.state_dict().values():
        if value.is_floating_point():
            value.copy_(value.half().float())
    return tower


def test_the_file_gives_the_same_embeddings(tower: PictureTower, tmp_path: Path) -> None:
    save_tower(tower, tmp_path / "tower.safetensors")
    pictures = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(load_tower(tmp_path / "tower.safetensors")(pictures), tower(pictures))


def test_as_a_backbone_its_vectors_are_the_tower_s_embeddings(tower: PictureTower, tmp_path: Path) -> None:
    save_tower(tower, tmp_path / "tower.safetensors")
    backbone = load_backbone(f"tower:{tmp_path}/tower.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 80, 3), np.uint8)
    crops = backbone.preprocess(Pillow.fromarray(pixels))
    assert crops.shape == (1, 3, 64, 64)
    with torch.no_grad():
        expected = tower((crops.float() - 127) / 128)
    torch.testing.assert_close(backbone.vectors(crops), expected, rtol=1e-3, atol=1e-4)
    assert backbone.channels == 24
    assert backbone.map_channels == 1280
    # Otherwise an interrupted extraction could not be continued.
    torch.manual_seed(1)
    assert load_backbone(f"tower:{tmp_path}/tower.safetensors").weights_sha256 == backbone.weights_sha256


def test_attention_sees_what_the_mean_does_not(tower: PictureTower) -> None:
    """Two maps with the same mean, one of them with all of it in one cell, are distinguished."""
    flat = torch.ones(1, 1280, 2, 2)
    peaked = torch.zeros(1, 1280, 2, 2)
    peaked[..., 0, 0] = 4
    with torch.no_grad():
        assert (tower.pooled(flat) - tower.pooled(peaked)).abs().max() > 1e-3


@pytest.mark.parametrize("change", [{"kind": "other"}, {"side": "many"}, {"dim": "25"}, {"backbone": "resnet"}])
def test_a_foreign_or_changed_file_is_refused(tower: PictureTower, tmp_path: Path, change: dict[str, str]) -> None:
    path = tmp_path / "tower.safetensors"
    metadata = {"kind": "deixis tower 1", "backbone": NAME, "side": "64", "dim": "24", "queries": "3"} | change
    kept = {name: value for name, value in tower.state_dict().items() if not name.startswith("backbone._fc.")}
    save_file(kept, path, metadata)
    with pytest.raises(InputError, match=str(path)):
        load_tower(path)


def test_cells_that_are_related_know_their_places(tmp_path: Path) -> None:
    """The pooling alone gives the same of cells in any places; with layers that relate them it does not."""
    torch.manual_seed(0)
    tower = PictureTower(EfficientNetLite(VARIANTS[NAME]), NAME, side=64, dim=24, relating=1).eval()
    save_tower(tower, tmp_path / "tower.safetensors")
    related, plain = load_tower(tmp_path / "tower.safetensors"), PictureTower(tower.backbone, NAME, side=64, dim=24)
    maps = torch.randn(1, 1280, 2, 2)
    with torch.no_grad():
        torch.testing.assert_close(related.pooled(maps), tower.pooled(maps), rtol=1e-2, atol=1e-2)
        assert (related.pooled(maps) - related.pooled(maps.flip(-1))).abs().max() > 1e-3
        torch.testing.assert_close(plain.pooled(maps), plain.pooled(maps.flip(-1)))
