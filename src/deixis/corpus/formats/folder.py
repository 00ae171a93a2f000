"""A plain folder of pictures, with captions in tables or in one text file per picture.

- A table is a `captions.csv`, `.tsv`, `.jsonl` (or `.txt` with a header) in any folder. A row has a `file`, relative to
  the table's folder, and a `caption`; an image may have any number of rows. `split` and `image_id` are optional.
- `beach.txt` next to `beach.jpg` has one caption per line.
- Pictures in a folder `train`, `val` or `test`, at the top or in `images/`, belong to that split unless a row differs.

The id of an image is its path without the suffix, or with it if two pictures differ only in the suffix. Images listed
in a table are kept even without a picture.
"""

from __future__ import annotations

import csv
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from deixis.corpus.format_helpers import JSON_FAULTS, SPLIT_NAMES, file_name, read_lines, require_utf8
from deixis.corpus.pictures import PICTURE_SUFFIXES, StoredPictures, picture_names
from deixis.corpus.records import Caption, Corpus, carried_source_id, make_caption, make_image
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "a folder of pictures, with captions.csv or .jsonl or a .txt beside each"

FILE_NAME = "captions.jsonl"
#: Accepted names of the columns.
COLUMNS = {
    "file": ("file", "file_name", "filename", "image", "image_name", "path"),
    "caption": ("caption", "text", "sentence", "comment", "description"),
    "split": ("split",),
    "image_id": ("image_id",),
    "source_id": ("source_id",),
}
DELIMITERS = (",", "\t", ";", "|")


class _Row(msgspec.Struct, omit_defaults=True):
    file: str = ""
    caption: str | None = None
    split: str | None = None
    image_id: str | None = None
    source_id: str | None = None


class _Draft:
    """An image whose rows are still being read."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.image_id: str | None = None
        self.split: str | None = None
        self.source_id: str | None = None
        self.captions: list[Caption] = []


def detect(tree: FileTree) -> bool:
    return bool(_tables(tree) or picture_names(tree))


def read(tree: FileTree) -> Corpus:
    pictures = StoredPictures(tree)
    drafts: dict[tuple[str, str], _Draft] = {}
    by_picture: dict[str, _Draft] = {}
    require_utf8(tree, picture_names(tree))
    for table in _tables(tree):
        folder = PurePosixPath(table).parent
        for location, row in _rows(tree, table):
            file = row.file and _normal(f"{folder}/{row.file}")
            names = pictures.locate(file)
            if len(names) > 1:
                raise InputError(tree.path, f"{row.file!r} may be {' or '.join(names[:3])}: write its path", location)
            draft = drafts.setdefault(("id", row.image_id) if row.image_id else ("file", file), _Draft(file))
            by_picture.update((name, draft) for name in names)
            _add(draft, row, tree, location)
    for name in picture_names(tree):
        if name not in by_picture:
            by_picture[name] = drafts[("file", name)] = _Draft(name)
    _add_texts(tree, by_picture)
    shared = Counter(_without_suffix(draft.file) for draft in drafts.values())
    try:
        return Corpus(
            make_image(
                draft.image_id or _default_id(draft.file, shared),
                file=draft.file,
                split=_folder_split(draft.file) if draft.split is None else draft.split,
                captions=draft.captions,
                source_id=draft.source_id or "",
            )
            for draft in drafts.values()
        )
    except DeixisError as fault:
        raise InputError(tree.path, str(fault)) from None


def write(corpus: Corpus, out: Path) -> None:
    reduced = keep(corpus)
    shared = Counter(_without_suffix(image.file) for image in reduced)
    encoder = msgspec.json.Encoder()
    with atomic_write(out / FILE_NAME) as stream:
        for image in reduced:
            plain_id = image.file and shared[image.id] == 1 and image.id == _without_suffix(image.file)
            for caption in image.captions or (None,):
                row = _Row(
                    image.file,
                    None if caption is None else caption.text,
                    split=None if image.split == _folder_split(image.file) else image.split,
                    image_id=None if plain_id else image.id,
                    source_id=image.source_id or None,
                )
                stream.write(encoder.encode(row) + b"\n")


def keep(corpus: Corpus) -> Corpus:
    """Ids, files, splits (`dev` as `val`), source ids and caption texts, but no sizes."""
    return corpus.with_images(
        make_image(
            image.id,
            file=_normal(image.file),
            split=SPLIT_NAMES.get(image.split, image.split),
            captions=[make_caption(caption.text) for caption in image.captions],
            source_id=carried_source_id(image.source_id, (image.id, _normal(image.file)), (image.file,)),
        )
        for image in corpus
    )


def _tables(tree: FileTree) -> list[str]:
    tables = []
    for name in tree.names():
        last = file_name(name).lower()
        if last in ("captions.csv", "captions.tsv", FILE_NAME) or (
            # Without a header line, it is the text file of a picture `captions.jpg`.
            last == "captions.txt" and _header(next((line for _, line in read_lines(tree, name)), ""))
        ):
            tables.append(name)
    return tables


def _rows(tree: FileTree, table: str) -> Iterator[tuple[str, _Row]]:
    """Every row with its location in the table."""
    rows = _json_rows(tree, table) if table.lower().endswith(".jsonl") else _csv_rows(tree, table)
    for line_number, values in rows:
        location = f"{table} line {line_number}"
        chosen: dict[str, str | None] = {}
        for column, aliases in COLUMNS.items():
            value = next((values[alias] for alias in aliases if values.get(alias) is not None), None)
            if isinstance(value, int) and not isinstance(value, bool) and column.endswith("_id"):
                value = str(value)
            if value is not None and not isinstance(value, str):
                raise InputError(tree.path, f"{column} is not text", location)
            chosen[column] = value
        if not chosen["file"] and not chosen["image_id"]:
            raise InputError(tree.path, "has no file", location)
        split = chosen["split"]
        yield (
            location,
            _Row(
                chosen["file"] or "",
                chosen["caption"],
                None if split is None else SPLIT_NAMES.get(split, split),
                chosen["image_id"],
                chosen["source_id"],
            ),
        )


def _json_rows(tree: FileTree, table: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for line_number, line in read_lines(tree, table):
        if not line.strip():
            continue
        try:
            yield line_number, msgspec.json.decode(line, type=dict[str, object])
        except JSON_FAULTS as fault:
            raise InputError(tree.path, f"is not a JSON object ({fault})", f"{table} line {line_number}") from None


def _csv_rows(tree: FileTree, table: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Rows of a table with or without a header. Empty cells are None."""
    lines = [f"{line}\n" for _, line in read_lines(tree, table)]
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return
    layout = _header(lines[first]) or _headless(lines[first])
    if layout is None:
        problem = "needs a header that names the columns file and caption, or a picture's file name in front"
        raise InputError(tree.path, problem, f"{table} line {first + 1}")
    delimiter, header, skip = layout
    for column in header:
        if header.count(column) > 1 and any(column in aliases for aliases in COLUMNS.values()):
            raise InputError(tree.path, f"has two columns {column!r}", f"{table} line {first + 1}")
    reader = csv.reader(lines[first + skip :], delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        line_number = first + skip + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as fault:
            raise InputError(tree.path, str(fault), f"{table} line {line_number}") from None
        if cells is None:
            return
        if not any(cells):
            continue
        if len(cells) != len(header):
            problem = f"has {len(cells)} cells instead of {len(header)}; quote captions that contain {delimiter!r}"
            raise InputError(tree.path, problem, f"{table} line {line_number}")
        yield (
            line_number,
            {
                column: (cell if column in COLUMNS["caption"] else cell.strip()) or None
                for column, cell in zip(header, cells, strict=True)
            },
        )


def _header(line: str) -> tuple[str, list[str], int] | None:
    """Delimiter and column names of a header line with a file column and another known column."""
    known = {alias for column, aliases in COLUMNS.items() if column != "file" for alias in aliases}
    for delimiter in DELIMITERS:
        cells = [cell.strip().lower() for cell in _cells(line, delimiter)]
        if known.intersection(cells) and set(COLUMNS["file"]).intersection(cells):
            return delimiter, cells, 1
    return None


def _headless(line: str) -> tuple[str, list[str], int] | None:
    """Delimiter of a first row that consists of a picture's file name and a caption."""
    for delimiter in DELIMITERS:
        cells = _cells(line, delimiter)
        if len(cells) == 2 and PurePosixPath(cells[0].strip()).suffix.lower() in PICTURE_SUFFIXES:
            return delimiter, ["file", "caption"], 0
    return None


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a first line; empty if it is not a row."""
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


def _add(draft: _Draft, row: _Row, tree: FileTree, location: str) -> None:
    for name in ("image_id", "split", "source_id"):
        known, new = getattr(draft, name), getattr(row, name)
        if known is not None and new is not None and known != new:
            raise InputError(tree.path, f"{name} is {new!r} here and {known!r} in another row of the image", location)
        setattr(draft, name, known if new is None else new)
    if row.caption is not None:
        draft.captions.append(make_caption(row.caption))


def _add_texts(tree: FileTree, by_picture: dict[str, _Draft]) -> None:
    names = frozenset(tree.names()).difference(_tables(tree))
    for picture, draft in sorted(by_picture.items()):
        text = f"{_without_suffix(picture)}.txt"
        if text in names:
            draft.captions += [make_caption(line.strip()) for _, line in read_lines(tree, text) if line.strip()]


def _normal(file: str) -> str:
    """A normalized path with `/` between its parts that does not lead out of the folder."""
    return posixpath.normpath("/" + file.replace("\\", "/")).lstrip("/")


def _without_suffix(file: str) -> str:
    path = PurePosixPath(file)
    return path.with_suffix("").as_posix() if path.suffix.lower() in PICTURE_SUFFIXES else file


def _default_id(file: str, shared: Counter[str]) -> str:
    short = _without_suffix(file)
    return short if shared[short] == 1 else file


def _folder_split(file: str) -> str:
    parts = PurePosixPath(file).parts[:-1]
    if parts[:1] in (("images",), ("Images",)):
        parts = parts[1:]
    name = SPLIT_NAMES.get(parts[0], parts[0]) if parts else ""
    return name if name in ("train", "val", "test") else ""
