"""The networks of a bundle in PyTorch: to ground and describe on a GPU, to fine-tune, to export again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL.Image import Image as Picture
from PIL.Image import Resampling
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from deixis.adapters.bundles import CAPTIONER_VOCABULARY, GROUNDING_VOCABULARY, VOCABULARY, WEIGHTS, Bundle
from deixis.adapters.onnx_captioner import CaptionerSettings
from deixis.adapters.search_model import Bytes
from deixis.adapters.weight_files import SCALE, WeightFile
from deixis.base.bundle_model import bundle_settings, bundle_words
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingNetwork, GroundingRecipe
from deixis.base.text_tower import TextTower, TowerRecipe
from deixis.errors import DeixisError, InputError
from deixis.files import require_regular
from deixis.model import Description, ImageFeatures
from deixis.papers.dvsa.captioner import Captioner, CaptionerRecipe, DecodingRecipe
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.vision.crops import squash
from deixis.vision.efficientnet_lite import FOLLOWED_BY, VARIANTS, EfficientNetLite
from deixis.vision.learned_proposals import checked_device
from deixis.vision.proposer import Proposer, normalize
from deixis.vision.tower import PictureTower

WORDS = "grounding.words.weight"


def bundle_tower(bundle: Bundle) -> PictureTower:
    """The picture tower, in evaluation mode."""
    model = bundle_settings(bundle, bundle.manifest.towers, TowerRecipe)
    network = EfficientNetLite(VARIANTS[model.backbone])
    tower = PictureTower(network, model.backbone, model.side, model.dim, model.queries, model.fine)
    return _filled(tower, bundle, "pictures.", network).eval()


def bundle_texts(bundle: Bundle) -> TextTower:
    """The text branch, in evaluation mode."""
    words = len(bundle_words(bundle, VOCABULARY))
    tower = TextTower(bundle_settings(bundle, bundle.manifest.towers, TowerRecipe), words)
    return _filled(tower, bundle, "texts.").eval()


def bundle_grounder(bundle: Bundle, device: str = "cpu") -> GroundingModel:
    """The grounding network; a `DeixisError` if the bundle has none."""
    if bundle.manifest.grounding is None:
        raise DeixisError(f"{bundle.folder}: {bundle.manifest.name} does not ground phrases")
    recipe = bundle_settings(bundle, bundle.manifest.grounding, GroundingRecipe)
    words = bundle_words(bundle, GROUNDING_VOCABULARY)
    weights = WeightFile(bundle.folder / WEIGHTS)
    width, word = weights.place("grounding.proposer.lateral.0.weight").shape[0], weights.place(WORDS).shape[1]
    trunk = Proposer(EfficientNetLite(VARIANTS[recipe.backbone]), recipe.backbone, width)
    network = GroundingNetwork(recipe, trunk, len(words), word)
    _filled(network, bundle, "grounding.", network.proposer.backbone)
    network.eval().to(checked_device(device))
    return GroundingModel(network, words, jpeg=bundle.manifest.jpeg)


def bundle_captioner(bundle: Bundle, device: str = "cpu") -> CaptionerModel:
    """The captioner; a `DeixisError` if the bundle has none."""
    settings = bundle.manifest.captioner
    if settings is None:
        raise DeixisError(f"{bundle.folder}: {bundle.manifest.name} does not describe pictures")
    words, channels = bundle_words(bundle, CAPTIONER_VOCABULARY), int(settings["channels"])
    network = Captioner(channels, len(words), bundle_settings(bundle, settings["model"], CaptionerRecipe))
    _filled(network, bundle, "captioner.")
    decoding = bundle_settings(bundle, settings["decoding"], DecodingRecipe)
    return CaptionerModel(network, words, decoding, torch.zeros(1, channels), checked_device(device))


class BundleCaptioner:
    """Describes pictures with a bundle's captioner, from the embeddings of its tower."""

    def __init__(self, bundle: Bundle, device: str = "cpu") -> None:
        self._device = checked_device(device)
        self._captioner, self._tower = bundle_captioner(bundle, device), bundle_tower(bundle)
        self._tower.backbone.fuse()
        self._tower.to(self._device)
        self.settings = bundle_settings(bundle, bundle.manifest.captioner, CaptionerSettings)
        self._jpeg = bundle.manifest.jpeg

    def prepare(self, picture: Picture) -> Bytes:
        """The picture as bytes `(3, side, side)`."""
        resampling = Resampling[self.settings.resampling.upper()]
        squashed = squash(picture, self.settings.side, resampling, self._jpeg)
        return np.array(squashed).transpose(2, 0, 1)

    @torch.inference_mode()
    def describe(self, pixels: Bytes, count: int) -> list[Description]:
        """At most `count` sentences about a prepared picture, best first; scores are log probabilities."""
        row = self._tower(normalize(torch.from_numpy(pixels)[None].to(self._device)))[0]
        side = self.settings.side
        return self._captioner.describe(ImageFeatures(row.float().cpu().numpy(), None, None, (side, side)), count)


Network = TypeVar("Network", bound=nn.Module)


def _filled(network: Network, bundle: Bundle, prefix: str, backbone: EfficientNetLite | None = None) -> Network:
    """The network with the weights of a bundle, in which the batch norm of the backbone is folded."""
    tensors = read_tensors(bundle.file(WEIGHTS), prefix)
    if backbone is not None:
        path = next(name for name, module in network.named_modules() if module is backbone) + "."
        tensors = {**network.state_dict(), **tensors, **_unfolded(backbone, tensors, path)}
        tensors = {name: tensors[name] for name in network.state_dict()}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as fault:
        reason = str(fault).splitlines()[-1].strip()
        raise InputError(bundle.folder / WEIGHTS, f"holds other weights than the network's ({reason})") from None
    return network


def _unfolded(backbone: EfficientNetLite, folded: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Folded weights for a network with batch norm, which then only adds the bias of the convolution."""
    unfolded: dict[str, Tensor] = {}
    parts = [("", backbone), *((f"_blocks.{index}.", block) for index, block in enumerate(backbone._blocks))]
    for block, part in parts:
        for convolution, norm in FOLLOWED_BY.items():
            if not hasattr(part, convolution):
                continue
            layer = getattr(part, norm)
            unfolded[f"{prefix}{block}{norm}.bias"] = folded[f"{prefix}{block}{convolution}.bias"]
            unfolded[f"{prefix}{block}{norm}.weight"] = torch.full((layer.num_features,), (1 + layer.eps) ** 0.5)
            unfolded[f"{prefix}{block}{norm}.running_mean"] = torch.zeros(layer.num_features)
            unfolded[f"{prefix}{block}{norm}.running_var"] = torch.ones(layer.num_features)
    return unfolded


def read_tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors of a weights file with a prefix, without the prefix, in float32."""
    names = WeightFile(path)
    tensors = {}
    try:
        with safe_open(require_regular(path), "pt") as file:
            for name in names.names(prefix):
                value = file.get_tensor(names.shared(name)).float()
                if name + SCALE in names:
                    value = value * file.get_tensor(names.shared(name + SCALE))
                tensors[name.removeprefix(prefix)] = value
    except (OSError, SafetensorError) as fault:
        raise InputError(path, f"is damaged ({fault})") from None
    return tensors
