"""A plain folder of pictures: every way people keep captions beside them, and what a damaged table gets to hear."""

from __future__ import annotations

from pathlib import Path

import pytest

from deixis.corpus import Corpus, make_caption, make_image, open_corpus, write_corpus
from deixis.corpus.opening import detect_format
from deixis.corpus.tree import open_tree
from deixis.errors import InputError


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def captions(corpus: Corpus) -> dict[str, list[str]]:
    return {image.id: [caption.text for caption in image.captions] for image in corpus}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, **{"b.jpg": "B", "a.PNG": "A", "notes.md": "", "holiday/my beach é.jpeg": "C"})
    return tmp_path


def test_pictures_alone_are_a_corpus_without_captions(folder: Path) -> None:
    assert detect_format(open_tree(folder)) == "folder"
    corpus = open_corpus(folder)
    assert captions(corpus) == {"a": [], "b": [], "holiday/my beach é": []}
    assert corpus.pictures is not None
    assert [corpus.pictures.read(image) for image in corpus] == [b"A", b"B", b"C"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.csv", 'file,caption\nb.jpg,A dog.\nb.jpg,"One, two."\nholiday/my beach é.jpeg,Sea\n'),
        ("captions.csv", '\ufefffile,caption\r\nb.jpg,A dog.\r\nb.jpg,"One, two."\r\nmy beach é.jpeg,Sea\r\n\r\n'),
        ("captions.csv", 'b.jpg,A dog.\nb.jpg,"One, two."\nmy beach é.jpeg,Sea'),
        ("captions.csv", "Caption;Number;Image\nA dog.;1;b.jpg\nOne, two.;2;b.jpg\nSea;3;./holiday\\my beach é.jpeg\n"),
        ("captions.tsv", "image\tcaption\nb.jpg\tA dog.\nb.jpg\tOne, two.\nmy beach é.jpeg\tSea\n"),
        ("captions.txt", 'image,caption\nb.jpg,A dog.\nb.jpg, "One, two."\nmy beach é.jpeg,Sea\n'),
        (
            "captions.jsonl",
            '{"file": "b.jpg", "caption": "A dog."}\n\n{"file_name": "b.jpg", "text": "One, two."}\n'
            '{"file": "holiday/my beach é.jpeg", "caption": "Sea", "likes": 3}\n',
        ),
    ],
)
def test_every_dialect_of_a_table_says_the_same(folder: Path, name: str, text: str) -> None:
    put(folder, **{name: text})
    corpus = open_corpus(folder)
    assert {id.removeprefix("holiday/"): texts for id, texts in captions(corpus).items()} == {
        "b": ["A dog.", "One, two."],
        "my beach é": ["Sea"],
        "a": [],
    }
    assert corpus.pictures is not None
    assert sorted(corpus.pictures.read(image) for image in corpus) == [b"A", b"B", b"C"]


def test_a_table_names_files_as_seen_from_its_folder(folder: Path) -> None:
    put(folder, **{"holiday/captions.csv": "file,caption\n../b.jpg,A dog.\nmy beach é.jpeg,Sea\n"})
    assert captions(open_corpus(folder)) == {"a": [], "b": ["A dog."], "holiday/my beach é": ["Sea"]}


def test_a_text_beside_each_picture_has_a_caption_a_line(folder: Path) -> None:
    put(
        folder,
        **{"b.txt": "A dog.\r\n\r\n Two dogs. \n", "holiday/my beach é.txt": "Sea", "other.txt": "not a caption"},
    )
    assert captions(open_corpus(folder)) == {"a": [], "b": ["A dog.", "Two dogs."], "holiday/my beach é": ["Sea"]}


def test_decomposed_names_of_macos_find_their_pictures(tmp_path: Path) -> None:
    put(tmp_path, **{"cafe\u0301.jpg": "pixels", "captions.csv": "file,caption\ncaf\u00e9.jpg,A café.\n"})
    corpus = open_corpus(tmp_path)
    assert captions(corpus) == {"caf\u00e9": ["A café."]}
    assert corpus.pictures is not None
    assert corpus.pictures.read(corpus.images[0]) == b"pixels"


def test_listed_images_without_a_picture_stay(folder: Path) -> None:
    put(folder, **{"captions.csv": "file,caption\ngone.jpg,Once here.\n"})
    corpus = open_corpus(folder)
    assert captions(corpus)["gone"] == ["Once here."]
    assert corpus.pictures is not None
    assert not corpus.pictures.has(corpus["gone"])


def test_splits_come_from_folders_unless_a_row_says_else(tmp_path: Path) -> None:
    put(tmp_path, **{"train/1.jpg": "", "images/validation/2.jpg": "", "dev/3.jpg": "", "test/4.jpg": "", "5.jpg": ""})
    put(tmp_path, **{"captions.csv": "file,caption,split\ntest/4.jpg,Four,extra\n5.jpg,Five,\n"})
    splits = {image.id: image.split for image in open_corpus(tmp_path)}
    assert splits == {"test/4": "extra", "5": "", "dev/3": "val", "images/validation/2": "val", "train/1": "train"}


def test_pictures_that_differ_in_suffix_alone_keep_it_in_their_ids(tmp_path: Path) -> None:
    put(tmp_path, **{"a.jpg": "", "a.png": "", "b.jpg": ""})
    assert [image.id for image in open_corpus(tmp_path)] == ["a.jpg", "a.png", "b"]


def test_two_pictures_of_one_name_are_distinguished_by_their_folders(tmp_path: Path) -> None:
    put(tmp_path, **{"images/x/1.jpg": "X", "images/y/1.jpg": "Y"})
    put(tmp_path, **{"captions.csv": "file,caption\ny/1.jpg,why\nx/1.jpg,ex\n"})
    corpus = open_corpus(tmp_path)
    assert corpus.pictures is not None
    assert [corpus.pictures.read(image) for image in corpus] == [b"Y", b"X"]


def test_a_folder_written_with_its_pictures_is_read_again_the_same(folder: Path, tmp_path: Path) -> None:
    put(folder, **{"b.txt": "A dog."})
    corpus = open_corpus(folder)
    write_corpus(corpus, tmp_path / "out", format="folder", pictures=True)
    again = open_corpus(tmp_path / "out")
    assert again == corpus
    assert again.pictures is not None
    assert [again.pictures.read(image) for image in again] == [b"A", b"B", b"C"]


def test_what_a_row_holds_beyond_text(tmp_path: Path) -> None:
    image = make_image("x", file="train/1.jpg", split="", captions=[make_caption("")], source_id="12345678")
    write_corpus(Corpus([image, make_image("y")]), tmp_path, format="folder")
    assert open_corpus(tmp_path).images == (image, make_image("y"))


@pytest.mark.parametrize(
    ("name", "text", "place", "problem"),
    [
        ("captions.csv", "file,caption\nb.jpg,ok\nb.jpg,one, two\n", "captions.csv line 3", "3 cells instead of 2"),
        ("captions.csv", "file,caption\nb.jpg\n", "captions.csv line 2", "1 cells instead of 2"),
        ("captions.csv", 'file,caption\nb.jpg,"open\n\n', "captions.csv line 2", "unexpected end"),
        ("captions.csv", "\nname,words\nb.jpg,x\n", "captions.csv line 2", "needs a header"),
        ("captions.csv", "x" * 200_000, "captions.csv line 1", "needs a header"),
        ("captions.csv", "file,caption\nb.jpg," + "x" * 200_000, "captions.csv line 2", "field larger"),
        ("captions.csv", "file,caption\n,x\n", "captions.csv line 2", "has no file"),
        ("captions.csv", "file,caption\n1.jpg,x\n", "captions.csv line 2", "may be x/1.jpg or y/1.jpg"),
        ("captions.csv", "file,caption,split\nb.jpg,x,train\nb.jpg,y,test\n", "captions.csv line 3", "split is 'test'"),
        ("captions.jsonl", '{"file": "b.jpg"}\n{"file": "b.jpg", \n', "captions.jsonl line 2", "not a JSON object"),
        ("captions.jsonl", '["b.jpg"]\n', "captions.jsonl line 1", "not a JSON object"),
        ("captions.jsonl", '{"file": "b.jpg", "caption": ["x"]}\n', "captions.jsonl line 1", "caption is not text"),
    ],
)
def test_a_fault_names_file_and_line(folder: Path, name: str, text: str, place: str, problem: str) -> None:
    put(folder, **{name: text, "x/1.jpg": "", "y/1.jpg": ""})
    with pytest.raises(InputError, match=problem) as caught:
        open_corpus(folder)
    assert caught.value.place == place


def test_bytes_that_are_no_text_are_named(folder: Path) -> None:
    (folder / "b.txt").write_bytes(b"good\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"b\.txt line 2: is not UTF-8"):
        open_corpus(folder)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("file,caption,file\na.jpg,a dog,b.jpg\n")
    with pytest.raises(InputError, match=r"captions\.csv line 1: has two columns 'file'"):
        open_corpus(tmp_path)
