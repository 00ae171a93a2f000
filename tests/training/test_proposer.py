"""Training the proposer: targets, augmentation, losses against plain oracles, and that it learns."""

from __future__ import annotations

import io

import msgspec
import pytest
import torch
from PIL import Image as Pillow

from deixis.corpus import TYPES, Box, Chain, Corpus, Image, Phrase, make_caption, make_image
from deixis.corpus.leak_guard import TrainingSet, training_set
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError, InputError
from deixis.training.augmentation import squashed_pictures
from deixis.training.run_records import epochs_of
from deixis.training.runs import read_log
from deixis.training.schedule import ParameterGroup
from deixis.training.tools.proposer_training import (
    ProposerTask,
    augment,
    box_set,
    box_targets,
    new_proposer,
    proposer_loss,
    proposer_recipe,
)
from deixis.training.tools.tool_runs import train_tool
from deixis.training.trainer import Progress
from deixis.vision.box_tensors import aligned_iou, pairwise_iou
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer, ProposerOutput, corners, decode, make_anchors
from deixis.vision.reading import Skipped

CPU = torch.device("cpu")


class SomePictures:
    """A white picture of 60 × 40 for every image but those whose id begins with "broken" or "absent"."""

    def has(self, image: Image) -> bool:
        return not image.id.startswith("absent")

    def read(self, image: Image) -> bytes:
        if image.id.startswith("absent"):
            raise InputError(image.file, "no such picture")
        if image.id.startswith("broken"):
            return b"not a picture"
        stream = io.BytesIO()
        Pillow.new("RGB", (60, 40), "white").save(stream, "PNG")
        return stream.getvalue()


def couple(image_id: str, *, width: int = 600, height: int = 400) -> Image:
    """Two people with a box each and as a couple, a ball without a type, and a scene without a box."""
    phrases = [
        Phrase(0, 2, "1", ("people",)),
        Phrase(3, 5, "2", ("clothing", "people")),
        Phrase(6, 8, "3", ("people",)),
    ]
    phrases += [Phrase(8, 9, "4", ("scene",)), Phrase(9, 10, "5", ())]
    captions = [make_caption("a bride , a groom : a couple outside ball", phrases=phrases)]
    chains = [Chain("1", (0,)), Chain("2", (1,)), Chain("3", (0, 1)), Chain("4", scene=True), Chain("5", (2,))]
    boxes = [Box(60, 40, 120, 400), Box(300, 80, 420, 360), Box(0, 0, 60, 40)]
    return make_image(
        image_id,
        file=image_id,
        width=width,
        height=height,
        split="train",
        captions=captions,
        boxes=boxes,
        chains=chains,
    )


def test_targets_are_each_box_and_the_merged_box_with_all_their_types():
    expected = {
        (0.1, 0.1, 0.2, 1.0): {"people"},
        (0.5, 0.2, 0.7, 0.9): {"people", "clothing"},
        (0.1, 0.1, 0.7, 1.0): {"people"},
        (0.0, 0.0, 0.1, 0.1): {"other"},
    }
    assert {
        tuple(round(x, 6) for x in box): types for box, types in box_targets(couple("a"), (600, 400)).items()
    } == expected


def test_unreadable_pictures_are_left_out_and_listed():
    images = [couple("a"), couple("broken"), couple("b"), couple("absent"), make_image("no boxes", split="train")]
    skipped = Skipped()
    data = box_set(TrainingSet(Corpus(images, pictures=SomePictures())), 32, CPU, skipped)
    assert list(skipped.reasons) == ["broken", "absent"]
    assert data.pictures.shape == (2, 3, 32, 32)
    assert data.boxes.shape == (2, 4, 4)
    assert data.types.sum().item() == 2 * 5
    with pytest.raises(DeixisError, match="none of the 2 training pictures can be read; the first: broken"):
        box_set(TrainingSet(Corpus([images[1], images[3]], pictures=SomePictures())), 32, CPU, Skipped())
    with pytest.raises(DeixisError, match="no boxes in its training split"):
        box_set(TrainingSet(Corpus(images[4:], pictures=SomePictures())), 32, CPU, Skipped())


def test_where_the_size_is_unknown_the_picture_at_hand_is_the_original():
    known, unknown = couple("a"), make_image("b", file="b", split="train")
    read = squashed_pictures(Corpus([known, unknown], pictures=SomePictures()), [known, unknown], 32, Skipped())
    assert read.sizes == ((600, 400), (60, 40))


def test_augmented_boxes_stay_on_what_they_hold():
    """Painted rectangles, moved with the picture, are found again by their colour."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.full((40, 3, 96, 96), 127, dtype=torch.uint8)
    boxes = torch.zeros(40, 3, 4)
    types = torch.zeros(40, 3, 8, dtype=torch.bool)
    types[:, 0, 2] = True
    for row in range(40):
        x, y = (torch.rand(2, generator=generator) * 50 + 2).int().tolist()
        width, height = (torch.rand(2, generator=generator) * 30 + 12).int().tolist()
        pictures[row, :, y : y + height, x : x + width] = torch.tensor([255, 255, 255], dtype=torch.uint8)[
            :, None, None
        ]
        boxes[row, 0] = torch.tensor([x, y, x + width, y + height]) / 96
    moved, found, kinds = augment(pictures, boxes, types, 0.45, 96, generator)
    assert moved.shape == (40, 3, 96, 96)
    assert not found[:, 1:].any()
    compared = 0
    for row in range(40):
        # Brightness and contrast change values, never their order.
        bright = moved[row].mean(0)
        level = (bright.max() + bright.median()) / 2
        ys, xs = torch.nonzero(bright > level, as_tuple=True)
        if not found[row, 0].any():
            assert not kinds[row].any()
            continue
        assert kinds[row].nonzero().tolist() == [[0, 2]]
        seen = torch.tensor([[xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]]) / 96
        assert aligned_iou(seen, found[row, :1])[0].item() > 0.85
        compared += 1
    assert compared > 25
    again = augment(pictures, boxes, types, 0.45, 96, torch.Generator().manual_seed(7))
    assert torch.equal(again[0], augment(pictures, boxes, types, 0.45, 96, torch.Generator().manual_seed(7))[0])


def random_boxes(generator: torch.Generator, count: int) -> torch.Tensor:
    points = torch.rand(count, 2, 2, generator=generator, dtype=torch.float64).sort(1).values
    return points.reshape(count, 4)


def test_overlaps_are_those_of_a_plain_count():
    """Areas by arithmetic on each pair alone (Rezatofighi et al., Algorithm 1)."""
    generator = torch.Generator().manual_seed(1)
    first, second = random_boxes(generator, 300), random_boxes(generator, 300)
    iou, generalized = aligned_iou(first, second)
    for a, b, found, more in zip(first.tolist(), second.tolist(), iou.tolist(), generalized.tolist(), strict=True):
        inner = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
        union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner
        hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
        assert found == pytest.approx(inner / union, abs=1e-9)
        assert more == pytest.approx(inner / union - (hull - union) / hull, abs=1e-9)
    torch.testing.assert_close(pairwise_iou(first[None, :50], second[None, :50])[0].diagonal(), iou[:50])


def test_decoding_undoes_encoding():
    anchors = make_anchors(128, [16, 8, 4, 2], CPU)
    generator = torch.Generator().manual_seed(2)
    boxes = random_boxes(generator, len(anchors)).float()
    boxes[:, 2:] += 0.1
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    offsets = torch.cat([(centre - anchors[:, :2]) / anchors[:, 2:], (size / anchors[:, 2:]).log()], 1)
    torch.testing.assert_close(decode(offsets[None], anchors)[0], boxes, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(decode(torch.zeros(1, len(anchors), 4), anchors)[0], corners(anchors))


def perfect_output(boxes: torch.Tensor, types: torch.Tensor, certain: float) -> ProposerOutput:
    """What a network should say: every anchor near a box has exactly that box, and its types with certainty."""
    anchors = make_anchors(128, [16, 8, 4, 2], CPU)
    overlap = pairwise_iou(corners(anchors)[None], boxes[None])[0]
    best, which = overlap.max(1)
    logits = torch.where((best >= 0.5)[:, None] & types[which], certain, -certain)
    return ProposerOutput(logits[None], boxes[which][None], anchors)


def test_the_loss_is_least_for_the_right_answer():
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.95, 0.9]])
    types = torch.zeros(2, 8, dtype=torch.bool)
    types[0, 0] = types[1, 3] = True

    def loss(output: ProposerOutput, own: torch.Tensor = boxes, kinds: torch.Tensor = types) -> float:
        return proposer_loss(output, own[None], kinds[None]).item()

    right = perfect_output(boxes, types, 12.0)
    unsure = right._replace(logits=torch.zeros_like(right.logits))
    moved = right._replace(boxes=right.boxes + 0.05)
    mistaken = right._replace(logits=right.logits.roll(1, -1))
    assert loss(unsure) > loss(right)
    assert loss(moved) > loss(right)
    assert loss(mistaken) > loss(right)
    # Padding changes nothing, and a picture without boxes teaches background alone.
    padded = torch.cat([boxes, torch.zeros(3, 4)]), torch.cat([types, torch.zeros(3, 8, dtype=torch.bool)])
    assert loss(moved, *padded) == pytest.approx(loss(moved))
    nothing = torch.zeros(2, 4), torch.zeros(2, 8, dtype=torch.bool)
    silent = right._replace(logits=torch.full_like(right.logits, -12.0))
    assert loss(silent, *nothing) < 1e-3 < loss(right, *nothing)


def test_every_box_is_learned_by_some_anchor():
    """Also one so thin that no anchor overlaps it by half: the loss tells where its box is."""
    boxes = torch.tensor([[0.02, 0.45, 0.98, 0.62]])
    types = torch.ones(1, 8, dtype=torch.bool)
    output = perfect_output(boxes, types, 0.0)
    assert pairwise_iou(corners(output.anchors)[None], boxes[None]).max() < 0.5
    off = output._replace(boxes=(output.boxes + 0.1).requires_grad_())
    proposer_loss(off, boxes[None], types[None]).backward()
    assert (off.boxes.grad.abs().sum(-1) > 0).any()


@pytest.fixture(scope="module")
def lesson():
    corpus = scenes_corpus(24, size=(160, 120))
    training = training_set(corpus.with_images(corpus.split("train").images[:8]))
    return training, box_set(training, 96, CPU, Skipped())


def tiny() -> Proposer:
    torch.manual_seed(0)
    return Proposer(EfficientNetLite(VARIANTS["efficientnet-lite0"]), "efficientnet-lite0", 32)


def test_the_loss_falls_and_recall_on_the_training_pictures_rises(lesson, tmp_path):
    training, data = lesson
    read = squashed_pictures(training.corpus, training, 96, Skipped())
    recipe = proposer_recipe(12, backbone="efficientnet-lite0", side=96, batch_size=4)
    schedule = msgspec.structs.replace(
        recipe.schedule, learning_rate=5e-3, groups=(ParameterGroup("backbone"),), averaging=0.8
    )
    recipe = msgspec.structs.replace(recipe, zoom=0.1, schedule=schedule)
    task = ProposerTask(new_proposer("efficientnet-lite0", 0), data, read, recipe)
    before = task.validate()["recall_at_100"]
    report = train_tool(task, recipe, training.corpus, tmp_path / "run", CPU)
    losses = [record.loss for record in epochs_of(read_log(tmp_path / "run"))]
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert report.figures["recall_at_100"] > before + 25
    assert task.validate() == pytest.approx(report.figures)


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_network(lesson, tmp_path):
    training, data = lesson

    def trained(folder: str, seed: int, interrupt: bool = False) -> torch.Tensor:
        def stop(at: Progress) -> None:
            if interrupt and at.epoch == 2:
                raise KeyboardInterrupt

        recipe = proposer_recipe(2, seed, side=64, batch_size=8)
        recipe = msgspec.structs.replace(recipe, schedule=msgspec.structs.replace(recipe.schedule, figure=None))
        held_out = squashed_pictures(training.corpus, training.corpus.images[:1], 64, Skipped())
        task = ProposerTask(tiny(), data, held_out, recipe)
        train_tool(task, recipe, training.corpus, tmp_path / folder, CPU, progress=stop)
        values = task.module.state_dict().values()
        return torch.cat([value.flatten() for value in values if value.is_floating_point()])

    with pytest.raises(KeyboardInterrupt):
        trained("interrupted", 3, interrupt=True)
    whole = trained("whole", 3)
    assert torch.equal(whole, trained("interrupted", 3))
    assert not torch.equal(whole, trained("other", 4))


def test_a_new_proposer_depends_on_its_seed_alone():
    torch.manual_seed(5)
    kept = torch.get_rng_state()
    one, other, third = (new_proposer("efficientnet-lite0", seed) for seed in (1, 1, 2))
    assert torch.equal(kept, torch.get_rng_state())
    assert torch.equal(one.offsets.weight, other.offsets.weight)
    assert not torch.equal(one.offsets.weight, third.offsets.weight)


def test_what_is_not_known_to_be_background_is_not_taught():
    torch.manual_seed(0)
    anchors = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.1, 0.1, 0.1, 0.1]])
    logits = torch.randn(1, 2, len(TYPES), requires_grad=True)
    boxes = torch.tensor([[[0.3, 0.3, 0.7, 0.7]]])
    types = torch.zeros(1, 1, len(TYPES), dtype=torch.bool)
    types[..., 0] = True
    background = torch.zeros(1, len(TYPES), dtype=torch.bool)
    background[0, 3] = True
    output = ProposerOutput(logits, torch.tensor([[[0.3, 0.3, 0.7, 0.7], [0.05, 0.05, 0.15, 0.15]]]), anchors)
    proposer_loss(output, boxes, types, background).backward()
    assert logits.grad[0, 0].all()
    assert logits.grad[0, 1].nonzero().flatten().tolist() == [3]
