"""Features of regions from a network's map: one pass per picture for any number of boxes (RoIAlign, He et al. 2017).

The samples of a box form a grid and bilinear weights are separable, so a box is two small matrices: weights of the
map's rows and of its columns. All boxes of a batch are pooled by matrix products, without a loop over boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

#: Bins per side, and samples per bin and axis, as in detectors.
BINS, SAMPLES = 7, 2
#: With more samples, products are faster than the node of ONNX.
FEW_SAMPLES = 2


@dataclass(frozen=True)
class Maps:
    """Maps of a batch; the centre of cell (row, column) is at (origin + stride × column, …) in the input."""

    #: `(batch, channels, rows, columns)`
    values: Tensor
    #: Pixels from one cell to the next.
    stride: float
    #: x and y of the first cell's centre in input pixels; the pixel in the upper left corner covers 0 to 1.
    origin: tuple[float, float]


def roi_align(maps: Maps, boxes: Tensor, picture: Tensor, *, bins: int = BINS, samples: int = SAMPLES) -> Tensor:
    """Each box as a small map `(boxes, channels, bins, bins)`: the mean of `samples`² bilinear samples per bin.

    With `origin` at half a stride this is `torchvision.ops.roi_align(…, 1 / stride, samples, aligned=True)`.

    Args:
        maps: of the whole batch.
        boxes: `(boxes, 4)` as x1, y1, x2, y2 in input pixels.
        picture: `(boxes,)`, the picture of each box.
        bins: side of the result.
        samples: samples per bin and axis.
    """
    across, down = _weights(maps, boxes, bins, samples)
    # Rows first, then columns: (boxes, bins, rows) × (boxes, channels, rows, columns) × (boxes, bins, columns).
    return torch.einsum("bir,bcrk,bjk->bcij", down, maps.values[picture], across)


def roi_align_each(values: Tensor, boxes: Tensor, *, bins: int = BINS, samples: int = SAMPLES) -> Tensor:
    """RoIAlign for the same number of boxes per picture, in [0, 1]: differentiable, and fast on a GPU.

    Args:
        values: maps `(batch, channels, rows, columns)` of whole pictures, best in `torch.channels_last`.
        boxes: `(batch, boxes, 4)`.
        bins: side of the result.
        samples: samples per bin and axis; more cost almost nothing.

    Returns:
        `(batch, boxes, bins, bins, channels)`: rows of bins, then columns.
    """
    batch, channels, rows, columns = values.shape
    count = boxes.shape[1]
    cells = boxes * _constants((columns, rows, columns, rows), boxes)
    if batch == 1 and samples <= FEW_SAMPLES and torch.onnx.is_in_onnx_export():
        picture = torch.zeros_like(cells[0, :, 0], dtype=torch.int64)
        cut: Tensor = _RoiAlignNode.apply(values, cells[0], picture, bins, samples)  # type: ignore[no-untyped-call]
        return cut.permute(0, 2, 3, 1)[None]
    maps = Maps(values, 1.0, (0.5, 0.5))
    across, down = _weights(maps, cells.reshape(-1, 4), bins, samples)
    by_row = values.permute(0, 2, 3, 1).reshape(batch, rows, columns * channels)
    bands = (down.reshape(batch, count * bins, rows) @ by_row).reshape(batch, count, bins, columns, channels)
    return across.reshape(batch, count, 1, bins, columns) @ bands


class _RoiAlignNode(torch.autograd.Function):
    """`roi_align` as a node of ONNX, which looks at few samples faster than products with all rows and columns."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, boxes: Tensor, picture: Tensor, bins: int, samples: int) -> Tensor:
        return roi_align(Maps(values, 1.0, (0.5, 0.5)), boxes, picture, bins=bins, samples=samples)

    @staticmethod
    def symbolic(g: Any, values: Any, boxes: Any, picture: Any, bins: int, samples: int) -> Any:
        return g.op(
            "RoiAlign",
            values,
            boxes,
            picture,
            coordinate_transformation_mode_s="half_pixel",
            mode_s="avg",
            output_height_i=bins,
            output_width_i=bins,
            sampling_ratio_i=samples,
            spatial_scale_f=1.0,
        )


def region_vectors(maps: Maps, boxes: Sequence[Tensor], *, bins: int = BINS, samples: int = SAMPLES) -> Tensor:
    """The mean over the bins of `roi_align`, `(all boxes, channels)`, computed without the bins.

    Args:
        maps: of the whole batch.
        boxes: the boxes `(boxes, 4)` of each picture of the batch, in input pixels.
        bins: as in `roi_align`.
        samples: as in `roi_align`.
    """
    padded = pad_sequence(list(boxes), batch_first=True)
    across, down = (weights.mean(1) for weights in _weights(maps, padded.flatten(0, 1), bins, samples))
    cells = (down[:, :, None] * across[:, None, :]).reshape(*padded.shape[:2], down.shape[1] * across.shape[1])
    vectors = cells @ maps.values.flatten(2).transpose(1, 2)
    return torch.cat([rows[: len(image_boxes)] for rows, image_boxes in zip(vectors, boxes, strict=True)])


def region_bins(maps: Maps, boxes: Sequence[Tensor], bins: int, *, samples: int = SAMPLES) -> Tensor:
    """The bins of `roi_align`, row by row, as one vector per box: `(all boxes, bins² · channels)`.

    Args:
        maps: of the whole batch.
        boxes: the boxes `(boxes, 4)` of each picture of the batch, in input pixels.
        bins, samples: as in `roi_align`.
    """
    vectors = []
    for values, image_boxes in zip(maps.values, boxes, strict=True):
        across, down = _weights(Maps(values[None], maps.stride, maps.origin), image_boxes, bins, samples)
        cells = values.permute(1, 2, 0)  # (rows, columns, channels)
        bands = torch.einsum("bir,rkc->bikc", down, cells)
        vectors.append(torch.einsum("bjk,bikc->bijc", across, bands).flatten(1))
    return torch.cat(vectors)


def box_coordinates(boxes: Tensor, width: float, height: float) -> Tensor:
    """x1/W, y1/H, x2/W, y2/H and the box's share of the picture, `(boxes, 5)`."""
    relative = boxes / boxes.new_tensor([width, height, width, height])
    area = (relative[:, 2] - relative[:, 0]) * (relative[:, 3] - relative[:, 1])
    return torch.cat([relative, area[:, None]], 1)


def with_context(vectors: Tensor, whole: Tensor, counts: Sequence[int]) -> Tensor:
    """Append the picture's vector to each region vector `(boxes, channels)`; `counts` are the boxes per picture."""
    repeats = torch.as_tensor(counts, device=whole.device)
    return torch.cat([vectors, whole.repeat_interleave(repeats, 0)], 1)


def box_crops(picture: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Each box, cut out and resized to the network's input, as in the Entities paper: `(boxes, 3, side, side)` floats.

    Cutting out is RoIAlign on the pixels: bilinear samples, two per pixel and axis of the result, so that boxes up to
    twice as large as the input are not aliased.

    Args:
        picture: bytes `(3, height, width)`.
        boxes: `(boxes, 4)` in the picture's pixels.
    """
    pixels = picture.float()
    across, down = _weights(Maps(pixels[None], 1.0, (0.5, 0.5)), boxes, side, SAMPLES)
    bands = torch.einsum("bir,crk->bick", down, pixels)
    return torch.einsum("bjk,bick->bcij", across, bands)


def _weights(maps: Maps, boxes: Tensor, bins: int, samples: int) -> tuple[Tensor, Tensor]:
    """The weights of columns and rows in each bin: `(boxes, bins, columns)`, `(boxes, bins, rows)`."""
    rows, columns = maps.values.shape[-2:]
    # Positions need single precision even if the map is half.
    boxes = boxes.to(maps.values.device, torch.promote_types(maps.values.dtype, torch.float32))
    low, high = boxes[:, :2], boxes[:, 2:]
    start, extent = (low - _constants(maps.origin, boxes)) / maps.stride, (high - low) / maps.stride
    steps = (torch.arange(bins * samples, dtype=boxes.dtype, device=boxes.device) + 0.5) / (bins * samples)
    # (boxes, bins, samples, axis): the position of each sample on the map.
    points = (start[:, None] + steps[:, None] * extent[:, None]).reshape(-1, bins, samples, 2)
    across, down = _bilinear(points[..., 0], columns), _bilinear(points[..., 1], rows)
    return across.mean(2).to(maps.values), down.mean(2).to(maps.values)


def _constants(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers on a tensor's device, without waiting for a GPU that is busy."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def _bilinear(points: Tensor, cells: int) -> Tensor:
    """Bilinear weights `(…, cells)` of points; up to one cell outside, the border cell counts."""
    inside = (points >= -1) & (points <= cells)
    distance = (points.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=points.device)).abs()
    return (1 - distance).clamp(min=0) * inside[..., None]
