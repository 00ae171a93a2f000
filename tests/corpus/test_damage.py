"""Whatever bytes come, opening ends in a corpus or in a `DeixisError`; no format tears, hangs or swells."""

from __future__ import annotations

import io
import os
import random
import resource
import zipfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus import (
    Box,
    Chain,
    Corpus,
    Phrase,
    format_helpers,
    make_caption,
    make_image,
    open_corpus,
    write_corpus,
)
from deixis.corpus.formats import FORMATS, native
from deixis.corpus.tree import open_tree
from deixis.errors import DeixisError, InputError

COMPRESSIONS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "bz2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def sample() -> Corpus:
    phrases = [Phrase(0, 2, "1", ("people",)), Phrase(3, 5, "2", ("scene",))]
    return Corpus(
        make_image(
            image_id,
            file=f"{image_id}.jpg",
            width=60,
            height=40,
            split=split,
            captions=[make_caption("A clown in the émigré's park", None, phrases, unrelated=image_id == "102")],
            boxes=[Box(5, 5, 30, 35)],
            chains=[Chain("1", (0,)), Chain("2", scene=True)],
            source_id="123456789",
        )
        for image_id, split in (("101", "train"), ("102", "test"))
    )


def written(folder: Path, format: str) -> dict[str, bytes]:
    write_corpus(sample(), folder / format, format=format)
    files = sorted(file for file in (folder / format).rglob("*") if file.is_file())
    return {file.relative_to(folder / format).as_posix(): file.read_bytes() for file in files}


def zipped(files: dict[str, bytes], compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def flipped(data: bytes, generator: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(generator.choice((1, 1, 3))):
        damaged[generator.randrange(len(damaged))] ^= generator.randrange(1, 256)
    return bytes(damaged)


def assert_reported_or_opened(archive: Path) -> None:
    for format in (None, archive.stem):
        with suppress(DeixisError):
            open_corpus(archive, format=format, cache=False)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_flipped_bytes_of_an_archive_never_tear_the_reader(format: str, compression: str, tmp_path: Path) -> None:
    whole = zipped(written(tmp_path, format), COMPRESSIONS[compression])
    generator = random.Random(f"{format} {compression}")
    archive = tmp_path / f"{format}.zip"
    for _ in range(40):
        archive.write_bytes(flipped(whole, generator))
        assert_reported_or_opened(archive)


@pytest.mark.parametrize("format", FORMATS)
def test_flipped_bytes_of_a_file_never_tear_the_reader(format: str, tmp_path: Path) -> None:
    files = written(tmp_path, format)
    generator = random.Random(format)
    archive = tmp_path / f"{format}.zip"
    for _ in range(80):
        name = generator.choice([name for name, data in files.items() if data])
        archive.write_bytes(zipped({**files, name: flipped(files[name], generator)}, zipfile.ZIP_STORED))
        assert_reported_or_opened(archive)


DEEP = b'{"x":' + b"[" * 200_000
LONG = "9" * 5000
HEADER = b'{"deixis":"corpus","version":1,"images":1}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corpus.jsonl", DEEP),
        ("corpus.jsonl", b'{"deixis":"corpus","version":1,"x":' + b"[" * 50_000 + b"\n"),
        ("corpus.jsonl", HEADER + DEEP),
        ("corpus.jsonl", HEADER + b'{"id":"' + b'","captions":[{"text":"\xff"}]}'),
        ("corpus.jsonl", HEADER + b'{"id":"1","width":' + LONG.encode() + b"}"),
        ("corpus.jsonl", b'{"deixis":"corpus","version":1,"name":"\xff"}\n'),
        ("captions.jsonl", DEEP),
        ("captions.jsonl", b'{"file":"a.jpg","image_id":' + LONG.encode() + b"}"),
        ("dataset.json", b'{"images":[5], "sentences": ' + DEEP),
        ("dataset.json", DEEP),
        ("captions.json", b'{"images":[{"id":' + LONG.encode() + b'}],"annotations":[]}'),
        ("UNRELATED_CAPTIONS", b"7 " + LONG.encode()),
        ("Annotations/7.xml", f"<annotation><size><width>{LONG}</width></size></annotation>".encode()),
    ],
)
def test_what_is_too_deep_too_long_or_no_text_is_reported_in_one_line(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / "Sentences").mkdir()
    if name[0] in "UA":
        (tmp_path / "Sentences" / "7.txt").write_text("fine\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_corpus(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_message_does_not_quote_a_long_value_whole() -> None:
    fault = InputError("corpus.json", f"id {'x' * 100_000} is not a number", "y" * 100_000)
    assert len(str(fault)) < 2000
    assert str(fault).startswith("corpus.json: yy")
    assert str(fault).endswith("xx is not a number")


def test_an_id_may_have_more_digits_than_a_number(tmp_path: Path) -> None:
    (tmp_path / "Sentences").mkdir()
    ids = ["9" * 100, "1" + "0" * 120, "9", "10"]
    for image_id in ids:
        (tmp_path / "Sentences" / f"{image_id}.txt").write_text(f"[/EN#{LONG}/people A man]\n[/EN#3/people A man]\n")
    corpus = open_corpus(tmp_path)
    assert [image.id for image in corpus] == sorted(ids, key=int)
    assert [chain.id for chain in corpus["9"].chains] == ["3", LONG]


@pytest.mark.parametrize("member", ["Annotations/7.xml", "Sentences/7.txt"])
def test_a_file_that_would_swell_is_refused_by_its_size(tmp_path: Path, member: str) -> None:
    files = {"Annotations/7.xml": b"<annotation/>", "Sentences/7.txt": b"fine\n"}
    files[member] = b"<annotation>" + b"<a/>" * 1_000_000 + b"</annotation>"
    archive = tmp_path / "bomb.zip"
    archive.write_bytes(zipped(files, zipfile.ZIP_DEFLATED))
    with pytest.raises(InputError, match=rf"{member}: larger than"):
        open_corpus(archive)


def test_a_name_that_an_archive_has_twice_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "twice.zip"
    twins = zipped({"Sentences/7.txt": b"one", "Sentences/8.txt": b"two"}, zipfile.ZIP_STORED)
    archive.write_bytes(twins.replace(b"8.txt", b"7.txt"))
    with pytest.raises(InputError, match=r"Sentences/7\.txt: is in the archive twice"):
        open_corpus(archive)


def test_a_duplicate_image_of_the_native_format_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(HEADER.replace(b'"images":1', b'"images":3') + b'{"id":"a"}\n{"id":"b"}\n{"id":"a"}\n')
    with pytest.raises(InputError, match=r"corpus\.jsonl line 4: image 'a' is on line 2 too"):
        open_corpus(file)


def test_a_native_corpus_of_another_version_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(HEADER.replace(b'"version":1', b'"version":2'))
    with pytest.raises(InputError, match="is version 2 of Deixis' format; this Deixis reads version 1"):
        open_corpus(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.timeout(20)
def test_pipes_are_passed_over_or_refused_and_never_waited_for(tmp_path: Path) -> None:
    for name in ("captions.csv", "corpus.jsonl", "images.zip"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "a.jpg").write_bytes(b"picture")
    assert [image.file for image in open_corpus(tmp_path)] == ["a.jpg"]
    with pytest.raises(InputError, match="regular file"):
        open_tree(tmp_path / "captions.csv")
    with pytest.raises(InputError, match="regular file"):
        open_tree(tmp_path).read("captions.csv")


@pytest.mark.skipif(os.name != "posix", reason="names of other systems cannot hold these")
def test_colons_and_backslashes_are_ordinary_characters_in_names(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    names = ["12:30.png", "C:/x.png", "a\\b.png", "plain.png"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    archive = tmp_path / "archive.zip"
    archive.write_bytes(zipped({name: name.encode() for name in names}, zipfile.ZIP_STORED))
    for path in (folder, archive):
        corpus = open_corpus(path)
        assert corpus.pictures is not None
        assert {image.file: corpus.pictures.read(image).decode() for image in corpus} == dict(
            zip(names, names, strict=True)
        )
    write_corpus(open_corpus(folder), tmp_path / "again", format="folder", pictures=True)
    again = open_corpus(tmp_path / "again")
    assert again.pictures is not None
    assert sorted(again.pictures.read(image).decode() for image in again) == sorted(names)


def test_members_that_lead_upwards_are_still_refused(tmp_path: Path) -> None:
    archive = tmp_path / "evil.zip"
    for name in ("../evil.png", "/evil.png", "a/../../evil.png"):
        archive.write_bytes(zipped({name: b"", "fine.png": b""}, zipfile.ZIP_STORED))
        with pytest.raises(InputError, match="leads outside the archive"):
            open_corpus(archive)


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX systems only")
def test_a_path_that_is_not_utf8_opens_and_an_image_named_so_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    write_corpus(sample(), folder, format="flickr30k-entities")
    corpus = open_corpus(folder)
    assert (len(corpus), corpus.name) == (2, "caf�")
    native.write(corpus, tmp_path / "again.jsonl")
    (folder / "Sentences" / os.fsdecode(b"\xe9.txt")).write_text("one\n")
    with pytest.raises(InputError, match="not UTF-8"):
        open_corpus(folder)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_cannot_be_unpacked_within_a_bound_are_refused(method: int, tmp_path: Path) -> None:
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", method) as out:
        out.writestr("Sentences/1.txt", "a man .\n" * 1000)
        out.writestr("Annotations/1.xml", "<annotation/>")
    with pytest.raises(InputError, match=r"bomb\.zip: .*other than deflate"):
        open_corpus(archive, cache=False)


MANY = 5_000_000
BOMBS = {
    "dataset.json": b'{"dataset":"x","images":[{"filename":"a.jpg","sentences":[' + b"{}," * MANY + b"{}]}]}",
    "captions_train.json": b'{"images":[' + b'{"id":1},' * MANY + b'{"id":1}],"annotations":[]}',
    "corpus.jsonl": HEADER + b'{"id":"1","captions":[' + b'{"text":"a"},' * MANY + b'{"text":"a"}]}\n',
    "region_descriptions.json": b'[{"id":1,"regions":[' + b'{"region_id":1,"phrase":""},' * MANY + b"{}]}]",
    "captions.tsv": b"file\tcaption\n" + b"a.jpg\ta\n" * MANY,
    "Flickr8k.token.txt": b"a.jpg#0\ta\n" * MANY,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("mixed_in", [0, 100_000], ids=["plain", "with noise"])
def test_an_archive_that_would_take_gigabytes_is_refused(name: str, mixed_in: int, tmp_path: Path) -> None:
    """Noise makes the archive large enough for its members to be unpacked; their values are then counted."""
    archive = tmp_path / "bomb.zip"
    archive.write_bytes(zipped({name: BOMBS[name] + b" " * 40 + os.urandom(mixed_in)}, zipfile.ZIP_DEFLATED))
    assert archive.stat().st_size < 1_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=rf"bomb\.zip: {name}: (unpacks to|holds too much for its size)"):
        open_corpus(archive, cache=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def counted(value: object) -> int:
    """`json_memory` of a document, by walking through it."""
    elements = 0
    if isinstance(value, dict):
        elements = max(0, len(value) - 1) * 40 + len(value) * 80 + sum(map(counted, value.values()))
    elif isinstance(value, list):
        elements = max(0, len(value) - 1) * 40 + sum(map(counted, value))
    return elements + 160 * isinstance(value, dict | list | str)


TEXTS = st.text('a"\\{[,:', max_size=6)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(DOCUMENTS, st.integers(1, 40))
def test_the_values_of_json_are_counted_whatever_its_strings_hold(document: object, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_helpers, "_COUNTED", chunk)
        assert format_helpers.json_memory(msgspec.json.encode(document)) == counted(document)


@given(st.binary(max_size=30).map(lambda data: data.replace(b"a", b"\n")))
def test_lines_are_split_as_a_whole_file_would_be(data: bytes) -> None:
    assert [line for _, line in format_helpers.split_lines(data)] == data.split(b"\n")
