"""An index follows its folders: only what changed is looked at, whatever lies in them, and one model at a time."""

from __future__ import annotations

import os
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from deixis.errors import DeixisError, InputError
from deixis.files import hold_folder
from deixis.search import tidying
from deixis.search.collection import Collection
from deixis.search.generations import current_generation
from deixis.search.indexing import IndexReport, index_folders
from deixis.search.status import index_status
from deixis.vision import picture_formats
from tests.search.fakes import COLOURS, ColourModel, paint, paint_many, unit
from tests.vision.raw_files import dng


class Library:
    """A folder of pictures and its index."""

    def __init__(self, folder: Path) -> None:
        self.pictures, self.index = folder / "pictures", folder / "index"
        self.pictures.mkdir()
        self.model = ColourModel()

    def update(self, *, prune: bool = False) -> IndexReport:
        self.model.encoded = 0
        return index_folders(self.index, [self.pictures], self.model, self.model.identity.name, prune=prune)

    def contents(self) -> dict[str, list[float]]:
        collection = Collection(self.index)
        rows = collection.embeddings_of(collection.ids)
        return {
            os.fsdecode(path): np.round(row, 2).tolist()
            for picture, row in zip(collection.ids.tolist(), rows, strict=True)
            for path in collection.paths(picture)
        }


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path)


def counts(report: IndexReport) -> tuple[int, int, int, int]:
    return report.added, report.renamed, report.changed, report.removed


def test_a_second_run_looks_at_nothing_and_a_third_at_what_changed(library: Library) -> None:
    paths = paint_many(library.pictures, 40)
    assert counts(library.update()) == (40, 0, 0, 0)
    assert library.model.encoded == 40
    before = library.contents()
    assert set(before) == {str(path) for path in paths}
    for path in paths:
        path.chmod(0o644)
    read = []
    original = os.open

    def noting(path: object, flags: int, *rest: int, **options: int) -> int:
        if isinstance(path, bytes) and path.endswith(b".png"):
            read.append(path)
        return original(path, flags, *rest, **options)  # type: ignore[call-overload,no-any-return]

    library.update()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", noting)
        assert counts(library.update()) == (0, 0, 0, 0)
        assert read == []
        paint(paths[0], (255, 0, 0))
        paint(library.pictures / "new.png", (0, 255, 0))
        paths[1].rename(library.pictures / "moved.png")
        paths[2].unlink()
        os.utime(paths[3])
        assert counts(library.update()) == (1, 1, 1, 1)
    assert sorted(map(os.fsdecode, read)) == sorted(
        map(str, [paths[0], library.pictures / "new.png", library.pictures / "moved.png", paths[3]])
    )
    assert library.model.encoded == 2
    after = library.contents()
    assert after[str(library.pictures / "moved.png")] == before[str(paths[1])]
    assert after[str(paths[0])] == np.round(unit([(255, 0, 0)])[0], 2).tolist()
    assert str(paths[2]) not in after
    assert len(after) == 40


def test_a_change_that_hides_behind_size_and_time_is_noticed(library: Library) -> None:
    path = library.pictures / "a.bmp"
    paint(path, (255, 0, 0))
    from PIL import Image as Pillow

    Pillow.new("RGB", (6, 5), (255, 0, 0)).save(path, "BMP")
    library.update()
    status = path.stat()
    Pillow.new("RGB", (6, 5), (0, 0, 255)).save(path, "BMP")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert counts(library.update()) == (0, 0, 1, 0)


def test_copies_share_a_row_and_keep_it_as_long_as_one_is_left(library: Library) -> None:
    first = paint(library.pictures / "a.png", (255, 0, 0))
    second = library.pictures / "sub" / "b.png"
    second.parent.mkdir()
    second.write_bytes(first.read_bytes())
    report = library.update()
    assert (report.pictures, report.files, library.model.encoded) == (1, 2, 1)
    first.unlink()
    report = library.update()
    assert (report.pictures, report.files, report.removed, library.model.encoded) == (1, 1, 1, 0)


def png(width: int, height: int) -> bytes:
    """The head of a PNG of that size, and nothing else."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


def test_broken_hostile_and_odd_files_are_listed_and_the_rest_is_indexed(library: Library) -> None:
    folder = library.pictures
    good = paint(folder / "good.png", (255, 0, 0))
    odd = [b"a\nb.png", b"\xff\xfe.png", b"\x1b[31m.png", "né.png".encode(), b"wrong extension.jpg", b"UPPER.PNG"]
    for number, name in enumerate(odd):
        paint(folder / "x", (0, 0, number + 1))
        os.rename(folder / "x", os.path.join(os.fsencode(folder), name))
    long = paint(folder / "long.png", (1, 2, 3), size=(1, 100_000))
    data = good.read_bytes()
    bad = {
        "empty.jpg": b"",
        "truncated.png": data[:-30],
        "text.jpg": b"not a picture",
        "bomb.png": png(60_000, 60_000),
        "head.png": png(10, 10),
        "svg.png": b"<svg/>",
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "directory.jpg").mkdir()
    paint(folder / "directory.jpg" / "inside.png", (9, 9, 9))
    os.mkfifo(folder / "pipe.jpg")
    os.symlink(folder, folder / "loop")
    os.symlink(good, folder / "link.png")
    os.symlink(folder / "nothing", folder / "dangling.jpg")
    paint(folder / ".hidden.png", (4, 4, 4))
    report = library.update()
    assert {Path(each.path).name for each in report.unreadable} == {*bad, "directory.jpg", "pipe.jpg"}
    assert all(each.reason for each in report.unreadable)
    assert report.links == 3
    assert {os.fsencode(Path(path).name) for path in library.contents()} == {
        b"good.png",
        os.fsencode(long.name),
        b"inside.png",
        *odd,
    }
    assert library.update().unreadable == report.unreadable
    assert library.model.encoded == 0
    (folder / "text.jpg").write_bytes(data)
    (folder / "directory.jpg" / "inside.png").unlink()
    (folder / "directory.jpg").rmdir()
    names = {Path(each.path).name for each in library.update().unreadable}
    assert names == {*bad, "pipe.jpg"} - {"text.jpg"}


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_listed_and_read_once_it_may(library: Library) -> None:
    path = paint(library.pictures / "a.png", (1, 2, 3))
    closed = paint(library.pictures / "sub" / "b.png", (4, 5, 6))
    library.update()
    path.chmod(0)
    closed.parent.chmod(0)
    report = library.update()
    assert len(report.unreadable) == 2
    assert report.removed == 0
    closed.parent.chmod(0o755)
    path.chmod(0o644)
    report = library.update()
    assert report.unreadable == []
    assert report.pictures == 2


def test_a_folder_that_is_gone_is_kept_until_it_is_pruned(library: Library) -> None:
    paint_many(library.pictures, 3)
    library.update()
    library.pictures.rename(library.pictures.with_name("away"))
    report = index_folders(library.index, [], library.model, "colours")
    assert (report.absent, report.pictures) == ([str(library.pictures)], 3)
    library.pictures.mkdir()
    assert library.update().pictures == 3
    report = library.update(prune=True)
    assert (report.pictures, report.removed) == (0, 3)


def test_only_the_named_folders_are_looked_at_and_nested_ones_once(library: Library, tmp_path: Path) -> None:
    paint_many(library.pictures / "inner", 3)
    other = tmp_path / "other"
    paint_many(other, 4, seed=1)
    model = library.model
    report = index_folders(library.index, [library.pictures, library.pictures / "inner", other], model, "colours")
    assert (report.added, model.encoded) == (7, 7)
    for folder in (library.pictures / "inner", other):
        (folder / "0000.png").unlink()
    assert index_folders(library.index, [other], model, "colours").removed == 1
    assert index_folders(library.index, [], model, "colours").removed == 1


def test_another_model_builds_beside_and_takes_over_when_whole(library: Library) -> None:
    paint_many(library.pictures, 12)
    library.update()
    other = ColourModel("other")
    served = []
    encode = other.embed_prepared

    def watching(batch: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        served.append(Collection(library.index).identity.name)
        return encode(batch)

    other.embed_prepared = watching  # type: ignore[method-assign,assignment]
    # No folder is named: those that the index knows are encoded anew.
    report = index_folders(library.index, [], other, "other")
    assert served
    assert set(served) == {"colours"}
    assert report.pictures == 12
    assert Collection(library.index).identity.name == "other"
    assert [path for path in library.index.iterdir() if path.is_dir()] == [current_generation(library.index)]
    with pytest.raises(DeixisError, match=r"made with the model other .* --model other, or run: deixis index"):
        Collection(library.index).check_model(library.model)


def test_rows_of_pictures_that_are_gone_are_taken_out(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "UNUSED_ROWS", 5)
    paths = paint_many(library.pictures, 30)
    library.update()
    before, size = library.contents(), index_status(library.index).bytes
    first = current_generation(library.index)
    opened = Collection(library.index)
    for path in paths[:20]:
        path.unlink()
    library.update()
    assert current_generation(library.index) != first
    assert library.contents() == {str(path): before[str(path)] for path in paths[20:]}
    assert index_status(library.index).bytes <= size
    # Who had it open keeps what was open.
    assert len(opened.embeddings_of(opened.ids)) == 30
    assert opened.nearest.count() == 30
    assert sum(bool(opened.paths(picture)) for picture in opened.ids.tolist()) == 10
    paint(library.pictures / "new.png", (3, 4, 5))
    assert library.update().added == 1
    assert len(library.contents()) == 11


def test_one_writer_many_readers(library: Library) -> None:
    paint_many(library.pictures, 8)
    library.update()
    lock = hold_folder(library.index, "index")
    with pytest.raises(DeixisError, match="another process is writing"):
        library.update()
    outcomes: list[int] = []
    readers = [threading.Thread(target=lambda: outcomes.append(len(library.contents()))) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    lock.release()
    assert outcomes == [8] * 6


def test_what_is_no_folder_and_no_index_is_refused(library: Library, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        index_folders(library.index, [tmp_path / "nowhere"], library.model, "colours")
    assert not library.index.exists()
    paint(library.pictures / "a.png", (1, 1, 1))
    with pytest.raises(InputError, match="is no index"):
        index_folders(library.pictures, [library.pictures], library.model, "colours")
    with pytest.raises(DeixisError, match="knows no folder yet"):
        index_folders(library.index, [], library.model, "colours")
    with pytest.raises(DeixisError, match="deixis index DIR"):
        Collection(tmp_path / "nothing")
    library.update()
    generation = current_generation(library.index)
    assert generation is not None
    (generation / "catalogue.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(InputError, match="catalogue"):
        Collection(library.index)


@pytest.mark.timeout(20)
def test_patterns_that_take_minutes_are_refused_and_hard_ones_are_quick(tmp_path: Path) -> None:
    paint(tmp_path / "pictures" / f"{'a' * 200}.png", COLOURS["red"])
    for wrong in (["a" * 501], ["*x"] * 501, ["\udcff"]):
        with pytest.raises(DeixisError, match=r"patterns? to exclude"):
            index_folders(tmp_path / "index", [tmp_path / "pictures"], ColourModel(), "colours", exclude=wrong)
    hard = ["*a" * 120 + "b", "?*" * 200 + "b", "[" * 500, "[z-a]*", "[!]"]
    report = index_folders(tmp_path / "index", [tmp_path / "pictures"], ColourModel(), "colours", exclude=hard)
    assert report.files == 1


def test_files_of_other_types_are_counted_and_excluded_ones_are_not(tmp_path: Path) -> None:
    pictures, index = tmp_path / "pictures", tmp_path / "index"
    for name in ("a.png", "trash/b.png", "deep/trash/c.png", "deep/d.gif.png", "deep/small-e.png"):
        paint(pictures / name, COLOURS["red"] if name == "a.png" else (len(name), 99, 1))
    for name in ("film.MP4", "film.mp4", "notes.txt", "README", "trash/film.mp4"):
        (pictures / name).write_bytes(b"x")
    everything = index_folders(index, [pictures], ColourModel(), "colours")
    assert (everything.files, everything.skipped) == (5, {".mp4": 3, ".txt": 1, "": 1})
    some = index_folders(index, [], ColourModel(), "colours", exclude=["Trash/", "deep/small-*"])
    assert (some.files, some.removed, some.skipped) == (2, 3, {".mp4": 2, ".txt": 1, "": 1})
    # Patterns are remembered until others are given.
    assert index_folders(index, [], ColourModel(), "colours").files == 2
    assert index_status(index).exclude == ["Trash/", "deep/small-*"]
    assert index_folders(index, [], ColourModel("other"), "colours").files == 2
    assert index_folders(index, [], ColourModel("other"), "colours", exclude=[""]).files == 5


def test_raw_files_are_indexed_where_rawpy_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rawpy")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.DNG").write_bytes(dng((64, 48), (200, 40, 40)))
    monkeypatch.setattr(picture_formats, "reads_raw", lambda: False)
    without = index_folders(tmp_path / "index", [tmp_path / "pictures"], ColourModel(), "colours")
    assert (without.files, without.skipped) == (0, {".dng": 1})
    monkeypatch.undo()
    assert index_folders(tmp_path / "index", [], ColourModel(), "colours").files == 1
