"""What a finished run shows people: its model card (data, figures, boxes, command) and the curves of its losses."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from deixis.errors import DeixisError
from deixis.training.run_records import EpochRecord, Record, RunPlan, Start, StepRecord, TrainingReport, epochs_of

LICENCE = (
    "Deixis is under the Apache License 2.0. The pictures, captions and pretrained weights that this model was trained "
    "from have licences of their own, which may limit what these weights may be used for."
)


def model_card(
    plan: RunPlan,
    report: TrainingReport,
    starts: Sequence[Start],
    batches: Mapping[str, float],
    published: Mapping[str, str],
) -> str:
    """Markdown for the README.md of a run folder.

    Args:
        batches: mean counts of a batch (pairs, triplets), by name.
        published: the paper's values for some of them.
    """
    recipe = plan.recipe
    sections = [
        f"# {recipe['name']}",
        f"A Deixis model of kind `{recipe['kind']}`, {report.parameters:,} parameters. {recipe['about']}".strip(),
        "## Trained on\n\n" + _data(plan),
        "## Box supervision\n\n" + box_statement(plan),
        "## Validation\n\n" + _figures(plan, report),
        *(["## A batch, on average\n\n" + _batches(batches, published)] if batches else []),
        "## How it was made\n\n" + _making(plan, report, starts),
        "## Licence\n\n" + LICENCE,
    ]
    return "\n\n".join(sections) + "\n"


def box_statement(plan: RunPlan) -> str:
    """Whether ground-truth boxes were used in this training or for its proposals."""
    training = "Trained with ground-truth boxes." if plan.learns_from_boxes else "Trained without ground-truth boxes."
    proposals = {
        True: "were trained with ground-truth boxes",
        False: "were made without ground-truth boxes",
        None: "come with the corpus, or are of unknown origin",
    }
    regions = [
        " It was trained on the features of ground-truth boxes."
        if store.proposals == "chains"
        else f" The regions are {store.proposals} proposals, which {proposals[store.proposals_saw_boxes]}."
        for store in plan.features
        if store.proposals
    ]
    return training + "".join(dict.fromkeys(regions))


def _data(plan: RunPlan) -> str:
    lines = []
    if plan.corpus is not None:
        lines.append(f"Corpus {plan.corpus.name or '(unnamed)'}, fingerprint `{plan.corpus.fingerprint}`.")
        lines += ["", "| split | images | SHA-256 of its image ids |", "|---|---:|---|"]
        lines += [
            f"| {name or '(none)'} | {split.images:,} | `{split.hash}` |" for name, split in plan.corpus.splits.items()
        ]
        lines += ["", "Trained on the split `train` without held-out pictures; epochs were compared on `val`.", ""]
    lines += [f"- Features: {store.backbone}, fingerprint `{store.fingerprint}`" for store in plan.features]
    return "\n".join(lines).strip() or "Data of the task itself."


def _figures(plan: RunPlan, report: TrainingReport) -> str:
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in report.figures.items())
    table = f"| figure | value |\n|---|---:|\n{rows}"
    if not report.epochs:
        return f"Fitted in one go.\n\n{table}"
    figure = plan.recipe["schedule"]["figure"]
    why = f"the best of {report.epochs} by {figure}" if figure else "the last"
    stopped = "; training stopped early" if report.stopped_early else ""
    return f"Epoch {report.epoch}, {why}{stopped}.\n\n{table}"


def _batches(means: Mapping[str, float], published: Mapping[str, str]) -> str:
    rows = [f"| {name} | {mean:,.1f} | {published.get(name, '')} |" for name, mean in means.items()]
    return "\n".join(["| count | here | the paper |", "|---|---:|---:|", *rows])


def _making(plan: RunPlan, report: TrainingReport, starts: Sequence[Start]) -> str:
    last = starts[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items() if name != "platform")
    begun = f", in {len(starts)} starts" if len(starts) > 1 else ""
    readings = "".join(f"\n- Reading: {reading}" for reading in plan.recipe["readings"])
    rows = "".join(f"\n- Row: {row}" for row in plan.recipe["rows"])
    return (
        f"    {last.command}\n\n- Seed {plan.recipe['seed']}\n- {report.seconds:,.0f} s on {last.device}{begun}"
        f"\n- {versions}\n- Settings: `recipe.toml` as given, `run.json` in full{rows}{readings}"
    )


def draw_curves(records: Sequence[Record], recipe: Mapping[str, Any]) -> bytes:
    """Draw a log as PNG. `recipe` has the name of the run and the figure that selects the best epoch."""
    steps = [record for record in records if isinstance(record, StepRecord)]
    if not steps:
        raise DeixisError("there are no steps to draw curves of")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DeixisError(
            "curves need matplotlib: pip install 'deixis[plots]', then deixis runs show RUN --plot"
        ) from None
    epochs = epochs_of(records)
    validated = [record for record in epochs if record.figures]
    names = list(validated[0].figures or {}) if validated else []
    # Sums of six recalls reach 600: figures up to 100 have a panel of their own.
    sums = [name for name in names if name.split(".")[-1] == "rsum"]
    panels = [panel for panel in (sums, [name for name in names if name not in sums]) if panel]
    figure = Figure(figsize=(7, 3.6 + 2.8 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1 + len(panels), 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(str(recipe.get("name", "")))
    _draw_loss(axes[0], steps, epochs)
    for axis, panel in zip(axes[1:], panels, strict=True):
        _draw_figures(axis, validated, panel, recipe["schedule"]["figure"])
    axes[-1].set_xlabel("epoch")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()


def _draw_loss(axis: Any, steps: Sequence[StepRecord], epochs: Sequence[EpochRecord]) -> None:
    # An unfinished epoch is drawn as long as the longest so far.
    counts = {record.epoch: record.steps for record in epochs}
    most = max(record.step for record in steps)
    times = [record.epoch - 1 + record.step / counts.get(record.epoch, most) for record in steps]
    axis.plot(times, [record.loss for record in steps], color="tab:blue", alpha=0.3, linewidth=0.8, label="step")
    middles = [record.epoch - 0.5 for record in epochs]
    axis.plot(middles, [record.loss for record in epochs], "o-", color="tab:blue", markersize=4, label="mean of epoch")
    axis.set_ylabel("loss")
    axis.legend(frameon=False)


def _draw_figures(axis: Any, validated: Sequence[EpochRecord], names: Sequence[str], decides: str | None) -> None:
    """The schedule's figure is highlighted, and a star marks the best epoch."""
    for name in sorted(names, key=lambda name: name == decides):
        values = [(record.figures or {}).get(name, float("nan")) for record in validated]
        leading = name == decides
        axis.plot(
            [record.epoch for record in validated],
            values,
            "o-" if leading else "-",
            color="tab:orange" if leading else None,
            linewidth=2.0 if leading else 1.0,
            markersize=4,
            alpha=1.0 if leading or decides is None else 0.6,
            label=name,
        )
    best = [record for record in validated if record.best][-1:]
    for record in best if decides in names else []:
        value = (record.figures or {})[str(decides)]
        axis.plot([record.epoch], [value], "*", color="black", markersize=13, label=f"best: epoch {record.epoch}")
    axis.set_ylabel("validation")
    axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
