"""Milvus beside FAISS over a million embeddings: build time, recall, latency, throughput, and a killed server.

    python -m venv server && server/bin/pip install 'milvus==2.3.5' 'setuptools<81' 'marshmallow<4'
    python benchmarks/milvus_beside_faiss.py PICTURES CORPUS --server server/bin/python

The pictures of the folder PICTURES are embedded with `deixis-base`. A million embeddings are made from these: each is a
point between a picture and one of its ten nearest pictures, with noise. Queries are captions of the CORPUS' test
pictures. PICTURES and CORPUS may also be files of embeddings (`.npy`), for a machine without the pictures. The index is
written as `deixis index` writes it and moved to a Milvus server of its own, which is killed (SIGKILL) half-way and
started again; then the move is repeated, as a second `deixis index` would. Afterwards the server must have every id
exactly once. The result file grows step by step, so that a run that is cut off leaves what it measured.

Latency is measured by turns in one run, so that other work on the machine slows all stores alike. Throughput is that of
several threads that each send one query at a time.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
from numpy.typing import NDArray
from reporting import write_report

from deixis.adapters.search_model import SearchModel
from deixis.corpus import open_corpus
from deixis.errors import DeixisError
from deixis.loading import load_search_model
from deixis.search.catalogue import Catalogue
from deixis.search.stores.approximate import ApproximateIndex, sample_size
from deixis.search.stores.exact import ExactIndex, Nearest
from deixis.search.stores.milvus import MilvusIndex
from deixis.search.stores.vector_stores import bring_store_up_to_date, choose_store
from deixis.vision.reading import decode_picture
from search import WithoutCells, by_turns, captions_of, write_index

COUNT, BATCH, NEIGHBOURS, BLOCK = 10, 32, 10, 20_000
CLIENTS = 4
#: How often the move is repeated after the restart, should the server be overloaded, and seconds between.
ATTEMPTS, PAUSE = 5, 10.0

SERVER = """
import signal, socket, sys, time
from milvus import MilvusServerConfig, default_server

def bound(config, port):
    # As the server itself binds it: a port whose connections are only waiting to be forgotten is free.
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError:
        listening.close()
        return None
    return listening

MilvusServerConfig.try_bind_port = bound
default_server.set_base_dir(sys.argv[1])
default_server.wait_for_started = False
started = False
while not started:
    # It gives up while the threads of a killed one still hold its ports: started again, as a service is.
    while (free := bound(None, int(sys.argv[2]))) is None:
        time.sleep(0.2)
    free.close()
    default_server.listen_port = int(sys.argv[2])
    default_server.start()
    while not started and default_server.server_proc.poll() is None:
        try:
            default_server.wait_started(timeout=2000)
            started = default_server.server_proc.poll() is None
        except TimeoutError:
            pass
print(default_server.server_proc.pid, default_server.listen_port, flush=True)
signal.pause()
"""

Embeddings = NDArray[np.float32]


def free_port() -> int:
    """A port that no outgoing connection takes while the server is down."""
    for port in range(20_530, 30_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise SystemExit("no free port")


class Server:
    """A Milvus server of its own, with its data in a folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._port = free_port()
        self.address = f"milvus://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        command = [str(self._python), "-c", SERVER, str(self._folder), str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._pid, port = map(int, self._process.stdout.readline().split())
        assert port == self._port, f"Milvus listens at {port}, not at {self._port}"

    def kill(self) -> None:
        for pid in (self._process.pid, self._pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()


def picture_embeddings(folder: Path, model: SearchModel, count: int) -> Embeddings:
    if folder.suffix == ".npy":
        return saved_embeddings(folder, count)
    files = sorted(path for path in folder.iterdir() if path.suffix == ".jpg")[:count]
    parts = []
    for start in range(0, len(files), BATCH):
        pictures = [decode_picture(path.read_bytes(), name=path.name) for path in files[start : start + BATCH]]
        parts.append(model.embed_prepared([model.prepare(picture) for picture in pictures]).embeddings)
        print(f"embedded {start + len(pictures)} of {len(files)} pictures", end="\r", flush=True)
    return np.concatenate(parts).astype(np.float32)


def caption_embeddings(corpus: Path, model: SearchModel, count: int) -> Embeddings:
    if corpus.suffix == ".npy":
        return saved_embeddings(corpus, count)
    return np.asarray(model.embed_queries(captions_of([open_corpus(corpus)], count)).embeddings, np.float32)


def saved_embeddings(file: Path, count: int) -> Embeddings:
    return np.asarray(np.load(file, allow_pickle=False)[:count], np.float32)


def expand(real: Embeddings, count: int) -> NDArray[np.float16]:
    """`count` unit vectors between real embeddings and their neighbours, with noise; the real ones come first."""
    random = np.random.default_rng(0)
    nearest = np.argsort(-(real @ real.T), axis=1)[:, 1 : NEIGHBOURS + 1]
    spread = np.linalg.norm(real - real[nearest[:, 0]], axis=1).mean() / np.sqrt(real.shape[1])
    made = np.empty((count, real.shape[1]), np.float16)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        first = random.integers(len(real), size=size)
        second = nearest[first, random.integers(NEIGHBOURS, size=size)]
        weight = random.random((size, 1), np.float32)
        points = (1 - weight) * real[first] + weight * real[second]
        points += 0.5 * spread * random.standard_normal(points.shape, np.float32)
        made[start : start + size] = points / np.linalg.norm(points, axis=1, keepdims=True)
    made[: len(real)] = real
    return made


def fill_faiss(index: ExactIndex | ApproximateIndex, embeddings: NDArray[np.float16]) -> None:
    for start in range(0, len(embeddings), BLOCK):
        part = embeddings[start : start + BLOCK].astype(np.float32)
        index.add(np.arange(start + 1, start + 1 + len(part)), part)


def kill_in_the_middle(server: Server, index: MilvusIndex, total: int) -> dict[str, Any]:
    """Kill the server when it has about half of the embeddings, and start it again."""
    while (before := index.count()) < total / 2:
        time.sleep(1)
    server.kill()
    index.close()
    start = time.perf_counter()
    server.start()
    return {"embeddings_before_kill": before, "restart_s": round(time.perf_counter() - start, 1), "killed_at": start}


def open_again(address: str, name: str, dim: int, seconds: float = 300) -> tuple[MilvusIndex, int]:
    """The collection and its count, once the restarted server answers."""
    ends = time.perf_counter() + seconds
    while True:
        try:
            index = MilvusIndex(address, name, dim, create=False)
            return index, index.count()
        except DeixisError as fault:
            print(fault, flush=True)
            if time.perf_counter() > ends:
                raise
            time.sleep(PAUSE)


def repeat_the_move(generation: Path) -> list[str]:
    """Bring the store up to date, as often as it takes; the messages of runs that failed."""
    messages: list[str] = []
    while True:
        try:
            bring_store_up_to_date(generation)
        except DeixisError as fault:
            messages.append(str(fault))
            print(fault, flush=True)
            if len(messages) == ATTEMPTS:
                raise
            time.sleep(PAUSE)
        else:
            return messages


def wait_for_the_graph(index: MilvusIndex, name: str, seconds: float = 1200) -> None:
    """Wait until Milvus has built its index over all embeddings."""
    client: Any = index._client
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        try:
            with index._faults():
                if not client.describe_index(name, client.list_indexes(name)[0]).get("pending_index_rows", 0):
                    return
        except DeixisError as fault:
            print(fault, flush=True)
        time.sleep(2)
    raise SystemExit(f"Milvus did not finish its index within {seconds:.0f} s")


def move_to_milvus(generation: Path, server: Server, total: int, dim: int) -> tuple[MilvusIndex, dict[str, Any]]:
    start = time.perf_counter()
    catalogue = Catalogue.write(generation)
    choose_store(catalogue, server.address)
    name = catalogue.setting("milvus_collection")
    catalogue.close()
    restart: dict[str, Any] = {}
    watch = MilvusIndex(server.address, name, dim, create=False)
    killer = threading.Thread(target=lambda: restart.update(kill_in_the_middle(server, watch, total)))
    killer.start()
    try:
        bring_store_up_to_date(generation)
        restart["message"] = "none: it was moved before the kill"
    except DeixisError as fault:
        restart["message"] = str(fault).replace(server.address.removeprefix("milvus://"), "HOST:PORT")
    killer.join()
    print(restart, flush=True)
    survivors, restart["embeddings_after_restart"] = open_again(server.address, name, dim)
    restart["answers_again_s"] = round(time.perf_counter() - restart.pop("killed_at"), 1)
    restart["failed_repeats"] = len(repeat_the_move(generation))
    filled = time.perf_counter()
    wait_for_the_graph(survivors, name)
    indexed = time.perf_counter()
    ids = survivors.ids()
    restart["every_id_exactly_once"] = bool(survivors.count() == total and np.array_equal(ids, np.arange(1, total + 1)))
    seconds = {"filled_s": round(filled - start, 1), "indexed_s": round(indexed - start, 1)}
    return survivors, {**seconds, "killed_half_way": restart}


def throughput(search: Callable[[Embeddings], Nearest], queries: Embeddings, seconds: float = 15) -> float:
    """Queries per second of `CLIENTS` threads, one query at a time each."""
    ends = time.perf_counter() + seconds

    def ask(first: int) -> int:
        asked = 0
        while time.perf_counter() < ends:
            place = (first + asked * CLIENTS) % len(queries)
            search(queries[place : place + 1])
            asked += 1
        return asked

    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as threads:
        total = sum(threads.map(ask, range(CLIENTS)))
    return round(total / (time.perf_counter() - start), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, metavar="PICTURES")
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--server", type=Path, required=True, help="the Python that has the package milvus")
    parser.add_argument("--embeddings", type=int, default=1_000_000)
    parser.add_argument("--real", type=int, default=4000, help="pictures to embed")
    parser.add_argument("--queries", type=int, default=1000, help="captions that recall is measured with")
    parser.add_argument("--turns", type=int, default=300, help="captions that latency is measured with")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/milvus.json"))
    parser.add_argument("--work", type=Path, help="folder for the data of the server and the index")
    options = parser.parse_args()

    model = load_search_model("deixis-base")
    real = picture_embeddings(options.pictures, model, options.real)
    embeddings = expand(real, options.embeddings)
    queries = caption_embeddings(options.corpus, model, options.queries)
    total, dim = embeddings.shape
    record: dict[str, Any] = {
        "benchmark": "milvus",
        "command": f"python benchmarks/milvus_beside_faiss.py PICTURES CORPUS --server server/bin/python "
        f"--embeddings {options.embeddings} --real {options.real} --queries {options.queries} --turns {options.turns}",
        "embeddings": {"count": total, "dim": dim, "of_real_pictures": len(real), "model": "deixis-base"},
        "queries": {"captions": len(queries), "split": "test", "timed": options.turns, "count": COUNT},
        "build_s": {},
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "faiss": faiss.__version__,
        "milvus": "2.3.5",
    }

    def save(**measured: Any) -> None:
        record.update(measured, load_average=round(os.getloadavg()[0], 2))
        write_report(record, options.out)

    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        server = Server(options.server, Path(folder) / "milvus")
        try:
            generation = write_index(
                Path(folder) / "index", embeddings, cast("SearchModel", WithoutCells(model)), "deixis-base"
            )
            milvus, moved = move_to_milvus(generation, server, total, dim)
            record["build_s"]["Milvus"] = moved
            save()
            start = time.perf_counter()
            exact = ExactIndex(dim)
            fill_faiss(exact, embeddings)
            record["build_s"]["FAISS, exact"] = round(time.perf_counter() - start, 1)
            start = time.perf_counter()
            sample = np.sort(np.random.default_rng(0).choice(total, sample_size(total), replace=False))
            approximate = ApproximateIndex.trained(
                embeddings[sample].astype(np.float32), total, lambda ids: embeddings[ids - 1].astype(np.float32)
            )
            fill_faiss(approximate, embeddings)
            record["build_s"]["FAISS, approximate"] = round(time.perf_counter() - start, 1)
            save()
            stores: dict[str, Callable[[Embeddings], Nearest]] = {
                "FAISS, exact": lambda asked: exact.search(asked, COUNT),
                "FAISS, approximate": lambda asked: approximate.search(asked, COUNT),
                "Milvus": lambda asked: milvus.search(asked, COUNT),
            }

            def one(search: Callable[[Embeddings], Nearest]) -> Callable[[int], object]:
                return lambda turn: search(queries[turn : turn + 1])

            save(latency_one_query=by_turns({name: one(search) for name, search in stores.items()}, options.turns))
            truth = exact.search(queries, COUNT).ids

            def recall(search: Callable[[Embeddings], Nearest]) -> float:
                answers = np.concatenate([search(query[None]).ids for query in queries])
                return float(np.mean([len(set(a) & set(b)) / COUNT for a, b in zip(answers, truth, strict=True)]))

            save(**{f"recall@{COUNT}": {name: round(recall(search), 4) for name, search in stores.items()}})
            rates = {name: throughput(search, queries) for name, search in stores.items()}
            save(**{f"queries_per_s_of_{CLIENTS}_clients": rates})
        finally:
            server.kill()


if __name__ == "__main__":
    main()
