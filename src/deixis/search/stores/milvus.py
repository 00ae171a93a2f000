"""Search in Milvus, for collections beyond one machine: a server, a cluster, or `milvus-lite` in a file.

One Milvus collection has the embeddings of one generation under the catalogue's ids (HNSW, inner product). The
embeddings also stay on disk, so a lost Milvus collection can be filled again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from deixis.adapters.search_model import Floats
from deixis.errors import DeixisError
from deixis.search.stores.exact import Ids, Nearest, merged_ids, none_found

#: `milvus://HOST:PORT`, or a file of milvus-lite with this ending.
SCHEME, FILE_ENDING = "milvus://", ".db"
#: Environment variable with the token of a server (`user:password`); it is never stored.
TOKEN = "DEIXIS_MILVUS_TOKEN"
#: Embeddings and ids per message; Milvus accepts up to 64 MB.
MESSAGE_ROWS, MESSAGE_IDS = 2048, 8192
#: The most answers Milvus returns per query, and per message.
MOST, MESSAGE_FOUND = 16_384, 65_536
#: HNSW: links per node, candidates while building, and candidates while searching (at least).
LINKS, BUILDING, SEARCHING = 32, 200, 128
#: How often each milvus-lite file is open in this process; all share one server thread.
_OPEN: Counter[str] = Counter()


class MilvusIndex:
    """One Milvus collection.

    Args:
        store: `milvus://HOST:PORT`, or the path of a file that ends in `.db`.
        name: the name of the collection.
        create: create it if it is missing; otherwise that is a `DeixisError`.
    """

    def __init__(self, store: str, name: str, dim: int, *, create: bool = True) -> None:
        self._store, self._name = store, name
        self._client = _connect(store)
        try:
            with self._faults():
                if not self._client.has_collection(name):
                    if not create:
                        raise DeixisError(f"{store}: Milvus lost the embeddings; restore them with: deixis index")
                    self._create(dim)
                self._client.load_collection(name)
                description = self._client.describe_collection(name)
            stored_dim = next(field["params"]["dim"] for field in description["fields"] if field["name"] == "row")
            if int(stored_dim) != dim:
                raise DeixisError(f"{store}: the collection {name} has embeddings of dimension {stored_dim}, not {dim}")
        except BaseException:
            self.close()
            raise

    def _create(self, dim: int) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("row", DataType.FLOAT_VECTOR, dim=dim)
        index = self._client.prepare_index_params()
        graph = {"M": LINKS, "efConstruction": BUILDING}
        index.add_index("row", index_type="HNSW", metric_type="IP", params=graph)
        # Strong: a count sees everything added before it. It waits for that, about 0.2 s; see `search`.
        self._client.create_collection(self._name, schema=schema, index_params=index, consistency_level="Strong")

    def add(self, ids: Ids, rows: Floats) -> None:
        merged_ids(np.empty(0, np.int64), ids)
        for start in range(0, len(ids), MESSAGE_ROWS):
            part = ids[start : start + MESSAGE_ROWS].tolist()
            data = [{"id": picture_id, "row": row} for picture_id, row in zip(part, rows[start:], strict=False)]
            with self._faults():
                # Milvus would accept a duplicate id.
                if self._client.query(self._name, ids=part, output_fields=["id"]):
                    raise DeixisError("an embedding with this id is already in the index")
                self._client.insert(self._name, data)

    def remove(self, ids: Ids) -> None:
        for start in range(0, len(ids), MESSAGE_IDS):
            with self._faults():
                self._client.delete(self._name, ids=ids[start : start + MESSAGE_IDS].tolist())

    def search(self, queries: Floats, count: int) -> Nearest:
        """Answers from what this process added, and from what others had added when it last counted.

        Only a count waits for the newest additions of others: a reader counts when it opens an index.
        """
        nearest = none_found(len(queries), count)
        if count < 1:
            return nearest
        limit = min(count, MOST)
        queries_per_message = max(1, MESSAGE_FOUND // limit)
        for start in range(0, len(queries), queries_per_message):
            data = list(np.ascontiguousarray(queries[start : start + queries_per_message], np.float32))
            parameters = {"metric_type": "IP", "params": {"ef": max(SEARCHING, 2 * limit)}}
            with self._faults():
                answers = self._client.search(
                    self._name,
                    data=data,
                    limit=limit,
                    output_fields=["id"],
                    search_params=parameters,
                    consistency_level="Session",
                )
            for query, hits in enumerate(answers, start):
                nearest.ids[query, : len(hits)] = [hit["id"] for hit in hits]
                nearest.scores[query, : len(hits)] = [hit["distance"] for hit in hits]
        return nearest

    def ids(self) -> Ids:
        # A server returns pages in the order of ids; milvus-lite can only return everything at once.
        limit = MESSAGE_IDS if self._store.startswith(SCHEME) else None
        pages: list[Ids] = []
        while not pages or (limit and len(pages[-1]) == limit):
            wanted = f"id > {pages[-1][-1] if pages else -1}"
            with self._faults():
                page = self._client.query(self._name, filter=wanted, output_fields=["id"], limit=limit)
            pages.append(np.sort(np.array([entry["id"] for entry in page], np.int64)))
        return np.concatenate(pages)

    def count(self) -> int:
        with self._faults():
            return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def flush(self) -> None:
        """Write everything that was added to disk."""
        with self._faults():
            self._client.flush(self._name)

    def drop(self) -> None:
        """Remove the collection and its embeddings from Milvus."""
        with self._faults():
            self._client.drop_collection(self._name)

    def close(self) -> None:
        self._client.close()
        if not self._store.startswith(SCHEME):
            _OPEN[self._store] -= 1
            if not _OPEN[self._store]:
                from milvus_lite.server_manager import server_manager_instance

                # Otherwise the file stays locked until this process ends.
                server_manager_instance.release_server(self._store)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        from pymilvus import MilvusException

        try:
            yield
        except MilvusException as fault:
            raise DeixisError(f"{self._store}: Milvus says: {fault.message}") from None


def is_milvus(store: str) -> bool:
    return store.startswith(SCHEME) or store.endswith(FILE_ENDING)


def _connect(store: str) -> Any:
    try:
        import pymilvus
    except ModuleNotFoundError:
        raise DeixisError(f"{store} needs the Milvus client: pip install 'deixis[milvus]'") from None
    # These packages log every error with a traceback, besides raising it.
    for package in ("pymilvus", "milvus_lite", "grpc"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    address = f"http://{store.removeprefix(SCHEME)}" if store.startswith(SCHEME) else store
    try:
        client = pymilvus.MilvusClient(address, token=os.environ.get(TOKEN, ""))
    except (pymilvus.MilvusException, OSError) as fault:
        hint = "is the server running?" if address != store else "does another process have it open?"
        raise DeixisError(f"{store}: cannot be opened ({getattr(fault, 'message', fault)}); {hint}") from None
    _OPEN[store] += 1
    return client
