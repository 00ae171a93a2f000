"""The table "which setting should I choose" of docs/performance.md: accuracy beside what features cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deixis.errors import DeixisError
from deixis.training.recipe import load_recipe

#: Of the images of Flickr8k's test split, as results name it.
FLICKR8K_TEST = "e3ec5b26b21d07aa4e8c3568b016d206d5bc04f9d3d6caf0e87a6f6eb1aa2188"
#: `settings.json`: name of features → what a picture costs.
Measured = Mapping[str, Any]


def choices(results: Path, measured: Measured) -> Iterator[str]:
    """The best recipes of each task on Flickr8k's test split, with what their features cost."""
    yield "| for | recipe | accuracy | features | processor ms a picture | memory |"
    yield "|---|---|---|---|---:|---:|"
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    tasks = {"image-text ranking": "sentences", "phrase localization": "phrases"}
    for path in sorted(results.glob("*/*.json")):
        found = json.loads(path.read_text("utf-8"))
        recipe = (found.get("recipe") or {}).get("name") if isinstance(found, dict) else None
        if recipe and (found.get("corpus") or {}).get("split_hash") == FLICKR8K_TEST:
            task = tasks.get(found["protocol"]["name"])
            if task is not None:
                runs.setdefault((task, recipe), []).append(found["metrics"])
    for task in ("sentences", "phrases"):
        rows = [(*_accuracy(task, seeds), recipe) for (of, recipe), seeds in runs.items() if of == task]
        seen: list[str] = []
        for _, accuracy, recipe in sorted(rows, key=lambda row: -row[0]):
            cost = costs(recipe, task, measured)
            if len(seen) < 3 or cost[0] not in seen:
                yield f"| {task} | `{recipe}` | {accuracy} | {' | '.join(cost)} |"
                seen.append(cost[0])


def _accuracy(task: str, seeds: Sequence[dict[str, Any]]) -> tuple[float, str]:
    """What runs are ordered by, and what is told of them: means over seeds."""
    said = "" if len(seeds) == 1 else f" (mean of {len(seeds)} seeds)"
    if task == "phrases":
        overall = _mean([metrics["localization"]["overall"] for metrics in seeds])
        return overall["r@1"], _recalls(overall) + said
    ways = {"text→image": "text_to_image", "image→text": "image_to_text"}
    told = "; ".join(f"{name} {_recalls(_mean([metrics[way] for metrics in seeds]))}" for name, way in ways.items())
    return sum(metrics["mean_recall"] for metrics in seeds) / len(seeds), told + said


def _mean(figures: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {f"r@{k}": sum(each[f"r@{k}"] for each in figures) / len(figures) for k in (1, 5, 10)}


def _recalls(figures: Any) -> str:
    return "/".join(f"{figures[f'r@{k}']:.1f}" for k in (1, 5, 10))


def costs(name: str, task: str, measured: Measured) -> tuple[str, str, str]:
    """The features of a recipe, and what they were measured to cost (`settings.json`), one after the other."""
    named = _features(name, task)
    if not measured.keys() >= {*named}:
        return " + ".join(named), "not measured", "not measured"
    found = [measured[each] for each in named]
    spent = sum(each["processor_ms_per_picture"] for each in found)
    return " + ".join(named), f"{spent:.0f}", f"{max(each['peak_megabytes'] for each in found):,} MB"


def _features(name: str, task: str) -> list[str]:
    """As `settings.json` names them."""
    try:
        # Some results say after a comma what of a run was judged; concepts may be those of a run's folder.
        recipe: Any = load_recipe(re.sub(r"^runs/|-seed\d+$|,.*$", "", name)).recipe
    except DeixisError:
        return ["of no recipe in the package"]
    if recipe.kind == "base":
        return ["deixis-base" if task == "sentences" else "deixis-base, pointing"]
    if recipe.kind == "grounding":
        return ["the pictures themselves"]
    if recipe.kind == "pictures":
        return ["tower"]
    # Concepts are found in features of their own.
    concepts = getattr(recipe, "concepts", "")
    return [*_named(recipe.features), *(_features(concepts, task) if isinstance(concepts, str) and concepts else [])]


def _named(features: Any) -> list[str]:
    if features is None:
        return []
    if isinstance(features, str):
        return [features]
    if features.regions is not None:
        return [str(features.regions.boxes)]
    return [f"{features.backbone}, {features.crops}"]
