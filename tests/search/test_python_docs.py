"""The snippets of docs/python.md run as written, with a small model and a small recipe in place of the package's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

import deixis
from deixis import SearchEngine, load_model
from deixis.corpus import Corpus
from deixis.loading import load_search_model
from deixis.model import ImageFeatures
from deixis.search.indexing import index_folders
from deixis.training.recipe import load_recipe
from deixis.vision.reading import read_picture

DOCUMENT = Path(deixis.__file__).parents[2] / "docs" / "python.md"


#: A paper's recipe with features and texts that take seconds.
SMALL = [
    "features={backbone='efficientnet-lite0', crops='squash'}",
    "text={kind='tfidf'}",
    "model={kind='embedding', image=[16], text=[16]}",
    "schedule.epochs=1",
]


class Sizes:
    """A model of somebody's own: compares the sizes of pictures with the lengths of texts."""

    def score(self, images: Sequence[Pillow.Image], texts: Sequence[str]) -> NDArray[np.float64]:
        return np.array([[image.width / (1 + len(text)) for text in texts] for image in images])


@pytest.fixture
def place(untrained_bundle: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pictures and an index of them; the model is the package's own."""
    monkeypatch.setattr("deixis.adapters.bundles.packaged_folder", lambda: untrained_bundle)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for name, image in zip(("a.jpg", "b.jpg"), corpus, strict=False):
        read_picture(corpus, image).save(tmp_path / name)
    for name, image in zip(("street.jpg", "beach.jpg"), corpus, strict=False):
        read_picture(corpus, image).save(tmp_path / name)
        read_picture(corpus, image).save(tmp_path / "pictures" / name)
    index_folders(tmp_path / "my-index", [tmp_path / "pictures"], load_search_model("deixis-base"), "deixis-base")
    return tmp_path


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the documents are in the checkout")
def test_snippets_run_and_print_what_they_promise(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(place / "cache"))
    monkeypatch.setattr("deixis.training.running.load_recipe", lambda name, changes: load_recipe(name, SMALL))
    snippets = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    scores = np.random.default_rng(0).normal(size=(4, 20))
    names: dict[str, Any] = {"scores": scores, "my_model": Sizes(), "corpus": deixis.open_corpus("scenes:40")}
    printed = []
    for snippet in snippets:
        lines = [line for line in snippet.splitlines() if line and not line.startswith(("from ", "import "))]
        assert len(lines) <= 8
        exec(compile(snippet, "python.md", "exec"), names)  # noqa: S102
        printed.append(capsys.readouterr().out)
    _, found, pointed, said, compared, scored, decided = printed
    assert {line.split()[0].rpartition("/")[2] for line in found.splitlines()} == {"street.jpg'", "beach.jpg'"}
    assert [line.split(" (")[0] for line in pointed.splitlines()] == ["a man", "a red shirt"]
    assert len(said.splitlines()) == 3
    assert np.array(re.findall(r"-?\d\.\d+", compared), float).shape == (4,)
    assert re.fullmatch(r"\[[01] [01]\]\s*", scored)
    assert decided.strip() in ("0", "1")
    assert deixis.load_model("runs/bi").abilities >= {"embed_images", "embed_texts", "score"}


@pytest.mark.usefixtures("place")
def test_one_door_gives_what_the_document_says() -> None:
    model = deixis.load_model("deixis-base")
    assert model.abilities == {"embed_images", "embed_texts", "score", "localize", "ground", "describe"}
    assert model.embed_images(["a.jpg", "b.jpg"]).shape == (2, 16)
    assert model.score(["a.jpg"], ["two dogs in the snow"]).shape == (1, 1)
    assert [each.phrase for each in model.ground("a.jpg", ["a man", "a red shirt"])] == ["a man", "a red shirt"]
    assert len(model.describe("a.jpg", count=3)) == 3
    seen = model.look("a.jpg")
    assert model.ground(seen, "a man in a red shirt") == model.ground("a.jpg", "a man in a red shirt")
    assert model.describe(seen) == model.describe("a.jpg")
    assert np.allclose(model.embed_images([seen]), model.embed_images(["a.jpg"]), atol=1e-6)
    with pytest.raises(
        deixis.CannotError, match=r"^deixis-base cannot align; it can: embed_images, embed_texts, score"
    ):
        model.align("a.jpg", "a man")
    features = ImageFeatures(np.zeros(4), None, None, (9, 9))
    with pytest.raises(deixis.DeixisError, match="takes paths and PIL pictures, not ImageFeatures"):
        model.embed_images([features])


def test_embeddings_are_those_of_the_index(place: Path) -> None:
    model, engine = load_model(), SearchEngine("my-index")
    rows = model.embed_images(["street.jpg", Pillow.open(place / "beach.jpg").convert("RGB")])
    stored = engine.collection.embeddings_of(engine.collection.ids)
    assert sorted(map(tuple, np.round(rows, 2).tolist())) == sorted(map(tuple, np.round(stored, 2).tolist()))
    assert model.embed_images([]).shape == (0, 16)
    assert np.allclose((rows @ rows.T).diagonal(), 1, atol=1e-5)
