"""The curves of a run: loss by step and by epoch, validation figures by epoch, with the best epoch marked."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from deixis.errors import DeixisError
from deixis.training.run_records import EpochRecord, Record, StepRecord, epochs_of


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
