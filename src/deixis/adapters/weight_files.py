"""The weights of a bundle in one safetensors file, to which ONNX graphs point.

Weights that several networks share (a backbone, word vectors) are stored once, under the first of their names; the
metadata maps the other names to it. A matrix or kernel of 8-bit integers has a scale per output, under its
name plus `.scale`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from deixis.adapters.bundles import Weights
from deixis.errors import InputError
from deixis.files import atomic_write, open_regular

SCALE = ".scale"
#: Smaller tensors are stored again instead of shared.
LEAST_SHARED = 1024
#: Kernels of convolutions with fewer values are never integers; all of them together are small.
LEAST_KERNEL = 32_768
#: The limit of safetensors itself.
LONGEST_HEADER = 100_000_000

Array = NDArray[Any]


class Place(NamedTuple):
    """Where a tensor is: its type as safetensors names it, its shape, and its byte range in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    length: int


class WeightFile:
    """The header of a file written by `write_weights`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(length, LONGEST_HEADER)))
            self._shared: dict[str, str] = json.loads(header.pop("__metadata__")["shared"])
            self._places = {
                name: Place(entry["dtype"], tuple(entry["shape"]), 8 + length + start, end - start)
                for name, entry in header.items()
                for start, end in [entry["data_offsets"]]
            }
        except OSError as fault:
            raise InputError(path, fault.strerror or str(fault)) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
            raise InputError(path, f"is not the file of a bundle's weights ({fault})") from None

    def __contains__(self, name: str) -> bool:
        return self._shared.get(name, name) in self._places

    def place(self, name: str) -> Place:
        return self._places[self._shared.get(name, name)]

    def names(self, prefix: str) -> list[str]:
        """All names with a prefix, without scales."""
        known = {*self._places, *self._shared}
        return sorted(name for name in known if name.startswith(prefix) and not name.endswith(SCALE))

    def shared(self, name: str) -> str:
        """The name under which a tensor is stored."""
        return self._shared.get(name, name)


def write_weights(path: Path, weights: Mapping[str, Array], form: Weights, like: Path | None = None) -> None:
    """Write float32 arrays in the given form.

    Args:
        like: a file of weights. Those that are equal in it are stored as they are there: integers of 8 bits that are
            rounded again could have other scales.
    """
    known = {} if like is None else _stored(like)
    stored: dict[str, Array] = {}
    shared: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, array in weights.items():
        parts = known.get(name, [])
        if not parts or not np.array_equal(_restored(parts), array):
            parts = _small(array, form)
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest() + str(array.shape)
        if array.size >= LEAST_SHARED and digest in first:
            shared[name] = first[digest]
            if len(parts) > 1:
                shared[name + SCALE] = first[digest] + SCALE
            continue
        first[digest] = name
        stored.update(zip((name, name + SCALE), parts, strict=False))
    with atomic_write(path) as stream:
        stream.write(save(stored, {"shared": json.dumps(shared)}))


def _stored(path: Path) -> dict[str, list[Array]]:
    """By name, the arrays of a file as they are stored, with their scales if there are any."""
    names = WeightFile(path)
    arrays = load(path.read_bytes())
    return {
        name: [arrays[names.shared(array_name)] for array_name in (name, name + SCALE) if array_name in names]
        for name in names.names("")
    }


def _restored(parts: list[Array]) -> Array:
    value, *scale = (part.astype(np.float32) for part in parts)
    return value * scale[0] if scale else value


def _small(array: Array, form: Weights) -> list[Array]:
    """The array as it is stored and, for 8-bit integers, its scales."""
    if form == "float32":
        return [np.ascontiguousarray(array, np.float32)]
    is_large = array.ndim == 2 or (array.ndim == 4 and array.size >= LEAST_KERNEL)
    if form == "float16" or not is_large:
        return [np.ascontiguousarray(array, np.float16)]
    inputs = tuple(range(1, array.ndim))
    scale = np.maximum(np.abs(array).max(inputs, keepdims=True) / 127, 1e-12).astype(np.float32)
    return [np.rint(array / scale).astype(np.int8), scale]
