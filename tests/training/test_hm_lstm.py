"""Paper 2's learning: eq. 9 and 10 pair by pair, correspondences by brute force, and runs from beginning to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, Image, make_caption, open_corpus
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.errors import DeixisError, InputError
from deixis.features.store import FeatureStore
from deixis.metrics.region_phrase_ranking import evaluate_region_phrases, region_phrases
from deixis.metrics.results import BoxSupervision
from deixis.metrics.score_blocks import MatrixScores
from deixis.model import store_images
from deixis.papers.hm_lstm.correspondence_quality import correspondence_quality
from deixis.papers.hm_lstm.correspondences import Correspondences, read_correspondences
from deixis.papers.hm_lstm.loss import contrastive_loss
from deixis.papers.hm_lstm.network import HMLSTM
from deixis.papers.hm_lstm.reference import best_regions
from deixis.papers.hm_lstm.task import HMBatch, HMLSTMKind, HMLSTMRecipe, HMTask, phrase_bank
from deixis.text.tokens import tokens_of
from deixis.text.treebank import Treebank, chunk_tree, corpus_texts
from deixis.text.trees import Tree, read_trees, write_trees
from deixis.training.bucket_padding import Padding
from deixis.training.evaluating import evaluate_run
from deixis.training.graph_capture import shapes_of
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.run_models import load_run
from deixis.training.run_records import make_run_plan
from deixis.training.running import run_recipe
from deixis.training.runs import RunFolder
from deixis.training.trainer import train
from tests.stores import make_store, random_boxes
from tests.training.made_text import made_text

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen = [image for split, count in (("train", 24), ("val", 10)) for image in whole.split(split).images[:count]]
    return whole.with_images(chosen)


@pytest.fixture(scope="module")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Some pictures have no regions, some more than are used."""
    return make_store(tmp_path_factory.mktemp("stores") / "proposals", corpus, random_boxes(9), seed=2)


@pytest.fixture(scope="module")
def text(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made_text(tmp_path_factory.mktemp("text"), corpus)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def recipe_of(text: dict[str, str], **settings: Any) -> HMLSTMRecipe:
    made = check_recipe(
        {
            "name": "test",
            "kind": "hm-lstm",
            "corpus": "scenes",
            "features": "regions",
            "text": text,
            "model": {"hidden": 7, "dim": 8},
            "alternation": {"coarse": 1, "rounds": 2},
            "regions": 5,
            "batch": 16,
            "schedule": {"epochs": 5, "learning_rate": 8e-3, "figure": "rsum"},
            **settings,
        },
        "test",
    )
    assert isinstance(made, HMLSTMRecipe)
    return made


def test_eq_9_is_its_sums() -> None:
    generator = torch.Generator().manual_seed(0)
    visual, texts = (torch.nn.functional.normalize(torch.randn(6, 4, generator=generator)) for _ in range(2))
    contrast = torch.rand(6, 6, generator=generator) < 0.5
    contrast = contrast | contrast.T
    found = contrastive_loss(visual, texts, contrast, 0.3)
    for k in range(6):
        own, expected = float(visual[k] @ texts[k]), 0.0
        for other in range(6):
            if contrast[k, other]:
                expected += max(0, 0.3 - own + float(visual[k] @ texts[other]))
                expected += max(0, 0.3 - own + float(texts[k] @ visual[other]))
        assert float(found[k]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("contrasts", ["image", "batch"])
def test_a_batch_is_eq_10_over_its_pairs(
    contrasts: str, text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    """The loss of a fine batch from the data alone: which pairs, which contrasts, which weights."""
    recipe = recipe_of(text, loss={"contrasts": contrasts, "margin": 0.4})
    task = HMLSTMKind().task(recipe, corpus, [store], CPU)
    batch = next(iter(task.batches(2)))
    task.module.eval()
    with torch.no_grad():
        total = float(task.loss(batch).total)
    assert total == pytest.approx(_by_pairs(task, batch, contrasts), rel=1e-4)
    coarse = next(iter(task.batches(1)))
    assert not len(coarse.regions), "no phrase has a loss before the first round"


@pytest.mark.parametrize("encoder", ["h-lstm", "tree-lstm", "chain"])
@pytest.mark.parametrize("epoch", [1, 2], ids=["coarse", "with phrases"])
@pytest.mark.parametrize("statistics", ["shared", "separate"])
def test_padded_batches_have_the_loss_of_those_as_they_are(
    encoder: str, epoch: int, statistics: str, text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    model = {"hidden": 7, "dim": 8, "encoder": encoder, "learn_words": True, "statistics": statistics}
    found: list[list[dict[str, torch.Tensor]]] = []
    shapes = []
    for pad in (lambda batch: batch, Padding()):
        task = HMLSTMKind().task(recipe_of(text, model=model), corpus, [store], CPU)
        found.append([])
        for batch in map(pad, task.batches(epoch)):
            loss = task.loss(batch)
            task.module.zero_grad()
            loss.total.backward()  # type: ignore[no-untyped-call]
            figures = {"total": loss.total, **{name: torch.as_tensor(part) for name, part in loss.parts.items()}}
            gradients = {name: value.grad for name, value in task.module.named_parameters() if value.grad is not None}
            state = {f"after {name}": value.clone() for name, value in task.module.state_dict().items()}
            found[-1].append({**figures, **gradients, **state})
        shapes.append({shapes_of(batch) for batch in map(pad, task.batches(epoch))})
    assert len(shapes[1]) < 4 < len(shapes[0])
    for right, padded in zip(*found, strict=True):
        assert right.keys() == padded.keys()
        for name, value in right.items():
            torch.testing.assert_close(padded[name], value, rtol=1e-3, atol=2e-4, msg=name)


def test_separate_statistics_normalize_each_loss_layer_by_itself(
    text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    """Eq. 10 where roots, phrases, pictures and regions are each normalized by their own mean and variance."""
    settings = {"hidden": 7, "dim": 8, "statistics": "separate"}
    task = HMLSTMKind().task(recipe_of(text, model=settings), corpus, [store], CPU)
    network, batch = task.module.network.train(), next(iter(task.batches(2)))
    with torch.no_grad():
        # A scale and shift that are seen.
        for branch in (network.images, network.texts):
            for parameter in branch[1].parameters():
                parameter.uniform_(0.5, 2.0)
        total = float(task.loss(batch).total)
        states = network.encoder(network.words(batch.plan.word), batch.plan)

        def normalized(branch: torch.nn.Sequential, rows: torch.Tensor) -> torch.Tensor:
            norm: Any = branch[1]
            rows = branch[0](rows)
            rows = (rows - rows.mean(0)) / (rows.var(0, correction=0) + norm.eps).sqrt()
            return torch.nn.functional.normalize(rows * norm.weight + norm.bias)

        expected = 0.0
        for nodes, rows, contrast, weights in (
            (batch.plan.root, batch.pictures, batch.root_contrast, 1.0),
            (batch.plan.phrase, batch.regions, batch.phrase_contrast, batch.weights),
        ):
            texts, visual = (
                normalized(network.texts, states[nodes]),
                normalized(network.images, task.data.visual[rows].float()),
            )
            expected += float((weights * contrastive_loss(visual, texts, contrast, 0.2)).sum()) / len(batch.pictures)
    assert total == pytest.approx(expected, rel=1e-4)


def test_the_difference_of_noun_phrases_begins_at_a_tree_lstm_and_is_kept_small(
    text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    settings = {"hidden": 7, "dim": 8}
    losses = [{"difference_decay": decay} for decay in (0.0, 0.5)]
    one, other = (
        HMLSTMKind().task(recipe_of(text, model={**settings, "difference": True}, loss=loss), corpus, [store], CPU)
        for loss in losses
    )
    tree = HMLSTMKind().task(recipe_of(text, model={**settings, "encoder": "tree-lstm"}), corpus, [store], CPU)
    printed = HMLSTMKind().task(recipe_of(text, model=settings), corpus, [store], CPU)
    batch = next(iter(one.batches(1)))

    def states(task: HMTask) -> torch.Tensor:
        return task.module.network.encoder(task.module.network.words(batch.plan.word), batch.plan)

    with torch.no_grad():
        torch.testing.assert_close(states(one), states(tree))
        encoders = [task.module.network.encoder for task in (one, other)]
        for encoder in encoders:
            assert encoder.difference is not None
            encoder.difference.fill_(0.1)
        shared = encoders[0].recurrent
        printed.module.network.encoder.recurrent.copy_(torch.cat([shared + 0.1, shared]))
        torch.testing.assert_close(states(one), states(printed))
        plain, decayed = (float(task.loss(batch).total) for task in (one, other))
    assert decayed - plain == pytest.approx(0.5 * 0.01 * shared.numel(), rel=1e-4)


def test_phrases_have_statistics_before_the_first_round_and_no_loss(
    text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    """The regions of the first round are found with them."""
    losses = []
    for statistics in ("shared", "separate"):
        model = {"hidden": 7, "dim": 8, "statistics": statistics}
        task = HMLSTMKind().task(recipe_of(text, model=model), corpus, [store], CPU)
        network = task.module.network.train()
        loss = task.loss(next(iter(task.batches(1))))
        assert float(torch.as_tensor(loss.parts["noun_phrases"]).detach()) == 0
        losses.append(float(loss.total.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for own, roots in ((network.region_statistics, network.images[1]), (network.phrase_statistics, network.texts[1])):
        assert own.running_mean is not None
        assert own.running_mean.abs().min() > 0
        assert not torch.allclose(own.running_mean, roots.running_mean)  # type: ignore[arg-type]


def test_a_finished_model_takes_regions_and_phrases_by_their_own_statistics(
    text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    model = {"hidden": 7, "dim": 8, "statistics": "separate"}
    run_recipe(RecipeFile("", recipe_of(text, model=model)), corpus, [store], tmp_path / "run", CPU)
    matcher: Any = load_run(tmp_path / "run", CPU)
    network = matcher.network
    image = next(store_images(store, [corpus.images[0].id]))
    tokens = tokens_of(corpus.images[0].captions[0])
    plan = matcher.trees.forest.plan(matcher.trees.transform([tokens]))
    rows = torch.from_numpy(np.array(store.regions(corpus.images[0].id), np.float32))
    with torch.no_grad():
        sentence, phrase = (network.embed_nodes(plan, plan.root, phrases=chosen) for chosen in (None, True))
        picture = network.embed_visual(torch.from_numpy(image.image[None].astype(np.float32)))
        regions = network.embed_visual(rows, regions=True)
    assert not torch.allclose(sentence, phrase, atol=1e-3)
    assert matcher.score([image], [tokens])[0, 0] == pytest.approx(float((sentence @ picture.T)[0, 0]), abs=1e-5)
    for asked in (matcher, matcher.of_phrases):
        np.testing.assert_allclose(asked.localize(image, [tokens]).scores, (phrase @ regions.T).numpy(), atol=1e-5)


def _by_pairs(task: HMTask, batch: HMBatch, contrasts: str) -> float:
    data, network = task.data, task.module.network
    corpus_captions = _training_captions(task)
    pairs = []  # level, image, row of visual features, tokens, weight
    for caption in batch.captions.tolist():
        image = int(data.image_of[caption])
        start = int(data.offsets[image])
        tokens = corpus_captions[caption]
        pairs.append(("root", image, start, tokens, 1.0, None))
        first, last = data.mention_offsets[caption : caption + 2].tolist()
        for mention in range(first, last):
            begin, end = data.spans[mention].tolist()
            row = start + int(task.module.correspondences.region[0, mention])
            weight = max(0.0, float(task.module.correspondences.confidence[0, mention]))
            pairs.append(("phrase", image, row, tokens[begin:end], weight, mention - first))
    with torch.no_grad():
        texts = []
        for place, (level, _, _, tokens, _, number) in enumerate(pairs):
            if level == "root":
                plan = task.texts.forest.plan(task.texts.transform([tokens]))
                texts.append(network.embed_nodes(plan, plan.root)[0])
            else:
                texts.append(network.embed_nodes(plan, plan.phrase)[number])
            assert len(texts) == place + 1
        visual = network.embed_visual(data.visual[[pair[2] for pair in pairs]].float())
    total = 0.0
    for k, (level, image, row, tokens, weight, _) in enumerate(pairs):
        own = float(visual[k] @ texts[k])
        for other, (other_level, other_image, other_row, other_tokens, _, _) in enumerate(pairs):
            if level != other_level or tokens == other_tokens or row == other_row:
                continue
            if level == "phrase" and contrasts == "image" and image != other_image:
                continue
            hinges = max(0, 0.4 - own + float(visual[k] @ texts[other]))
            hinges += max(0, 0.4 - own + float(texts[k] @ visual[other]))
            total += weight * hinges
    return total / len(batch.captions)


def _training_captions(task: HMTask) -> list[tuple[str, ...]]:
    known = {number: tokens for tokens, number in task.texts._numbers.items()}
    return [known[number] for number in task.data.tree.tolist()]


def test_a_phrase_goes_with_the_region_of_its_picture_that_fits_it_best(
    text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    task = HMLSTMKind().task(recipe_of(text), corpus, [store], CPU)
    task.batches(2)
    found, data, network = task.module.correspondences, task.data, task.module.network.eval()
    assert int(found.rounds) == 1
    with torch.no_grad():
        for caption, tree in enumerate(data.tree.tolist()):
            plan = task.texts.forest.plan(np.array([tree]))
            phrases = network.embed_nodes(plan, plan.phrase)
            image = int(data.image_of[caption])
            rows = network.embed_visual(data.visual[data.offsets[image] : data.offsets[image + 1]].float())
            regions, confidences = best_regions(rows, phrases)
            own = slice(*data.mention_offsets[caption : caption + 2].tolist())
            assert found.region[0, own].tolist() == regions
            assert found.confidence[0, own].tolist() == pytest.approx(confidences, abs=1e-5)


def test_or_with_the_one_expected_to_overlap_it_most(text: dict[str, str], corpus: Corpus, store: FeatureStore) -> None:
    """By brute force: cosines less the means of phrases, regions and pictures, as a softmax; overlaps by these."""
    recipe = recipe_of(text, alternation={"coarse": 1, "rounds": 2, "temperature": 0.3})
    task = HMLSTMKind().task(recipe, corpus, [store], CPU)
    task.batches(2)
    found, data, network = task.module.correspondences, task.data, task.module.network.eval()
    with torch.no_grad():
        visual = network.embed_visual(data.visual.float())
        plan = task.texts.forest.plan(data.tree)
        phrases = network.embed_nodes(plan, plan.phrase)
    whole = np.isin(np.arange(len(visual)), data.offsets[:-1])
    less = visual.clone()
    less[whole] -= visual[whole].mean(0)
    less[~whole] -= visual[~whole].mean(0)
    cosines = torch.nn.functional.cosine_similarity((phrases - phrases.mean(0))[:, None], less, dim=-1)
    best_matching = 0
    for mention, caption in enumerate(data.mention_caption.tolist()):
        first, last = data.offsets[data.image_of[caption] :][:2].tolist()
        boxes = data.boxes[first:last].astype(float)
        expected = iou_matrix(boxes, boxes) @ (cosines[mention, first:last] / 0.3).softmax(0).numpy()
        chosen = int(found.region[0, mention])
        assert expected[chosen] == pytest.approx(expected.max(), abs=1e-5)
        assert float(found.confidence[0, mention]) == pytest.approx(
            float(phrases[mention] @ visual[first + chosen]), abs=1e-5
        )
        best_matching += chosen == int(cosines[mention, first:last].argmax())
    assert best_matching < len(phrases), "this is another choice than the best-matching region"


def test_directions_less_the_mean_one(text: dict[str, str], corpus: Corpus, store: FeatureStore) -> None:
    """Neither the length of features nor what all have in common counts, and a finished run knows the mean."""
    model = {"hidden": 7, "dim": 8, "centred_regions": True}
    task = HMLSTMKind().task(recipe_of(text, model=model), corpus, [store], CPU)
    network, rows = task.module.network.eval(), task.data.visual.float()
    expected = torch.nn.functional.normalize(rows, dim=1).mean(0)
    torch.testing.assert_close(network.centre, expected, atol=1e-5, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(network.embed_visual(rows * 3), network.embed_visual(rows), atol=1e-5, rtol=0)
        again = HMLSTM(rows.shape[1], network.words.weight, network.recipe).eval()
        again.load_state_dict(network.state_dict())
        assert torch.equal(again.embed_visual(rows), network.embed_visual(rows))


def test_a_run_on_a_trained_backbone_holds_it(
    text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    """Other pictures get the features that it learned from, wherever the backbone's own run has gone."""
    tower = tmp_path / "elsewhere.safetensors"
    tower.write_bytes(b"weights")
    features = {"backbone": f"tower:{tower}", "crops": "whole", "regions": {"boxes": "edge-boxes", "count": 9}}
    task = HMLSTMKind().task(recipe_of(text, features=features), corpus, [store], CPU)
    folder = tmp_path / "run"
    folder.mkdir()
    task.save(folder)
    tower.unlink()
    (own,) = HMLSTMKind().features(task.recipe, folder)
    assert Path(own.backbone.removeprefix("tower:")).read_bytes() == b"weights"
    with pytest.raises(DeixisError, match="paper9/none"):
        HMLSTMKind().task(recipe_of(text, features={**features, "backbone": "tower:paper9/none"}), corpus, [store], CPU)


@pytest.fixture(scope="module")
def run(
    text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("runs") / "hm-lstm"
    return folder, run_recipe(RecipeFile("", recipe_of(text)), corpus, [store], folder, CPU).figures


def test_the_finished_matcher_gets_the_figures_of_its_validation(
    run: tuple[Path, dict[str, float]], corpus: Corpus, store: FeatureStore
) -> None:
    folder, figures = run
    metrics: Any = evaluate_run(folder, corpus, [store], CPU, split="val")[0].metrics
    found = {f"{way}.r@{k}": metrics[way][f"r@{k}"] for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
    assert found == pytest.approx({name: figures[name] for name in found}, abs=1e-3)


def test_a_run_killed_in_a_round_ends_like_one_that_was_not(
    run: tuple[Path, dict[str, float]], text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    recipe = recipe_of(text)
    plan = make_run_plan(recipe, corpus, [store])
    for stop in (3, 11, 20, None):
        task = HMLSTMKind().task(recipe, corpus, [store], CPU)
        taken = 0

        def counted(batch: HMBatch, loss: Any = task.loss, stop: int | None = stop) -> Any:
            nonlocal taken
            taken += 1
            if taken == stop:
                raise KeyboardInterrupt
            return loss(batch)

        task.loss = counted  # type: ignore[method-assign]
        with RunFolder(tmp_path / "run", plan, "") as folder:
            try:
                train(task, recipe.schedule, folder, seed=0, device=CPU, checkpoint_steps=2)
            except KeyboardInterrupt:
                assert stop is not None
    whole, resumed = read_correspondences(run[0]), read_correspondences(tmp_path / "run")
    assert whole.boxes.shape[0] == 2
    assert np.array_equal(whole.boxes, resumed.boxes)
    assert np.array_equal(whole.confidence, resumed.confidence)
    first, second = (load_run(path, CPU).network.state_dict() for path in (run[0], tmp_path / "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_correspondences_of_a_run_lie_in_its_pictures(
    run: tuple[Path, dict[str, float]], corpus: Corpus, store: FeatureStore
) -> None:
    found = read_correspondences(run[0])
    images = {image.id: image for image in corpus}
    for mention in range(0, len(found.image), 7):
        image = images[found.image_ids[found.image[mention]]]
        tokens = tokens_of(image.captions[found.caption[mention]])
        start, end = found.spans[mention].tolist()
        assert 0 <= start < end <= len(tokens)
        own = [[0, 0, image.width, image.height], *store.boxes(image.id)[:5].tolist()]
        for box in found.boxes[:, mention]:
            assert any(np.allclose(box, other) for other in own)


def test_a_temperature_is_declared_as_chosen_by_boxes(
    run: tuple[Path, dict[str, float]], corpus: Corpus, tmp_path: Path
) -> None:
    """The recipes' temperature was chosen with annotated boxes of the validation split, so results say so."""
    shutil.copytree(run[0], tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    plan["recipe"]["alternation"]["temperature"] = 0.2
    (tmp_path / "run" / "run.json").write_text(json.dumps(plan))
    by_cosine, by_temperature = (correspondence_quality(folder, corpus) for folder in (run[0], tmp_path / "run"))
    assert by_cosine.box_supervision is not None
    assert by_temperature.box_supervision is not None
    assert by_cosine.box_supervision.statement.endswith("matcher: saw no drawn box")
    assert by_temperature.box_supervision.statement.endswith("chosen by the boxes of the validation split")


def test_quality_is_counted_by_hand(run: tuple[Path, dict[str, float]], corpus: Corpus) -> None:
    """Annotated phrases that are noun phrases of the trees, their chosen boxes, and those that cover one another."""
    found = read_correspondences(run[0])
    result = correspondence_quality(run[0], corpus)
    report = "backbone (unnamed): saw no drawn box; proposals random: saw no drawn box; matcher: saw no drawn box"
    images = {image.id: image for image in corpus}
    metrics: Any = result.metrics
    bound = metrics["round_1"]["overall"]["upper_bound"]
    assert result.box_supervision == BoxSupervision(False, False, report, regions=6, upper_bound=bound)
    for number in range(2):
        right, covered, measured_phrases = [], [], 0
        boxes = found.boxes[number]
        for mention, place in enumerate(found.image.tolist()):
            image, caption = images[found.image_ids[place]], found.caption[mention]
            span = found.spans[mention].tolist()
            for phrase in image.captions[caption].phrases:
                drawn = box_array(image.chain_boxes(phrase.chain)) if phrase.visual else ()
                if [phrase.start, phrase.end] == span and len(drawn):
                    overlap = iou_matrix(merge(drawn)[None], boxes[mention][None].astype(float))[0, 0]
                    right += [overlap >= 0.5] * len(phrase.types)
                    measured_phrases += 1
            around = [
                other
                for other in np.flatnonzero((found.image == place) & (found.caption == caption)).tolist()
                if other != mention and found.spans[other, 0] <= span[0] and found.spans[other, 1] >= span[1]
            ]
            if around:
                parent = min(around, key=lambda other: found.spans[other, 1] - found.spans[other, 0])
                covered.append(_inside(boxes[mention], boxes[parent]))
        measured = metrics[f"round_{number + 1}"]
        assert measured["overall"]["instances"] == len(right) > 0
        assert result.counts["measured"] == measured_phrases
        assert measured["overall"]["right"] == pytest.approx(100 * np.mean(right))
        assert measured["hierarchy"]["inside_pairs"] == len(covered) > 0
        assert measured["hierarchy"]["inside_covered"] == pytest.approx(100 * np.mean(covered), rel=1e-4)
    whole = []
    for image in (images[name] for name in found.image_ids):
        place = found.image_ids.index(image.id)
        size = found.candidates[found.offsets[place]].astype(float)
        for number, caption in enumerate(image.captions):
            mine = found.spans[(found.image == place) & (found.caption == number)].tolist()
            for phrase in caption.phrases:
                drawn = box_array(image.chain_boxes(phrase.chain)) if phrase.visual else ()
                if [phrase.start, phrase.end] in mine and len(drawn):
                    whole += [iou_matrix(merge(drawn)[None], size[None])[0, 0] >= 0.5] * len(phrase.types)
    assert metrics["whole_picture"]["overall"]["right"] == pytest.approx(100 * np.mean(whole))
    central = metrics["central_region"]["overall"]
    assert central["instances"] == len(whole)
    assert 0 <= central["right"] <= central["upper_bound"]


def _inside(inner: Any, outer: Any) -> float:
    width = max(0.0, min(inner[2], outer[2]) - max(inner[0], outer[0]))
    height = max(0.0, min(inner[3], outer[3]) - max(inner[1], outer[1]))
    return float(width * height / ((inner[2] - inner[0]) * (inner[3] - inner[1])))


def test_what_the_matcher_does(run: tuple[Path, dict[str, float]], corpus: Corpus, store: FeatureStore) -> None:
    """Phrases as sentences, words nobody knows, pictures without regions; what it cannot look up it parses."""
    matcher = load_run(run[0], CPU)
    assert matcher.abilities == {"embed_images", "embed_texts", "score", "localize", "ground"}
    known = tokens_of(corpus.images[0].captions[0])
    rows = matcher.embed_texts([known, ("xyzzy",), (), known])
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 0, 0, 1], abs=1e-5)
    assert np.array_equal(rows[0], rows[3])
    features = list(store_images(store, [image.id for image in corpus]))
    assert {len(each.boxes) for each in features if each.boxes is not None} >= {0}, "one picture has no regions"
    for each in features:
        assert each.boxes is not None
        assert matcher.localize(each, [known]).scores.shape == (1, len(each.boxes))


def test_correspondences_stay_when_earlier_weights_come_back() -> None:
    found, fresh = Correspondences(2, 3), Correspondences(2, 3)
    before = {name: value.clone() for name, value in found.state_dict().items()}
    found.add(torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.2, 0.3]))
    found.load_state_dict(before)
    assert found.region[0].tolist() == [1, 2, 3]
    fresh.load_state_dict(found.state_dict())
    assert fresh.region[0].tolist() == [1, 2, 3]
    assert int(fresh.rounds) == 1


@pytest.mark.parametrize("encoder", ["tree-lstm", "chain"])
def test_ablations_run_and_rank_regions(
    encoder: str, text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    def merged(image: Image) -> list[list[float]]:
        return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]

    drawn = make_store(tmp_path / "chains", corpus, merged, seed=1, provenance={"regions": {"boxes": "chains"}})
    settings = {"epochs": 2, "learning_rate": 8e-3}
    recipe = recipe_of(
        text,
        model={"encoder": encoder, "hidden": 7, "dim": 8},
        alternation={"coarse": 1, "rounds": 1},
        schedule=settings,
        drawn_regions=True,
    )
    stores = [store, drawn]
    figures = run_recipe(RecipeFile("", recipe), corpus, stores, tmp_path / "run", CPU).figures
    metrics: Any = [result.metrics for result in evaluate_run(tmp_path / "run", corpus, stores, CPU, split="val")]
    assert metrics[0]["text_to_image"]["r@5"] == pytest.approx(figures["text_to_image.r@5"], abs=1e-3)
    assert metrics.pop()["round_1"]["overall"]["upper_bound"] <= 100
    matcher, images = load_run(tmp_path / "run", CPU), corpus.split("val").images
    items = region_phrases(images)
    rows = {}
    for image in images:
        rows |= {(image.id, tuple(box)): row for box, row in zip(merged(image), drawn.regions(image.id), strict=True)}
    regions = matcher.embed_visual(np.stack([rows[name, (b.x1, b.y1, b.x2, b.y2)] for name, b in items.regions]))
    scores = regions @ matcher.embed_texts([tuple(string.split(" ")) for string in items.strings]).T
    expected = evaluate_region_phrases(items, MatrixScores(scores)).as_dict()
    for way in ("region_to_phrase", "phrase_to_region"):
        assert metrics[-1]["strings"][way] == pytest.approx(expected["strings"][way], rel=0.02)


@pytest.mark.parametrize(("coarse", "rounds", "epochs"), [(1, 2, 4), (3, 0, 4), (5, 1, 4)])
def test_epochs_must_be_shared_out(coarse: int, rounds: int, epochs: int, text: dict[str, str]) -> None:
    with pytest.raises(InputError, match="rounds"):
        recipe_of(
            text,
            alternation={"coarse": coarse, "rounds": rounds},
            schedule={"epochs": epochs, "learning_rate": 1e-3},
        )


def test_a_bank_has_no_slips_of_a_parser() -> None:
    def phrase(*pairs: tuple[str, str]) -> tuple[tuple[str, ...], Tree]:
        leaves = tuple(Tree(tag, token=number) for number, (_, tag) in enumerate(pairs))
        return tuple(word for word, _ in pairs), Tree("NP", leaves)

    good = phrase(("a", "DT"), ("dog", "NN"))
    slips = [
        phrase(("a", "DT"), ("child", "NN"), ("with", "IN")),
        phrase(("running", "VBG"), ("dog", "NN")),
        phrase(("a", "DT"), ("dog", "NN"), (".", ".")),
        phrase(("a", "DT"), ("dog", "NN"), ("'s", "POS")),
        phrase(("front", "NN"), ("of", "IN"), ("several", "JJ"), ("vehicles", "NNS")),
        phrase(("there", "EX"), ("fingers", "NNS")),
    ]
    kept = [good, phrase(("group", "NN"), ("of", "IN"), ("men", "NNS")), phrase(("top", "NN"))]
    bank = Treebank(dict([*kept, *slips]), "spacy-md")
    assert phrase_bank([tokens for tokens, _ in [*slips, *kept]], bank) == kept


def test_rounds_begin_where_the_recipe_says(text: dict[str, str]) -> None:
    recipe = recipe_of(text)
    assert [recipe.round_of(epoch) for epoch in range(1, 6)] == [0, 1, 1, 2, 2]


ODD = ("", "!!! ...", "dog", " ".join(["very"] * 59 + ["deep"]))


@pytest.mark.parametrize("encoder", ["h-lstm", "chain"])
def test_odd_captions_train_and_embed_like_others(
    encoder: str, text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    """None at all, one that no parser reads, one of a word, one whose tree has 60 nodes from root to leaf."""
    deep = Tree("NP", (Tree("RB", token=58), Tree("NN", token=59)))
    for token in reversed(range(58)):
        deep = Tree("NP", (Tree("RB", token=token), deep))
    assert deep.depth == 60
    images = [
        msgspec.structs.replace(image, captions=tuple(make_caption(caption) for caption in ODD)) if odd else image
        for image, odd in ((image, image.split == "train" and number % 2 == 0) for number, image in enumerate(corpus))
    ]
    with_odd = corpus.with_images(images)
    known = dict(read_trees(text["trees"]))
    own: dict[tuple[str, ...], Tree] = {tuple(ODD[3].split()): deep}
    for tokens in corpus_texts(with_odd):
        own.setdefault(tokens, known.get(tokens) or chunk_tree(len(tokens), []))
    write_trees(tmp_path / "odd.jsonl", own.items())
    recipe = recipe_of(
        {**text, "trees": str(tmp_path / "odd.jsonl")},
        model={"encoder": encoder, "hidden": 7, "dim": 8, "dropout": 0.5},
        alternation={"coarse": 1, "rounds": 1},
        schedule={"epochs": 2, "learning_rate": 1e-3},
    )
    run_recipe(RecipeFile("", recipe), with_odd, [store], tmp_path / "run", CPU)
    rows = load_run(tmp_path / "run", CPU).embed_texts([tokens_of(caption) for caption in ODD])
    assert np.linalg.norm(rows, axis=1) == pytest.approx([0, 1, 1, 1], abs=1e-5)


def test_dropout_is_of_visual_features_while_learning(
    text: dict[str, str], corpus: Corpus, store: FeatureStore
) -> None:
    plain, dropped = (
        HMLSTMKind().task(recipe_of(text, model={"hidden": 7, "dim": 8, "dropout": share}), corpus, [store], CPU)
        for share in (0.0, 0.5)
    )
    networks = [task.module.network for task in (plain, dropped)]
    features, plan = plain.data.visual[:9].float(), plain.texts.forest.plan(plain.data.tree[:9])
    for training in (False, True):
        mine, theirs = (network.train(training).embed_visual(features) for network in networks)
        assert torch.equal(mine, theirs) != training
        assert torch.equal(*(network.embed_nodes(plan, plan.root) for network in networks))


def test_a_file_without_a_caption_s_tree_says_so(
    text: dict[str, str], corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    write_trees(tmp_path / "few.jsonl", [(("a", "dog"), chunk_tree(2, [(0, 2)]))])
    recipe = recipe_of({**text, "trees": str(tmp_path / "few.jsonl")})
    with pytest.raises(DeixisError, match="no tree of a caption of image"):
        HMLSTMKind().task(recipe, corpus, [store], CPU)
