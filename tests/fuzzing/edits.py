"""Damage to files: an edit is a few numbers, drawn by Hypothesis; it does the same to the same folder each time."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tests.tampering import DATABASES, files_of

#: No edit makes a file larger: what is looked for are small files that do harm.
LARGEST = 2_000_000
#: What a value in a text or JSON file is replaced by.
VALUES = (
    *(b"null", b"true", b"-1", b"0", b"0.5", b"1e999", b"-1e999", b"NaN", b"nan", b"inf", b"1e-320", b"4294967296"),
    *(b"9223372036854775808", b"9" * 400, b"9" * 5000, b'""', b'"\xff"', b'"\\ud800"', b'"a\\u0000b"', b'"/dev/zero"'),
    *(b'"../../../etc/passwd"', b"[]", b"{}", b"[[]]", b"[" * 2000, b"{" * 2000, b'{"a":' * 2000),
    *(b"[" * 300 + b"]" * 300, b'"' + b"a" * 100_000 + b'"'),
)
#: What bytes of a binary file are replaced by.
BYTES = (
    *(b"\0", b"\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"),
    *(b"\0\0\0\x80", b"\xff" * 8, b"\0" * 64, b"\x7f" + b"\xff" * 7, b"\0\0\xc0\x7f", b"\0\x7c", b"\n", b"\t", b","),
)
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\btrue\b|\bfalse\b|\bnull\b')


class Edit(NamedTuple):
    kind: str
    #: Which file, where in it, how much of it, and what comes there.
    file: int
    place: int
    length: int
    value: int


def edits(*, databases: bool = False, special: bool = True) -> st.SearchStrategy[list[Edit]]:
    """One to five edits, most of them of the contents; of databases too, and of what a file is."""
    kinds = (
        [*CONTENTS, *CONTENTS]
        + ([*SPECIAL, "delete folder"] if special else [])
        + (list(DATABASES) * 2 if databases else [])
    )
    number = st.integers(0, 1 << 20)
    edit = st.builds(Edit, st.sampled_from(kinds), number, number, st.integers(0, 64), number)
    return st.lists(edit, min_size=1, max_size=5)


def apply(folder: Path, edit: Edit) -> None:
    """Make an edit in a folder; one that has nothing to act on does nothing."""
    files = files_of(folder)
    if edit.kind in DATABASES:
        databases = [path for path in files if path.suffix in (".db", ".sqlite")]
        if databases:
            _edit_database(databases[edit.file % len(databases)], edit)
        return
    if not files:
        return
    path = files[edit.file % len(files)]
    if edit.kind == "delete folder":
        if path.parent != folder:
            shutil.rmtree(path.parent)
        return
    if edit.kind in SPECIAL:
        SPECIAL[edit.kind](path, files[edit.value % len(files)])
        return
    with suppress(PermissionError):
        data = path.read_bytes()
        other = files[edit.value % len(files)].read_bytes()
        path.write_bytes(CONTENTS[edit.kind](data, edit, other)[:LARGEST])


def _edit_database(path: Path, edit: Edit) -> None:
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error, IndexError):
        DATABASES[edit.kind](connection, random.Random(edit.value))
        connection.commit()


def _flip(data: bytes, edit: Edit, other: bytes) -> bytes:
    if not data:
        return data
    place = edit.place % len(data)
    return data[:place] + bytes([data[place] ^ (1 + edit.value % 255)]) + data[place + 1 :]


def _set(data: bytes, edit: Edit, other: bytes) -> bytes:
    value, place = BYTES[edit.value % len(BYTES)], edit.place % (len(data) + 1)
    return data[:place] + value + data[place + len(value) :]


def _insert(data: bytes, edit: Edit, other: bytes) -> bytes:
    place = edit.place % (len(data) + 1)
    return data[:place] + BYTES[edit.value % len(BYTES)] * (1 + edit.length) + data[place:]


def _cut(data: bytes, edit: Edit, other: bytes) -> bytes:
    place = edit.place % (len(data) + 1)
    return data[:place] + data[place + edit.length :]


def _truncate(data: bytes, edit: Edit, other: bytes) -> bytes:
    return data[: edit.place % (len(data) + 1)]


def _repeat(data: bytes, edit: Edit, other: bytes) -> bytes:
    place = edit.place % (len(data) + 1)
    part = data[place : place + edit.length]
    return data[:place] + part * (edit.value % 2000) + data[place:]


def _splice(data: bytes, edit: Edit, other: bytes) -> bytes:
    place = edit.place % (len(data) + 1)
    return data[:place] + other[edit.length :]


def _replace_value(data: bytes, edit: Edit, other: bytes) -> bytes:
    values = list(_VALUE.finditer(data[:LARGEST]))
    if not values:
        return data
    found = values[edit.place % len(values)]
    return data[: found.start()] + VALUES[edit.value % len(VALUES)] + data[found.end() :]


def _swap_values(data: bytes, edit: Edit, other: bytes) -> bytes:
    values = list(_VALUE.finditer(data[:LARGEST]))
    if not values:
        return data
    one, two = values[edit.place % len(values)], values[edit.value % len(values)]
    return data[: one.start()] + two.group() + data[one.end() :]


CONTENTS: dict[str, Callable[[bytes, Edit, bytes], bytes]] = {
    "flip a byte": _flip,
    "set bytes": _set,
    "insert": _insert,
    "cut out": _cut,
    "truncate": _truncate,
    "repeat": _repeat,
    "splice": _splice,
    "replace a value": _replace_value,
    "swap values": _swap_values,
}


def _replaced(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    def replace(path: Path, other: Path) -> None:
        path.unlink()
        make(path, other)

    return replace


def _swap(path: Path, other: Path) -> None:
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


SPECIAL: dict[str, Callable[[Path, Path], None]] = {
    "pipe": _replaced(lambda path, other: os.mkfifo(path)),
    "loop": _replaced(lambda path, other: path.symlink_to(path.name)),
    "device": _replaced(lambda path, other: path.symlink_to("/dev/zero")),
    "folder": _replaced(lambda path, other: path.mkdir()),
    "delete": _replaced(lambda path, other: None),
    "empty": lambda path, other: path.write_bytes(b"") and None,
    "swap": _swap,
}
