"""Grounding JSON with `tokens_positive`, as MDETR and GLIP read it: COCO's layout, where an "image" is one caption.

Boxes are linked to character spans of the caption. Supported are MDETR's Flickr files
(`final_flickr_separateGT_train.json`, or merged), its referring expressions and GLIP's mixed sets. Entries with the
same `original_img_id`, or else the same `file_name`, are the captions of one image. These files have no chains: phrases
with the same set of boxes become one chain (as in section 2.3 of Entities), and a phrase without a box gets its own.

Files are written in the Flickr layout, one per split. What the layout cannot store (boxes without phrase, chains,
types, flags, tokens) goes into additional keys that other tools ignore, so nothing is lost. If these keys are present,
they are read instead of the annotations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from deixis.corpus.format_helpers import (
    SPLIT_NAMES,
    box_from_corner,
    inside,
    json_keys,
    number_or_text,
    read_json,
    stem,
)
from deixis.corpus.records import Box, Caption, Chain, Corpus, Image, Phrase, make_caption, make_image
from deixis.corpus.spans import Span, characters_of, token_offsets, tokens_of
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "grounding JSON with tokens_positive, as MDETR and GLIP read it"
FILE_NAME = "final_flickr_separateGT"

_MARKS = {"tokens_positive", "tokens_positive_eval", "grounded_pictures"}
_SPLIT = re.compile(r"(?:^|[_-])(train|val|test|dev|valid|validation|testA|testB|minival)$")


class _Entry(msgspec.Struct, omit_defaults=True):
    """An element of `images`: a caption and its picture. The keys from `phrases` on are added by Deixis.

    Fields that other loaders need have the default None, so that an empty caption is still written.
    """

    id: int | str
    caption: str | None = None
    file_name: str | None = None
    height: int | str | None = None
    width: int | str | None = None
    original_img_id: int | str | None = None
    sentence_id: int | str | None = None
    dataset_name: str | None = None
    tokens_negative: Any = None
    tokens_positive_eval: list[list[Span]] | None = None
    phrases: list[Phrase] | None = None
    tokens: tuple[str, ...] | None = None
    caption_id: str = ""
    unrelated: bool = False


class _Annotation(msgspec.Struct):
    image_id: int | str
    bbox: tuple[float, float, float, float]
    id: int | str | None = None
    tokens_positive: list[Span] = []
    area: float = 0
    iscrowd: int = 0
    category_id: int | str = 1


class _Picture(msgspec.Struct, omit_defaults=True):
    """An element of `grounded_pictures`, a list added by Deixis: an image without its captions."""

    id: str
    position: int
    file: str = ""
    width: int = 0
    height: int = 0
    split: str = ""
    boxes: tuple[Box, ...] = ()
    chains: tuple[Chain, ...] = ()
    source_id: str = ""


class _File(msgspec.Struct):
    images: list[_Entry]
    annotations: list[_Annotation] = []
    grounded_pictures: list[_Picture] | None = None


def detect(tree: FileTree) -> bool:
    return bool(_files(tree))


def read(tree: FileTree) -> Corpus:
    names = _files(tree)
    if not names:
        raise InputError(tree.path, "has no JSON file with tokens_positive")
    placed: dict[str, tuple[int, Image, str]] = {}
    for name in names:
        content = read_json(tree, name, _File)
        try:
            images = _restore(content) if content.grounded_pictures is not None else _infer(content, _split(name))
            for position, image in images:
                if image.id in placed:
                    raise DeixisError(f"image {image.id} is also in {placed[image.id][2]}")
                placed[image.id] = (len(placed) if position is None else position, image, name)
        except DeixisError as fault:
            raise InputError(tree.path, str(fault), name) from None
    return Corpus(image for _, image, _ in sorted(placed.values(), key=lambda entry: entry[0]))


def write(corpus: Corpus, out: Path) -> None:
    """Write one file per split to a folder, or everything to one file if `out` ends in .json."""
    files: dict[Path, list[tuple[int, Image]]] = {}
    for position, image in enumerate(corpus):
        part = re.sub(r"[^\w-]+", "-", image.split)
        file = out if out.suffix == ".json" else out / f"{FILE_NAME}{'_' if part else ''}{part}.json"
        files.setdefault(file, []).append((position, image))
    entry_ids, annotation_ids = count(), count()
    for file, images in (files or {out if out.suffix == ".json" else out / f"{FILE_NAME}.json": []}).items():
        entries: list[_Entry] = []
        annotations: list[_Annotation] = []
        for _, image in images:
            for sentence, caption in enumerate(image.captions):
                entries.append(_entry(next(entry_ids), image, sentence, caption))
                annotations += _annotations(annotation_ids, entries[-1].id, image, caption)
        content = {
            "info": {"description": f"{corpus.name or 'corpus'} with tokens_positive, written by Deixis"},
            "licenses": [],
            "images": entries,
            "annotations": annotations,
            "categories": [{"supercategory": "object", "id": 1, "name": "object"}],
            "grounded_pictures": [_picture(position, image) for position, image in images],
        }
        with atomic_write(file) as stream:
            stream.write(msgspec.json.encode(content))


def keep(corpus: Corpus) -> Corpus:
    return corpus


def _files(tree: FileTree) -> list[str]:
    return [name for name, keys in json_keys(tree).items() if not _MARKS.isdisjoint(keys)]


def _split(name: str) -> str:
    match = _SPLIT.search(PurePosixPath(name).stem)
    return SPLIT_NAMES.get(match[1], match[1]) if match else ""


def _restore(content: _File) -> Iterable[tuple[int | None, Image]]:
    """Images of a file written by Deixis, each with its position in the corpus."""
    captions: dict[str, list[Caption]] = {}
    for entry in content.images:
        caption = make_caption(
            entry.caption or "", entry.tokens, entry.phrases or (), id=entry.caption_id, unrelated=entry.unrelated
        )
        captions.setdefault(str(entry.original_img_id), []).append(caption)
    for picture in content.grounded_pictures or ():
        fields = {key: getattr(picture, key) for key in _SHARED_FIELDS}
        yield picture.position, make_image(captions=captions.pop(picture.id, ()), **fields)
    for image_id in captions:
        raise DeixisError(f"image {image_id} has captions but is not among the grounded_pictures")


_SHARED_FIELDS = tuple(field for field in _Picture.__struct_fields__ if field != "position")


def _picture(position: int, image: Image) -> _Picture:
    return _Picture(position=position, **{key: getattr(image, key) for key in _SHARED_FIELDS})


def _entry(entry_id: int, image: Image, sentence: int, caption: Caption) -> _Entry:
    offsets = token_offsets(caption)
    grounded = [[characters_of(phrase, offsets)] for phrase in caption.phrases if image.chain_boxes(phrase.chain)]
    return _Entry(
        id=entry_id,
        caption=caption.text,
        file_name=image.file,
        height=image.height,
        width=image.width,
        original_img_id=number_or_text(image.id),
        sentence_id=sentence,
        dataset_name="flickr",
        tokens_negative=[(0, len(caption.text))],
        tokens_positive_eval=grounded,
        phrases=list(caption.phrases),
        tokens=caption.words,
        caption_id=caption.id,
        unrelated=caption.unrelated,
    )


def _annotations(numbers: count[int], entry_id: int | str, image: Image, caption: Caption) -> Iterable[_Annotation]:
    """The boxes of the chains in this caption, each with the spans of all its phrases."""
    offsets = token_offsets(caption)
    chains = {chain.id: chain for chain in image.chains}
    spans: dict[int, list[Span]] = {}
    for phrase in caption.phrases:
        for index in chains[phrase.chain].boxes if phrase.visual else ():
            spans.setdefault(index, []).append(characters_of(phrase, offsets))
    for index in sorted(spans):
        box = image.boxes[index]
        width, height = box.x2 - box.x1, box.y2 - box.y1
        yield _Annotation(
            image_id=entry_id,
            bbox=(box.x1, box.y1, width, height),
            id=next(numbers),
            tokens_positive=spans[index],
            area=width * height,
        )


def _infer(content: _File, split: str) -> Iterable[tuple[int | None, Image]]:
    """Images of a file that has only captions, boxes and spans."""
    annotations: dict[int | str, list[_Annotation]] = {}
    for annotation in content.annotations:
        annotations.setdefault(annotation.image_id, []).append(annotation)
    images: dict[str, list[_Entry]] = {}
    for entry in content.images:
        image_id = stem(entry.file_name or "") if entry.original_img_id is None else str(entry.original_img_id)
        images.setdefault(image_id, []).append(entry)
    for image_id, entries in images.items():
        inferred = _InferredImage(image_id, entries[0])
        for entry in entries:
            inferred.add(entry, annotations.get(entry.id, ()))
        yield None, inferred.build(split)


class _InferredImage:
    """Collects the captions of one image, its distinct boxes, and the boxes of each phrase."""

    def __init__(self, image_id: str, entry: _Entry) -> None:
        self.id, self.file = image_id, entry.file_name or ""
        try:
            self.width, self.height = int(entry.width or 0), int(entry.height or 0)
        except ValueError:
            raise DeixisError(f"image {entry.id}: {entry.width!r} × {entry.height!r} is not a size") from None
        self.boxes: dict[Box, int] = {}
        self.texts: list[str] = []
        self.phrases: list[dict[Span, set[int]]] = []

    def add(self, entry: _Entry, annotations: Iterable[_Annotation]) -> None:
        text = entry.caption or ""
        offsets = token_offsets(make_caption(text))
        named: dict[Span, set[int]] = {}
        for spans in entry.tokens_positive_eval or ():
            for span in spans:
                self._boxes_of(named, _check_span(span, entry, text), offsets)
        for annotation in annotations:
            box = self._box(annotation)
            index = self.boxes.setdefault(box, len(self.boxes))
            for span in annotation.tokens_positive:
                self._boxes_of(named, _check_span(span, entry, text), offsets).add(index)
        self.texts.append(text)
        self.phrases.append(named)

    def build(self, split: str) -> Image:
        chain_of: dict[frozenset[int] | tuple[int, int, int], str] = {}
        captions = []
        for sentence, (text, named) in enumerate(zip(self.texts, self.phrases, strict=True)):
            phrases = []
            for (start, end), boxes in sorted(named.items()):
                # A phrase without boxes gets its own chain, identified by its position.
                chain = chain_of.setdefault(frozenset(boxes) or (sentence, start, end), str(len(chain_of) + 1))
                phrases.append(Phrase(start, end, chain))
            captions.append(make_caption(text, None, phrases))
        for index in range(len(self.boxes)):
            if not any(index in key for key in chain_of if isinstance(key, frozenset)):
                chain_of[frozenset((index,))] = str(len(chain_of) + 1)
        return make_image(
            self.id,
            file=self.file,
            width=self.width,
            height=self.height,
            split=split,
            captions=captions,
            boxes=self.boxes,
            chains=[Chain(chain, tuple(key)) for key, chain in chain_of.items() if isinstance(key, frozenset)],
        )

    @staticmethod
    def _boxes_of(named: dict[Span, set[int]], span: Span, offsets: list[Span]) -> set[int]:
        start, end = tokens_of(span, offsets)
        return named.setdefault((start, end), set()) if start < end else set()

    def _box(self, annotation: _Annotation) -> Box:
        box = inside(box_from_corner(*annotation.bbox), self.width, self.height)
        if box is None:
            raise DeixisError(
                f"annotation {annotation.id}: box {list(annotation.bbox)} is outside the picture"
                f" of {self.width} × {self.height}"
            )
        return box


def _check_span(span: Span, entry: _Entry, text: str) -> Span:
    """Check that a span starts in the caption. It may exceed the end, as some published ones do by a blank."""
    if not 0 <= span[0] <= min(span[1], len(text)):
        raise DeixisError(f"image {entry.id}: span {list(span)} is not in the caption of {len(text)} characters")
    return span
