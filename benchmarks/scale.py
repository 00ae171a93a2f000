"""Estimate the cost of 100 million pictures from measured unit costs, with a simulation of the extraction.

    python benchmarks/scale.py       # writes results/benchmarks/scale.json and docs/scale.md

Unit costs come from result files (see `Units`); prices and machines are assumptions, printed with the results. The
extraction is simulated partition by partition, several times: machines fail at random and their partitions are
repeated, the driver fails once. The simulation gives hours, repeated work, and the bottleneck.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deixis.adapters.bundles import packaged_folder, read_bundle
from deixis.features.extraction import PARTITION_SIZE
from deixis.files import write_text
from deixis.search.engine import CANDIDATES

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "results" / "benchmarks"
#: Of the built-in recipe `regions`.
CHANNELS = 1280


class Prices(NamedTuple):
    """Assumed, in US dollars: on-demand list prices of this size are common; put your own here."""

    gpu_node_hour: float = 4.0  # one H200-class GPU, 16 CPU cores
    search_node_hour: float = 1.0  # 16 CPU cores, 128 GB of memory
    terabyte_month: float = 23.0  # object storage


class Cluster(NamedTuple):
    """Assumed: a machine of the extraction, how often it dies, and what the search must bear."""

    processors: int = 16
    mean_days_to_death: float = 30.0
    #: How long until another machine replaces a dead one.
    replacement_minutes: float = 10.0
    store_bytes_per_s: float = 1e9
    picture_bytes: float = 150e3
    queries_per_s: float = 100.0
    search_memory: float = 128e9
    #: Of a search node's memory: the rest is for what grows while an index is built, and for the system.
    usable: float = 0.6
    replicas: int = 2


class Units(NamedTuple):
    """What was measured, and where."""

    #: extraction-gpu.json: machine seconds per picture, from file to store, once it runs; and of its networks alone.
    machine_s: float
    network_s: float
    #: The same file's decoding alone by all CPU cores, of pictures of 320 pixels, and decoding.json: how many times as
    #: long pictures of the assumed bytes take.
    small_decoding_s: float
    times_small: float
    #: settings.json: CPU seconds per picture for its vector alone, by `deixis index`; and decoding.json: how
    #: many more it takes to decode one of the assumed bytes.
    vector_processor_s: float
    larger_processor_s: float
    #: extraction-flickr8k.json: regions per picture. An embedding has 1,280 numbers of half precision, a box four of 32
    #: bits.
    regions: float
    vector_bytes: float
    region_bytes: float
    #: The manifest of `deixis-base`: bytes of a picture's cells, and pictures whose cells a query reads.
    cell_bytes: int
    candidates: int
    #: search_kinds.json: the cheapest index of lists of bytes that finds 99 of 100 of the nearest ten, and over what.
    query_processor_s: float
    query_rows: int
    query_axes: int
    recall: float
    #: serving.json: numbers of an embedding, on disk in half precision; requests per second of the whole server, and
    #: its CPU cores.
    row_numbers: int
    served_per_s: float
    serving_cores: int

    @property
    def decoding_s(self) -> float:
        """Machine seconds per picture of the assumed bytes, of decoding alone."""
        return self.small_decoding_s * self.times_small

    @property
    def stored_bytes(self) -> float:
        """What extraction writes a picture."""
        return self.vector_bytes + self.regions * self.region_bytes


def units() -> Units:
    names = ("extraction-gpu", "extraction-flickr8k", "search_kinds", "serving", "settings", "decoding")
    gpu, whole, kinds, serving, settings, decoding = map(_read, names)
    lists = [kind for kind in kinds["kinds"] if kind["kind"].startswith("IVF") and kind["kind"].endswith("SQ8")]
    good = min((kind for kind in lists if kind["recall@10"] >= 0.99), key=lambda kind: kind["processor_ms"])
    rates = gpu["by_stage"]["pictures_per_second"]
    larger = decoding["index"]["processor_ms"]
    base = read_bundle(packaged_folder()).manifest
    return Units(
        machine_s=1 / gpu["by_stage"]["pictures_per_second_between"],
        network_s=1 / rates["networks alone"],
        small_decoding_s=1 / rates["decoding alone"],
        times_small=decoding["regions"]["times_as_long"],
        vector_processor_s=settings["settings"]["deixis-base"]["processor_ms_per_picture"] / 1000,
        larger_processor_s=(larger["large"] - larger["small"]) / 1000,
        regions=whole["rows"]["regions"] / whole["rows"]["image"],
        vector_bytes=2.0 * CHANNELS,
        region_bytes=2.0 * CHANNELS + 16,
        cell_bytes=base.cells * base.cell_dim,
        candidates=CANDIDATES,
        query_processor_s=good["processor_ms"] / 1000,
        query_rows=kinds["rows"],
        query_axes=kinds["axes"],
        recall=good["recall@10"],
        row_numbers=serving["dim"],
        served_per_s=serving["phases"]["without_pause"]["search"]["per_second"],
        serving_cores=serving["cores"],
    )


def _read(name: str) -> Any:
    return json.loads((BENCHMARKS / f"{name}.json").read_text("utf-8"))


class Simulated(NamedTuple):
    """Hours, partitions and deaths are means over several runs."""

    hours: float
    repeated_partitions: float
    deaths: float
    network_busy: float
    bound_by: str


#: How often a run is simulated.
TIMES = 8


def simulate(pictures: int, nodes: int, units: Units, cluster: Cluster, times: int = TIMES) -> Simulated:
    """Partitions through machines of one GPU that die at random.

    A machine decodes while its networks run, so the longer of both is its pace, unless the file system is slower.
    A machine that dies loses the partition it maps and the one it writes, and is replaced. Half-way the driver dies:
    everything under way is lost, and begun again five minutes later.
    """
    partitions = -(-pictures // PARTITION_SIZE)
    paces = {
        "networks": units.machine_s,
        "decoding": units.decoding_s,
        # Shared by all: pictures are read from it, and the store is written to it.
        "the file system": nodes * (cluster.picture_bytes + units.stored_bytes) / cluster.store_bytes_per_s,
    }
    bound_by = max(paces, key=lambda name: paces[name])
    pace = PARTITION_SIZE * paces[bound_by]
    runs = [_simulated(partitions, nodes, pace, cluster, np.random.default_rng(seed)) for seed in range(times)]
    hours, repeated, deaths = np.mean(runs, axis=0).tolist()
    busy = round(PARTITION_SIZE * units.network_s / pace, 2)
    return Simulated(round(hours, 1), round(repeated, 1), round(deaths, 1), busy, bound_by)


def _simulated(
    partitions: int, nodes: int, pace: float, cluster: Cluster, random: np.random.Generator
) -> tuple[float, int, int]:
    """Hours, partitions made again and deaths of one run; `pace` is a machine's seconds a partition."""
    mean = cluster.mean_days_to_death * 86400
    free = [(0.0, node) for node in range(nodes)]
    dies = random.exponential(mean, nodes)
    done = repeated = deaths = 0
    driver_died = False
    while done < partitions:
        at, node = heapq.heappop(free)
        end = at + pace
        if end >= dies[node]:
            # The one that it maps was not counted, the one that it writes was.
            deaths, repeated, done = deaths + 1, repeated + 2, max(0, done - 1)
            back = dies[node] + 60 * cluster.replacement_minutes
            dies[node] = back + random.exponential(mean)
            heapq.heappush(free, (back, node))
            continue
        done += 1
        heapq.heappush(free, (end, node))
        if not driver_died and done >= partitions // 2:
            # What machines map and write was counted when they began.
            driver_died, repeated, done = True, repeated + 2 * nodes, max(0, done - 2 * nodes)
            free = [(at + 300, node) for _, node in free]
            heapq.heapify(free)
    return max(at for at, _ in free) / 3600, repeated, deaths


class Searching(NamedTuple):
    numbers: int
    gigabytes: float
    shards: int
    replicas: int
    processor_ms_a_query_and_shard: float
    queries_per_s_a_replica: float
    dollars_a_month: int


def search(pictures: int, numbers: int, units: Units, cluster: Cluster, prices: Prices) -> Searching:
    """What rows of so many numbers, of a byte each, take in Milvus; a query looks into every shard of one replica."""
    searched = pictures * (numbers + 8)
    shards = math.ceil(searched / (cluster.search_memory * cluster.usable))
    # With √n lists of a shard's n rows, what a query looks through grows as √n, and in proportion to a row's numbers.
    longer = math.sqrt(pictures / shards / units.query_rows) * numbers / units.query_axes
    each = units.query_processor_s * longer
    a_replica = cluster.processors / each
    replicas = max(cluster.replicas, math.ceil(cluster.queries_per_s / a_replica))
    dollars = round(shards * replicas * 730 * prices.search_node_hour)
    return Searching(
        numbers, round(searched / 1e9, 1), shards, replicas, round(1000 * each, 2), round(a_replica), dollars
    )


def document(estimate: dict[str, Any]) -> str:
    measured, cluster, prices = estimate["measured"], estimate["assumed"]["cluster"], estimate["assumed"]["prices"]
    runs = [
        f"| {run['nodes']} | {run['hours']:,} | {run['dollars']:,} | {run['bound_by']} | {run['network_busy']:.0%} "
        f"| {run['deaths']} | {run['repeated_partitions']} |"
        for run in estimate["extraction"]
    ]
    rows = [
        f"| {way['numbers']:,} | {way['gigabytes']:,} GB | {way['shards']} | {way['replicas']} "
        f"| {way['processor_ms_a_query_and_shard']} | {way['queries_per_s_a_replica']:,} | {way['dollars_a_month']:,} |"
        for way in estimate["search"]
    ]
    store, encoders = (
        estimate["store_terabytes"],
        math.ceil(cluster["queries_per_s"] / (measured["served_per_s"] / measured["serving_cores"])),
    )
    return f"""# {estimate["pictures"]:,} pictures

What a collection of this size would cost, computed by `python benchmarks/scale.py` from measured unit costs and assumed
prices, with a simulation of failures. It is an estimate, not a run. Change the assumptions in the script to yours.

## What was run

{_run(estimate["run"])}

Everything below is arithmetic from measured unit costs.

## Unit costs and assumptions

Measured, in `results/benchmarks/`:

- `extraction-gpu.json`: a machine with one H200 and 16 CPU cores extracts {1 / measured["machine_s"]:.0f} pictures of 320 pixels per second with
  100 regions each after start-up; its networks alone {1 / measured["network_s"]:.0f}, decoding alone {1 / measured["small_decoding_s"]:.0f}.
- `decoding.json`: pictures of about 150 kB take {measured["times_small"]:.2f} × as long to decode (on another CPU), which leaves {1 / estimate["decoding_s"]:.0f} per second.
- A picture's vector has {measured["vector_bytes"]:,.0f} bytes, a region with its box {measured["region_bytes"]:,.0f}.
- `search_kinds.json`: an IVF index with one byte per dimension that finds 99% of the ten nearest answers in {1000 * measured["query_processor_s"]:.2f} ms of
  CPU time over {measured["query_rows"]:,} vectors of {measured["query_axes"]} dimensions.
- `serving.json`: the whole server, including text encoding, answers {measured["served_per_s"]:.0f} queries per second on {measured["serving_cores"]} cores.

Assumed:

- ${prices["gpu_node_hour"]:g} per hour for such a machine, ${prices["search_node_hour"]:g} for one with 16 cores and {cluster["search_memory"] / 1e9:.0f} GB without a GPU, ${prices["terabyte_month"]:g} per terabyte and month;
- a machine fails every {cluster["mean_days_to_death"]:.0f} days and is replaced in {cluster["replacement_minutes"]:.0f} minutes;
- pictures of {cluster["picture_bytes"] / 1e3:.0f} kB on a file system of {cluster["store_bytes_per_s"] / 1e9:g} GB per second, to which the store is also written;
- decoding runs beside the networks, so the slower of the two sets the pace;
- {cluster["queries_per_s"]:.0f} queries per second, and two replicas so that one machine may fail.

## Extraction

| machines | hours | dollars | limited by | GPU busy | failures | partitions repeated |
|---:|---:|---:|---|---:|---:|---:|
{chr(10).join(runs)}

The rates are those of the local engine on one machine. `--engine ray` distributes the same partitions of 256 pictures
({-(-estimate["pictures"] // PARTITION_SIZE):,} in all). Ray was not timed with a GPU; on {estimate["ray"]["cores"]} cores it has {estimate["ray"]["regions"]:.2f} times the local rate with regions and {estimate["ray"]["image"]:.2f} times
with vectors alone (`engines.json`), after {estimate["ray"]["start_s"]:.0f} s of start-up. In every row the driver fails once, half-way; failures and
repeated partitions are means of {TIMES} simulations.

The store has {store["vectors"]:.2f} TB of vectors and {store["regions"]:.1f} TB of regions, the index {store["cells"]:.2f} TB of cells: ${estimate["store_dollars_a_month"]:,} per month.

Search needs only vectors and cells. With `deixis-base` they take {1000 * measured["vector_processor_s"]:.0f} ms of CPU time per picture of 320 pixels
(`settings.json`) and {1000 * measured["larger_processor_s"]:.0f} ms more to decode a picture of the assumed size (`decoding.json`): {estimate["vectors_alone"]["processor_hours"]:,} CPU hours. The file
system needs {estimate["vectors_alone"]["hours"]:,} hours to deliver the pictures; {estimate["vectors_alone"]["machines"]} machines without a GPU are as fast, for ${estimate["vectors_alone"]["dollars"]:,}. This
makes one index per machine; one index over all has not been tried.

## Search

An IVF index with one byte per dimension in each shard. The times are those of FAISS on one machine.

| dimensions | in memory | shards | replicas | CPU ms per query and shard | queries/s per replica | dollars per month |
|---:|---:|---:|---:|---:|---:|---:|
{chr(10).join(rows)}

Times are scaled from {measured["query_rows"]:,} vectors: with the square root of the vectors of a shard, and in proportion to the
dimensions. The first row has as many dimensions as were measured, the second as many as `deixis-base`. Recall was
measured at {measured["query_rows"]:,} vectors and may be lower here. Encoding the queries takes {encoders} core{"s" if encoders > 1 else ""} at {cluster["queries_per_s"]:.0f} queries per second.

## What becomes the bottleneck first

1. **Writing the regions.** The file system reads {cluster["picture_bytes"] / 1e3:.0f} kB and writes {estimate["stored_bytes"] / 1e3:.0f} kB per picture, nearly all of it regions. From
   {estimate["machines_that_wait"]} machines on, more machines save no time. Vectors alone are a hundredth of that.
2. **Decoding.** The cores of a machine decode {1 / estimate["decoding_s"]:.0f} such pictures per second, its networks could take {1 / measured["network_s"]:.0f}. Readers on other
   machines, which the Ray engine allows, have not been measured beside a GPU, nor has a run on pictures of this size.
3. **One corpus in one process.** The driver holds the records of all images, and a store has one folder of
   {5 * -(-estimate["pictures"] // PARTITION_SIZE):,} files. Split such a collection into corpora of a few million pictures.
4. **Reading cells.** A query re-ranks {measured["candidates"]} pictures by their cells, {measured["candidates"] * measured["cell_bytes"] / 1e6:.1f} MB in as many places: {measured["candidates"] * cluster["queries_per_s"]:,.0f} reads and {measured["candidates"] * measured["cell_bytes"] * cluster["queries_per_s"] / 1e9:.1f} GB
   per second at {cluster["queries_per_s"]:.0f} queries per second. Keep the cells in memory or on several fast disks, or search by embeddings alone.
5. **Memory for search.** Vectors of {measured["row_numbers"]:,} dimensions in float32 would take {estimate["pictures"] * 4 * measured["row_numbers"] / 1e9:,.0f} GB; one byte per dimension
   keeps the number of shards small.
"""  # noqa: E501


def _run(run: dict[str, Any]) -> str:
    """What was tried at its real size."""
    milvus, crowd = run["milvus"], run["annotation"]
    stores = [
        f"| {name} | {milvus['built_s'][name]:.0f} s | {100 * milvus['recall'][name]:.1f}% "
        f"| {times['p50_ms']:.0f} | {times['p99_ms']:.0f} | {milvus['queries_per_s'][name]:,.0f} |"
        for name, times in milvus["latency"].items()
    ]
    return f"""**Milvus beside FAISS** (`milvus.json`): {milvus["embeddings"]:,} embeddings of {milvus["dim"]} dimensions ({milvus["real"]:,} of pictures, the others
mixtures of two of them with noise, so recall on a million photos may differ), one Milvus server and the client on
{milvus["cores"]} cores of a machine on which other work ran (load average {milvus["load_average"]:.0f}), so the times compare the stores and say little of a quiet
machine. The server was killed half-way through filling, when it counted {milvus["before_kill"]:,} embeddings, and started again: it had {milvus["after_restart"]:,}
and answered after {milvus["answers_again_s"]:.0f} s, the next `deixis index` sent the rest, and every id was there exactly once. Filling took {milvus["filled_s"]:.0f} s with
the restart, and Milvus had built its graph after {milvus["indexed_s"]:.0f} s.

| store | built in | recall@10 | ms per query, median | p99 | queries/s of 4 clients |
|---|---:|---:|---:|---:|---:|
{chr(10).join(stores)}

Queries are captions. Milvus searches a graph (HNSW) with 128 candidates, FAISS lists of which it reads 64, and compares the best exactly.

**Annotation on PostgreSQL** (`annotation-postgresql.json`): {crowd["workers"]} simulated workers at once, {crowd["seconds_per_answer"]:.0f} s per answer on average, one server
process on {crowd["cores"]} cores (load average {crowd["load"]["before"]:.0f} to {crowd["load"]["after"]:.0f}). The server was killed {crowd["kills"]} times with SIGKILL. Of {crowd["acknowledged"]:,} acknowledged answers {crowd["lost"]} were
lost, {crowd["changed"]} changed and {crowd["twice"]} counted twice. Undisturbed, an answer took {crowd["p50"]:.0f} ms in the median and {crowd["p99"] / 1000:.1f} s at p99, while the server was killed and started {crowd["p99_kills"] / 1000:.1f} s."""  # noqa: E501


def tried() -> dict[str, Any]:
    """What was run at its real size: a vector store and a crowd of annotators."""
    milvus, crowd = _read("milvus"), _read("annotation-postgresql")
    built, answers = milvus["build_s"]["Milvus"], crowd["milliseconds"]["undisturbed"]["answer"]
    assert built["killed_half_way"]["every_id_exactly_once"], "milvus.json: embeddings were lost"
    return {
        "milvus": {
            "embeddings": milvus["embeddings"]["count"],
            "dim": milvus["embeddings"]["dim"],
            "real": milvus["embeddings"]["of_real_pictures"],
            "recall": milvus["recall@10"],
            "latency": milvus["latency_one_query"],
            "queries_per_s": milvus["queries_per_s_of_4_clients"],
            "built_s": {**milvus["build_s"], "Milvus": built["indexed_s"]},
            "filled_s": built["filled_s"],
            "indexed_s": built["indexed_s"],
            "answers_again_s": built["killed_half_way"]["answers_again_s"],
            "before_kill": built["killed_half_way"]["embeddings_before_kill"],
            "after_restart": built["killed_half_way"]["embeddings_after_restart"],
            "load_average": milvus["load_average"],
            "cores": milvus["cores"],
        },
        "annotation": {
            **{name: crowd[name] for name in ("workers", "seconds_per_answer", "kills", "cores")},
            **{name: crowd["counts"][name] for name in ("acknowledged", "lost", "changed", "twice")},
            "load": crowd["load_average"],
            "p50": answers["worker_p50"],
            "p99": answers["worker_p99"],
            "p99_kills": crowd["milliseconds"]["kills"]["answer"]["worker_p99"],
        },
    }


def record(pictures: int, nodes: list[int]) -> dict[str, Any]:
    """The whole estimate, from the current result files."""
    measured, cluster, prices = units(), Cluster(), Prices()
    sizes = {
        "vectors": measured.vector_bytes,
        "regions": measured.regions * measured.region_bytes,
        "cells": measured.cell_bytes,
    }
    store = {name: pictures * size / 1e12 for name, size in sizes.items()}
    engines = _read("engines")
    simulated = [(count, simulate(pictures, count, measured, cluster)) for count in nodes]
    ways = [search(pictures, axes, measured, cluster, prices) for axes in (measured.query_axes, measured.row_numbers)]
    processor_hours = pictures * (measured.vector_processor_s + measured.larger_processor_s) / 3600
    moved = pictures * (cluster.picture_bytes + 2 * measured.row_numbers + measured.cell_bytes)
    hours = moved / cluster.store_bytes_per_s / 3600
    machine_s = max(measured.machine_s, measured.decoding_s)
    moved_by_extraction = cluster.picture_bytes + measured.stored_bytes
    # As many as the file system has work for.
    machines = math.ceil(processor_hours / cluster.processors / hours)
    return {
        "benchmark": "scale",
        "command": "python benchmarks/scale.py",
        "pictures": pictures,
        "run": tried(),
        "measured": measured._asdict(),
        "assumed": {"prices": prices._asdict(), "cluster": cluster._asdict()},
        "extraction": [
            {"nodes": count, **run._asdict(), "dollars": round(count * run.hours * prices.gpu_node_hour)}
            for count, run in simulated
        ],
        "ray": {
            "cores": engines["cores"],
            "start_s": max(
                engine["ray"]["seconds"] - engines["pictures"] / engine["ray"]["pictures_per_second"]
                for engine in engines["features"].values()
            ),
            **{
                name: found["ray"]["pictures_per_second"] / found["local"]["pictures_per_second"]
                for name, found in engines["features"].items()
            },
        },
        "vectors_alone": {
            "processor_hours": round(processor_hours),
            "machines": machines,
            "hours": round(hours, 1),
            "dollars": round(machines * hours * prices.search_node_hour),
        },
        "decoding_s": measured.decoding_s,
        "stored_bytes": measured.stored_bytes,
        "machines_that_wait": math.ceil(cluster.store_bytes_per_s * machine_s / moved_by_extraction),
        "store_terabytes": store,
        "store_dollars_a_month": round(sum(store.values()) * prices.terabyte_month),
        "search": [way._asdict() for way in ways],
    }


#: How many pictures, and on how many machines they are extracted.
PICTURES, NODES = 100_000_000, [1, 2, 4, 8, 32, 128]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=PICTURES)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    arguments = parser.parse_args()
    estimate = record(arguments.pictures, arguments.nodes)
    write_text(BENCHMARKS / "scale.json", json.dumps(estimate, indent=2) + "\n")
    write_text(ROOT / "docs" / "scale.md", document(estimate))


if __name__ == "__main__":
    main()
