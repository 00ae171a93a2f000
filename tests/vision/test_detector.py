"""The region classifier: targets of its training, its file, and the features of its head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image as Pillow

from deixis.errors import InputError
from deixis.training.tools.detector_task import detector_recipe, new_detector
from deixis.training.tools.detector_training import UNITS, region_targets, sample_regions
from deixis.training.tools.detector_validation import class_precisions, detection_figures, move_boxes, windows
from deixis.vision.backbones import DetectorBackbone
from deixis.vision.box_tensors import pairwise_iou
from deixis.vision.detector import MAP_CHANNELS, WIDTH, RegionDetector, load_detector, save_detector
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite


@pytest.fixture(scope="module")
def detector() -> RegionDetector:
    torch.manual_seed(0)
    return RegionDetector(EfficientNetLite(VARIANTS["efficientnet-lite0"]), "efficientnet-lite0", 3, 64).eval()


def test_a_saved_detector_gives_the_same_features(detector: RegionDetector, tmp_path: Path) -> None:
    save_detector(detector, tmp_path / "d.safetensors")
    loaded = load_detector(tmp_path / "d.safetensors")
    pictures, boxes = torch.randn(2, 3, 64, 96), torch.tensor([[[0.1, 0.2, 0.7, 0.9]], [[0.0, 0.0, 1.0, 1.0]]])
    with torch.no_grad():
        expected, found = (net.regions(net.map(pictures), boxes) for net in (detector, loaded))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))
    again = load_detector(tmp_path / "d.safetensors")
    assert DetectorBackbone(again).weights_sha256 == DetectorBackbone(loaded).weights_sha256
    (tmp_path / "d.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="trained detector"):
        load_detector(tmp_path / "d.safetensors")
    with pytest.raises(InputError, match="train-detector"):
        load_detector(tmp_path / "absent.safetensors")


def test_training_leaves_the_layers_before_stride_8_as_they_are() -> None:
    model = new_detector(detector_recipe(1, backbone="efficientnet-lite0"), 3)
    boxes = torch.tensor([[[0.0, 0.0, 0.6, 0.6]]])
    model(torch.randn(1, 3, 64, 64), boxes).logits.sum().backward()
    gradients = {name.removeprefix("backbone."): value.grad for name, value in model.named_parameters()}
    assert gradients["_conv_stem.weight"] is None
    # EfficientNet-Lite0 has one block at stride 2, two at stride 4 and 13 more.
    learned = [gradients[f"_blocks.{block}._depthwise_conv.weight"] is not None for block in range(16)]
    assert learned == [False] * 3 + [True] * 13


def test_features_of_a_region_do_not_depend_on_the_others(detector: RegionDetector) -> None:
    backbone = DetectorBackbone(detector)
    maps = backbone.maps(torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8))
    boxes = [torch.tensor([[4.0, 4.0, 60.0, 50.0], [0.0, 0.0, 96.0, 64.0]]), torch.tensor([[10.0, 8.0, 40.0, 64.0]])]
    together = backbone.region_vectors(maps, boxes)
    assert together.shape == (3, WIDTH)
    alone = backbone.region_vectors(maps, [boxes[0][1:], boxes[1]])
    torch.testing.assert_close(together[1:], alone)


def test_in_half_precision_regions_are_cut_where_their_boxes_are(detector: RegionDetector) -> None:
    boxes = torch.tensor([[[0.6985, 0.2, 0.9, 0.6], [0.7005, 0.2, 0.9, 0.6]]])
    assert torch.equal(*boxes.bfloat16().unbind(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        maps = 100 * torch.linspace(0, 1, 32).expand(1, MAP_CHANNELS, 32, 32).bfloat16()
        first, second = detector.regions(maps, boxes).unbind(1)
    assert not torch.equal(first, second)


def test_regions_have_the_class_of_the_box_that_they_overlap() -> None:
    boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0]]])
    classes = torch.tensor([[2, 0, 0]])
    regions = torch.tensor([[[0.1, 0.1, 0.5, 0.4], [0.6, 0.6, 0.9, 0.9], [0.3, 0.3, 0.9, 0.9], [0.0, 0.0, 0.05, 0.05]]])
    labels, offsets, foreground = region_targets(regions, boxes, classes)
    assert labels.tolist() == [[3, 1, 0, 0]]
    assert foreground.tolist() == [[True, True, False, False]]
    assert offsets[0, 1:].abs().max() < 1e-5
    # The first region must move down by a sixth of its height, and grow by a third.
    expected = torch.tensor([0.0, 1 / 6, 0.0, torch.log(torch.tensor(4 / 3)).item()]) / torch.tensor(UNITS)
    torch.testing.assert_close(offsets[0, 0], expected, atol=1e-4, rtol=1e-4)


def test_sampled_regions_are_boxes_with_and_without_a_class() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([[[0.2, 0.2, 0.7, 0.6]], [[0.0, 0.0, 0.0, 0.0]]])
    regions = sample_regions(boxes, generator)
    assert regions.min() >= 0
    assert regions.max() <= 1
    assert (regions[..., 2:] >= regions[..., :2]).all()
    _, _, foreground = region_targets(regions, boxes, torch.zeros(2, 1, dtype=torch.long))
    assert 5 < foreground[0].sum() < len(foreground[0])
    assert not foreground[1].any()


def test_moved_boxes_are_the_boxes_that_the_offsets_were_made_for() -> None:
    boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.5]]])
    regions = torch.tensor([[[0.15, 0.1, 0.5, 0.4]]])
    _, offsets, _ = region_targets(regions, boxes, torch.zeros(1, 1, dtype=torch.long))
    torch.testing.assert_close(move_boxes(regions, offsets), boxes)


def test_windows_come_close_to_any_large_box() -> None:
    candidates = windows()
    assert candidates.min() >= 0
    assert candidates.max() <= 1
    generator = torch.Generator().manual_seed(0)
    size = 0.3 + 0.4 * torch.rand(200, 2, generator=generator)
    corner = torch.rand(200, 2, generator=generator) * (1 - size)
    boxes = torch.cat([corner, corner + size], 1)
    best = pairwise_iou(candidates[None], boxes[None])[0].amax(0)
    assert best.min() > 0.4
    assert best.mean() > 0.6


def test_average_precision_counts_each_box_once() -> None:
    boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.5], [0.6, 0.6, 0.9, 0.9]], [[0.2, 0.2, 0.4, 0.4], [0.0, 0.0, 0.0, 0.0]]])
    classes = torch.tensor([[0, 1], [0, 0]])
    found = [
        # The same box twice, and the other box under the wrong class.
        (boxes[0][[0, 0, 1]], torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 0])),
        (boxes[1][:1], torch.tensor([0.6]), torch.tensor([0])),
    ]
    precisions = class_precisions(found, boxes, classes)
    # Class 0: right, wrong, wrong, right, so the precision at the second box is 2 / 4. Class 1 has no detection.
    assert precisions == {0: pytest.approx(0.75), 1: 0.0}


def test_figures_of_a_detector_are_shares(detector: RegionDetector) -> None:
    pictures = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    boxes = torch.tensor([[[0.1, 0.1, 0.6, 0.6]], [[0.3, 0.2, 0.9, 0.8]]])
    figures = detection_figures(detector, pictures, boxes, torch.tensor([[0], [2]]))
    assert figures.keys() == {"class_accuracy", "ap50"}
    assert all(0 <= value <= 100 for value in figures.values())


def test_a_detector_sees_squares_as_in_training(detector: RegionDetector) -> None:
    picture = Pillow.new("RGB", (120, 80))
    assert DetectorBackbone(detector).whole(picture, 64).shape == (3, 64, 64)
