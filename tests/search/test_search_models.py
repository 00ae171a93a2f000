"""A bundle encodes as the run it came from does, whatever the batch and the lengths, and says so when it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch.nn import functional as F

from deixis.adapters.bundles import BACKBONE, MANIFEST, PICTURES, TEXTS, WEIGHTS
from deixis.adapters.weight_files import WeightFile, write_weights
from deixis.base.bundle_export import export_bundle
from deixis.base.bundle_graphs import backbone_graph, picture_graph, text_graph, write_graph
from deixis.base.text_tower import TextTower, TowerRecipe
from deixis.errors import DeixisError, InputError
from deixis.loading import load_search_model
from deixis.text.recurrent import RecurrentRecipe
from deixis.vision.backbones import tower_backbone
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import squashed as training_squashed
from deixis.vision.tower import PictureTower, load_tower

TEXT_LIST = ["a dog", "two red cars stand beside a tall tree and a man waits", "zyxwv", "dog"]


def run_graph(path: Path, *names: str, **inputs: Any) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(list(names), inputs)


def kept(network: torch.nn.Module, prefix: str, folder: Path, weights: Any) -> WeightFile:
    """The weights of a network as a bundle keeps them."""
    write_weights(
        folder / WEIGHTS, {f"{prefix}{name}": value.numpy() for name, value in network.state_dict().items()}, weights
    )
    return WeightFile(folder / WEIGHTS)


def test_a_bundle_gives_the_embeddings_of_its_run(run: Path, bundle: Path) -> None:
    ours, theirs = load_search_model(f"onnx:{bundle}"), load_search_model(f"run:{run}")
    assert ours.identity == theirs.identity
    random = np.random.default_rng(0)
    picture = Pillow.fromarray(random.integers(0, 255, (50, 90, 3), np.uint8))
    assert np.array_equal(ours.prepare(picture), theirs.prepare(picture))
    batch = random.integers(0, 255, (5, 3, 64, 64)).astype(np.uint8)
    for got, wanted in (
        (ours.embed_prepared(batch).embeddings, theirs.embed_prepared(batch).embeddings),
        (ours.embed_queries(TEXT_LIST).embeddings, theirs.embed_queries(TEXT_LIST).embeddings),
    ):
        assert got.dtype == wanted.dtype == np.float32
        assert np.linalg.norm(got, axis=1) == pytest.approx(1, abs=1e-4)
        # Both are rounded to float16, one before normalizations are folded and one after.
        assert ((got * wanted).sum(1) > 0.9998).all()
    assert ours.unknown_words("a zyxwv dog") == theirs.unknown_words("a zyxwv dog") == ["zyxwv"]
    assert ours.embed_queries([]).embeddings.shape == theirs.embed_queries([]).embeddings.shape == (0, 16)


@pytest.mark.parametrize("model", ["run", "onnx"])
def test_a_text_without_words_is_refused(model: str, run: Path, bundle: Path) -> None:
    opened = load_search_model(f"run:{run}" if model == "run" else f"onnx:{bundle}")
    with pytest.raises(DeixisError, match="no words"):
        opened.embed_queries(["a dog", "  "])


def test_a_text_is_encoded_alike_alone_and_in_company(whole_bundle: Path) -> None:
    model = load_search_model(f"onnx:{whole_bundle}")
    together = model.embed_queries(TEXT_LIST * 100)
    alone = [model.embed_queries([text]) for text in TEXT_LIST]
    assert np.allclose(
        together.embeddings, np.tile(np.concatenate([each.embeddings for each in alone]), (100, 1)), atol=1e-6
    )
    for place, each in enumerate(alone * 100):
        own = together.words[place]
        assert np.allclose(own[: each.words.shape[1]], each.words[0], atol=1e-6)
        assert not own[each.words.shape[1] :].any()


@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_text_branch_becomes_the_same_graph(cell: Any, pooling: Any, bidirectional: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    recurrent = RecurrentRecipe(cell=cell, word=12, hidden=20, bidirectional=bidirectional, pooling=pooling)
    tower = TextTower(TowerRecipe(dim=9, fine=6, word_weight=1.7, recurrent=recurrent), 30).eval()
    lengths = np.array([3, 7, 1, 7], np.int64)
    ids = np.random.default_rng(1).integers(1, 30, (4, 7)) * (np.arange(7) < lengths[:, None])
    with torch.no_grad():
        embedded, report = tower.with_words(torch.from_numpy(ids))
    wanted = F.normalize(embedded).numpy()
    modules, graph = torch.nn.ModuleDict({"texts": tower}), text_graph(tower)
    write_graph(tmp_path / TEXTS, modules, graph, kept(tower, "texts.", tmp_path, "float32"))
    rows, words = run_graph(tmp_path / TEXTS, "rows", "words", ids=ids)
    assert np.allclose(rows, wanted, atol=1e-5)
    assert np.allclose(words[ids != 0], (report.vectors * report.weights[:, None]).numpy(), atol=1e-5)
    assert not words[ids == 0].any()
    write_graph(tmp_path / TEXTS, modules, graph, kept(tower, "texts.", tmp_path, "mixed"))
    (rows,) = run_graph(tmp_path / TEXTS, "rows", ids=ids)
    assert ((rows * wanted).sum(1) > 0.999).all()


@pytest.mark.parametrize("side", [64, 75, 128])
def test_a_tower_of_any_side_becomes_the_same_graph(side: int, tmp_path: Path) -> None:
    torch.manual_seed(4)
    name = "efficientnet-lite0"
    tower = PictureTower(EfficientNetLite(VARIANTS[name]), name, side, 24, 3, fine=5).eval()
    batch = np.random.default_rng(2).integers(0, 255, (3, 3, side, side)).astype(np.uint8)
    with torch.no_grad():
        maps = tower.backbone.map((torch.from_numpy(batch).float() - 127) / 128)
        wanted, few = F.normalize(tower.pooled(maps)).numpy(), tower.few_cells(tower.embed_cells(maps)).numpy()
    tower.backbone.fuse()
    modules, weights = torch.nn.ModuleDict({"pictures": tower}), kept(tower, "pictures.", tmp_path, "float32")
    write_graph(tmp_path / BACKBONE, modules, backbone_graph(tower.backbone), weights)
    write_graph(tmp_path / PICTURES, modules, picture_graph(tower), weights)
    (seen,) = run_graph(tmp_path / BACKBONE, "map", pictures=batch)
    rows, cells = run_graph(tmp_path / PICTURES, "rows", "cells", map=seen)
    assert np.allclose(rows, wanted, atol=1e-5)
    assert cells.shape == (3, tower.cell_count, 5)
    assert np.allclose(cells, few, atol=1e-5)


def test_search_sees_pictures_as_training_does(run: Path, bundle: Path) -> None:
    pixels = np.random.default_rng(6).integers(0, 255, (70, 90, 3)).astype(np.uint8)
    picture = Pillow.fromarray(pixels).resize((200, 150), Pillow.Resampling.BICUBIC)
    tower = load_tower(run / "tower.safetensors")
    wanted = training_squashed(picture, tower.side).numpy()
    assert np.array_equal(load_search_model(f"onnx:{bundle}").prepare(picture), wanted)
    assert np.array_equal(load_search_model(f"run:{run}").prepare(picture), wanted)
    assert np.array_equal(tower_backbone(tower, "cpu").preprocess(picture)[0].numpy(), wanted)


def test_a_bundle_may_look_closer_and_weigh_words_more(base_run: Path, tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    usual = export_bundle(base_run, plain, weights="float32")
    closer = export_bundle(base_run, other, weights="float32", side=2 * usual.side, word_weight=2.0)
    assert (closer.side, closer.towers["side"], closer.towers["word_weight"]) == (2 * usual.side, 2 * usual.side, 2.0)
    assert closer.cells > usual.cells
    before, after = (load_search_model(f"onnx:{folder}") for folder in (plain, other))
    assert before.identity.preprocessing != after.identity.preprocessing
    texts, heavier = before.embed_queries(TEXT_LIST), after.embed_queries(TEXT_LIST)
    assert np.allclose(heavier.words, 2 * texts.words, atol=1e-6)
    assert np.array_equal(heavier.embeddings, texts.embeddings)


def test_smaller_weights_make_smaller_files(run: Path, bundle: Path, tmp_path: Path) -> None:
    whole = export_bundle(run, tmp_path / "whole", weights="float32")
    mixed = export_bundle(run, tmp_path / "mixed", weights="mixed")
    assert mixed.files[WEIGHTS].bytes < 0.52 * whole.files[WEIGHTS].bytes
    # Graphs hold no weights but a few constants, whatever the weights are.
    assert whole.files[PICTURES].bytes + whole.files[TEXTS].bytes < 100_000
    exact, rounded = (load_search_model(f"onnx:{tmp_path / name}") for name in ("whole", "mixed"))
    assert (
        (exact.embed_queries(TEXT_LIST).embeddings * rounded.embed_queries(TEXT_LIST).embeddings).sum(1) > 0.999
    ).all()


@pytest.mark.parametrize("name", [TEXTS, WEIGHTS])
def test_a_bundle_whose_bytes_changed_is_refused(name: str, bundle: Path, tmp_path: Path) -> None:
    for file in bundle.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{name}.*not the file that was exported"):
        load_search_model(f"onnx:{tmp_path}").embed_queries(["a dog"])
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        load_search_model(f"onnx:{tmp_path}")


def test_names_that_are_no_model_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deixis.adapters.bundles.packaged_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="deixis export onnx"):
        load_search_model(f"onnx:{tmp_path}")
    with pytest.raises(DeixisError, match="unknown model 'clap'"):
        load_search_model("clap")
    with pytest.raises(DeixisError, match="export"):
        load_search_model("deixis-base")


def test_a_bundle_needs_neither_torch_nor_spacy(bundle: Path) -> None:
    code = f"""
import sys
from deixis.loading import load_search_model
model = load_search_model("onnx:{bundle}")
model.embed_queries(["a dog"])
print([name for name in ("torch", "spacy", "sklearn", "scipy", "onnx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
