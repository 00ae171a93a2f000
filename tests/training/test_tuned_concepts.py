"""A concept network fine-tuned from pictures: its backbone learns, its run looks with it, models stand on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deixis.corpus import Corpus, open_corpus
from deixis.errors import DeixisError, InputError
from deixis.features.kept import features_for
from deixis.papers.concepts_order.concept_model import ConceptModel
from deixis.papers.concepts_order.task import ConceptsOrderKind
from deixis.text.concept_words import Concept, ConceptVocabulary
from deixis.text.tokens import has_content, tokens_of
from deixis.training.evaluating import evaluate_run
from deixis.training.kinds import kind_of
from deixis.training.recipe import RecipeFile, check_recipe, load_recipe
from deixis.training.run_models import load_run, read_recipe
from deixis.training.running import run_recipe
from deixis.vision.backbones import load_backbone
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.reading import read_picture
from deixis.vision.tower import load_tower

CPU = torch.device("cpu")
FEATURES = {
    "backbone": "efficientnet-lite0",
    "crops": "whole",
    "side": 96,
    "regions": {"boxes": "grid", "count": 12},
}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:24]
    return whole.with_images([*chosen, *[image for image in whole if image.split == "val"][:8]])


@pytest.fixture(scope="module")
def settings(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    counts = Counter(
        token for image in corpus for caption in image.captions for token in tokens_of(caption) if has_content(token)
    )
    path = tmp_path_factory.mktemp("vocabulary") / "concepts.tsv"
    ConceptVocabulary(Concept(word, "noun", count, (word,)) for word, count in counts.most_common(12)).save(path)
    return {
        "name": "tuned",
        "kind": "concept-pictures",
        "corpus": "scenes",
        "features": FEATURES,
        "regions": 6,
        "one_length": True,
        "batch": 8,
        "vocabulary": {"file": str(path)},
        "tuning": {"side": 64},
        "schedule": {
            "epochs": 2,
            "learning_rate": 1e-2,
            "groups": [{"prefix": "tower.backbone", "rate": 0.1}],
            "figure": "map.whole",
        },
    }


@pytest.fixture(scope="module")
def run(settings: dict[str, Any], corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "run"
    run_recipe(RecipeFile("", check_recipe(settings, "tuned")), corpus, [], folder, CPU)
    return folder


def test_backbone_and_concepts_learn_together(run: Path) -> None:
    before = load_efficientnet_lite("efficientnet-lite0").state_dict()
    after = load_tower(run / "tower.safetensors").backbone.state_dict()
    for name in ("_conv_stem.weight", "_conv_head.weight"):
        # The file has half precision, whose rounding is far below a step of the optimizer.
        assert (after[name] - before[name]).abs().max() > 5e-4, name
    log = [line for line in (run / "log.jsonl").read_text().splitlines() if "map.whole" in line]
    assert len(log) == 2


def test_the_network_answers_for_pictures_and_regions_as_its_tuned_backbone_sees_them(
    run: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    (features,) = kind_of("concept-pictures").features(read_recipe(run), run)
    store = features_for(corpus.split("val"), features)
    image = corpus.split("val").images[0]
    backbone = load_backbone(f"tower:{run / 'tower.safetensors'}")
    seen = backbone.maps(backbone.whole(read_picture(corpus, image), 96)[None]).values.mean((-2, -1))[0].numpy()
    number = store.numbers([image.id])[0]
    np.testing.assert_allclose(store.image_vectors()[number], seen, atol=2e-3 * np.abs(seen).max())
    matcher = load_run(run, CPU)
    assert isinstance(matcher, ConceptModel)
    weights = load_file(run / "model.safetensors")
    assert matcher.network.length > 0, "features are brought to the length that pictures had at the beginning"
    vector = matcher.network.length * torch.nn.functional.normalize(torch.from_numpy(seen), dim=0)
    logits = vector @ weights["concepts.output.weight"].T + weights["concepts.output.bias"]
    picture = tmp_path / "scene.png"
    read_picture(corpus, image).save(picture)
    np.testing.assert_allclose(matcher.places(matcher.look(picture)).confidences[0], torch.sigmoid(logits), atol=5e-3)
    (result,) = evaluate_run(run, corpus, [store], CPU, split="val")
    assert {"whole", "regional"} <= result.metrics["concepts"].keys()  # type: ignore[union-attr]
    assert result.box_supervision is not None
    assert not result.box_supervision.backbone


def test_a_matching_model_stands_on_the_run_and_not_on_its_recipe(
    run: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    recipe: Any = check_recipe(
        {
            "name": "cnp",
            "kind": "concepts-order",
            "corpus": "scenes",
            "concepts": str(run),
            "regions": 6,
            "mismatched": 31,
            "model": {"hidden": 8, "word": 6},
            "schedule": {"epochs": 1, "learning_rate": 1e-2, "figure": "rsum"},
        },
        "cnp",
    )
    wanted = ConceptsOrderKind().features(recipe)
    assert wanted == kind_of("concept-pictures").features(read_recipe(run), run)
    store = features_for(corpus, wanted[0])
    run_recipe(RecipeFile("", recipe), corpus, [store], tmp_path / "cnp", CPU)
    own: Any = load_run(tmp_path / "cnp", CPU)
    tuned: Any = load_run(run, CPU)
    torch.testing.assert_close(own.predictor.network.state_dict(), tuned.network.state_dict())
    with pytest.raises(DeixisError, match="train it first"):
        ConceptsOrderKind().features(
            check_recipe({**_settings(recipe), "concepts": "concepts-order/concepts-tuned"}, "x")
        )  # type: ignore[arg-type]


def test_a_missing_run_is_named_with_the_command_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe: Any = load_recipe("concepts-order/tuned-cnp-ctx").recipe
    command = "deixis train concepts-order/concepts-tuned --seed 0 --out runs/concepts-order/concepts-tuned-seed0"
    with pytest.raises(DeixisError, match=command):
        ConceptsOrderKind().features(recipe)


def test_only_networks_of_the_package_can_be_fine_tuned(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="can be fine-tuned"):
        check_recipe({**settings, "features": {**FEATURES, "backbone": "torchvision:vgg19"}}, "tuned")


def _settings(recipe: Any) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "kind": recipe.kind,
        "corpus": recipe.corpus,
        "schedule": {"epochs": 1, "learning_rate": 1e-2},
    }
