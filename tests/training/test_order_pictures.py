"""Order learned from pictures: who is a mismatch of whom, mirrored captions, a run that looks and tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.records import make_caption
from deixis.errors import InputError
from deixis.papers.concepts_order import order_pictures_task as order_pictures
from deixis.papers.concepts_order.loss import mismatched_pairs, mismatched_pictures
from deixis.papers.concepts_order.model import ConceptsOrderModel
from deixis.papers.concepts_order.order_pictures_task import (
    OrderPictureTask,
    PictureBatch,
    concept_labels,
)
from deixis.papers.concepts_order.order_training import caption_lengths
from deixis.text.concept_words import Concept, ConceptVocabulary
from deixis.text.vocabulary import Vocabulary
from deixis.training.augmentation import mirrored_words
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.run_models import load_run
from deixis.training.running import run_recipe, stores_for
from deixis.vision.proposer import normalize, squashed
from deixis.vision.reading import read_picture
from deixis.vision.tower import load_tower

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "name": "order",
    "kind": "order-pictures",
    "corpus": "scenes",
    "images": 8,
    "captions": 3,
    "text": {"kind": "tokens"},
    "looking": {"side": 64, "dim": 32, "relating": 1},
    "model": {"hidden": 32, "word": 16},
    "loss": {"order": 10.0},
    "schedule": {"epochs": 2, "learning_rate": 1e-3, "figure": "order"},
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images([image for split in ("train", "val", "test") for image in tuple(whole.split(split))[:10]])


@pytest.fixture(scope="module")
def task(corpus: Corpus) -> OrderPictureTask:
    return order_pictures.OrderPicturesKind().task(check_recipe(SETTINGS, "order"), corpus, [], CPU)  # type: ignore[arg-type]


def test_a_caption_that_is_one_of_a_picture_s_own_is_no_mismatch_of_it() -> None:
    random = np.random.default_rng(0)
    owner, string = torch.from_numpy(np.sort(random.integers(0, 5, 14))), torch.from_numpy(random.integers(0, 6, 14))
    found = mismatched_pictures(owner, string, 5)
    has = [{int(text) for text, own in zip(string, owner, strict=True) if own == image} for image in range(5)]
    for caption in range(14):
        assert found[caption].tolist() == [int(string[caption]) not in has[image] for image in range(5)]


def test_a_caption_of_the_same_picture_or_with_the_same_words_is_no_mismatch() -> None:
    random = np.random.default_rng(0)
    image, string = (torch.from_numpy(random.integers(0, 4, 12)) for _ in range(2))
    mismatch = mismatched_pairs(image, string)
    for first in range(12):
        for second in range(12):
            matches = image[first] == image[second] or string[first] == string[second]
            assert bool(mismatch[first, second]) != bool(matches)


def test_mirrored_twice_is_as_before_and_only_sides_change() -> None:
    vocabulary = Vocabulary.of([("a", "dog", "left", "of", "the", "right", "cat")])
    ids = mirrored_words(vocabulary)
    assert torch.equal(ids[ids], torch.arange(len(vocabulary)))
    assert vocabulary.decode(ids[vocabulary.encode(("dog", "left", "of", "cat"))].tolist()) == (
        "dog", "right", "of", "cat",
    )  # fmt: skip
    alone = Vocabulary.of([("left", "dog")])
    assert torch.equal(mirrored_words(alone), torch.arange(len(alone)))


def test_a_mirrored_caption_is_no_mismatch_of_an_equal_one(corpus: Corpus) -> None:
    left, right = (
        msgspec.structs.replace(image, captions=(make_caption(f"a dog is {side} of a cat"),), chains=())
        for image, side in zip(corpus.split("train"), ("left", "right"), strict=False)
    )
    pair = corpus.with_images([left, right, *corpus.split("val")])
    settings = {**SETTINGS, "loss": {}}
    task = order_pictures.OrderPicturesKind().task(check_recipe(settings, "ctx"), pair, [], CPU)  # type: ignore[arg-type]
    mirrored = set()
    for epoch in range(1, 9):
        batch: PictureBatch = next(iter(task.batches(epoch)))
        flips = batch.views.flip < 0
        # One of two mirrored: both say the same now. Both or none: one says left where the other says right.
        assert bool(batch.mismatch[0, 1]) == bool(flips[0] == flips[1])
        assert not batch.mismatch.diagonal().any()
        mirrored.add(bool(flips[0] == flips[1]))
    assert mirrored == {True, False}


def test_twins_are_asked_for_only_where_exchanged_captions_count(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*parts: object) -> torch.Tensor:
        raise AssertionError("no twins were asked for")

    monkeypatch.setattr(order_pictures, "twin_ids", refuse)
    settings = {**SETTINGS, "loss": {}}
    task = order_pictures.OrderPicturesKind().task(check_recipe(settings, "ctx"), corpus, [], CPU)  # type: ignore[arg-type]
    assert "order" not in task.validate()
    assert set(task.loss(next(iter(task.batches(1)))).parts) == {"matching", "generation"}


def test_the_network_that_looks_learns_with_the_rest(task: OrderPictureTask) -> None:
    batch = next(iter(task.batches(1)))
    loss = task.loss(batch)
    assert set(loss.parts) == {"matching", "order", "generation"}
    loss.total.backward()  # type: ignore[no-untyped-call]
    first = next(task.module.tower.backbone.parameters())
    assert first.grad is not None
    assert first.grad.abs().sum() > 0


@pytest.fixture
def words(tmp_path: Path) -> ConceptVocabulary:
    made = ConceptVocabulary(
        [Concept(word, "noun", 9, (word, f"{word}s")) for word in ("dog", "man", "ball", "left", "right")]
    )
    made.save(tmp_path / "words.tsv")
    return made


def test_concepts_of_mirrored_pictures_have_their_sides_exchanged(corpus: Corpus, words: ConceptVocabulary) -> None:
    read = [tuple(text.split()) for text in ("two dogs left of a man", "a ball", "a man with a cat")]
    data = SimpleNamespace(image_of=torch.tensor([0, 1, 1]), image_ids=("a", "b"), captions=read)
    labels = concept_labels(words, data)  # type: ignore[arg-type]
    assert labels[0].int().tolist() == [[1, 1, 0, 1, 0], [0, 1, 1, 0, 0]]
    assert labels[1].int().tolist() == [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0]]


def test_concepts_learn_from_words_alone_and_are_reported_where_they_are_seen(
    corpus: Corpus, words: ConceptVocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    recipe = check_recipe({**SETTINGS, "vocabulary": {"file": str(tmp_path / "words.tsv")}}, "order")
    task = order_pictures.OrderPicturesKind().task(recipe, corpus, [], CPU)  # type: ignore[arg-type]
    loss = task.loss(next(iter(task.batches(1))))
    seen = task.module.tower.seen
    assert seen is not None
    for part, learns in (("matching", False), ("generation", False), ("order", False), ("concepts", True)):
        grads = torch.autograd.grad(loss.parts[part], list(seen.parameters()), retain_graph=True, allow_unused=True)
        assert all((grad is not None) == learns for grad in grads)
    assert 0 <= task.validate()["map"] <= 100
    run = tmp_path / "run"
    run_recipe(RecipeFile("", recipe), corpus, [], run, CPU)
    matcher: Any = load_run(run, CPU)
    image = next(iter(corpus.split("test")))
    picture = read_picture(corpus, image)
    picture.save(tmp_path / "scene.png")
    features = matcher.look(tmp_path / "scene.png")
    tower = load_tower(run / "tower.safetensors")
    context, logits = tower(normalize(squashed(picture, 64)[None])), None
    with torch.no_grad():
        logits = tower.concept_logits(tower.backbone.map(normalize(squashed(picture, 64)[None])))
    found = matcher.predictor.places(features)
    assert found.confidences == pytest.approx(torch.sigmoid(logits[0]).numpy(), abs=2e-3)
    # The whole of it, then a grid of 2 × 2 cells of 32 pixels, row by row.
    width, height = picture.size
    assert found.boxes.tolist()[:2] == [[0, 0, width, height], [0, 0, width / 2, height / 2]]
    assert found.boxes.tolist()[2] == [width / 2, 0, width, height / 2]
    expected = matcher.network.embed_images(torch.sigmoid(logits).amax(1), context).detach().numpy()
    assert matcher.embed_images([features]) == pytest.approx(expected, abs=5e-3)
    stores = stores_for(recipe, corpus, run=run, split="test")
    results = {result.protocol.name: result for result in evaluate_run(run, corpus, stores, CPU)}
    assert {"order of words", "concept prediction"} < set(results)
    assert set(results["concept prediction"].metrics["concepts"]) == {
        "whole", "regional", "constant_score", "by_concept",
    }  # fmt: skip


def test_a_finished_run_looks_matches_and_tells(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    recipe = check_recipe(SETTINGS, "order")
    run = tmp_path / "run"
    run_recipe(RecipeFile("", recipe), corpus, [], run, CPU)
    matcher = load_run(run, CPU)
    assert isinstance(matcher, ConceptsOrderModel)
    image = next(iter(corpus.split("test")))
    read_picture(corpus, image).save(tmp_path / "scene.png")
    seen = matcher.look(tmp_path / "scene.png")
    assert matcher.embed_images([seen]).shape == (1, 32)
    assert matcher.describe(seen, 2)
    stores = stores_for(recipe, corpus, run=run, split="test")
    names = [result.protocol.name for result in evaluate_run(run, corpus, stores, CPU)]
    assert "order of words" in names


def test_only_a_network_that_can_be_fine_tuned_looks() -> None:
    with pytest.raises(InputError, match="fine-tuned"):
        check_recipe({**SETTINGS, "looking": {"backbone": "dinov2-small"}}, "order")


def test_twins_are_read_to_their_end(corpus: Corpus) -> None:
    """Where phrases change places, a twin may have more words than its caption, and than all captions of its batch."""
    task = order_pictures.OrderPicturesKind().task(check_recipe(SETTINGS, "order"), corpus, [], CPU)  # type: ignore[arg-type]
    assert task.twins is not None
    captions = (task.data.texts != 0).sum(1)
    longer = ((task.twins != 0).sum(1) > captions).nonzero()[:, 0]
    lengths = caption_lengths(task.data, task.twins)
    assert (lengths >= captions.numpy()).all()
    assert (lengths[longer.numpy()] == (task.twins[longer] != 0).sum(1).numpy()).all()
    for batch in task.batches(1):
        twins = batch.captions.twins
        assert twins is not None
        assert twins.shape == batch.captions.ids.shape
        rows = {tuple(row[row != 0].tolist()) for row in task.twins}
        rows |= {tuple(row[row != 0].tolist()) for row in task.mirrored[task.twins]}
        assert all(tuple(row[row != 0].tolist()) in rows for row in twins)
    made = torch.zeros(len(captions), int(captions.max()) + 3, dtype=torch.int64)
    made[0] = 1
    assert caption_lengths(task.data, made)[0] == made.shape[1]
