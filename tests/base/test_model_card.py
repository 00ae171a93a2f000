"""The card of deixis-base says what the result files say, and these are about the bundle as it ships."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deixis.adapters.bundles import open_bundle, thresholds_hash

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
BUNDLE = ROOT / "src/deixis/base/bundle"
#: By protocol and corpus, the file and where in it the figures are.
FILES = {
    ("search engine, 1,000 pictures", "Flickr8k, test"): ("search/quality.json", ()),
    ("search engine, 1,000 pictures", "COCO-mini, two folds, test"): ("search/quality-coco-mini.json", ()),
    ("phrase localization", "flickr8k, test"): (
        "base/deixis-base.phrase-localization.flickr8k-test.json",
        ("metrics",),
    ),
    ("caption metrics", "flickr8k, test"): ("base/deixis-base.captions.flickr8k-test.json", ("metrics",)),
    **{
        (protocol, f"{corpus}, test"): (f"base/deixis-base.{name}.{corpus}-test.json", ("metrics", part))
        for protocol, name, part in (
            ("caption twins", "caption-twins", "twins"),
            ("two objects of one name", "two-objects", "two_objects"),
        )
        for corpus in ("flickr8k", "coco-mini")
    },
}


def rows(section: str) -> list[list[str]]:
    """The table of a section of the card."""
    text = (BUNDLE / "README.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def read(file: str) -> Any:
    return json.loads((RESULTS / file).read_text())


def figure(found: Any, name: str) -> float:
    """The figure of a path such as `overall.r@1`; kinds of choices have a place of their own."""
    for part in name.split("."):
        found = found[part] if part in found else found["by_kind"][part]
    return float(found)


def test_every_figure_of_the_card_is_in_a_result_file() -> None:
    shown = rows("Results")
    assert {(protocol, corpus) for _, protocol, corpus, _, _ in shown} == FILES.keys()
    for _, protocol, corpus, name, value in shown:
        file, path = FILES[protocol, corpus]
        found = read(file)
        for part in path:
            found = found[part]
        # COCO's mean of two folds ends in a 5 here and there, which may be rounded either way.
        assert float(value) == pytest.approx(figure(found, name), abs=0.0501), (file, name)


def test_the_result_files_are_about_the_bundle_as_it_ships() -> None:
    hashes = open_bundle("deixis-base").manifest.files["weights.safetensors"].sha256
    weights = open_bundle("deixis-base").manifest.weights_sha256
    for file, _ in FILES.values():
        record = read(file)
        if "model" in record:
            assert weights[:12] in record["model"], file
        elif "captions" not in file:
            parameters = record["protocol"]["parameters"]
            assert (parameters["weights_sha256"], parameters["bundle_sha256"]) == (weights, hashes), file
    assert weights in (BUNDLE / "README.md").read_text()


def test_the_result_files_of_search_are_about_the_thresholds_that_ship() -> None:
    shipped = thresholds_hash(open_bundle("deixis-base").manifest.thresholds)
    named = {file.name: found for file in (RESULTS / "search").glob("*.json") if (found := thresholds_of(file))}
    assert {"relevance.json", "quality.json", "quality-coco-mini.json"} <= named.keys()
    assert {name for name, found in named.items() if found != shipped} == set()


def thresholds_of(file: Path) -> str | None:
    found = json.loads(file.read_text()).get("thresholds")
    return found if isinstance(found, str) else None


def test_the_kinds_of_queries_are_those_that_were_judged() -> None:
    judged = read("search/forty_queries.json")["by_kind"]
    shown = rows("By kind of query")
    assert [name for name, *_ in shown] == [*judged]
    for name, queries, right, precision in shown:
        figures = judged[name]
        assert int(queries) == figures["queries"]
        if right.isdecimal():
            assert int(right) == figures["answer_right"]
        else:
            assert (right, figures["said_absent"]) == ("refused", figures["queries"])
        if re.fullmatch(r"[\d.]+", precision):
            assert float(precision) == pytest.approx(figures["precision_at_5"], abs=0.0051)


def test_the_size_and_the_number_of_captions_are_those_of_the_files() -> None:
    card = (BUNDLE / "README.md").read_text()
    size = sum(record.bytes for record in open_bundle("deixis-base").manifest.files.values())
    assert f"A Deixis bundle of {size / 1e6:.1f} MB" in card
    counts = read("base/deixis-base.captions.flickr8k-test.json")["counts"]
    assert f"Of {counts['images']:,} captions {counts['different']} are different" in card
