"""The multi-regional multi-label network that predicts concepts (section 3.2).

K sigmoid outputs on the features of a backbone. It is trained on whole pictures and applied to the whole picture and to
regions; the element-wise maximum is p, the picture's vector of confidences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn

from deixis.corpus.boxes import Boxes, iou_matrix

Array = NDArray[Any]
#: A finished run of `concepts-order/concepts-learned`, which ships with the package.
BUNDLED = Path(__file__).with_name("concepts_run")


def diverse_regions(boxes: Boxes, count: int) -> NDArray[np.int64]:
    """Indices of at most `count` different boxes: boxes are clustered by overlap, and each cluster gives its first box.

    The paper chooses regions "in a similar way as" HCP (Wei et al., 2014), which clusters proposals by their overlap.
    Here by average linkage with distance 1 − IoU.

    Args:
        boxes: `(boxes, 4)`, best first.
        count: number of clusters.
    """
    if len(boxes) <= count:
        return np.arange(len(boxes))
    distance = 1 - iou_matrix(boxes, boxes)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average")
    # Heights are replaced by the order of merges: merges at equal height (boxes without overlap) would be cut together.
    tree[:, 2] = np.arange(len(tree))
    groups = fcluster(tree, count, "maxclust")
    return np.sort(np.unique(groups, return_index=True)[1])


def box_centres(boxes: Array, size: Sequence[float] | Array) -> Array:
    """Centres of boxes `(boxes, 4)` in a picture of this width and height, from −1 to 1: `(boxes, 2)`."""
    return ((boxes[:, :2] + boxes[:, 2:]) / np.asarray(size, np.float32) - 1).astype(np.float32)


class ConceptNetwork(nn.Module):
    """Features of pictures or regions `(n, channels)` to logits `(n, concepts)`.

    Args:
        length: all features are scaled to this length; 0: not scaled. Pooled features of small boxes are longer than
            those of whole pictures, on which the network is trained.
    """

    def __init__(self, channels: int, concepts: int, dropout: float = 0.0, length: float = 0.0) -> None:
        super().__init__()
        self.length = nn.Buffer(torch.tensor(length))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(channels, concepts)

    def forward(self, features: Tensor) -> Tensor:
        if self.length > 0:
            features = self.length * nn.functional.normalize(features)
        logits: Tensor = self.output(self.dropout(features))
        return logits

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> ConceptNetwork:
        """The network with these weights; without `length`, features are not scaled."""
        concepts, channels = weights["output.weight"].shape
        network = cls(channels, concepts)
        network.load_state_dict({"length": torch.tensor(0.0), **weights})
        return network

    def confidences(
        self,
        wholes: Tensor,
        regions: Tensor | None = None,
        image_of: Tensor | None = None,
        centres: Tensor | None = None,
        *,
        places: bool = False,
    ) -> Tensor:
        """p, `(images, concepts)` in [0, 1]: the maximum over the whole picture and its regions.

        Args:
            wholes: `(images, channels)` features of whole pictures.
            regions: `(regions, channels)` of all images; None: whole pictures alone.
            image_of: `(regions,)` the index of each region's image.
            centres: `(regions, 2)` centres of the regions, from −1 to 1.
            places: append confidence × x and confidence × y, where (x, y) is the centre of the best region.
        """
        logits = self(wholes)
        if regions is None or image_of is None:
            return torch.sigmoid(logits)
        all_logits = torch.cat([logits, self(regions)])
        owner = torch.cat([torch.arange(len(wholes), device=image_of.device), image_of])
        rows = image_of[:, None].expand(-1, logits.shape[1])
        best = logits.scatter_reduce(0, rows, all_logits[len(wholes) :], "amax")
        highest = torch.sigmoid(best)
        if not places or centres is None:
            return highest
        is_best = (all_logits == best[owner]).float()
        count = torch.zeros_like(highest).index_add(0, owner, is_best)
        centres = torch.cat([centres.new_zeros(len(wholes), 2), centres])
        axes = [torch.zeros_like(highest).index_add(0, owner, is_best * axis[:, None]) / count for axis in centres.T]
        return torch.cat([highest, *(highest * axis for axis in axes)], 1)
