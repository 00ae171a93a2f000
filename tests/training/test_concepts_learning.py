"""Learning paper 3: the concept network and the joint model, their losses, and what finished runs can do."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deixis.corpus import Corpus, Image, open_corpus
from deixis.errors import CannotError, DeixisError, InputError
from deixis.features.store import FeatureStore
from deixis.metrics.paper_tables import paper_tables
from deixis.model import has_own_score, store_images
from deixis.papers.concepts_order.loss import concept_loss, structured_ranking
from deixis.papers.concepts_order.task import ConceptsOrderKind, ConceptsOrderRecipe, OrderLossRecipe
from deixis.text.concept_words import Concept, ConceptVocabulary
from deixis.text.tokens import has_content, tokens_of
from deixis.text.twins import corpus_twins
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe, load_recipe, package_recipes
from deixis.training.run_models import load_run
from deixis.training.running import run_recipe
from tests.stores import make_store, random_boxes

CPU = torch.device("cpu")
REGIONS = {"backbone": "efficientnet-lite0", "crops": "whole", "regions": {"boxes": "grid", "count": 30}}
SMALL = {"hidden": 8, "word": 6}
ORDER = {
    "kind": "concepts-order",
    "corpus": "scenes",
    "model": SMALL,
    "regions": 6,
    "mismatched": 63,
    "schedule": {"epochs": 2, "learning_rate": 1e-2, "figure": "rsum"},
}
CAPTIONER = {
    "name": "captioner",
    "kind": "captioner",
    "corpus": "scenes",
    "features": "image",
    "model": {"cell": "lstm", **SMALL},
    "schedule": {"epochs": 1, "learning_rate": 1e-2, "figure": "perplexity", "lower_is_better": True},
}
SAMPLED = {"sampling": 0.5, "sampling_epochs": 2}
#: What a recipe learns from, and whether it generates.
ORDERS: dict[str, tuple[dict[str, Any], bool]] = {
    "ctx": ({"features": "image", "loss": {"generation": 0.0}}, False),
    "cnp-gen": ({"concepts": "RUN"}, True),
    "cnp-ctx-c": ({"features": "image", "concepts": "RUN", "model": {**SMALL, "fusion": "sum"}}, True),
    "cnp-ctx-gen": ({"features": "image", "concepts": "RUN"}, True),
    "cnp-places": ({"concepts": "RUN", "places": True, "loss": {"generation": 0.0}}, False),
    "ctx-gen-s": ({"features": "image", "loss": SAMPLED, "model": {**SMALL, "shared_words": True}}, True),
    "caption": ({"features": "image", "loss": {"matching": 0.0}}, True),
    "ctx-sen": ({"features": "image", "speaker": "caption", "loss": {"generation": 0.0}}, False),
    "ctx-sen-captioner": ({"features": "image", "speaker": "captioner", "loss": {"generation": 0.0}}, False),
    "cnp-whole": ({"concepts": "RUN", "regions": 0, "loss": {"generation": 0.0}}, False),
    "cnp-ctx-folds": (
        {"features": "image", "concepts": "RUN", "concept_folds": 3, "model": {**SMALL, "centred": True}},
        True,
    ),
    "ctx-gen-scaled": ({"features": "image", "model": {**SMALL, "scaled_state": True, "generator_dropout": 0.5}}, True),
}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen: list[Image] = []
    for split, count in (("train", 60), ("val", 15)):
        chosen += [image for image in whole if image.split == split][:count]
    return whole.with_images(chosen)


@pytest.fixture(scope="module")
def stores(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[FeatureStore]:
    """Context of 8 numbers; regions, and whole pictures beside them, of 5."""
    folder = tmp_path_factory.mktemp("stores")
    return [
        make_store(folder / "regions", corpus, random_boxes(20), channels=5, seed=2),
        make_store(folder / "image", corpus, seed=3, provenance={"regions": None}),
    ]


@pytest.fixture(scope="module")
def vocabulary(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = Counter(
        token for image in corpus for caption in image.captions for token in tokens_of(caption) if has_content(token)
    )
    path = tmp_path_factory.mktemp("vocabulary") / "concepts.tsv"
    ConceptVocabulary(Concept(word, "noun", count, (word,)) for word, count in counts.most_common(12)).save(path)
    return path


@pytest.fixture(scope="module")
def concept_settings(vocabulary: Path) -> dict[str, Any]:
    return {
        "name": "concepts",
        "kind": "concepts",
        "corpus": "scenes",
        "features": REGIONS,
        "vocabulary": {"file": str(vocabulary)},
        "regions": 6,
        "batch": 16,
        "schedule": {"epochs": 3, "learning_rate": 1e-2, "figure": "map.regional"},
    }


@pytest.fixture(scope="module")
def concept_run(
    concept_settings: dict[str, Any],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("concepts") / "run"
    recipe = check_recipe(concept_settings, "concepts")
    return folder, run_recipe(RecipeFile("", recipe), corpus, stores, folder, CPU).figures


def order_recipe(name: str, concepts: Path, **changes: Any) -> ConceptsOrderRecipe:
    settings = {**ORDER, **ORDERS[name][0], "name": name, **changes}
    if settings.get("concepts"):
        settings["concepts"] = str(concepts)
    recipe = check_recipe(settings, name)
    assert isinstance(recipe, ConceptsOrderRecipe)
    return recipe


@pytest.fixture(scope="module")
def runs(
    concept_run: tuple[Path, dict[str, float]],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, dict[str, float]]]:
    folder, made = tmp_path_factory.mktemp("runs"), {}
    captioner = check_recipe(CAPTIONER, "captioner")
    run_recipe(RecipeFile("", captioner), corpus, stores[1:], folder / "captioner", CPU)
    for name in ORDERS:
        recipe = order_recipe(name, concept_run[0])
        if recipe.speaker:
            recipe = msgspec.structs.replace(recipe, speaker=str(folder / recipe.speaker))
        made[name] = (folder / name, run_recipe(RecipeFile("", recipe), corpus, stores, folder / name, CPU).figures)
    return made


def test_the_concept_run_s_result_has_the_figures_of_its_validation(
    concept_run: tuple[Path, dict[str, float]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    folder, figures = concept_run
    (result,) = evaluate_run(folder, corpus, stores, CPU, split="val")
    metrics: Any = result.metrics["concepts"]
    for name in ("whole", "regional"):
        assert metrics[name]["map"] == pytest.approx(figures[f"map.{name}"], abs=1e-4)
        own = [row[name] for row in metrics["by_concept"].values()]
        assert metrics[name]["map"] == pytest.approx(np.mean(own))
    assert result.counts["concepts"] + result.counts["left_out"] == 12


def test_concepts_that_features_show_are_learned(
    concept_settings: dict[str, Any], corpus: Corpus, vocabulary: Path, tmp_path: Path
) -> None:
    """Each picture has one region a concept of its captions, and a vector that is their mean."""
    words = ConceptVocabulary.load(vocabulary)
    labels = {image.id: words.labels(map(tokens_of, image.captions)) for image in corpus}

    def region_of_each(image: Image) -> Any:
        return [[10 * number, 0, 10 * number + 8, 8] for number in np.flatnonzero(labels[image.id])]

    def features(image: Image) -> dict[str, Any]:
        rows = np.eye(len(words))[labels[image.id]]
        return {"image": rows.mean(0), "regions": rows}

    store = make_store(tmp_path / "store", corpus, region_of_each, channels=len(words), features=features)
    settings = {**concept_settings, "regions": 12, "dropout": 0.0}
    settings["schedule"] = {"epochs": 40, "learning_rate": 0.1, "figure": "map.regional"}
    recipe = check_recipe(settings, "concepts")
    figures = run_recipe(RecipeFile("", recipe), corpus, [store], tmp_path / "run", CPU).figures
    assert figures["map.regional"] > 97
    assert figures["map.whole"] > 90


@pytest.mark.parametrize("name", ORDERS)
def test_the_finished_matcher_gets_the_figures_of_its_validation(
    name: str, runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    folder, figures = runs[name]
    metrics: Any = evaluate_run(folder, corpus, stores, CPU, split="val")[0].metrics
    found = {f"{way}.r@{k}": metrics[way][f"r@{k}"] for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
    assert found == pytest.approx({name: figures[name] for name in found}, abs=1e-3)


@pytest.mark.parametrize("name", ORDERS)
def test_abilities_are_those_of_the_network(
    name: str, runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    matcher = load_run(runs[name][0], CPU)
    assert matcher.abilities >= {"embed_images", "embed_texts", "score"}
    assert not matcher.abilities & {"localize", "ground", "align"}
    assert not has_own_score(matcher)
    assert ("describe" in matcher.abilities) == ORDERS[name][1]
    image = next(iter(store_images(stores[1], [corpus.split("val").images[0].id], regions=stores[0])))
    np.testing.assert_allclose(np.linalg.norm(matcher.embed_images([image]), axis=1), 1, rtol=1e-5)
    assert not matcher.embed_texts([("qwertz",)]).any(), "zeros for a text of which no word is known"
    if "describe" in matcher.abilities:
        spoken = matcher.describe(image, 3)
        assert 1 <= len(spoken) <= 3
        assert all(not word.startswith("<") for each in spoken for word in each.tokens)
        scores = [each.score for each in spoken]
        assert scores == sorted(scores, reverse=True)
    else:
        with pytest.raises(CannotError, match="cannot describe; it can: embed_images"):
            matcher.describe(image)
    assert ("log_likelihood" in matcher.abilities) == ORDERS[name][1]


def test_a_recipe_of_a_concept_network_is_trained_once_and_kept(
    concept_settings: dict[str, Any],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    lines = [
        f'name = "concepts"\nkind = "concepts"\ncorpus = "scenes"\nfeatures = "regions"\nregions = 6\nbatch = 16\n'
        f'vocabulary = {{ file = "{concept_settings["vocabulary"]["file"]}" }}\n'
        f'schedule = {{ epochs = 1, learning_rate = 1e-2, figure = "map.regional" }}\n'
    ]
    (tmp_path / "concepts.toml").write_text("".join(lines))
    recipe = order_recipe("cnp-gen", tmp_path / "concepts.toml")
    first = ConceptsOrderKind().task(recipe, corpus, stores, CPU)
    kept = list((tmp_path / "cache" / "runs").iterdir())
    assert len(kept) == 1
    before = (kept[0] / "log.jsonl").read_bytes()
    second = ConceptsOrderKind().task(recipe, corpus, stores, CPU)
    assert (kept[0] / "log.jsonl").read_bytes() == before
    for task in (first, second):
        assert task.module.concepts is not None
        assert not any(value.requires_grad for value in task.module.concepts.parameters())
    assert first.predicted[0] is not None
    torch.testing.assert_close(first.predicted, second.predicted)


def test_the_likelihood_of_held_out_sentences_is_reported(
    runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    folder, figures = runs["cnp-ctx-c"]
    assert "log_likelihood" not in runs["ctx"][1]
    matcher: Any = load_run(folder, CPU)
    images = corpus.split("val").images
    total, count = 0.0, 0
    for image, features in zip(
        images, store_images(stores[1], [image.id for image in images], regions=stores[0]), strict=True
    ):
        ids = torch.from_numpy(matcher.text.transform([tokens_of(caption) for caption in image.captions]))
        with torch.no_grad():
            fused = matcher.network.fuse(*matcher.sources([features])).expand(len(ids), -1)
            total -= float(matcher.network.generator.negative_log_likelihood(fused, ids).sum())
        count += len(ids)
        captions = [tokens_of(caption) for caption in image.captions]
        each = -matcher.network.generator.negative_log_likelihood(fused, ids).detach().numpy()
        np.testing.assert_allclose(matcher.log_likelihood([features, features], captions), [each, each], rtol=1e-4)
    assert figures["log_likelihood"] == pytest.approx(total / count, rel=1e-4)
    assert matcher.log_likelihood([features], [()]).shape == (1, 1), "an empty text has a likelihood, too"


@pytest.mark.parametrize(("by", "name"), [("caption", "ctx-sen"), ("captioner", "ctx-sen-captioner")])
def test_a_speaker_s_sentences_replace_pictures(
    by: str,
    name: str,
    runs: dict[str, tuple[Path, dict[str, float]]],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    tmp_path: Path,
) -> None:
    """Any model that describes pictures can speak; the finished run has a copy of it."""
    speaker = load_run(runs["caption"][0].parent / by, CPU)
    reader: Any = load_run(shutil.copytree(runs[name][0], tmp_path / "moved"), CPU)
    for image in store_images(stores[1], [image.id for image in corpus.split("val").images[:3]], regions=stores[0]):
        words = speaker.describe(image, 1)[0].tokens
        ids = torch.from_numpy(reader.text.transform([words, ("a",) * 50]))[:1]
        with torch.no_grad():
            expected = F.normalize(reader.network.fusion.sentences(ids)).numpy()
        np.testing.assert_allclose(reader.embed_images([image]), expected, atol=1e-5)


def test_a_speaker_must_describe_pictures(
    runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path
) -> None:
    recipe = msgspec.structs.replace(order_recipe("ctx-sen", tmp_path), speaker=str(runs["ctx"][0]))
    with pytest.raises(DeixisError, match="does not describe pictures"):
        ConceptsOrderKind().task(recipe, corpus, stores, CPU)


def test_concepts_of_training_pictures_are_predicted_without_them(
    concept_run: tuple[Path, dict[str, float]], corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path
) -> None:
    """A picture's own captions do not change its predictions if it is in another fold than those trained on."""
    kind = ConceptsOrderKind()
    recipe = order_recipe("cnp-ctx-folds", concept_run[0])
    task = kind.task(recipe, corpus, stores, CPU)
    in_fold = kind.task(msgspec.structs.replace(recipe, concept_folds=1), corpus, stores, CPU)
    assert task.predicted[0] is not None
    assert in_fold.predicted[0] is not None
    assert (task.predicted[0] != in_fold.predicted[0]).any(1).all()
    assert torch.equal(task.predicted[1], in_fold.predicted[1]), "others are predicted by the network of all"
    # Other captions of picture 0, in fold 0 of 3: only the folds that trained on it predict differently.
    first = task.data.image_ids[0]
    exchanged = corpus.with_images(
        msgspec.structs.replace(image, captions=corpus.images[7].captions) if image.id == first else image
        for image in corpus
    )
    changed = kind.task(recipe, exchanged, stores, CPU).predicted[0]
    same = (changed == task.predicted[0]).all(1).tolist()
    assert all(same[::3])
    assert not any(same[1::3] + same[2::3])


def test_without_regions_concepts_are_those_of_the_whole_picture(
    concept_run: tuple[Path, dict[str, float]],
    runs: dict[str, tuple[Path, dict[str, float]]],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
) -> None:
    reader: Any = load_run(runs["cnp-whole"][0], CPU)
    image = next(iter(store_images(stores[1], [corpus.images[0].id], regions=stores[0])))
    concepts = reader.sources([image])[0]
    whole = torch.from_numpy(np.asarray(image.whole, np.float32))[None]
    torch.testing.assert_close(concepts, torch.sigmoid(reader.predictor.network(whole)))


def test_a_concept_network_can_share_the_context_s_features(
    concept_settings: dict[str, Any], corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path
) -> None:
    settings = {**concept_settings, "features": "image", "regions": 0}
    settings["schedule"] = {**settings["schedule"], "figure": "map.whole"}
    recipe = check_recipe(settings, "concepts")
    run_recipe(RecipeFile("", recipe), corpus, stores[1:], tmp_path / "run", CPU)
    order = order_recipe("cnp-ctx-gen", tmp_path / "run", regions=0)
    assert len(ConceptsOrderKind().features(order)) == 1
    run_recipe(RecipeFile("", order), corpus, stores[1:], tmp_path / "order", CPU)
    metrics: Any = evaluate_run(tmp_path / "order", corpus, stores[1:], CPU, split="val")[0].metrics
    assert metrics["mean_recall"] > 0
    with pytest.raises(DeixisError, match="set regions = 0"):
        ConceptsOrderKind().features(msgspec.structs.replace(order, regions=6))


def test_a_concept_network_learns_from_where_a_concept_is_seen_best(
    concept_settings: dict[str, Any], corpus: Corpus, vocabulary: Path, tmp_path: Path
) -> None:
    """Whole pictures are noise, so what is learned is learned from regions."""
    words = ConceptVocabulary.load(vocabulary)
    labels = {image.id: words.labels(map(tokens_of, image.captions)) for image in corpus}
    random = np.random.default_rng(0)

    def features(image: Image) -> dict[str, Any]:
        return {"image": random.normal(size=len(words)) / 10, "regions": np.eye(len(words))[labels[image.id]]}

    def region_of_each(image: Image) -> Any:
        return [[10 * number, 0, 10 * number + 8, 8] for number in np.flatnonzero(labels[image.id])]

    store = make_store(tmp_path / "store", corpus, region_of_each, channels=len(words), features=features)
    found = {}
    for way in ("whole", "maximum"):
        settings = {**concept_settings, "regions": 12, "dropout": 0.0, "trained_on": way}
        settings["schedule"] = {"epochs": 40, "learning_rate": 0.1, "figure": "map.regional"}
        recipe = RecipeFile("", check_recipe(settings, "concepts"))
        found[way] = run_recipe(recipe, corpus, [store], tmp_path / way, CPU).figures["map.regional"]
    assert found["maximum"] > found["whole"] + 15, found


def test_generated_sentences_are_scored(
    runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    folder, figures = runs["ctx-gen-scaled"]
    results = evaluate_run(folder, corpus, stores, CPU, split="val")
    metrics: Any = next(result for result in results if result.protocol.name == "captioning").metrics
    assert {"captions", "different", "picture_by_description"} <= metrics.keys()
    assert metrics["training"]["perplexity"] == pytest.approx(figures["perplexity"])
    captions = [tokens_of(caption) for image in corpus.split("val") for caption in image.captions]
    words = sum(map(len, captions)) + len(captions)
    expected = np.exp(-figures["log_likelihood"] * len(captions) / words)
    assert figures["perplexity"] == pytest.approx(expected, rel=1e-5)


def test_the_total_is_equation_4(
    concept_run: tuple[Path, dict[str, float]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    recipe = order_recipe("cnp-ctx-gen", concept_run[0], loss={"generation": 0.3})
    task = ConceptsOrderKind().task(recipe, corpus, stores, CPU)
    batch = next(iter(task.batches(1)))
    assert len(batch.pairs) == 64
    found = task.loss(batch)
    network = task.module.network
    assert network.generator is not None
    assert task.predicted[0] is not None
    fused = network.fuse(task.predicted[0][batch.images], task.data.images[batch.images])
    ids = task.data.texts[batch.pairs]
    cosines = (F.normalize(fused) @ network.embed_texts(ids).T).tolist()
    matching, report = 0.0, 0.0
    owners = [int(task.data.image_of[row]) for row in batch.pairs]
    strings = [task.data.captions[row] for row in batch.pairs.tolist()]
    for i in range(64):
        for k in range(64):
            if owners[i] != owners[k] and strings[i] != strings[k]:
                matching += max(0.0, 0.2 - cosines[i][i] + cosines[i][k])
                matching += max(0.0, 0.2 - cosines[i][i] + cosines[k][i])
        own = network.generator.negative_log_likelihood(fused[i : i + 1], ids[i : i + 1])
        report += own.item()
    assert found.total.item() == pytest.approx((matching + 0.3 * report) / 64, rel=1e-4)


def test_exchanged_captions_are_mismatches_of_their_pictures_where_that_is_asked_for(
    corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path
) -> None:
    recipe = order_recipe("ctx", tmp_path, loss={"generation": 0.0, "order": 3.0})
    task = ConceptsOrderKind().task(recipe, corpus, stores, CPU)
    false = {(own.image, own.true): own.false for own in corpus_twins(corpus.split("train"))}
    batch = next(iter(task.batches(1)))
    found, network = task.loss(batch), task.module.network
    parts: Any = found.parts
    total, twins = 0.0, 0
    for row in batch.pairs.tolist():
        number = int(task.data.image_of[row])
        twin = false.get((task.data.image_ids[number], " ".join(task.data.captions[row])))
        if twin is None:
            continue
        twins += 1
        ids = torch.from_numpy(task.text.transform([task.data.captions[row], tuple(twin.split(" "))]))
        picture = F.normalize(network.fuse(None, task.data.images[number][None]))
        true, exchanged = (picture @ network.embed_texts(ids).T)[0].tolist()
        total += max(0.0, 0.2 - true + exchanged)
    assert 0 < twins < len(batch.pairs)
    assert float(parts["order"].detach()) == pytest.approx(total / len(batch.pairs), rel=1e-4)
    expected = parts["matching"] + 3 * parts["order"]
    assert float(found.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    figures = run_recipe(RecipeFile("", recipe), corpus, stores, tmp_path / "run", CPU).figures
    results = evaluate_run(tmp_path / "run", corpus, stores, CPU, split="val")
    order: Any = results[-1].metrics["order"]
    assert figures["order"] == pytest.approx(order["accuracy"], abs=0.1)


def test_gradients_of_the_ranking_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    owner = torch.tensor([0, 0, 1, 2])
    rows = [torch.randn(count, 3, generator=generator, dtype=torch.double, requires_grad=True) for count in (3, 4)]
    mismatch, mask = owner[:, None] != torch.arange(3), torch.tensor([True, True, True, False])

    def ranking(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        return structured_ranking(F.normalize(images), F.normalize(texts), owner, mismatch, 0.2, mask)

    assert torch.autograd.gradcheck(ranking, tuple(rows))


def test_cross_entropy_is_equation_1_with_labels_of_both_signs_and_the_printed_form_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 5, generator=generator), torch.randint(0, 2, (4, 5), generator=generator).float()
    signs = 2 * labels - 1
    expected = torch.log(1 + torch.exp(-signs * logits)).sum(1).mean()
    torch.testing.assert_close(concept_loss(logits, labels, "cross-entropy"), expected)
    printed = torch.log(1 + torch.exp(-labels * torch.sigmoid(logits))).sum(1).mean()
    torch.testing.assert_close(concept_loss(logits, labels, "printed"), printed)
    # What is absent costs log 2 whatever is predicted: "everything is there" is best.
    everything = torch.full((4, 5), 50.0)
    assert concept_loss(everything, labels, "printed") < concept_loss(50 * signs, labels, "printed") + 1e-4
    assert concept_loss(50 * signs, labels, "cross-entropy") < 1e-4 < concept_loss(everything, labels, "cross-entropy")


def test_the_share_of_sampled_words_rises_to_what_is_asked() -> None:
    loss = OrderLossRecipe(sampling=0.4, sampling_epochs=5)
    assert [round(loss.sampled(epoch), 3) for epoch in (1, 2, 3, 5, 9)] == [0, 0.1, 0.2, 0.4, 0.4]


def test_recipes_that_cannot_be_learned_are_refused(concept_run: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        order_recipe("ctx", tmp_path, features=None)
    with pytest.raises(InputError, match="tokens"):
        order_recipe("ctx", tmp_path, text={"kind": "tfidf"})
    with pytest.raises(InputError, match="speaker"):
        order_recipe("cnp-ctx-gen", tmp_path, speaker="caption")
    with pytest.raises(InputError, match="nothing to learn"):
        order_recipe("ctx", tmp_path, loss={"matching": 0.0, "generation": 0.0})
    with pytest.raises(DeixisError, match="not of a concept network"):
        ConceptsOrderKind().features(check_recipe({**ORDER, "name": "x", "concepts": "two-branch/sentences-bi"}, "x"))  # type: ignore[arg-type]
    assert len(ConceptsOrderKind().features(order_recipe("cnp-ctx-gen", concept_run[0]))) == 2


def test_concepts_order_recipes_have_the_papers_numbers() -> None:
    """Section 4.2 and Tables 1 to 4: what differs from row to row is the row's subject, and nothing else does."""
    seen: set[str] = set()
    for name in package_recipes():
        paper, _, row = name.partition("/")
        row = row.removeprefix("coco-")
        # Concepts of the rows with a centred context are those of whole pictures, or of these and 19 regions.
        centred, row = row.startswith("centred-"), row.removeprefix("centred-")
        recipe: Any = load_recipe(name).recipe
        if paper != "concepts-order" or row.startswith(("scenes", "curve")) or recipe.kind != "concepts-order":
            continue
        seen |= set(recipe.rows)
        words = set(row.split("-"))
        whole = row.startswith(("lambda", "ours"))
        assert (recipe.model.hidden, recipe.model.word, recipe.model.longest) == (1024, 300, 50), name
        assert (recipe.loss.margin, recipe.mismatched) == (0.2, 128), name
        regions = 19 if "regions" in words else 0
        assert recipe.regions == (regions if centred and recipe.concepts else 50), name
        assert bool(recipe.concepts) == (whole or "cnp" in words), name
        assert (recipe.features is not None) == (row not in ("cnp", "cnp-gen")), name
        assert recipe.model.fusion == ("sum" if row == "cnp-ctx-c" else "gate"), name
        assert recipe.model.shared_words == (row == "ctx-gen-e"), name
        assert bool(recipe.loss.sampling) == (row == "ctx-gen-s"), name
        generates = row == "caption" or whole or "gen" in words
        # Rows with a centred context have the weight that validation chose.
        chosen = 0.1 if centred else 1.0
        expected = float(row.removeprefix("lambda-")) if row.startswith("lambda") else chosen * generates
        assert recipe.loss.generation == expected, name
        assert bool(recipe.loss.order) == ("order" in words), name
        if recipe.features is not None:
            assert recipe.feature_recipe.crops == ("centre" if row == "ctx-1-crop" else "ten"), name
            weak = row == "ours"
            assert recipe.feature_recipe.backbone == f"efficientnet-lite{0 if weak else 2}", name
        if recipe.concepts:
            # A run stands in the folder that `deixis reproduce` gives it.
            of = recipe.concepts.removeprefix("runs/").removesuffix("-seed0")
            network: Any = load_recipe(of).recipe
            assert (of == recipe.concepts) == (network.kind == "concepts"), name
            assert network.vocabulary.size == 256, name
            backbone = network.feature_recipe.backbone
            assert backbone == f"efficientnet-lite{0 if row.startswith('ours') else 2}", "the context alone is stronger"
    for table in ("table2", "table3", "table4"):
        for corpus in ("flickr30k", "mscoco"):
            rows = paper_tables()[f"concepts-order/{table}-{corpus}"].rows
            ours = [row for row in rows if table != "table4" or row.id.startswith("ours")]
            missing = [row.id for row in ours if f"concepts-order/{table}-{corpus}/{row.id}" not in seen]
            assert not missing, (table, corpus)
