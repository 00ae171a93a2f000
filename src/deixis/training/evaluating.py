"""Evaluate a finished run: every protocol of its kind over one split, as results that name the table rows they fill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from deixis.corpus import Corpus
from deixis.features.store import FeatureStore
from deixis.metrics.paper_tables import paper_tables
from deixis.metrics.results import Result, flatten
from deixis.training.kinds import kind_of
from deixis.training.recipe_reference import reference
from deixis.training.run_models import load_run, read_recipe
from deixis.training.run_protocols import Evaluation

#: Names of what the first result of a run says of its training beside its figures (`Kind.training_sizes`).
TRAINING_SIZES = ("training_pairs", "batch", "chosen")


def evaluate_run(
    run: str | Path,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    device: torch.device,
    *,
    split: str = "test",
    folds: int = 1,
    drawn_regions: bool = False,
) -> list[Result]:
    """Score a run on a split by the protocols of its kind.

    Args:
        run: the folder of a finished run.
        stores: feature stores of the corpus, as the run needs them (`deixis.training.running.stores_for`).
        folds: parts of the images that retrieval ranks within; two on the 2,000 test images of COCO-mini is the 1K
            protocol.
        drawn_regions: rank ground-truth regions and phrases even if the recipe does not ask for it.
    """
    recipe = read_recipe(run)
    kind = kind_of(recipe.kind)
    evaluation = Evaluation(
        Path(run),
        recipe,
        load_run(run, device),
        corpus,
        split,
        stores,
        device,
        {"recipe": reference(recipe), "seed": recipe.seed, "readings": recipe.readings},
        folds,
        drawn_regions,
    )
    results = [result for protocol in kind.protocols(evaluation) for result in protocol(evaluation)]
    sizes = {name: size for name, size in kind.training_sizes(evaluation.run).items() if size}
    results[0] = msgspec.structs.replace(results[0], metrics={**results[0].metrics, **sizes})
    return [_with_rows(result, recipe.rows) for result in results]


def _with_rows(result: Result, rows: Sequence[str]) -> Result:
    """The result with those rows of the papers' tables for which it has a figure."""
    names = {name for name, _ in flatten(result.metrics)}
    filled = []
    for name in rows:
        table = paper_tables().get(name) or paper_tables()[name.rpartition("/")[0]]
        keys = table.keys
        if table.one_run:
            keys = tuple(f"{row.at}.{key}" if row.at else key for row in table.rows for key in keys)
        if any(key in names for key in keys):
            filled.append(name)
    return msgspec.structs.replace(result, rows=tuple(filled))
