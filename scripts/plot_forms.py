"""How a plot looks: three forms (dots, bars, curves) as SVG files that can be read in light and in dark.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; every series has a marker or hatch of its
own as well. A file's `<desc>` holds the numbers it shows, for screen readers and for the test that finds stale plots.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

#: By kind of ink: in light and in dark.
INKS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9da7b1"),
    "line": ("#d1d9e0", "#3d444d"),
    "paper": ("#fffffe", "#16181d"),
}
INK, SOFT, LINE, PAPER = (light for light, _ in INKS.values())
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#7f6ad0")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "\\\\\\\\\\\\", "xxx", "---", "++")
#: Width of every plot, in inches of 72 points.
WIDTH = 7.6

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "deixis",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "hatch.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.facecolor": PAPER,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}

#: A mean, and the standard deviation over seeds if there are several.
Value = tuple[float, float | None]


class Series(NamedTuple):
    """Values by category, or by cut-off for curves; a category without a value is left out."""

    label: str
    values: Mapping[str, Value]
    #: Figures that others published: hollow grey marks, dashed lines.
    published: bool = False


class Plot(NamedTuple):
    """What a file shows. `lines` are values to compare with, by name."""

    form: str
    title: str
    axis: str
    series: Sequence[Series]
    lines: Mapping[str, float] = {}
    logarithmic: bool = False
    #: Curves: the name of the horizontal axis, and where the vertical one begins.
    below: str = ""
    bottom: float = 0.0

    @property
    def categories(self) -> list[str]:
        """All categories: those of the longest series, and each other one after its predecessor in its series."""
        names: list[str] = []
        for series in sorted(self.series, key=lambda series: -len(series.values)):
            index = 0
            for name in series.values:
                if name not in names:
                    names.insert(index, name)
                index = names.index(name) + 1
        return names


def description(plot: Plot) -> str:
    """The numbers of a plot as one line per series."""
    rows = [
        f"{series.label}: " + ", ".join(f"{name} {_number(value)}" for name, value in series.values.items())
        for series in plot.series
    ]
    rows += [f"{name}: {value:.1f}" for name, value in plot.lines.items()]
    return "\n".join([f"{plot.title} ({plot.axis})", *rows])


def svg(plot: Plot) -> str:
    """The plot as the text of an SVG file."""
    with matplotlib.rc_context(_STYLE):
        figure = {"dots": _dots, "bars": _bars, "curves": _curves}[plot.form](plot)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return _finished(text.getvalue(), description(plot))


def _dots(plot: Plot) -> Any:
    names = plot.categories
    figure, axes = _page(plot, (1.0 if _legend_beside_axis(plot) else 1.5) + 0.16 * len(names))
    for index, series in enumerate(plot.series):
        rows = [names.index(name) for name in series.values]
        means = [mean for mean, _ in series.values.values()]
        style = (
            _published_marks()
            if series.published
            else {"color": _colour(plot, index), "marker": MARKERS[_turn(plot, index)]}
        )
        axes.errorbar(
            means, rows, xerr=_spreads(series), linestyle="", markersize=6.5, capsize=3, label=series.label, **style
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(plot.axis)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    _lines(axes, plot, upright=True)
    return _finish(figure, axes, plot)


def _bars(plot: Plot) -> Any:
    names = plot.categories
    flat = len(plot.series) == 1
    figure, axes = _page(plot, 1.3 + 0.28 * len(names) if flat else 2.6)
    height = 0.62 if flat else 0.8 / len(plot.series)
    for index, series in enumerate(plot.series):
        shift = 0.0 if flat else (index - (len(plot.series) - 1) / 2) * height
        places = [names.index(name) + shift for name in series.values]
        means = [mean for mean, _ in series.values.values()]
        colour = SOFT if series.published else _colour(plot, index)
        style = {"facecolor": PAPER if series.published else colour, "edgecolor": colour if series.published else PAPER}
        error = {"ecolor": INK, "elinewidth": 1, "capsize": 2}
        hatch = "" if series.published or flat else HATCHES[_turn(plot, index)]
        if flat:
            axes.barh(
                places, means, height, xerr=_spreads(series), hatch=hatch, error_kw=error, label=series.label, **style
            )
            for place, (mean, spread) in zip(places, series.values.values(), strict=True):
                axes.annotate(
                    _short(mean),
                    (mean + (spread or 0), place),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                    color=SOFT,
                )
        else:
            axes.bar(
                places,
                means,
                height * 0.94,
                yerr=_spreads(series),
                hatch=hatch,
                error_kw=error,
                label=series.label,
                **style,
            )
    if flat:
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(plot.axis)
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
    else:
        axes.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
        axes.tick_params(axis="x", colors=INK)
        axes.tick_params(axis="y", colors=SOFT)
        axes.set_ylabel(plot.axis)
        axes.grid(visible=False, axis="x")
    if plot.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _lines(axes, plot, upright=flat)
    return _finish(figure, axes, plot)


def _curves(plot: Plot) -> Any:
    names = plot.categories
    figure, axes = _page(plot, 3.4)
    for index, series in enumerate(plot.series):
        places = [names.index(name) for name in series.values]
        means = [mean for mean, _ in series.values.values()]
        style: dict[str, Any] = {"color": _colour(plot, index), "marker": MARKERS[_turn(plot, index)]}
        if series.published:
            style = {**_published_marks(), "linestyle": "--"}
        axes.errorbar(places, means, yerr=_spreads(series), capsize=3, markersize=5.5, label=series.label, **style)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom=plot.bottom)
    axes.set_xlabel(plot.below)
    axes.set_ylabel(plot.axis)
    axes.tick_params(axis="x", colors=INK)
    axes.tick_params(axis="y", colors=SOFT)
    _lines(axes, plot, upright=False)
    return _finish(figure, axes, plot)


def _page(plot: Plot, height: float) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    figure.suptitle(plot.title, x=0.015, ha="left", fontweight="bold", fontsize=10.5)
    return figure, axes


def _finish(figure: Any, axes: Any, plot: Plot) -> Any:
    axes.tick_params(length=0)
    if plot.form == "curves":
        figure.legend(loc="outside right center")
    elif len(plot.series) > 1 or plot.lines:
        style = {"ncols": 4, "handletextpad": 0.4, "columnspacing": 1.4}
        if _legend_beside_axis(plot):
            figure.legend(loc="lower left", borderaxespad=0.2, **style).set_in_layout(False)
        else:
            figure.legend(loc="outside lower center", **style)
    return figure


def _legend_beside_axis(plot: Plot) -> bool:
    """Whether the legend of dots fits to the left of the axis' name, by the width of their letters in points."""
    labels = [*(series.label for series in plot.series), *plot.lines]
    width = sum(6 * len(label) + 32 for label in labels)
    return plot.form == "dots" and width + 3 * len(plot.axis) < 44 * WIDTH


def _lines(axes: Any, plot: Plot, *, upright: bool) -> None:
    for (name, value), style in zip(plot.lines.items(), ("--", ":", "-."), strict=False):
        draw = axes.axvline if upright else axes.axhline
        draw(value, color=INK, linestyle=style, linewidth=1.2, label=name)


def _published_marks() -> dict[str, Any]:
    return {"color": SOFT, "marker": "d", "markerfacecolor": PAPER, "markeredgewidth": 1.4}


def _colour(plot: Plot, index: int) -> str:
    return SOFT if plot.series[index].published else COLOURS[_turn(plot, index)]


def _turn(plot: Plot, index: int) -> int:
    """How many series of ours come before this one."""
    return sum(not series.published for series in plot.series[:index])


def _spreads(series: Series) -> list[float] | None:
    spreads = [spread or 0.0 for _, spread in series.values.values()]
    return spreads if any(spreads) else None


def _number(value: Value) -> str:
    mean, spread = value
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _finished(text: str, described: str) -> str:
    """Add the description and the colours for dark pages, and let the picture scale with the page."""
    rules = "".join(
        f'[style*="fill: {light}"]{{fill:{dark} !important}}[style*="stroke: {light}"]{{stroke:{dark} !important}}'
        for light, dark in INKS.values()
    )
    dark = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    head = f"<desc>{escape(described)}</desc>\n{dark}\n"
    text = re.sub(r"<!DOCTYPE.*?>\n", "", text, flags=re.DOTALL)
    text = text.replace("'DejaVu Sans', ", "").replace("'Bitstream Vera Sans', ", "")
    text = re.sub(r"(<svg [^>]*>\n)", lambda match: match[1] + head, text, count=1)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
