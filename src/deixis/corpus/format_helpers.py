"""Helpers shared by several formats: reading text and JSON with errors that name the line or field; ids, splits, boxes.

Records take many times the memory of their text: `{},` becomes a caption. Their size is therefore estimated before they
are created, and limited in proportion to the file's size on disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from deixis.corpus.records import NOT_VISUAL_CHAIN, Box, Corpus
from deixis.corpus.tree import MEMBER_LIMIT, FileTree, SingleFileTree
from deixis.errors import DeixisError, InputError

Document = TypeVar("Document")

#: Other names of the validation split, which is `val` in Deixis.
SPLIT_NAMES = {"dev": "val", "valid": "val", "validation": "val"}
#: Exceptions of msgspec for bytes that are not JSON: damaged documents, bytes that are not UTF-8, deep nesting, numbers
#: with thousands of digits.
JSON_FAULTS = (msgspec.DecodeError, RecursionError, ValueError)
#: Memory limit of the records of a file: a base, an addition per byte on disk, and a maximum.
RECORD_BYTES, RECORD_BYTES_PER_BYTE, MAX_RECORD_BYTES = 512 << 20, 64, 8 << 30
#: Estimated bytes per text line; per JSON object, list or string; per key; per other element.
_LINE_BYTES, _VALUE_BYTES, _KEY_BYTES, _ELEMENT_BYTES = 400, 160, 80, 40
#: Bytes of JSON that are scanned at once.
_COUNTED = 1 << 20
#: Published boxes exceed the picture by rounding. More than this many pixels is an error.
EDGE_TOLERANCE = 1.0


def read_lines(tree: FileTree, name: str, limit: int = MEMBER_LIMIT) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, numbered from 1. Only `\\n` and `\\r\\n` end a line."""
    data = tree.read(name, limit).removeprefix(b"\xef\xbb\xbf")
    _check_size(tree, name, data, _LINE_BYTES * data.count(b"\n"))
    for line_number, line in split_lines(data):
        try:
            yield line_number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as fault:
            problem = f"is not UTF-8 text (byte {fault.start + 1} of the line)"
            raise InputError(tree.path, problem, f"{name} line {line_number}") from None


def split_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, numbered from 1, like `data.split(b"\\n")` but one at a time."""
    line_number = 0
    for line_number, line in enumerate(io.BytesIO(data), start=1):
        yield line_number, line.removesuffix(b"\n")
    if not line_number or data.endswith(b"\n"):
        yield line_number + 1, b""


def read_json_bytes(tree: FileTree, name: str) -> bytes:
    """The bytes of a JSON or JSON Lines file, after checking that its values fit into memory."""
    data = tree.read(name).removeprefix(b"\xef\xbb\xbf")
    _check_size(tree, name, data)
    return data


def _check_size(tree: FileTree, name: str, data: bytes, estimate: int | None = None) -> None:
    """Refuse a file whose records would take too much memory in proportion to its size on disk."""
    allowed = min(MAX_RECORD_BYTES, RECORD_BYTES + RECORD_BYTES_PER_BYTE * tree.stored_bytes(name))
    # No JSON needs more memory per byte, so most files need no count.
    if estimate is None and len(data) * RECORD_BYTES_PER_BYTE > allowed:
        # First an upper bound that counts brackets and quotes inside strings too: fast, and usually enough.
        values = data.count(b"{") + data.count(b"[") + data.count(b'"') // 2 + 1
        estimate = values * _VALUE_BYTES + data.count(b",") * _ELEMENT_BYTES
        estimate = json_memory(data) if estimate > allowed else estimate
    if estimate is not None and estimate > allowed:
        needed = f"holds too much for its size: about {estimate / 1e9:.1f} GB in memory, where {allowed / 1e9:.1f} GB"
        raise InputError(tree.path, f"{needed} are allowed", name)


def json_memory(data: bytes) -> int:
    """Estimated memory, in bytes, of the records of a JSON document; never much too low."""
    total, inside, start = 0, False, 0
    while start < len(data):
        end = min(start + _COUNTED, len(data))
        while end < len(data) and data[end - 1] == ord("\\"):
            end += 1
        # Without escaped characters, every quotation mark begins or ends a string.
        parts = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[int(inside) :: 2])
        keys = outside.count(b":")
        values = outside.count(b"{") + outside.count(b"[") + (len(parts) - inside) // 2
        total += values * _VALUE_BYTES + keys * (_KEY_BYTES - _VALUE_BYTES) + outside.count(b",") * _ELEMENT_BYTES
        inside ^= len(parts) % 2 == 0
        start = end
    return total


def read_json(tree: FileTree, name: str, schema: type[Document]) -> Document:
    """One JSON document, checked against `schema`."""
    data = read_json_bytes(tree, name)
    try:
        return msgspec.json.decode(data, type=schema)
    except msgspec.ValidationError as fault:
        problem, location = str(fault), ""
        # The search ends early if the rest of the document is not JSON.
        with suppress(*JSON_FAULTS):
            problem, location = _locate(data, schema) or (problem, location)
        raise InputError(tree.path, problem, f"{name} {location}".rstrip()) from None
    except JSON_FAULTS as fault:
        raise InputError(tree.path, f"is not JSON ({fault})", name) from None


def _locate(data: bytes, schema: Any, location: str = "") -> tuple[str, str] | None:
    """The first violation of `schema`, and its location. (msgspec's own message has no list index.)"""
    try:
        msgspec.json.decode(data, type=schema)
    except msgspec.ValidationError as fault:
        problem, _, field = str(fault).partition(" - at `$")
    else:
        return None
    inside: Iterator[tuple[str, str] | None] = iter(())
    if get_origin(schema) is list and data.strip().startswith(b"["):
        elements = enumerate(msgspec.json.decode(data, type=list[msgspec.Raw]))
        inside = (_locate(bytes(element), get_args(schema)[0], f"{location}[{index}]") for index, element in elements)
    elif isinstance(schema, type) and issubclass(schema, msgspec.Struct) and data.strip().startswith(b"{"):
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        lists = {key: hint for key, hint in get_type_hints(schema).items() if get_origin(hint) is list}
        inside = (
            _locate(bytes(members[key]), hint, f"{location}.{key}") for key, hint in lists.items() if key in members
        )
    return next(filter(None, inside), (problem, (location + field.rstrip("`")).lstrip(".")))


def json_keys(tree: FileTree) -> dict[str, frozenset[str]]:
    """The JSON files at the top of the tree, each with the keys of the document and of the first elements of its lists.

    Results are cached per tree.
    """
    if tree not in _JSON_KEYS:
        names = [name for name in tree.names() if name.endswith(".json") and "/" not in name]
        _JSON_KEYS[tree] = {name: _document_keys(read_json_bytes(tree, name)) for name in names}
    return _JSON_KEYS[tree]


_JSON_KEYS: WeakKeyDictionary[FileTree, dict[str, frozenset[str]]] = WeakKeyDictionary()
_KEY = re.compile(rb'"(\w+)"\s*:')
#: Bytes of a list that are searched for the keys of its elements.
_LIST_START = 1 << 16
#: Bytes of an invalid JSON file that are searched for keys.
_DAMAGED_START = 1 << 24


def _document_keys(data: bytes) -> frozenset[str]:
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | msgspec.Raw)
    except JSON_FAULTS:
        # Keys still show the format of a damaged file; its reader then reports the error.
        return frozenset(key.group(1).decode() for key in _KEY.finditer(data, 0, _DAMAGED_START))
    if isinstance(members, msgspec.Raw):
        members = {"": members}
    starts = (bytes(memoryview(value)[:_LIST_START]).lstrip() for value in members.values())
    inner = {key.decode() for start in starts if start.startswith(b"[") for key in _KEY.findall(start)}
    return frozenset(inner.union(members))


def find_json(tree: FileTree, *keys: str) -> str | None:
    """The first JSON file at the top of the tree that has all these keys."""
    return next((name for name, present in json_keys(tree).items() if present.issuperset(keys)), None)


def require_utf8(tree: FileTree, names: Iterable[str]) -> None:
    """Refuse file names that are not UTF-8, for formats in which names become part of the corpus."""
    for name in names:
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise InputError(tree.path, "the file's name is not UTF-8; rename it", ascii(name))


def names_at_hand(tree: FileTree) -> tuple[str, ...]:
    """The files of the tree; for a single file, those in the same folder that may belong to it."""
    return tree.beside() if isinstance(tree, SingleFileTree) else tree.names()


def list_entries(tree: FileTree, name: str) -> Iterator[tuple[int, str]]:
    """The entries of a list file (one image per line), without blank lines."""
    for line_number, line in read_lines(tree, name):
        if entry := line.strip():
            yield line_number, entry


def split_file_part(split: str) -> str:
    """Check that a split's name can be part of a file name. Raises `DeixisError` if not."""
    if not re.fullmatch(r"[\w.-]*", split):
        raise DeixisError(f"split {split!r} cannot be part of a file name; use letters, digits, '_', '-' and '.'")
    return split


def file_name(path: str) -> str:
    """The last part of a path. (Path objects would take seconds for hundreds of thousands of names.)"""
    return path.rpartition("/")[2]


def stem(file: str) -> str:
    """The file name without folders and suffix. `x.jpg.1`, a second copy by download tools, gives `x`."""
    name = file_name(file)
    front, _, last = name.rpartition(".")
    if front and last.isdecimal() and (further := front.rpartition("."))[0] and further[2].isalpha():
        return further[0]
    return front if front else name


def number_or_text(text: str) -> int | str:
    """An id for JSON: a number if the text is exactly how the number is written."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,17}", text) else text


def caption_ids(corpus: Corpus, first: int) -> list[str]:
    """All caption ids in order: those of the captions if they are distinct numbers, else running numbers."""
    ids = [caption.id for image in corpus for caption in image.captions]
    if len(set(ids)) == len(ids) and all(isinstance(number_or_text(id), int) for id in ids):
        return ids
    return [str(caption_id) for caption_id in range(first, first + len(ids))]


def chain_id(source_id: int | str) -> str:
    """The chain id for a source's id. 0 is changed, because it means "not visual" in Deixis."""
    text = str(source_id)
    return f"id{text}" if text == NOT_VISUAL_CHAIN else text


def box_from_corner(x: float, y: float, width: float, height: float) -> Box:
    """A box from its upper left corner and size, as in COCO and Visual Genome."""
    return Box(x, y, x + width, y + height)


def clipped(box: Box, width: int, height: int) -> Box:
    """Clip a box to the picture (0 = size unknown). A box entirely outside gets `x1 > x2` or `y1 > y2`."""
    across, down = width or float("inf"), height or float("inf")
    return Box(max(box.x1, 0.0), max(box.y1, 0.0), min(box.x2, across), min(box.y2, down))


def inside(box: Box, width: int, height: int) -> Box | None:
    """Clip a box that exceeds the picture by rounding only. None if it is further outside or has a negative size."""
    inner = clipped(box, width, height)
    moved = max(inner.x1 - box.x1, inner.y1 - box.y1, box.x2 - inner.x2, box.y2 - inner.y2)
    return inner if moved <= EDGE_TOLERANCE and inner.x1 <= inner.x2 and inner.y1 <= inner.y2 else None


def through_corner(box: Box, width: int, height: int) -> Box:
    """The box after writing and reading it as corner and size: `x1 + (x2 - x1)` may differ slightly from `x2`."""
    return clipped(box_from_corner(box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1), width, height)
