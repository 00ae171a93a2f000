"""The cache of slow readings only ever saves time, and detection reads a large file once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deixis.corpus import Corpus, make_caption, make_image, open_corpus, opening, tree, write_corpus
from deixis.corpus.formats import native
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import InputError

CORPUS = Corpus([make_image("1", file="1.jpg", captions=[make_caption("a dog")])], name="one")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(opening, "SLOW_SECONDS", -1.0)
    return tmp_path / "cache" / "corpora"


def test_what_the_cache_gives_is_what_was_read(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(CORPUS, tmp_path / "corpus", format="folder")
    first = open_corpus(tmp_path / "corpus")
    (file,) = cache.iterdir()
    marked = Corpus([make_image("from the cache")])
    native.write(marked, file)
    assert open_corpus(tmp_path / "corpus") == marked
    file.write_bytes(b'{"deixis":"corpus"')
    assert open_corpus(tmp_path / "corpus") == first
    assert native.read(tree.SingleFileTree(file)) == first


@pytest.mark.parametrize("broken", [False, True])
def test_a_cache_that_may_not_be_touched_costs_time_only(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    write_corpus(CORPUS, tmp_path / "corpus", format="folder")
    first = open_corpus(tmp_path / "corpus")
    (file,) = cache.iterdir()
    if broken:
        file.write_bytes(b"")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    for method in ("touch", "unlink", "mkdir"):
        monkeypatch.setattr(Path, method, refuse)
    assert open_corpus(tmp_path / "corpus") == first


@pytest.mark.parametrize("format", ["karpathy", "grounding", "region-phrase"])
def test_a_large_file_is_read_once_to_detect_and_once_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    write_corpus(CORPUS, tmp_path, format=format)
    reads: Counter[str] = Counter()
    read = tree.FolderTree.read

    def counted(self: tree.FolderTree, name: str, limit: int = tree.MEMBER_LIMIT) -> bytes:
        reads[name] += 1
        return read(self, name, limit)

    monkeypatch.setattr(tree.FolderTree, "read", counted)
    open_corpus(tmp_path, cache=False)
    assert reads
    assert max(reads.values()) <= 2


def test_as_many_scenes_are_drawn_as_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_corpus("scenes:24") == scenes_corpus(24)
    with pytest.raises(InputError):
        open_corpus("scenes:many")
    monkeypatch.chdir(tmp_path)
    write_corpus(CORPUS, Path("scenes:24"), format="folder")
    assert len(open_corpus("scenes:24")) == 1, "a folder of that name goes first"
