"""The Python and the recipes on the pages about annotation, evaluation and features run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deixis
from deixis.annotation.project import create_project
from deixis.features.feature_recipe import load_recipe as load_features
from deixis.features.kept import features_for
from deixis.training.recipe import load_recipe

DOCS = Path(deixis.__file__).parents[2] / "docs"
#: The pages whose Python runs elsewhere: test_docs.py, test_tutorials.py, test_python_docs.py, test_research_docs.py.
ELSEWHERE = {"datasets.md", "training.md", "python.md", "research.md", "evaluate-your-model.md", "ground-phrases.md"}

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documents are in the checkout")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), flags=re.DOTALL)


def run(page: str, names: dict[str, Any], **replaced: str) -> None:
    for block in blocks(page, "python"):
        for old, new in replaced.items():
            block = block.replace(old, new)
        exec(compile(block, page, "exec"), names)  # noqa: S102


class Constant:
    """A model of somebody's own."""

    def score(self, images: list[Any], texts: list[str]) -> np.ndarray[Any, Any]:
        return np.zeros((len(images), len(texts)))


def test_the_python_of_every_page_runs_in_some_test() -> None:
    with_python = {page.name for page in DOCS.rglob("*.md") if "```python" in page.read_text("utf-8")}
    assert with_python == ELSEWHERE | {"annotation.md", "evaluation.md", "features.md"}


def test_a_program_answers_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_project("project.db", deixis.cut(deixis.open_corpus("scenes:20"), limit=2))
    names: dict[str, Any] = {}
    run("annotation.md", names)
    with names["Workbench"]("project.db") as bench:
        assert sum(task.judgments for task in bench.progress().tasks.values()) == 1


@pytest.mark.slow
def test_features_are_read_and_a_run_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    corpus = deixis.open_corpus("scenes:20")
    deixis.write_corpus(corpus, tmp_path / "joined", pictures=True)
    Path("flickr8k").symlink_to("joined")
    quick = {"schedule.epochs": 1, "regions": 20, "features.regions.boxes": "grid", "features.regions.count": 20}
    deixis.train("two-branch/demo-phrases", "joined", out="runs/phrases", settings=quick)
    recipe: Any = load_recipe("runs/phrases/recipe.toml").recipe
    store = features_for(deixis.open_corpus("joined"), recipe.features)
    Path("regions.features").symlink_to(store.folder)
    names: dict[str, Any] = {}
    run("features.md", names, **{"1000268201_693b08cb0e": corpus.images[0].id})
    assert names["store"].image_vectors().shape[0] == 20
    scores = np.random.default_rng(0).normal(size=(4, 20))
    run("evaluation.md", {"deixis": deixis, "scores": scores, "my_model": Constant()})


@pytest.mark.parametrize("number", range(3))
def test_a_recipe_of_features_is_read(number: int, tmp_path: Path) -> None:
    (tmp_path / "features.toml").write_text(blocks("features.md", "toml")[number], "utf-8")
    assert load_features(tmp_path / "features.toml").backbone
