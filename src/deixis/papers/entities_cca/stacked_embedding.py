"""Stacked auxiliary embedding (section 4.1): the region-phrase CCA gives further features of images and sentences.

After Gong et al. (ECCV 2014). Images and sentences have other statistics than regions and phrases, so the two sets of
pairs are not mixed. Instead the fitted region-phrase CCA encodes images and sentences, its unit vectors are
concatenated to the original features, and a CCA of the result is the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from deixis.errors import InputError
from deixis.papers.entities_cca.cca import NormalizedCCA
from deixis.papers.entities_cca.projections import Stored, read_projections, write_projections


class StackedAuxiliaryEmbedding(NormalizedCCA):
    """A CCA of the features (x, a(x)) and (y, b(y)), with a and b the encodings of an auxiliary CCA.

    Before normalization a(x) and b(y) are linear in x and y, and a CCA gains nothing from features that are linear in
    others: the stack adds the normalization, and directions that the ridge would suppress. So it needs a ridge above 0,
    which is relative to the mean variance of each part.

    Parameters
    ----------
    auxiliary : NormalizedCCA
        Fitted to regions and phrases, with the same features of pictures and texts.
    n_components, ridge, power, block, dtype, device
        Of the CCA of the stacked features, as in `NormalizedCCA`.

    References
    ----------
    Y. Gong, L. Wang, M. Hodosh, J. Hockenmaier, S. Lazebnik. "Improving image-sentence embeddings using large weakly
    annotated photo collections", ECCV 2014.
    """

    def __init__(
        self,
        auxiliary: NormalizedCCA,
        n_components: int | None = None,
        *,
        ridge: float = 1e-2,
        power: float = 1.0,
        block: int = 4096,
        dtype: Literal["float64", "float32"] = "float64",
        device: str | None = None,
    ) -> None:
        super().__init__(n_components, ridge=ridge, power=power, block=block, dtype=dtype, device=device)
        self.auxiliary = auxiliary

    def save(self, path: str | Path) -> None:
        """Write both CCAs to one safetensors file."""
        models = {"auxiliary": self.auxiliary._stored(), "final": self._stored()}
        write_projections(path, "StackedAuxiliaryEmbedding", models)

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> StackedAuxiliaryEmbedding:
        """Read what `save` wrote; it encodes, and cannot learn more."""
        first, final = read_projections(path, "StackedAuxiliaryEmbedding", ["auxiliary", "final"])
        stacked = cls(NormalizedCCA(device=device)._restore(first), device=device)._restore(final)
        x_widths, y_widths = stacked._parts()
        if (sum(x_widths), sum(y_widths)) != (len(final[0].x_mean), len(final[0].y_mean)):
            raise InputError(path, "has a stacked embedding that does not fit its auxiliary one")
        return stacked

    def _restore(self, stored: Stored) -> StackedAuxiliaryEmbedding:
        super()._restore(stored)
        self.n_features_in_, self.n_features_y_ = self.auxiliary.n_features_in_, self.auxiliary.n_features_y_
        return self

    def _features(self, view: Literal["x", "y"]) -> Callable[[Tensor], Tensor]:
        encoder = self.auxiliary._encoder(view)
        return lambda block: torch.cat([block, encoder(block).to(block.device)], dim=1)

    def _parts(self) -> tuple[Sequence[int], Sequence[int]]:
        components = len(self.auxiliary.correlations_)
        return (self.auxiliary.n_features_in_, components), (self.auxiliary.n_features_y_, components)
