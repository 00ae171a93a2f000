"""The text release of Flickr8k: `Flickr8k.token.txt` and `Flickr_8k.{train,dev,test}Images.txt`.

Flickr30k's `results_20130124.token` and `results.csv` have the same layout and can be read too. The `dev` split becomes
`val`, and `dev` again when written. The id of an image is its file name without the suffix.

Photo ids that are not in the file names are written to an additional file, `Flickr8k.sources.txt`
(`name.jpg<TAB>source id`), for the leak guard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from deixis.corpus.format_helpers import (
    SPLIT_NAMES,
    file_name,
    list_entries,
    names_at_hand,
    read_lines,
    split_file_part,
    stem,
)
from deixis.corpus.records import Caption, Corpus, carried_source_id, make_caption, make_image
from deixis.corpus.tree import FileTree
from deixis.errors import DeixisError, InputError
from deixis.files import write_text

DESCRIPTION = "Flickr8k's text release: Flickr8k.token.txt with split lists"

TOKEN_FILE = "Flickr8k.token.txt"
SOURCE_FILE = "Flickr8k.sources.txt"
_TABLE_HEADER = "image_name|"
_LIST_NAME = re.compile(r"Flickr_?\w*k\.([\w.-]+)Images\.txt", re.IGNORECASE)
#: `name.jpg#2<TAB>caption`
_LINE = re.compile(r"\s*(\S[^\t]*)#([0-9]+)\t(.*)")
#: `name.jpg| 2| caption`; one line of the published results.csv lacks its second bar.
_TABLE_LINE = re.compile(r"(.+?)\|\s*([0-9]+)\s*[|\s]\s*(.*)")


def detect(tree: FileTree) -> bool:
    return bool(_caption_files(tree))


def read(tree: FileTree) -> Corpus:
    files = _caption_files(tree)
    if len(files) != 1:
        several = f"has several caption files ({', '.join(files)}); open one of them"
        raise InputError(tree.path, several if files else f"has no caption file such as {TOKEN_FILE}")
    captions: dict[str, list[Caption]] = {}
    for name, caption_number, text in _caption_lines(tree, files[0]):
        image_captions = captions.setdefault(name, [])
        image_captions.append(
            make_caption(text, id="" if caption_number == str(len(image_captions)) else caption_number)
        )
    splits = _read_splits(tree)
    sources = _read_sources(tree)
    images = [
        make_image(
            stem(name),
            file=name,
            split=splits.get(name, ""),
            captions=captions.get(name, ()),
            source_id=sources.get(name, ""),
        )
        for name in dict.fromkeys([*captions, *splits])
    ]
    try:
        return Corpus(images)
    except DeixisError as fault:
        raise InputError(tree.path, str(fault), files[0]) from None


def write(corpus: Corpus, out: Path) -> None:
    lists: dict[str, list[str]] = {}
    lines = []
    sources = []
    for image in keep(corpus):
        if image.source_id:
            sources.append(f"{image.file}\t{image.source_id}\n")
        if image.split:
            lists.setdefault(image.split, []).append(image.file)
        for position, caption in enumerate(image.captions):
            lines.append(f"{image.file}#{caption.id or position}\t{caption.text}\n")
    write_text(out / TOKEN_FILE, "".join(lines))
    for split, names in lists.items():
        write_text(out / _list_name(split), "".join(f"{name}\n" for name in names))
    if sources:
        write_text(out / SOURCE_FILE, "".join(sources))


def keep(corpus: Corpus) -> Corpus:
    """Caption texts, on one line each, splits, file names and source ids. Image ids are derived from file names.

    Images with neither caption nor split are dropped; images without captions come last.
    """
    images = []
    for image in corpus:
        if not image.captions and not image.split:
            continue
        file = re.sub(r"[\t\r\n]", " ", image.file).strip() or f"{image.id}.jpg"
        captions = [
            make_caption(
                re.sub(r"[\r\n]", " ", caption.text),
                id=caption.id if re.fullmatch("[0-9]+", caption.id) and caption.id != str(position) else "",
            )
            for position, caption in enumerate(image.captions)
        ]
        split = SPLIT_NAMES.get(image.split, image.split)
        source_id = carried_source_id(image.source_id, (file,), (image.id,))
        source_id = re.sub(r"[\t\r\n]", " ", source_id).strip()
        images.append(make_image(stem(file), file=file, split=split, captions=captions, source_id=source_id))
    images.sort(key=lambda image: "" if image.captions else _list_name(image.split))
    return corpus.with_images(images)


def _caption_files(tree: FileTree) -> list[str]:
    """The main caption file of the release, else all files that look like one, except lemmatized copies."""
    names = [name for name in tree.names() if "lemma" not in name.lower()]
    for name in names:
        if file_name(name) == TOKEN_FILE:
            return [name]
    token_files = [name for name in names if name.endswith((".token", ".token.txt"))]
    return token_files or [name for name in names if file_name(name) == "results.csv" and _is_table(tree, name)]


def _is_table(tree: FileTree, name: str) -> bool:
    return tree.start(name, 100).removeprefix(b"\xef\xbb\xbf").startswith(_TABLE_HEADER.encode())


def _caption_lines(tree: FileTree, file: str) -> Iterator[tuple[str, str, str]]:
    """Image file name, caption number and text of every line."""
    table = _is_table(tree, file)
    pattern = _TABLE_LINE if table else _LINE
    for line_number, line in read_lines(tree, file):
        if not line.strip() or (table and line_number == 1):
            continue
        match = pattern.fullmatch(line)
        if match is None:
            expected = "name| number| caption" if table else "name.jpg#number, a tab, and the caption"
            problem = "has no tab between image and caption" if not table and "\t" not in line else f"is not {expected}"
            raise InputError(tree.path, problem, f"{file} line {line_number}")
        yield match[1].strip(), match[2], match[3]


def _list_name(split: str) -> str:
    return f"Flickr_8k.{'dev' if split == 'val' else split_file_part(split)}Images.txt"


def _read_splits(tree: FileTree) -> dict[str, str]:
    """File name → split, from the lists in the tree, or in the same folder if it is a single file."""
    splits: dict[str, str] = {}
    for name in names_at_hand(tree):
        match = _LIST_NAME.fullmatch(file_name(name))
        if match is None:
            continue
        split = SPLIT_NAMES.get(match[1], match[1])
        for line_number, entry in list_entries(tree, name):
            if splits.setdefault(entry, split) != split:
                problem = f"{entry} is already in split {splits[entry]}"
                raise InputError(tree.path, problem, f"{name} line {line_number}")
    return splits


def _read_sources(tree: FileTree) -> dict[str, str]:
    """File name → source id, from the list in the tree or in the same folder."""
    sources: dict[str, str] = {}
    for name in names_at_hand(tree):
        for line_number, entry in list_entries(tree, name) if file_name(name) == SOURCE_FILE else ():
            file, tab, source_id = entry.partition("\t")
            if not tab:
                raise InputError(tree.path, "has no tab between image and source id", f"{name} line {line_number}")
            if sources.setdefault(file, source_id) != source_id:
                raise InputError(
                    tree.path, f"{file} already has source id {sources[file]}", f"{name} line {line_number}"
                )
    return sources
