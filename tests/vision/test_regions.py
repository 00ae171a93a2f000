"""Region features: RoIAlign to the letter of its definition, and what it means on a map one can reason about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from deixis.vision.onnx_export import export
from deixis.vision.onnx_sessions import open_session
from deixis.vision.regions import (
    Maps,
    box_coordinates,
    box_crops,
    region_bins,
    region_vectors,
    roi_align,
    roi_align_each,
    with_context,
)


def interpolate(plane: Tensor, y: float, x: float) -> float:
    """A bilinear sample, as torchvision defines it: nothing further than one cell outside, the border cell before."""
    rows, columns = plane.shape
    if y < -1 or y > rows or x < -1 or x > columns:
        return 0.0
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = min(int(y), rows - 1), min(int(x), columns - 1)
    bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
    if top == rows - 1:
        y = float(top)
    if left == columns - 1:
        x = float(left)
    down, across = y - top, x - left
    upper = float(plane[top, left]) * (1 - across) + float(plane[top, right]) * across
    lower = float(plane[bottom, left]) * (1 - across) + float(plane[bottom, right]) * across
    return upper * (1 - down) + lower * down


def slow_roi_align(values: Tensor, box: Tensor, stride: float, bins: int, samples: int) -> Tensor:
    """Four loops and a bilinear sample: `aligned=True`, so half a cell is taken off and boxes keep their size."""
    x1, y1, x2, y2 = (float(value) / stride - 0.5 for value in box)
    out = torch.zeros(len(values), bins, bins, dtype=torch.float64)
    wide, high = (x2 - x1) / bins, (y2 - y1) / bins
    for channel, plane in enumerate(values):
        for i in range(bins):
            for j in range(bins):
                taken = [
                    interpolate(
                        plane, y1 + i * high + (m + 0.5) * high / samples, x1 + j * wide + (n + 0.5) * wide / samples
                    )
                    for m in range(samples)
                    for n in range(samples)
                ]
                out[channel, i, j] = sum(taken) / samples**2
    return out


def random_boxes(generator: torch.Generator, count: int, width: float, height: float) -> Tensor:
    """Boxes of all sizes, some without extent, some over the edge and some wholly outside."""
    corners = torch.rand(count, 2, 2, generator=generator, dtype=torch.float64) * 1.6 - 0.3
    corners = corners.sort(1).values * torch.tensor([width, height], dtype=torch.float64)
    boxes = corners.flatten(1)
    boxes[0, 2:] = boxes[0, :2]
    boxes[1] = torch.tensor([0.0, 0.0, width, height])
    boxes[2] += 3 * max(width, height)
    return boxes


@pytest.mark.parametrize(("bins", "samples", "stride"), [(7, 2, 32.0), (3, 1, 16.0), (1, 2, 32.0), (2, 3, 8.0)])
def test_it_is_torchvisions_roi_align(bins: int, samples: int, stride: float) -> None:
    generator = torch.Generator().manual_seed(bins)
    values = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64)
    boxes = random_boxes(generator, 12, 7 * stride, 5 * stride)
    picture = torch.randint(0, 2, (12,), generator=generator)
    found = roi_align(Maps(values, stride, (stride / 2, stride / 2)), boxes, picture, bins=bins, samples=samples)
    for box, index, got in zip(boxes, picture, found, strict=True):
        torch.testing.assert_close(got, slow_roi_align(values[index], box, stride, bins, samples))


def test_region_vectors_are_the_mean_over_bins() -> None:
    generator = torch.Generator().manual_seed(5)
    maps = Maps(torch.randn(3, 4, 6, 5, generator=generator), 32.0, (20.0, 11.0))
    boxes = [random_boxes(generator, count, 160, 192).float() for count in (4, 3, 9)]
    picture = torch.tensor([0] * 4 + [1] * 3 + [2] * 9)
    expected = roi_align(maps, torch.cat(boxes), picture).mean((2, 3))
    torch.testing.assert_close(region_vectors(maps, boxes), expected)
    none = [boxes[0][:0], boxes[1], boxes[2][:0]]
    torch.testing.assert_close(region_vectors(maps, none), expected[4:7])
    assert region_vectors(maps, [box[:0] for box in boxes]).shape == (0, 4)


def test_on_a_map_of_coordinates_a_box_gives_its_own_centre() -> None:
    # Each cell holds where it looks; so a region inside must hold its centre, whatever stride and origin.
    for stride, origin in ((32.0, (16.0, 16.0)), (16.0, (3.5, 15.0))):
        x = origin[0] + stride * torch.arange(9.0)
        y = origin[1] + stride * torch.arange(6.0)
        values = torch.stack([x.expand(6, 9), y[:, None].expand(6, 9)])[None]
        low = torch.tensor([stride * 1.3, stride * 1.1])
        boxes = torch.tensor([[*low, *low + torch.tensor([stride * wide, stride * 2.2])] for wide in (0.01, 1.0, 4.3)])
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        torch.testing.assert_close(region_vectors(Maps(values, stride, origin), [boxes]), centres)


def test_gradients_reach_the_map() -> None:
    values = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[10.0, 20.0, 90.0, 100.0], [0.0, 0.0, 30.0, 128.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: region_vectors(Maps(v, 32.0, (16.0, 16.0)), [boxes], bins=2), [values])


def test_box_coordinates_and_context() -> None:
    boxes = torch.tensor([[0.0, 0.0, 200.0, 100.0], [50.0, 25.0, 100.0, 50.0]])
    expected = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0], [0.25, 0.25, 0.5, 0.5, 0.0625]])
    torch.testing.assert_close(box_coordinates(boxes, 200, 100), expected)
    joined = with_context(torch.arange(6.0).reshape(3, 2), torch.tensor([[7.0], [8.0]]), [2, 1])
    assert joined.tolist() == [[0, 1, 7], [2, 3, 7], [4, 5, 8]]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_same_number_of_boxes_a_picture_gives_the_same(memory_format: torch.memory_format) -> None:
    """With boxes in [0, 1], values and gradients of both are those of `roi_align`."""
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(3, 5, 6, 9, generator=generator, dtype=torch.float64).to(memory_format=memory_format)
    boxes = torch.stack([random_boxes(generator, 7, 1.0, 1.0) for _ in range(3)])
    one, other = (values.clone().requires_grad_() for _ in range(2))
    each = roi_align_each(one, boxes, bins=4, samples=3)
    pixels = (boxes * torch.tensor([72.0, 48.0, 72.0, 48.0])).flatten(0, 1)
    owners = torch.arange(3).repeat_interleave(7)
    expected = roi_align(Maps(other, 8.0, (4.0, 4.0)), pixels, owners, bins=4, samples=3)
    torch.testing.assert_close(each.flatten(0, 1).permute(0, 3, 1, 2), expected)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (each.flatten(0, 1).permute(0, 3, 1, 2) * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_box_crops_show_what_the_box_holds() -> None:
    picture = Pillow.new("RGB", (60, 40), "white")
    picture.paste("red", (10, 5, 30, 25))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    boxes = torch.tensor([[10.0, 5.0, 30.0, 25.0], [35.0, 0.0, 60.0, 40.0], [60.0, 40.0, 60.0, 40.0]])
    red, white, corner = box_crops(pixels, boxes, 8)
    assert red[:, 1:-1, 1:-1].unique(dim=1).flatten(1).unique(dim=1).tolist() == [[255.0], [0.0], [0.0]]
    assert white.unique().tolist() == [255.0]
    assert corner.shape == (3, 8, 8)
    assert corner.isfinite().all()


def test_box_crops_are_resized_like_pictures() -> None:
    random = np.random.default_rng(0)
    noise = Pillow.fromarray(random.integers(0, 256, (12, 15, 3), np.uint8)).resize(
        (300, 240), Pillow.Resampling.BICUBIC
    )
    box = (40, 30, 240, 170)
    cut = np.array(noise.crop(box).resize((64, 64), Pillow.Resampling.BILINEAR), np.float32)
    own = box_crops(torch.from_numpy(np.array(noise)).permute(2, 0, 1), torch.tensor([box]).float(), 64)[0]
    assert np.abs(own.permute(1, 2, 0).numpy() - cut).mean() < 1.5


def test_bins_of_regions_are_those_of_roi_align() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = Maps(torch.randn(2, 5, 6, 8, generator=generator), 16.0, (3.0, 5.0))
    boxes = [torch.tensor([[4.0, 8.0, 70.0, 60.0], [0.0, 0.0, 128.0, 96.0]]), torch.tensor([[20.0, 5.0, 40.0, 90.0]])]
    expected = roi_align(maps, torch.cat(boxes), torch.tensor([0, 0, 1]), bins=3)
    torch.testing.assert_close(region_bins(maps, boxes, 3), expected.permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize("samples", [2, 4])
def test_an_exported_graph_pools_the_same(samples: int) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(1, 5, 12, 9, generator=generator)
    boxes = random_boxes(generator, 20, 1.2, 1.2).float()[None]
    boxes[0, 0] = torch.tensor([0.4, 0.3, 0.4, 0.3])

    def pool(maps: Tensor, asked: Tensor) -> Tensor:
        return roi_align_each(maps, asked, bins=3, samples=samples)

    graph = export(nn.Identity(), pool, {"maps": values, "boxes": boxes[:, :4]}, ["cut"], {"boxes": {1: "regions"}})
    assert (b"RoiAlign" in graph) == (samples == 2)
    (cut,) = open_session(graph).run(None, {"maps": values.numpy(), "boxes": boxes.numpy()})
    torch.testing.assert_close(torch.from_numpy(cut), pool(values, boxes), rtol=1e-4, atol=1e-5)
