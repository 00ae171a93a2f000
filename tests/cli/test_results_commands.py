"""`deixis results` as a person types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deixis.cli import app
from deixis.metrics.paper_tables import PAPERS
from deixis.metrics.results import CorpusReference, Protocol, json_schema, make_result, save

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    metrics = {"image_to_text": {"r@1": 30.0, "r@5": 55.0}, "text_to_image": {"r@1": 20.0}}
    for seed in range(2):
        result = make_result(
            Protocol("retrieval", "pessimistic", {"captions_per_image": 5}),
            metrics,
            corpus=CorpusReference("scenes", "f" * 64, "test", "a" * 64),
            rows=["entities-cca/table5/sae"],
            seed=seed,
            duration=1,
        )
        save(result, tmp_path / "results" / f"sae-{seed}.json")
    return tmp_path / "results"


def output(*arguments: object) -> str:
    done = RUNNER.invoke(app, ["results", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*arguments: object, cwd: Path) -> str:
    command = [sys.executable, "-m", "deixis", "results", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_show_prints_what_was_scored_and_every_figure(folder: Path) -> None:
    text = output("show", folder / "sae-1.json")
    assert "protocol: retrieval; captions_per_image = 5" in text
    assert "reproduces: entities-cca/table5/sae" in text
    assert "image_to_text.r@5" in text
    assert json.loads(output("show", folder / "sae-1.json", "--json")) == json.loads(
        (folder / "sae-1.json").read_text()
    )


def test_schema_prints_the_packaged_schema() -> None:
    assert output("schema").encode() == json_schema()


def test_papers_lists_tables_and_rows() -> None:
    assert "concepts-order/table2-mscoco" in output("papers")
    assert "entities-cca/table5/weighted-distance" in output("papers", "entities-cca/table5")
    assert len(json.loads(output("papers", "--json"))) == 26


def test_table_prints_only_tables_with_our_results_unless_asked(folder: Path) -> None:
    text = output("table", "--results", folder)
    assert "### Table 5" in text
    assert "### Table 1" not in text
    assert "**30.0 ± 0.0**" in text
    assert output("table", "--results", folder, "--paper", "entities-cca", "--table", 5) == text
    assert json.loads(output("table", "--results", folder, "--json"))["tables"][0]["table"] == "entities-cca/table5"


def test_the_pages_have_the_tables_with_results_and_name_the_others(folder: Path) -> None:
    pages = folder.parent / "docs" / "results"
    output("pages", "--results", folder, "--out", pages)
    first = {page.name: page.read_text("utf-8") for page in pages.iterdir()}
    output("pages", "--results", folder, "--out", pages, "--force")
    assert {page.name: page.read_text("utf-8") for page in pages.iterdir()} == first
    assert set(first) >= {"index.md", *(f"{paper}.md" for paper in PAPERS)}
    assert re.findall(r"(?m)^## (Table \d+)", first["entities-cca.md"]) == ["Table 5"]
    assert "Tables without a result of ours: 1 (" in first["entities-cca.md"]
    assert sum(text.count("\n## Table ") for text in first.values()) == 1
    links = re.findall(r"\]\(([^)]+\.json)\)", first["entities-cca.md"])
    assert links
    assert all((pages / link).exists() for link in links)


def test_papers_tables_need_no_folder_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "HM-LSTM" in output("table", "--paper", "hm-lstm", "--table", 4)


def test_faults_are_one_line_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    assert "entities-cca has no table 9" in refusal("table", "--paper", "entities-cca", "--table", 9, cwd=tmp_path)
    assert "no paper '9'; the papers are entities-cca" in refusal("table", "--paper", 9, cwd=tmp_path)
    assert "--table needs --paper" in refusal("table", "--table", 9, cwd=tmp_path)
    assert "--all excludes" in refusal("table", "--all", "--paper", "dvsa", cwd=tmp_path)
    assert "no such folder" in refusal("table", "--results", "nowhere", cwd=tmp_path)
    assert "unknown table 'paper9'" in refusal("papers", "paper9", cwd=tmp_path)
    (folder / "sae-1.json").write_text('{"schema": 1}')
    assert "sae-1.json: metrics" in refusal("show", folder / "sae-1.json", cwd=tmp_path)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    assert "--all prints the papers' tables" in refusal("table", cwd=tmp_path)
