"""Karpathy's splits: `dataset_flickr8k.json`, `dataset_flickr30k.json`, `dataset_coco.json`, one JSON file per dataset.

`raw` is a caption's text and `tokens` are its tokens; `sentid` is the caption's id. The image's id is `cocoid` if
present, else the file name without the suffix. COCO's `restval` split keeps its name.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from deixis.corpus.format_helpers import caption_ids, find_json, json_keys, number_or_text, read_json, stem
from deixis.corpus.records import Caption, Corpus, Image, make_caption, make_image
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write

DESCRIPTION = "Karpathy's splits: dataset_flickr8k.json and similar files"

FILE_NAME = "dataset.json"


class _Sentence(msgspec.Struct, omit_defaults=True):
    raw: str | None = None
    tokens: list[str] | None = None
    sentid: int | str | None = None
    imgid: int | str | None = None


class _Image(msgspec.Struct, omit_defaults=True):
    filename: str
    sentences: list[_Sentence]
    split: str = ""
    filepath: str = ""
    cocoid: int | str | None = None
    imgid: int | str | None = None
    sentids: list[int | str] = []
    #: Added by Deixis: the original id of the photo, for the leak guard.
    source_id: str = ""


class _Dataset(msgspec.Struct):
    images: list[_Image]
    dataset: str = ""


def detect(tree: FileTree) -> bool:
    return _find(tree) is not None


def read(tree: FileTree) -> Corpus:
    name = _find(tree) or find_json(tree)
    if name is None:
        raise InputError(tree.path, "has no JSON file of images with sentences")
    dataset = read_json(tree, name, _Dataset)
    try:
        return Corpus((_image(image) for image in dataset.images), name=dataset.dataset)
    except DeixisError as fault:
        raise InputError(tree.path, str(fault), name) from None


def write(corpus: Corpus, out: Path) -> None:
    target = out if out.suffix == ".json" else out / FILE_NAME
    images = []
    for index, image in enumerate(keep(corpus)):
        sentences = [
            _Sentence(caption.text, list(caption.tokens), number_or_text(caption.id), index)
            for caption in image.captions
        ]
        folder, _, filename = image.file.rpartition("/")
        images.append(
            _Image(
                filename=filename,
                filepath=folder,
                sentences=sentences,
                split=image.split,
                imgid=index,
                sentids=[sentence.sentid for sentence in sentences if sentence.sentid is not None],
                cocoid=None if stem(image.file) == image.id else number_or_text(image.id),
                source_id=image.source_id,
            )
        )
    with atomic_write(target) as stream:
        stream.write(msgspec.json.encode(_Dataset(images, corpus.name)))


def keep(corpus: Corpus) -> Corpus:
    """Ids, files, splits, source ids, and captions with their tokens; no phrases, boxes or sizes.

    Captions without numeric ids are numbered, because every `sentid` must be a number.
    """
    ids = iter(caption_ids(corpus, first=0))
    return corpus.with_images(
        make_image(
            image.id,
            file=_path(*image.file.rpartition("/")[::2]),
            split=image.split,
            captions=[make_caption(caption.text, caption.tokens, id=next(ids)) for caption in image.captions],
            source_id=image.source_id,
        )
        for image in corpus
    )


def _find(tree: FileTree) -> str | None:
    """A file of images with sentences, or with an empty list of images."""
    empty = next((name for name, keys in json_keys(tree).items() if keys == {"images", "dataset"}), None)
    return find_json(tree, "images", "sentences") or empty


def _image(image: _Image) -> Image:
    file = _path(image.filepath, image.filename)
    image_id = stem(file) if image.cocoid is None else str(image.cocoid)
    if not image_id:
        raise DeixisError("an image has neither a filename nor a cocoid")
    captions = [_caption(sentence) for sentence in image.sentences]
    return make_image(image_id, file=file, split=image.split, captions=captions, source_id=image.source_id)


def _caption(sentence: _Sentence) -> Caption:
    text = " ".join(sentence.tokens or ()) if sentence.raw is None else sentence.raw
    return make_caption(text, sentence.tokens, id="" if sentence.sentid is None else str(sentence.sentid))


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
