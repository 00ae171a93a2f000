"""The rows of the papers' tables: which recipes make them, trained and judged one after another, each result a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from deixis.corpus import Corpus
from deixis.errors import DeixisError, InputError
from deixis.evaluation.results import Result, load, save
from deixis.features.recipe import made_by
from deixis.features.store import FeatureStore
from deixis.learning.judging import Combination, judge, judge_combined
from deixis.learning.recipe import FitRecipe, load_recipe, package_recipes
from deixis.learning.running import recipe_features, refuse_too_few_captions, run_recipe, stores_for
from deixis.learning.runs import is_finished
from deixis.learning.trainer import Progress

#: The folds of retrieval on a corpus: COCO-mini has 2,000 test images, and the protocol is over 1,000.
FOLDS = {"coco-mini": 2}


COMBINATIONS = (
    Combination("paper0/table5/weighted-distance", "paper0/sentences", "paper0/phrases-n10", 0.3, 1.5, True),
    Combination(
        "paper1/table5/weighted-distance", "paper1/sentences-constraints", "paper1/phrases-constraints", 0.2, 1.0, False
    ),
)


@dataclass(frozen=True)
class Material:
    """A corpus that recipes name, and its feature stores; features that are not given are extracted and kept."""

    corpus: Corpus
    stores: Sequence[FeatureStore] = ()


def recipes_of(names: Sequence[str]) -> list[str]:
    """The recipes that make these rows or tables (`paper1/table2`), that a folder holds (`paper1`), or of this name."""
    known = package_recipes()
    found: dict[str, None] = {}
    for name in names:
        own = [recipe for recipe, head in known.items() if any(_within(of, name) for of in (recipe, *head.rows))]
        own += [part for each in COMBINATIONS if _within(each.row, name) for part in (each.sentences, each.phrases)]
        if not own:
            raise DeixisError(f"no recipe makes {name!r}; `deixis recipes` lists what each makes")
        found |= dict.fromkeys(own)
    return list(found)


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
    """Train and judge every recipe of some rows; what is finished already is not done again.

    Args:
        names: rows, tables, or recipes.
        materials: by the names that recipes call corpora.
        runs: where run folders go, `NAME-seed0` below it.
        results: where result files go, under the recipe's name.
        split: that results are of; choose on `val`, and score `test` once.
        say: told of each step.

    Yields:
        The result files, those found included.
    """
    chosen = recipes_of(names)
    known = package_recipes()
    missing = sorted({known[name].corpus for name in chosen} - materials.keys())
    if missing:
        raise DeixisError(f"these recipes need the corpus {missing[0]!r}; give it as --corpus {missing[0]}=PATH")
    combined = [each for each in COMBINATIONS if {each.sentences, each.phrases} <= set(chosen)]
    for name in chosen:
        # What must be refused is refused before anything is trained.
        for seed in seeds:
            _results(results, f"{name}-seed{seed}", materials[known[name].corpus].corpus)
    for seed in seeds:
        # A combination is made of two runs: their results alone, from elsewhere, are not enough.
        waiting = [each for each in combined if not (results / f"{each.row}-seed{seed}.json").exists()]
        needed = {name for each in waiting for name in (each.sentences, each.phrases)}
        for name in chosen:
            file, own = f"{name}-seed{seed}", materials[known[name].corpus]
            found = _results(results, file, own.corpus)
            judged_before = bool(found)
            if judged_before:
                scored = sorted({corpus.split for path in found if (corpus := load(path).corpus)})
                say(f"{file}: scored already on {', '.join(scored)}, in {results}")
            if not judged_before or (name in needed and not is_finished(runs / file)):
                say(f"{file}: training")
                recipe = load_recipe(name, [f"seed={seed}"])
                refuse_too_few_captions(recipe.recipe, own.corpus)
                stores = own.stores or stores_for(recipe.recipe, own.corpus, device=device.type)
                run_recipe(recipe, own.corpus, stores, runs / file, device, progress=progress, say=say)
            if not judged_before:
                say(f"{file}: scoring {split}")
                judged = own.stores or stores_for(
                    recipe.recipe, own.corpus, run=runs / file, split=split, device=device.type
                )
                folds = FOLDS.get(known[name].corpus, 1)
                for result in judge(runs / file, own.corpus, judged, device, split=split, folds=folds):
                    result = _claiming(result, file, [recipe.recipe], stores, say)
                    save(result, results / f"{file}.{result.protocol.name.replace(' ', '-')}.json")
            yield from _results(results, file, own.corpus)
        for each in combined:
            path, own = results / f"{each.row}-seed{seed}.json", materials[known[each.sentences].corpus]
            if path.exists():
                _refuse_another_corpus(path, own.corpus)
                say(f"{each.row}, seed {seed}: scored already, in {results}")
            else:
                say(f"{each.row}, seed {seed}: scoring {split}")
                whole, parts = (runs / f"{name}-seed{seed}" for name in (each.sentences, each.phrases))
                recipes = [load_recipe(name).recipe for name in (each.sentences, each.phrases)]
                stores = own.stores or [
                    store for recipe in recipes for store in stores_for(recipe, own.corpus, device=device.type)
                ]
                result = judge_combined(whole, parts, own.corpus, stores, device, each, split=split)
                save(_claiming(result, each.row, recipes, stores, say), path)
            yield path


def _claiming(
    result: Result, name: str, recipes: Sequence[FitRecipe], stores: Sequence[FeatureStore], say: Callable[[str], None]
) -> Result:
    """The result with the rows that it names, or with none where its features are not those of the recipes."""
    if all(_as_asked(recipe, stores) for recipe in recipes):
        return result
    say(f"{name}: its features are not those of the recipe, so it stands in no paper's table")
    return msgspec.structs.replace(result, rows=())


def _as_asked(recipe: FitRecipe, stores: Sequence[FeatureStore]) -> bool:
    """Whether the stores hold the features that a recipe asks for."""
    made_of = [store.plan.provenance for store in stores]
    return all(any(made_by(features, own) for own in made_of) for features in recipe_features(recipe))


def _within(row: str, name: str) -> bool:
    return row == name or row.startswith(f"{name}/")


def _results(folder: Path, file: str, corpus: Corpus) -> list[Path]:
    """The results of a run; a file that is no result is an error here, not in the table made of it."""
    found = sorted((folder / file).parent.glob(f"{Path(file).name}.*.json"))
    for path in found:
        _refuse_another_corpus(path, corpus)
    return found


def _refuse_another_corpus(path: Path, corpus: Corpus) -> None:
    """What was scored on other images is no result of these."""
    told = load(path).corpus
    if told is None:
        return
    try:
        same = corpus.split_hash(told.split or None) == told.split_hash
    except DeixisError:  # It has no such split.
        same = False
    if not same:
        raise InputError(
            path,
            f"is a result on other images ({told.name or 'a corpus without a name'}, {told.split or 'all of it'}) than "
            "those of the corpus that is given; choose another folder with --results",
        )
