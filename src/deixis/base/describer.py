"""Putting pictures into words with a bundle's captioner, which reads what the bundle's tower sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deixis.adapters.bundles import DEFAULT, ONNX, open_bundle
from deixis.adapters.descriptions import Said, generated_captions
from deixis.base.bundle_networks import CaptionView, bundle_captioner, bundle_tower, caption_view
from deixis.errors import DeixisError
from deixis.model import ImageFeatures
from deixis.papers.dvsa.captioner import CaptionMatcher
from deixis.vision.backbones import as_bytes
from deixis.vision.crops import squash
from deixis.vision.learned_proposals import checked_device
from deixis.vision.picture_files import as_picture
from deixis.vision.proposer import normalize
from deixis.vision.tower import PictureTower

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


class Describer:
    """Makes sentences; `Describer.open` opens a bundle's."""

    def __init__(self, tower: PictureTower, captioner: CaptionMatcher, view: CaptionView, device: torch.device) -> None:
        self._tower, self._captioner, self._view, self._device = tower.to(device), captioner, view, device

    @classmethod
    def open(cls, name: str = DEFAULT, *, device: str = "cpu") -> Describer:
        """Open one by name: `deixis-base` or `onnx:FOLDER`."""
        bundle = open_bundle(name)
        if bundle is None:
            raise DeixisError(f"unknown model {name!r}; known: {DEFAULT}, {ONNX}FOLDER")
        captioner, tower = bundle_captioner(bundle, device), bundle_tower(bundle)
        tower.backbone.fuse(device)
        return cls(tower, captioner, caption_view(bundle), checked_device(device))

    @torch.inference_mode()
    def describe(self, picture: str | Path | Picture, count: int = 3) -> list[Said]:
        """At most `count` sentences of a file or a picture in RGB, best first; scores are logarithms of chances."""
        picture = as_picture(picture)
        pixels = as_bytes(squash(picture, *self._view))[None].to(self._device)
        row = self._tower(normalize(pixels))[0]
        seen = ImageFeatures(row.float().cpu().numpy(), None, None, picture.size)
        return generated_captions(self._captioner, seen, count)
