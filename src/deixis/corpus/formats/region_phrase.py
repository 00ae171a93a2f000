"""Regions with phrases, in the format of Visual Genome's `region_descriptions.json` and `image_data.json`.

MS-COCO-region (HM-LSTM, section 5.2) has this format. A region becomes a chain with one box. Each of its phrases
becomes a caption that consists of one phrase, linked to the chain, so that region-phrase ranking works as in other
corpora. A `region_id` that occurs several times in an image adds further phrases to its region.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import msgspec

from deixis.corpus.format_helpers import (
    box_from_corner,
    chain_id,
    clipped,
    file_name,
    find_json,
    names_at_hand,
    number_or_text,
    read_json,
    through_corner,
)
from deixis.corpus.records import (
    Box,
    Caption,
    Chain,
    Corpus,
    Image,
    Phrase,
    carried_source_id,
    make_caption,
    make_image,
    natural_key,
)
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "regions with phrases: Visual Genome's region_descriptions.json"

REGION_FILE = "region_descriptions.json"
IMAGE_FILE = "image_data.json"

Id = int | str


class _Region(msgspec.Struct, gc=False):
    region_id: Id
    x: float
    y: float
    width: float
    height: float
    phrase: str
    image_id: Id | None = None


class _Regions(msgspec.Struct):
    regions: list[_Region]
    id: Id | None = None
    image_id: Id | None = None


class _ImageData(msgspec.Struct, omit_defaults=True):
    image_id: Id
    width: int = 0
    height: int = 0
    url: str = ""
    flickr_id: Id | None = None
    #: Added by Deixis: Visual Genome has no splits.
    split: str = ""


def detect(tree: FileTree) -> bool:
    return _find(tree) is not None


def read(tree: FileTree) -> Corpus:
    name = _find(tree) or find_json(tree)
    if name is None:
        raise InputError(tree.path, f"has no {REGION_FILE}")
    beside = PurePosixPath(name).with_name(IMAGE_FILE).as_posix()
    data = read_json(tree, beside, list[_ImageData]) if beside in names_at_hand(tree) else []
    by_id = {str(entry.image_id): entry for entry in data}
    images = []
    for index, entry in enumerate(read_json(tree, name, list[_Regions])):
        try:
            images.append(_image(entry, by_id))
        except DeixisError as fault:
            raise InputError(tree.path, str(fault), f"{name} [{index}]") from None
    try:
        return Corpus(images)
    except DeixisError as fault:
        raise InputError(tree.path, str(fault), name) from None


def write(corpus: Corpus, out: Path) -> None:
    regions, data = [], []
    for image in keep(corpus):
        image_id = number_or_text(image.id)
        entries = [(caption.phrases[0].chain, caption.text) for caption in image.captions]
        named = {chain for chain, _ in entries}
        entries += [(chain.id, "") for chain in image.chains if chain.id not in named]
        regions.append(_Regions([_region(image, chain, phrase) for chain, phrase in entries], id=image_id))
        source = number_or_text(image.source_id) if image.source_id else None
        data.append(_ImageData(image_id, image.width, image.height, image.file, flickr_id=source, split=image.split))
    for name, content in ((REGION_FILE, regions), (IMAGE_FILE, data)):
        with atomic_write(out / name) as stream:
            stream.write(msgspec.json.encode(content))


def keep(corpus: Corpus) -> Corpus:
    """Every chain with boxes as one region (the box around all of them), and the texts of its phrases.

    Sentences, types and phrases without a box are lost.
    """
    images = []
    for image in corpus:
        regions = {chain.id: _around(image.chain_boxes(chain.id)) for chain in image.chains if chain.boxes}
        captions = [
            _phrase_caption(caption.phrase_text(phrase), phrase.chain)
            for caption in image.captions
            for phrase in caption.phrases
            if phrase.chain in regions and caption.phrase_text(phrase).split()
        ]
        images.append(
            _build(
                image.id,
                _ImageData(
                    image.id,
                    image.width,
                    image.height,
                    image.file,
                    flickr_id=carried_source_id(image.source_id, (image.id, _file(image.file)), (image.file,)),
                    split=image.split,
                ),
                {chain: through_corner(box, image.width, image.height) for chain, box in regions.items()},
                captions,
            )
        )
    return corpus.with_images(images)


def _find(tree: FileTree) -> str | None:
    for name in tree.names():
        if file_name(name).startswith("region_descriptions") and name.endswith(".json"):
            return name
    return find_json(tree, "regions", "phrase", "region_id")


def _image(entry: _Regions, by_id: dict[str, _ImageData]) -> Image:
    source_id = next((id for id in (entry.id, entry.image_id) if id is not None), None)
    if source_id is None and entry.regions:
        source_id = entry.regions[0].image_id
    if source_id is None:
        raise DeixisError("has no image id")
    image_id = str(source_id)
    data = by_id.get(image_id) or _ImageData(image_id, url=f"{image_id}.jpg")
    boxes: dict[str, Box | None] = {}
    captions = []
    for region in entry.regions:
        chain = chain_id(region.region_id)
        box = box_from_corner(region.x, region.y, region.width, region.height)
        if region.width < 0 or region.height < 0:
            raise DeixisError(f"region {region.region_id}: width and height must not be negative")
        inner = clipped(box, data.width, data.height)
        # Some thousand published regions are partly outside their picture, and a few entirely: those have no box.
        visible = inner if inner.x1 <= inner.x2 and inner.y1 <= inner.y2 else None
        if boxes.setdefault(chain, visible) != visible:
            raise DeixisError(f"region {region.region_id} has two boxes")
        if region.phrase.split():
            captions.append(_phrase_caption(region.phrase, chain))
    return _build(image_id, data, boxes, captions)


def _build(image_id: str, data: _ImageData, regions: dict[str, Box | None], captions: list[Caption]) -> Image:
    """Create an image with sorted regions, each with its own box if it has one."""
    boxes: list[Box] = []
    chains = []
    for chain in sorted(regions, key=natural_key):
        box = regions[chain]
        chains.append(Chain(chain, () if box is None else (len(boxes),)))
        boxes += [] if box is None else [box]
    return make_image(
        image_id,
        file=_file(data.url),
        width=data.width,
        height=data.height,
        split=data.split,
        captions=captions,
        boxes=boxes,
        chains=chains,
        source_id="" if data.flickr_id is None else str(data.flickr_id),
    )


def _phrase_caption(text: str, chain: str) -> Caption:
    return make_caption(text, None, [Phrase(0, len(text.split()), chain)])


def _region(image: Image, chain: str, phrase: str) -> _Region:
    (box,) = image.chain_boxes(chain)
    size = (box.x2 - box.x1, box.y2 - box.y1)
    return _Region(number_or_text(chain), box.x1, box.y1, *size, phrase, number_or_text(image.id))


def _around(boxes: tuple[Box, ...]) -> Box:
    return Box(
        min(box.x1 for box in boxes),
        min(box.y1 for box in boxes),
        max(box.x2 for box in boxes),
        max(box.y2 for box in boxes),
    )


def _file(url: str) -> str:
    """`https://…/VG_100K_2/1.jpg` → `VG_100K_2/1.jpg`. Text that is not a URL is returned as a path."""
    if not url.startswith(("http://", "https://")):
        return url
    return "/".join(PurePosixPath(urlsplit(url).path).parts[-2:])
