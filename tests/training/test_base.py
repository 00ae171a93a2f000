"""One network for both: a finished run gets, opened again, the figures of its validation in both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from deixis.base.base_task import DeixisBaseRecipe, DeixisBaseTask
from deixis.base.twin_data import TwinData, draw_twins
from deixis.corpus import Chain, Image, make_caption, open_corpus, training_set
from deixis.errors import InputError
from deixis.text.false_captions import KINDS
from deixis.training.augmentation import Views, some_of_each
from deixis.training.evaluating import evaluate_run
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe, stores_for
from deixis.training.runs import read_weights

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "name": "both",
    "kind": "base",
    "corpus": "scenes",
    "text": {"kind": "tokens", "minimum_count": 1},
    "model": {
        "backbone": "efficientnet-lite0",
        "side": 96,
        "dim": 16,
        "queries": 2,
        "fine": 8,
        "recurrent": {"cell": "gru", "word": 12, "hidden": 8, "bidirectional": True, "pooling": "max"},
    },
    "grounding": {
        "images": 4,
        "model": {
            "backbone": "efficientnet-lite0",
            "side": 96,
            "regions": 12,
            "map_width": 16,
            "bins": 2,
            "width": 16,
            "hidden": 8,
        },
    },
    "sampler": {"images": 8, "captions": 2},
    "word_vectors": False,
    "schedule": {"epochs": 1, "learning_rate": 1e-3, "figure": "rsum"},
}


def test_a_finished_run_gets_its_figures_of_retrieval_and_grounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:16]
    corpus = whole.with_images(chosen + [image for image in whole if image.split == "val"][:12])
    recipe = check_recipe(SETTINGS, "here")
    report = run_recipe(RecipeFile("", recipe), corpus, [], tmp_path / "run", CPU)
    # What both parts have is kept once.
    names = list(read_weights(tmp_path / "run"))
    assert not [
        name for name in names if name.startswith(("grounding.network.words", "grounding.network.proposer.back"))
    ]
    [store] = stores_for(recipe, corpus, run=tmp_path / "run")
    judged = evaluate_run(tmp_path / "run", corpus, [store], CPU, split="val")
    assert all(result.box_supervision and result.box_supervision.backbone for result in judged)
    results = {result.protocol.name: result.metrics for result in judged}
    assert set(results) == {"phrase localization", "image-text ranking"}
    ranking: Any = results["image-text ranking"]
    for way in ("image_to_text", "text_to_image"):
        assert ranking[way]["r@10"] == pytest.approx(report.figures[f"{way}.r@10"], abs=9)
    overall: Any = results["phrase localization"]
    assert overall["localization"]["overall"]["r@1"] == pytest.approx(report.figures["grounding.r@1"], abs=3)


def test_the_two_parts_must_look_at_the_same_picture() -> None:
    settings = {**SETTINGS, "model": {**SETTINGS["model"], "side": 64}}
    with pytest.raises(InputError, match="same backbone and side"):
        check_recipe(settings, "here")


def test_expressions_and_false_captions_are_learned_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures with labelled boxes, some of them without captions, among those with phrases."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    train, val = ([image for image in whole if image.split == name] for name in ("train", "val"))
    labelled = [_labelled(image, captions=number % 2 > 0) for number, image in enumerate(train[8:20])]
    images = [*train[:8], *labelled, *val[:8], *(_labelled(image) for image in val[8:12])]
    grounding = {**SETTINGS["grounding"], "expressions": 4, "repeats": 2}
    recipe = check_recipe({**SETTINGS, "grounding": grounding, "twins": {"captions": 6}}, "here")
    assert isinstance(recipe, DeixisBaseRecipe)
    task = DeixisBaseTask(recipe, training_set(whole.with_images(images)), whole.with_images(images), CPU)
    # Those with phrases twice, those without captions too.
    assert len(task._epoch_rows) == 8 * 2 + 12
    # A batch never has a picture twice, and all are of one size.
    assert all(len(set(batch.rows.tolist())) == 8 for batch in task.batches(1))
    batch = next(iter(task.batches(1)))
    loss = task.loss(batch)
    assert {"twins", "grounding.phrases"} <= set(loss.parts)
    task.module.eval()
    with torch.no_grad():
        figures = task.validate()
    assert "expressions.r@1" in figures
    assert any(name.startswith("twins.") for name in figures)


def test_false_captions_of_a_batch_are_of_all_kinds_rare_ones_more_often() -> None:
    random = np.random.default_rng(0)
    role = KINDS.index("role")
    # A hundred captions with a change of colour, number and attribute each; every tenth with an exchange of roles too.
    kinds = [[0, 1, 2, role] if row % 10 == 0 else [0, 1, 2] for row in range(100)]
    starts = np.cumsum([0, *map(len, kinds)])
    caption = np.repeat(np.arange(100), [*map(len, kinds)])
    data = TwinData(torch.zeros(len(caption), 1), caption, np.concatenate(kinds), starts)
    captions = random.permutation(100)
    drawn = draw_twins(data, captions, captions + 1000, 40, random)
    # One of 31 false captions exchanges roles.
    assert (data.kind[drawn[:, 2]] == role).sum() >= 3
    assert set(data.kind[drawn[:, 2]]) == set(range(4))
    assert (data.caption[drawn[:, 2]] == drawn[:, 1]).all()
    assert (drawn[:, 0] == drawn[:, 1] + 1000).all()
    assert len(set(drawn[:, 2])) == 40


def test_some_captions_of_each_image_are_drawn() -> None:
    random = np.random.default_rng(0)
    starts = np.array([0, 3, 3, 8, 9])
    rows, owners = some_of_each(starts, np.array([2, 1, 3, 0]), 2, random)
    assert owners.tolist() == [0, 0, 2, 3, 3]
    assert all(starts[image] <= row < starts[image + 1] for row, image in zip(rows, [2, 2, 3, 0, 0], strict=True))
    assert len(set(rows)) == len(rows)
    often = Counter(some_of_each(starts, np.array([2]), 2, random)[0][0] for _ in range(500))
    assert set(often) == {3, 4, 5, 6, 7}
    assert min(often.values()) > 60


def test_captions_of_a_mirrored_picture_are_mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    chosen = [image for image in whole if image.split == "train"][:8]
    corpus = whole.with_images(chosen + [image for image in whole if image.split == "val"][:4])
    recipe = check_recipe(SETTINGS, "here")
    assert isinstance(recipe, DeixisBaseRecipe)
    task = DeixisBaseTask(recipe, training_set(corpus), corpus, CPU)
    words = task.grounding.grounder.vocabulary
    ids = torch.tensor([words.encode(("left", "right", "a")), words.encode(("left", "right", "a"))])
    views = Views(torch.zeros(2, 2), torch.ones(2, 2), torch.tensor([1.0, -1.0]))
    seen = task._as_seen(ids, views, torch.tensor([0, 1]))
    assert [words.decode(row) for row in seen.tolist()] == [("left", "right", "a"), ("right", "left", "a")]


def _labelled(image: Image, captions: bool = True) -> Image:
    """An image whose boxes have labels, as COCO's have, and whose captions have no phrases."""
    plain = [make_caption(caption.text) for caption in image.captions] if captions else []
    chains = [Chain(str(number), (number,), label="thing") for number in range(1, min(3, len(image.boxes)))]
    return msgspec.structs.replace(image, captions=tuple(plain), chains=tuple(chains))
