"""Extraction promises: the same bytes whatever the threads, crashes and restarts; broken pictures never stop it."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import Corpus, Image, make_image
from deixis.corpus.pictures import open_pictures
from deixis.errors import DeixisError, InputError
from deixis.features import picture_loading as reading
from deixis.features.extraction import extract
from deixis.features.layout import Plan
from deixis.features.picture_loading import read
from deixis.features.store import FeatureStore
from tests.features.fakes import FakeMapper, FakePicture, features_of, folder_bytes, make_corpus

ROOT = Path(__file__).parents[2]


def start_run(out: Path, images: int, seconds: float, *step: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.features.fakes", str(out), str(images), str(seconds), *step]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX systems")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 25))])
def test_killed_at_any_moment_it_resumes_and_ends_byte_identical(tmp_path: Path, seed: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    extract(make_corpus(60, broken=[3]), FakeMapper(), whole, partition_size=8)
    moments = random.Random(seed)
    met = 0
    for _ in range(6):
        # Undisturbed it would take 1.5 s and more, on the fastest machine: 15 batches of 0.2 s in two threads.
        process = start_run(killed, images=60, seconds=0.2)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        met += process.wait() == -signal.SIGKILL
    assert met > 2, "the kills came too late to mean anything"
    assert start_run(killed, images=60, seconds=0).wait(timeout=60) == 0
    assert folder_bytes(killed) == folder_bytes(whole)
    FeatureStore(killed).verify()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX systems")
def test_killed_before_each_sync_and_rename_it_resumes_and_ends_byte_identical(tmp_path: Path) -> None:
    extract(make_corpus(20, broken=[3]), FakeMapper(), tmp_path / "whole", partition_size=8)
    whole = folder_bytes(tmp_path / "whole")
    for step in range(200):
        out = tmp_path / f"killed at step {step}"
        if start_run(out, 20, 0, str(step)).wait(timeout=60) == 0:
            break
        extract(make_corpus(20, broken=[3]), FakeMapper(), out, partition_size=8)
        assert folder_bytes(out) == whole, f"killed at step {step}"
    # 2 + 3 × 4 + 1 files, each synced, renamed, and its folder synced.
    assert step == 45


@pytest.mark.parametrize("survivors", range(12))
def test_every_order_of_files_a_crash_can_leave_is_mended(tmp_path: Path, survivors: int) -> None:
    """A crash keeps a prefix of the files in the order they were written, and half of the next under a hidden name."""
    corpus = make_corpus(20, broken=[3, 19])
    extract(corpus, FakeMapper(), tmp_path / "whole", partition_size=8)
    whole = folder_bytes(tmp_path / "whole")
    parts = [f"partitions/0000{n}.{end}" for n in range(3) for end in ("boxes.npy", "image.npy", "regions.npy", "json")]
    order = [".lock", "ids.json", "plan.json", *parts, "manifest.json"]
    assert sorted(order) == sorted(whole)
    left = tmp_path / "left"
    (left / "partitions").mkdir(parents=True)
    for name in order[: survivors + 1]:
        (left / name).write_bytes(whole[name])
    half = left / order[survivors + 1]
    half.with_name(f".{half.name}.abc123.part").write_bytes(whole[order[survivors + 1]][:9])
    extract(corpus, FakeMapper(), left, partition_size=8)
    assert folder_bytes(left) == whole


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_number_of_workers_changes_nothing(tmp_path: Path, workers: int) -> None:
    corpus = make_corpus(50, broken=[3])
    mapper = FakeMapper(seconds=0.002)
    extract(corpus, mapper, tmp_path / "some", partition_size=16, workers=workers)
    extract(corpus, FakeMapper(), tmp_path / "one", partition_size=16, workers=1)
    assert folder_bytes(tmp_path / "some") == folder_bytes(tmp_path / "one")
    assert max(len(batch) for batch in mapper.batches) == mapper.batch_size


def test_what_is_stored_is_what_the_mapper_made(tmp_path: Path) -> None:
    corpus = make_corpus(30)
    extract(corpus, FakeMapper(), tmp_path, partition_size=7)
    store = FeatureStore(tmp_path)
    assert store.ids == tuple(image.id for image in corpus)
    for number, image in enumerate(corpus):
        made = features_of(image.id.encode())
        np.testing.assert_array_equal(store["image"][number][:-1], made["image"][:-1])
        np.testing.assert_array_equal(store.regions(image.id), made["regions"])
        np.testing.assert_array_equal(store.boxes(image.id), made["boxes"])


def test_broken_and_missing_pictures_are_skipped_and_listed(tmp_path: Path) -> None:
    corpus = make_corpus(20, broken=[0, 8, 9, 10, 11])
    report = extract(corpus, FakeMapper(), tmp_path, partition_size=4)
    store = FeatureStore(tmp_path)
    assert store.skipped == {f"image {number}": "is not a picture" for number in (0, 8, 9, 10, 11)}
    assert [skipped.id for skipped in report.manifest.skipped] == list(store.skipped)
    assert len(store) == len(store.ids) == 15
    assert "image 0" not in store
    assert "image 1" in store
    # A whole partition (8–11) is without features, and those around it keep their own.
    assert store.numbers(["image 7", "image 12"]).tolist() == [6, 7]
    np.testing.assert_array_equal(store.regions("image 12"), features_of(b"image 12")["regions"])
    with pytest.raises(DeixisError, match=r"'image 8' has no features: its picture is not a picture"):
        store.regions("image 8")


def test_a_finished_store_is_left_alone_and_progress_is_reported(tmp_path: Path) -> None:
    corpus = make_corpus(10)
    steps: list[tuple[int, int]] = []
    first = extract(corpus, FakeMapper(), tmp_path, partition_size=4, progress=lambda *step: steps.append(step))
    assert (first.done, first.found) == (10, 0)
    assert steps[0] == (0, 10)
    assert steps[-1] == (10, 10)
    assert steps == sorted(steps)
    idle = FakeMapper()
    second = extract(corpus, idle, tmp_path, partition_size=4)
    assert (second.done, second.found, idle.batches) == (0, 10, [])


def test_a_damaged_partition_is_made_again(tmp_path: Path) -> None:
    corpus = make_corpus(10)
    extract(corpus, FakeMapper(), tmp_path, partition_size=4)
    whole = folder_bytes(tmp_path)
    path = tmp_path / "partitions" / "00001.image.npy"
    path.write_bytes(path.read_bytes()[:-1])
    mapper = FakeMapper()
    assert extract(corpus, mapper, tmp_path, partition_size=4).done == 4
    assert folder_bytes(tmp_path) == whole


@pytest.mark.parametrize(
    ("corpus", "mapper", "what"),
    [
        (make_corpus(10), FakeMapper(name="other"), "extractor"),
        (make_corpus(11), FakeMapper(), "images, ids_sha256"),
        (make_corpus(10, salt="other pixels"), FakeMapper(), "pictures_sha256"),
    ],
)
def test_a_store_of_another_recipe_is_refused_and_kept(
    tmp_path: Path, corpus: Corpus, mapper: FakeMapper, what: str
) -> None:
    extract(make_corpus(10), FakeMapper(), tmp_path)
    before = folder_bytes(tmp_path)
    with pytest.raises(InputError, match=f"another recipe .*{what}"):
        extract(corpus, mapper, tmp_path)
    assert folder_bytes(tmp_path) == before


def test_a_folder_with_other_things_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not a feature store"):
        extract(make_corpus(3), FakeMapper(), tmp_path)
    with pytest.raises(InputError, match="is not a feature store"):
        extract(make_corpus(3), FakeMapper(), tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_corpus_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="its pictures are missing"):
        extract(Corpus(make_corpus(3).images), FakeMapper(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    class Overflowing(FakeMapper):
        def __call__(self, batch):  # type: ignore[no-untyped-def]
            return [{**item, "image": np.full(6, 1e6)} for item in super().__call__(batch)]

    with pytest.raises(DeixisError, match=r"image 0: array 'image' .*too large for float16"):
        extract(make_corpus(3), Overflowing(), tmp_path)


def test_a_fault_of_the_mapper_ends_the_run_and_a_later_one_mends_it(tmp_path: Path) -> None:
    class Failing(FakeMapper):
        def __call__(self, batch):  # type: ignore[no-untyped-def]
            if len(self.batches) >= 5:
                raise RuntimeError("out of memory")
            return super().__call__(batch)

    corpus = make_corpus(30)
    with pytest.raises(RuntimeError, match="out of memory"):
        extract(corpus, Failing(), tmp_path / "out", partition_size=8)
    extract(corpus, FakeMapper(), tmp_path / "out", partition_size=8)
    extract(corpus, FakeMapper(), tmp_path / "whole", partition_size=8)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")


def test_a_full_disk_is_one_line_and_a_later_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(30)
    calls = itertools.count()

    def fsync(descriptor: int, _fsync: Any = os.fsync) -> None:
        if next(calls) > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        _fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(DeixisError, match="No space left on device"):
            extract(corpus, FakeMapper(), tmp_path / "out", partition_size=4)
    extract(corpus, FakeMapper(), tmp_path / "out", partition_size=4)
    extract(corpus, FakeMapper(), tmp_path / "whole", partition_size=4)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")


def test_only_one_process_writes_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    process = start_run(tmp_path, images=400, seconds=0.05)
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "partitions" / "00000.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(DeixisError, match="another process is writing"):
            extract(make_corpus(400, broken=[3]), FakeMapper(), tmp_path, partition_size=8)
    finally:
        process.kill()
        process.wait()
    extract(make_corpus(400, broken=[3]), FakeMapper(), tmp_path, partition_size=8)


def test_readers_beside_a_writer_see_only_a_store_that_is_finished_and_right(tmp_path: Path) -> None:
    process = start_run(tmp_path, images=120, seconds=0.02)
    refused: list[str] = []
    try:
        while process.poll() is None:
            try:
                assert len(FeatureStore(tmp_path)) == 119
            except InputError as fault:
                refused.append(fault.problem)
    finally:
        process.kill()
        process.wait()
    assert {problem.partition(" (")[0] for problem in refused} <= {"is not a feature store", "is not finished"}
    assert len(set(refused)) > 3, "the message counts the finished partitions"
    store = FeatureStore(tmp_path)
    assert len(store) == 119
    for image_id in store.ids[-9:]:
        np.testing.assert_array_equal(store.regions(image_id), features_of(image_id.encode())["regions"])


def test_the_plan_names_what_made_the_features(tmp_path: Path) -> None:
    report = extract(make_corpus(5), FakeMapper(), tmp_path, provenance={"corpus": "c" * 64})
    plan = FeatureStore(tmp_path).plan
    assert isinstance(plan, Plan)
    assert plan == report.plan
    assert plan.provenance["extractor"] == "fake"
    assert plan.provenance["corpus"] == "c" * 64
    assert plan.provenance["weights_sha256"] == "0" * 64


apart = pytest.mark.skipif(sys.platform != "linux", reason="readers are processes on Linux alone")


@apart
@pytest.mark.parametrize("workers", [1, 3])
def test_reading_in_processes_changes_nothing(tmp_path: Path, workers: int) -> None:
    corpus = make_corpus(50, broken=[3, 17])
    mapper = FakeMapper(seconds=0.002)
    mapper.read_apart = True
    extract(corpus, mapper, tmp_path / "apart", partition_size=16, workers=workers)
    extract(corpus, FakeMapper(), tmp_path / "threads", partition_size=16)
    assert folder_bytes(tmp_path / "apart") == folder_bytes(tmp_path / "threads")


@apart
def test_processes_that_read_one_archive_do_not_disturb_each_other(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        for number in range(200):
            archive.writestr(f"{number}.jpg", bytes([number]) * 5000)
    pictures = open_pictures(tmp_path / "pictures.zip")
    corpus = Corpus((make_image(f"{number}", file=f"{number}.jpg") for number in range(200)), pictures=pictures)
    mapper = FakeMapper()
    mapper.read_apart = True
    pictures.read(corpus.images[0])
    readings = list(read(pictures, mapper, corpus, 4))
    assert [reading.picture.data for reading in readings if reading.picture] == [bytes([n]) * 5000 for n in range(200)]


@apart
@pytest.mark.parametrize(("images", "processes"), [(0, 1), (3, 1), (9, 3), (100, 6)])
def test_no_more_processes_are_forked_than_have_something_to_read(
    monkeypatch: pytest.MonkeyPatch, images: int, processes: int
) -> None:
    counts = []

    class Counted(ProcessPoolExecutor):
        def __init__(self, workers: int, *arguments: Any) -> None:
            counts.append(workers)
            super().__init__(workers, *arguments)

    monkeypatch.setattr(reading, "ProcessPoolExecutor", Counted)
    mapper, corpus = FakeMapper(), make_corpus(images)
    mapper.read_apart = True
    assert corpus.pictures is not None
    assert [found.image for found in read(corpus.pictures, mapper, corpus, 6)] == list(corpus)
    assert counts == [processes]


class DyingMapper(FakeMapper):
    """Its reader is ended, as by a system without memory."""

    read_apart = True

    def prepare(self, image: Image, data: bytes) -> FakePicture:
        if image.id == "image 30":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().prepare(image, data)


@apart
def test_a_reading_process_that_is_ended_is_reported_and_the_run_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="a process that read pictures was killed"):
        extract(make_corpus(50), DyingMapper(), tmp_path / "ended", partition_size=8, workers=2)
    extract(make_corpus(50), FakeMapper(), tmp_path / "ended", partition_size=8)
    extract(make_corpus(50), FakeMapper(), tmp_path / "whole", partition_size=8)
    assert folder_bytes(tmp_path / "ended") == folder_bytes(tmp_path / "whole")


@apart
def test_reading_processes_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """Else they would hold the store's lock, and nobody could go on."""
    process = start_run(tmp_path, 60, 0.3, "apart")
    time.sleep(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 3
    process.kill()
    process.wait()
    limit = time.monotonic() + 10
    while any(lives(child) for child in children) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not any(lives(child) for child in children)
    extract(make_corpus(60, broken=[3]), FakeMapper(), tmp_path, partition_size=8)


def lives(process: str) -> bool:
    """Whether it is there and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
