"""The store promises: what is read equals a plain list of arrays, opening costs nothing, damage is reported by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.errors import DeixisError, InputError
from deixis.features.arrays import FixedArray, RaggedArray
from deixis.features.extraction import extract
from deixis.features.layout import (
    ArraySpec,
    Manifest,
    Plan,
    Sidecar,
    SkippedImage,
    StoredFile,
    make_plan,
    read_json,
    write_json,
)
from deixis.features.store import FeatureStore
from deixis.features.store_writing import StoreWriter, write_partition
from tests.features.fakes import ARRAYS, FakeMapper, features_of, make_corpus


def write_store(
    folder: Path, items: list[dict[str, Any] | None], partition_size: int, arrays: dict[str, ArraySpec] = ARRAYS
) -> FeatureStore:
    """A store of the given features; None is a skipped image."""
    ids = [f"id {number}" for number in range(len(items))]
    plan = make_plan(ids, arrays, {"extractor": "test"}, partition_size)
    with StoreWriter(folder, plan, ids) as writer:
        for number in reversed(writer.pending()):
            own = plan.items(number)
            features = {ids[item]: made for item in own if (made := items[item]) is not None}
            skipped = [SkippedImage(ids[item], "broken") for item in own if items[item] is None]
            write_partition(folder, plan, number, ids, features, skipped)
        writer.finish()
    return FeatureStore(folder)


@settings(max_examples=40)
@given(data=st.data(), regions=st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=14), size=st.integers(1, 6))
def test_gather_equals_a_plain_list_of_arrays(data: st.DataObject, regions: list[int | None], size: int) -> None:
    generator = np.random.default_rng(7)
    items: list[dict[str, Any] | None] = [
        None
        if count is None
        else {
            "image": generator.normal(size=6).astype(np.float16),
            "regions": generator.normal(size=(count, 4)).astype(np.float16),
            "boxes": generator.uniform(size=(count, 4)).astype(np.float32),
        }
        for count in regions
    ]
    plain = [item for item in items if item is not None]
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder), items, size)
        assert len(store) == len(plain)
        assert store.ids == tuple(f"id {number}" for number, item in enumerate(items) if item is not None)
        ragged, fixed = store["regions"], store["image"]
        assert isinstance(ragged, RaggedArray)
        assert isinstance(fixed, FixedArray)
        assert ragged.lengths.tolist() == [len(item["regions"]) for item in plain]
        assert fixed.shape == (len(plain), 6)
        if plain:
            wanted = data.draw(st.lists(st.integers(-len(plain), len(plain) - 1), max_size=20))
            values, offsets = ragged.gather(wanted)
            assert offsets[0] == 0
            assert offsets[-1] == len(values)
            for place, number in enumerate(wanted):
                np.testing.assert_array_equal(values[offsets[place] : offsets[place + 1]], plain[number]["regions"])
                np.testing.assert_array_equal(ragged[number], plain[number]["regions"])
                np.testing.assert_array_equal(store["boxes"][number], plain[number]["boxes"])
                np.testing.assert_array_equal(fixed[number], plain[number]["image"])
            whole = np.stack([item["image"] for item in plain])
            np.testing.assert_array_equal(fixed.gather(wanted), whole[np.asarray(wanted, int)])
            np.testing.assert_array_equal(np.asarray(fixed), whole)
            part = data.draw(st.slices(len(plain)))
            np.testing.assert_array_equal(fixed[part], whole[part])
            mask = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain))))
            np.testing.assert_array_equal(fixed[mask], whole[mask])
        del store, ragged, fixed


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    extract(make_corpus(25), FakeMapper(), tmp_path, partition_size=10)
    return FeatureStore(tmp_path)


def test_regions_are_a_read_only_view_of_the_file(store: FeatureStore) -> None:
    image_id = next(image_id for image_id in store.ids if len(store.regions(image_id)))
    regions = store.regions(image_id)
    assert regions.base is not None
    with pytest.raises(ValueError, match="read-only"):
        regions[0, 0] = 1
    assert store["regions"].dtype == np.float16
    assert store["boxes"].dtype == np.float32


@pytest.mark.parametrize("key", [25, -26, [0, 25], [-26], np.array([True]), [0.5]])
def test_items_outside_are_index_errors(store: FeatureStore, key: Any) -> None:
    with pytest.raises(IndexError):
        store.image_vectors()[key]


def test_unknown_names_are_reported_with_the_known_ones(store: FeatureStore) -> None:
    with pytest.raises(DeixisError, match="no array 'depth'; it has boxes, image, regions"):
        store["depth"]
    with pytest.raises(DeixisError, match=r"'nobody' .no such image"):
        store.numbers(["nobody"])


def test_it_travels_to_other_processes_and_threads_by_name_alone(store: FeatureStore) -> None:
    store.image_vectors()[:]
    data = pickle.dumps(store)
    assert len(data) < 500
    copies = [pickle.loads(data) for _ in range(4)]  # noqa: S301
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda copy: [copy.regions(image_id).copy() for image_id in copy.ids], copies))
    for image_id, *versions in zip(store.ids, *read, strict=True):
        for version in versions:
            np.testing.assert_array_equal(version, features_of(image_id.encode())["regions"])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_verify_finds_one_flipped_bit_anywhere(store: FeatureStore) -> None:
    store.verify()
    paths = [store.folder / "ids.json", *sorted((store.folder / "partitions").glob("*.npy"))]
    for path in paths:
        before = path.read_bytes()
        flip(path)
        with pytest.raises(InputError, match="damaged") as fault:
            FeatureStore(store.folder).verify()
        assert fault.value.path == str(path)
        path.write_bytes(before)


@pytest.mark.parametrize("damage", ["cut", "header", "gone", "other array"])
def test_a_damaged_array_is_reported_by_its_file_when_first_used(store: FeatureStore, damage: str) -> None:
    path = store.folder / "partitions" / "00001.image.npy"
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-7])
        case "header":
            path.write_bytes(bytes(len(data)))
        case "gone":
            path.unlink()
        case "other array":
            path.write_bytes(data.replace(b"<f2", b"<i2"))
    damaged = FeatureStore(store.folder)
    np.testing.assert_array_equal(damaged.image_vectors()[0], store.image_vectors()[0])
    with pytest.raises(InputError) as fault:
        damaged.image_vectors()[10]
    assert fault.value.path == str(path)


def test_an_array_of_python_objects_is_never_loaded(store: FeatureStore, tmp_path: Path) -> None:
    """Unpickling runs a stranger's code: a shard that is a pickle is refused even where sizes agree."""
    path = store.folder / "partitions" / "00000.image.npy"
    np.save(path, np.array([{"run": "me"}] * 10, dtype=object), allow_pickle=True)
    sidecar_path = path.with_name("00000.json")
    sidecar = read_json(sidecar_path, Sidecar)
    files = sidecar.files | {path.name: StoredFile(path.stat().st_size, "0" * 64)}
    write_json(sidecar_path, msgspec.structs.replace(sidecar, files=files))
    with pytest.raises(InputError, match="cannot be read as an array"):
        FeatureStore(store.folder).image_vectors()[0]


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "partitions/00000.json"])
def test_damaged_records_are_reported_by_name(store: FeatureStore, name: str) -> None:
    (store.folder / name).write_bytes(b'{"fingerprint": ')
    with pytest.raises(InputError, match="is damaged") as fault:
        FeatureStore(store.folder).image_vectors()[0]
    assert fault.value.path == str(store.folder / name)


def test_parts_of_two_stores_do_not_mix(store: FeatureStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    extract(make_corpus(25), FakeMapper(name="other"), other, partition_size=10)
    (store.folder / "partitions" / "00000.json").write_bytes((other / "partitions" / "00000.json").read_bytes())
    with pytest.raises(InputError, match="does not belong"):
        FeatureStore(store.folder).regions("image 0")


def test_a_folder_that_is_no_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a feature store"):
        FeatureStore(tmp_path)


OPEN_AND_MEASURE = """
import sys, time, resource
import numpy as np
from deixis.features.store import FeatureStore
def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = memory()
times = []
for _ in range(5):
    start = time.perf_counter()
    store = FeatureStore(sys.argv[1])
    times.append(time.perf_counter() - start)
rows = store["regions"][len(store) - 1]
assert rows.shape == (100, 1280) and not rows[:, 0].any()
assert store["regions"].gather([5, 200_000]).values.shape == (200, 1280)
print(min(times), (memory() - before) / (1 << 10 if sys.platform == "linux" else 1 << 20))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs files with holes, and the POSIX memory counter")
def test_opening_100_gigabytes_takes_milliseconds_and_no_memory(tmp_path: Path) -> None:
    """1,570 partitions of 256 images × 100 regions × 1,280 float16, as files with holes."""
    partitions, size = 1570, 256
    arrays = {"regions": ArraySpec((1280,), ragged=True)}
    ids = [f"{number:07}.jpg" for number in range(partitions * size)]
    plan = make_plan(ids, arrays, {"extractor": "test"}, size)
    (tmp_path / "partitions").mkdir()
    write_json(tmp_path / "ids.json", ids)
    write_json(tmp_path / "plan.json", plan)
    write_json(tmp_path / "manifest.json", Manifest(plan.fingerprint, [size] * partitions, {}, [], ""))
    total = 0
    for number in range(partitions):
        path = tmp_path / "partitions" / f"{number:05}.regions.npy"
        with path.open("wb") as stream:
            header = {"descr": "<f2", "fortran_order": False, "shape": (size * 100, 1280)}
            np.lib.format.write_array_header_1_0(stream, header)
            length = stream.tell() + size * 100 * 1280 * 2
            stream.truncate(length)
        total += length
        files = {path.name: StoredFile(length, "")}
        sidecar = Sidecar(plan.fingerprint, number, size, {"regions": [100] * size}, [], files)
        path.with_name(f"{number:05}.json").write_bytes(msgspec.json.encode(sidecar))
    assert total > 100 << 30 or total > 100e9
    command = [sys.executable, "-c", OPEN_AND_MEASURE, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, megabytes = map(float, done.stdout.split())
    assert seconds < 0.1
    assert megabytes < 30


def test_equal_plans_have_equal_fingerprints_whatever_the_order(tmp_path: Path) -> None:
    one = make_plan(["a", "b"], ARRAYS, {"x": (1, 2), "y": {"b": 2, "a": 3}}, 8)
    two = make_plan(["a", "b"], dict(reversed(ARRAYS.items())), {"y": {"a": 3, "b": 2}, "x": (1, 2)}, 8)
    assert one.fingerprint == two.fingerprint
    write_json(tmp_path / "plan.json", one)
    assert read_json(tmp_path / "plan.json", Plan) == one == two
    assert make_plan(["b", "a"], ARRAYS, {}, 8).fingerprint != make_plan(["a", "b"], ARRAYS, {}, 8).fingerprint


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"image": np.zeros(5), "regions": np.zeros((1, 4)), "boxes": np.zeros((1, 4))}, "has the shape"),
        ({"image": np.zeros(6), "regions": np.zeros(4), "boxes": np.zeros((1, 4))}, "has the shape"),
        ({"image": np.zeros(6), "boxes": np.zeros((1, 4))}, "no array 'regions'"),
        ({"image": np.full(6, np.nan), "regions": np.zeros((1, 4)), "boxes": np.zeros((1, 4))}, "no numbers"),
    ],
)
def test_features_that_are_not_as_planned_are_refused(tmp_path: Path, given: Any, problem: str) -> None:
    with pytest.raises(DeixisError, match=f"id 0: .*{problem}|id 0.*{problem}"):
        write_store(tmp_path, [given], 4)


@pytest.mark.parametrize("name", ["", "Image", "../image", "a b"])
def test_array_names_are_safe_file_names(name: str) -> None:
    with pytest.raises(DeixisError, match="is not a valid array name"):
        make_plan(["a"], {name: ArraySpec((1,))}, {}, 8)
