"""The records in a run folder: its plan, the lines of its log, its outcome. Imported without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from deixis.corpus.records import Corpus
    from deixis.features.store import FeatureStore
    from deixis.training.recipe import FitRecipe


class SplitPlan(msgspec.Struct, frozen=True):
    images: int
    hash: str


class CorpusPlan(msgspec.Struct, frozen=True):
    """The fingerprint and the splits' hashes identify a corpus; `name` is for people."""

    name: str
    fingerprint: str
    splits: dict[str, SplitPlan]


class StorePlan(msgspec.Struct, frozen=True):
    """A feature store: its fingerprint, and the part of its provenance that is in the model card."""

    fingerprint: str
    backbone: str = ""
    proposals: str = ""
    proposals_saw_boxes: bool | None = None


#: Fields of a recipe without influence on training.
FOR_PEOPLE = frozenset({"name", "about", "rows", "readings"})


class RunPlan(msgspec.Struct, frozen=True):
    """`run.json`: all that determines the outcome of a run, except the code and the machine."""

    #: Every setting, including defaults.
    recipe: dict[str, Any]
    corpus: CorpusPlan | None = None
    features: tuple[StorePlan, ...] = ()
    learns_from_boxes: bool = False
    deixis: Literal["training run"] = "training run"
    version: Literal[1] = 1

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to be continued, as plain JSON values. Names and remarks are left out."""
        identity: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        identity["recipe"] = {name: value for name, value in identity["recipe"].items() if name not in FOR_PEOPLE}
        if self.corpus is not None:
            del identity["corpus"]["name"]
        return identity


def make_run_plan(recipe: FitRecipe, corpus: Corpus, stores: Sequence[FeatureStore]) -> RunPlan:
    return RunPlan(
        recipe=msgspec.to_builtins(recipe),
        corpus=CorpusPlan(
            corpus.name,
            corpus.fingerprint,
            {split: SplitPlan(images, corpus.split_hash(split)) for split, images in corpus.splits.items()},
        ),
        features=tuple(_store_plan(store) for store in stores),
        learns_from_boxes=recipe.learns_from_boxes,
    )


def _store_plan(store: FeatureStore) -> StorePlan:
    provenance = store.plan.provenance
    regions = provenance.get("regions") or {}
    return StorePlan(
        store.fingerprint,
        str(provenance.get("backbone", "")),
        str(regions.get("boxes", "")),
        regions.get("saw_boxes"),
    )


class Start(msgspec.Struct, frozen=True):
    """A start of a run, and the position it started from; `environment.json` is a list of these."""

    started: datetime
    command: str
    device: str
    threads: int
    versions: dict[str, str]
    epoch: int
    step: int
    #: Number of processes that trained together.
    processes: int = 1


class StepRecord(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """A line of the log for each step; a part that is not finite is null."""

    epoch: int
    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    parts: dict[str, float | None] = {}


class EpochRecord(msgspec.Struct, frozen=True, tag_field="event", tag="epoch"):
    """A line of the log for each epoch: means over its steps, `figures` if validated, `seconds` since the start."""

    epoch: int
    steps: int
    loss: float
    parts: dict[str, float]
    figures: dict[str, float] | None
    best: bool
    seconds: float


class Note(msgspec.Struct, frozen=True, tag_field="event", tag="note"):
    """A line of the log for people."""

    text: str


Record = StepRecord | EpochRecord | Note


def epochs_of(records: Iterable[Record]) -> list[EpochRecord]:
    return [record for record in records if isinstance(record, EpochRecord)]


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """One line on an epoch, for people."""
    figures = "".join(f", {name} {value:.4g}" for name, value in (record.figures or {}).items())
    best = " (best)" if record.best else ""
    return f"epoch {record.epoch}/{epochs}: loss {record.loss:.4g}{figures}{best}, {record.seconds:.0f} s"


#: Counts of a batch by samplers and losses (the two-branch paper, section 4.5).
BATCH_COUNTS = frozenset(
    {"pairs", "triplets", "triplets_above_zero", "images", "regions", "phrases", "phrases_without_negative"}
)
BATCH_COUNTS |= {"images_without_second", "regions_without_second", "phrases_without_second"}


def batch_means(records: Iterable[Record]) -> dict[str, float]:
    """Means of those counts over all steps of a log, by name (`triplets`; in joint training `phrases.pairs`)."""
    sums: dict[str, float] = {}
    steps: dict[str, int] = {}
    for record in epochs_of(records):
        for name, mean in record.parts.items():
            if name.rpartition(".")[2] in BATCH_COUNTS:
                sums[name] = sums.get(name, 0.0) + mean * record.steps
                steps[name] = steps.get(name, 0) + record.steps
    return {name: total / steps[name] for name, total in sums.items()}


class TrainingReport(msgspec.Struct, frozen=True):
    """The outcome: `epoch` is the best one, whose weights are kept, with its `figures`; `epochs` is the number run."""

    epoch: int
    epochs: int
    figures: dict[str, float]
    stopped_early: bool
    seconds: float
    parameters: int


class ModelRecord(msgspec.Struct, frozen=True):
    """`model.json`: describes `model.safetensors`."""

    recipe: str
    kind: str
    report: TrainingReport
    weights_sha256: str
    deixis: Literal["trained model"] = "trained model"
    version: Literal[1] = 1
