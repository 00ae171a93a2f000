"""Reproduce rows of the papers' tables: find the recipes that fill them, train and evaluate each, save the results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from deixis.corpus import Corpus
from deixis.errors import DeixisError, InputError
from deixis.features.feature_recipe import made_by
from deixis.features.store import FeatureStore
from deixis.files import taken
from deixis.metrics.results import Result, load, save
from deixis.training.combining import Combination, evaluate_combined
from deixis.training.evaluating import evaluate_run
from deixis.training.kinds import combinations, kind_of
from deixis.training.recipe import FitRecipe, load_recipe, package_recipes
from deixis.training.recipe_files import nearest
from deixis.training.running import left_out, run_recipe, stores_for
from deixis.training.runs import is_finished
from deixis.training.trainer import Progress

#: Folds of retrieval by corpus: COCO-mini has 2,000 test images, and the protocol ranks within 1,000.
FOLDS = {"coco-mini": 2}
#: Seconds to wait when other processes are working on everything that is left.
PAUSE = 2.0


@dataclass(frozen=True)
class Material:
    """A corpus that recipes name, and feature stores of it. Without stores, features are extracted into the cache."""

    corpus: Corpus
    stores: Sequence[FeatureStore] = ()


def recipes_of(names: Sequence[str]) -> list[str]:
    """The recipes that fill these rows or tables (`two-branch/table2`), are in this folder, or have this name.

    A folder's recipes for the demo are left out: they train on drawn scenes and reproduce nothing.
    """
    known = package_recipes()
    needed: dict[str, None] = {}
    for name in names:
        recipes = [recipe for recipe, head in known.items() if any(_within(of, name) for of in (recipe, *head.rows))]
        recipes = [recipe for recipe in recipes if recipe == name or "/demo-" not in recipe]
        for combination in combinations():
            if _within(combination.row, name):
                recipes += [combination.sentences, combination.phrases]
        if not recipes:
            tables = {row.rpartition("/")[0] for head in known.values() for row in head.rows}
            *most, last = nearest(name, sorted({*known, *tables}))
            near = f"{', '.join(most)} or {last}"
            raise DeixisError(
                f"no recipe makes {name!r}: did you mean {near}? (`deixis recipes` lists what each makes)"
            )
        needed |= dict.fromkeys(recipes)
    return list(needed)


def reproduce(
    names: Sequence[str],
    materials: Mapping[str, Material],
    device: torch.device,
    *,
    runs: Path,
    results: Path,
    seeds: Sequence[int] = (0,),
    split: str = "test",
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Path]:
    """Train and evaluate every recipe of some rows. Finished runs and existing results are not made again.

    Several processes can do so at once with the same folders: each takes what no other is working on.

    Args:
        names: rows, tables, or recipes.
        materials: corpora by the names that recipes give them.
        runs: where run folders go, each named `RECIPE-seed0`.
        results: where result files go, named after their recipe.
        split: the split that is scored. Make choices on `val`, and score `test` once.
        say: called with a line for each step.

    Yields:
        The result files, including those that existed.
    """
    chosen = recipes_of(names)
    known = package_recipes()
    missing = sorted({known[name].corpus for name in chosen} - materials.keys())
    if missing:
        raise DeixisError(f"these recipes need the corpus {missing[0]!r}; give it as --corpus {missing[0]}=PATH")
    combined = [pair for pair in combinations() if {pair.sentences, pair.phrases} <= set(chosen)]
    for name in chosen:
        # Results of another corpus are refused before anything is trained.
        for seed in seeds:
            _results(results, f"{name}-seed{seed}", materials[known[name].corpus].corpus)
    reproduction = _Reproduction(runs, results, split, device, progress, say)
    # A combination needs the two runs themselves, not only their results.
    needed = {
        (name, seed)
        for seed in seeds
        for combination in combined
        if not (results / f"{combination.row}-seed{seed}.json").exists()
        for name in (combination.sentences, combination.phrases)
    }
    rows = {
        f"{name}-seed{seed}": partial(
            reproduction.row, name, seed, materials[known[name].corpus], (name, seed) in needed
        )
        for seed in seeds
        for name in chosen
    }
    both = {
        f"{combination.row}-seed{seed}": partial(
            reproduction.combination, combination, seed, materials[known[combination.sentences].corpus]
        )
        for seed in seeds
        for combination in combined
    }
    for work in (rows, both):
        yield from reproduction.in_any_order(work)


class _Reproduction:
    """Trains and evaluates recipes into folders of runs and of results."""

    def __init__(
        self,
        runs: Path,
        results: Path,
        split: str,
        device: torch.device,
        progress: Callable[[Progress], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self.runs, self.results, self.split, self.device = runs, results, split, device
        self.progress, self.say = progress, say

    def in_any_order(self, work: Mapping[str, Callable[[], list[Path]]]) -> Iterator[Path]:
        """Call each function, by name, and yield the files it returns.

        What another process is working on is tried again later; it is finished then, and returns at once.
        """
        waiting, announced = deque(work.items()), set[str]()
        left = len(waiting)
        while waiting:
            name, make = waiting.popleft()
            with taken(self.runs / ".turns" / f"{name}.lock") as is_ours:
                result = make() if is_ours else None
            if result is not None:
                yield from result
                left = len(waiting)
                continue
            if name not in announced:
                self.say(f"{name}: another process is working on it")
                announced.add(name)
            waiting.append((name, make))
            left -= 1
            if left <= 0:
                time.sleep(PAUSE)
                left = len(waiting)

    def row(self, name: str, seed: int, material: Material, run_needed: bool) -> list[Path]:
        """The results of a recipe. It is trained if there are none, or if its run is needed and missing."""
        file, corpus_name = f"{name}-seed{seed}", package_recipes()[name].corpus
        existing = _results(self.results, file, material.corpus)
        if existing:
            scored = sorted({corpus.split for path in existing if (corpus := load(path).corpus)})
            already = f"{file}: scored already on {', '.join(scored)}, in {self.results}"
            run_is_here = is_finished(self.runs / file)
            self.say(
                already if run_is_here else f"{already}; its run is not in {self.runs} (--results ELSEWHERE makes both)"
            )
            if run_is_here or not run_needed:
                return existing
        self.say(f"{file}: training")
        recipe = load_recipe(name, [f"seed={seed}"])
        kind_of(recipe.recipe.kind).check_corpus(recipe.recipe, material.corpus)
        stores = material.stores or stores_for(recipe.recipe, material.corpus, device=self.device.type)
        if skipped := left_out(stores):
            self.say(f"{file}: {skipped}")
        run = self.runs / file
        run_recipe(recipe, material.corpus, stores, run, self.device, progress=self.progress, say=self.say)
        if not existing:
            self.say(f"{file}: scoring {self.split}")
            evaluated = material.stores or stores_for(
                recipe.recipe, material.corpus, run=run, split=self.split, device=self.device.type
            )
            folds = FOLDS.get(corpus_name, 1)
            for result in evaluate_run(run, material.corpus, evaluated, self.device, split=self.split, folds=folds):
                result = _claiming(result, file, [recipe.recipe], stores, self.say)
                save(result, self.results / f"{file}.{result.protocol.name.replace(' ', '-')}.json")
        return _results(self.results, file, material.corpus)

    def combination(self, combination: Combination, seed: int, material: Material) -> list[Path]:
        path = self.results / f"{combination.row}-seed{seed}.json"
        if path.exists():
            _refuse_another_corpus(path, material.corpus)
            self.say(f"{combination.row}, seed {seed}: scored already, in {self.results}")
            return [path]
        self.say(f"{combination.row}, seed {seed}: scoring {self.split}")
        whole, parts = (self.runs / f"{name}-seed{seed}" for name in (combination.sentences, combination.phrases))
        recipes = [load_recipe(name).recipe for name in (combination.sentences, combination.phrases)]
        stores = material.stores or [
            store for recipe in recipes for store in stores_for(recipe, material.corpus, device=self.device.type)
        ]
        result = evaluate_combined(whole, parts, material.corpus, stores, self.device, combination, split=self.split)
        save(_claiming(result, combination.row, recipes, stores, self.say), path)
        return [path]


def _claiming(
    result: Result, name: str, recipes: Sequence[FitRecipe], stores: Sequence[FeatureStore], say: Callable[[str], None]
) -> Result:
    """The result with its table rows, or without them if its features are not those of the recipes."""
    if all(_as_asked(recipe, stores) for recipe in recipes):
        return result
    say(f"{name}: its features are not those of the recipe, so it fills no row of a paper's table")
    return msgspec.structs.replace(result, rows=())


def _as_asked(recipe: FitRecipe, stores: Sequence[FeatureStore]) -> bool:
    """Whether the stores hold the features that a recipe asks for."""
    made_of = [store.plan.provenance for store in stores]
    return all(
        any(made_by(features, stored) for stored in made_of) for features in kind_of(recipe.kind).features(recipe)
    )


def _within(row: str, name: str) -> bool:
    return row == name or row.startswith(f"{name}/")


def _results(folder: Path, file: str, corpus: Corpus) -> list[Path]:
    """The result files of a run. A file that is not a result of this corpus is an error."""
    paths = sorted((folder / file).parent.glob(f"{Path(file).name}.*.json"))
    for path in paths:
        _refuse_another_corpus(path, corpus)
    return paths


def _refuse_another_corpus(path: Path, corpus: Corpus) -> None:
    """Raise an `InputError` if a result is of other images than those of the corpus."""
    scored = load(path).corpus
    if scored is None:
        return
    try:
        same = corpus.split_hash(scored.split or None) == scored.split_hash
    except DeixisError:  # It has no such split.
        same = False
    if not same:
        raise InputError(
            path,
            f"is a result on other images ({scored.name or 'a corpus without a name'}, {scored.split or 'all of it'}) "
            "than those of the given corpus; choose another folder with --results",
        )
