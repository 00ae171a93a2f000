"""Embeddings of parts of a picture from the one map that a tower makes of it.

A window is a rectangle of cells. Pooled as the tower pools the whole map, it gives a row that compares with texts and
whole pictures; all windows of a picture together cost a small part of the map itself.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from deixis.vision.tower import PictureTower

#: How long windows are, as shares of the map, and at how many places along it.
SHARES = ((1, 1), (2 / 3, 2), (1 / 3, 4))


def cell_windows(rows: int, columns: int) -> NDArray[np.int64]:
    """Windows `(windows, 4)` as first column, first row, last column + 1, last row + 1; the whole map is the first."""
    pairs = product(_spans(rows), _spans(columns))
    return np.array([(left, top, right, bottom) for (top, bottom), (left, right) in pairs], np.int64)


def _spans(cells: int) -> list[tuple[int, int]]:
    found = []
    for share, places in SHARES:
        length = max(1, round(share * cells))
        starts = np.linspace(0, cells - length, places).round().astype(int)
        found += [(start, start + length) for start in starts.tolist()]
    return list(dict.fromkeys(found))


@torch.no_grad()
def pooled_windows(tower: PictureTower, maps: Tensor, windows: NDArray[np.int64]) -> Tensor:
    """Embeddings `(batch, windows, dim)`: `tower.pooled` of each window of maps `(batch, channels, rows, columns)`.

    What is the same in every window (keys, values and means of cells) is computed once.
    """
    rows, columns = maps.shape[2:]
    inside = torch.zeros(len(windows), rows, columns, device=maps.device)
    for mask, (left, top, right, bottom) in zip(inside, windows.tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    inside = inside.flatten(1)
    cells = maps.flatten(2).transpose(1, 2)  # (batch, cells, channels)
    keys = tower.keys(cells)  # (batch, cells, queries)
    # A softmax over the cells of a window: the maximum of the whole map serves all of them.
    powers = (keys - keys.amax(1, keepdim=True)).exp().clamp_min(1e-30)
    weighted = powers.unsqueeze(-1) * tower.values(cells).unsqueeze(2)  # (batch, cells, queries, dim)
    attended = torch.einsum("wc,bcqx->bwqx", inside, weighted)
    attended = attended / torch.einsum("wc,bcq->bwq", inside, powers).unsqueeze(-1)
    means = tower.mean(torch.einsum("wc,bcx->bwx", inside / inside.sum(1, keepdim=True), cells))
    pooled: Tensor = means + tower.mix(F.gelu(attended.flatten(2)))
    return pooled
