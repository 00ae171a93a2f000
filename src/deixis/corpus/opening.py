"""Open a corpus whatever its format, write it in any other, and remember slow readings in a cache."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from deixis.corpus.formats import FORMATS, get_format, native
from deixis.corpus.pictures import find_pictures, open_pictures
from deixis.corpus.records import Corpus
from deixis.corpus.tree import FileTree, SingleFileTree, open_tree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, cache_folder

#: Part of every cache key: raise it when a reader comes to give other records for the same bytes.
READER_VERSION = 2
#: A reading that took longer than this is worth a cache file.
SLOW_SECONDS = 1.0
#: At most this many corpora stay cached; the longest unused go first.
CACHED_CORPORA = 8


def open_corpus(
    path: str | Path, *, format: str | None = None, pictures: str | Path | None = None, cache: bool = True
) -> Corpus:
    """Open a dataset: a folder, a .zip (read without unpacking), or a file.

    `scenes` opens the embedded corpus, `scenes:16000` one of so many scenes.

    Args:
        path: where it is.
        format: one of `FORMATS`; found from the files when not given.
        pictures: a folder or zip of pictures that are kept elsewhere.
        cache: keep the outcome of a slow reading in the cache folder and use it next time.

    Raises:
        InputError: naming the file and the place.
    """
    scenes, colon, count = str(path).partition(":")
    if scenes == "scenes" and count.isdecimal() == bool(colon) and not Path(path).exists():
        from deixis.corpus.scenes import scenes_corpus

        return scenes_corpus(int(count)) if colon else scenes_corpus()
    tree = open_tree(path)
    name = format or detect_format(tree)
    corpus = _read_cached(tree, name) if cache else get_format(name).read(tree)
    found = open_pictures(pictures) if pictures is not None else find_pictures(tree, corpus)
    # Names become text in files, which bytes that are not UTF-8 cannot.
    file_stem = os.fsencode(tree.path.stem).decode(errors="replace")
    return Corpus(corpus, name=corpus.name or file_stem, pictures=found)


def detect_format(tree: FileTree) -> str:
    """The name of the format a tree is in, or an `InputError` that says what was looked for."""
    for name in FORMATS:
        if get_format(name).detect(tree):
            return name
    if not tree.names():
        raise InputError(tree.path, "is empty: there are no files in it")
    raise InputError(tree.path, f"is none of the known corpus formats ({', '.join(FORMATS)})")


def write_corpus(corpus: Corpus, out: str | Path, *, format: str = "deixis", pictures: bool = False) -> list[str]:
    """Write a corpus; with `pictures`, the picture files too, under `images/`. Gives the ids of images without one."""
    out = Path(out)
    get_format(format).write(corpus, out)
    return write_pictures(corpus, out if out.is_dir() else out.parent) if pictures else []


def write_pictures(corpus: Corpus, folder: Path) -> list[str]:
    """Copy the picture files of a corpus into `folder/images/`, under the images' own file names.

    Gives the ids of images that have none, as one of Flickr8k has captions alone.
    """
    missing = [image.id for image in corpus if corpus.pictures is None or not corpus.pictures.has(image)]
    if corpus.pictures is None or len(missing) == len(corpus):
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no pictures to write")
    root, without = (folder / "images").resolve(), frozenset(missing)
    for image in corpus:
        if image.id in without:
            continue
        target = (root / image.file).resolve()
        if not target.is_relative_to(root):
            raise DeixisError(f"image {image.id}: file {image.file!r} leads outside the folder")
        with atomic_write(target) as stream:
            stream.write(corpus.pictures.read(image))
    return missing


def _read_cached(tree: FileTree, format: str) -> Corpus:
    if format == "deixis":
        return get_format(format).read(tree)
    key = f"{READER_VERSION} {format} {tree.path.resolve()}\n"
    digest = hashlib.sha256(key.encode(errors="surrogateescape"))
    for line in tree.stamp():
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    file = cache_folder() / "corpora" / f"{digest.hexdigest()}.jsonl"
    # A cache that cannot be read or written (read-only home, full disk) only costs time.
    try:
        corpus = native.read(SingleFileTree(file), trusted=True)
    except InputError:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    else:
        with suppress(OSError):
            file.touch()
        return corpus
    start = time.monotonic()
    corpus = get_format(format).read(tree)
    if time.monotonic() - start > SLOW_SECONDS:
        with suppress(OSError):
            native.write(corpus, file)
            _prune(file.parent)
    return corpus


def _prune(folder: Path) -> None:
    files = sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[CACHED_CORPORA:]:
        file.unlink(missing_ok=True)
