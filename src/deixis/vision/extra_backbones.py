"""Backbones of optional packages: VGG and ResNet of torchvision (used in the papers), timm, CLIP."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image as Pillow
from torch import nn

from deixis.errors import DeixisError, InputError
from deixis.vision.backbones import NetworkBackbone, NetworkInput
from deixis.vision.weights import load_weights, state_sha256

Weights = str | Path | None


def torchvision_backbone(name: str, weights: Weights, device: str) -> NetworkBackbone:
    """VGG: fc7 (Entities, two-branch) and the map of conv5. ResNet: the last stage, pooled and as a map."""
    models = require("torchvision.models", "torchvision", f"torchvision:{name}")
    if not name.startswith(("vgg", "resnet", "resnext", "wide_resnet")) or name not in models.list_models():
        raise DeixisError(f"torchvision:{name}: only its VGG and ResNet networks are taken; for others use timm:…")
    published = models.get_model_weights(name).DEFAULT
    network = models.get_model(name, weights=None if weights else published)
    if weights:
        load_weights(network, weights)
    preset = published.transforms()
    side = preset.crop_size[0]
    input = _input(side, side / preset.resize_size[0], preset.mean, preset.std, preset.interpolation.value)
    origin: Callable[[int], float] | None = None
    if name.startswith("vgg"):
        # Without the last pooling, so that the map has stride 16.
        trunk, fc7 = network.features[:-1], network.classifier[:5]
        pool = nn.Sequential(network.features[-1], network.avgpool, nn.Flatten(), fc7)
    else:
        trunk = nn.Sequential(*list(network.children())[:-2])
        pool = nn.Sequential(network.avgpool, nn.Flatten())
        # All strided layers are padded on both sides, so the first cell is always centred on the first pixel.
        origin = _first_pixel
    return NetworkBackbone(
        f"torchvision:{name}",
        network,
        input,
        vectors=lambda x: pool(trunk(x)),
        maps=trunk,
        weights_sha256=state_sha256(network),
        device=device,
        origin=origin,
    )


def _first_pixel(size: int) -> float:
    return 0.5


def timm_backbone(name: str, weights: Weights, device: str) -> NetworkBackbone:
    """Any timm network: the pooled features before the classifier, and the last map."""
    timm = require("timm", "timm", f"timm:{name}")
    if not timm.is_model(name):
        raise DeixisError(f"timm has no network {name!r}; timm.list_models() lists them")
    network = timm.create_model(name, pretrained=weights is None, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    if weights:
        classifier = network.pretrained_cfg.get("classifier") or ()
        names = [classifier] if isinstance(classifier, str) else classifier
        load_weights(network, weights, ignore=[f"{name}." for name in names])
    input = _input(
        config["input_size"][1],
        config["crop_pct"],
        config["mean"],
        config["std"],
        config["interpolation"],
        crops="squash" if config["crop_mode"] == "squash" else "centre",
        any_size=not network.pretrained_cfg.get("fixed_input_size", False),
    )
    return NetworkBackbone(
        f"timm:{name}",
        network,
        input,
        vectors=network,
        maps=lambda x: network.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[-1],
        weights_sha256=state_sha256(network),
        device=device,
    )


def open_clip_model(name: str, weights: Weights) -> tuple[Any, Any]:
    """The package open_clip, and a model by name: `ARCHITECTURE/TAG`, or `ARCHITECTURE` and a file of weights."""
    open_clip = require("open_clip", "clip", f"open_clip:{name}")
    architecture, _, tag = name.partition("/")
    if architecture not in open_clip.list_models():
        raise DeixisError(f"open_clip has no model {architecture!r}; open_clip.list_models() lists them")
    if not weights and not tag:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise DeixisError(f"open_clip:{name} needs weights: a file, or one of its tags as {architecture}/TAG ({tags})")
    try:
        return open_clip, open_clip.create_model(architecture, pretrained=str(weights or tag), precision="fp32")
    except Exception as fault:
        if not weights:
            raise
        raise InputError(weights, f"does not hold the weights of {architecture} ({str(fault)[:300]})") from None


def open_clip_backbone(name: str, weights: Weights, device: str) -> NetworkBackbone:
    """The picture encoder of a CLIP: its embedding, and the map of its last layer."""
    return clip_tower(name, *open_clip_model(name, weights), device)


def clip_tower(name: str, open_clip: Any, model: Any, device: str) -> NetworkBackbone:
    """The picture encoder of a loaded CLIP."""
    config = open_clip.get_model_preprocess_cfg(model)
    tower = model.visual
    size = config["size"]
    input = _input(
        size if isinstance(size, int) else size[0],
        1.0,
        config["mean"],
        config["std"],
        config["interpolation"],
        crops="squash" if config.get("resize_mode") == "squash" else "centre",
        any_size=False,
    )
    return NetworkBackbone(
        f"open_clip:{name}",
        tower,
        input,
        vectors=tower,
        maps=lambda x: tower.forward_intermediates(x, indices=1, normalize_intermediates=True, intermediates_only=True)[
            "image_intermediates"
        ][-1],
        weights_sha256=state_sha256(tower),
        device=device,
    )


FAMILIES: dict[str, Callable[[str, Weights, str], NetworkBackbone]] = {
    "torchvision": torchvision_backbone,
    "timm": timm_backbone,
    "open_clip": open_clip_backbone,
}


def require(module: str, extra: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise DeixisError(
            f"{name} needs a package that is not installed ({fault}); pip install 'deixis[{extra}]'"
        ) from None
    # A torchvision built for another torch raises a RuntimeError when imported.
    except Exception as fault:
        raise DeixisError(f"{name}: {module} is installed but cannot be imported with this torch ({fault})") from None


def _input(
    side: int,
    share: float,
    mean: Iterable[float],
    std: Iterable[float],
    interpolation: str,
    **options: Any,
) -> NetworkInput:
    """From mean and std for pictures in [0, 1]."""
    means, stds = (tuple(255 * value for value in values) for values in (mean, std))
    resampling = Pillow.Resampling[interpolation.upper()] if interpolation != "random" else Pillow.Resampling.BICUBIC
    return NetworkInput(side, share, (means[0], means[1], means[2]), (stds[0], stds[1], stds[2]), resampling, **options)
