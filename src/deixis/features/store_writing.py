"""Writing a feature store: one writer, partitions in any order; a crash costs at most one partition.

The arrays of a partition are written under temporary names, synced and renamed, then its sidecar. Running the same
extraction again writes the partitions without a sidecar and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError, InputError
from deixis.features.layout import (
    IDS,
    MANIFEST,
    PARTITIONS,
    PLAN,
    ArraySpec,
    Manifest,
    Plan,
    Sidecar,
    SkippedImage,
    StoredFile,
    array_file,
    encode,
    partition_done,
    sidecar_file,
    write_json,
)
from deixis.files import LOCK, atomic_write, hold_folder, read_json

#: Features of one image: array name → row (of the array's shape) or, for a ragged array, rows.
Features = Mapping[str, NDArray[Any]]


class StoreWriter:
    """The only writer of a store, a context manager. It holds a lock, which ends with the process."""

    def __init__(self, folder: str | Path, plan: Plan, ids: Sequence[str]) -> None:
        self.folder, self.plan = Path(folder), plan
        self._ids = ids

    def __enter__(self) -> StoreWriter:
        self._refuse_strangers()
        self._lock = hold_folder(self.folder, "feature store")
        try:
            (self.folder / PARTITIONS).mkdir(exist_ok=True)
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _refuse_strangers(self) -> None:
        """Refuse a folder with other files: a store has a plan, or only files that are written before the plan."""
        if (self.folder / PLAN).exists() or not self.folder.exists():
            return
        before_plan = {self.folder / name for name in (IDS, LOCK, PARTITIONS)} | set(_leftovers(self.folder))
        if not self.folder.is_dir() or {*self.folder.iterdir(), *self.folder.glob(f"{PARTITIONS}/*")} - before_plan:
            raise InputError(self.folder, "exists and is not a feature store; choose another folder")

    def _begin(self) -> None:
        self._tidy()
        if (self.folder / PLAN).exists():
            check_same_plan(self.folder, self.plan)
        else:
            write_json(self.folder / IDS, list(self._ids))
            write_json(self.folder / PLAN, self.plan)

    def _tidy(self) -> None:
        for leftover in (*_leftovers(self.folder), *_leftovers(self.folder / PARTITIONS)):
            leftover.unlink(missing_ok=True)

    def pending(self) -> list[int]:
        """The partitions that are not written yet."""
        return [
            partition
            for partition in range(self.plan.partitions)
            if not partition_done(self.folder, self.plan, partition)
        ]

    def finish(self) -> Manifest:
        """Write the manifest, when all partitions are written."""
        digest, items, skipped = hashlib.sha256(), [], []
        rows = dict.fromkeys(self.plan.arrays, 0)
        for partition in range(self.plan.partitions):
            sidecar = read_json(sidecar_file(self.folder, partition), Sidecar)
            digest.update(encode(sidecar))
            items.append(sidecar.items)
            skipped += sidecar.skipped
            for name in rows:
                rows[name] += sum(sidecar.lengths[name]) if name in sidecar.lengths else sidecar.items
        manifest = Manifest(
            fingerprint=self.plan.fingerprint,
            items=items,
            rows=rows,
            skipped=skipped,
            sidecars_sha256=digest.hexdigest(),
        )
        path = self.folder / MANIFEST
        if not path.exists() or path.read_bytes() != encode(manifest):
            write_json(path, manifest)
        # Temporary files of workers that died on other machines.
        self._tidy()
        return manifest


def check_same_plan(folder: Path, plan: Plan) -> None:
    """Refuse to continue a store that was begun with another recipe, and say what differs."""
    existing = read_json(folder / PLAN, Plan)
    if existing == plan:
        return
    names = [
        name
        for name in plan.__struct_fields__
        if name != "provenance" and getattr(plan, name) != getattr(existing, name)
    ]
    now, before = plan.provenance, existing.provenance
    names += [name for name in {**before, **now} if now.get(name) != before.get(name)]
    raise InputError(folder, f"holds features of another recipe (other {', '.join(names)}); choose another folder")


def _leftovers(folder: Path) -> Iterator[Path]:
    """Temporary files of a writer that was killed."""
    return folder.glob(".*.part")


def write_partition(
    folder: Path,
    plan: Plan,
    partition: int,
    ids: Sequence[str] | Mapping[int, str],
    features: Mapping[str, Features],
    skipped: Sequence[SkippedImage],
) -> Sidecar:
    """Write one partition. Writing it again gives the same bytes.

    Args:
        folder: the store.
        plan: the store's plan.
        partition: its number.
        ids: ids by item, of the whole plan or of the partition.
        features: features of the partition's images by id, in any order.
        skipped: its images without features.

    Raises:
        DeixisError: an image is missing, an array does not have the planned shape, or a value does not fit.
    """
    partition_ids = [ids[item] for item in plan.items(partition)]
    reasons = {image.id: image for image in skipped}
    if sorted([*features, *reasons]) != sorted(partition_ids):
        raise DeixisError(f"{folder}: partition {partition} was given other images than its own")
    readable = {image_id: features[image_id] for image_id in partition_ids if image_id in features}
    files: dict[str, StoredFile] = {}
    lengths: dict[str, list[int]] = {}
    for name, spec in plan.arrays.items():
        rows = [_checked(image_id, name, spec, item) for image_id, item in readable.items()]
        if spec.ragged:
            lengths[name] = [len(row) for row in rows]
        empty = np.empty((0, *spec.shape), spec.numpy_dtype)
        together = np.concatenate([empty, *rows]) if spec.ragged else np.stack(rows) if rows else empty
        path = array_file(folder, partition, name)
        with atomic_write(path) as stream:
            hashing = _HashingStream(stream)
            np.lib.format.write_array(hashing, together, version=(1, 0), allow_pickle=False)
        files[path.name] = StoredFile(hashing.bytes, hashing.digest.hexdigest())
    sidecar = Sidecar(
        fingerprint=plan.fingerprint,
        partition=partition,
        items=len(readable),
        lengths=lengths,
        skipped=[reasons[image_id] for image_id in partition_ids if image_id in reasons],
        files=files,
    )
    write_json(sidecar_file(folder, partition), sidecar)
    return sidecar


def _checked(image_id: str, name: str, spec: ArraySpec, item: Features) -> NDArray[Any]:
    if name not in item:
        raise DeixisError(f"image {image_id}: the extractor gave no array {name!r}")
    array = np.asarray(item[name])
    if array.ndim != len(spec.shape) + spec.ragged or array.shape[int(spec.ragged) :] != spec.shape:
        wanted = ("any", *spec.shape) if spec.ragged else spec.shape
        raise DeixisError(f"image {image_id}: array {name!r} has the shape {array.shape}, not {wanted}")
    with np.errstate(over="ignore"):
        row = np.asarray(array, spec.numpy_dtype)
    if not np.isfinite(row).all():
        raise DeixisError(
            f"image {image_id}: array {name!r} has values that are no numbers or too large for {spec.dtype}"
        )
    return row


class _HashingStream:
    """Passes bytes on, counting and hashing them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.bytes, self.digest = stream, 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.bytes += len(data)
        return self._stream.write(data)
