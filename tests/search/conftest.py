"""Runs of the kinds `pictures`, `base` and `captioner`, trained for a moment on a few scenes, and their bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from deixis.base.bundle_export import export_bundle, write_bundle
from deixis.base.bundle_graphs import Networks
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingNetwork, GroundingRecipe
from deixis.base.text_tower import TextTower, TowerRecipe
from deixis.corpus import Corpus, open_corpus
from deixis.features.store import FeatureStore
from deixis.papers.dvsa.captioner import Captioner, CaptionerRecipe, DecodingRecipe
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.text.recurrent import RecurrentRecipe
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe, stores_for
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer
from deixis.vision.tower import PictureTower

SETTINGS: dict[str, Any] = {
    "name": "towers",
    "kind": "pictures",
    "corpus": "scenes",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {
        "backbone": "efficientnet-lite0",
        "side": 64,
        "dim": 16,
        "queries": 2,
        "recurrent": {"cell": "gru", "word": 8, "hidden": 8, "bidirectional": True, "pooling": "max"},
    },
    "sampler": {"images": 8, "captions": 2},
    "word_vectors": False,
    "schedule": {"epochs": 1, "learning_rate": 1e-3, "figure": "rsum"},
}


SMALL_TEXT = RecurrentRecipe(cell="gru", word=8, hidden=8, bidirectional=True, pooling="max")
BASE: dict[str, Any] = {
    **SETTINGS,
    "name": "all",
    "kind": "base",
    "model": {**SETTINGS["model"], "fine": 4},
    "grounding": {
        "images": 4,
        "model": {
            "backbone": "efficientnet-lite0",
            "side": 64,
            "regions": 12,
            "map_width": 16,
            "bins": 2,
            "width": 16,
            "hidden": 8,
        },
    },
}
CAPTIONER: dict[str, Any] = {
    "name": "speaker",
    "kind": "captioner",
    "corpus": "scenes",
    "model": {"word": 8, "hidden": 8, "cell": "lstm"},
    "schedule": {"epochs": 1, "learning_rate": 1e-3},
}


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return few_scenes()


def few_scenes() -> Corpus:
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:16]
    return whole.with_images(chosen + [image for image in whole if image.split == "val"][:12])


def trained(settings: dict[str, Any], corpus: Corpus, folder: Path, stores: Sequence[FeatureStore] = ()) -> Path:
    run_recipe(RecipeFile("", check_recipe(settings, "here")), corpus, stores, folder, torch.device("cpu"))
    return folder


@pytest.fixture(scope="session")
def run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(SETTINGS, corpus, tmp_path_factory.mktemp("search") / "run")


@pytest.fixture(scope="session")
def base_run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(BASE, corpus, tmp_path_factory.mktemp("search") / "base")


@pytest.fixture(scope="session")
def captioner_run(base_run: Path, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captioner on the tower of the base run."""
    features = {"backbone": f"tower:{base_run / 'tower.safetensors'}", "crops": "squash"}
    folder = tmp_path_factory.mktemp("search")
    settings = {**CAPTIONER, "features": features}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(folder / "cache"))
        return trained(settings, corpus, folder / "run", stores_for(check_recipe(settings, "here"), corpus))


@pytest.fixture(scope="session")
def whole_bundle(base_run: Path, captioner_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that does everything."""
    folder = tmp_path_factory.mktemp("search") / "whole"
    export_bundle(base_run, folder, captioner=captioner_run, weights="float32")
    return folder


@pytest.fixture(scope="session")
def untrained_bundle(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_untrained_bundle(corpus, tmp_path_factory.mktemp("search") / "untrained")


def make_untrained_bundle(corpus: Corpus, folder: Path) -> Path:
    """A bundle that does everything, of networks that learned nothing; it takes no time to make."""
    torch.manual_seed(0)
    words = Vocabulary.of(tokens_of(caption) for image in corpus for caption in image.captions)
    model = TowerRecipe(backbone="efficientnet-lite0", side=64, dim=16, queries=2, fine=4, recurrent=SMALL_TEXT)
    tower = PictureTower(EfficientNetLite(VARIANTS[model.backbone]), model.backbone, 64, 16, 2, 4).eval()
    recipe = GroundingRecipe(
        backbone="efficientnet-lite0", side=64, regions=12, map_width=16, bins=2, width=16, hidden=8, compare=True
    )
    trunk = Proposer(EfficientNetLite(VARIANTS[model.backbone]), model.backbone, 32)
    trunk.backbone.load_state_dict(tower.backbone.state_dict())
    network = GroundingNetwork(recipe, trunk, len(words), 8).eval()
    assert network.comparison is not None
    for part in (network.comparison.weigh, network.comparison.scale):
        torch.nn.init.normal_(part.weight)
    grounder = GroundingModel(network, words)
    speaker = Captioner(16, len(words), CaptionerRecipe(word=8, hidden=8))
    captioner = CaptionerModel(speaker, words, DecodingRecipe(), torch.zeros(1, 16), torch.device("cpu"))
    for network in (tower, trunk):
        network.backbone.fuse()
    networks = Networks(tower, TextTower(model, len(words)).eval(), words, grounder, captioner)
    write_bundle(folder, networks, model, name="untrained", weights_sha256="", weights="float16")
    return folder


@pytest.fixture(scope="session")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "bundle"
    export_bundle(run, folder, weights="float16")
    return folder
