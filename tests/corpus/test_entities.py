"""Flickr30k Entities' files: what each part means, what is odd but allowed, what is refused and where it says so."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.corpus import (
    Box,
    Caption,
    Chain,
    Corpus,
    Image,
    Phrase,
    make_caption,
    make_image,
    open_corpus,
    write_corpus,
)
from deixis.corpus.brackets import format_caption, parse_caption
from deixis.corpus.formats import entities
from deixis.corpus.tree import open_tree
from deixis.errors import DeixisError, InputError

from .strategies import spans

XML = """<annotation>
  <filename>7.jpg</filename>
  <size><width>100</width><height>80</height><depth>3</depth></size>
  <object><name>2</name><name>1</name>
    <bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>80</ymax></bndbox></object>
  <object><name>5</name><scene>1</scene><nobndbox>0</nobndbox></object>
  <object><name>1</name>
    <bndbox><xmin>40</xmin><ymin>5</ymin><xmax>100</xmax><ymax>60</ymax></bndbox></object>
  <object><name>9</name><scene>0</scene><nobndbox>1</nobndbox></object>
</annotation>
"""
SENTENCES = (
    "[/EN#1/people Two clowns] juggle in [/EN#5/scene a park] .\n"
    "[/EN#2/people/animals A clown] waits for [/EN#0/notvisual a moment] .\n"
)
BOMB = (
    '<!DOCTYPE lolz [<!ENTITY lol "lol">'
    + "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1};" * 10 if n > 1 else "&lol;" * 10}">' for n in range(1, 10))
    + "]><annotation><filename>&lol9;</filename></annotation>"
)


def lay_out(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read_one(folder: Path, xml: str | bytes = XML, sentences: str | bytes = SENTENCES) -> Image:
    (image,) = open_corpus(lay_out(folder, {"Annotations/7.xml": xml, "Sentences/7.txt": sentences}), cache=False)
    return image


def test_every_part_of_the_release_finds_its_place(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "Annotations/7.xml": XML,
            "Sentences/7.txt": SENTENCES,
            "Sentences/10.txt": "Nothing here .\n",
            "train.txt": "7\n12\n",
            "test.txt": "10",
            "UNRELATED_CAPTIONS": "# format: <imageID> <sentence number>\n7 2",
            "README": "one two three",
        },
    )
    seven, ten = open_corpus(tmp_path, cache=False)
    assert seven == Image(
        id="7",
        file="7.jpg",
        width=100,
        height=80,
        split="train",
        captions=(
            Caption("Two clowns juggle in a park .", (Phrase(0, 2, "1", ("people",)), Phrase(4, 6, "5", ("scene",)))),
            Caption(
                "A clown waits for a moment .",
                (Phrase(0, 2, "2", ("people", "animals")), Phrase(4, 6, "0", ("notvisual",))),
                unrelated=True,
            ),
        ),
        boxes=(Box(1, 2, 30, 80), Box(40, 5, 100, 60)),
        chains=(Chain("1", (0, 1)), Chain("2", (0,)), Chain("5", scene=True), Chain("9", no_box=True)),
    )
    assert (ten.id, ten.file, ten.split, ten.width, ten.captions[0].text) == (
        "10",
        "10.jpg",
        "test",
        0,
        "Nothing here .",
    )


def test_annotations_one_folder_down_are_found(tmp_path: Path) -> None:
    lay_out(tmp_path / "annotations", {"Annotations/7.xml": XML, "Sentences/7.txt": SENTENCES, "val.txt": "7"})
    (tmp_path / "notes.md").write_text("mine")
    assert [(image.id, image.split) for image in open_corpus(tmp_path, cache=False)] == [("7", "val")]


def test_a_list_of_ids_makes_a_split_and_another_text_file_does_not(tmp_path: Path) -> None:
    lay_out(
        tmp_path, {"Sentences/7.txt": "a\n", "Sentences/8.txt": "b\n", "held-out.txt": "8\n", "notes.txt": "8 is odd"}
    )
    assert [image.split for image in open_corpus(tmp_path, cache=False)] == ["", "held-out"]


@pytest.mark.parametrize(
    ("xml", "expected"),
    [
        ("<annotation/>", {"width": 0, "height": 0, "file": "7.jpg", "boxes": ()}),
        ("<annotation><size><width> 30\n</width></size></annotation>", {"width": 30, "height": 0}),
        ("<annotation><filename><![CDATA[a&b.jpg]]></filename></annotation>", {"file": "a&b.jpg"}),
        ("<annotation><filename>&lt;&#65;&gt;</filename></annotation>", {"file": "<A>"}),
        ("<annotation><folder>x</folder><object><pose>left</pose><name>3</name></object></annotation>", {"boxes": ()}),
        ("<?xml version='1.0'?><!-- by hand --><annotation><filename/></annotation>", {"file": ""}),
        (
            "<annotation><object><name>3</name><bndbox><ymax>4.5</ymax><xmin>0</xmin><ymin>1e0</ymin>"
            "<xmax> 2 </xmax></bndbox></object></annotation>",
            {"boxes": (Box(0, 1, 2, 4.5),)},
        ),
    ],
)
def test_odd_xml_is_read_for_what_it_says(tmp_path: Path, xml: str, expected: dict[str, object]) -> None:
    image = read_one(tmp_path, xml)
    assert {name: getattr(image, name) for name in expected} == expected


def test_utf16_xml_is_read_as_it_declares(tmp_path: Path) -> None:
    xml = "<?xml version='1.0' encoding='UTF-16'?><annotation><filename>é.jpg</filename></annotation>"
    assert read_one(tmp_path, xml.encode("utf-16")).file == "é.jpg"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("<xmax>100<", "<xmax>101<"), "box (40, 5, 101, 60) is outside the picture of 100 × 80"),
        (("<xmin>1<", "<xmin>-1<"), "(-1, 2, 30, 80) is not a box"),
        (("<xmin>1<", "<xmin>31<"), "(31, 2, 30, 80) is not a box"),
        (("<xmin>1<", "<xmin>nan<"), "is not a box"),
        (("<xmin>40<", "<xmin>left<"), "box 2: could not convert string to float: 'left'"),
        (("<xmin>1</xmin>", ""), "box 1 has no 'xmin'"),
        (("<width>100<", "<width>wide<"), "width 'wide' is not a whole number"),
        (("<width>100<", "<width>-100<"), "width '-100' is not a whole number"),
        (("<name>9<", "<name>0<"), "id reserved for non-visual phrases"),
        (("</annotation>", ""), "is not well-formed XML"),
        (("<annotation>", "<?xml version='1.0' encoding='klingon'?><annotation>"), "is not well-formed XML"),
    ],
)
def test_a_fault_in_xml_names_the_file(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_one(tmp_path, XML.replace(*change, 1))
    assert caught.value.place == "Annotations/7.xml"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "xml",
    [
        BOMB,
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://example.org/x.dtd"> %x;]><annotation/>',
    ],
)
def test_xml_that_expands_or_reaches_out_is_refused(tmp_path: Path, xml: str) -> None:
    with pytest.raises(InputError, match=r"Annotations/7\.xml: declares XML entities"):
        read_one(tmp_path, xml)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[/EN#1/people A man sits", "phrase [/EN#1/people is not closed"),
        ("A man] sits", "a closing bracket has no opening one"),
        ("[/EN#1/people A man]] sits", "a closing bracket has no opening one"),
        ("[/EN#1/people ] sits", "phrase [/EN#1/people has no words"),
        ("[/EN#/people A man] sits", "phrase [/EN#/people names no chain"),
        ("[a man] sits", "bracket [a does not begin a phrase"),
        ("A [ man", "bracket [ does not begin a phrase"),
    ],
)
def test_a_fault_in_brackets_names_the_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_one(tmp_path, sentences=f"fine .\n{line}\n")
    assert caught.value.place == "Sentences/7.txt line 2"
    assert problem in caught.value.problem


def test_faults_in_lists_name_the_line(tmp_path: Path) -> None:
    lay_out(tmp_path, {"Sentences/7.txt": "a\n", "train.txt": "7\n", "val.txt": "\n7\n"})
    with pytest.raises(InputError, match=r"val\.txt line 2: image 7 is also in split 'train'"):
        open_corpus(tmp_path, cache=False)
    lay_out(tmp_path, {"val.txt": "", "UNRELATED_CAPTIONS": "# x\n7 0\n"})
    with pytest.raises(InputError, match=r"UNRELATED_CAPTIONS line 2: is not an image id and"):
        open_corpus(tmp_path, cache=False)
    lay_out(tmp_path, {"UNRELATED_CAPTIONS": "", "Sentences/7.txt": b"fine\n\xff\xfe\n"})
    with pytest.raises(InputError, match=r"Sentences/7\.txt line 2: is not UTF-8"):
        open_corpus(tmp_path, cache=False)


@pytest.mark.parametrize(
    ("line", "tokens", "phrases"),
    [
        ("", (), ()),
        ("  \t ", (), ()),
        ("[/EN#1/a x][/EN#2/b y]", ("x", "y"), (Phrase(0, 1, "1", ("a",)), Phrase(1, 2, "2", ("b",)))),
        (
            "[/EN#1/a the [/EN#2/b dog] ]'s",
            ("the", "dog", "'s"),
            (Phrase(0, 2, "1", ("a",)), Phrase(1, 2, "2", ("b",))),
        ),
        ("[/EN#3 x]", ("x",), (Phrase(0, 1, "3", ()),)),
        (r"\[x\] \\ a\ b \e", ("[x]", "\\", "a b", ""), ()),
        ("and/or #1", ("and/or", "#1"), ()),
    ],
)
def test_the_bracket_notation(line: str, tokens: tuple[str, ...], phrases: tuple[Phrase, ...]) -> None:
    assert parse_caption(line) == make_caption(" ".join(tokens), tokens, phrases)


@st.composite
def any_captions(draw: st.DrawFn) -> Caption:
    """Words, chains and types of any characters at all, as no release has them."""
    words = draw(st.lists(st.text(max_size=4), min_size=1, max_size=6))
    names = st.text(max_size=3)
    chains = st.text(min_size=1, max_size=3)
    phrases = [
        Phrase(*span, draw(chains), tuple(draw(st.lists(names, max_size=2)))) for span in draw(spans(len(words)))
    ]
    return make_caption(" ".join(words), words, phrases)


@settings(max_examples=50)
@given(any_captions())
def test_any_word_survives_the_bracket_notation(caption: Caption) -> None:
    line = format_caption(caption)
    assert "\n" not in line
    assert parse_caption(line) == caption


def test_phrases_that_cross_are_refused_by_name(tmp_path: Path) -> None:
    caption = make_caption("a b c d", None, [Phrase(0, 3, "1", ("x",)), Phrase(1, 4, "2", ("y",))])
    corpus = Corpus([make_image("7", captions=[make_caption("fine"), caption])])
    with pytest.raises(DeixisError, match="image 7: caption 2: phrase 'b c d' crosses another"):
        write_corpus(corpus, tmp_path, format="flickr30k-entities")


@pytest.mark.parametrize("image_id", ["../up", ".hidden", "/root", "a//b", "a/../b", "c:x", "a\\b", "#1", " x", "a\nb"])
def test_ids_that_cannot_be_files_are_refused(tmp_path: Path, image_id: str) -> None:
    with pytest.raises(DeixisError):
        write_corpus(Corpus([make_image(image_id)]), tmp_path / "out", format="flickr30k-entities")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_zip_and_a_folder_hold_the_same(tmp_path: Path) -> None:
    image = read_one(tmp_path / "source")
    corpus = Corpus([image, make_image("nested/8", captions=[make_caption("x")], source_id="123")])
    for out in (tmp_path / "out", tmp_path / "out.zip"):
        write_corpus(corpus, out, format="flickr30k-entities")
        assert entities.read(open_tree(out)) == corpus
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.read("Sentences/7.txt").decode() == SENTENCES


def test_plain_voc_annotations_are_not_taken_for_entities(tmp_path: Path) -> None:
    lay_out(tmp_path, {"Annotations/7.xml": XML})
    assert not entities.detect(open_tree(tmp_path))
