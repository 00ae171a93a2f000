"""The snippets of docs/research.md run as they are written, and the page names every public name and metric."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import deixis
from deixis.vision.reading import read_picture

DOCUMENT = Path(deixis.__file__).parents[2] / "docs" / "research.md"

pytestmark = pytest.mark.skipif(not DOCUMENT.exists(), reason="the documents are in the checkout")


def test_snippets_run_and_print_what_they_promise(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    corpus = deixis.open_corpus("scenes:60")
    read_picture(corpus, corpus.split("test").images[0]).save("street.jpg")
    printed, names = [], dict[str, Any]()
    for snippet in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL):
        code = [line for line in snippet.splitlines() if line and not line.startswith(("import ", "from "))]
        assert len(code) <= 10
        exec(compile(snippet, "research.md", "exec"), names)  # noqa: S102
        printed.append(capsys.readouterr().out)
    recall, result, matched, loss, grounded = printed
    assert 0 < float(recall.split()[0]) < 20
    assert 30 < float(recall.split()[1]) < 70
    assert result.startswith("image-text ranking on scenes test (5 images")
    assert matched == "[0 1 2 3 4 5 6 7 8 9]\n"
    fresh = deixis.TwoBranchEmbedding(50, 50, names["EmbeddingRecipe"](image=(64, 16), text=(64, 16)))
    sides = (fresh.embed_images(names["pictures"][:100]), fresh.embed_texts(names["texts"][:100]))
    assert float(loss) < deixis.ranking_loss(*sides, torch.eye(100).bool()).item() / 10
    assert [line.split(" (")[0] for line in grounded.splitlines()] == ["a man", "a red car"]


def test_every_public_name_and_metric_is_on_the_page() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    names = [*deixis.__all__, *deixis.metrics.__all__]
    assert [name for name in names if f"`{name}`" not in page and name != "__version__"] == []
