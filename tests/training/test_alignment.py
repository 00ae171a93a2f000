"""Learning to align (paper 4): losses against loops, runs of every variant, and what a finished matcher can do."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, Image, open_corpus
from deixis.features.store import FeatureStore
from deixis.model import store_images
from deixis.papers.dvsa.loss import fragment_hinge, max_margin
from deixis.papers.dvsa.model import AlignmentModel
from deixis.papers.dvsa.task import AlignmentKind, AlignmentTask
from deixis.text.parsing import spacy_folder
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.run_models import load_run
from deixis.training.running import run_recipe
from tests.stores import drawn_store, make_store, random_boxes

CPU = torch.device("cpu")
NEEDS_SPACY = pytest.mark.skipif(
    find_spec("spacy") is None or all(spacy_folder(model) is None for model in ("spacy-md", "spacy-sm")),
    reason="dependency edges need spaCy: pip install 'deixis[text]'",
)
SETTINGS: dict[str, Any] = {
    "kind": "alignment",
    "corpus": "scenes",
    "features": {"backbone": "efficientnet-lite0", "regions": {"boxes": "grid", "count": 30}},
    "model": {"dim": 16, "word": 8, "dropout": 0.1},
    "word_vectors": "random",
    "regions": 6,
    "batch": 25,
    "schedule": {
        "epochs": 2,
        "learning_rate": 1e-3,
        "optimizer": "sgd",
        "momentum": 0.9,
        "clip": {"kind": "value", "at": 5.0},
        "figure": "rsum",
    },
}
EDGES = {"fragments": "edges", "dim": 16, "word": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "brnn": SETTINGS,
    "deptree": {**SETTINGS, "model": EDGES},
    "defrag": {**SETTINGS, "model": {**EDGES, "score": "mean"}, "fragment_weight": 1.0},
    "colours": {**SETTINGS, "group": 5, "colour_weight": 1.0},
}
NAMES = [pytest.param(name, marks=() if name in ("brnn", "colours") else NEEDS_SPACY) for name in VARIANTS]
SOME_SLOW = [
    pytest.param(name, marks=[] if name in ("brnn", "colours") else [NEEDS_SPACY, pytest.mark.slow])
    for name in VARIANTS
]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen: list[Image] = []
    for split, count in (("train", 30), ("val", 12)):
        chosen += [image for image in whole if image.split == split][:count]
    return whole.with_images(chosen)


@pytest.fixture(scope="module")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    # Some pictures have no proposal at all: they are aligned by themselves.
    return make_store(tmp_path_factory.mktemp("store") / "proposals", corpus, random_boxes(10), seed=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))


def a_task(corpus: Corpus, store: FeatureStore, name: str = "brnn") -> AlignmentTask:
    recipe: Any = check_recipe({"name": name, **VARIANTS[name]}, name)
    return AlignmentKind().task(recipe, corpus, [store], CPU)


@pytest.fixture
def matcher(corpus: Corpus, store: FeatureStore) -> AlignmentModel:
    task = a_task(corpus, store)
    network: Any = task.module
    return AlignmentModel(network, task.fragments, 6, 1.0, CPU)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_the_finished_matcher_gets_the_figures_of_its_validation(
    name: str,
    corpus: Corpus,
    store: FeatureStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = check_recipe({"name": name, **VARIANTS[name]}, name)
    figures = run_recipe(RecipeFile("", recipe), corpus, [store], tmp_path / "run", CPU).figures
    metrics: Any = evaluate_run(tmp_path / "run", corpus, [store], CPU, split="val")[0].metrics
    for way in ("image_to_text", "text_to_image"):
        for k in (1, 5, 10):
            assert metrics[way][f"r@{k}"] == pytest.approx(figures[f"{way}.r@{k}"], abs=1e-3)
    # A machine without a parser scores what it can read: the texts of the corpus, whose edges are kept.
    monkeypatch.setattr("deixis.text.dependencies.SPACY_PACKAGES", ())
    monkeypatch.setattr("deixis.papers.dvsa.snippet_queries.LEAST", 1)
    stores = [store, drawn_store(corpus, tmp_path / "chains")]
    results = evaluate_run(tmp_path / "run", corpus, stores, CPU, split="val")
    names = {result.protocol.name for result in results}
    assert {"image-text ranking", "phrase alignment", "word magnitudes", "region-phrase ranking"} <= names
    splits = {result.protocol.name: result.corpus.split for result in results}
    assert (splits["word magnitudes"], splits["phrase alignment"]) == ("train", "val")
    assert ("snippet queries" in names) is (name in ("brnn", "colours"))
    found = load_run(tmp_path / "run", CPU)
    assert found.abilities == {"score", "localize", "ground", "align"}


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(name: str, corpus: Corpus, store: FeatureStore) -> None:
    task = a_task(corpus, store, name)
    optimizer = torch.optim.Adam(task.module.parameters(), lr=0.01)
    batch = next(iter(task.batches(1)))
    losses = []
    torch.manual_seed(0)
    for _ in range(60):
        loss = task.loss(batch).total
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    # Dropout makes single losses jump: the mean of the last ten stands for the end.
    assert sum(losses[-10:]) / 10 < 0.8 * losses[0]


def test_the_ranking_is_that_of_a_loop_and_asks_nothing_of_the_same_picture() -> None:
    scores = torch.randn(6, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    same = torch.eye(6, dtype=torch.bool)
    same[1, 4] = same[4, 1] = True
    expected = 0.0
    for k in range(6):
        for other in range(6):
            if not same[k, other]:
                expected += max(0.0, float(scores[k, other] - scores[k, k]) + 1)
                expected += max(0.0, float(scores[other, k] - scores[k, k]) + 1)
    mask = torch.ones(6, dtype=torch.bool)
    assert float(max_margin(scores, ~same, 1.0)[0]) == pytest.approx(expected / 6)
    more, pad = torch.randn(8, 8, dtype=torch.double), torch.nn.functional.pad
    more[:6, :6] = scores
    masked = max_margin(more, pad(~same, (0, 2, 0, 2)), 1.0, pad(mask, (0, 2)))[0]
    assert float(masked) == pytest.approx(expected / 6)


def test_the_fragment_hinge_is_that_of_a_loop_with_labels_by_multiple_instances() -> None:
    generator = torch.Generator().manual_seed(0)
    regions, fragments = (torch.randn(3, size, 4, generator=generator) for size in (2, 3))
    # No region of the first picture shows its first fragment: its best one is taken for it all the same.
    fragments[0, 0] = -regions[0].sum(0) * 3
    assert (regions[0] @ fragments[0, 0] < 0).all()
    present = torch.tensor([[True, True], [True, False], [True, True]])
    real = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    same = torch.eye(3, dtype=torch.bool)
    same[0, 2] = same[2, 0] = True
    hinges: dict[int, list[float]] = defaultdict(list)
    for text, place in real.nonzero().tolist():
        for image in range(3):
            if image != text and same[image, text]:
                continue
            there = present[image].nonzero()[:, 0].tolist()
            products = {i: float(regions[image, i] @ fragments[text, place]) for i in there}
            for i, value in products.items():
                shown = image == text and (value > 0 or i == max(products, key=products.__getitem__))
                label = 1 if shown else -1
                hinges[label].append(max(0.0, 1 - label * value))
    expected = np.mean(hinges[1]) + np.mean(hinges[-1])
    assert float(fragment_hinge(regions, present, fragments, real, ~same)) == pytest.approx(float(expected), rel=1e-5)


def test_batches_hold_every_caption_once_and_are_decided_by_seed_and_epoch(corpus: Corpus, store: FeatureStore) -> None:
    task = a_task(corpus, store)
    first, again, other = ([batch.captions.tolist() for batch in task.batches(epoch)] for epoch in (1, 1, 2))
    assert first == again != other
    assert sorted(pair for pairs in first for pair in pairs) == list(range(len(task.data.lengths)))
    for batch in task.batches(1):
        width = batch.ids.shape[1]
        assert torch.equal(batch.ids, task.data.ids[batch.captions, :width])
        assert (task.data.ids[batch.captions, width:] == 0).all()


def test_scores_of_a_matcher_are_the_sum_of_the_best_products_of_words(
    matcher: AlignmentModel, corpus: Corpus, store: FeatureStore
) -> None:
    images = list(store_images(store, [image.id for image in corpus.images[:5]]))
    texts = [tokens_of(image.captions[0]) for image in corpus.images[:3]]
    scores = matcher.score(images, texts)
    for number, image in enumerate(images):
        boxes, products = matcher.align_words(image, texts)
        assert boxes[0].tolist() == [0, 0, *image.size]
        assert len(boxes) == 1 + len(store.boxes(corpus.images[number].id))
        for column, own in enumerate(products):
            assert own.shape == (len(texts[column]), len(boxes))
            assert scores[number, column] == pytest.approx(own[:, :6].max(1).sum(), rel=1e-4)
        found = matcher.localize(image, texts)
        assert found.scores[0] == pytest.approx(products[0].sum(0), rel=1e-4)


def test_snippets_cover_the_sentence_and_smoothing_makes_fewer(
    matcher: AlignmentModel, corpus: Corpus, store: FeatureStore
) -> None:
    image = next(store_images(store, [corpus.images[0].id]))
    texts = [tokens_of(caption) for caption in corpus.images[0].captions]
    counts = []
    for beta in (0.0, 100.0):
        matcher.beta = beta
        _, snippets = matcher.align_captions(image, [*texts, ()])
        for text, own in zip([*texts, ()], snippets, strict=True):
            covered = [place for snippet in own for place in range(snippet.start, snippet.end)]
            assert covered == list(range(len(text)))
        counts.append(sum(map(len, snippets)))
    assert counts[1] == len(texts) <= counts[0]


def test_magnitudes_are_mean_lengths_of_words_in_their_sentences(matcher: AlignmentModel, corpus: Corpus) -> None:
    texts = tokens_of_captions(corpus)
    lengths: dict[str, list[float]] = defaultdict(list)
    network: Any = matcher.network
    for text in texts:
        vectors = network.embed_fragments(torch.from_numpy(matcher.fragments.ids([text])))[0]
        for word, vector in zip(text, vectors, strict=True):
            lengths[word].append(float(vector.norm().detach()))
    found = matcher.word_magnitudes(texts, minimum_count=3)
    assert {each.word for each in found} == {word for word, own in lengths.items() if len(own) >= 3}
    for each in found:
        assert each.magnitude == pytest.approx(np.mean(lengths[each.word]), rel=1e-4)
    assert [each.magnitude for each in found] == sorted((each.magnitude for each in found), reverse=True)


def test_a_snippet_finds_the_best_regions_of_a_whole_collection(
    matcher: AlignmentModel, corpus: Corpus, store: FeatureStore
) -> None:
    images = list(store_images(store, [image.id for image in corpus]))
    snippet = tokens_of(corpus.images[0].captions[0])[:3]
    everywhere = []
    for number, image in enumerate(images):
        boxes, scores = matcher.localize(image, [snippet])
        # The proposals that a picture is scored by, and not the picture itself.
        own = slice(1, matcher.regions)
        everywhere += [
            (float(score), number, tuple(box)) for score, box in zip(scores[0, own], boxes[own].tolist(), strict=True)
        ]
    everywhere.sort(key=lambda entry: -entry[0])
    found, other = matcher.find_regions(images, [snippet, tokens_of("a dog")], 7)
    alone = matcher.find_regions(images, [tokens_of("a dog")], 7)[0]
    assert [each[:2] for each in other] == [each[:2] for each in alone]
    assert [(each.image, each.box) for each in found] == [entry[1:] for entry in everywhere[:7]]
    assert [each.score for each in found] == pytest.approx([entry[0] for entry in everywhere[:7]], rel=1e-4)
    first = {number: (score, number, box) for score, number, box in reversed(everywhere)}
    one_each = sorted(first.values(), key=lambda entry: -entry[0])[:7]
    found = matcher.find_regions(images, [snippet], 7, of_one=1)[0]
    assert [(each.image, each.box) for each in found] == [entry[1:] for entry in one_each]
    best = matcher.best_regions(images, [snippet])
    assert best[:, 0] == pytest.approx([first[k][0] if k in first else -np.inf for k in range(len(images))], rel=1e-4)
    longest = matcher.longest_regions(images, 7)
    regions = np.concatenate([image.regions[: matcher.regions - 1] for image in images if image.regions is not None])
    regions = regions.astype(np.float32) * float(matcher.network.scale)
    lengths = np.linalg.norm(
        regions @ matcher.network.regions.weight.detach().numpy().T + matcher.network.regions.bias.detach().numpy(),
        axis=1,
    )
    assert longest[0].score == pytest.approx(lengths.max(), rel=1e-4)
