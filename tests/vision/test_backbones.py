"""Backbones: one protocol, right preprocessing, vectors and maps that belong together; extras named when missing."""

from __future__ import annotations

import importlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from deixis.errors import DeixisError, InputError
from deixis.vision.backbones import (
    NetworkBackbone,
    as_bytes,
    efficientnet_lite_backbone,
    load_backbone,
    mean_vectors,
    stacked,
)
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.regions import region_vectors
from deixis.vision.weights import state_sha256


def photo(width: int = 90, height: int = 70) -> Pillow.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Pillow.fromarray(coarse).resize((width, height), Pillow.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def lite() -> NetworkBackbone:
    torch.manual_seed(0)
    return efficientnet_lite_backbone("efficientnet-lite0", EfficientNetLite(VARIANTS["efficientnet-lite0"]))


def test_vectors_are_those_of_the_network_on_normalized_pictures(lite: NetworkBackbone) -> None:
    torch.manual_seed(0)
    network = EfficientNetLite(VARIANTS["efficientnet-lite0"]).eval()
    assert lite.weights_sha256 == state_sha256(network)
    crop = lite.preprocess(photo())
    assert crop.dtype == torch.uint8
    assert crop.shape == (1, 3, 224, 224)
    with torch.no_grad():
        expected = network.map((crop.float() - 127) / 128).mean((2, 3))
    torch.testing.assert_close(lite.vectors(crop), expected, rtol=1e-3, atol=1e-5)
    assert (lite.channels, lite.map_channels, lite.stride, lite.side) == (1280, 1280, 32, 224)


def test_crops_of_a_backbone(lite: NetworkBackbone) -> None:
    ten = lite.preprocess(photo(), "ten")
    assert ten.shape == (10, 3, 224, 224)
    torch.testing.assert_close(ten[4], lite.preprocess(photo())[0])
    torch.testing.assert_close(ten[5], ten[0].flip(-1))
    squashed = as_bytes(photo().resize((224, 224), Pillow.Resampling.BICUBIC))
    torch.testing.assert_close(lite.preprocess(photo(), "squash")[0], squashed)
    batch = torch.stack([ten[:2], ten[2:4]])
    expected = torch.stack([lite.vectors(ten[:2]).mean(0), lite.vectors(ten[2:4]).mean(0)])
    torch.testing.assert_close(mean_vectors(lite, batch), expected)


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))],
)
def test_stacked_pictures_have_the_bytes_of_each_channels_last(device: str) -> None:
    random = np.random.default_rng(1)
    # Several at once: the memory of a batch on its way must not be given to the next.
    batches = [
        [as_bytes(Pillow.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8))) for _ in range(5)]
        for _ in range(8)
    ]
    placed = [stacked(pictures, device) for pictures in batches]
    for pictures, batch in zip(batches, placed, strict=True):
        assert batch.device.type == device
        assert batch.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.cpu(), torch.stack(pictures))
    crops = [torch.stack(pictures) for pictures in batches[:2]]
    assert torch.equal(stacked(crops, device).cpu(), torch.stack(crops))


def test_maps_know_where_their_cells_look(lite: NetworkBackbone) -> None:
    whole = lite.whole(photo(), 160)
    maps = lite.maps(torch.stack([whole, whole.flip(-1)]))
    assert whole.shape == (3, 128, 192)
    assert maps.values.shape == (2, 1280, 4, 6)
    assert (maps.stride, maps.origin) == (32, (31.5 - 14, 31.5 - 14))
    boxes = torch.tensor([[10.0, 10.0, 100.0, 90.0]])
    assert region_vectors(maps, [boxes, boxes]).shape == (2, 1280)


def test_unknown_names_list_the_known() -> None:
    for name in ("resnet50", "tensorflow:resnet50", "timm:", ""):
        with pytest.raises(DeixisError, match=r"unknown backbone .* efficientnet-lite2, torchvision:…, timm:…"):
            load_backbone(name)


@pytest.mark.parametrize(
    ("name", "extra"),
    [("torchvision:vgg19", "torchvision"), ("timm:resnet50", "timm"), ("open_clip:RN50", "clip")],
)
def test_a_missing_package_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{module}'")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(DeixisError, match=rf"pip install 'deixis\[{extra}\]'"):
        load_backbone(name)

    def broken(module: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(DeixisError, match="cannot be imported with this torch"):
        load_backbone(name)


def usable(module: str) -> Any:
    """The package, or a skip: a torchvision that was built for another torch fails with more than ImportError."""
    try:
        return importlib.import_module(module)
    except Exception as fault:
        pytest.skip(f"{module} cannot be imported here: {fault}")


def saved(network: torch.nn.Module, folder: Path) -> Path:
    torch.save(network.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


@pytest.mark.filterwarnings("ignore")
def test_torchvision_vgg_gives_fc7(tmp_path: Path) -> None:
    network = usable("torchvision.models").vgg11().eval()
    backbone = load_backbone("torchvision:vgg11", weights=saved(network, tmp_path))
    crop = backbone.preprocess(photo())
    with torch.no_grad():
        logits = network(backbone._normalized(crop))  # type: ignore[attr-defined]
        torch.testing.assert_close(network.classifier[6](backbone.vectors(crop)), logits, rtol=1e-3, atol=1e-4)
    assert (backbone.channels, backbone.map_channels, backbone.stride) == (4096, 512, 16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_resnet_gives_what_its_classifier_sees(package: str, tmp_path: Path) -> None:
    usable(package)
    maker = usable("torchvision.models").resnet18 if package == "torchvision" else usable("timm").models.resnet18
    network = maker().eval()
    backbone = load_backbone(f"{package}:resnet18", weights=saved(network, tmp_path))
    crop = backbone.preprocess(photo())
    with torch.no_grad():
        logits = network(backbone._normalized(crop))  # type: ignore[attr-defined]
        torch.testing.assert_close(network.fc(backbone.vectors(crop)), logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(backbone.maps(crop).values.mean((2, 3)), backbone.vectors(crop), rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="holds other weights"):
        load_backbone(f"{package}:resnet50", weights=tmp_path / "weights.pth")


@pytest.mark.filterwarnings("ignore")
def test_a_clip_tower_gives_its_embedding(tmp_path: Path) -> None:
    model = usable("open_clip").create_model("ViT-B-32").eval()
    backbone = load_backbone("open_clip:ViT-B-32", weights=saved(model, tmp_path))
    crop = backbone.preprocess(photo())
    with torch.no_grad():
        expected = model.encode_image(backbone._normalized(crop))  # type: ignore[attr-defined]
        torch.testing.assert_close(backbone.vectors(crop), expected, rtol=1e-3, atol=1e-4)
    assert backbone.maps(backbone.whole(photo())[None]).values.shape == (1, 768, 7, 7)
    with pytest.raises(DeixisError, match="224 × 224 pixels only"):
        backbone.whole(photo(), 384)
    with pytest.raises(DeixisError, match="needs weights"):
        load_backbone("open_clip:ViT-B-32")


@pytest.mark.parametrize("size", [(64, 96), (65, 71), (260, 260)])
def test_exported_maps_are_those_of_pytorch(size: tuple[int, int], tmp_path: Path, monkeypatch: Any) -> None:
    """For any number and size of pictures, odd ones too, though one graph serves them all."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    torch.manual_seed(0)
    network = EfficientNetLite(VARIANTS["efficientnet-lite0"])
    plain, exported = (
        efficientnet_lite_backbone("efficientnet-lite0", deepcopy(network), exported=choice) for choice in (False, True)
    )
    assert plain.weights_sha256 == exported.weights_sha256
    pictures = torch.randint(0, 256, (3, 3, *size), dtype=torch.uint8)
    torch.testing.assert_close(exported.maps(pictures).values, plain.maps(pictures).values, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(exported.vectors(pictures), plain.vectors(pictures), rtol=1e-3, atol=1e-5)
