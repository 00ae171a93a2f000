"""What several formats share: text and JSON whose faults name the line or field; ids, splits, boxes by corner.

Records take many times the bytes of the text they come from: `{},` becomes a caption. So the size of the records is
estimated before they are made, and bounded by what the file takes on disk.
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

#: Names that datasets give the validation split; Deixis says `val`.
SPLIT_NAMES = {"dev": "val", "valid": "val", "validation": "val"}
#: What msgspec raises for bytes that are not JSON: a damaged document, bytes that are not UTF-8, too deep a nesting,
#: a number of thousands of digits.
JSON_FAULTS = (msgspec.DecodeError, RecursionError, ValueError)
#: What records may take: so much always, more with a file's bytes on disk, and no more than the last.
RECORD_BYTES, RECORD_BYTES_PER_BYTE, MAX_RECORD_BYTES = 512 << 20, 64, 8 << 30
#: Bytes of a line's caption, of a JSON object, list or string with what becomes of it, of a key, of another element.
_LINE_BYTES, _VALUE_BYTES, _KEY_BYTES, _ELEMENT_BYTES = 400, 160, 80, 40
#: Bytes of JSON whose values are counted at a time.
_COUNTED = 1 << 20
#: Published boxes pass the picture's edge by rounding; more than this many pixels outside is a fault.
EDGE_TOLERANCE = 1.0


def read_lines(tree: FileTree, name: str, limit: int = MEMBER_LIMIT) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file with their numbers from 1; only `\\n` and `\\r\\n` end a line."""
    data = tree.read(name, limit).removeprefix(b"\xef\xbb\xbf")
    _check_size(tree, name, data, _LINE_BYTES * data.count(b"\n"))
    for number, line in split_lines(data):
        try:
            yield number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as fault:
            problem = f"is not UTF-8 text (byte {fault.start + 1} of the line)"
            raise InputError(tree.path, problem, f"{name} line {number}") from None


def split_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a file without their ends, numbered from 1, as `data.split(b"\\n")` has them but one at a time."""
    number = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        yield number, line.removesuffix(b"\n")
    if not number or data.endswith(b"\n"):
        yield number + 1, b""


def read_json_bytes(tree: FileTree, name: str) -> bytes:
    """JSON, or lines of it, whose values fit into memory."""
    data = tree.read(name).removeprefix(b"\xef\xbb\xbf")
    _check_size(tree, name, data)
    return data


def _check_size(tree: FileTree, name: str, data: bytes, estimate: int | None = None) -> None:
    """Refuse a file whose records would take too much memory for what it takes on disk."""
    allowed = min(MAX_RECORD_BYTES, RECORD_BYTES + RECORD_BYTES_PER_BYTE * tree.stored_bytes(name))
    # No JSON takes more for each of its bytes, so that most files need no count.
    if estimate is None and len(data) * RECORD_BYTES_PER_BYTE > allowed:
        # A count that takes every mark for one of structure comes first: it is fast, and mostly enough.
        values = data.count(b"{") + data.count(b"[") + data.count(b'"') // 2 + 1
        estimate = values * _VALUE_BYTES + data.count(b",") * _ELEMENT_BYTES
        estimate = json_memory(data) if estimate > allowed else estimate
    if estimate is not None and estimate > allowed:
        needed = f"holds too much for its size: about {estimate / 1e9:.1f} GB in memory, where {allowed / 1e9:.1f} GB"
        raise InputError(tree.path, f"{needed} are allowed", name)


def json_memory(data: bytes) -> int:
    """About how many bytes the records of a JSON document take, and never much less."""
    total, inside, start = 0, False, 0
    while start < len(data):
        end = min(start + _COUNTED, len(data))
        while end < len(data) and data[end - 1] == ord("\\"):
            end += 1
        # Without what is escaped, every quotation mark begins or ends a string.
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
        problem, place = str(fault), ""
        # Further on the document may be no JSON at all, which then ends the search.
        with suppress(*JSON_FAULTS):
            problem, place = _locate(data, schema) or (problem, place)
        raise InputError(tree.path, problem, f"{name} {place}".rstrip()) from None
    except JSON_FAULTS as fault:
        raise InputError(tree.path, f"is not JSON ({fault})", name) from None


def _locate(data: bytes, schema: Any, place: str = "") -> tuple[str, str] | None:
    """The first thing that is not as `schema` says, and where it is: msgspec's own message names no list index."""
    try:
        msgspec.json.decode(data, type=schema)
    except msgspec.ValidationError as fault:
        problem, _, field = str(fault).partition(" - at `$")
    else:
        return None
    inside: Iterator[tuple[str, str] | None] = iter(())
    if get_origin(schema) is list and data.strip().startswith(b"["):
        elements = enumerate(msgspec.json.decode(data, type=list[msgspec.Raw]))
        inside = (_locate(bytes(element), get_args(schema)[0], f"{place}[{index}]") for index, element in elements)
    elif isinstance(schema, type) and issubclass(schema, msgspec.Struct) and data.strip().startswith(b"{"):
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        lists = {key: hint for key, hint in get_type_hints(schema).items() if get_origin(hint) is list}
        inside = (_locate(bytes(members[key]), hint, f"{place}.{key}") for key, hint in lists.items() if key in members)
    return next(filter(None, inside), (problem, (place + field.rstrip("`")).lstrip(".")))


def json_keys(tree: FileTree) -> dict[str, frozenset[str]]:
    """The JSON files at the top of the tree, each with the keys of the document and of what its lists begin with.

    Each file is read once a tree, however many formats ask.
    """
    if tree not in _JSON_KEYS:
        names = [name for name in tree.names() if name.endswith(".json") and "/" not in name]
        _JSON_KEYS[tree] = {name: _document_keys(read_json_bytes(tree, name)) for name in names}
    return _JSON_KEYS[tree]


_JSON_KEYS: WeakKeyDictionary[FileTree, dict[str, frozenset[str]]] = WeakKeyDictionary()
_KEY = re.compile(rb'"(\w+)"\s*:')
#: How much of a list is looked at for the keys of its elements.
_LIST_START = 1 << 16
#: How much of a file that is no JSON is looked at for keys.
_DAMAGED_START = 1 << 24


def _document_keys(data: bytes) -> frozenset[str]:
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | msgspec.Raw)
    except JSON_FAULTS:
        # Whose file it would be is still worth knowing: its reader then says what is wrong with it.
        return frozenset(key.group(1).decode() for key in _KEY.finditer(data, 0, _DAMAGED_START))
    if isinstance(members, msgspec.Raw):
        members = {"": members}
    starts = (bytes(memoryview(value)[:_LIST_START]).lstrip() for value in members.values())
    inner = {key.decode() for start in starts if start.startswith(b"[") for key in _KEY.findall(start)}
    return frozenset(inner.union(members))


def find_json(tree: FileTree, *keys: str) -> str | None:
    """The first JSON file at the top of the tree that has all these keys."""
    return next((name for name, found in json_keys(tree).items() if found.issuperset(keys)), None)


def require_utf8(tree: FileTree, names: Iterable[str]) -> None:
    """Refuse file names that no text can hold, where a name becomes part of the corpus."""
    for name in names:
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise InputError(tree.path, "the file's name is not UTF-8: give it another", ascii(name))


def names_at_hand(tree: FileTree) -> tuple[str, ...]:
    """The files of the tree, and where that is a single file those beside it that may belong to it."""
    return tree.beside() if isinstance(tree, SingleFileTree) else tree.names()


def list_entries(tree: FileTree, name: str) -> Iterator[tuple[int, str]]:
    """The entries of a list file (one image a line), without blank lines."""
    for number, line in read_lines(tree, name):
        if entry := line.strip():
            yield number, entry


def split_file_part(split: str) -> str:
    """A split's name as part of a file name, or a `DeixisError` where it cannot be."""
    if not re.fullmatch(r"[\w.-]*", split):
        raise DeixisError(f"split {split!r} cannot be part of a file name; use letters, digits, '_', '-' and '.'")
    return split


def file_name(path: str) -> str:
    """The last part of a path. (Path objects would cost seconds in a tree of hundreds of thousands of names.)"""
    return path.rpartition("/")[2]


def stem(file: str) -> str:
    """The file name without folders and suffix; `x.jpg.1`, as download tools name a second copy, gives `x`."""
    name = file_name(file)
    front, _, last = name.rpartition(".")
    if front and last.isdecimal() and (further := front.rpartition("."))[0] and further[2].isalpha():
        return further[0]
    return front if front else name


def number_or_text(text: str) -> int | str:
    """An id as JSON has it: a number where the text is exactly how that number is written."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,17}", text) else text


def caption_ids(corpus: Corpus, first: int) -> list[str]:
    """Every caption's id in order: the captions' own where all have distinct numbers, else running numbers."""
    own = [caption.id for image in corpus for caption in image.captions]
    if len(set(own)) == len(own) and all(isinstance(number_or_text(id), int) for id in own):
        return own
    return [str(number) for number in range(first, first + len(own))]


def chain_id(source_id: int | str) -> str:
    """A chain's id from a source that numbers from 0, which here means "not visual"."""
    text = str(source_id)
    return f"id{text}" if text == NOT_VISUAL_CHAIN else text


def box_from_corner(x: float, y: float, width: float, height: float) -> Box:
    """A box from its upper left corner and size, as COCO and Visual Genome write it."""
    return Box(x, y, x + width, y + height)


def clipped(box: Box, width: int, height: int) -> Box:
    """The part of a box inside the picture (0 = size unknown); beyond it entirely, `x1 > x2` or `y1 > y2` remains."""
    across, down = width or float("inf"), height or float("inf")
    return Box(max(box.x1, 0.0), max(box.y1, 0.0), min(box.x2, across), min(box.y2, down))


def inside(box: Box, width: int, height: int) -> Box | None:
    """The box with its rounding at the picture's edges taken off, or None where it is further outside or inside out."""
    inner = clipped(box, width, height)
    moved = max(inner.x1 - box.x1, inner.y1 - box.y1, box.x2 - inner.x2, box.y2 - inner.y2)
    return inner if moved <= EDGE_TOLERANCE and inner.x1 <= inner.x2 and inner.y1 <= inner.y2 else None


def through_corner(box: Box, width: int, height: int) -> Box:
    """The box as it comes back from corner and size, where the last bit of `x1 + (x2 - x1)` may differ from `x2`."""
    return clipped(box_from_corner(box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1), width, height)
