"""Deixis' own format: `corpus.jsonl`, a header line followed by one JSON object per image. It stores everything.

The cache of slow formats uses it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from deixis.corpus.format_helpers import JSON_FAULTS, read_json_bytes, split_lines
from deixis.corpus.records import Corpus, Image, make_caption, make_image
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "Deixis' own: corpus.jsonl, one image per line, lossless"
FILE_NAME = "corpus.jsonl"
VERSION = 1
#: Largest length of the header, which contains the corpus' name.
HEADER_LIMIT = 1 << 16


class Header(msgspec.Struct, frozen=True):
    deixis: Literal["corpus"]
    version: int
    name: str = ""
    images: int = 0


def detect(tree: FileTree) -> bool:
    return _find(tree) is not None


def read(tree: FileTree, *, trusted: bool = False) -> Corpus:
    """Read the corpus. `trusted` skips the checks of `make_image`, for files written by Deixis."""
    name = _find(tree)
    if name is None:
        raise InputError(tree.path, f"has no {FILE_NAME}")
    lines = split_lines(tree.read(name) if trusted else read_json_bytes(tree, name))
    header = msgspec.json.decode(next(lines)[1], type=Header)
    if header.version != VERSION:
        problem = f"is version {header.version} of Deixis' format; this Deixis reads version {VERSION}"
        raise InputError(tree.path, problem, name)
    decoder = msgspec.json.Decoder(Image)
    images: list[Image] = []
    line_of: dict[str, int] = {}
    for line_number, line in lines:
        if not line:
            continue
        try:
            image = decoder.decode(line)
            images.append(image if trusted else _normal(image))
        except (*JSON_FAULTS, DeixisError) as fault:
            raise InputError(tree.path, str(fault), f"{name} line {line_number}") from None
        if line_of.setdefault(image.id, line_number) != line_number:
            raise InputError(
                tree.path, f"image {image.id!r} is on line {line_of[image.id]} too", f"{name} line {line_number}"
            )
    if len(images) != header.images:
        raise InputError(tree.path, f"is cut off: {len(images)} of {header.images} images", name)
    return Corpus(images, name=header.name)


def write(corpus: Corpus, out: Path) -> None:
    target = out if out.suffix == ".jsonl" else out / FILE_NAME
    encoder = msgspec.json.Encoder()
    with atomic_write(target) as stream:
        stream.write(encoder.encode(Header("corpus", VERSION, corpus.name, len(corpus))) + b"\n")
        for image in corpus:
            stream.write(encoder.encode(image) + b"\n")


def keep(corpus: Corpus) -> Corpus:
    return corpus


def _find(tree: FileTree) -> str | None:
    """A .jsonl file at the top of the tree whose first line is a Deixis header."""
    for name in tree.names():
        if name.endswith(".jsonl") and "/" not in name:
            try:
                msgspec.json.decode(tree.start(name, HEADER_LIMIT).split(b"\n", 1)[0], type=Header)
            except JSON_FAULTS:
                continue
            return name
    return None


def _normal(image: Image) -> Image:
    fields = {field: getattr(image, field) for field in image.__struct_fields__}
    fields["captions"] = [
        make_caption(caption.text, caption.words, caption.phrases, id=caption.id, unrelated=caption.unrelated)
        for caption in image.captions
    ]
    return make_image(**fields)
