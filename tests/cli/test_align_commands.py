"""What people do with an aligner on the command line: align, snippets, vocabulary magnitudes, site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image as Pillow
from typer.testing import CliRunner, Result

from deixis.cli import app
from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.errors import DeixisError, InputError
from deixis.training.recipe import RecipeFile, check_recipe
from deixis.training.running import run_recipe
from tests.stores import make_store, random_boxes

#: Channels of efficientnet-lite0, which `align` looks at pictures with.
CHANNELS = 1280
ALIGNER: dict[str, Any] = {
    "name": "aligner",
    "kind": "alignment",
    "corpus": "scenes",
    "features": {
        "backbone": "efficientnet-lite0",
        "crops": "whole",
        "side": 96,
        "regions": {"boxes": "grid", "count": 12},
    },
    "model": {"dim": 8, "word": 8},
    "word_vectors": "random",
    "regions": 6,
    "schedule": {"epochs": 1, "learning_rate": 1e-3},
}
CAPTIONER: dict[str, Any] = {
    **{name: ALIGNER[name] for name in ("corpus", "features", "schedule")},
    "name": "captioner",
    "kind": "captioner",
    "model": {"word": 8, "hidden": 8},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with pictures, its features, an aligner and a captioner."""
    folder = tmp_path_factory.mktemp("place")
    whole = open_corpus("scenes")
    chosen = [*whole.split("train").images[:12], *whole.split("val").images[:4], *whole.split("test").images[:5]]
    write_corpus(whole.with_images(chosen), folder / "corpus", pictures=True)
    corpus = open_corpus(folder / "corpus")
    store = make_store(folder / "store", corpus, random_boxes(9), channels=CHANNELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(folder / "cache"))
        for settings in (ALIGNER, CAPTIONER):
            recipe = check_recipe(settings, "test")
            run_recipe(RecipeFile("", recipe), corpus, [store], folder / settings["name"], torch.device("cpu"))
    return folder


@pytest.fixture
def corpus(place: Path) -> Corpus:
    return open_corpus(place / "corpus")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def collection(place: Path) -> list[object]:
    return ["--corpus", place / "corpus", "--features", place / "store"]


def test_a_sentence_is_laid_over_a_picture(place: Path, corpus: Corpus, tmp_path: Path) -> None:
    image = corpus.split("test").images[0]
    picture = place / "corpus" / "images" / image.file
    arguments = ["align", picture, "Two dogs chase a ball .", "--model", place / "aligner", "--count", "--json"]
    done = run(*arguments, "--out", tmp_path / "aligned.png")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["tokens"] == ["two", "dogs", "chase", "a", "ball", "."]
    assert [each["start"] for each in found["snippets"]] == [0, *(each["end"] for each in found["snippets"][:-1])]
    assert found["snippets"][-1]["end"] == 6
    assert found["snippets"][0]["text"] == "two dogs"
    assert len(found["snippets"][0]["boxes"]) == 2
    for each in found["snippets"]:
        for x1, y1, x2, y2 in each["boxes"]:
            assert 0 <= x1 < x2 <= image.width
            assert 0 <= y1 < y2 <= image.height
    with Pillow.open(tmp_path / "aligned.png") as drawn:
        assert drawn.width > 600
    again = run(*arguments, "--out", tmp_path / "aligned.png")
    assert isinstance(again.exception, DeixisError)


def test_what_cannot_be_aligned_is_reported(place: Path, tmp_path: Path) -> None:
    picture = next((place / "corpus" / "images").iterdir())
    (tmp_path / "no.png").write_text("no picture")
    write_corpus(open_corpus(place / "corpus"), tmp_path / "elsewhere")
    elsewhere, drawing = ["--corpus", tmp_path / "elsewhere", "--features", place / "store"], tmp_path / "drawing.png"
    for arguments, kind, words in [
        (["align", picture, "a dog", "--model", place / "captioner"], DeixisError, "cannot align"),
        (["align", picture, "  ", "--model", place / "aligner"], DeixisError, "no words"),
        (["align", picture, ". !", "--model", place / "aligner"], DeixisError, "no words"),
        (
            ["align", picture, "xyzzy qwrt", "--model", place / "aligner"],
            DeixisError,
            "does not know any word of 'xyzzy qwrt'",
        ),
        (["align", tmp_path / "no.png", "a dog", "--model", place / "aligner"], InputError, r"no\.png"),
        (["align", picture, "a dog", "--model", place / "aligner", "--out", tmp_path / "a.jpg"], DeixisError, "PNG"),
        (["figures", "snippets", "xyzzy", "--model", place / "aligner", *collection(place)], DeixisError, "xyzzy"),
        (["figures", "site", place / "aligner", *elsewhere, "--out", tmp_path / "site"], DeixisError, "--pictures-in"),
        (
            ["figures", "snippets", "a dog", "--model", place / "aligner", *elsewhere, "--out", drawing],
            DeixisError,
            "--pictures-in",
        ),
    ]:
        done = run(*arguments)
        assert isinstance(done.exception, kind)
        with pytest.raises(kind, match=words):
            raise done.exception


def test_pieces_of_text_find_regions_of_a_collection(place: Path, corpus: Corpus, tmp_path: Path) -> None:
    done = run(
        *["figures", "snippets", "a man", "a dog", "--model", place / "aligner", *collection(place)],
        *["--count", 3, "--out", tmp_path / "found.png", "--json"],
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == ["a man", "a dog"]
    test = {image.id for image in corpus.split("test")}
    for own in found.values():
        assert [each["score"] for each in own] == sorted((each["score"] for each in own), reverse=True)
        assert len({each["image"] for each in own} & test) == len(own) == 3
    assert (tmp_path / "found.png").stat().st_size > 0


def test_regions_are_cut_from_pictures_that_are_smaller_than_those_that_were_looked_at(
    place: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a corpus of small copies that does not tell how large the originals are.
    unknown = [msgspec.structs.replace(image, width=0, height=0) for image in corpus.images]
    write_corpus(corpus.with_images(unknown), tmp_path / "small", pictures=True)
    for path in (tmp_path / "small" / "images").iterdir():
        with Pillow.open(path) as picture:
            half = picture.resize((picture.width // 2, picture.height // 2))
        half.save(path)
    drawn: list[Any] = []

    def draw(rows: Any) -> Pillow.Image:
        drawn.extend(rows)
        return Pillow.new("RGB", (9, 9))

    monkeypatch.setattr("deixis.vision.drawing.pages.draw_regions", draw)
    asked = ["--corpus", tmp_path / "small", "--features", place / "store", "--out", tmp_path / "cut.png", "--json"]
    done = run("figures", "snippets", "a man", "--model", place / "aligner", "--count", 3, *asked)
    assert done.exit_code == 0, done.output
    [(_, cuts)] = drawn
    for cut, report in zip(cuts, json.loads(done.stdout)["a man"], strict=True):
        assert list(msgspec.structs.astuple(cut.box)) == pytest.approx([side / 2 for side in report["box"]], rel=0.01)


def test_words_and_regions_come_by_their_magnitude(place: Path, tmp_path: Path) -> None:
    done = run(
        *["figures", "vocabulary", "magnitudes", place / "aligner", *collection(place)],
        *["--count", 4, "--out", tmp_path / "m.png", "--json"],
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    # Pictures may be kept elsewhere than the corpus.
    write_corpus(open_corpus(place / "corpus"), tmp_path / "elsewhere")
    asked = ["--corpus", tmp_path / "elsewhere", "--features", place / "store", "--count", 4, "--json"]
    there = ["--pictures-in", place / "corpus" / "images", "--out", tmp_path / "again.png"]
    again = run("figures", "vocabulary", "magnitudes", place / "aligner", *asked, *there)
    assert json.loads(again.stdout) == found
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "m.png").read_bytes()
    greatest, least = found["words"]["greatest"], found["words"]["least"]
    assert greatest[0]["magnitude"] >= greatest[-1]["magnitude"] >= least[-1]["magnitude"] >= least[0]["magnitude"]
    assert len(greatest) == len(least) == len(found["regions"]) == 4
    assert (tmp_path / "m.png").stat().st_size > 0


def test_a_site_appears_whole_and_replaces_none_unasked(place: Path, tmp_path: Path) -> None:
    arguments = ["figures", "site", place / "aligner", *collection(place), "--out", tmp_path / "site", "--json"]
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pictures"] == 5
    assert (tmp_path / "site" / "index.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert isinstance(run(*arguments).exception, DeixisError)
    assert run(*arguments, "--force").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site", "site.old"]


def test_regions_are_described_by_what_a_captioner_makes_of_them(place: Path, tmp_path: Path) -> None:
    """With the records of phrases that are found (`--by retrieval`); scores are in the JSON alone."""
    picture = next((place / "corpus" / "images").iterdir())
    ask = ["describe", picture, "--model", place / "captioner", "--by", "generation", "--count", 1]
    done = run(*ask, "--regions", "--most", 3, "--out", tmp_path / "said.png", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    with Pillow.open(picture) as whole:
        assert (found["width"], found["height"], found["captions"]) == (*whole.size, [])
    assert 1 <= len(found["regions"]) <= 3
    for each in found["regions"]:
        assert each.keys() == {"box", "text", "score", "by"}
        assert each["by"] == "generation"
        assert each["score"] < 0
    assert (tmp_path / "said.png").stat().st_size > 0
    for asked in (ask, [*ask, "--regions"]):
        table = run(*asked).stdout
        assert str(picture) in table
        assert ("box" in table) is ("--regions" in asked)
