"""`deixis describe`, `concepts`, `explain`, `map` and `evaluate order` on tiny runs, as a person types them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image as Pillow

from deixis.cli import main
from deixis.corpus import Corpus, open_corpus, write_corpus
from deixis.loading import load_model
from deixis.papers.concepts_order.concepts import BUNDLED
from deixis.text.chunker import Chunker
from deixis.text.concept_words import TaggedWord, count_concepts
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.text.treebank import chunk_tree, corpus_texts
from deixis.text.trees import write_trees
from deixis.text.twins import Twins, write_twins
from deixis.training.recipe import RecipeFile, check_recipe, load_recipe
from deixis.training.run_models import read_recipe
from deixis.training.running import run_recipe, stores_for

Run = Callable[..., tuple[int, str, str]]
FEATURES = {"backbone": "efficientnet-lite0", "crops": "whole", "side": 64, "regions": {"boxes": "grid", "count": 9}}
SCHEDULE = {"epochs": 2, "learning_rate": 1e-2}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deixis", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a small corpus, a picture of it, and runs: `hm`, `concepts`, `order`, `context`."""
    folder = tmp_path_factory.mktemp("made")
    whole = open_corpus("scenes")
    chosen = [image for split, count in (("train", 24), ("val", 6)) for image in whole.split(split).images[:count]]
    write_corpus(whole.with_images(chosen), folder / "corpus", pictures=True)
    corpus = open_corpus(folder / "corpus")
    assert corpus.pictures is not None
    (folder / "picture.png").write_bytes(corpus.pictures.read(corpus.images[-1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEIXIS_CACHE", str(folder / "cache"))
        for name, settings in (("hm", _hm(folder, corpus)), ("concepts", _concepts(folder, corpus))):
            _train(folder, corpus, name, settings)
        order = {
            "kind": "concepts-order",
            "features": FEATURES,
            "concepts": str(folder / "concepts"),
            "model": {"hidden": 8, "word": 6, "longest": 12},
            "mismatched": 15,
            "text": {"kind": "tokens"},
        }
        _train(folder, corpus, "order", order)
        _train(folder, corpus, "context", order | {"concepts": ""})
        yield folder


def _size(path: Path) -> tuple[int, int]:
    with Pillow.open(path) as picture:
        return picture.size


def _train(folder: Path, corpus: Corpus, name: str, settings: dict[str, Any]) -> None:
    recipe = check_recipe({"name": name, "corpus": "corpus", "schedule": SCHEDULE, **settings}, name)
    run_recipe(RecipeFile("", recipe), corpus, stores_for(recipe, corpus), folder / name, torch.device("cpu"))


def _hm(folder: Path, corpus: Corpus) -> dict[str, Any]:
    texts = corpus_texts(corpus)
    spans = Chunker.load().phrases_of(texts)
    trees = [(tokens, chunk_tree(len(tokens), own)) for tokens, own in zip(texts, spans, strict=True)]
    write_trees(folder / "trees.jsonl", trees)
    words = sorted({word for tokens in texts for word in tokens})
    random = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{value:.3f}' for value in random.normal(size=6))}" for word in words]
    (folder / "words.vec").write_text("\n".join([f"{len(words)} 6", *lines, ""]))
    return {
        "kind": "hm-lstm",
        "features": FEATURES,
        "text": {"trees": str(folder / "trees.jsonl"), "vectors": str(folder / "words.vec")},
        "model": {"hidden": 7, "dim": 8},
        "alternation": {"coarse": 1, "rounds": 1},
        "regions": 5,
        "batch": 16,
    }


def _concepts(folder: Path, corpus: Corpus) -> dict[str, Any]:
    words = ("man", "woman", "dog", "girl", "boy", "red", "blue", "snow")
    captions = tokens_of_captions(corpus)
    tagged = [[TaggedWord(word, word, "noun" if word in words else "") for word in tokens] for tokens in captions]
    count_concepts(tagged).save(folder / "concepts.tsv")
    return {"kind": "concepts", "features": FEATURES, "vocabulary": {"file": str(folder / "concepts.tsv")}}


def test_regions_are_described_from_the_phrases_of_the_training_captions(run: Run, made: Path, tmp_path: Path) -> None:
    picture = made / "picture.png"
    ask = ("describe", picture, "--model", made / "hm", "--regions", "--count", 2, "--most", 3, "--json")
    code, out, _ = run(*ask, "--out", tmp_path / "drawn.png")
    assert code == 0
    found = json.loads(out)
    assert (found["width"], found["height"], found["captions"]) == (*_size(picture), [])
    assert 1 <= len({tuple(each["box"]) for each in found["regions"]}) <= 3
    training = " | ".join(
        " ".join(tokens_of(caption))
        for image in open_corpus(made / "corpus").split("train")
        for caption in image.captions
    )
    for each in found["regions"]:
        assert each.keys() == {"box", "text", "score", "by"}
        assert each["by"] == "retrieval"
        assert each["text"] in training
    assert _size(tmp_path / "drawn.png")[0] > 800
    # What was drawn is not drawn over, and a second asking finds the same with what the first kept.
    assert run(*ask, "--out", tmp_path / "drawn.png")[0] == 2
    assert run(*ask)[1] == out


def test_a_bank_can_be_given(run: Run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "bank.txt").write_text("A red dog\nsnow\n")
    ask = ("describe", made / "picture.png", "--model", made / "hm", "--bank", tmp_path / "bank.txt", "--json")
    found = json.loads(run(*ask)[1])
    assert {each["text"] for each in found["captions"]} == {"a red dog", "snow"}
    (tmp_path / "bank.txt").write_text("\n")
    code, _, err = run(*ask)
    assert (code, "has no phrase" in err) == (2, True)


def test_pictures_are_described_by_what_a_run_generates(run: Run, made: Path, tmp_path: Path) -> None:
    pictures = [made / "picture.png", tmp_path / "other.png"]
    Pillow.new("RGB", (50, 40), "red").save(pictures[1])
    ask = ("describe", *pictures, "--model", made / "order", "--count", 2)
    code, out, _ = run(*ask, "--json", "--out", tmp_path / "drawings")
    assert code == 0
    for picture, found in zip(pictures, map(json.loads, out.splitlines()), strict=True):
        assert found["picture"] == str(picture)
        assert [each["by"] for each in found["captions"]] == ["generation"] * 2
        assert found["captions"][0]["score"] >= found["captions"][1]["score"]
        assert (tmp_path / "drawings" / picture.name).exists()
    code, _, err = run(*ask, "--by", "retrieval")
    assert (code, "--bank" in err) == (2, True)
    code, _, err = run(*ask, "--by", "generation", "--regions")
    assert (code, "cannot describe_regions" in err) == (2, True)


def test_a_picture_that_cannot_be_read_leaves_the_others_described(run: Run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    good = made / "picture.png"
    ask = ("describe", tmp_path / "broken.jpg", good, tmp_path / "gone.jpg", "--model", made / "hm", "--json")
    code, out, err = run(*ask)
    assert code == 2
    assert [json.loads(line)["picture"] for line in out.splitlines()] == [str(good)]
    broken, gone = err.splitlines()
    assert "broken.jpg" in broken
    assert "gone.jpg" in gone


def test_concepts_are_listed_with_the_place_where_they_fire(run: Run, made: Path, tmp_path: Path) -> None:
    for name in ("concepts", "order"):
        ask = ("concepts", made / "picture.png", "--model", made / name, "--count", 4)
        code, out, _ = run(*ask, "--json", "--out", tmp_path / f"{name}.png")
        assert code == 0
        found = json.loads(out)["concepts"]
        confidences = [each["confidence"] for each in found]
        assert confidences == sorted(confidences, reverse=True)
        assert len(found) == 4
        assert all(each["box"] is None or len(each["box"]) == 4 for each in found)
        assert _size(tmp_path / f"{name}.png")[0] > 800
    assert found[0]["concept"] in run(*ask)[1]
    code, _, err = run("concepts", made / "picture.png", "--model", made / "hm")
    assert (code, "cannot list concepts" in err) == (2, True)


def test_without_a_run_the_concepts_of_photos_that_come_with_the_package_are_listed(run: Run, made: Path) -> None:
    stored, built_in = read_recipe(BUNDLED), load_recipe("concepts-order/concepts-learned").recipe
    assert replace(stored, about="") == replace(built_in, about="")
    code, out, _ = run("concepts", made / "picture.png", "--count", 300, "--json")
    found = {each["concept"] for each in json.loads(out)["concepts"]}
    assert (code, len(found)) == (0, 256)
    ask = ("explain", made / "picture.png", "A man chases a zebra.", "--against", "A zebra chases a man.")
    report = json.loads(run(*ask, "--json")[1])
    assert ([asked["word"] for asked in report["concepts"]], report["other_words"]) == (["man", "chases"], ["zebra"])
    # By deixis-base, as it compares sentences about one picture.
    scores = load_model().score_texts(made / "picture.png", ["a man chases a zebra .", "a zebra chases a man ."])
    assert (report["order"]["score"], report["order"]["exchanged_score"]) == pytest.approx(tuple(scores), abs=1e-4)
    assert [(change["kind"], change["word"]) for change in report["changes"]] == [("role", "man")]
    coloured = ("explain", made / "picture.png", "Two dogs near a red car.", "--against", "A red dog.")
    changes = json.loads(run(*coloured, "--json")[1])["changes"]
    assert [change["kind"] for change in changes] == ["colour", "number", "number"]
    sentences = ["two dogs near a red car .", *(change["sentence"] for change in changes)]
    own, *others = load_model().score_texts(made / "picture.png", sentences).tolist()
    assert [change["score"] for change in changes] == pytest.approx(others, abs=1e-4)
    assert [change["supported"] for change in changes] == [own > other for other in others]
    assert "With one thing changed" in run(*coloured)[1]


def test_a_sentence_is_explained(run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "A man and a zebra see a dog."
    ask = (
        "explain",
        made / "picture.png",
        sentence,
        "--model",
        made / "order",
        "--against",
        "A dog and a zebra see a man.",
    )
    report = {}
    for least in (0, 1):
        monkeypatch.setattr("deixis.cli.explanation.SUPPORTED", least)
        code, out, _ = run(*ask, "--json", "--out", tmp_path / f"{least}.png")
        assert code == 0
        report[least] = json.loads(out)
    assert [asked["word"] for asked in report[0]["concepts"]] == ["man", "dog"]
    assert all(asked["supported"] for asked in report[0]["concepts"])
    assert not any(asked["supported"] for asked in report[1]["concepts"])
    assert report[0]["other_words"] == ["zebra", "see"]
    order = report[0]["order"]
    assert order["matters"] == (abs(order["score"] - order["exchanged_score"]) > 1e-6)
    assert order["leads"] == (order["matters"] and order["score"] > order["exchanged_score"])
    code, out, _ = run(*ask)
    assert (code, "Words that are not concepts of this model: zebra, see" in out, "Order:" in out) == (0, True, True)
    same = run("explain", made / "picture.png", sentence, "--model", made / "order", "--against", sentence, "--json")[1]
    assert json.loads(same)["order"]["matters"] is False
    alone = json.loads(run("explain", made / "picture.png", sentence, "--model", made / "concepts", "--json")[1])
    assert alone["order"] is None
    assert "cannot score sentences" in alone["no_order"]
    ask = ("explain", made / "picture.png", sentence, "--model", made / "context", "--against", "A dog.")
    assert json.loads(run(*ask, "--json")[1])["concepts"] == []
    assert "\nOrder:" in run(*ask)[1]
    plural = ("explain", made / "picture.png", "Two dogs chase a cat.", "--model", made / "context")
    assert "two nouns, both singular or both plural" in json.loads(run(*plural, "--json")[1])["no_order"]


def test_a_map_is_one_file_that_fetches_nothing(run: Run, made: Path, tmp_path: Path) -> None:
    ask = ("figures", "map", made / "hm", "--corpus", made / "corpus", "--split", "val", "--count", 4)
    ask += ("--out", tmp_path / "map.html")
    code, out, _ = run(*ask, "--png", tmp_path / "map.png", "--method", "pca", "--json")
    assert code == 0
    found = json.loads(out)
    kinds = [point["kind"] for point in found["points"]]
    assert kinds.count("image") == 4
    assert {"caption", "region", "phrase"} <= set(kinds)
    for point in found["points"]:
        assert 0 <= point["x"] <= 1
        assert 0 <= point["y"] <= 1
        if point["to"] is not None:
            other = found["points"][point["to"]]
            assert other["picture"] == point["picture"]
            assert other["kind"] == {"caption": "image", "phrase": "region"}[point["kind"]]
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "http://" not in page
    assert "https://" not in page
    assert _size(tmp_path / "map.png")[0] > 1000
    assert run(*ask)[0] == 2
    few = ("--split", "val", "--count", 5)
    order = ("figures", "map", made / "order", "--corpus", made / "corpus", "--out", tmp_path / "o.html", *few)
    assert run(*order)[0] == 0
    code, _, err = run("figures", "map", made / "concepts", "--corpus", made / "corpus", "--out", tmp_path / "c.html")
    assert (code, "no common space" in err) == (2, True)


def test_a_corpus_need_not_be_given_where_the_recipe_names_it(
    run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("figures", "map", made / "order", "--out", tmp_path / "o.html", "--count", 2, "--method", "pca")
    ask += ("--split", "val")
    code, _, err = run(*ask)
    assert (code, "order needs the corpus 'corpus'; give its path with --corpus PATH" in err) == (2, True)
    monkeypatch.chdir(made)
    assert run(*ask)[0] == 0
    assert run("corpus", "cut", made / "corpus", tmp_path / "corpus", "--limit", 5, "--pictures")[0] == 0
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*ask, "--force")
    assert (code, "was trained on another corpus than its recipe's 'corpus'; give the one" in err) == (2, True)


def test_order_is_scored_from_a_file(run: Run, made: Path, tmp_path: Path) -> None:
    image = open_corpus(made / "corpus").split("val").images[0]
    pairs = [Twins(image.id, "on", "a man on a dog", "a dog on a man"), Twins(image.id, "on", "a dog", "a dog")]
    write_twins(tmp_path / "twins.jsonl", pairs)
    ask = (
        "evaluate",
        "order",
        made / "order",
        "--corpus",
        made / "corpus",
        "--twins",
        tmp_path / "twins.jsonl",
        "--split",
        "val",
    )
    code, out, _ = run(*ask, "--json", "--out", tmp_path / "order.json")
    assert code == 0
    order = json.loads(out)["metrics"]["order"]
    assert (order["pairs"], order["ties"]) == (2, 1)
    assert json.loads((tmp_path / "order.json").read_text())["protocol"]["name"] == "order of words"
    assert "order.accuracy" in run(*ask)[1]


def test_random_rows_have_their_command(run: Run, made: Path) -> None:
    code, out, _ = run("evaluate", "random", made / "corpus", "--split", "val", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["text_to_image"]["r@1"] == pytest.approx(100 / 6)
    assert (
        "strings.region_to_phrase.r@1" in run("evaluate", "random", made / "corpus", "--split", "val", "--regions")[1]
    )


def test_a_gallery_shows_what_runs_retrieve_for_the_same_pictures(run: Run, made: Path, tmp_path: Path) -> None:
    ask = (
        "figures",
        "gallery",
        made / "hm",
        made / "order",
        "--corpus",
        made / "corpus",
        "--split",
        "val",
        "--count",
        2,
    )
    code, out, _ = run(*ask, "--out", tmp_path / "page", "--json")
    assert code == 0
    pictures = json.loads(out)["pictures"]
    assert len(pictures) == 2
    for entry in pictures:
        assert entry["found"].keys() == {"hm", "order"}
        assert len(entry["concepts"]) >= 5
        for found in entry["found"].values():
            texts = [item["text"] for item in found["sentences"]]
            assert len(set(texts)) == 3
            assert (found["rank"] <= 3) == any(item["own"] for item in found["sentences"])
            assert all((item["text"] in entry["captions"]) >= item["own"] for item in found["sentences"])
        assert entry["image"] in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert len(list((tmp_path / "page" / "pictures").iterdir())) == 2
    assert run(*ask, "--out", tmp_path / "page")[0] == 2
    assert run(*ask)[0] == 0
    assert (made / "order" / "gallery" / "index.html").exists()
    code, _, err = run("figures", "gallery", made / "concepts", "--corpus", made / "corpus", "--split", "val")
    assert (code, "cannot score" in err) == (2, True)


def test_correspondences_are_measured_and_shown_by_round(run: Run, made: Path, tmp_path: Path) -> None:
    ask = (
        "figures",
        "correspondences",
        made / "hm",
        "--corpus",
        made / "corpus",
        "--count",
        4,
        "--out",
        tmp_path / "page",
    )
    code, out, _ = run(*ask, "--json")
    assert code == 0
    result = json.loads(out)["result"]
    assert list(result["metrics"]) == ["round_1", "whole_picture", "central_region"]
    assert json.loads((tmp_path / "page" / "result.json").read_text())["metrics"] == result["metrics"]
    assert sorted(path.name for path in (tmp_path / "page").glob("*.png")) == ["sheet-1.png", "sheet-2.png"]
    assert "round 1: people" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "round_1: " in run(*ask, "--force")[1]
    code, _, err = run(
        "figures", "correspondences", made / "order", "--corpus", made / "corpus", "--out", tmp_path / "none"
    )
    assert code == 2
    assert "does not hold correspondences" in err, err
