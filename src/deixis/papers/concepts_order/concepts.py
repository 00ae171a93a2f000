"""Which concepts a picture shows: the multi-regional multi-label network (the SCO paper, section 3.2).

A layer of K sigmoid outputs stands on the features of a backbone. It learns from whole pictures, and is then applied to
the whole picture and to regions of it; the element-wise maximum is the picture's vector of confidences.
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
#: A finished run of `concepts-order/concepts-learned`, which comes with the package.
BUNDLED = Path(__file__).with_name("concepts_run")


def diverse_regions(boxes: Boxes, count: int) -> NDArray[np.int64]:
    """Rows of at most `count` boxes that differ: boxes are grouped by overlap, the first of each group stands for it.

    The paper chooses regions "in a similar way as" HCP (Wei et al., 2014), which clusters proposals by their overlap.
    Here the groups are those of average linkage with 1 − IoU as distance.

    Args:
        boxes: `(boxes, 4)`, best first.
        count: how many groups.
    """
    if len(boxes) <= count:
        return np.arange(len(boxes))
    distance = 1 - iou_matrix(boxes, boxes)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average")
    # Merges by their order: those at one height, as of boxes without any overlap, would be cut all together.
    tree[:, 2] = np.arange(len(tree))
    groups = fcluster(tree, count, "maxclust")
    return np.sort(np.unique(groups, return_index=True)[1])


def box_centres(boxes: Array, size: Sequence[float] | Array) -> Array:
    """The centres of boxes `(boxes, 4)` in a picture of this width and height, from −1 to 1: `(boxes, 2)`."""
    return ((boxes[:, :2] + boxes[:, 2:]) / np.asarray(size, np.float32) - 1).astype(np.float32)


class ConceptNetwork(nn.Module):
    """Features of pictures or regions `(n, channels)` to logits `(n, concepts)`.

    Args:
        length: to which all features are brought; 0 takes them as they come. Those of small boxes, pooled from one map
            of the picture, are longer than the whole picture's, from which alone it learns.
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
        """The network whose weights these are; without a length, features are taken as they come."""
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
        """`(images, concepts)` in [0, 1]: the maximum over the whole picture and its regions.

        Args:
            wholes: `(images, channels)`.
            regions: `(regions, channels)` of all images, or None: whole pictures alone.
            image_of: `(regions,)`, the row of each region's image.
            centres: `(regions, 2)` of the regions, from −1 to 1 over their pictures.
            places: beside the confidences also these times x, and times y, of the centre of where each is highest.
        """
        logits = self(wholes)
        if regions is None or image_of is None:
            return torch.sigmoid(logits)
        each = torch.cat([logits, self(regions)])
        owner = torch.cat([torch.arange(len(wholes), device=image_of.device), image_of])
        best = logits.scatter_reduce(0, image_of[:, None].expand(-1, logits.shape[1]), each[len(wholes) :], "amax")
        highest = torch.sigmoid(best)
        if not places or centres is None:
            return highest
        there = (each == best[owner]).float()
        count = torch.zeros_like(highest).index_add(0, owner, there)
        centres = torch.cat([centres.new_zeros(len(wholes), 2), centres])
        found = [torch.zeros_like(highest).index_add(0, owner, there * axis[:, None]) / count for axis in centres.T]
        return torch.cat([highest, *(highest * axis for axis in found)], 1)
