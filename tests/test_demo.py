"""The demo learns something, its figures are those of its result files, and its page shows pictures that are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from PIL import Image as Pillow
from typer.testing import CliRunner

from deixis.cli import app
from deixis.cli.demo_walk import Outcome, run_demo
from deixis.metrics.results import load

SCENES = 96


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, dict[str, list[Sequence[str]]]]:
    said: dict[str, list[Sequence[str]]] = {}

    def say(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        said[title] = [columns, *rows]

    return run_demo(tmp_path_factory.mktemp("demo"), say, lambda done, total: None, SCENES), said


def test_the_networks_are_scored_and_said(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    outcome, said = demo
    metrics = {path.stem: load(path).metrics for path in outcome.results}
    retrieval = next(rows for title, rows in said.items() if title.startswith("2."))
    recall: Any = metrics["embedding-network-image-text-ranking"]["image_to_text"]
    assert retrieval[1][1] == f"{recall['r@1']:.1f}"
    # Among 12 images chance is 42.
    found_by_text: Any = metrics["embedding-network-image-text-ranking"]["text_to_image"]
    assert found_by_text["r@5"] > 65
    pointing = next(rows for title, rows in said.items() if title.startswith("3."))
    for row, name in zip(pointing[1:], ("cca", "embedding-network"), strict=True):
        found: Any = metrics[f"{name}-phrase-localization"]["localization"]
        assert row[1] == f"{found['overall']['r@1']:.1f}"
        # A region at random of a hundred; what is learned of this few scenes is still far above it.
        assert found["overall"]["r@10"] > 20


def test_words_are_aligned_and_captions_written(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    outcome, said = demo
    metrics: Any = {path.stem: load(path).metrics for path in outcome.results}
    rows = next(rows for title, rows in said.items() if title.startswith("4."))
    assert rows[2][1] == f"{metrics['aligner-phrase-alignment']['alignment']['overall']['r@1']:.1f}"
    assert rows[4][1] == f"{metrics['captioner-captioning']['captions']['bleu_1']:.1f}"
    # Words of which nothing is learned are said by their frequency alone.
    assert metrics["captioner-captioning"]["captions"]["bleu_1"] > 20


def test_its_tables_fit_a_narrow_terminal(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    for title, rows in demo[1].items():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        assert max(len(title), sum(widths) + 3 * len(widths) + 1) <= 80


def test_captions_of_the_page_are_written_as_people_write(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    page = re.sub("<[^>]*>", "", demo[0].page.read_text(encoding="utf-8"))
    assert "." in page
    assert not re.search(r"\w [.,](\s|”)", page)


def test_every_picture_of_the_page_is_there(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    page = demo[0].page.read_text(encoding="utf-8")
    addresses = set(re.findall(r'(?:href|src)="([^"]+)"', page))
    assert len(addresses) > 10
    for address in addresses:
        with Pillow.open(demo[0].page.parent / address) as picture:
            picture.verify()
    assert "<script" not in page


def test_the_drawings_are_pictures(demo: tuple[Outcome, dict[str, list[Sequence[str]]]]) -> None:
    for drawing in demo[0].drawings:
        with Pillow.open(drawing) as picture:
            assert picture.format == "PNG"
            assert picture.width > 320


@pytest.mark.slow
@pytest.mark.parametrize("command", ["figures site", "figures map", "figures gallery", "localize compare"])
def test_the_printed_commands_work_in_under_a_minute(
    demo: tuple[Outcome, dict[str, list[Sequence[str]]]], command: str
) -> None:
    outcome, _ = demo
    (printed,) = (each for each in outcome.commands if each.startswith(f"deixis {command} "))
    words = shlex.split(printed)
    began = process_time()
    answered = CliRunner().invoke(app, words[1:])
    assert answered.exit_code == 0, answered.output
    assert Path(words[-1]).exists()
    # CPU time of all threads: no less than what one waits on an idle machine.
    assert process_time() - began < 60
