"""Flickr30k Entities as released: `Annotations/*.xml`, `Sentences/*.txt`, split lists, `UNRELATED_CAPTIONS`.

The boxes of an image are the XML objects with a `bndbox`, in order and with unchanged coordinates. A chain is an id of
an object or a phrase. `brackets` has the notation of the Sentences files.

Not kept: the order of the images (they are sorted by id), `Caption.id`, white space in `Caption.text` other than one
blank between tokens, `Chain.label`, and splits whose name cannot be a file name.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from deixis.corpus.brackets import format_caption, parse_caption
from deixis.corpus.format_helpers import list_entries, read_lines, require_utf8
from deixis.corpus.records import Box, Caption, Chain, Corpus, Image, make_caption, make_image, natural_key
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "Flickr30k Entities: Annotations/*.xml and Sentences/*.txt, split lists (folder or .zip)"
UNRELATED = "UNRELATED_CAPTIONS"
RELEASED_SPLITS = ("train", "val", "test")
#: Largest size of an XML or text file in bytes. The largest in the release has 17 KB, and parsed XML takes many times
#: its size in memory.
MEMBER_LIMIT = 1 << 20

_MEMBER = re.compile(r"(?P<top>(?:.*?/)?)(?:Annotations/(?P<xml>.+)\.xml|Sentences/(?P<txt>.+)\.txt)")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def detect(tree: FileTree) -> bool:
    names = tree.names()
    return UNRELATED in names or any(match["txt"] for match in map(_MEMBER.fullmatch, names) if match)


def read(tree: FileTree) -> Corpus:
    annotations, sentences, top = _find(tree)
    require_utf8(tree, (*annotations.values(), *sentences.values()))
    ids = sorted({*annotations, *sentences}, key=natural_key)
    splits = _read_splits(tree, top, set(ids))
    unrelated = _read_unrelated(tree, top)
    images = []
    for image_id in ids:
        captions: list[Caption] = []
        if image_id in sentences:
            captions = _read_sentences(tree, sentences[image_id], unrelated.get(image_id, ()))
        split = splits.get(image_id, "")
        if image_id in annotations:
            images.append(_read_annotation(tree, annotations[image_id], image_id, split, captions))
        else:
            images.append(make_image(image_id, file=f"{image_id}.jpg", split=split, captions=captions))
    return Corpus(images)


def write(corpus: Corpus, out: Path) -> None:
    """Write to a folder, or to an archive if `out` ends in .zip. Split lists are written last."""
    if out.suffix.lower() == ".zip":
        with atomic_write(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in _members(corpus):
                archive.writestr(name, text)
        return
    for name, text in _members(corpus):
        # Files are not synced individually: the release has 63,571.
        with atomic_write(out / name, sync=False) as stream:
            stream.write(text.encode())


def keep(corpus: Corpus) -> Corpus:
    images = []
    for image in sorted(corpus, key=lambda image: natural_key(image.id)):
        captions = [
            make_caption(" ".join(caption.tokens), caption.tokens, caption.phrases, unrelated=caption.unrelated)
            for caption in image.captions
        ]
        chains = [Chain(chain.id, chain.boxes, chain.scene, chain.no_box) for chain in image.chains]
        split = image.split if _SPLIT_NAME.fullmatch(image.split) else ""
        images.append(msgspec.structs.replace(image, captions=tuple(captions), chains=tuple(chains), split=split))
    return corpus.with_images(images)


def _find(tree: FileTree) -> tuple[dict[str, str], dict[str, str], str]:
    """The XML and the text file of each image, and the folder of both (with a final slash, or empty)."""
    annotations: dict[str, str] = {}
    sentences: dict[str, str] = {}
    top: str | None = None
    for name in tree.names():
        match = _MEMBER.fullmatch(name)
        if match is None or top not in (None, match["top"]):
            continue
        top = match["top"]
        if match["xml"]:
            annotations[match["xml"]] = name
        else:
            sentences[match["txt"]] = name
    return annotations, sentences, top or ""


def _read_splits(tree: FileTree, top: str, ids: set[str]) -> dict[str, str]:
    """The split of each image. Lists that are not in the release are used if they contain only known images."""
    splits: dict[str, str] = {}
    for name in tree.names():
        split = name.removeprefix(top).removesuffix(".txt")
        if not name.endswith(".txt") or not name.startswith(top) or not _SPLIT_NAME.fullmatch(split):
            continue
        listed = dict(list_entries(tree, name))
        if split not in RELEASED_SPLITS and not ids.issuperset(listed.values()):
            continue
        for line_number, image_id in listed.items():
            other = splits.setdefault(image_id, split)
            if other != split:
                raise InputError(
                    tree.path, f"image {image_id} is also in split {other!r}", f"{name} line {line_number}"
                )
    return splits


def _read_unrelated(tree: FileTree, top: str) -> dict[str, set[int]]:
    """Positions (from 0; the file counts from 1) of the captions that are unrelated to their image."""
    unrelated: dict[str, set[int]] = {}
    name = top + UNRELATED
    for line_number, line in list_entries(tree, name) if name in tree.names() else ():
        if line.startswith("#"):
            continue
        image_id, _, position = line.rpartition(" ")
        if not image_id or not re.fullmatch("[1-9][0-9]{0,8}", position):
            raise InputError(tree.path, "is not an image id and the number of a sentence", f"{name} line {line_number}")
        unrelated.setdefault(image_id.strip(), set()).add(int(position) - 1)
    return unrelated


def _read_sentences(tree: FileTree, name: str, unrelated: Collection[int]) -> list[Caption]:
    lines = list(read_lines(tree, name, MEMBER_LIMIT))
    if not lines[-1][1]:
        lines.pop()
    captions = []
    for line_number, line in lines:
        try:
            captions.append(parse_caption(line, unrelated=line_number - 1 in unrelated))
        except ValueError as fault:
            raise InputError(tree.path, str(fault), f"{name} line {line_number}") from None
    return captions


def _read_annotation(tree: FileTree, name: str, image_id: str, split: str, captions: list[Caption]) -> Image:
    try:
        root = fromstring(tree.read(name, MEMBER_LIMIT))
    except DefusedXmlException:
        raise InputError(tree.path, "declares XML entities or external files, which are refused", name) from None
    except (ParseError, LookupError, ValueError) as fault:
        raise InputError(tree.path, f"is not well-formed XML ({fault})", name) from None
    fields = {"filename": f"{image_id}.jpg", "width": "0", "height": "0", "id": ""}
    boxes: list[Box] = []
    chains: dict[str, Chain] = {}
    try:
        for element in root:
            if element.tag == "object":
                _read_object(element, boxes, chains)
            elif element.tag == "filename":
                fields["filename"] = _text(element)
            elif element.tag in ("size", "source"):
                fields |= {part.tag: _text(part) for part in element}
        return make_image(
            image_id,
            file=fields["filename"],
            width=_size(fields, "width"),
            height=_size(fields, "height"),
            split=split,
            captions=captions,
            boxes=boxes,
            chains=chains.values(),
            source_id=fields["id"],
        )
    except (DeixisError, ValueError) as fault:
        raise InputError(tree.path, str(fault), name) from None


def _read_object(element: Any, boxes: list[Box], chains: dict[str, Chain]) -> None:
    """Add one <object>: a box of one or more chains, or the scene and no-box flags of chains without a box."""
    names: list[str] = []
    corners: dict[str, str] | None = None
    scene = no_box = False
    for part in element:
        if part.tag == "name":
            names.append(_text(part))
        elif part.tag == "bndbox":
            corners = {corner.tag: corner.text or "" for corner in part}
        elif part.tag == "scene":
            scene = _text(part) not in ("", "0")
        elif part.tag == "nobndbox":
            no_box = _text(part) not in ("", "0")
    box_indexes: tuple[int, ...] = ()
    if corners is not None:
        box_indexes = (len(boxes),)
        try:
            boxes.append(Box(*[float(corners[side]) for side in _SIDES]))
        except KeyError as side:
            raise ValueError(f"box {len(boxes) + 1} has no {side}") from None
        except ValueError as fault:
            raise ValueError(f"box {len(boxes) + 1}: {fault}") from None
    for name in names:
        known = chains.get(name) or Chain(name)
        chains[name] = Chain(name, known.boxes + box_indexes, known.scene or scene, known.no_box or no_box)


def _text(element: Any) -> str:
    return (element.text or "").strip()


def _size(fields: dict[str, str], side: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", fields[side]):
        raise ValueError(f"{side} {fields[side]!r} is not a whole number of pixels")
    return int(fields[side])


def _members(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Names and contents of all files, in the layout of the release."""
    splits: dict[str, list[str]] = {}
    unrelated = []
    for image in corpus:
        _check_names(image)
        lines = []
        for sentence, caption in enumerate(image.captions, start=1):
            try:
                lines.append(format_caption(caption) + "\n")
            except ValueError as fault:
                raise DeixisError(f"image {image.id}: caption {sentence}: {fault}") from None
            if caption.unrelated:
                unrelated.append(f"{image.id} {sentence}\n")
        if _SPLIT_NAME.fullmatch(image.split):
            splits.setdefault(image.split, []).append(f"{image.id}\n")
        yield f"Sentences/{image.id}.txt", "".join(lines)
        yield f"Annotations/{image.id}.xml", _format_annotation(image)
    # In a corpus without images, this file is the only sign of the format.
    yield UNRELATED, "# format: <imageID> <sentence number>\n" + "".join(unrelated)
    for split, listed in splits.items():
        yield f"{split}.txt", "".join(listed)


def _check_names(image: Image) -> None:
    # Hidden files are not read, and lines that begin with # are comments in `UNRELATED_CAPTIONS`.
    if not re.fullmatch(r"(?!#)[^./:\\][^/:\\]*(/[^./:\\][^/:\\]*)*", image.id):
        raise DeixisError(f"image {image.id!r}: the id cannot be a file name")
    for value in (image.id, image.file, image.source_id, *(chain.id for chain in image.chains)):
        if value != value.strip() or not value.isprintable():
            raise DeixisError(f"image {image.id!r}: {value!r} cannot be written in XML and read again")


def _format_annotation(image: Image) -> str:
    lines = ["<annotation>", f"\t<filename>{escape(image.file)}</filename>"]
    if image.source_id:
        lines.append(f"\t<source><id>{escape(image.source_id)}</id></source>")
    lines.append(f"\t<size><width>{image.width}</width><height>{image.height}</height><depth>3</depth></size>")
    names: dict[int, str] = {}
    for chain in image.chains:
        for index in chain.boxes:
            names[index] = names.get(index, "") + f"<name>{escape(chain.id)}</name>"
    for index, box in enumerate(image.boxes):
        corners = zip(_SIDES, msgspec.structs.astuple(box), strict=True)
        sides = "".join(f"<{side}>{_number(value)}</{side}>" for side, value in corners)
        lines.append(f"\t<object>{names.get(index, '')}<bndbox>{sides}</bndbox></object>")
    for chain in image.chains:
        if not chain.boxes or chain.scene or chain.no_box:
            flags = f"<scene>{chain.scene:d}</scene><nobndbox>{chain.no_box:d}</nobndbox>"
            lines.append(f"\t<object><name>{escape(chain.id)}</name>{flags}</object>")
    return "\n".join([*lines, "</annotation>", ""])


def _number(value: float) -> str:
    """Whole pixels as in the release, anything else in full precision."""
    return str(int(value)) if value == int(value) else repr(value)
