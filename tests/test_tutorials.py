"""The tutorials work: their commands and their Python run, in order, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import deixis
from deixis.cli import main

ROOT = Path(deixis.__file__).parent.parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
NOTEBOOK = ROOT / "docs" / "tutorials" / "researcher-tour.ipynb"
#: Too long for `make test`, which runs the commands of the annotation tutorial in tests/cli.
SLOW = {"annotate-with-a-team", "fine-tune", "reproduce-a-table"}
MINUTES = [pytest.mark.slow, pytest.mark.timeout(3600)]
#: Commands that run until Ctrl-C.
SERVERS = (["deixis", "serve"], ["deixis", "annotate", "serve"])
#: Allowed to say that nothing was found, or that something is wrong.
MAY_FIND_NOTHING = (["deixis", "doctor"], ["deixis", "search"])
#: What a tutorial has when it cannot be run as written: smaller or fewer.
SMALLER = {
    "evaluate-your-model": {'("deixis-base"), "scenes"': '("deixis-base"), "scenes:100"'},
    "reproduce-a-table": {"--limit 300": "--limit 60", " --set sampler.n": " --set schedule.epochs=1 --set sampler.n"},
}

pytestmark = pytest.mark.skipif(not TUTORIALS, reason="the tutorials are in the checkout")


@pytest.mark.parametrize(
    "tutorial",
    [pytest.param(path, marks=MINUTES if path.stem in SLOW else [], id=path.stem) for path in TUTORIALS],
)
def test_a_tutorial_runs(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEIXIS_INDEX", str(tmp_path / "index"))
    text = tutorial.read_text("utf-8")
    for longer, shorter in SMALLER.get(tutorial.stem, {}).items():
        text = text.replace(longer, shorter)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```(bash|python)\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for language, block in blocks:
        if language == "python":
            exec(compile(block, tutorial.name, "exec"), names)  # noqa: S102
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if any(words[: len(server)] == server for server in SERVERS):
                continue
            code = _run(words, monkeypatch)
            allowed = (0, 1) if any(words[: len(command)] == command for command in MAY_FIND_NOTHING) else (0,)
            assert code in allowed, line
    if "chance" in names:  # "three times as many pictures among the first ten as chance"
        assert 2.5 < names["result"].figures["text_to_image.r@10"] / names["chance"]["text_to_image"]["r@10"] < 3.5


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On fewer scenes; the outputs in the file are those of the whole tour."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    shown: list[Any] = []
    names: dict[str, Any] = {"display": shown.append}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"], "run the notebook before you commit it"
            source = "".join(cell["source"]).replace("scenes:200", "scenes:30").replace('epochs": 8', 'epochs": 1')
            exec(compile(source, NOTEBOOK.name, "exec"), names)  # noqa: S102
    assert [type(picture).__name__ for picture in shown] == ["Image", "Image", "Image", "Figure"]
    assert "[0 1 2 3 4 5 6 7 8 9]" in capsys.readouterr().out


def test_the_notebook_becomes_a_page_with_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from notebook_pages import on_page_markdown, page

    text = page(NOTEBOOK)
    assert text.startswith("# A researcher's tour")
    assert text.count("data:image/png;base64,") == 4
    assert on_page_markdown("[tour](tutorials/tour.ipynb)") == "[tour](tutorials/tour.md)"


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    assert words[0] == "deixis", words
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)
