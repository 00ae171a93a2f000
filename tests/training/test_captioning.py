"""Learning to describe (DVSA): runs on pictures and on an aligner's snippets, and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deixis.corpus import Corpus, Image, open_corpus
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.captioning_protocol import best_sentences
from deixis.metrics.protocols import Pictures
from deixis.model import store_images
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.papers.dvsa.captioner_task import CaptionerKind, naming
from deixis.text.tokens import tokens_of
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.run_models import load_run
from deixis.training.run_records import StepRecord
from deixis.training.running import run_recipe
from deixis.training.runs import read_log
from tests.stores import drawn_store, make_store, random_boxes

CPU = torch.device("cpu")
REGIONS = {"backbone": "efficientnet-lite0", "regions": {"boxes": "grid", "count": 30}}
SETTINGS: dict[str, Any] = {
    "kind": "captioner",
    "corpus": "scenes",
    "features": REGIONS,
    "model": {"word": 8, "hidden": 16, "dropout": 0.1},
    "text": {"kind": "tokens", "minimum_count": 2},
    "batch": 25,
    "decoding": {"beam": 3, "longest": 12},
    "schedule": {
        "epochs": 2,
        "learning_rate": 5e-3,
        "optimizer": "rmsprop",
        "clip": {"kind": "value", "at": 5.0},
        "figure": "cider_d",
    },
}
ALIGNER: dict[str, Any] = {
    "name": "aligner",
    "kind": "alignment",
    "corpus": "scenes",
    "features": REGIONS,
    "model": {"dim": 8, "word": 8},
    "word_vectors": "random",
    "regions": 4,
    "schedule": {"epochs": 1, "learning_rate": 1e-3},
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen: list[Image] = []
    for split, count in (("train", 20), ("val", 8)):
        chosen += [image for image in whole if image.split == split][:count]
    return whole.with_images(chosen)


@pytest.fixture(scope="module")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_store(tmp_path_factory.mktemp("store") / "proposals", corpus, random_boxes(10), seed=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))


def run(settings: dict[str, Any], corpus: Corpus, store: FeatureStore, folder: Path) -> dict[str, float]:
    recipe = check_recipe({"name": "captions", **settings}, "captions")
    return dict(run_recipe(RecipeFile("", recipe), corpus, [store], folder, CPU).figures)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_the_finished_matcher_gets_the_figures_of_its_validation(
    cell: str, corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "model": {**SETTINGS["model"], "cell": cell}}
    figures = run(settings, corpus, store, tmp_path / "run")
    results = {
        result.protocol.name: result for result in evaluate_run(tmp_path / "run", corpus, [store], CPU, split="val")
    }
    metrics: Any = results["captioning"].metrics
    assert metrics["captions"] == pytest.approx({name: figures[name] for name in metrics["captions"]}, abs=1e-6)
    assert results["image-text ranking"].metrics["text_to_image"]
    log = [record.loss for record in read_log(tmp_path / "run") if isinstance(record, StepRecord)]
    assert metrics["training"]["loss_first_10"] == pytest.approx(np.mean(log[:10]))
    assert metrics["training"]["perplexity"] == figures["perplexity"]
    matcher = load_run(tmp_path / "run", CPU)
    assert isinstance(matcher, CaptionerModel)
    images = list(store_images(store, [image.id for image in corpus.split("val")]))
    known = {tokens_of(caption) for image in corpus for caption in image.captions if image.split == "train"}
    report = [matcher.describe(image, 1)[0].tokens for image in images]
    assert metrics["different"] == figures["different"] == pytest.approx(100 * len(set(report)) / len(report))
    assert metrics["novel"] == pytest.approx(100 * np.mean([text not in known for text in report]))
    # Perplexity: the geometric mean over words and ends.
    logs = words = 0.0
    for image, features in zip(corpus.split("val"), images, strict=True):
        for caption in image.captions:
            logs += float(matcher.log_likelihood([features], [tokens_of(caption)])[0, 0])
            words += len(tokens_of(caption)) + 1
    assert figures["perplexity"] == pytest.approx(np.exp(-logs / words), rel=1e-4)


def test_frequency_biases_give_a_lower_loss_at_the_start(corpus: Corpus, store: FeatureStore) -> None:
    """Section 5: with them the model predicts words by their frequency right away."""
    losses = []
    for biases in (False, True):
        settings = {**SETTINGS, "model": {**SETTINGS["model"], "frequency_biases": biases}}
        recipe: Any = check_recipe({"name": "captions", **settings}, "captions")
        task = CaptionerKind().task(recipe, corpus, [store], CPU)
        losses.append(float(task.loss(next(iter(task.batches(1)))).total.detach()))
    assert losses[1] < losses[0] - 0.5


def test_training_goes_on_from_a_run_with_cider_d_as_reward(
    corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    run(SETTINGS, corpus, store, tmp_path / "first")
    further = {**SETTINGS, "start": str(tmp_path / "first"), "reward": {"samples": 3, "others": 0.5}}
    recipe: Any = check_recipe({"name": "captions", **further}, "captions")
    task = CaptionerKind().task(recipe, corpus, [store], CPU)
    first = load_run(tmp_path / "first", CPU)
    assert isinstance(first, CaptionerModel)
    begun = task.module.state_dict()
    assert all(torch.equal(value, begun[name]) for name, value in first.network.state_dict().items())
    # What is said more often is what gets more reward.
    losses = [task.loss(next(iter(task.batches(1)))) for _ in range(2)]
    assert losses[0].total != losses[1].total
    assert set(losses[0].parts) == {"cider_d", "likelihood"}
    optimizer = torch.optim.Adam(task.module.parameters(), lr=1e-2)
    rewards = []
    for epoch in range(8):
        for batch in task.batches(epoch):
            loss = task.loss(batch)
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            rewards.append(float(loss.parts["cider_d"]))
    assert np.mean(rewards[-8:]) > 1.3 * np.mean(rewards[:4])
    # It keeps its words, whatever else there is to learn from.
    other: Any = check_recipe(
        {"name": "captions", **further, "text": {"kind": "tokens", "minimum_count": 1}}, "captions"
    )
    again = CaptionerKind().task(other, corpus, [store], CPU)
    assert again.text.vocabulary.words == task.text.vocabulary.words
    larger = {**further, "model": {**SETTINGS["model"], "hidden": 20}}
    with pytest.raises(DeixisError, match="no such captioner"):
        CaptionerKind().task(check_recipe({"name": "captions", **larger}, "captions"), corpus, [store], CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["rmsprop", "sgd", "adagrad", "adadelta", "adam"])
def test_every_optimizer_of_section_5_trains(
    optimizer: str, corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    schedule = {**SETTINGS["schedule"], "optimizer": optimizer, "epochs": 1}
    schedule |= {"figure": "perplexity", "lower_is_better": True}
    assert run({**SETTINGS, "schedule": schedule}, corpus, store, tmp_path / "run")["perplexity"] < 1000


@pytest.mark.parametrize("context", [False, True])
def test_regions_are_described_from_an_aligner_s_snippets(
    context: bool, corpus: Corpus, store: FeatureStore, tmp_path: Path
) -> None:
    recipe = check_recipe(ALIGNER, "aligner")
    run_recipe(RecipeFile("", recipe), corpus, [store], tmp_path / "aligner", CPU)
    schedule = {**SETTINGS["schedule"], "figure": "perplexity", "lower_is_better": True}
    settings = {**SETTINGS, "pairs": "regions", "context": context, "schedule": schedule}
    settings["aligner"] = str(tmp_path / "aligner")
    settings["model"] = {**SETTINGS["model"], "centred": True}
    made: Any = check_recipe({"name": "captions", **settings}, "captions")
    data = CaptionerKind().task(made, corpus, [store], CPU).data
    aligner: Any = load_run(tmp_path / "aligner", CPU)
    images = [image for image in corpus if image.split == "train"]
    place = 0
    for number, features in enumerate(store_images(store, [image.id for image in images])):
        regions = np.concatenate([features.image[None], store.regions(images[number].id)])
        captions = [tokens_of(caption) for caption in images[number].captions]
        for tokens, snippets in zip(captions, aligner.align_captions(features, captions)[1], strict=True):
            for snippet in snippets:
                words = naming(tokens[snippet.start : snippet.end])
                if not words:
                    continue
                expected = [regions[snippet.region], features.image] if context else [regions[snippet.region]]
                assert np.array_equal(data.inputs[data.input_of[place]].numpy(), np.concatenate(expected))
                assert data.lengths[place] == len(words) + 1
                assert data.image_of[place] == number
                place += 1
    assert place == len(data.lengths)
    run(settings, corpus, store, tmp_path / "run")
    matcher: Any = load_run(tmp_path / "run", CPU)
    # As many regions as its aligner had, the picture itself among them.
    assert (matcher.run.by_regions, matcher.run.regions_kept) == (True, aligner.regions - 1)
    rows = data.inputs.float().view(len(data.inputs), 1 + context, -1)
    torch.testing.assert_close(matcher.network.centre, torch.nn.functional.normalize(rows, dim=2).mean(0))
    image = next(store_images(store, [corpus.images[0].id]))
    assert len(matcher.describe_regions(image, 1)) == len(store.regions(corpus.images[0].id))
    # Judged at drawn boxes, where there is a store of them.
    results = evaluate_run(
        tmp_path / "run", corpus, [store, drawn_store(corpus, tmp_path / "chains")], CPU, split="val"
    )
    measured = {result.protocol.name for result in results}
    assert "region captioning" in measured
    # A region by itself has no whole picture beside it.
    assert ("region-phrase ranking" in measured) is not context
    settings["aligner"] = str(tmp_path / "run")
    with pytest.raises(DeixisError, match="does not learn to align"):
        run(settings, corpus, store, tmp_path / "another")


def test_the_best_training_sentences_are_those_of_the_whole_table(
    corpus: Corpus, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Table:
        def score(self, images: Any, texts: Any) -> Any:
            return scores[: len(images), [int(text[0]) for text in texts]]

    monkeypatch.setattr("deixis.metrics.captioning_protocol.BLOCK", 3)
    scores = np.random.default_rng(0).normal(size=(8, 11))
    images = Pictures(corpus, "val", store, learned_from_boxes=False).all_features()
    found = best_sentences(Table(), images, [(str(number),) for number in range(11)], 4)
    assert found == np.argsort(-scores, axis=1)[:, :4].tolist()


@pytest.mark.parametrize(
    ("snippet", "named"),
    [
        ("with a red hat in the", "a red hat"),
        ("a man and a woman .", "a man and a woman"),
        ("is running through", "running"),
        ("the ,", ""),
        ("of", ""),
    ],
)
def test_a_snippet_names_what_stands_between_the_words_that_join_it(snippet: str, named: str) -> None:
    assert naming(tuple(snippet.split())) == tuple(named.split())
