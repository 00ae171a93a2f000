"""The plots in docs/plots show what is in results/, and every one of them is on a page."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

import deixis

ROOT = Path(deixis.__file__).parent.parent.parent
PLOTS = ROOT / "docs" / "plots"

pytestmark = pytest.mark.skipif(not PLOTS.exists(), reason="the plots are in the checkout")


@pytest.fixture(scope="module")
def scripts() -> tuple[ModuleType, ModuleType]:
    pytest.importorskip("matplotlib")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import plot_forms
        import write_plots
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return write_plots, plot_forms


def test_the_plots_are_those_of_the_results(scripts: tuple[ModuleType, ModuleType]) -> None:
    write_plots, plot_forms = scripts
    stale = []
    for name, make in write_plots.PLOTS.items():
        text = (PLOTS / f"{name}.svg").read_text("utf-8")
        [shown] = re.findall(r"<desc>(.*?)</desc>", text, flags=re.DOTALL)
        if unescape(shown) != plot_forms.description(make()):
            stale.append(name)
    assert stale == [], "out of date: run `make plots`"


def test_every_plot_is_on_a_page_and_every_file_is_a_plot(scripts: tuple[ModuleType, ModuleType]) -> None:
    write_plots, _ = scripts
    text = "".join(path.read_text("utf-8") for path in ROOT.glob("docs/**/*.md"))
    used = set(re.findall(r"plots/([\w-]+)\.svg", text))
    assert used == {*write_plots.PLOTS} == {path.stem for path in PLOTS.glob("*.svg")}


def test_a_plot_has_its_numbers_and_both_colour_schemes(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, plot_forms = scripts
    series = plot_forms.Series("Deixis", {"CCA": (14.25, None), "network": (37.5, 0.7)})
    text = plot_forms.svg(plot_forms.Plot("dots", "Recall <by> model", "percent", [series]))
    assert "Deixis: CCA 14.25, network 37.50 ± 0.70" in text
    assert "Recall &lt;by&gt; model" in text
    assert "prefers-color-scheme: dark" in text
    assert text == plot_forms.svg(plot_forms.Plot("dots", "Recall <by> model", "percent", [series]))


def test_categories_keep_the_order_of_every_series(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, plot_forms = scripts
    ours = plot_forms.Series("Deixis", {"CCA": (48.5, None), "+ sampling": (59.9, 0.2)})
    paper = plot_forms.Series("paper", {"linear": (39.6, None), "+ sampling": (51.0, None), "similarity": (51.1, None)})
    plot = plot_forms.Plot("dots", "Table 1", "percent", [ours, paper])
    assert plot.categories == ["CCA", "linear", "+ sampling", "similarity"]
