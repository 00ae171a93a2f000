"""`deixis evaluate captions`: files in, figures out, one clear line for what cannot be scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.corpus import Corpus, make_caption, make_image, open_corpus, write_corpus
from deixis.loading import load_model
from deixis.metrics.caption_metrics import caption_scores
from deixis.metrics.results import load
from deixis.vision.reading import read_picture

REFERENCES = {"1": ["a man rides a horse", "a person on a horse"], "2": ["two dogs play in the snow"]}
CANDIDATES = {"1": "a man on a horse", "2": "two dogs run in the snow"}


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["deixis", "evaluate", "captions", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    return int(stop.value.code or 0), printed.out or printed.err


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.json" for name in ("references", "candidates", "coco")}
    paths["references"].write_text(json.dumps(REFERENCES))
    paths["candidates"].write_text(json.dumps(CANDIDATES))
    paths["coco"].write_text(json.dumps([{"image_id": int(k), "caption": v} for k, v in CANDIDATES.items()]))
    images = [
        make_image(k, file=f"{k}.jpg", split="test", captions=map(make_caption, v)) for k, v in REFERENCES.items()
    ]
    write_corpus(Corpus(images, name="tiny"), tmp_path / "corpus")
    return {**paths, "corpus": tmp_path / "corpus"}


@pytest.mark.parametrize("candidates", ["candidates", "coco"])
@pytest.mark.parametrize("references", ["references", "corpus"])
def test_every_shape_of_input_gives_the_same_figures(
    candidates: str,
    references: str,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, printed = run(capsys, monkeypatch, files[candidates], files[references], "--json")
    figures = json.loads(printed)
    assert code == 0
    assert {name: figures[name] for name in ("bleu_4", "cider_d")} == pytest.approx(
        {name: value for name, value in caption_scores(CANDIDATES, REFERENCES).items() if name in ("bleu_4", "cider_d")}
    )
    assert figures["references"] == 3
    assert figures["different"] == len(set(CANDIDATES.values()))


def test_a_result_is_written_with_the_corpus_it_was_scored_on(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    code, _ = run(capsys, monkeypatch, files["candidates"], files["corpus"], "--split", "test", "--out", out)
    result = load(out)
    assert code == 0
    assert result.corpus is not None
    assert result.corpus.split == "test"
    assert result.metrics["bleu_1"] == pytest.approx(caption_scores(CANDIDATES, REFERENCES)["bleu_1"])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Drawn scenes under COCO's kind of names, with a true caption each."""
    folder, images = tmp_path / "photos", open_corpus("scenes").images[:6]
    folder.mkdir()
    for number, image in enumerate(images, 1):
        read_picture(open_corpus("scenes"), image).save(folder / f"{number:012d}.png")
    captions = {str(number): image.captions[0].text for number, image in enumerate(images, 1)}
    (tmp_path / "true.json").write_text(json.dumps(captions))
    return folder


def test_pictures_need_no_references(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    code, printed = run(capsys, monkeypatch, tmp_path / "true.json", "--pictures", photos, "--json", "--out", out)
    figures = json.loads(printed)
    assert code == 0
    assert figures["images"] == len(figures["by_image"]) == 6
    model, pictures = load_model("deixis-base"), [Pillow.open(photos / f"{number:012d}.png") for number in (1, 2)]
    texts = json.loads((tmp_path / "true.json").read_text())
    expected = model.score([picture.convert("RGB") for picture in pictures], [texts["1"], texts["2"]])
    assert [figures["by_image"][name] for name in ("1", "2")] == pytest.approx(
        [expected[0, 0], expected[1, 1]], abs=1e-4
    )
    assert figures["picture_score"] == pytest.approx(sum(figures["by_image"].values()) / 6)
    assert figures["picture_score"] > figures["other_pictures"]
    assert load(out).protocol.parameters["model"] == "deixis-base"


def test_references_and_pictures_together(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = json.loads((tmp_path / "true.json").read_text())
    (tmp_path / "known.json").write_text(json.dumps({image: [text] for image, text in texts.items()}))
    code, printed = run(
        capsys, monkeypatch, tmp_path / "true.json", tmp_path / "known.json", "--pictures", photos, "--json"
    )
    assert code == 0
    assert {"bleu_4", "picture_score"} <= json.loads(printed).keys()


def test_captions_without_a_picture_and_nothing_to_score_against_are_errors(
    photos: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, monkeypatch, files["candidates"])[0] == 2
    (photos / "000000000002.png").unlink()
    code, printed = run(capsys, monkeypatch, files["candidates"], "--pictures", photos)
    assert code == 2
    assert "no picture of image 2" in printed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ('{"1": "a man", "2": 5}', "image 2: must be one caption"),
        ('[{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]', "entry 2: captions image 1 twice"),
        ('[{"image_id": 1}]', "entry 1: has no image_id and caption"),
        ('{"1": "a man"}', "2"),
        ("3", "must be a JSON object or list"),
    ],
)
def test_bad_candidates_are_one_line_and_exit_2(
    text: str,
    problem: str,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    code, printed = run(capsys, monkeypatch, bad, files["references"])
    assert code == 2
    assert printed.count("\n") == 1
    assert "bad.json" in printed
    assert problem in printed
