"""Flickr8k's text release as it is published, and what its reader says of damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deixis.corpus import Corpus, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import InputError

TOKENS = """\
11111_aa.jpg#0\tA child climbs stairs .
11111_aa.jpg#1\tA girl goes in .
22222_bb.jpg#0\tTwo dogs play .
33333_cc.jpg.1#0\tpeople wait
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (tmp_path / "Flickr8k.token.txt").write_text(TOKENS)
    (tmp_path / "Flickr8k.lemma.token.txt").write_text("11111_aa.jpg#0\tchild climb stair\n")
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("11111_aa.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("22222_bb.jpg\n44444_dd.jpg\n")
    return tmp_path


def test_the_release_is_read_with_dev_as_val(release: Path) -> None:
    corpus = open_corpus(release)
    assert detect_format(open_tree(release)) == "flickr8k"
    assert [(image.id, image.file, image.split) for image in corpus] == [
        ("11111_aa", "11111_aa.jpg", "train"),
        ("22222_bb", "22222_bb.jpg", "val"),
        ("33333_cc", "33333_cc.jpg.1", ""),
        ("44444_dd", "44444_dd.jpg", "val"),
    ]
    assert [caption.text for caption in corpus["11111_aa"].captions] == ["A child climbs stairs .", "A girl goes in ."]
    assert corpus["44444_dd"].captions == ()


def test_writing_gives_the_release_back(release: Path, tmp_path: Path) -> None:
    write_corpus(open_corpus(release), tmp_path / "out", format="flickr8k")
    for name in ("Flickr8k.token.txt", "Flickr_8k.trainImages.txt", "Flickr_8k.devImages.txt"):
        assert (tmp_path / "out" / name).read_text() == (release / name).read_text()


def test_the_caption_file_alone_finds_the_lists_beside_it(release: Path) -> None:
    assert open_corpus(release / "Flickr8k.token.txt") == open_corpus(release)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results_20130124.token", "1.jpg#0\tA dog .\n1.jpg#1\tA cat .\n"),
        # The published table lacks one bar.
        ("results.csv", "image_name| comment_number| comment\n1.jpg| 0| A dog .\n1.jpg| 1   A cat .\n"),
    ],
)
def test_flickr30k_files_are_the_same_family(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.replace("\n", "\r\n").encode())
    (tmp_path / "flickr30k-images").mkdir()
    (tmp_path / "flickr30k-images" / "1.jpg").write_bytes(b"pixels")
    corpus = open_corpus(tmp_path)
    assert detect_format(open_tree(tmp_path)) == "flickr8k"
    assert [caption.text for caption in corpus["1"].captions] == ["A dog .", "A cat ."]
    assert corpus.pictures is not None
    assert corpus.pictures.read(corpus["1"]) == b"pixels"


def test_numbers_out_of_order_are_the_captions_ids(tmp_path: Path) -> None:
    (tmp_path / "x.token").write_text("1.jpg#0\tzero\n1.jpg#3\tthree\n")
    assert [caption.id for caption in open_corpus(tmp_path)["1"].captions] == ["", "3"]


@pytest.mark.parametrize(
    ("name", "content", "place", "problem"),
    [
        ("Flickr8k.token.txt", b"1.jpg#0\tgood\n1.jpg#1 no tab here\n", "Flickr8k.token.txt line 2", "no tab"),
        ("Flickr8k.token.txt", b"1.jpg\tno number\n", "Flickr8k.token.txt line 1", "#number"),
        ("Flickr8k.token.txt", b"#0\tno name\n", "Flickr8k.token.txt line 1", "#number"),
        ("Flickr8k.token.txt", b"1.jpg#0\tcaf\xe9\n", "Flickr8k.token.txt line 1", "not UTF-8"),
        ("Flickr8k.token.txt", b"1.jpg#0\ta\n1.png#0\tb\n", "Flickr8k.token.txt", "occurs twice"),
        ("results.csv", b"image_name| comment_number| comment\n1.jpg no bar\n", "results.csv line 2", "name| number"),
        ("Flickr_8k.testImages.txt", b"11111_aa.jpg\n", "Flickr_8k.trainImages.txt line 1", "already in split test"),
        ("other.token", b"1.jpg#0\ta\n", "", ""),
    ],
)
def test_a_fault_names_file_and_line(release: Path, name: str, content: bytes, place: str, problem: str) -> None:
    if name == "results.csv":
        (release / "Flickr8k.token.txt").unlink()
    (release / name).write_bytes(content)
    if not problem:
        assert len(open_corpus(release)) == 4  # The release's own file wins over other token files.
        return
    with pytest.raises(InputError, match=problem) as caught:
        open_corpus(release, format="flickr8k")
    assert caught.value.place == place
    assert caught.value.path == str(release)


def test_several_caption_files_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a.token", "b.token"):
        (tmp_path / name).write_text("1.jpg#0\tA dog .\n")
    with pytest.raises(InputError, match=r"a\.token, b\.token"):
        open_corpus(tmp_path)


def test_line_breaks_in_a_caption_become_spaces(tmp_path: Path) -> None:
    corpus = Corpus([make_image("1", file="1.jpg", captions=[make_caption("two\nlines\tand a tab #1\tand more")])])
    write_corpus(corpus, tmp_path, format="flickr8k")
    assert open_corpus(tmp_path)["1"].captions[0].text == "two lines\tand a tab #1\tand more"
