"""CCA and two-branch runs: what a run says of its validation is what the finished matcher gets from the protocols."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from deixis.corpus import Corpus, Image, open_corpus
from deixis.corpus.boxes import box_array, merge
from deixis.errors import DeixisError, InputError
from deixis.features.feature_recipe import made_by
from deixis.features.store import FeatureStore
from deixis.files import taken
from deixis.metrics.former_names import RECIPES
from deixis.metrics.ranking import evaluate_ranking
from deixis.metrics.results import load, save
from deixis.metrics.score_blocks import MatrixScores
from deixis.model import has_own_score, store_images
from deixis.papers.entities_cca.weighted_distance import WeightedDistance
from deixis.papers.two_branch.combined_distance import CombinedDistance
from deixis.papers.two_branch.joint_task import JointKind, JointModule
from deixis.papers.two_branch.task import TwoBranchKind
from deixis.text.featurizers import TextRecipe, fit_text_features
from deixis.text.tokens import tokens_of
from deixis.training import reproducing
from deixis.training.combining import Combination, evaluate_combined, phrase_finder
from deixis.training.evaluating import evaluate_run
from deixis.training.inputs import find_store
from deixis.training.kinds import combinations, kind_of
from deixis.training.phrase_pairs import phrase_data
from deixis.training.recipe import Recipe, RecipeFile, check_recipe, load_recipe, package_recipes
from deixis.training.recipe_reference import reference
from deixis.training.reproducing import Material, recipes_of, reproduce
from deixis.training.run_models import load_run
from deixis.training.run_records import batch_means
from deixis.training.running import run_recipe
from deixis.training.runs import read_log, read_model, read_weights
from deixis.training.validation import LocalizationCheck, retrieval_figures
from tests.stores import make_store, random_boxes

CPU = torch.device("cpu")
REGIONS = {"backbone": "efficientnet-lite0", "regions": {"boxes": "grid", "count": 30}}
SCHEDULE = {"epochs": 2, "learning_rate": 1e-2}
SENTENCES = {
    "kind": "sentences",
    "features": "image",
    "text": {"kind": "tfidf"},
    "model": {"kind": "embedding", "image": [16, 8], "text": [16, 8]},
    "loss": {"kind": "ranking", "weights": [1.0, 1.5, 0.0, 0.05], "hardest": 10},
    "sampler": {"batch": 64, "neighbourhood": "sampling"},
    "schedule": {**SCHEDULE, "figure": "rsum"},
}
PHRASES: dict[str, Any] = {
    **SENTENCES,
    "kind": "phrases",
    "features": REGIONS,
    "loss": {"kind": "ranking"},
    "sampler": {"batch": 64, "neighbourhood": "sampling"},
    "schedule": {**SCHEDULE, "figure": "localization.r@1"},
    "regions": 20,
}
SIMILARITY = {"model": {"kind": "similarity", "image": [16, 8], "text": [16, 8]}, "loss": {"kind": "logistic"}}
LSTM = {
    "text": {"kind": "tokens"},
    "model": {"kind": "embedding", "image": [8], "text": [8], "recurrent": {"word": 6, "hidden": 7}},
}
#: Recipes that reproduce nothing of a paper: variants of our own, and those of the demo.
BESIDE_THE_PAPERS = {*RECIPES.values(), "two-branch/phrases-sampling-last"}
#: What a store of the papers' proposals says of itself.
PROVENANCE: dict[str, Any] = {
    "backbone": "efficientnet-lite2",
    "crops": "whole",
    "side": 384,
    "regions": {
        "boxes": "edge-boxes",
        "count": 200,
        "features": "align",
        "context": False,
        "coordinates": False,
        "saw_boxes": False,
    },
}
FIT = {"kind": "cca", "features": REGIONS, "text": {"kind": "tfidf"}, "ridges": [0.1, 1.0], "powers": [1.0, 4.0]}
RUNS: dict[str, dict[str, Any]] = {
    "sentences": SENTENCES,
    "sentences-similarity": {**SENTENCES, **SIMILARITY},
    "sentences-lstm": {**SENTENCES, **LSTM, "loss": {"kind": "infonce"}},
    "phrases": PHRASES,
    "phrases-centred": {**PHRASES, "model": {**PHRASES["model"], "centred": True}},
    "phrases-similarity": {**PHRASES, **SIMILARITY},
    "joint": {
        **SENTENCES,
        "kind": "joint",
        "features": REGIONS,
        "model": {**PHRASES["model"], "centred": True},
        "phrase_loss": {"kind": "infonce"},
        "phrase_sampler": {"batch": 16, "negatives": "batch"},
        "regions": 20,
    },
    "cca-sentences": {**FIT, "pairs": "sentences"},
    "cca-stacked": {
        **FIT,
        "pairs": "sentences",
        "auxiliary": {"features": REGIONS, "exemplars": 2, "unit_regions": True},
    },
    "cca-phrases": {**FIT, "pairs": "phrases", "exemplars": 3, "regions": 20, "unit_regions": True},
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen: list[Image] = []
    for split, count in (("train", 60), ("val", 15)):
        chosen += [image for image in whole if image.split == split][:count]
    return whole.with_images(chosen)


@pytest.fixture(scope="module")
def stores(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[FeatureStore]:
    folder = tmp_path_factory.mktemp("stores")

    def merged(image: Image) -> list[list[float]]:
        return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]

    def some(image: Image) -> Any:
        # At least one, as every proposal method gives.
        return np.concatenate([drawn(image), [[0, 0, image.width, image.height]]])

    drawn = random_boxes(30)
    return [
        make_store(folder / "chains", corpus, merged, seed=1, provenance={"regions": {"boxes": "chains"}}),
        make_store(folder / "proposals", corpus, some, seed=2),
        make_store(folder / "image", corpus, seed=3, provenance={"regions": None}),
    ]


@pytest.fixture(scope="module")
def runs(
    corpus: Corpus, stores: Sequence[FeatureStore], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, float]]]:
    """Each run of `RUNS`, with the figures that it kept."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = {}
        for name, settings in RUNS.items():
            recipe = check_recipe({"name": name, "corpus": "scenes", **settings}, name)
            report = run_recipe(RecipeFile("", recipe), corpus, stores, folder / name, CPU)
            made[name] = (folder / name, report.figures)
    return made


@pytest.mark.parametrize("name", RUNS)
def test_the_finished_matcher_gets_the_figures_of_its_validation(
    name: str, runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    folder, figures = runs[name]
    found = {}
    results = evaluate_run(folder, corpus, stores, CPU, split="val")
    counted = results[0].metrics.get("batch", {})
    assert counted == batch_means(read_log(folder))
    assert bool(counted) == (not name.startswith("cca"))
    for result in results:
        metrics: Any = result.metrics
        if "localization" in metrics:
            # The protocol counts a phrase of two types twice; in these scenes none has two.
            rows = metrics["localization"]["overall"]
            assert result.counts["phrases"] == rows["instances"]
            found |= {f"localization.{name}": rows[name] for name in ("r@1", "r@5", "r@10")}
            found["upper_bound"] = rows["upper_bound"]
            assert result.box_supervision is not None
            assert result.box_supervision.regions == 20
        elif "image_to_text" in metrics:
            ways = ("image_to_text", "text_to_image")
            found |= {f"{way}.r@{k}": metrics[way][f"r@{k}"] for way in ways for k in (1, 5, 10)}
    assert len(found) == (10 if name == "joint" else 4 if "phrases" in name else 6)
    assert found == pytest.approx({name: figures[name] for name in found}, abs=1e-3)
    if name == "joint":
        retrieval = np.mean([found[f"{way}.r@{k}"] for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)])
        assert figures["both"] == pytest.approx((retrieval + found["localization.r@1"]) / 2, abs=1e-3)


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("cca")])
def test_a_fitted_run_counts_all_numbers_that_were_fitted(
    name: str, runs: dict[str, tuple[Path, dict[str, float]]]
) -> None:
    stored = load_file(runs[name][0] / "cca.safetensors")
    assert read_model(runs[name][0]).report.parameters == sum(array.size for array in stored.values())


def test_abilities_are_those_of_networks_and_features(runs: dict[str, tuple[Path, dict[str, float]]]) -> None:
    models = {name: load_run(folder, CPU) for name, (folder, _) in runs.items()}
    pairs = {name for name, model in models.items() if has_own_score(model)}
    assert pairs == {"sentences-similarity", "phrases-similarity"}
    for name, model in models.items():
        assert "score" in model.abilities
        assert ({"embed_images", "embed_texts"} <= model.abilities) == (name not in pairs)
        # Runs of whole pictures have no regions to choose from.
        assert ({"localize", "ground"} <= model.abilities) == (not name.startswith("sentences"))


@pytest.mark.parametrize("equation", [WeightedDistance, CombinedDistance])
def test_the_combined_distance_is_the_equation(
    equation: type[Combination],
    runs: dict[str, tuple[Path, dict[str, float]]],
    corpus: Corpus,
    stores: Sequence[FeatureStore],
) -> None:
    """Entities, eq. 2 (squares, 1/L^γ) and two-branch, eq. 8 (plain distances, their mean), sentence by sentence."""
    squared = equation is WeightedDistance
    weight, gamma = 0.3, 1.5 if squared else 1.0
    sentences, phrases = runs["sentences"][0], runs["phrases"][0]
    row = "two-branch/table5/weighted-distance"
    combination = equation(row, "sentences", "phrases", weight, gamma, squared)
    result = evaluate_combined(sentences, phrases, corpus, stores, CPU, combination, split="val")
    assert result.rows == (row,)

    images = corpus.split("val").images
    whole, parts = load_run(sentences, CPU), load_run(phrases, CPU)
    features = list(store_images(stores[2], (image.id for image in images), regions=stores[1]))
    captions = [(tokens_of(caption), number) for number, image in enumerate(images) for caption in image.captions]
    find = phrase_finder()
    scores = np.empty((len(images), len(captions)))
    for column, (tokens, _) in enumerate(captions):
        found = find([tokens])[0]
        for line, image in enumerate(features):
            distance = np.linalg.norm(whole.embed_images([image])[0] - whole.embed_texts([tokens])[0])
            assert image.regions is not None
            regions = parts.embed_visual(np.asarray(image.regions[:20]))
            nearest = [np.linalg.norm(regions - parts.embed_texts([phrase])[0], axis=1).min() for phrase in found]
            power = 2 if squared else 1
            mixed = distance**power
            if found:
                region = sum(near**power for near in nearest) / len(found) ** gamma
                mixed = (1 - weight) * mixed + weight * region
            scores[line, column] = -mixed
    expected = evaluate_ranking(MatrixScores(scores), [number for _, number in captions]).as_dict()
    metrics: Any = result.metrics
    for way in ("image_to_text", "text_to_image"):
        assert metrics[way]["mean_rank"] == pytest.approx(expected[way]["mean_rank"], abs=0.1)


def test_quick_recalls_are_those_of_the_evaluation_room() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        owners = np.sort(random.integers(0, 9, 30))
        # Few different scores: ties are everywhere.
        scores = random.integers(0, 4, (9, 30)).astype(np.float32)
        expected = evaluate_ranking(MatrixScores(scores), owners).as_dict()
        found = retrieval_figures(torch.from_numpy(scores), torch.from_numpy(owners))
        for way in ("image_to_text", "text_to_image"):
            for k in (1, 5, 10):
                assert found[f"{way}.r@{k}"] == pytest.approx(expected[way][f"r@{k}"], abs=1e-4)


def test_scores_that_are_no_numbers_find_nothing() -> None:
    found = retrieval_figures(torch.full((20, 40), torch.nan), torch.arange(40) // 2)
    assert set(found.values()) == {0.0}


def test_regions_whose_scores_are_no_numbers_are_no_hits(corpus: Corpus, stores: Sequence[FeatureStore]) -> None:
    tokens = fit_text_features(TextRecipe(kind="tokens"), [("a",)])
    data = phrase_data(corpus.split("val"), stores[0], stores[1], tokens)
    check, strings = LocalizationCheck(data, 20), torch.zeros(len(data.phrases), 3)
    ones = check.figures(lambda rows: torch.ones(len(rows), 3), strings)
    none = check.figures(lambda rows: torch.full((len(rows), 3), torch.nan), strings)
    assert none == ones, "as bad as all scores alike, of which a right one ranks last"
    assert none["localization.r@1"] < none["upper_bound"]


def test_every_recipe_of_the_package_loads_and_goes_by_its_name() -> None:
    for name in package_recipes():
        assert load_recipe(name).recipe.name == name


def test_a_recipe_whose_constraints_begin_late_keeps_an_epoch_that_has_them() -> None:
    late = [
        recipe
        for recipe in (load_recipe(name).recipe for name in package_recipes())
        if getattr(getattr(recipe, "loss", None), "constraints_after", 0)
    ]
    assert [recipe.name for recipe in late] == ["two-branch/phrases-constraints"]
    for recipe in late:
        assert isinstance(recipe, Recipe)
        assert recipe.schedule.figure is None, "the best epoch may be one before they begin"


def test_two_branch_recipes_have_the_papers_numbers() -> None:
    """Sections 4.2, 4.3, 5.2 and 5.3: what differs from row to row is the row's subject, and nothing else does."""
    weights = {
        "phrases": {"single": (0, 1, 0, 0), "constraints": (1, 4, 0.1, 0.1), "": (1, 4, 0, 0)},
        "sentences": {"single": (1, 0, 0, 0), "constraints": (1, 1.5, 0, 0.05), "": (1, 1.5, 0, 0)},
    }
    seen = 0
    for name in package_recipes():
        recipe: Any = load_recipe(name).recipe
        if not name.startswith("two-branch/") or recipe.kind == "cca" or name in BESIDE_THE_PAPERS:
            continue
        phrases, lstm = recipe.kind == "phrases", name.endswith("lstm")
        last = name.rpartition("-")[2].replace("lstm", "constraints")
        linear = "linear" in name
        widths = (1024, 512) if phrases else (2048, 512)
        assert recipe.model.image == (widths[:1] if linear else widths), name
        assert recipe.model.text == ((1024, 512) if lstm else recipe.model.image), name
        # The paper has no dropout for phrases; validation pictures chose one for both networks.
        dropout = 0.3 if phrases else 0 if linear else 0.5
        assert recipe.model.dropout == dropout, name
        assert recipe.sampler.batch == (100 if phrases else 500), name
        # The paper's rates; that of the similarity network for phrases was chosen on validation pictures.
        rate = (3e-4 if "similarity" in name else 1e-3) if phrases else 2e-4 if lstm else 1e-4
        assert recipe.schedule.learning_rate == rate, name
        assert recipe.schedule.optimizer == "adam", name
        assert recipe.text.pca == (0 if lstm or last == "tfidf" else 6000), name
        if phrases:
            assert recipe.schedule.epochs == (10 if last == "constraints" else 8), name
            assert recipe.regions == 200, name
            single = last in ("single", "bi", "similarity", "linear")
            assert recipe.sampler.positives == ("single" if single else "augmented"), name
        if lstm:
            assert (recipe.model.recurrent.word, recipe.model.recurrent.hidden) == (256, 512), name
        if recipe.model.__class__.__name__ == "SimilarityRecipe":
            assert recipe.model.layers == {"1fc": 1, "2fc": 2}.get(last, 3), name
        else:
            kind = weights[recipe.kind]
            assert recipe.loss.weights == kind.get(last, kind[""]), name
            assert (recipe.loss.margin, recipe.loss.hardest) == (0.05, 30 if phrases else 10), name
            wanted = {"constraints": "sampling", "sampling": "sampling", "random": "random"}.get(last, "none")
            assert recipe.sampler.neighbourhood == wanted, name
        seen += 1
    assert seen > 20


def test_combinations_and_exemplars_have_the_papers_numbers() -> None:
    """Entities: α = 0.7 of the whole, γ = 1.5, squares. Two-branch: α = 0.2 of the regions, a plain mean."""
    found = {each.row: (each.region_weight, each.gamma, each.squared) for each in combinations()}
    assert found["entities-cca/table5/weighted-distance"] == (pytest.approx(1 - 0.7), 1.5, True)
    assert found["two-branch/table5/weighted-distance"] == (0.2, 1.0, False)
    fits: dict[str, Any] = {name: load_recipe(f"entities-cca/phrases-{name}").recipe for name in ("all", "n1", "n10")}
    assert {name: (fit.exemplars, fit.regions) for name, fit in fits.items()} == {
        "all": (0, 100),
        "n1": (1, 100),
        "n10": (10, 100),
    }


def test_a_cca_keeps_the_best_ridge_and_exponent(
    corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    recipe = check_recipe({"name": "fit", "corpus": "scenes", **RUNS["cca-sentences"]}, "fit")
    printed: list[str] = []
    report = run_recipe(RecipeFile("", recipe), corpus, stores, tmp_path / "run", CPU, say=printed.append)
    tried = [float(line.rpartition(" ")[2]) for line in printed if line.startswith("ridge")]
    assert len(set(tried)) > 1
    assert report.figures["rsum"] == pytest.approx(max(tried), abs=0.01)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({**PHRASES, "loss": {"kind": "ranking", "weights": [1, 4, 0.1, 0]}, "sampler": {}}, "λ₃ and λ₄ need"),
        ({**SENTENCES, "loss": {"kind": "ranking", "weights": [1, 1.5, 0, 0.05]}, "sampler": {}}, "λ₄ needs"),
        ({**SENTENCES, "loss": {"kind": "ranking", "weights": [1, 1.5, 0.1, 0]}}, "λ₃ must be 0"),
        ({**RUNS["joint"], "phrase_loss": {"kind": "ranking", "weights": [1, 4, 0, 0.1]}}, "λ₃ and λ₄ need"),
        ({**RUNS["cca-phrases"], "ridges": []}, "ridges"),
        ({**RUNS["cca-phrases"], "ridges": [-1.0]}, "ridges"),
        ({**RUNS["cca-phrases"], "powers": []}, "powers"),
    ],
)
def test_settings_that_could_only_fail_later_are_refused_on_load(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        check_recipe({"name": "wrong", "corpus": "scenes", **settings}, "wrong")


def test_more_components_than_a_view_has_numbers_are_refused(
    corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    settings = {**RUNS["cca-phrases"], "components": 9999}
    recipe = check_recipe({"name": "wide", "corpus": "scenes", **settings}, "wide")
    with pytest.raises(DeixisError, match="components = 9999"):
        run_recipe(RecipeFile("", recipe), corpus, stores, tmp_path / "run", CPU)


def test_rows_lead_to_recipes() -> None:
    assert recipes_of(["two-branch/table1/embedding-bi"]) == ["two-branch/phrases-bi"]
    assert {"two-branch/sentences-constraints", "two-branch/phrases-constraints"} <= set(
        recipes_of(["two-branch/table5"])
    )
    assert set(recipes_of(["two-branch"])) == {
        name for name in package_recipes() if name.startswith("two-branch/") and "demo" not in name
    }
    assert recipes_of(["two-branch/demo-phrases"]) == ["two-branch/demo-phrases"]
    for each in combinations():
        assert {each.sentences, each.phrases} <= set(package_recipes())
    with pytest.raises(DeixisError, match="paper7"):
        recipes_of(["paper7"])


def test_the_seed_is_no_part_of_a_recipe_s_hash_and_settings_are() -> None:
    name = "two-branch/sentences-bi"
    first, second = (load_recipe(name, [f"seed={seed}"]).recipe for seed in (0, 1))
    other = load_recipe(name, ["schedule.epochs=3"]).recipe
    assert reference(first) == reference(second) != reference(other)
    assert first.rows
    assert not other.rows, "with other settings it makes no row of a paper"


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("concepts-order/cnp-ctx", ["concepts-order/concepts"]),
        ("concepts-order/ctx-sen", ["concepts-order/caption"]),
        ("dvsa/captions-regions", ["dvsa/brnn"]),
        ("hm-lstm/hm-lstm-tuned", ["concepts-order/concepts-tuned"]),
        ("concepts-order/ctx", []),
        ("concepts-order/scenes-tuned-ctx", []),
    ],
)
def test_a_result_names_the_recipes_of_the_runs_below_it(name: str, below: list[str]) -> None:
    found = reference(load_recipe(name).recipe)
    assert found.stands_on == tuple(reference(load_recipe(other).recipe) for other in below)


def test_a_run_below_that_is_gone_is_not_reported() -> None:
    recipe = load_recipe("concepts-order/cnp-ctx", ["concepts=no/such/run"]).recipe
    assert reference(recipe).stands_on == ()


def test_the_folder_of_a_backbone_s_run_is_no_part_of_a_recipe_s_hash(tmp_path: Path) -> None:
    name = "hm-lstm/hm-lstm-tuned"
    moved = load_recipe(name, [f"features.backbone=tower:{tmp_path}/concepts-order/concepts-tuned-seed1"]).recipe
    assert reference(moved).hash == reference(load_recipe(name).recipe).hash
    other = load_recipe(name, ["features.backbone=tower:concepts-order/concepts"]).recipe
    assert reference(other).hash != reference(moved).hash


def test_stores_are_found_by_what_they_hold(stores: Sequence[FeatureStore]) -> None:
    chains, proposals, image = stores
    assert find_store(stores, "chains") is chains
    assert find_store(stores, "proposals") is proposals
    assert find_store(stores, "image") is image
    with pytest.raises(DeixisError, match="merged ground-truth boxes"):
        find_store([proposals, image], "chains")


def test_other_features_than_the_recipe_asks_for_make_no_row(
    corpus: Corpus, stores: Sequence[FeatureStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    asked = load_recipe("two-branch/phrases").recipe
    assert [made_by(features, PROVENANCE) for features in kind_of(asked.kind).features(asked)] == [True, False]
    fewer = {**PROVENANCE, "regions": {**PROVENANCE["regions"], "count": 100}}
    assert not any(made_by(features, fewer) for features in kind_of(asked.kind).features(asked))

    printed: list[str] = []

    def reproduced(corpus: Corpus) -> list[Path]:
        printed.clear()
        material = {"flickr8k-entities": Material(corpus, stores)}
        folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        return list(
            reproduce(["two-branch/sentences-mean-vector"], material, CPU, **folders, split="val", say=printed.append)
        )

    ranking, _ = reproduced(corpus)
    assert any("fills no row of a paper's table" in line for line in printed)
    assert load(ranking).rows == ()
    assert reproduced(corpus)[0] == ranking
    assert [line.partition(",")[0] for line in printed] == [
        "two-branch/sentences-mean-vector-seed0: scored already on val"
    ]
    with pytest.raises(InputError, match=r"is a result on other images \(.*, val\) than those of the given corpus"):
        reproduced(corpus.with_images(image for image in corpus if image.id != corpus.split("val").images[0].id))


def test_processes_share_rows_and_seeds(
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    runs: dict[str, tuple[Path, dict[str, float]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of two seeds is taken by somebody else, who dies over it: the other one is made first."""
    monkeypatch.setattr(reproducing, "PAUSE", 0.01)
    monkeypatch.setattr(TwoBranchKind, "check_corpus", lambda kind, recipe, corpus: None)
    trained, printed = list[str](), list[str]()
    other = taken(tmp_path / "runs" / ".turns" / "two-branch" / "sentences-mean-vector-seed0.lock")

    def train(file: RecipeFile, corpus: Corpus, stores: Any, out: Path, device: torch.device, **options: Any) -> None:
        trained.append(out.name)
        shutil.copytree(runs["sentences"][0], out)

    def say(text: str) -> None:
        printed.append(text)
        # Asked again, nobody is at it any more.
        if text.endswith("seed1: scoring val"):
            other.__exit__(None, None, None)

    monkeypatch.setattr(reproducing, "run_recipe", train)
    assert other.__enter__()
    material = {"flickr8k-entities": Material(corpus, stores)}
    folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
    made = list(
        reproduce(["two-branch/sentences-mean-vector"], material, CPU, **folders, seeds=(0, 1), split="val", say=say)
    )
    assert trained == ["sentences-mean-vector-seed1", "sentences-mean-vector-seed0"]
    assert printed[0] == "two-branch/sentences-mean-vector-seed0: another process is working on it"
    assert {path.name.partition(".")[0] for path in made} == {*trained}


def test_a_combination_trains_its_runs_where_only_their_results_are_there(
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    runs: dict[str, tuple[Path, dict[str, float]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results come with the package's repository, runs do not; and features of one's own make no row of a paper."""
    [each] = [each for each in combinations() if each.row.startswith("two-branch/")]
    made = {each.sentences: runs["sentences"][0], each.phrases: runs["phrases"][0]}
    found = evaluate_run(made[each.sentences], corpus, stores, CPU, split="val")[0]
    for name in made:
        save(found, tmp_path / "results" / f"{name}-seed0.image-text-ranking.json")

    def train(file: RecipeFile, corpus: Corpus, stores: Any, out: Path, device: torch.device, **options: Any) -> None:
        shutil.copytree(made[file.recipe.name], out)

    monkeypatch.setattr(reproducing, "run_recipe", train)
    # Of the recipes as the paper has them; the runs here are of smaller ones.
    monkeypatch.setattr(TwoBranchKind, "check_corpus", lambda kind, recipe, corpus: None)
    printed: list[str] = []
    *_, combined = reproduce(
        ["two-branch/table5"],
        {"flickr8k-entities": Material(corpus, stores)},
        CPU,
        runs=tmp_path / "runs",
        results=tmp_path / "results",
        split="val",
        say=printed.append,
    )
    assert sum(line.endswith(": training") for line in printed) == 2
    assert combined.parent.name == "table5"
    assert load(combined).rows == ()
    assert any(line.startswith(each.row) and "fills no row of a paper's table" in line for line in printed)


def test_joint_training_sees_every_pair_once_an_epoch_and_shares_all_but_the_normalization(
    runs: dict[str, tuple[Path, dict[str, float]]], corpus: Corpus, stores: Sequence[FeatureStore]
) -> None:
    recipe = check_recipe({"name": "joint", "corpus": "scenes", **RUNS["joint"]}, "joint")
    task = JointKind().task(recipe, corpus, stores, CPU)  # type: ignore[arg-type]
    batches = list(task.batches(1))
    assert len(batches) == len(task.batches(1)) == max(len(task.sentences.batches(1)), len(task.phrases.batches(1)))
    for own, data in (
        ([batch.sentences for batch in batches], task.sentences.data.image_of),
        ([batch.phrases for batch in batches], task.phrases.data.pair_string),
    ):
        pairs = np.concatenate([batch.pairs for batch in own if batch is not None])
        assert sorted(pairs) == list(range(len(data)))
    whole, parts = task.sentences.module.network, task.phrases.module.network
    for side in ("images", "texts"):
        mine, theirs = getattr(whole, side), getattr(parts, side)
        assert [one is other for one, other in zip(mine, theirs, strict=True)] == [True] * (len(mine) - 1) + [False]
    learned = {id(value) for value in task.module.parameters()}
    assert learned >= {id(value) for network in (whole, parts) for value in network.parameters()}
    # Also where the networks were moved to another device, or type, before.
    for half in (task.sentences, task.phrases):
        half.module.double()
    assert "sentence_centre" in JointModule(task.sentences, task.phrases).state_dict()
    # What was learned about pictures as wholes is found again: their mean direction, and their means and variances.
    stored = read_weights(runs["joint"][0])
    assert not torch.equal(stored["sentence_centre"], stored["network.centre"])
    assert not torch.equal(stored["sentence_norms.images.running_mean"], stored["network.images.4.running_mean"])
