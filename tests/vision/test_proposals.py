"""Every proposal method keeps one promise: ranked, diverse boxes inside the picture, the same every time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors.torch import load_file, save_file

from deixis.corpus.boxes import iou_matrix
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError, InputError
from deixis.vision import EdgeBoxesSettings
from deixis.vision.drawing.pages import draw_proposals
from deixis.vision.edge_boxes import EdgeBoxes, gradient_edges, thinned
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.grid_proposals import GridProposals, lattice
from deixis.vision.learned_proposals import BUNDLED, LearnedProposals, save_proposer
from deixis.vision.proposals import METHODS, Proposals, load_method
from deixis.vision.proposer import Proposer, make_anchors, normalize, squashed
from deixis.vision.reading import read_picture

try:
    import cv2
except ImportError:
    cv2 = None
needs_opencv = pytest.mark.skipif(cv2 is None, reason="needs OpenCV: pip install 'deixis[proposals]'")
EDGE_BOXES = pytest.param("edge-boxes", marks=needs_opencv)
SELECTIVE_SEARCH = pytest.param("selective-search", marks=needs_opencv)
#: `selective-search-quality` differs from the fast one in a switch alone, and takes seconds a picture.
QUICK = ["learned", EDGE_BOXES, SELECTIVE_SEARCH, "grid"]


@pytest.fixture(scope="module")
def scene():
    corpus = scenes_corpus(40)
    image = next(image for image in corpus if image.boxes)
    return image, read_picture(corpus, image)


def square(size: tuple[int, int] = (200, 150), box: tuple[int, int, int, int] = (60, 40, 130, 110)) -> Pillow.Image:
    picture = Pillow.new("RGB", size, (70, 90, 60))
    picture.paste((220, 60, 40), box)
    return picture


@pytest.mark.parametrize("name", QUICK)
def test_boxes_are_ranked_inside_and_within_the_overlap_budget(name, scene):
    _, picture = scene
    method = load_method(name)
    boxes, scores = method.propose(picture, 60)
    assert (method.name, boxes.dtype, scores.dtype) == (name, np.float32, np.float32)
    assert 10 < len(boxes) <= 60
    assert len(scores) == len(boxes)
    assert (np.diff(scores) <= 0).all()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= np.array(picture.size) + 1e-3).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    np.testing.assert_array_equal(method.propose(picture, 7).boxes, boxes[:7])
    overlaps = iou_matrix(boxes, boxes) - np.eye(len(boxes))
    assert overlaps.max() <= getattr(method, "overlap", 0.99) + 1e-4


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_has_the_same_boxes_in_any_order_and_thread(name, scene):
    method = load_method(name)
    pictures = [scene[1], square(), square((90, 160), (20, 30, 70, 120))]
    first = [method.propose(picture, 40) for picture in pictures]
    with ThreadPoolExecutor(3) as pool:
        again = list(pool.map(lambda picture: method.propose(picture, 40), pictures[::-1]))[::-1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.boxes, other.boxes)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (700, 20)])
def test_odd_pictures_never_break_a_method(name, size):
    boxes, scores = load_method(name).propose(Pillow.new("RGB", size, "white"), 20)
    assert boxes.shape == (len(scores), 4)
    assert (boxes[:, 2:] <= np.array(size) + 1e-3).all()


@pytest.mark.parametrize("name", [EDGE_BOXES, SELECTIVE_SEARCH, "learned"])
def test_what_looks_finds_a_plain_square_at_any_size(name):
    method = load_method(name)
    for scale in (1, 3):
        box = np.array([60, 40, 130, 110]) * scale
        picture = square((200 * scale, 150 * scale), tuple(box.tolist()))
        assert iou_matrix(box[None], method.propose(picture, 10).boxes).max() > 0.6


@needs_opencv
def test_learned_proposals_saw_boxes_and_the_others_did_not():
    assert {name: load_method(name).saw_boxes for name in METHODS} == {name: name == "learned" for name in METHODS}


def test_the_bundled_proposer_finds_what_scenes_mention(scene):
    """Trained on photos, it still finds most drawn things: proposals of another picture find far fewer."""
    image, picture = scene
    corpus = scenes_corpus(40)
    another = read_picture(corpus, next(other for other in corpus if other.boxes and other.id != image.id))
    gold = np.array([(box.x1, box.y1, box.x2, box.y2) for box in image.boxes])
    own, others = (load_method("learned").propose(shown, 100).boxes for shown in (picture, another))
    # Seen: all, and an eighth.
    assert (iou_matrix(gold, own).max(1) >= 0.5).mean() > 0.7
    assert (iou_matrix(gold, others).max(1) >= 0.5).mean() < 0.3


def test_unknown_names_and_misplaced_models_are_reported():
    with pytest.raises(DeixisError, match="unknown proposals 'sharpmask'; known: learned, edge-boxes"):
        load_method("sharpmask")
    with pytest.raises(DeixisError, match="edge-boxes only"):
        load_method("grid", edge_model="model.yml.gz")
    with pytest.raises(DeixisError, match="unknown device 'tpu'"):
        load_method("learned", device="tpu")


def test_without_opencv_the_error_names_the_extra_and_other_methods_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    for name in ("edge-boxes", "selective-search"):
        with pytest.raises(DeixisError, match=r"deixis\[proposals\]"):
            load_method(name)
    assert len(load_method("grid").propose(square(), 5).boxes) == 5
    monkeypatch.setitem(sys.modules, "cv2", type(sys)("cv2"))
    with pytest.raises(DeixisError, match="another OpenCV package hides them"):
        load_method("edge-boxes")


# The grid


def test_every_prefix_of_the_grid_covers_nearly_as_well_as_greedy_search_can():
    """Against the plain search that computes every gain anew."""
    boxes, weights = lattice()
    overlap = iou_matrix(boxes, boxes)
    best, expected = np.zeros(len(boxes)), []
    for _ in range(12):
        expected.append(int((np.maximum(overlap - best, 0) @ weights).round(10).argmax()))
        best = np.maximum(best, overlap[expected[-1]])
    found = GridProposals().propose(Pillow.new("RGB", (1000, 1000)), 12).boxes
    np.testing.assert_allclose(found, boxes[expected] * 1000, rtol=1e-5)


def test_the_grid_stretches_with_the_picture_and_ends():
    wide = GridProposals().propose(Pillow.new("RGB", (400, 100)), 10_000).boxes
    tall = GridProposals().propose(Pillow.new("RGB", (100, 400)), 10_000).boxes
    assert len(wide) == len(lattice()[0]) == len(np.unique(wide, axis=0))
    np.testing.assert_allclose(wide / [400, 100, 400, 100], tall / [100, 400, 100, 400], atol=1e-6)


# Edges


@needs_opencv
@pytest.mark.parametrize(("angle", "expected"), [(0, 0), (30, 30), (90, 90), (135, 135), (200, 20)])
def test_a_straight_edge_is_thin_and_its_direction_is_across_it(angle, expected):
    y, x = np.indices((80, 100))
    radians = np.deg2rad(angle)
    side = (x - 49.7) * np.cos(radians) + (y - 39.7) * np.sin(radians) > 0
    pixels = np.where(side[..., None], [200, 80, 80], [60, 120, 60]).astype(np.uint8)
    strength, orientation = gradient_edges(cv2, pixels)
    thin = thinned(cv2, strength, orientation)
    inside = thin[20:60, 20:80]
    rows, columns = np.nonzero(inside > 0.5)
    assert strength.max() == 1
    # A line of about 40 to 60 pixels, one or two wide.
    assert 35 <= len(rows) <= 130
    distance = (columns + 20 - 49.2) * np.cos(radians) + (rows + 20 - 39.2) * np.sin(radians)
    assert np.abs(distance).max() < 1.6
    turned = np.rad2deg(orientation[20:60, 20:80][rows, columns]) - expected
    assert np.median(np.abs((turned + 90) % 180 - 90)) < 3
    assert orientation.min() >= 0
    assert orientation.max() < np.float32(np.pi)


@needs_opencv
def test_colour_alone_makes_an_edge():
    pixels = np.full((40, 60, 3), (200, 60, 60), np.uint8)
    pixels[:, 30:] = (60, 118, 60)
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2Lab)[..., 0]
    assert abs(int(grey[0, 0]) - int(grey[0, -1])) < 12
    strength, _ = gradient_edges(cv2, pixels)
    assert strength[20, 29:31].min() > 0.8
    assert strength[20, 5] < 0.1


def forest_model(path):
    """A structured forest of one tree: where the gradient is strong, an edge in the middle of the patch."""
    options = {
        "stride": 2, "shrinkNumber": 2, "patchSize": 32, "patchInnerSize": 16, "numberOfGradientOrientations": 4,
        "gradientSmoothingRadius": 0, "regFeatureSmoothingRadius": 2, "ssFeatureSmoothingRadius": 8,
        "gradientNormalizationRadius": 4, "selfsimilarityGridSize": 5, "numberOfTrees": 1,
        "numberOfTreesToEvaluate": 1,
    }  # fmt: skip
    bins = [7 * 16 + 7, 7 * 16 + 8, 8 * 16 + 7, 8 * 16 + 8]
    # Feature 3 × 256 + 8 × 16 + 8 is the gradient's magnitude, the fourth channel, at the middle of the patch.
    lists = {
        "childs": [2, 0, 0],
        "featureIds": [3 * 256 + 8 * 16 + 8, 0, 0],
        "thresholds": [0.05, 0.0, 0.0],
        "edgeBoundaries": [0, 0, 0, 4 * 8],
        "edgeBins": [number + 256 * channel for number in bins for channel in range(8)],
    }
    lines = ["%YAML:1.0", "---", "options:", *(f"   {name}: {value}" for name, value in options.items())]
    for name, values in lists.items():
        lines += [f"{name}:", f"   - [ {', '.join(map(str, values))} ]"]
    path.write_text("\n".join(lines) + "\n")
    return path


@needs_opencv
def test_a_structured_forest_takes_the_place_of_our_edges(tmp_path):
    method = EdgeBoxes(forest_model(tmp_path / "model.yml"))
    pixels = np.asarray(square())
    edges, orientation = method.edges(pixels)
    assert edges.shape == orientation.shape == (150, 200)
    assert edges[45:105, 65:125][10:-10, 10:-10].max() == 0 < edges.max()
    assert method.settings["edges"].startswith("structured forest ")
    assert method.settings != EdgeBoxes().settings
    assert len(method.propose(square(), 10).boxes)


@needs_opencv
@pytest.mark.parametrize(
    "content",
    [b"", b"hello", bytes(range(256)) * 9, b"\x1f\x8b\x08 no gzip", b"%YAML:1.0\n---\na: 1\n",
     b"%YAML:1.0\n---\noptions: 3\n", b"%YAML:1.0\n---\noptions:\n   numberOfTrees: 0\n"],
)  # fmt: skip
def test_what_is_no_edge_model_is_refused(tmp_path, content):
    for name in ("model.yml", "model.yml.gz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="is not an edge model"):
            EdgeBoxes(tmp_path / name)
    with pytest.raises(InputError, match="no such edge model"):
        EdgeBoxes(tmp_path)


# The learned proposer's file


@pytest.fixture(scope="module")
def untrained() -> Proposer:
    torch.manual_seed(0)
    model = Proposer(EfficientNetLite(VARIANTS["efficientnet-lite0"]), "efficientnet-lite0", 16)
    # So far from its initial state that every part of it shows in the outcome.
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.02 * torch.randn_like(value))
    return model.eval()


def test_the_network_is_exported_once(untrained, tmp_path, monkeypatch):
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    save_proposer(untrained, 96, tmp_path / "one.safetensors")
    for seed in (1, 2):
        torch.manual_seed(seed)
        LearnedProposals.load(tmp_path / "one.safetensors", exported=True)
    assert len(list((tmp_path / "cache" / "graphs").iterdir())) == 1


def test_saved_and_loaded_proposals_are_those_of_the_rounded_weights(untrained, tmp_path):
    save_proposer(untrained, 96, tmp_path / "one.safetensors")
    loaded = LearnedProposals.load(tmp_path / "one.safetensors")
    kept = load_file(tmp_path / "one.safetensors")
    scales = {name.removesuffix(".scale"): value for name, value in kept.items() if name.endswith(".scale")}
    assert {name for name, value in kept.items() if value.dtype == torch.int8} == set(scales)
    # Most of the values are in few large weights of the last layers.
    assert "backbone._blocks.14._project_conv.weight" in scales
    assert "backbone._conv_stem.weight" not in scales
    state = loaded.model.state_dict()
    for name, value in untrained.state_dict().items():
        if name in scales:
            assert ((state[name] - value).abs() <= 0.501 * scales[name]).all()
            assert kept[name].flatten(1).abs().amax(1).eq(127).all()
        elif name in kept:
            expected = value.half().float() if value.is_floating_point() else value
            assert torch.equal(state[name].float(), expected.float())
    picture = normalize(squashed(square(), 96)[None])
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(picture), untrained(picture), atol=0.05, rtol=0)
    # Written again, it is the same file: nothing is lost after the first rounding.
    save_proposer(loaded.model, loaded.side, tmp_path / "two.safetensors")
    again = load_file(tmp_path / "two.safetensors")
    for name in kept | again:
        torch.testing.assert_close(again[name], kept[name], rtol=1e-6, atol=0)
    assert loaded.settings["weights_sha256"] != LearnedProposals.load(BUNDLED).settings["weights_sha256"]


def test_files_that_are_no_proposer_are_refused(untrained, tmp_path):
    save_proposer(untrained, 96, tmp_path / "good.safetensors")
    good = load_file(tmp_path / "good.safetensors")
    about = {"kind": "deixis proposer 1", "backbone": "efficientnet-lite0", "width": "16", "side": "96"}
    file = tmp_path / "bad.safetensors"

    def refused(tensors, metadata, problem):
        save_file(tensors, file, metadata)
        with pytest.raises(InputError, match=problem) as fault:
            LearnedProposals.load(file)
        assert str(file) in str(fault.value)

    refused(good, None, "is not the file of a trained proposer")
    refused(good, about | {"kind": "deixis chunker 1"}, "is not the file of a trained proposer")
    refused(good, {name: about[name] for name in ("kind", "backbone", "width")}, "metadata: its description is damaged")
    refused(good, about | {"side": "wide"}, "metadata: its description is damaged")
    refused(good, about | {"side": "100000000"}, "out of range")
    refused(good, about | {"width": "1000000000"}, "is known")
    refused(good, about | {"width": "17"}, "is known")
    refused(good, about | {"backbone": "os.system"}, "is known")
    refused(good, about | {"width": "32"}, "other weights")
    refused({name: good[name] for name in list(good)[1:]}, about, "other weights")
    refused(good | {"more": torch.zeros(3)}, about, "more: holds other weights")
    rounded = "backbone._blocks.14._project_conv.weight"
    refused({name: good[name] for name in good if name != f"{rounded}.scale"}, about, f"{rounded}: holds integers")
    refused(good | {f"{rounded}.scale": torch.zeros(5)}, about, f"{rounded}: holds integers without scales that fit")
    refused(good | {"quality.bias": torch.full_like(good["quality.bias"], torch.nan)}, about, "quality.bias: .* finite")
    for content in (b"", b"x" * 100, (tmp_path / "good.safetensors").read_bytes()[:5000]):
        file.write_bytes(content)
        with pytest.raises(InputError):
            LearnedProposals.load(file)
    with pytest.raises(InputError, match="no such file"):
        LearnedProposals.load(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("side", [64, 96, 130, 200])
def test_there_is_an_anchor_for_every_output_at_any_side(untrained, side):
    with torch.inference_mode():
        logits, boxes, anchors = untrained(torch.zeros(2, 3, side, side))
    assert logits.shape == (2, len(anchors), 8)
    assert boxes.shape == (2, len(anchors), 4)
    assert ((anchors[:, :2] > 0) & (anchors[:, :2] < 1)).all()


def test_anchors_are_in_the_order_of_the_head_s_outputs():
    anchors = make_anchors(64, [8, 4, 2, 1], torch.device("cpu")).reshape(-1, 9, 4)
    assert len(anchors) == 64 + 16 + 4 + 1
    centres = anchors[:, 0, :2] * 64
    assert centres[1].tolist() == [12, 4]
    assert centres[64].tolist() == [8, 8]
    # Sizes 3, 4 and 5.5 strides, each in three shapes of one area.
    areas = (anchors[0, :, 2] * anchors[0, :, 3]).sqrt() * 64 / 8
    torch.testing.assert_close(areas, torch.tensor([3.0, 4.0, 5.5]).repeat_interleave(3))
    torch.testing.assert_close(anchors[0, :3, 3] / anchors[0, :3, 2], torch.tensor([0.5, 1.0, 2.0]))


def test_a_drawing_shows_each_box_at_its_place():
    boxes = np.array([[20, 30, 120, 90], [100, 10, 180, 140]], np.float32)
    picture = Pillow.new("RGB", (200, 150), (90, 90, 90))
    drawing = np.asarray(draw_proposals(picture, Proposals(boxes, np.ones(2, np.float32))))
    assert drawing.shape == (675, 900, 3)
    changed = (drawing != 90).any(-1)
    for x1, y1, x2, y2 in (boxes * 4.5).round().astype(int).tolist():
        assert changed[(y1 + y2) // 2, x1 : x1 + 4].all()
        assert changed[(y1 + y2) // 2, x2 - 4 : x2].all()
    assert not changed[200:400, 850:].any()


def test_exported_it_proposes_the_same(scene, tmp_path, monkeypatch):
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    plain, exported = (LearnedProposals.load(BUNDLED, exported=choice) for choice in (False, True))
    ours, theirs = (each.propose(scene[1], 40) for each in (exported, plain))
    np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=0.05)
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
    # The graph is in the cache: it is not exported again.
    (graph,) = (tmp_path / "graphs").iterdir()
    before = graph.stat().st_mtime_ns
    LearnedProposals.load(BUNDLED, exported=True)
    assert graph.stat().st_mtime_ns == before


@needs_opencv
def test_beta_of_edge_boxes_limits_their_overlap(scene) -> None:
    _, picture = scene
    largest, counts = {}, {}
    for beta in (0.5, 0.9):
        method = load_method("edge-boxes", edge_boxes=EdgeBoxesSettings(beta=beta, longer_side=240))
        boxes, scores = method.propose(picture, 60)
        assert (np.diff(scores) <= 0).all()
        overlap = iou_matrix(boxes, boxes)
        np.fill_diagonal(overlap, 0)
        largest[beta], counts[beta] = overlap.max(), (overlap > 0.7).sum()
        assert method.settings["overlap"] == beta
        assert method.settings["longer_side"] == 240
    assert largest[0.5] <= 0.52
    assert largest[0.9] > 0.7
    assert counts[0.9] > counts[0.5] == 0
    with pytest.raises(DeixisError, match="edge-boxes only"):
        load_method("grid", edge_boxes=EdgeBoxesSettings())
