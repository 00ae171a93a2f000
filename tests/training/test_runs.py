"""Run folders: refused to strangers, one writer, damage is found and mended, curves and cards tell what happened."""

from __future__ import annotations

import builtins
import io
import itertools
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from deixis.errors import DeixisError, InputError
from deixis.papers.two_branch.phrases_task import PhrasesKind
from deixis.training.checkpoints import Position, read_checkpoint, read_tensors, write_checkpoint, write_tensors
from deixis.training.recipe import load_recipe
from deixis.training.run_card import draw_curves, model_card
from deixis.training.run_records import (
    CorpusPlan,
    EpochRecord,
    Note,
    RunPlan,
    SplitPlan,
    Start,
    StepRecord,
    StorePlan,
    TrainingReport,
    batch_means,
)
from deixis.training.runs import RunFolder, read_log, read_model, read_plan, read_weights, write_curves
from tests.training.test_trainer import interrupt_after, same_outcome
from tests.training.toy import CPU, ToyTask, plan, toy_run


def test_a_run_of_another_recipe_is_refused_and_kept(tmp_path: Path) -> None:
    toy_run(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(InputError, match=r"another recipe \(recipe.schedule.epochs is 3 there and 4 here\)"):
        toy_run(tmp_path / "run", epochs=4)
    with pytest.raises(InputError, match=r"and 1 more"):
        toy_run(tmp_path / "run", epochs=4, averaging=0.9)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_corpus_may_be_renamed_but_not_exchanged(tmp_path: Path) -> None:
    def of(name: str, fingerprint: str) -> RunPlan:
        corpus = CorpusPlan(name, fingerprint, {"train": SplitPlan(6, "abc")})
        return RunPlan(recipe=plan().recipe, corpus=corpus, features=(StorePlan("f" * 64, "lite2"),))

    with RunFolder(tmp_path, of("joined", "1")):
        pass
    with RunFolder(tmp_path, of("moved", "1")):
        pass
    with (
        pytest.raises(InputError, match=r"corpus.fingerprint is '1' there and '2' here"),
        RunFolder(tmp_path, of("joined", "2")),
    ):
        pass


def test_a_recipe_may_be_renamed_and_former_names_in_a_run_are_read_as_those_of_now(tmp_path: Path) -> None:
    def of(name: str, **settings: Any) -> RunPlan:
        return RunPlan(recipe={**plan().recipe, "name": name, **settings})

    backbone = {"features": {"backbone": "tower:paper3/concepts-tuned"}}
    former = of("paper1/sentences-bi", rows=["paper1/table2/embedding-bi"], concepts="beyond/joint", **backbone)
    with RunFolder(tmp_path, former):
        pass
    backbone = {"features": {"backbone": "tower:concepts-order/concepts-tuned"}}
    current = of(
        "two-branch/sentences-bi", rows=["two-branch/table2/embedding-bi"], concepts="two-branch/joint", **backbone
    )
    found = read_plan(tmp_path)
    assert found.identity == current.identity
    assert (found.recipe["name"], found.recipe["rows"]) == (current.recipe["name"], current.recipe["rows"])
    with RunFolder(tmp_path, of("mine", concepts="two-branch/joint", **backbone)):
        pass
    with (
        pytest.raises(InputError, match=r"recipe.concepts is 'two-branch/joint' there and 'other' here"),
        RunFolder(tmp_path, of("mine", concepts="other", **backbone)),
    ):
        pass


def test_a_folder_with_other_things_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for folder in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(InputError, match="is not a run"):
            toy_run(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match=r"is not a run \(it has no run.json\)"):
        read_plan(tmp_path)


def test_only_one_process_writes(tmp_path: Path) -> None:
    with RunFolder(tmp_path, plan()), pytest.raises(DeixisError, match="another process is writing this run"):
        toy_run(tmp_path)
    toy_run(tmp_path)


def test_a_start_that_fails_before_its_first_step_leaves_no_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(DeixisError, match="no_such_figure"):
        toy_run(run, figure="no_such_figure")
    assert not run.exists()
    # One that has learned something stays, and so does what is not ours.
    interrupt_after(run, steps=3)
    kept = sorted(run.iterdir())
    with pytest.raises(ZeroDivisionError), RunFolder(run, read_plan(run)):
        raise ZeroDivisionError
    assert sorted(run.iterdir()) == kept
    other = tmp_path / "other"
    folder = RunFolder(other, read_plan(run)).__enter__()
    (other / "notes.txt").write_text("mine")
    folder.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert (other / "notes.txt").exists()
    assert (other / "run.json").exists()


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    interrupt_after(tmp_path, steps=3)
    with pytest.raises(InputError, match="is not finished"):
        read_model(tmp_path)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[:-9]
    elif how == "flipped":
        data[-9] ^= 1
    elif how == "empty":
        data = bytearray()
    else:
        data[: len(data)] = os.urandom(len(data))
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "noise"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path, how: str) -> None:
    toy_run(tmp_path / "whole")
    run = tmp_path / "run"
    interrupt_after(run, steps=8)
    damage(run / "checkpoints" / "last.safetensors", how)
    interrupt_after(run, steps=1)
    # The damaged one was removed and not taken for the one before.
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["before.safetensors"]
    damage(run / "checkpoints" / "before.safetensors", how)
    with pytest.raises(InputError, match=r"before.safetensors: is damaged .*no earlier one is intact; start a new run"):
        toy_run(run)

    again = tmp_path / "again"
    interrupt_after(again, steps=8)
    damage(again / "checkpoints" / "last.safetensors", how)
    toy_run(again)
    notes = [record for record in read_log(again) if isinstance(record, Note)]
    assert len(notes) == 1
    assert "last.safetensors: is damaged" in notes[0].text
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_tensors_come_back_as_they_were_and_equal_ones_are_equal_bytes(tmp_path: Path) -> None:
    shared = torch.randn(3, 4)
    tensors = {
        "b/weights": shared, "a/tied": shared, "half": shared.half(), "view": shared.T, "steps": torch.tensor(7),
        "none": torch.empty(0, 4), "nan": torch.tensor([float("nan")]), "bf": shared.bfloat16(),
    }  # fmt: skip
    write_tensors(tmp_path / "one", tensors)
    write_tensors(tmp_path / "other", dict(reversed(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    found, _ = read_tensors(tmp_path / "one")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(found[name].nan_to_num(5), value.nan_to_num(5))
        assert found[name].dtype == value.dtype


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"w": torch.ones(2)}
    write_checkpoint(tmp_path, Position(step=1), weights)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, Position(step=2), weights)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert (found.position.step, found.damage) == (1, None)


def test_a_full_disk_is_one_line_and_a_later_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_run(tmp_path / "whole")
    for allowed in range(1, 32, 6):
        calls = itertools.count()

        def fsync(descriptor: int, calls: Any = calls, allowed: int = allowed) -> None:
            if next(calls) >= allowed:
                raise OSError(28, "No space left on device")

        out = tmp_path / str(allowed)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            with pytest.raises(DeixisError, match="No space left on device"):
                toy_run(out)
        toy_run(out)
        same_outcome(out, tmp_path / "whole")


def test_a_log_that_was_lost_is_no_reason_to_stop(tmp_path: Path) -> None:
    interrupt_after(tmp_path, steps=8)
    (tmp_path / "log.jsonl").unlink()
    toy_run(tmp_path)
    assert [record.epoch for record in read_log(tmp_path) if isinstance(record, EpochRecord)] == [2, 3]


def test_weights_of_another_run_are_refused(tmp_path: Path) -> None:
    toy_run(tmp_path / "one")
    toy_run(tmp_path / "other", ToyTask(seed=1), learning_rate=0.01)
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "one" / "model.safetensors")
    with pytest.raises(InputError, match=r"does not match the SHA-256 in model.json"):
        read_weights(tmp_path / "one")


def test_weights_are_kept_as_float32(tmp_path: Path) -> None:
    class Half(ToyTask):
        def __init__(self) -> None:
            super().__init__()
            self.module.register_buffer("scale", torch.ones(2, dtype=torch.float16))

    toy_run(tmp_path, Half())
    weights = read_weights(tmp_path)
    assert weights["scale"].dtype == torch.float32
    assert weights["1.num_batches_tracked"].dtype == torch.int64


def test_a_task_writes_what_its_model_needs_besides_weights(tmp_path: Path) -> None:
    class Keeping(ToyTask):
        def save(self, folder: Path) -> None:
            assert not (folder / "model.json").exists()
            (folder / "vocabulary.txt").write_text("dog\n")

    toy_run(tmp_path, Keeping())
    assert (tmp_path / "vocabulary.txt").read_text() == "dog\n"


@pytest.mark.usefixtures("with_curves")
def test_curves_show_loss_and_figures_and_mark_the_kept_epoch(tmp_path: Path) -> None:
    toy_run(tmp_path, ToyTask(figures=[1.0, 3.0, 2.0]))
    drawn = picture(tmp_path / "curves.png")
    assert drawn.shape[0] > 600
    blue, orange = np.array([31, 119, 180]), np.array([255, 127, 14])
    for colour in (blue, orange):
        assert (np.abs(drawn - colour).sum(-1) < 30).sum() > 100
    # A run that is still going on is drawn as far as it is.
    interrupt_after(tmp_path / "going", steps=7)
    assert len(picture(write_curves(tmp_path / "going"))) > 600
    interrupt_after(tmp_path / "begun", steps=2)
    assert len(picture(write_curves(tmp_path / "begun"))) < 600


def test_sums_of_recalls_have_a_panel_of_their_own() -> None:
    def height(figures: dict[str, float]) -> int:
        records = [StepRecord(1, 1, 0.5, 1.0, 0.1, {}), EpochRecord(1, 1, 0.5, {}, figures, True, 1.0)]
        with Image.open(io.BytesIO(draw_curves(records, {"schedule": {"figure": "rsum"}}))) as opened:
            return opened.height

    assert height({"text_to_image.r@1": 40.0}) == height({"rsum": 300.0})
    assert height({"text_to_image.r@1": 40.0, "rsum": 300.0}) > 1.3 * height({"rsum": 300.0})


def picture(path: Path) -> NDArray[np.int64]:
    with Image.open(path) as opened:
        assert opened.format == "PNG"
        return np.asarray(opened.convert("RGB"), np.int64)


@pytest.mark.usefixtures("with_curves")
def test_without_matplotlib_a_run_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    toy_run(tmp_path)
    assert not (tmp_path / "curves.png").exists()
    assert any(isinstance(record, Note) and "need matplotlib" in record.text for record in read_log(tmp_path))
    assert read_model(tmp_path).report.epochs == 3


def test_the_card_names_data_boxes_figures_seed_and_command(tmp_path: Path) -> None:
    corpus = CorpusPlan("flickr8k", "c" * 64, {"train": SplitPlan(6000, "1" * 64), "val": SplitPlan(1000, "2" * 64)})
    stores = (
        StorePlan("f" * 64, "efficientnet-lite2", "edge-boxes", False),
        StorePlan("e" * 64, "efficientnet-lite2", "chains", True),
    )
    whole = RunPlan(recipe=plan().recipe, corpus=corpus, features=stores, learns_from_boxes=True)
    from deixis.training.trainer import train
    from tests.training.toy import schedule

    with RunFolder(tmp_path, whole) as run:
        train(ToyTask(), schedule(), run, seed=7, device=CPU)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    figure = f"{read_model(tmp_path).report.figures['score']:.4g}"
    for fact in (
        "# toy", "flickr8k", "6,000", "2" * 64, "efficientnet-lite2", "Trained with ground-truth boxes.",
        "edge-boxes proposals, which were made without ground-truth boxes.",
        "It was trained on the features of ground-truth boxes.",
        figure, "Seed 0", "    deixis", "torch", "Apache",
    ):  # fmt: skip
        assert fact in card, fact


def test_a_batch_s_counts_are_averaged_over_all_steps_and_compared_with_the_paper_s() -> None:
    def epoch(steps: int, **parts: float) -> EpochRecord:
        return EpochRecord(1, steps, 0.5, {"text_to_image": 3.0, **parts}, None, False, 1.0)

    means = batch_means([epoch(3, triplets=100, regions=7), Note("killed"), epoch(1, triplets=20)])
    assert means == {"triplets": 80, "regions": 7}
    assert batch_means([epoch(2, **{"phrases.pairs": 300, "phrases.rows": 5})]) == {"phrases.pairs": 300}

    def card(name: str, means: dict[str, float], *changes: str) -> str:
        recipe = load_recipe(f"two-branch/phrases-{name}", changes).recipe
        report = TrainingReport(1, 1, {}, stopped_early=False, seconds=1, parameters=1)
        start = Start(datetime(2026, 1, 1, tzinfo=UTC), "deixis train", "cpu", 1, {}, 1, 0)
        return model_card(plan(), report, [start], means, PhrasesKind().published_batch(recipe))  # type: ignore[arg-type]

    assert "| triplets | 80.0 | 5,378 |" in card("bi", means)
    assert "| triplets | 80.0 | 10,756 |" in card("constraints", means)
    assert "| pairs | 314.2 | 2,138 |" in card("similarity", {"pairs": 314.2})
    assert "2,138" not in card("similarity", {"pairs": 314.2}, "sampler.batch=50")
    assert "A batch" not in card("bi", {})


def test_a_log_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    toy_run(tmp_path)
    whole = read_log(tmp_path)
    log = tmp_path / "log.jsonl"
    data = log.read_bytes()
    log.write_bytes(data[:-5])
    assert read_log(tmp_path) == whole[:-1]
    log.write_bytes(b"nonsense\n" + data)
    with pytest.raises(InputError, match="line 1: is damaged"):
        read_log(tmp_path)


def test_every_order_of_files_a_crash_can_leave_at_the_start_is_mended(tmp_path: Path) -> None:
    toy_run(tmp_path / "whole")
    order = [".lock", "recipe.toml", "run.json", "environment.json"]
    for count, half in itertools.product(range(1, 4), (False, True)):
        left = tmp_path / f"{count} {half}"
        left.mkdir()
        for name in order[:count]:
            (left / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        if half:
            (left / f".{order[count]}.abc123.part").write_bytes(b"{")
        toy_run(left)
        same_outcome(left, tmp_path / "whole")
        assert not list(left.glob(".*.part"))
