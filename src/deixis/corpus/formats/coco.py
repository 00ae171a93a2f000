"""COCO captions and instances: `annotations/captions_train2017.json`, `instances_train2017.json`, or one such file.

The file name gives the split of its images (without the year). If it has none, `train.txt`, `val.txt` and `test.txt` in
the same folder may list the image ids of each split. An instance becomes a chain with one box, labelled with its
category. `flickr_url` gives the Flickr photo id for the leak guard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path, PurePosixPath

import msgspec

from deixis.corpus.format_helpers import (
    SPLIT_NAMES,
    box_from_corner,
    caption_ids,
    chain_id,
    file_name,
    find_json,
    inside,
    list_entries,
    names_at_hand,
    number_or_text,
    read_json,
    split_file_part,
    through_corner,
)
from deixis.corpus.records import Box, Caption, Chain, Corpus, Image, make_caption, make_image, natural_key
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "COCO's captions_*.json and instances_*.json"

#: The category of a chain that has neither label nor type.
NO_CATEGORY = "object"

_FILE_NAME = re.compile(r"(captions|instances)(?:_(.+))?\.json")

Id = int | str


class _Image(msgspec.Struct, omit_defaults=True):
    id: Id
    file_name: str = ""
    width: int = 0
    height: int = 0
    flickr_url: str = ""


class _Annotation(msgspec.Struct, omit_defaults=True, gc=False):
    image_id: Id
    id: Id | None = None
    caption: str | None = None
    bbox: tuple[float, float, float, float] | None = None
    category_id: Id | None = None
    area: float = 0
    iscrowd: int | None = None
    #: Added by Deixis if a chain's id cannot be the annotation's: several boxes, or an id that other images use too.
    chain: str | None = None


class _Category(msgspec.Struct):
    id: Id
    name: str


class _File(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation] = []
    categories: list[_Category] = []


class _Parts:
    """The contents of the files about one image, before it is created."""

    def __init__(self, suffix: str, source: str) -> None:
        self.suffix, self.source = suffix, source
        self.split = _split(suffix)
        self.record = _Image("")
        self.captions: list[Caption] = []
        self.boxes: dict[str, list[Box]] = {}
        self.labels: dict[str, str] = {}


def detect(tree: FileTree) -> bool:
    return bool(_files(tree))


def read(tree: FileTree) -> Corpus:
    files = _files(tree)
    if not files:
        raise InputError(
            tree.path, "has no captions_*.json, instances_*.json or other JSON file of images and annotations"
        )
    images: dict[str, _Parts] = {}
    for name, suffix in files:
        _read_file(tree, name, suffix, images)
    if not any(parts.split for parts in images.values()):
        _read_lists(tree, PurePosixPath(files[0][0]).parent, images)
    built = []
    for image_id, parts in images.items():
        record = parts.record
        try:
            built.append(
                _build(
                    image_id,
                    file=record.file_name,
                    size=(record.width, record.height),
                    split=parts.split,
                    source_id=photo_id(record.flickr_url),
                    captions=parts.captions,
                    boxes=parts.boxes,
                    labels=parts.labels,
                )
            )
        except DeixisError as fault:
            raise InputError(tree.path, str(fault), parts.source) from None
    return Corpus(built)


def write(corpus: Corpus, out: Path) -> None:
    reduced = keep(corpus)
    chains = [chain for image in reduced for chain in image.chains]
    categories = {
        name: category_id for category_id, name in enumerate(sorted({chain.label for chain in chains}), start=1)
    }
    by_split: dict[str, list[Image]] = {} if len(reduced) else {"": []}
    for image in reduced:
        by_split.setdefault(image.split, []).append(image)
    instances = _instances(reduced, categories)
    for split, images in by_split.items():
        suffix = f"_{split}" if split else ""
        records = [
            _Image(
                number_or_text(image.id),
                image.file,
                image.width,
                image.height,
                photo_address(image.source_id),
            )
            for image in images
        ]
        captions = [
            _Annotation(number_or_text(image.id), number_or_text(caption.id), caption.text)
            for image in images
            for caption in image.captions
        ]
        _dump(_File(records, captions), out / "annotations" / f"captions{suffix}.json")
        if chains:
            boxes = [annotation for image in images for annotation in instances[image.id]]
            named = [_Category(category_id, name) for name, category_id in categories.items()]
            _dump(_File(records, boxes, named), out / "annotations" / f"instances{suffix}.json")


def keep(corpus: Corpus) -> Corpus:
    """Ids, files, sizes, splits, Flickr photo ids, caption texts, and all chains with boxes.

    A chain's category is its label, else its first type; a box shared by two chains becomes two. The files cannot store
    phrases, tokens, scene and no-box flags; the data model has no masks and crowd flags (a crowd's box is kept). Images
    are ordered by split, and captions without numeric ids are numbered.
    """
    ids = iter(caption_ids(corpus, first=1))
    images = []
    for image in corpus:
        types = image.chain_types()
        labels = {chain.id: chain.label or next(iter(types[chain.id]), NO_CATEGORY) for chain in image.chains}
        suffix = split_file_part(image.split)
        images.append(
            (
                _order(suffix),
                _build(
                    image.id,
                    file=image.file,
                    size=(image.width, image.height),
                    split=_split(suffix),
                    source_id=photo_id(photo_address(image.source_id)),
                    captions=[make_caption(caption.text, id=next(ids)) for caption in image.captions],
                    boxes={
                        chain.id: [
                            through_corner(box, image.width, image.height) for box in image.chain_boxes(chain.id)
                        ]
                        for chain in image.chains
                        if chain.boxes
                    },
                    labels=labels,
                ),
            )
        )
    images.sort(key=lambda pair: pair[0])
    return corpus.with_images(image for _, image in images)


def _build(
    id: str,
    *,
    file: str,
    size: tuple[int, int],
    split: str,
    source_id: str,
    captions: Iterable[Caption],
    boxes: dict[str, list[Box]],
    labels: dict[str, str],
) -> Image:
    """Create an image with sorted chains, boxes in the order of the chains, and no shared boxes."""
    width, height = size
    ordered: list[Box] = []
    chains = []
    for chain in sorted(boxes, key=natural_key):
        positions = tuple(range(len(ordered), len(ordered) + len(boxes[chain])))
        chains.append(Chain(chain, positions, label=labels[chain]))
        ordered += boxes[chain]
    return make_image(
        id,
        file=file,
        width=width,
        height=height,
        split=split,
        captions=captions,
        boxes=ordered,
        chains=chains,
        source_id=source_id,
    )


def _instances(corpus: Corpus, categories: dict[str, int]) -> dict[str, list[_Annotation]]:
    """The annotations of each image's boxes. Annotation ids must be unique numbers."""
    chains = [chain for image in corpus for chain in image.chains]
    own_ids = (
        len({chain.id for chain in chains}) == len(chains)
        and all(isinstance(number_or_text(chain.id), int) for chain in chains)
        and all(len(chain.boxes) == 1 for chain in chains)
    )
    numbers = count(1)
    return {
        image.id: [
            _Annotation(
                number_or_text(image.id),
                int(chain.id) if own_ids else next(numbers),
                bbox=(box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1),
                category_id=categories[chain.label],
                area=(box.x2 - box.x1) * (box.y2 - box.y1),
                iscrowd=0,
                chain=None if own_ids else chain.id,
            )
            for chain in image.chains
            for box in image.chain_boxes(chain.id)
        ]
        for image in corpus
    }


def _dump(content: _File, path: Path) -> None:
    with atomic_write(path) as stream:
        stream.write(msgspec.json.encode(content))


def _files(tree: FileTree) -> list[tuple[str, str]]:
    """The files to read, in order, each with the part of its name that gives the split."""
    files = []
    for name in tree.names():
        match = _FILE_NAME.fullmatch(file_name(name))
        if match:
            files.append((_order(match[2] or ""), name, match[2] or ""))
    if not files and (other := find_json(tree, "images", "annotations")):
        return [(other, "")]
    return [(name, suffix) for _, name, suffix in sorted(files)]


def _split(suffix: str) -> str:
    """`train2017` → `train`."""
    split = re.sub(r"(?<=[a-z])(19|20)[0-9]{2}$", "", suffix)
    return SPLIT_NAMES.get(split, split)


def _order(suffix: str) -> tuple[int, str, str]:
    """Sort key: train, validation, test, other splits, no split."""
    split = _split(suffix)
    known = ("train", "val", "test")
    rank = known.index(split) if split in known else 3 if split else 4
    return rank, split, suffix


def _read_file(tree: FileTree, name: str, suffix: str, images: dict[str, _Parts]) -> None:
    content = read_json(tree, name, _File)
    seen: set[Id] = set()
    for index, record in enumerate(content.images):
        if record.id in seen:
            raise InputError(tree.path, f"image {record.id} is in the file twice", f"{name} images[{index}]")
        seen.add(record.id)
        parts = images.setdefault(str(record.id), _Parts(suffix, name))
        if parts.suffix != suffix:
            problem = f"image {record.id} is in {parts.source} too: open a folder where each image is in one split"
            raise InputError(tree.path, problem, f"{name} images[{index}]")
        for field in ("file_name", "width", "height", "flickr_url"):
            known, new = getattr(parts.record, field), getattr(record, field)
            if known and new and known != new:
                problem = f"{field} of image {record.id} is {new!r} here and {known!r} in {parts.source}"
                raise InputError(tree.path, problem, f"{name} images[{index}]")
            setattr(parts.record, field, new or known)
    categories = {category.id: category.name for category in content.categories}
    for index, annotation in enumerate(content.annotations):
        location = f"{name} annotations[{index}]"
        draft = images.get(str(annotation.image_id))
        if draft is None:
            raise InputError(tree.path, f"image_id {annotation.image_id} is not among the images", location)
        own_id = "" if annotation.id is None else str(annotation.id)
        if annotation.caption is not None:
            draft.captions.append(make_caption(annotation.caption, id=own_id))
        if annotation.bbox is not None:
            if annotation.category_id not in categories:
                raise InputError(
                    tree.path, f"category_id {annotation.category_id} is not among the categories", location
                )
            if not own_id:
                raise InputError(tree.path, "has a bbox but no id", location)
            chain = chain_id(own_id) if annotation.chain is None else annotation.chain
            box = inside(box_from_corner(*annotation.bbox), draft.record.width, draft.record.height)
            if box is None:
                size = f"{draft.record.width} × {draft.record.height}"
                problem = f"bbox {list(annotation.bbox)} is not in the picture of {size}"
                raise InputError(tree.path, problem, location)
            draft.boxes.setdefault(chain, []).append(box)
            draft.labels[chain] = categories[annotation.category_id]


def _read_lists(tree: FileTree, folder: PurePosixPath, images: dict[str, _Parts]) -> None:
    names = names_at_hand(tree)
    for split in ("train", "val", "test"):
        name = (folder / f"{split}.txt").as_posix()
        if name not in names:
            continue
        for line_number, image_id in list_entries(tree, name):
            if image_id not in images:
                raise InputError(tree.path, f"image {image_id} is not among the images", f"{name} line {line_number}")
            if images[image_id].split:
                problem = f"image {image_id} is in {images[image_id].split}.txt too"
                raise InputError(tree.path, problem, f"{name} line {line_number}")
            images[image_id].split = split


#: The photo id in Flickr's URLs of picture files (https://www.flickr.com/services/api/misc.urls.html), in URLs of photo
#: pages, and in the URL written by `photo_address`.
_PHOTO_ID = re.compile(
    r"/([0-9]+)_[0-9a-f]+(?:_\w{1,2})?\.\w+(?:[?#].*)?$|/photos/[^/]+/([0-9]+)(?:[/?#].*)?$|[?&]id=([0-9]+)$"
)
_PHOTO_URL = "https://www.flickr.com/photo.gne?id="


def photo_id(address: str) -> str:
    """The photo id in a URL. Other URLs are returned unchanged, so that no id in them is lost."""
    match = _PHOTO_ID.search(address)
    return next(filter(None, match.groups())) if match else address


def photo_address(photo: str) -> str:
    """The URL of a photo. Text that is not a photo id is returned unchanged."""
    return _PHOTO_URL + photo if re.fullmatch("[0-9]+", photo) else photo
