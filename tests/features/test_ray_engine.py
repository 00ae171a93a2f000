"""Extraction on a Ray cluster promises the bytes of one machine, whoever dies on the way, and repeats little."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deixis.errors import DeixisError
from deixis.features.extraction import extract
from deixis.features.ray_engine import extract_on_ray
from deixis.features.store import FeatureStore
from tests.features.fakes import FakeMaker, FakeMapper, folder_bytes, make_corpus

ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
pytest.importorskip("ray.data", reason="Ray Data is not installed (extra `ray`)")

ROOT = Path(__file__).parents[2]
#: Ray warns of its own dependencies.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]
IMAGES, SIZE = 96, 4

#: A driver that tells how many images are done, to be killed.
DRIVER = """
import sys
from deixis.features.ray_engine import extract_on_ray
from tests.features.fakes import FakeMaker, make_corpus

if __name__ == "__main__":
    out, address = sys.argv[1:]
    extract_on_ray(
        make_corpus(96, broken=[3]), FakeMaker(0.3), out, address=address, partition_size=4,
        progress=lambda done, total: print(done, flush=True),
    )
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines of one CPU each, and a head node; each has processes of its own."""
    from ray.cluster_utils import Cluster

    memory = 100 << 20
    with pytest.MonkeyPatch.context() as patch:
        # Workers import this folder, too.
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_DEDUP_LOGS", "0")
        # A machine that is gone is missed after some seconds, not half a minute.
        missed = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
        head = {
            "num_cpus": 0,
            "object_store_memory": memory,
            "include_dashboard": False,
            "_system_config": missed | {"health_check_timeout_ms": 3000, "health_check_failure_threshold": 3},
        }
        started = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            started.add_node(num_cpus=1, object_store_memory=memory)
        ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
        yield started
        ray.shutdown()
        started.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store that one machine makes."""
    out = tmp_path_factory.mktemp("whole") / "store"
    extract(make_corpus(IMAGES, broken=[3]), FakeMapper(), out, partition_size=SIZE)
    return folder_bytes(out)


@pytest.mark.slow
def test_a_driver_that_was_killed_is_continued_and_repeats_only_what_was_not_finished(
    tmp_path: Path, cluster: Any, whole: dict[str, bytes]
) -> None:
    out = tmp_path / "store"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(out), cluster.address], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    printed = next(line for line in driver.stdout if int(line) >= 16)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    assert int(printed) < IMAGES
    report = extract_on_ray(make_corpus(IMAGES, broken=[3]), FakeMaker(), out, partition_size=SIZE)
    assert report.found >= int(printed)
    assert 0 < report.done == IMAGES - report.found
    assert folder_bytes(out) == whole


def test_a_fault_of_the_mapper_is_reported_in_one_line(tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(DeixisError, match=r"array 'image' .*too large for float16"):
        extract_on_ray(make_corpus(8), FakeMaker(fails=True), tmp_path / "store", partition_size=SIZE)


def test_a_worker_that_cannot_begin_says_why(tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(DeixisError, match=r"a worker could not start: .*/somewhere/weights: is not there"):
        extract_on_ray(make_corpus(8), FakeMaker(weights=False), tmp_path / "store", partition_size=SIZE)


def test_a_cluster_without_a_gpu_says_so(tmp_path: Path, cluster: Any) -> None:
    with pytest.raises(DeixisError, match="no machine of the Ray cluster has a GPU; use --device cpu"):
        extract_on_ray(make_corpus(8), FakeMaker(), tmp_path / "store", partition_size=SIZE, gpu=True)


@pytest.mark.slow
def test_what_ends_every_worker_is_given_up_when_all_else_is_done(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.data.DataContext.get_current(), "execution_no_progress_timeout_s", 20)
    corpus, out = make_corpus(IMAGES), tmp_path / "store"
    with pytest.raises(DeixisError, match=r"the last partitions are not finished.*run the same command again"):
        extract_on_ray(corpus, FakeMaker(deadly=b"image 5"), out, partition_size=SIZE)
    assert extract_on_ray(corpus, FakeMaker(), out, partition_size=SIZE).done == SIZE


def test_a_worker_that_is_killed_in_the_middle_changes_no_byte(
    tmp_path: Path, cluster: Any, whole: dict[str, bytes]
) -> None:
    out, fatal = tmp_path / "store", tmp_path / "fatal"
    fatal.touch()
    report = extract_on_ray(make_corpus(IMAGES, broken=[3]), FakeMaker(fatal=str(fatal)), out, partition_size=SIZE)
    assert not fatal.exists(), "nobody died"
    assert (report.done, report.found) == (IMAGES, 0)
    assert folder_bytes(out) == whole


@pytest.mark.slow
def test_a_machine_that_is_killed_in_the_middle_changes_no_byte(
    tmp_path: Path, cluster: Any, whole: dict[str, bytes]
) -> None:
    """Last, since the machine stays away."""
    out = tmp_path / "store"
    # Not the one that directs, nor the one that this driver speaks through.
    here = ray.get_runtime_context().get_node_id()
    machine = next(node for node in cluster.worker_nodes if node.unique_id != here and node.node_id != here)
    steps: list[int] = []

    def progress(done: int, total: int) -> None:
        if done >= 16 and machine in cluster.list_all_nodes():
            cluster.remove_node(machine, allow_graceful=False)
        steps.append(done)

    corpus = make_corpus(IMAGES, broken=[3])
    report = extract_on_ray(corpus, FakeMaker(0.3), out, partition_size=SIZE, progress=progress)
    assert machine not in cluster.list_all_nodes()
    assert (report.done, report.found) == (IMAGES, 0)
    assert steps == sorted(steps)
    assert steps[-1] == IMAGES
    assert folder_bytes(out) == whole
    FeatureStore(out).verify()
    # What is finished is left as it is, and no cluster is needed to see that.
    assert extract_on_ray(corpus, FakeMaker(), out, partition_size=SIZE).done == 0
