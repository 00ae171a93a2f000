"""CLIP models of the package open_clip: `open_clip:ARCHITECTURE`, `open_clip:ARCHITECTURE/TAG`, or a file of weights.

Without a tag, weights trained on LAION-2B are preferred. open_clip downloads weights into its own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from deixis.adapters.bundles import Relevance, Threshold
from deixis.adapters.search_model import (
    TEXT_BATCH,
    Bytes,
    Floats,
    Identity,
    Pictures,
    PreparedModel,
    Texts,
    whole_pictures,
    whole_texts,
    words_of,
)
from deixis.errors import DeixisError
from deixis.model import Text
from deixis.vision.extra_backbones import clip_tower, open_clip_model, require
from deixis.vision.weights import state_sha256

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FAVOURITE = "laion2b"


class ClipModel(PreparedModel):
    #: CLIP's cosines are close together, around 0.25 for a text and a picture that shows it. Not fitted.
    relevance = Relevance(Threshold(0.24), Threshold(0.24), slope=60.0, alike=0.75)

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name = f"open_clip:{name}"
        architecture, _, weights = name.partition("/")
        file = weights if Path(weights).is_file() else None
        if not file:
            name = f"{architecture}/{weights or _favourite(architecture)}"
        package, model = open_clip_model(architecture if file else name, file)
        self._model = model.eval().to(device)
        self._tower = clip_tower(name, package, model, device)
        self._tokenizer: Any = package.get_tokenizer(architecture)
        self._device = torch.device(device)
        how = self._tower.input
        preprocessing = {
            "resize": how.crops,
            "side": how.side,
            "resampling": how.resampling.name.lower(),
            "at_least": 2 * how.side,
        }
        # A file may be anywhere; the hash of its weights identifies it.
        known_as = f"open_clip:{architecture}" if file else f"open_clip:{name}"
        self.identity = Identity(known_as, state_sha256(model), self._tower.channels, preprocessing)

    def prepare(self, picture: Picture) -> Bytes:
        pixels: Bytes = self._tower.preprocess(picture)[0].numpy()
        return pixels

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        return whole_pictures(_unit(self._tower.vectors(torch.from_numpy(np.stack(batch)))))

    @torch.no_grad()
    def embed_queries(self, texts: Sequence[Text]) -> Texts:
        for text in texts:
            words_of(text)
        strings = [text if isinstance(text, str) else " ".join(text) for text in texts]
        parts = [strings[start : start + TEXT_BATCH] for start in range(0, len(strings), TEXT_BATCH)]
        rows = [_unit(self._model.encode_text(self._tokenizer(part).to(self._device))) for part in parts]
        return whole_texts(np.concatenate([np.empty((0, self.identity.dim), np.float32), *rows]))


def _favourite(architecture: str) -> str:
    package = require("open_clip", "clip", f"open_clip:{architecture}")
    tags = list(package.list_pretrained_tags_by_model(architecture))
    if not tags:
        raise DeixisError(f"open_clip has no weights of {architecture!r}; name a file: open_clip:{architecture}/FILE")
    return str(next((tag for tag in tags if tag.startswith(FAVOURITE)), tags[0]))


def _unit(vectors: torch.Tensor) -> Floats:
    rows: Floats = F.normalize(vectors.float(), dim=1).cpu().numpy()
    return rows
