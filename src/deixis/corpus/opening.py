"""Open a corpus in any format, write it in any other (and count what is lost), cache corpora that are slow to read."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from deixis.corpus.formats import FORMATS, get_format, native
from deixis.corpus.pictures import find_pictures, open_pictures
from deixis.corpus.records import Corpus
from deixis.corpus.tree import FileTree, SingleFileTree, open_tree
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, cache_folder

#: Part of every cache key. Increase it when a reader returns different records for the same bytes.
READER_VERSION = 2
#: Corpora that take longer than this to read are cached.
SLOW_SECONDS = 1.0
#: Largest number of cached corpora; the least recently used are deleted.
CACHED_CORPORA = 8


def open_corpus(
    path: str | Path, *, format: str | None = None, pictures: str | Path | None = None, cache: bool = True
) -> Corpus:
    """Open a dataset: a folder, a .zip (read without unpacking), or a file.

    `scenes` opens the embedded corpus of rendered scenes, `scenes:16000` one with 16,000 scenes.

    Args:
        path: path of the dataset.
        format: one of `FORMATS`; detected from the files by default.
        pictures: a folder or zip with the pictures, if they are somewhere else.
        cache: cache a corpus that is slow to read.

    Raises:
        InputError: if the dataset cannot be read; the message names the file and the location in it.

    >>> open_corpus("scenes:20")
    <Corpus scenes: 20 images (train: 14, val: 2, test: 2, unseen: 2)>
    """
    scenes, colon, count = str(path).partition(":")
    if scenes == "scenes" and count.isdecimal() == bool(colon) and not Path(path).exists():
        return _scenes(int(count) if colon else None)
    tree = open_tree(path)
    name = format or detect_format(tree)
    corpus = _read_cached(tree, name) if cache else get_format(name).read(tree)
    stored_pictures = open_pictures(pictures) if pictures is not None else find_pictures(tree, corpus)
    # The name is written to text files, so it must be valid UTF-8.
    file_stem = os.fsencode(tree.path.stem).decode(errors="replace")
    return Corpus(corpus, name=corpus.name or file_stem, pictures=stored_pictures)


@lru_cache(maxsize=8)
def _scenes(count: int | None) -> Corpus:
    """The embedded corpus. A corpus is immutable, so one can be shared."""
    from deixis.corpus.scenes import scenes_corpus

    return scenes_corpus() if count is None else scenes_corpus(count)


def detect_format(tree: FileTree) -> str:
    """The name of the tree's format. Raises `InputError` if it is none of the known ones."""
    for name in FORMATS:
        if get_format(name).detect(tree):
            return name
    if not tree.names():
        raise InputError(tree.path, "is empty: there are no files in it")
    raise InputError(tree.path, f"is none of the known corpus formats ({', '.join(FORMATS)})")


def write_corpus(corpus: Corpus, out: str | Path, *, format: str = "deixis", pictures: bool = False) -> list[str]:
    """Write a corpus; with `pictures`, also its picture files to `images/`. Returns the ids of images without one.

    >>> import tempfile
    >>> corpus = open_corpus("scenes:20")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     missing = write_corpus(corpus, folder)
    ...     open_corpus(folder) == corpus
    True
    """
    out = Path(out)
    get_format(format).write(corpus, out)
    return write_pictures(corpus, out if out.is_dir() else out.parent) if pictures else []


def write_pictures(corpus: Corpus, folder: Path) -> list[str]:
    """Copy the picture files of a corpus to `folder/images/`, under the file names of the images.

    Returns the ids of images without a picture (Flickr8k has one).
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
    # If the cache cannot be read or written (read-only home, full disk), only time is lost.
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
            _delete_oldest(file.parent)
    return corpus


def _delete_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[CACHED_CORPORA:]:
        file.unlink(missing_ok=True)


def losses(corpus: Corpus, converted: Corpus) -> dict[str, tuple[int, int]]:
    """What `corpus` has and `converted` lacks: name → (number lost, number in `corpus`), in the records' order."""
    counts_before, counts_after = _contents(corpus), _contents(converted)
    lost = {
        name: (count - counts_after[name], count) for name, count in counts_before.items() if counts_after[name] < count
    }
    changed = 0
    for image in corpus:
        if image.id in converted:
            pairs = zip(image.captions, converted[image.id].captions, strict=False)
            changed += sum(before.text != after.text for before, after in pairs)
    if changed:
        lost["spellings of captions"] = (changed, counts_before["captions"])
    kept_ids = [image.id for image in converted]
    if [image.id for image in corpus if image.id in converted] != kept_ids:
        lost["positions in the list of images"] = (len(kept_ids), len(corpus))
    return lost


def _contents(corpus: Corpus) -> Counter[str]:
    counts: Counter[str] = Counter()
    for image in corpus:
        counts["images"] += 1
        counts["splits of images"] += bool(image.split)
        counts["sizes of images"] += bool(image.width or image.height)
        counts["first publisher's ids"] += bool(image.source_id)
        counts["captions"] += len(image.captions)
        for caption in image.captions:
            counts["caption ids"] += bool(caption.id)
            counts["marks of unrelated captions"] += caption.unrelated
            counts["tokenizations that are not plain blanks"] += caption.words is not None
            counts["phrases"] += len(caption.phrases)
            counts["types of phrases"] += sum(len(phrase.types) for phrase in caption.phrases)
        counts["boxes"] += len(image.boxes)
        counts["chains"] += len(image.chains)
        for chain in image.chains:
            counts["links from chains to boxes"] += len(chain.boxes)
            counts["scene flags"] += chain.scene
            counts["no-box flags"] += chain.no_box
            counts["labels of chains"] += bool(chain.label)
    return counts
