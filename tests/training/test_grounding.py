"""Learning to ground: data as it was annotated, losses against loops, fast recalls equal to the protocol's."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from deixis.adapters.bundles import open_bundle
from deixis.base.bundle_networks import bundle_grounder
from deixis.base.grounding_data import GroundingText, grounding_data, new_grounder
from deixis.base.grounding_model import GroundingModel, empty_network
from deixis.base.grounding_network import Captions, Grounding, GroundingRecipe, Regions
from deixis.base.grounding_task import (
    Augmentation,
    GroundingBatch,
    GroundingKind,
    GroundingLoss,
    GroundingTask,
    GroundingTraining,
    box_loss,
    first_right,
    forgotten,
    jittered,
    phrase_loss,
    phrases_alone,
    recalls,
)
from deixis.corpus import Chain
from deixis.corpus.leak_guard import training_set
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError
from deixis.metrics.localization import evaluate_localization, gold_queries
from deixis.metrics.mention_localization import mention_localization, mention_localizer
from deixis.text.vocabulary import PAD, UNKNOWN, Vocabulary
from deixis.training.augmentation import Views
from deixis.training.task import Loss
from deixis.training.tools.proposer_training import new_proposer
from deixis.vision.box_tensors import aligned_iou
from deixis.vision.learned_proposals import save_proposer
from deixis.vision.reading import Skipped

CPU = torch.device("cpu")
SMALL = GroundingRecipe(
    backbone="efficientnet-lite0", side=96, regions=30, map_width=16, bins=3, width=32, hidden=16, dropout=0.0
)


@pytest.fixture(scope="module")
def corpus():
    made = scenes_corpus(40, size=(160, 120))
    kept = {split: made.split(split).images[:8] for split in ("train", "val")}
    return made.with_images([image for images in kept.values() for image in images])


@pytest.fixture(scope="module")
def training(corpus):
    return training_set(corpus)


@pytest.fixture(scope="module")
def proposer_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "proposer.safetensors"
    save_proposer(new_proposer("efficientnet-lite0", 0), 96, path)
    return str(path)


def small_grounder(training, proposer_file, recipe=SMALL) -> GroundingModel:
    return new_grounder(training, recipe, GroundingText(vectors=""), proposer=proposer_file)


def test_data_are_the_phrases_and_merged_boxes_of_the_corpus(corpus, training, proposer_file):
    words = small_grounder(training, proposer_file).vocabulary
    data = grounding_data(corpus, training, words, 96, CPU, Skipped())
    assert data.pictures.shape[0] == len(data) == sum(bool(gold_queries(image)[0]) for image in training)
    for row, image_id in enumerate(data.image_ids):
        image = corpus[image_id]
        queries, boxes = gold_queries(image)
        assert int((data.weight[row] > 0).sum()) == len(queries)
        assert not data.gold[row, len(queries) :].any()
        for number, (query, own) in enumerate(zip(queries, boxes, strict=True)):
            caption, start, end = (int(field[row, number]) for field in data.captions[1:])
            assert words.decode(data.captions.tokens[row, caption, start:end].tolist()) == tuple(
                query.text.lower().split()
            )
            assert image.captions[caption] == query.caption
            merged = np.concatenate([own[:, :2].min(0), own[:, 2:].max(0)]) / np.tile([image.width, image.height], 2)
            np.testing.assert_allclose(data.gold[row, number], merged, rtol=1e-5)


def test_words_begin_with_the_vectors_of_a_file(training, proposer_file, tmp_path):
    path = tmp_path / "words.vec"
    path.write_text("1 300\nman " + " ".join(["2"] * 300) + "\n")
    made = new_grounder(training, SMALL, GroundingText(vectors=str(path)), proposer=proposer_file)
    (row,) = made.vocabulary.encode(["man"])
    torch.testing.assert_close(made.network.words.weight[row], torch.full((300,), 300**-0.5))
    plain = small_grounder(training, proposer_file).network.words.weight
    others = torch.arange(len(plain)) != row
    assert torch.equal(made.network.words.weight[others], plain[others])
    with pytest.raises(DeixisError, match="not those of a proposer on efficientnet-lite2"):
        new_grounder(training, GroundingRecipe(), GroundingText(vectors=""), proposer=proposer_file)


@pytest.mark.parametrize("mirror", [False, True])
def test_fast_recalls_are_those_of_the_protocol(corpus, training, proposer_file, mirror):
    matcher = small_grounder(training, proposer_file)
    torch.manual_seed(1)
    torch.nn.init.normal_(matcher.network.pair.weight, std=0.1)
    matcher.network.eval()
    matcher.mirror = mirror
    data = grounding_data(corpus, corpus.split("val"), matcher.vocabulary, 96, CPU, Skipped())
    fast = recalls(matcher, data, mirror=mirror)
    slow = evaluate_localization(corpus.split("val"), mention_localizer(matcher, corpus)).overall
    assert slow.instances == data.weight.sum()
    assert {k: fast[f"r@{k}"] for k in (1, 5, 10)} == pytest.approx(slow.recall)
    assert fast["upper_bound"] == pytest.approx(slow.upper_bound)
    assert 0 < fast["r@10"] <= fast["upper_bound"] < 100
    result = mention_localization(matcher, corpus, "val", regions=30)
    assert result.metrics["localization"]["overall"]["r@1"] == pytest.approx(fast["r@1"])
    assert result.box_supervision.backbone
    blind = result.metrics["localization"]["text_blind"]
    assert set(blind) == {"whole_image", "largest_proposal", "proposal_order"}
    # Some proposal hits, in whatever order they come; a phrase then moves it.
    assert blind["proposal_order"]["r@1"] <= blind["proposal_order"]["r@10"] <= fast["proposals"]


def test_ranks_count_ties_against_the_right_region():
    scores = torch.tensor([[3.0, 2.0, 2.0, -math.inf], [1.0, 2.0, 3.0, -math.inf], [1.0, 2.0, 3.0, -math.inf]])
    right = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 0]]).bool()
    assert first_right(scores, right).tolist() == [3, 0, 1]


def some_answer(generator: torch.Generator, gold: torch.Tensor) -> tuple[Grounding, Regions]:
    """Two pictures of three phrases and ten regions, most near some gold box, two absent."""
    near = gold[:, torch.randint(3, (10,), generator=generator)]
    regions = (near + 0.08 * torch.randn(2, 10, 4, generator=generator)).clamp(0, 1)
    real = torch.arange(10).expand(2, -1) < 8
    scores = torch.randn(2, 3, 10, generator=generator).masked_fill(~real[:, None], -math.inf)
    boxes = regions[:, None] + 0.02 * torch.randn(2, 3, 10, 4, generator=generator)
    return Grounding(scores.requires_grad_(), boxes.requires_grad_(), torch.zeros(2, 10, 1)), Regions(
        regions, torch.zeros(2, 10, 8), real
    )


GOLD = torch.tensor(
    [[[0.1, 0.1, 0.5, 0.6], [0.4, 0.3, 0.9, 0.9], [0, 0, 0, 0]], [[0, 0, 1, 1], [0.2, 0.2, 0.6, 0.6], [0, 0, 0, 0]]],
    dtype=torch.float32,
)


@pytest.mark.parametrize("targets", ["soft", "any"])
def test_the_phrases_loss_is_that_of_loops(targets):
    for seed in range(5):
        answer, _ = some_answer(torch.Generator().manual_seed(seed), GOLD)
        losses = []
        for picture in range(2):
            for phrase in range(2):
                seen = answer.boxes[picture, phrase].clamp(0, 1)
                overlap = aligned_iou(seen, GOLD[picture, phrase])[0].tolist()
                chance = answer.scores[picture, phrase].softmax(-1).tolist()
                right = [region for region in range(8) if overlap[region] >= 0.5]
                share = {region: overlap[region] - 0.4 for region in right}
                if targets == "any" and right:
                    losses.append(-math.log(sum(chance[region] for region in right)))
                elif right:
                    losses.append(
                        -sum(value / sum(share.values()) * math.log(chance[one]) for one, value in share.items())
                    )
        assert losses
        found = phrase_loss(answer, GOLD, targets)
        assert found.item() == pytest.approx(np.mean(losses), rel=1e-4)
        found.backward()
        assert answer.scores.grad.isfinite().all()
        # Phrases that are padding teach nothing.
        assert not answer.scores.grad[:, 2].any()


def test_boxes_are_taught_near_their_phrase_alone_and_only_until_they_fit():
    answer, regions = some_answer(torch.Generator().manual_seed(3), GOLD)
    before = box_loss(answer, regions, GOLD)
    before.backward()
    near = (aligned_iou(regions.boxes[:, None], GOLD[:, :, None])[0] >= 0.4) & regions.real[:, None]
    near[:, 2] = False
    assert torch.equal(answer.boxes.grad.abs().sum(-1) > 0, near)
    fitted = answer._replace(boxes=GOLD[:, :, None].expand(-1, -1, 10, -1))
    assert box_loss(fitted, regions, GOLD).item() == pytest.approx(0, abs=1e-6)
    nothing = box_loss(answer, regions, torch.zeros_like(GOLD))
    assert nothing.item() == 0


def test_proposals_are_moved_and_dropped_and_words_forgotten_at_random():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([0.3, 0.3, 0.6, 0.7]).expand(50, 40, 4)
    regions = Regions(boxes, torch.zeros(50, 40, 8), torch.ones(50, 40, dtype=torch.bool))
    moved = jittered(regions, Augmentation(jitter=0.1, drop=0.25), generator)
    assert 0.7 < moved.real.float().mean() < 0.8
    assert moved.real[:, 0].all()
    assert ((moved.boxes >= 0) & (moved.boxes <= 1)).all()
    assert 0.55 < aligned_iou(moved.boxes, boxes)[0].mean() < 0.85
    same = jittered(regions, Augmentation(jitter=0, drop=0), generator)
    torch.testing.assert_close(same.boxes, boxes)
    assert same.real.all()
    tokens = torch.randint(4, 9, (20, 5, 30), generator=generator)
    tokens[..., 20:] = PAD
    captions = Captions(tokens, *torch.zeros(3, 20, 2, dtype=torch.long))
    read = forgotten(captions, 0.2, generator).tokens
    changed = read != tokens
    assert (read[changed] == UNKNOWN).all()
    assert not changed[..., 20:].any()
    assert 0.17 < changed[..., :20].float().mean() < 0.23


def test_phrases_that_are_read_alone_lose_their_captions():
    tokens = torch.tensor([[[4, 5, 6, 7], [8, 9, PAD, PAD]]])
    captions = Captions(
        tokens, torch.tensor([[0, 1, 0, 0]]), torch.tensor([[1, 0, 0, 0]]), torch.tensor([[4, 1, 2, 0]])
    )
    alone = phrases_alone(captions, 3)
    assert alone.tokens.tolist() == [[[5, 6, 7], [8, PAD, PAD], [4, 5, PAD], [PAD, PAD, PAD]]]
    assert alone.caption.tolist() == [[0, 1, 2, 3]]
    assert alone.start.tolist() == [[0, 0, 0, 0]]
    assert alone.end.tolist() == [[3, 1, 2, 0]]


@pytest.fixture(scope="module")
def recipe(proposer_file):
    settings = {
        "name": "small",
        "kind": "grounding",
        "corpus": "scenes",
        "proposer": proposer_file,
        "batch_size": 4,
        "text": {"vectors": ""},
        "model": msgspec.to_builtins(SMALL),
        "loss": {"named": 2},
        "augmentation": {"zoom": 0.1, "jitter": 0.03, "drop": 0.0},
        "schedule": {"epochs": 2, "learning_rate": 1e-3},
    }
    return msgspec.convert(settings, GroundingTraining)


def test_batches_are_decided_by_seed_and_epoch(recipe, corpus):
    task = GroundingKind().task(recipe, corpus, [], CPU)

    def drawn(epoch: int) -> list[tuple[list[int], int]]:
        batches = task.batches(epoch)
        assert len(batches) == 2
        return [(batch.rows.tolist(), batch.seed) for batch in batches]

    first = drawn(1)
    drawn(2)
    assert drawn(1) == first != drawn(2)
    assert sorted(row for rows, _ in first for row in rows) == list(range(8))
    batch = next(iter(task.batches(1)))
    assert task.describe(batch).split(", ")[0] == task.training.image_ids[int(batch.rows[0])]

    def loss(batch: GroundingBatch) -> Loss:
        torch.manual_seed(0)
        with torch.no_grad():
            return task.loss(batch)

    one, other = loss(batch), loss(batch)
    assert one.total == other.total
    assert one.total != loss(batch._replace(seed=batch.seed + 1)).total
    # And so are the weights to begin with.
    state, again = task.module.state_dict(), GroundingKind().task(recipe, corpus, [], CPU).module.state_dict()
    learned = [name for name, _ in task.module.named_parameters()]
    assert all(torch.equal(state[name], again[name]) for name in learned)
    assert set(one.parts) == {"phrases", "boxes", "proposer", "words"}
    weights = recipe.loss
    assert one.total == pytest.approx(
        one.parts["phrases"]
        + weights.boxes * one.parts["boxes"]
        + weights.proposer * one.parts["proposer"]
        + weights.words * one.parts["words"]
    )


def test_parts_that_weigh_nothing_are_left_out(recipe, corpus):
    model = msgspec.structs.replace(
        recipe.model, refine=False, types=False, context=False, region_layers=0, caption_layers=0, reads="phrase"
    )
    plain = msgspec.structs.replace(recipe, model=model, loss=GroundingLoss(targets="any", proposer=0, words=0))
    task = GroundingKind().task(plain, corpus, [], CPU)
    loss = task.loss(next(iter(task.batches(1))))
    assert set(loss.parts) == {"phrases"}
    loss.total.backward()
    heads = {
        name.split(".")[2]
        for name, value in task.module.named_parameters()
        if value.grad is None and "proposer" in name
    }
    # The proposer's own head learns nothing, its backbone does.
    assert "quality" in heads
    assert task.network.proposer.backbone._conv_stem.weight.grad.abs().sum() > 0


def test_a_phrase_whose_landmark_is_cut_off_is_not_asked_for(recipe, corpus):
    task = GroundingKind().task(recipe, corpus, [], CPU)
    task.training.gold[0, 0] = torch.tensor([0.1, 0.1, 0.3, 0.3])
    task.training.landmark[0, 0] = torch.tensor([0.7, 0.7, 0.9, 0.9])
    views = Views(torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [0.5, 0.5]]), torch.ones(2))
    _, gold, _, landmark = task._asked(torch.tensor([0, 0]), views)
    assert gold[0, 0].any()
    assert landmark[0, 0].any()
    assert not gold[1, 0].any()


def test_mirrored_pictures_have_their_sides_swapped_in_the_captions(recipe, corpus, monkeypatch):
    task = GroundingKind().task(recipe, corpus, [], CPU)
    read: list[torch.Tensor] = []
    forward = task.network.encode_phrases
    monkeypatch.setattr(
        task.network, "encode_phrases", lambda captions: read.append(captions.tokens) or forward(captions)
    )
    monkeypatch.setattr(task, "augmentation", Augmentation(forget=0.0))
    left, right = task.grounder.vocabulary.encode(["left", "right"])
    assert UNKNOWN not in (left, right)
    rows = torch.arange(8)
    with torch.no_grad():
        task.loss(GroundingBatch(rows, 1))
    own = task.training.part(rows).tokens
    swapped = torch.where(own == left, right, torch.where(own == right, left, own))
    mirrored = [bool((seen == other).all()) for seen, other in zip(read[0], swapped, strict=True)]
    kept = [bool((seen == other).all()) for seen, other in zip(read[0], own, strict=True)]
    assert all(one or other for one, other in zip(mirrored, kept, strict=True))
    assert any(one and not other for one, other in zip(mirrored, kept, strict=True))
    assert any(other and not one for one, other in zip(mirrored, kept, strict=True))


def test_it_learns_its_training_pictures(recipe, corpus):
    task = GroundingKind().task(recipe, corpus, [], CPU)
    task.module.eval()
    before = recalls(task.grounder, task.training)
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=3e-3)
    losses = []
    for epoch in range(1, 13):
        task.module.train()
        for batch in task.batches(epoch):
            torch.manual_seed(epoch)
            loss = task.loss(batch)
            optimizer.zero_grad()
            loss.total.backward()
            torch.nn.utils.clip_grad_norm_(task.module.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.total.item())
    task.module.eval()
    after = recalls(task.grounder, task.training)
    assert np.mean(losses[-4:]) < 0.88 * np.mean(losses[:4])
    assert after["r@10"] > before["r@10"] + 15


def test_the_task_is_the_trainers(recipe, corpus, tmp_path):
    """A run of the trainer, and the matcher that its folder gives back."""
    from deixis.training.recipe import RecipeFile
    from deixis.training.run_records import make_run_plan
    from deixis.training.runs import RunFolder
    from deixis.training.trainer import train

    short = msgspec.structs.replace(recipe, schedule=msgspec.structs.replace(recipe.schedule, epochs=1, figure="r@1"))
    task = GroundingKind().task(short, corpus, [], CPU)
    with RunFolder(tmp_path / "run", make_run_plan(short, corpus, []), RecipeFile("", short).text) as run:
        report = train(task, short.schedule, run, seed=0, device=CPU)
    matcher = GroundingKind().load_model(tmp_path / "run", short, CPU)
    found = recalls(matcher, task.validation)
    assert found == pytest.approx({name: report.figures[name] for name in found})
    assert recalls(matcher, task.validation, mirror=True)["r@1"] == pytest.approx(report.figures["r@1_mirrored"])
    assert isinstance(matcher.vocabulary, Vocabulary)
    assert matcher.network.state_dict().keys() == empty_network(SMALL, len(matcher.vocabulary)).state_dict().keys()
    assert isinstance(task, GroundingTask)


def test_the_grounding_of_a_bundle_learns_more_while_its_backbone_and_words_stay(corpus, tmp_path):
    """With expressions from labelled boxes; the pictures whose captions have phrases are shown twice."""
    from deixis.training.run_records import make_run_plan
    from deixis.training.runs import RunFolder
    from deixis.training.trainer import train

    bundle = open_bundle("deixis-base")
    whole = bundle_grounder(bundle)
    groups = [{"prefix": f"network.{name}", "frozen_epochs": 9} for name in ("proposer.backbone", "words")]
    settings = {
        "name": "more",
        "kind": "grounding",
        "corpus": "scenes",
        "start": f"deixis-base@{bundle.manifest.weights_sha256[:12]}",
        "expressions": 4,
        "repeats": 2,
        "batch_size": 6,
        "model": {**msgspec.to_builtins(whole.network.recipe), "side": 64, "regions": 20},
        "loss": {"apart": 1.0, "words": 0.0},
        "augmentation": {"alone": 0.5},
        "schedule": {"epochs": 1, "learning_rate": 1e-3, "groups": groups, "figure": "balance"},
    }
    recipe = msgspec.convert(settings, GroundingTraining)
    train_images, val = (list(corpus.split(name)) for name in ("train", "val"))
    images = [*train_images[:3], *map(labelled, train_images[3:6]), *val[:3], *map(labelled, val[3:6])]
    mixed = corpus.with_images(images)
    task = GroundingKind().task(recipe, mixed, [], CPU)
    assert sorted(row for batch in task.batches(1) for row in batch.rows.tolist()) != list(range(6))
    assert len(task._epoch_rows) == 3 * 2 + 3
    begun, known = task.network.state_dict(), whole.network.state_dict()
    assert all(torch.equal(begun[name], known[name]) for name in known)
    before = {name: value.clone() for name, value in begun.items()}
    with RunFolder(tmp_path / "run", make_run_plan(recipe, mixed, [])) as run:
        figures = train(task, recipe.schedule, run, seed=0, device=CPU).figures
    assert figures["balance"] == pytest.approx(figures["r@1"] + figures["expressions.apart"])
    after = task.network.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert not any(name.startswith(("proposer.backbone", "words")) for name in changed)
    assert {"comparison.query.weight", "proposer.quality.weight", "pair.weight"} <= changed


def labelled(image):
    """An image with labels for its boxes, as COCO's have, whose captions have no phrases."""
    chains = tuple(Chain(str(number), (number,), label="thing") for number in range(1, min(3, len(image.boxes))))
    return msgspec.structs.replace(image, captions=(), chains=chains)


def test_colours_are_learned_alone_and_nothing_else_changes(recipe, corpus):
    """The network does not look at the pictures then, so that a step is cheap."""
    model = msgspec.structs.replace(recipe.model, colours=8)
    loss = GroundingLoss(phrases=0, colours=1, boxes=0, proposer=0, words=0, apart=0, choices=0)
    task = GroundingKind().task(msgspec.structs.replace(recipe, model=model, loss=loss), corpus, [], CPU)
    task.network.see = None
    colours = task.network.colours
    assert 0 < colours.asks.sum() < len(task.grounder.vocabulary)
    optimizer = torch.optim.Adam(task.module.parameters(), 0.01)
    totals = []
    for epoch in range(1, 13):
        for batch in task.batches(epoch):
            total = task.loss(batch).total
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            totals.append(total.item())
    learned = {name.split(".")[1] for name, value in task.module.named_parameters() if value.grad is not None}
    # The vectors of words change, too, unless they are frozen.
    assert learned == {"colours", "words"}
    assert sum(totals[-6:]) < 0.8 * sum(totals[:6])
