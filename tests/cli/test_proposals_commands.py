"""`deixis proposals` as a person types it: tables, records, drawings, a small training, and one line for a mistake."""

from __future__ import annotations

import json
import sys

import msgspec
import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.corpus import open_corpus, write_corpus
from deixis.corpus.scenes import scenes_corpus
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe, RegionRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from deixis.metrics.results import load
from deixis.vision.learned_proposals import LearnedProposals


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the program: its exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", "proposals", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Twenty-four scenes as files, one of them broken in the training split and one in the test split."""
    folder = tmp_path_factory.mktemp("proposals") / "scenes"
    scenes = scenes_corpus(24, size=(160, 120))
    write_corpus(scenes, folder, pictures=True)
    for split in ("train", "test"):
        image = scenes.split(split).images[0]
        (folder / "images" / image.file).write_bytes(b"broken")
    return folder


def refused(done: tuple[int, str, str]) -> str:
    """The one line on standard error of a command that ended with code 2 and printed nothing else."""
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("deixis: ")
    return err


def test_a_corpus_without_splits_is_measured_whole(run, tmp_path):
    scenes = scenes_corpus(6, size=(160, 120))
    whole = scenes.with_images(msgspec.structs.replace(image, split="") for image in scenes)
    write_corpus(whole, tmp_path / "whole", pictures=True)
    code, out, err = run("report", tmp_path / "whole", "--method", "grid", "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 6


def test_a_report_prints_and_writes_the_same_figures(run, corpus, tmp_path):
    arguments = ("report", corpus, "--method", "grid", "--out", tmp_path / "new" / "grid.json")
    code, out, err = run(*arguments, "--json")
    found = json.loads(out)
    record = load(tmp_path / "new" / "grid.json")
    assert code == 0
    assert record.metrics["overall"] == found["overall"]
    assert set(found["overall"]) == {"iou50", "iou70"}
    assert list(found["overall"]["iou50"]) == ["r@10", "r@50", "r@100", "r@200"]
    assert found["overall"]["iou70"]["r@100"] < found["overall"]["iou50"]["r@100"] <= 100
    # The few pictures of the test split have no box that the grid meets so well.
    more = json.loads(run("report", corpus, "--method", "grid", "--split", "train", "--json")[1])["overall"]
    assert 0 < more["iou70"]["r@200"] < more["iou50"]["r@200"] <= 100
    assert (found["skipped"], found["saw_boxes"], found["boxes_per_picture"]) == (1, False, 200)
    assert "1 picture skipped" in err
    assert record.box_supervision is not None
    assert (record.box_supervision.proposals, record.box_supervision.regions) == (False, 100)
    assert record.box_supervision.upper_bound == found["overall"]["iou50"]["r@100"]
    assert (record.corpus.split, record.counts["images"]) == ("test", found["images"])
    assert record.protocol.parameters["method"] == "grid"


def test_the_table_has_a_row_a_type_and_says_what_was_seen(run, corpus):
    code, out, _ = run("report", corpus, "--method", "learned", "--split", "val", "--limit", 2)
    assert code == 0
    assert "learned, IoU 0.5: recall in % by number of boxes" in out
    assert "learned, IoU 0.7: recall in % by number of boxes" in out
    assert out.count("overall") == 2
    assert "2 images; 200 boxes" in out
    assert "trained on annotated boxes" in out


def test_the_boxes_of_a_store_are_measured_as_the_method_that_made_them(run, corpus, tmp_path):
    opened = open_corpus(corpus).split("val")
    recipe = FeatureRecipe(backbone="none", regions=RegionRecipe(boxes="grid", count=200))
    extract(opened, make_mapper(recipe, device="cpu"), tmp_path / "store")
    of_method, of_store = (
        json.loads(run("report", corpus, "--split", "val", *options, "--json")[1])
        for options in (("--method", "grid"), ("--features", tmp_path / "store"))
    )
    for figure in ("method", "overall", "by_type", "positives", "text_blind", "text_blind_by_type"):
        assert of_store[figure] == of_method[figure]
    assert of_store["positives"]["per_phrase"] > 0
    code, out, _ = run("report", corpus, "--split", "val", "--features", tmp_path / "store")
    assert code == 0
    assert "largest proposal" in out
    assert "proposals per phrase have an IoU of at least 0.7" in out
    extract(opened, make_mapper(FeatureRecipe(backbone="efficientnet-lite0"), device="cpu"), tmp_path / "whole")
    assert "has no boxes" in refused(run("report", corpus, "--split", "val", "--features", tmp_path / "whole"))


def test_a_part_of_a_split_is_not_taken_for_the_whole(run, corpus, tmp_path):
    for name, limit in (("whole", ()), ("part", ("--limit", 1))):
        run("report", corpus, "--method", "grid", "--split", "val", *limit, "--out", tmp_path / f"{name}.json")
    whole, part = (load(tmp_path / f"{name}.json").corpus for name in ("whole", "part"))
    assert whole.split_hash != part.split_hash


def test_a_drawing_of_a_picture_or_of_an_image_of_a_corpus(run, corpus, tmp_path):
    Pillow.new("RGB", (300, 200), (90, 90, 90)).save(tmp_path / "plain.png")
    code, out, _ = run("show", tmp_path / "plain.png", "--method", "grid", "--count", 3, "--out", tmp_path / "a.png")
    assert (code, "Drew 3 proposals" in out) == (0, True)
    drawn = np.asarray(Pillow.open(tmp_path / "a.png"))
    assert drawn.shape == (600, 900, 3)
    assert (drawn != 90).any()
    image = scenes_corpus(24, size=(160, 120)).split("val").images[0].id
    code, _, _ = run("show", corpus, image, "--method", "grid", "--out", tmp_path / "b.png")
    assert code == 0
    again = ("show", corpus, image, "--method", "grid", "--out", tmp_path / "b.png")
    assert "give --force" in refused(run(*again))
    assert run(*again, "--force")[0] == 0


def test_a_small_training_leaves_a_proposer_that_works(run, corpus, tmp_path):
    out = tmp_path / "small.safetensors"
    options = ("--backbone", "efficientnet-lite0", "--side", 64, "--epochs", 1, "--batch-size", 4)
    code, text, err = run("train", corpus, "--out", out, *options, "--json")
    found = json.loads(text)
    assert code == 0
    assert (found["out"], found["epoch"], len(found["tried"])) == (str(out), 1, 1)
    assert found["trained_on"] == 14
    assert len(found["skipped"]) == 1
    assert "1 picture skipped" in err
    assert LearnedProposals.load(out).side == 64
    code, text, _ = run("report", corpus, "--method", out, "--split", "val", "--json")
    assert json.loads(text)["overall"]["iou50"]["r@100"] == pytest.approx(found["recall"], abs=5)
    assert "give --force" in refused(run("train", corpus, "--out", out, *options))


def test_a_small_training_leaves_a_detector_that_describes_regions(run, corpus, tmp_path):
    scenes = scenes_corpus(24, size=(160, 120))

    def labelled(image):
        types = image.chain_types()
        chains = [msgspec.structs.replace(chain, label=min(types[chain.id], default="")) for chain in image.chains]
        return msgspec.structs.replace(image, chains=tuple(chains))

    write_corpus(scenes.with_images(map(labelled, scenes)), tmp_path / "labelled", pictures=True)
    out = tmp_path / "small.safetensors"
    options = ("--backbone", "efficientnet-lite0", "--side", 64, "--epochs", 1, "--batch-size", 4)
    code, text, err = run("train-detector", tmp_path / "labelled", "--out", out, *options, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert (found["trained_on"], found["validated_on"], found["skipped"]) == (14, 1, {})
    assert found["classes"] > 1
    assert 0 <= found["ap50"] <= 100
    regions = RegionRecipe(boxes="grid", count=5, features="head")
    recipe = FeatureRecipe(backbone=f"detector:{out}", crops="whole", side=64, regions=regions)
    extract(scenes.split("val"), make_mapper(recipe), tmp_path / "store")
    assert FeatureStore(tmp_path / "store").plan.provenance["backbone_saw_boxes"]
    assert "no labelled boxes" in refused(run("train-detector", corpus, "--out", tmp_path / "b.safetensors", *options))


def test_mistakes_are_reported_in_one_line(run, corpus, tmp_path):
    assert "unknown proposals 'gird'" in refused(run("report", corpus, "--method", "gird"))
    assert "no split 'tset'" in refused(run("report", corpus, "--method", "grid", "--split", "tset"))
    assert "no such file" in refused(run("report", corpus, "--method", tmp_path / "absent.safetensors"))
    assert "edge-boxes only" in refused(run("report", corpus, "--method", "grid", "--edge-model", "model.yml"))
    assert "ends in .png" in refused(run("show", corpus, "x", "--out", tmp_path / "a.jpg"))
    assert "also give the id of an image" in refused(run("show", corpus, "--out", tmp_path / "a.png"))
    assert "is not a picture" in refused(run("show", corpus / "corpus.jsonl", "--out", tmp_path / "a.png"))
    assert ".safetensors files" in refused(run("train", corpus, "--out", tmp_path / "weights.pt"))
    assert "unknown network 'vgg'" in refused(
        run("train", corpus, "--out", tmp_path / "a.safetensors", "--backbone", "vgg", "--side", 32)
    )
