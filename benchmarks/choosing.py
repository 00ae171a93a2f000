"""The table "Which model should I choose?" of docs/performance.md: accuracy and cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deixis.errors import DeixisError
from deixis.training.recipe import load_recipe

#: The hash of the Flickr8k test split in result files.
FLICKR8K_TEST = "e3ec5b26b21d07aa4e8c3568b016d206d5bc04f9d3d6caf0e87a6f6eb1aa2188"
#: `settings.json`: the cost of a picture by the name of its features.
Measured = Mapping[str, Any]


def choices(results: Path, measured: Measured) -> Iterator[str]:
    """The best recipes of each task on the Flickr8k test split, with the cost of their features."""
    yield "| task | recipe | accuracy | features | CPU ms per picture | memory |"
    yield "|---|---|---|---|---:|---:|"
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    tasks = {"image-text ranking": "sentences", "phrase localization": "phrases"}
    for path in sorted(results.glob("*/*.json")):
        result = json.loads(path.read_text("utf-8"))
        recipe = (result.get("recipe") or {}).get("name") if isinstance(result, dict) else None
        if recipe and (result.get("corpus") or {}).get("split_hash") == FLICKR8K_TEST:
            task = tasks.get(result["protocol"]["name"])
            if task is not None:
                runs.setdefault((task, recipe), []).append(result["metrics"])
    for task in ("sentences", "phrases"):
        rows = [(*_accuracy(task, seeds), recipe) for (of, recipe), seeds in runs.items() if of == task]
        seen: list[str] = []
        for _, accuracy, recipe in sorted(rows, key=lambda row: -row[0]):
            cost = costs(recipe, task, measured)
            if len(seen) < 3 or cost[0] not in seen:
                yield f"| {task} | `{recipe}` | {accuracy} | {' | '.join(cost)} |"
                seen.append(cost[0])


def _accuracy(task: str, seeds: Sequence[dict[str, Any]]) -> tuple[float, str]:
    """The number that recipes are ordered by, and the text of the table cell: means over seeds."""
    seeds_note = "" if len(seeds) == 1 else f" (mean of {len(seeds)} seeds)"
    if task == "phrases":
        overall = _mean([metrics["localization"]["overall"] for metrics in seeds])
        return overall["r@1"], _recalls(overall) + seeds_note
    ways = {"text→image": "text_to_image", "image→text": "image_to_text"}
    recalls = "; ".join(f"{name} {_recalls(_mean([metrics[way] for metrics in seeds]))}" for name, way in ways.items())
    return sum(metrics["mean_recall"] for metrics in seeds) / len(seeds), recalls + seeds_note


def _mean(figures: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {f"r@{k}": sum(metrics[f"r@{k}"] for metrics in figures) / len(figures) for k in (1, 5, 10)}


def _recalls(figures: Any) -> str:
    return "/".join(f"{figures[f'r@{k}']:.1f}" for k in (1, 5, 10))


def costs(name: str, task: str, measured: Measured) -> tuple[str, str, str]:
    """The features of a recipe, their CPU time and their memory (`settings.json`)."""
    named = _features(name, task)
    if not named or not measured.keys() >= {*named}:
        # Recipes with a backbone of their own read pictures.
        return " + ".join(named) or "pictures", "not measured", "not measured"
    parts = [measured[name] for name in named]
    milliseconds = sum(part["processor_ms_per_picture"] for part in parts)
    return " + ".join(named), f"{milliseconds:.0f}", f"{max(part['peak_megabytes'] for part in parts):,} MB"


def _features(name: str, task: str) -> list[str]:
    """The names of a recipe's features in `settings.json`."""
    try:
        # Some results name, after a comma, which part of a run was scored; concepts can name a run folder.
        recipe: Any = load_recipe(re.sub(r"^runs/|-seed\d+$|,.*$", "", name)).recipe
    except DeixisError:
        return ["of no recipe in the package"]
    if recipe.kind == "base":
        return ["deixis-base" if task == "sentences" else "deixis-base, pointing"]
    if recipe.kind == "grounding":
        return ["the pictures themselves"]
    if recipe.kind == "pictures":
        return ["tower"]
    # The concept network can have features of its own; the same ones are computed once.
    concepts = getattr(recipe, "concepts", "")
    of_concepts = _features(concepts, task) if isinstance(concepts, str) and concepts else []
    return list(dict.fromkeys([*_named(recipe.features), *of_concepts]))


def _named(features: Any) -> list[str]:
    if features is None:
        return []
    if isinstance(features, str):
        return [features]
    if features.regions is not None:
        return [str(features.regions.boxes)]
    return [f"{features.backbone}, {features.crops}"]
