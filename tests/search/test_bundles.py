"""A bundle does what the runs behind it do, from one file of weights, each of which is kept once."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors import safe_open
from torch.nn import functional as F

from deixis.adapters.bundles import (
    GROUNDING_VOCABULARY,
    MANIFEST,
    WEIGHTS,
    Relevance,
    Threshold,
    read_bundle,
    thresholds_hash,
)
from deixis.adapters.search_model import scores
from deixis.adapters.weight_files import SCALE, WeightFile, write_weights
from deixis.base.bundle_export import export_bundle
from deixis.base.bundle_networks import bundle_captioner, bundle_grounder, bundle_texts, bundle_tower
from deixis.errors import CannotError, DeixisError, InputError
from deixis.loading import load_model, load_search_model
from deixis.model import ImageFeatures
from deixis.training.run_models import load_run
from deixis.vision.tower import TOWER, load_tower

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def picture() -> Pillow.Image:
    return Pillow.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), dtype=np.uint8))


def test_thresholds_have_a_name_that_only_their_values_decide() -> None:
    thresholds = Relevance(Threshold(1.0, commonness=-0.1), Threshold(0.5), 10.0, lower_for={"dog": 0.1, "cat": 0.2})
    name = thresholds_hash(thresholds)
    assert re.fullmatch("[0-9a-f]{12}", name)
    assert thresholds_hash(msgspec.json.decode(msgspec.json.encode(thresholds), type=Relevance)) == name
    for same in ({"lower_for": {"cat": 0.2, "dog": 0.1}}, {"end_for": {}}, {"present_of_phrase": None}):
        assert thresholds_hash(msgspec.structs.replace(thresholds, **same)) == name
    for other in ({"slope": 11.0}, {"end": Threshold(0.5, best=0.1)}, {"present_of_phrase": Threshold(1.0)}):
        assert thresholds_hash(msgspec.structs.replace(thresholds, **other)) != name


def test_thresholds_in_files_keep_their_names() -> None:
    written = b'{"base":1.0,"usual":0.5}'
    assert msgspec.json.decode(written, type=Threshold) == Threshold(1.0, rarity_times_usual=0.5)
    assert msgspec.json.decode(msgspec.json.encode(Threshold(1.0, rarity_times_usual=0.5)))["usual"] == 0.5


def test_backbone_and_word_vectors_are_kept_once(whole_bundle: Path) -> None:
    weights = WeightFile(whole_bundle / WEIGHTS)
    for name, other in (
        (
            "grounding.proposer.backbone._blocks.3._expand_conv.weight",
            "pictures.backbone._blocks.3._expand_conv.weight",
        ),
        ("grounding.words.weight", "texts.encoder.words.weight"),
    ):
        assert weights.place(name) == weights.place(other)
    assert GROUNDING_VOCABULARY not in read_bundle(whole_bundle).manifest.files
    size = sum(weights.place(name).length for name in {weights.shared(each) for each in weights.names("")})
    assert (whole_bundle / WEIGHTS).stat().st_size < size + 60_000


def test_a_bundle_points_where_its_run_does(base_run: Path, whole_bundle: Path, picture: Pillow.Image) -> None:
    ours = load_model(f"onnx:{whole_bundle}").ground(picture, "a man in a red shirt")
    theirs = load_model(base_run).ground(picture, "a man in a red shirt")
    assert [each.phrase for each in ours] == [each.phrase for each in theirs] == ["a man", "a red shirt"]
    for own, other in zip(ours, theirs, strict=True):
        assert own.box == pytest.approx(other.box, abs=1.5)
        assert own.score == pytest.approx(other.score, abs=0.03)


def test_an_exported_bundle_compares_regions_as_its_network_does(untrained_bundle: Path, picture: Pillow.Image) -> None:
    phrases = [("the", "man", "on", "the", "left"), ("a", "dog")]
    ours = load_model(f"onnx:{untrained_bundle}").localize(picture, phrases)
    theirs = bundle_grounder(read_bundle(untrained_bundle)).localize(picture, phrases)
    np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=0.5)
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=5e-3)
    assert np.ptp(theirs.scores) > 0.05


def test_a_bundle_has_the_cells_and_words_of_its_run(base_run: Path, whole_bundle: Path) -> None:
    ours, theirs = load_search_model(f"onnx:{whole_bundle}"), load_search_model(f"run:{base_run}")
    assert ours.identity == theirs.identity
    assert (ours.identity.cells, ours.identity.cell_dim) == (1, 4)
    batch = np.random.default_rng(0).integers(0, 255, (4, 3, 64, 64)).astype(np.uint8)
    own, other = ours.embed_prepared(batch), theirs.embed_prepared(batch)
    assert ((own.embeddings * other.embeddings).sum(1) > 0.9998).all()
    assert own.cells.shape == other.cells.shape == (4, 1, 4)
    first, second = (F.normalize(torch.from_numpy(each.cells).float(), dim=-1) for each in (own, other))
    assert (first * second).sum(-1).min() > 0.999
    sentences = ["a dog", "a man in a red shirt waits", "red"]
    said, report = ours.embed_queries(sentences), theirs.embed_queries(sentences)
    assert ((said.embeddings * report.embeddings).sum(1) > 0.9998).all()
    assert np.allclose(said.words, report.words, atol=0.005)
    assert np.linalg.norm(said.words, axis=2).sum(1) == pytest.approx(1, abs=1e-3)
    # A run's tower is kept as float16 and a bundle's is folded first. What is allowed above adds up: the angles of rows
    # and of words' best cells (arccos of 0.9998 twice, of 0.999 once) and 0.005 a word.
    assert np.allclose(scores(said, own), scores(report, other), atol=0.08)


def test_networks_come_back_with_normalizations_to_train_on(whole_bundle: Path) -> None:
    bundle = read_bundle(whole_bundle)
    model, tower, texts = load_search_model(f"onnx:{whole_bundle}"), bundle_tower(bundle), bundle_texts(bundle)
    batch = np.random.default_rng(1).integers(0, 255, (3, 3, 64, 64)).astype(np.uint8)
    with torch.no_grad():
        rows = F.normalize(tower((torch.from_numpy(batch).float() - 127) / 128)).numpy()
        words = F.normalize(texts(torch.tensor([[4, 5, 6]]))).numpy()
    assert np.allclose(rows, model.embed_prepared(batch).embeddings, atol=2e-4)
    vocabulary = model.vocabulary  # type: ignore[attr-defined]
    assert np.allclose(words, model.embed_queries([" ".join(map(vocabulary.token, (4, 5, 6)))]).embeddings, atol=2e-4)


def test_a_bundle_says_what_its_captioner_does(captioner_run: Path, base_run: Path, whole_bundle: Path) -> None:
    ours, theirs = bundle_captioner(read_bundle(whole_bundle)), load_run(captioner_run, CPU)
    batch = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        row = load_tower(base_run / TOWER)(batch)[0].numpy()
    seen = ImageFeatures(row, None, None, (64, 64))
    first, wanted = ours.describe(seen, 3)[0], theirs.describe(seen, 3)[0]
    assert first.text == wanted.text
    assert first.score == pytest.approx(wanted.score, abs=0.05)


def test_what_a_bundle_has_not_is_reported(bundle: Path, run: Path, captioner_run: Path, tmp_path: Path) -> None:
    model, picture = load_model(f"onnx:{bundle}"), Pillow.new("RGB", (9, 9))
    assert model.abilities == {"embed_images", "embed_texts", "score"}
    with pytest.raises(CannotError, match=r"cannot ground; it can: embed_images, embed_texts, score$"):
        model.ground(picture, "a man")
    with pytest.raises(CannotError, match=r"cannot describe; it can: embed_images, embed_texts, score$"):
        model.describe(picture)
    with pytest.raises(DeixisError, match="does not describe pictures"):
        bundle_captioner(read_bundle(bundle))
    with pytest.raises(DeixisError, match="point at phrases, not 'pictures'"):
        export_bundle(run, tmp_path / "out", grounding=run)
    with pytest.raises(DeixisError, match="not a captioner"):
        export_bundle(run, tmp_path / "out", captioner=run)
    with pytest.raises(DeixisError, match="become bundles, not 'captioner'"):
        export_bundle(captioner_run, tmp_path / "out")


def test_damaged_files_are_reported(tmp_path: Path) -> None:
    for data in (b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"):
        (tmp_path / WEIGHTS).write_bytes(data)
        with pytest.raises(InputError, match="not the file of a bundle's weights"):
            WeightFile(tmp_path / WEIGHTS)
    (tmp_path / MANIFEST).write_text('{"deixis": "model", "version": 1}')
    with pytest.raises(InputError, match="another version"):
        read_bundle(tmp_path)


@pytest.mark.parametrize("kept", ["float32", "float16", "mixed"])
def test_weights_come_back_as_they_were_rounded(kept: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    given = {
        "a.matrix": random.normal(size=(40, 50)).astype(np.float32),
        "a.kernel": random.normal(size=(8, 4, 3, 3)).astype(np.float32),
        "a.large_kernel": random.normal(size=(128, 256, 1, 1)).astype(np.float32),
        "a.vector": random.normal(size=7).astype(np.float32),
    }
    write_weights(tmp_path / WEIGHTS, {**given, "b.matrix": given["a.matrix"].copy()}, kept)  # type: ignore[arg-type]
    weights = WeightFile(tmp_path / WEIGHTS)
    assert weights.names("b.") == ["b.matrix"]
    integers = {name for name in given if weights.place(name).kind == "I8"}
    assert integers == ({"a.matrix", "a.large_kernel"} if kept == "mixed" else set())
    data = (tmp_path / WEIGHTS).read_bytes()
    with safe_open(tmp_path / WEIGHTS, "np") as file:
        assert "b.matrix" not in file.keys()  # noqa: SIM118
        for name, wanted in given.items():
            place, value = weights.place(name), file.get_tensor(name)
            # What an ONNX graph reads at that place is what safetensors reads under the name.
            assert data[place.offset : place.offset + place.length] == value.tobytes()
            scale = file.get_tensor(name + SCALE) if name + SCALE in weights else 1.0
            assert np.allclose(
                value.astype(np.float32) * scale, wanted, atol={"float32": 0, "float16": 2e-3}.get(kept, 0.02)
            )
