"""Benchmarks promise: documents say what the result files say, and the simulated cluster obeys its own arithmetic."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from deixis.adapters.bundles import thresholds_hash
from tests.search.fakes import ColourModel

ROOT = Path(__file__).parents[1]


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_document_of_scale_says_what_the_result_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = script("scale", monkeypatch)
    record = scale.record(scale.PICTURES, scale.NODES)
    assert json.loads((scale.BENCHMARKS / "scale.json").read_text("utf-8")) == record, "run python benchmarks/scale.py"
    assert (ROOT / "docs" / "scale.md").read_text("utf-8") == scale.document(record), "run python benchmarks/scale.py"


def test_the_pages_about_performance_say_what_the_result_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    script("performance", monkeypatch)
    pages = script("performance_pages", monkeypatch).pages()
    stale = [name for name, text in pages.items() if (ROOT / "docs" / name).read_text("utf-8") != text]
    assert stale == [], "run python benchmarks/performance.py docs"
    assert {*pages} == {path.name for path in ROOT.glob("docs/performance*.md")}


def test_a_step_that_ends_at_another_loss_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = script("figures", monkeypatch)
    ways = {name: {"step_ms": 2.0, "last_loss": loss} for name, loss in (("eager", 0.0078), ("graph", 0.0022))}
    found = {"steps_of_one_size": {"ways": ways, "floor_s": 0.001}}
    row = next(row for row in figures.FLOORS if row.what.endswith("one CUDA graph"))
    with pytest.raises(KeyError, match="another loss"):
        row.seconds(found)
    ways["graph"]["last_loss"] = 0.0080
    assert row.seconds(found) == 0.002


def test_a_ratio_beyond_its_limit_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, performance = script("figures", monkeypatch), script("performance", monkeypatch)
    assert [ratio.what for ratio, result, _ in performance.measured() if not ratio.holds(result)] == []
    by_file = {ratio.file: ratio for ratio in figures.RATIOS if ratio.at_least is not None}
    slow = {"against_a_plain_loop": {"ratio_to_plain_loop": 1.59, "ratio_to_a_pass_a_box": 50.0}}
    assert not by_file["extraction"].holds(slow)
    assert by_file["extraction"].limit(slow) == "≥ 1.6"
    monkeypatch.setattr(performance, "benchmarks", lambda data: iter(()))
    assert performance.run() == 0
    monkeypatch.setattr(performance, "read", lambda name: slow if name == "extraction" else None)
    assert performance.run() == 1


def test_every_benchmark_is_run_or_said_to_need_what_is_made_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    performance = script("performance", monkeypatch)
    listed = {benchmark.script for benchmark in performance.benchmarks(ROOT)} | set(performance.BY_HAND)
    helpers = {
        "performance.py",
        "performance_pages.py",
        "choosing.py",
        "figures.py",
        "plain_loop.py",
        "roofline.py",
        "reporting.py",
    }
    helpers |= {"photo_collections.py", "relevance.py", "without.py", "presence.py", "with_example.py"}
    assert listed | helpers == {path.name for path in (ROOT / "benchmarks").glob("*.py")}


def test_a_measurement_of_search_names_the_thresholds_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo_search = script("photo_search", monkeypatch)
    monkeypatch.setattr(photo_search, "MEASUREMENTS", {"relevance": lambda trial: {"f1": 0.5}})
    named = []
    for without in (0.0, 0.1):
        model = ColourModel()
        model.relevance = msgspec.structs.replace(model.relevance, without=without)
        monkeypatch.setattr(photo_search, "Trial", lambda *options, model=model: SimpleNamespace(model=model))
        out = tmp_path / str(without)
        out.mkdir()
        arguments = ["flickr8k", "coco_mini", "--work", str(tmp_path), "--out", str(out), "--only", "relevance"]
        monkeypatch.setattr("sys.argv", ["photo_search.py", *arguments])
        photo_search.main()
        record = json.loads((out / "relevance.json").read_text("utf-8"))
        assert record["model"] == str(model.identity)
        assert record["thresholds"] == thresholds_hash(model.relevance)
        named.append(record["thresholds"])
    assert len({*named}) == 2


def test_a_cluster_that_nobody_dies_in_takes_what_its_parts_add_up_to(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = script("scale", monkeypatch)
    units = scale.Units(**dict.fromkeys(scale.Units._fields, 1.0))
    units = units._replace(machine_s=0.01, network_s=0.004, small_decoding_s=0.0)
    immortal = scale.Cluster(mean_days_to_death=1e9, store_bytes_per_s=1e15)
    run = scale.simulate(256_000, 10, units, immortal)
    # A hundred partitions a machine of 2.56 s each, and five minutes for the driver's death.
    assert run.hours == pytest.approx((100 * 2.56 + 300) / 3600, abs=0.05)
    assert (run.deaths, run.repeated_partitions, run.network_busy) == (0, 20, 0.4)
    assert run.bound_by == "networks"
    larger = scale.simulate(256_000, 10, units._replace(small_decoding_s=0.01, times_small=2.5), immortal)
    assert larger.bound_by == "decoding"
    assert larger.hours == pytest.approx((100 * 6.4 + 300) / 3600, abs=0.05)


def test_machines_that_die_cost_time_and_a_file_system_bounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = script("scale", monkeypatch)
    units = scale.Units(**dict.fromkeys(scale.Units._fields, 1.0))
    units = units._replace(machine_s=0.01, network_s=0.004, small_decoding_s=0.0)
    well, ill = (scale.Cluster(mean_days_to_death=days, store_bytes_per_s=1e15) for days in (1e9, 0.05))
    healthy, dying = (scale.simulate(10_000_000, 8, units, cluster) for cluster in (well, ill))
    assert dying.deaths > 10
    assert dying.repeated_partitions == pytest.approx(2 * dying.deaths + 16, abs=0.2)
    assert dying.hours > healthy.hours
    slow = scale.Cluster(mean_days_to_death=1e9, store_bytes_per_s=1e8)
    few, many = (scale.simulate(1_000_000, nodes, units, slow) for nodes in (8, 64))
    assert few.bound_by == many.bound_by == "the file system"
    assert many.hours == pytest.approx(few.hours, rel=0.05)


def test_a_file_system_is_charged_with_what_is_written_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = script("scale", monkeypatch)
    units = scale.Units(**dict.fromkeys(scale.Units._fields, 0.0))
    units = units._replace(machine_s=0.002, vector_bytes=2560.0, regions=100.0, region_bytes=2576.0)
    slow = scale.Cluster(mean_days_to_death=1e9, store_bytes_per_s=1e9, picture_bytes=150e3)
    few, many = (scale.simulate(10_000_000, nodes, units, slow) for nodes in (4, 64))
    assert (few.bound_by, many.bound_by) == ("networks", "the file system")
    # 4.1 TB at 1 GB a second, of which 1.5 are read, and five minutes for the driver's death.
    assert many.hours == pytest.approx((10_000_000 * (150e3 + 2560 + 100 * 2576) / 1e9 + 300) / 3600, abs=0.06)
    report = scale.record(scale.PICTURES, [1])
    assumed, alone = scale.Cluster(), report["vectors_alone"]
    read = scale.PICTURES * assumed.picture_bytes / assumed.store_bytes_per_s / 3600
    assert alone["hours"] >= read, "nobody indexes sooner than the pictures can be read"
    assert alone["machines"] * assumed.processors * alone["hours"] >= 0.98 * alone["processor_hours"]


@pytest.mark.parametrize(("steps", "burst"), [(10, 10), (25, 25), (60, 25)])
def test_steps_of_epochs_of_any_length_are_looked_at(steps: int, burst: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = script("launches", monkeypatch)
    monkeypatch.setitem(launches.READ_EVERY, "cpu", 25)
    looks = launches.Looks(launches.torch.device("cpu"), first=1, warm=1)

    def epochs() -> None:
        for epoch in range(1, 9):
            for step in range(1, steps + 1):
                looks(launches.Progress(epoch, 8, step, steps, 0.5))
            looks(launches.Progress(epoch, 8, steps, steps, 0.5, object()))

    with pytest.raises(launches.Enough):
        epochs()
    assert looks.steps == burst
    assert looks.step_ms >= 0
