"""Run a recipe: get its features, build its task, train or fit it into a run folder, or take a run from the cache.

`train` is `deixis.train`, the same from Python.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor

from deixis.corpus import Corpus, open_corpus
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.kept import features_for
from deixis.features.store import FeatureStore
from deixis.files import cache_folder, in_turn
from deixis.metrics.former_names import current_name
from deixis.training.distributed import ALONE, FollowingRun, Ranks
from deixis.training.kinds import KINDS, kind_of
from deixis.training.recipe import FitRecipe, Recipe, RecipeFile, check_recipe, load_recipe
from deixis.training.recipe_files import package_files, toml_value
from deixis.training.run_records import Note, TrainingReport, epoch_line, make_run_plan
from deixis.training.runs import RunFolder, is_finished, read_model, read_plan, refuse_another
from deixis.training.trainer import Progress
from deixis.training.trainer import train as train_task
from deixis.vision import TOWER
from deixis.vision.learned_proposals import checked_device

#: The trained backbone in the folder of a run that uses its features.
TOWER_FILE = "tower.safetensors"


def run_recipe(
    file: RecipeFile,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    out: str | Path,
    device: torch.device,
    *,
    ranks: Ranks = ALONE,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TrainingReport:
    """Train a recipe into a run folder. An interrupted run is continued; a finished one is left as it is.

    If several processes train together, only the first writes. Another number of them may continue the run.
    """
    recipe, kind = file.recipe, kind_of(file.recipe.kind)
    refuse_unshared(recipe, ranks)
    if not kind.distributed:
        ranks = ALONE
    plan = make_run_plan(recipe, corpus, stores)
    with RunFolder(out, plan, file.text, kind.published_batch(recipe)) if ranks.first else FollowingRun(out) as run:
        report = ranks.broadcast(msgspec.json.encode(read_model(out).report) if run.finished else b"")
        if report:
            return msgspec.json.decode(report, type=TrainingReport)
        # What the first process fits or trains here is cached when the others need it.
        with ranks.in_turn(), _enough_memory(recipe):
            task = kind.task(recipe, corpus, stores, device)
        if isinstance(task, Fits):
            assert isinstance(run, RunFolder)
            return fit(task, run, device=device, say=say)
        assert isinstance(recipe, Recipe)
        return train_task(
            task, recipe.schedule, run, seed=recipe.seed, device=device, ranks=ranks, progress=progress, say=say
        )


@contextmanager
def _enough_memory(recipe: FitRecipe) -> Iterator[None]:
    """Raise a `DeixisError` for a recipe whose network does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as fault:
        message = " ".join(str(fault).split())
        # PyTorch has an error of its own for GPUs alone.
        if isinstance(fault, RuntimeError) and not re.search("allocate|out of memory|overflow", message):
            raise
        raise DeixisError(f"{recipe.name}: the network does not fit into memory ({message[-120:]})") from fault


def refuse_unshared(recipe: FitRecipe, ranks: Ranks) -> None:
    """Raise a `DeixisError` if several processes cannot train a recipe together."""
    if ranks.count == 1 or kind_of(recipe.kind).distributed:
        return
    shared = ", ".join(name for name in KINDS if kind_of(name).distributed)
    raise DeixisError(
        f"{recipe.name} is of the kind {recipe.kind!r}, which one process trains: start it without torchrun "
        f"(several processes can train the kinds {shared})"
    )


def left_out(stores: Sequence[FeatureStore]) -> str:
    """A line about pictures that could not be read and have no features; empty if there are none."""
    skipped = {image: reason for store in stores for image, reason in store.skipped.items()}
    if not skipped:
        return ""
    some = "; ".join(f"{image} {reason}" for image, reason in [*skipped.items()][:3])
    count = "1 picture is" if len(skipped) == 1 else f"{len(skipped):,} pictures are"
    return f"{count} left out: {some}{'; …' if len(skipped) > 3 else ''}"


def stores_for(
    recipe: FitRecipe,
    corpus: Corpus,
    *,
    run: Path | None = None,
    split: str | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[FeatureStore]:
    """The features of a recipe, or of its finished `run`, from the cache or extracted into it.

    Args:
        split: extract only this split, if a run is used with features of its own network.
    """
    kind = kind_of(recipe.kind)
    wanted = kind.features(recipe, run)
    if split is not None and run and kind.makes_features:
        corpus = corpus.split(split)
    if not run and isinstance(recipe.features, FeatureRecipe):
        tower = trained_backbone(recipe, corpus, torch.device(device))
        wanted = [with_backbone(features, tower) for features in wanted] if tower else wanted
    return [features_for(corpus, features, device=device, progress=progress) for features in wanted]


def with_backbone(features: FeatureRecipe, tower: Path) -> FeatureRecipe:
    """The feature recipe with the file of a trained backbone, if it names one."""
    if not features.backbone.startswith(TOWER):
        return features
    return msgspec.structs.replace(features, backbone=f"{TOWER}{tower}")


def trained_backbone(recipe: FitRecipe, corpus: Corpus, device: torch.device) -> Path | None:
    """The file of the trained backbone that a recipe's features name, by its run or by its recipe; None: they do not.

    A recipe that is named is trained now unless its run is cached.
    """
    name = recipe.feature_recipe.backbone.removeprefix(TOWER)
    if name == recipe.feature_recipe.backbone:
        return None
    if Path(name).is_file():
        return Path(name)
    stores = [] if is_finished(name) else stores_for(recipe_of(name).recipe, corpus, device=device.type)
    return cached_run(name, corpus, stores, device) / TOWER_FILE


def recipe_of(name: str) -> RecipeFile:
    """The recipe of this name or path, or of the finished run in this folder."""
    if is_finished(name):
        return RecipeFile("", check_recipe(dict(read_plan(name).recipe), name))
    if recipe_name := recipe_of_folder(name):
        command = f"deixis train {recipe_name} --seed {name.rpartition('-seed')[2]} --out {name}"
        raise DeixisError(f"there is no finished run in {name}; make it with `{command}`, and give it its --corpus")
    return load_recipe(name)


def recipe_of_folder(folder: str) -> str | None:
    """The package's recipe that made a run folder, judging by its name: `…/two-branch/sentences-bi-seed0`."""
    path, _, seed = folder.rpartition("-seed")
    name = current_name("/".join(Path(path).parts[-2:]))
    return name if seed.isdecimal() and name in package_files() else None


def cached_run(recipe: str | RecipeFile, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> Path:
    """The finished run in the folder `recipe`, or a run of this recipe, trained unless it is in the cache."""
    if isinstance(recipe, str) and is_finished(recipe):
        return Path(recipe)
    file = recipe_of(recipe) if isinstance(recipe, str) else recipe
    plan = make_run_plan(file.recipe, corpus, stores)
    folder = cache_folder() / "runs" / hashlib.sha256(msgspec.json.encode(plan.identity)).hexdigest()[:32]
    with in_turn(folder):
        run_recipe(file, corpus, stores, folder, device)
    return folder


def train(
    recipe: str | Path,
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: bool = False,
) -> TrainingReport:
    """Train a recipe into a run folder, as `deixis train` does.

    The features that the recipe needs are extracted once for a corpus and kept in the cache. A run that was
    interrupted is continued when you call this again; a finished one is left as it is.

    Args:
        recipe: a name that `deixis recipes` lists, or a `.toml` file.
        corpus: a corpus, or where one is, as `open_corpus` takes it.
        out: the run folder; `deixis.load_model` opens it afterwards.
        settings: settings of the recipe to change, by name: `{"schedule.epochs": 3}`.
        seed: in place of the recipe's.
        device: `cpu`, `cuda`, or `auto`, which is `cuda` where there is a GPU.
        progress: print a line for every epoch to standard error.

    Returns:
        The epoch that was kept and its figures on the validation split.

    Raises:
        DeixisError: in one line, what is wrong with the recipe, the corpus or the folder.

    >>> report = train("two-branch/demo-sentences", "scenes:40", out="runs/demo", settings={"schedule.epochs": 2})
    >>> report.epochs
    2
    """
    changes = [f"{name}={toml_value(value)}" for name, value in (settings or {}).items()]
    file = load_recipe(recipe, [*changes, *([] if seed is None else [f"seed={seed}"])])
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    target = checked_device(name)
    opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
    kind_of(file.recipe.kind).check_corpus(file.recipe, opened)
    refuse_another(out, make_run_plan(file.recipe, opened, ()))
    stores = stores_for(file.recipe, opened, device=name)

    def say(text: str) -> None:
        if progress and text:
            print(text, file=sys.stderr)

    def show_epoch(at: Progress) -> None:
        if at.epoch_record is not None:
            say(epoch_line(at.epoch_record, at.epochs))

    say(left_out(stores))
    return run_recipe(file, opened, stores, out, target, progress=show_epoch, say=say)


@runtime_checkable
class Fits(Protocol):
    """Something that is fitted in closed form (`deixis.papers.entities_cca.task`), where a `Task` is trained."""

    def weights(self) -> Mapping[str, Tensor]:
        """The weights for `model.safetensors`, once fitted."""
        ...

    def parameters(self) -> int:
        """The number of fitted parameters."""
        ...

    def fit(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Fit, report each try with `say`, and return the figures on the validation split."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into the run folder."""
        ...


def fit(task: Fits, run: RunFolder, *, device: torch.device, say: Callable[[str], None]) -> TrainingReport:
    """Fit into a run folder. A finished run is left as it is; one that was killed starts again."""
    if run.finished:
        return read_model(run.folder).report
    start = time.monotonic()
    run.resume(device)

    def note(text: str) -> None:
        run.log(Note(text))
        say(text)

    figures = dict(task.fit(note))
    task.save(run.folder)
    seconds = time.monotonic() - start
    report = TrainingReport(0, 0, figures, stopped_early=False, seconds=seconds, parameters=task.parameters())
    run.finish(task.weights(), report)
    return report
