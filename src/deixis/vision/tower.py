"""A picture tower: an EfficientNet-Lite, pooling, and a projection, trained end to end with a text branch.

The map is pooled by its mean and by attention with learned queries, so that small things can count. Its file
(safetensors) is also a backbone: `load_backbone("tower:run/tower.safetensors")` gives the tower's embeddings as vectors
and the fine-tuned map for regions. Training is in `deixis.base.pictures_task`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.errors import InputError
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.weights import fill_network, read_network, save_network

_KIND = "deixis tower 1"
_SIZES = ("side", "dim", "queries", "fine", "relating", "concepts")
#: Settings that older files lack; they are 0 then.
_ADDED = ("fine", "relating", "concepts")
#: Width and heads of the attention among cells.
_RELATED, _HEADS = 512, 8
#: For search, this many neighbouring cells per side are averaged to one.
POOL = 2
#: The ImageNet classifier is not used and not stored.
_NOT_KEPT = ("backbone._fc.",)


class RelatedCells(nn.Module):
    """Attention among the cells of a map, with positions: `(batch, cells, channels)` to `(batch, cells, 512)`."""

    def __init__(self, channels: int, cells: int, layers: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, _RELATED)
        self.places = nn.Parameter(0.02 * torch.randn(cells, _RELATED))
        layer = nn.TransformerEncoderLayer(
            _RELATED, _HEADS, 2 * _RELATED, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(_RELATED), enable_nested_tensor=False)

    def forward(self, cells: Tensor) -> Tensor:
        related: Tensor = self.layers(self.project(cells) + self.places)
        return related


class PictureTower(nn.Module):
    """Normalized pictures `(batch, 3, height, width)` to embeddings `(batch, dim)`, not scaled to unit length.

    Args:
        dim: 0 for the fine-tuned backbone alone; a picture's vector is then the mean of its map.
        fine: dimension of the embeddings of the map's cells, which are compared with words; 0: none.
        relating: layers of attention among the cells before the pooling, which by itself ignores positions.
        concepts: number of concepts whose presence is predicted for the whole map and for each cell.
    """

    def __init__(
        self,
        backbone: EfficientNetLite,
        backbone_name: str,
        side: int,
        dim: int,
        queries: int = 4,
        fine: int = 0,
        relating: int = 0,
        concepts: int = 0,
    ) -> None:
        super().__init__()
        self.backbone, self.backbone_name = backbone, backbone_name
        self.side, self.dim, self.queries, self.fine, self.relating = side, dim, queries, fine, relating
        self.concepts = concepts
        channels = backbone.channels
        self.relate = RelatedCells(channels, self.map_side**2, relating) if relating else None
        if dim:
            channels = _RELATED if relating else channels
            self.keys = nn.Linear(channels, queries)
            self.values = nn.Linear(channels, dim)
            self.mean = nn.Linear(channels, dim)
            self.mix = nn.Linear(queries * dim, dim)
        self.cells = nn.Linear(backbone.channels, fine) if fine else None
        self.seen = nn.Linear(backbone.channels, concepts) if concepts else None

    def forward(self, pictures: Tensor) -> Tensor:
        return self.pooled(self.backbone.map(pictures))

    def pooled(self, maps: Tensor) -> Tensor:
        """Embeddings from maps `(batch, channels, rows, columns)`."""
        if not self.dim:
            return maps.mean((-2, -1))
        cells = maps.flatten(2).transpose(1, 2)  # (batch, cells, channels)
        if self.relate is not None:
            cells = self.relate(cells)
        weights = self.keys(cells).softmax(1)  # (batch, cells, queries)
        # The values of means, since weights sum to 1: fewer products than means of the values of all cells.
        attended = self.values(torch.einsum("bcq,bcd->bqd", weights, cells))
        pooled: Tensor = self.mean(cells.mean(1)) + self.mix(F.gelu(attended.flatten(1)))
        return pooled

    def embed_cells(self, maps: Tensor) -> Tensor:
        """Unit embeddings `(batch, cells, fine)` of the cells of maps."""
        assert self.cells is not None, "a tower without fine embeddings"
        return F.normalize(self.cells(maps.flatten(2).transpose(1, 2)).float(), dim=-1)

    def concept_logits(self, maps: Tensor) -> Tensor:
        """`(batch, 1 + cells, concepts)`: for the whole map, and for each cell."""
        assert self.seen is not None, "a tower without concepts"
        cells = maps.flatten(2).transpose(1, 2)
        logits: Tensor = self.seen(torch.cat([cells.mean(1, keepdim=True), cells], 1))
        return logits.float()

    @property
    def map_side(self) -> int:
        """Cells along either side of the map of a picture of `side` pixels."""
        return -(-self.side // 32)

    @property
    def cell_count(self) -> int:
        """Number of cells returned by `few_cells`."""
        return (-(-self.map_side // POOL)) ** 2 if self.fine else 0

    def few_cells(self, cells: Tensor) -> Tensor:
        """Average the unit vectors of `embed_cells` over neighbours: unit vectors `(batch, cell_count, fine)`."""
        grid = cells.transpose(1, 2).reshape(cells.shape[0], -1, self.map_side, self.map_side)
        means = F.avg_pool2d(grid, POOL, ceil_mode=True)
        return F.normalize(means.flatten(2).transpose(1, 2), dim=-1)

    def rows(self, pictures: Tensor) -> Tensor:
        """One vector per picture: its embedding, then the unit vectors of its cells, then the confidences of concepts.

        Confidences are those for the whole picture and for each cell.
        """
        return self.rows_of_maps(self.backbone.map(pictures))

    def rows_of_maps(self, maps: Tensor) -> Tensor:
        """`rows` from the backbone's maps."""
        parts = [self.pooled(maps)]
        if self.cells is not None:
            parts.append(self.embed_cells(maps).flatten(1))
        if self.seen is not None:
            parts.append(torch.sigmoid(self.concept_logits(maps)).flatten(1))
        return torch.cat(parts, 1)


def save_tower(tower: PictureTower, path: str | Path, *, cells: bool = True) -> None:
    """Save weights as float16, with the settings of the tower as metadata; without those of `cells` if false."""
    sizes = {name: str(getattr(tower, name)) for name in _SIZES} | ({} if cells else {"fine": "0"})
    skip = _NOT_KEPT if cells else (*_NOT_KEPT, "cells.")
    save_network(tower, path, {"kind": _KIND, "backbone": tower.backbone_name, **sizes}, skip=skip)


def load_tower(path: str | Path) -> PictureTower:
    """Open a file written by `save_tower`; anything else is an `InputError`."""
    description, tensors = read_network(path, _KIND, "a picture tower")
    try:
        name = description["backbone"]
        side, dim, queries, fine, relating, concepts = (
            int(description.get(key, 0) if key in _ADDED else description[key]) for key in _SIZES
        )
    except (KeyError, ValueError) as fault:
        raise InputError(path, f"its description is damaged ({fault})", "metadata") from None
    allowed = ((32, 2048), (0, 8192), (1, 64), (0, 8192), (0, 16), (0, 8192))
    sizes = (side, dim, queries, fine, relating, concepts)
    if name not in VARIANTS or not all(low <= size <= high for size, (low, high) in zip(sizes, allowed, strict=True)):
        raise InputError(path, f"no tower on {name!r} of {side} pixels, {dim} and {queries} is known", "metadata")
    tower = PictureTower(EfficientNetLite(VARIANTS[name]), name, *sizes)
    fill_network(tower, tensors, path, skip=_NOT_KEPT)
    return tower.eval()


#: Files of a run: the tower, and one whose vectors include the cells' embeddings.
TOWER, CELLS = "tower.safetensors", "tower-cells.safetensors"
