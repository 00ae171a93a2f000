"""Features that a device has no room for stay in main memory, and a run ends as it would have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.boxes import box_array, merge
from deixis.training import placing
from deixis.training.placing import place_of, rows_of
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe
from deixis.training.runs import read_log
from tests.stores import make_store, random_boxes
from tests.training.test_paper_runs import PHRASES, SENTENCES

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_features_go_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    assert place_of(700, "cuda") == torch.device("cuda")
    assert place_of(701, "cuda") == CPU
    assert place_of(10**15, "cpu") == CPU


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_rows_come_to_the_device_of_their_numbers(device: str) -> None:
    table, rows = torch.arange(12.0).reshape(6, 2), torch.tensor([4, 0, 4], device=device)
    found = rows_of(table, rows)
    assert found.device == rows.device
    assert found.tolist() == [[8, 9], [0, 1], [8, 9]]


@needs_gpu
@pytest.mark.parametrize("settings", [SENTENCES, PHRASES], ids=["sentences", "phrases"])
def test_a_run_whose_features_do_not_fit_learns_the_same(
    settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_corpus("scenes")
    corpus: Corpus = whole.with_images([*whole.split("train").images[:30], *whole.split("val").images[:8]])
    drawn = random_boxes(9)

    def merged(image):  # type: ignore[no-untyped-def]
        return [merge(box_array(image.chain_boxes(chain.id))).tolist() for chain in image.chains if chain.boxes]

    stores = [
        make_store(tmp_path / "chains", corpus, merged, seed=1, provenance={"regions": {"boxes": "chains"}}),
        make_store(tmp_path / "proposals", corpus, drawn, seed=2),
        make_store(tmp_path / "image", corpus, seed=3, provenance={"regions": None}),
    ]
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    recipe = RecipeFile("", check_recipe({"name": "x", "corpus": "scenes", **settings}, "x"))
    losses = []
    for room in (placing.ROOM, 0.0):
        monkeypatch.setattr(placing, "ROOM", room)
        run_recipe(recipe, corpus, stores, tmp_path / f"run-{room}", torch.device("cuda"))
        losses.append([record.loss for record in read_log(tmp_path / f"run-{room}") if hasattr(record, "loss")])
    # Steps are captured where features are on the GPU, and rounded otherwise: that adds up.
    assert losses[0][:4] == pytest.approx(losses[1][:4], rel=1e-4)
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
