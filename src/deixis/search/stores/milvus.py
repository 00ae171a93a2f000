"""Nearest rows in Milvus, for collections past one machine: a server or cluster, or `milvus-lite` in a file.

One Milvus collection holds the rows of one generation under the catalogue's ids (HNSW, inner products). The catalogue
says which model they are of; the rows on the disk stay, and can fill another collection at any time.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from deixis.adapters.search_model import Rows
from deixis.errors import DeixisError
from deixis.search.stores.exact import Ids, Nearest, merged_ids, none_found

#: `milvus://HOST:PORT`; anything else with the file's ending is a file of milvus-lite.
SCHEME, FILE_ENDING = "milvus://", ".db"
#: The token of a server that asks for one (`user:password`); it is kept nowhere.
TOKEN = "DEIXIS_MILVUS_TOKEN"
#: Rows and ids of one message; Milvus takes up to 64 MB.
MESSAGE_ROWS, MESSAGE_IDS = 2048, 8192
#: The most that Milvus gives for a query, and how many found rows are asked for in one message.
MOST, MESSAGE_FOUND = 16_384, 65_536
#: The graph: links of a row, candidates looked at while it is built, and at the least while it is searched.
LINKS, BUILDING, SEARCHING = 32, 200, 128
#: How many indexes of this process have a file of milvus-lite open; they share one server in a thread.
_OPEN: Counter[str] = Counter()


class MilvusIndex:
    """One Milvus collection.

    Args:
        store: `milvus://HOST:PORT`, or the path of a file that ends in `.db`.
        name: the collection's.
        create: make it where it is not there; else that is a `DeixisError`.
    """

    def __init__(self, store: str, name: str, dim: int, *, create: bool = True) -> None:
        self._store, self._name = store, name
        self._client = _connect(store)
        try:
            with self._faults():
                if not self._client.has_collection(name):
                    if not create:
                        raise DeixisError(f"{store}: the rows are gone from Milvus; bring them back with: deixis index")
                    self._create(dim)
                self._client.load_collection(name)
                found = self._client.describe_collection(name)
            own = next(field["params"]["dim"] for field in found["fields"] if field["name"] == "row")
            if int(own) != dim:
                raise DeixisError(f"{store}: the collection {name} holds rows of {own} numbers, not {dim}")
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
        # Strong: a search sees all that was added before it.
        self._client.create_collection(self._name, schema=schema, index_params=index, consistency_level="Strong")

    def add(self, ids: Ids, rows: Rows) -> None:
        merged_ids(np.empty(0, np.int64), ids)
        for start in range(0, len(ids), MESSAGE_ROWS):
            part = ids[start : start + MESSAGE_ROWS].tolist()
            data = [{"id": each, "row": row} for each, row in zip(part, rows[start:], strict=False)]
            with self._faults():
                # Milvus itself would keep both.
                if self._client.query(self._name, ids=part, output_fields=["id"]):
                    raise DeixisError("a row of this id is in the index already")
                self._client.insert(self._name, data)

    def remove(self, ids: Ids) -> None:
        for start in range(0, len(ids), MESSAGE_IDS):
            with self._faults():
                self._client.delete(self._name, ids=ids[start : start + MESSAGE_IDS].tolist())

    def search(self, queries: Rows, count: int) -> Nearest:
        nearest = none_found(len(queries), count)
        if count < 1:
            return nearest
        limit = min(count, MOST)
        at_once = max(1, MESSAGE_FOUND // limit)
        for start in range(0, len(queries), at_once):
            data = list(np.ascontiguousarray(queries[start : start + at_once], np.float32))
            parameters = {"metric_type": "IP", "params": {"ef": max(SEARCHING, 2 * limit)}}
            with self._faults():
                found = self._client.search(
                    self._name, data=data, limit=limit, output_fields=["id"], search_params=parameters
                )
            for place, hits in enumerate(found, start):
                nearest.ids[place, : len(hits)] = [hit["id"] for hit in hits]
                nearest.scores[place, : len(hits)] = [hit["distance"] for hit in hits]
        return nearest

    def ids(self) -> Ids:
        # A server gives pages in the order of ids, as its own iterators need; milvus-lite gives none but all at once.
        limit = MESSAGE_IDS if self._store.startswith(SCHEME) else None
        pages: list[Ids] = []
        while not pages or (limit and len(pages[-1]) == limit):
            wanted = f"id > {pages[-1][-1] if pages else -1}"
            with self._faults():
                page = self._client.query(self._name, filter=wanted, output_fields=["id"], limit=limit)
            pages.append(np.sort(np.array([each["id"] for each in page], np.int64)))
        return np.concatenate(pages)

    def count(self) -> int:
        with self._faults():
            return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def flush(self) -> None:
        """Have all that was added on the disk, as segments."""
        with self._faults():
            self._client.flush(self._name)

    def drop(self) -> None:
        """Remove the collection from Milvus, with all rows."""
        with self._faults():
            self._client.drop_collection(self._name)

    def close(self) -> None:
        self._client.close()
        if not self._store.startswith(SCHEME):
            _OPEN[self._store] -= 1
            if not _OPEN[self._store]:
                from milvus_lite.server_manager import server_manager_instance

                # Else the file is taken, for other processes too, until this one ends.
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
        raise DeixisError(f"{store} needs Milvus' client; pip install 'deixis[milvus]'") from None
    # They write every refusal to standard error, with a trace, beside raising it.
    for package in ("pymilvus", "milvus_lite", "grpc"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
    address = f"http://{store.removeprefix(SCHEME)}" if store.startswith(SCHEME) else store
    try:
        client = pymilvus.MilvusClient(address, token=os.environ.get(TOKEN, ""))
    except (pymilvus.MilvusException, OSError) as fault:
        hint = "is the server there?" if address != store else "does another process have it open?"
        raise DeixisError(f"{store}: cannot be opened ({getattr(fault, 'message', fault)}); {hint}") from None
    _OPEN[store] += 1
    return client
