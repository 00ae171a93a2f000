"""`deixis corpus …` as a person meets it: what it prints, what it refuses in one line, and that it loses nothing."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from PIL import Image as Pillow

from deixis.cli import main
from deixis.corpus import Box, Chain, Corpus, Phrase, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.formats import FORMATS
from deixis.metrics.results import load


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def deixis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["deixis", "corpus", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return Outcome(int(left.value.code or 0), captured.out, captured.err)

    return run


def sample() -> Corpus:
    captions = [
        make_caption("A clown in a park", None, [Phrase(0, 2, "1", ("people",)), Phrase(3, 5, "2", ("scene",))]),
        make_caption("The clown waves", None, [Phrase(0, 2, "1", ("people",))], id="c2"),
    ]
    return Corpus(
        [
            make_image(
                image_id,
                file=f"{image_id}.jpg",
                width=60,
                height=40,
                split=split,
                captions=captions,
                boxes=[Box(5, 5, 30, 35)],
                chains=[Chain("1", (0,)), Chain("2", scene=True)],
            )
            for image_id, split in (("101", "train"), ("102", "train"), ("103", "test"))
        ],
        name="sample",
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The sample on disk, with pictures."""
    folder = tmp_path / "source"
    write_corpus(sample(), folder)
    for image in sample():
        (folder / "images").mkdir(exist_ok=True)
        Pillow.new("RGB", (60, 40), (90, 140, 90)).save(folder / "images" / image.file)
    return folder


def test_stats_for_people_and_for_programs(deixis: Run, source: Path) -> None:
    figures = json.loads(deixis("stats", source, "--json").out)
    assert (figures["images"], figures["captions"], figures["chains"], figures["boxes"]) == (3, 6, 6, 3)
    assert figures["by_type"]["people"]["mentions_per_chain"] == 2.0
    assert figures["by_type"]["people"]["boxes_per_chain"] == 1.0
    assert json.loads(deixis("stats", source, "--json", "--split", "test").out)["images"] == 1
    table = deixis("stats", source).out
    assert [line.split() for line in table.splitlines() if "people" in line] == [
        ["│", "people", "│", "3", "│", "2.00", "│", "1.00", "│", "100.0", "│"]
    ]


def test_stats_of_captions_alone_say_nothing_of_boxes(deixis: Run, tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption\na.jpg,A dog runs .\nb.jpg,A cat .\n")
    Pillow.new("RGB", (6, 4)).save(tmp_path / "a.jpg")
    Pillow.new("RGB", (6, 4)).save(tmp_path / "b.jpg")
    table = deixis("stats", tmp_path).out
    assert "captions / image" in table
    assert "(none)" in table
    for absent in ("box", "chain", "mention", "0.00", "0.0 %"):
        assert absent not in table
    assert json.loads(deixis("stats", tmp_path, "--json").out)["boxes"] == 0
    assert json.loads(deixis("stats", tmp_path, "--split", "(none)", "--json").out)["images"] == 2
    assert "no split 'test'; it has (none)" in deixis("stats", tmp_path, "--split", "test").err


def test_ctrl_c_is_one_line_and_code_130(deixis: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deixis.corpus.statistics.read_statistics", interrupted)
    assert deixis("stats", source) == Outcome(130, "", "deixis: interrupted\n")


def test_stats_become_a_result(deixis: Run, source: Path, tmp_path: Path) -> None:
    for splits, images in (([], 3), (["--split", "train"], 2)):
        out = tmp_path / f"{images}.json"
        assert deixis("stats", source, *splits, "--out", out).code == 0
        result = load(out)
        assert result.metrics["images"] == images
        assert result.rows == ()
        assert result.corpus is not None
        assert result.corpus.split_hash == (sample().split("train") if splits else sample()).split_hash()
    assert deixis("stats", source, "--out", out).code == 2
    assert load(out) == result


def test_errors_compare_two_annotations(deixis: Run, source: Path, tmp_path: Path) -> None:
    images = list(sample())
    caption = msgspec.structs.replace(images[0].captions[1], phrases=(Phrase(1, 2, "1", ("people",)),))
    images[0] = msgspec.structs.replace(images[0], captions=(images[0].captions[0], caption))
    write_corpus(Corpus(images, name="sample"), tmp_path / "annotated")
    found = json.loads(deixis("errors", tmp_path / "annotated", source, "--json").out)
    assert (found["wrong_mentions"], found["missing_mentions"], found["images_with_errors"]) == (1, 1, 1)
    assert found["percent"]["images_with_errors"] == pytest.approx(100 / 3)
    assert "33.33" in deixis("errors", tmp_path / "annotated", source).out


def test_every_format_is_listed(deixis: Run) -> None:
    assert list(json.loads(deixis("formats", "--json").out)) == list(FORMATS)
    assert all(name in deixis("formats").out for name in FORMATS)


def test_convert_there_and_back_with_pictures(deixis: Run, source: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "new" / "back.jsonl"
    outcome = deixis("convert", source, there, "--to", "flickr30k-entities", "--pictures")
    assert outcome.code == 0
    assert "Wrote 3 images" in outcome.out
    assert "dropped: 3 of 3 caption ids" in outcome.out
    assert (there / "images" / "101.jpg").read_bytes() == (source / "images" / "101.jpg").read_bytes()
    dropped = json.loads(deixis("convert", there, back, "--split", "train", "--json").out)["dropped"]
    assert dropped == {}
    assert [image.id for image in open_corpus(back)] == ["101", "102"]
    assert open_corpus(back)["101"].captions[0] == sample()["101"].captions[0]


def test_an_image_without_a_picture_is_reported_and_kept(deixis: Run, source: Path, tmp_path: Path) -> None:
    (source / "images" / "102.jpg").unlink()
    outcome = deixis("convert", source, tmp_path / "there", "--pictures")
    assert outcome.code == 0
    assert "without a picture: 1 of 3 images (102)" in outcome.out
    assert len(open_corpus(tmp_path / "there")) == 3
    assert sorted(path.name for path in (tmp_path / "there" / "images").iterdir()) == ["101.jpg", "103.jpg"]
    printed = json.loads(deixis("convert", source, tmp_path / "again", "--pictures", "--json").out)
    assert printed["without_picture"] == ["102"]
    for image in ("101", "103"):
        (source / "images" / f"{image}.jpg").unlink()
    outcome = deixis("convert", source, tmp_path / "nothing", "--pictures")
    assert (outcome.code, "has no pictures to write" in outcome.err) == (2, True)


def test_cut_and_join(deixis: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("103\n101\n")
    deixis("cut", source, tmp_path / "chosen", "--ids", tmp_path / "ids.txt", "--pictures")
    chosen = open_corpus(tmp_path / "chosen")
    assert [image.id for image in chosen] == ["103", "101"]
    assert chosen.pictures is not None
    assert deixis("cut", source, tmp_path / "one", "--split", "train", "--limit", 1, "--seed", 0).code == 0
    assert len(open_corpus(tmp_path / "one")) == 1

    plain = Corpus(
        make_image(f"{i.id}_x", split=i.split, captions=[make_caption("A clown in a park")]) for i in sample()
    )
    write_corpus(plain, tmp_path / "plain")
    report = json.loads(deixis("join", tmp_path / "plain", source, tmp_path / "joined", "--json").out)
    assert (report["images_matched"], report["captions_exact"], report["phrases_attached"]) == (3, 3, 6)
    assert open_corpus(tmp_path / "joined")["101_x"].boxes == (Box(5, 5, 30, 35),)


def test_concat(deixis: Run, source: Path, tmp_path: Path) -> None:
    deixis("cut", source, tmp_path / "part", "--split", "train", "--pictures")
    part = open_corpus(tmp_path / "part")
    clash = deixis("concat", source, tmp_path / "part", "--out", tmp_path / "clash")
    assert (clash.code, clash.err.count("\n")) == (2, 1)
    deixis(
        "concat", source, tmp_path / "part", "--prefix", "", "--prefix", "b-", "--out", tmp_path / "both", "--pictures"
    )
    both = open_corpus(tmp_path / "both")
    assert [image.id for image in both] == [i.id for i in sample()] + [f"b-{image.id}" for image in part]
    assert both.pictures is not None
    assert part.pictures is not None
    assert both.pictures.read(both[f"b-{part.images[0].id}"]) == part.pictures.read(part.images[0])


def test_show_draws_a_png(deixis: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert deixis("show", source, "101").code == 0
    with Pillow.open(tmp_path / "101.png") as whole:
        assert whole.format == "PNG"
        assert len(whole.convert("RGB").getcolors(1 << 24)) > 10
    assert deixis("show", source, "101", "--out", tmp_path / "second.png", "--caption", 1).code == 0
    assert (tmp_path / "second.png").read_bytes() != (tmp_path / "101.png").read_bytes()
    for arguments in (("nobody",), ("101", "--caption", "2", "--out", "x.png"), ("101", "--out", "x.txt"), ("101",)):
        outcome = deixis("show", source, *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert not (tmp_path / "x.png").exists()


def test_show_reports_a_missing_picture(deixis: Run, source: Path, tmp_path: Path) -> None:
    (source / "images" / "102.jpg").unlink()
    assert deixis("show", source, "101", "--out", tmp_path / "a.png").err == ""
    printed = deixis("show", source, "102", "--out", tmp_path / "b.png")
    assert printed.code == 0
    assert "The picture file is missing" in printed.err


def test_what_is_there_is_never_lost(deixis: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert deixis("convert", source, out).code == 0, "an empty folder may be filled"
    (out / "precious.txt").write_text("mine")
    refused = deixis("convert", source, out)
    assert (refused.code, refused.err) == (
        2,
        f"deixis: {out}: already exists; give --force to replace it\n",
    )
    assert deixis("convert", source, out, "--force", "--to", "grounding").code == 0
    assert sorted(file.name for file in out.iterdir()) == [
        "final_flickr_separateGT_test.json",
        "final_flickr_separateGT_train.json",
    ]
    assert (tmp_path / "out.old" / "precious.txt").read_text() == "mine"
    assert deixis("convert", source, out, "--force").code == 0
    assert (tmp_path / "out.old2" / "final_flickr_separateGT_test.json").exists()


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
def test_a_pipe_or_a_device_is_never_replaced(deixis: Run, source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for options in ((), ("--force",), ("--to", "grounding", "--force")):
        outcome = deixis("convert", source, tmp_path / "pipe", *options)
        assert outcome.code == 2
        assert "is a device or a pipe" in outcome.err
        assert (tmp_path / "pipe").is_fifo()


def test_a_conversion_that_fails_leaves_everything_as_it_was(deixis: Run, tmp_path: Path) -> None:
    crossing = make_caption("a b c", None, [Phrase(0, 2, "1"), Phrase(1, 3, "2")])
    images = [*sample(), make_image("104", captions=[crossing])]
    write_corpus(Corpus(images), tmp_path / "source")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    outcome = deixis("convert", tmp_path / "source", tmp_path / "out", "--to", "flickr30k-entities", "--force")
    assert outcome == (
        2,
        "",
        "deixis: image 104: caption 1: phrase 'b c' crosses another, which brackets cannot show\n",
    )
    assert sorted(tmp_path.rglob("*")) == before
    for arguments in (("--pictures",), ("--to", "klingon"), ("--split", "val")):
        assert deixis("convert", tmp_path / "source", tmp_path / "other", *arguments).code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_pictures_do_not_fit_into_a_single_file(deixis: Run, source: Path, tmp_path: Path) -> None:
    outcome = deixis("convert", source, tmp_path / "one.jsonl", "--pictures")
    assert outcome.code == 2
    assert "into a folder only" in outcome.err
    assert not (tmp_path / "images").exists()


GOOD_XML = (
    "<annotation><size><width>100</width><height>80</height></size><object><name>1</name><bndbox>"
    "<xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>80</ymax></bndbox></object></annotation>"
)
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]>'
    "<annotation><filename>&c;</filename></annotation>"
)


@pytest.mark.parametrize("command", ["stats", "convert"])
@pytest.mark.parametrize(
    ("member", "content", "place"),
    [
        ("Annotations/7.xml", BOMB.encode(), "Annotations/7.xml: declares XML entities"),
        (
            "Annotations/7.xml",
            GOOD_XML.replace("<xmax>30<", "<xmax>300<").encode(),
            "Annotations/7.xml: image 7: box (1, 2, 300, 80) is outside the picture of 100 × 80",
        ),
        (
            "Sentences/7.txt",
            b"fine .\n[/EN#1/people A man sits .\n",
            "Sentences/7.txt line 2: phrase [/EN#1/people is not",
        ),
        ("Sentences/7.txt", b"fine .\n\xc3\x28 .\n", "Sentences/7.txt line 2: is not UTF-8"),
    ],
)
def test_bad_members_are_named_in_one_line(
    deixis: Run, tmp_path: Path, command: str, member: str, content: bytes, place: str
) -> None:
    files = {"Annotations/7.xml": GOOD_XML.encode(), "Sentences/7.txt": b"fine .\n", member: content}
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for name, data in files.items():
            out.writestr(name, data)
    outcome = deixis(command, archive, *([tmp_path / "out"] if command == "convert" else []))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith(f"deixis: {archive}: {place}")
    assert not (tmp_path / "out").exists()


def test_a_truncated_zip_is_reported_in_one_line(deixis: Run, tmp_path: Path) -> None:
    archive = tmp_path / "cut.zip"
    write_corpus(sample(), archive, format="flickr30k-entities")
    whole = archive.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        archive.write_bytes(whole[:length])
        outcome = deixis("stats", archive)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert outcome.err.startswith(f"deixis: {archive}: not a whole zip file")
    damaged = bytearray(whole)
    damaged[60:90] = bytes(30)
    archive.write_bytes(damaged)
    outcome = deixis("stats", archive)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert str(archive) in outcome.err


def test_a_path_that_is_not_there_and_one_that_is_nothing(deixis: Run, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader")
    (tmp_path / "empty").mkdir()
    for path, problem in (
        (tmp_path / "empty", "is empty: there are no files in it"),
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "letter.txt", "is none of the known"),
    ):
        outcome = deixis("stats", path)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert problem in outcome.err


def test_a_list_of_ids_that_is_not_there_is_named_whole(deixis: Run, source: Path, tmp_path: Path) -> None:
    for ids in (tmp_path / "nowhere.txt", Path("/nonexistent")):
        outcome = deixis("cut", source, tmp_path / "out", "--ids", ids)
        assert outcome == (2, "", f"deixis: {ids}: No such file or directory\n")


def test_a_corpus_that_nests_too_deep_is_one_line(deixis: Run, tmp_path: Path) -> None:
    for name in ("captions.jsonl", "corpus.jsonl"):
        (tmp_path / name).write_text('{"deixis":"corpus","version":1}\n{"id":"1","file":"a.jpg","x":' + "[" * 100_000)
        outcome = deixis("stats", tmp_path)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
