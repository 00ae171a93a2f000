"""All weights of a bundle in one safetensors file: each once, in few bytes, at places that ONNX graphs can point to.

Equal weights of several networks (a backbone, word vectors) lie in the file under the first of their names; the others
are told in its metadata. A matrix of 8-bit integers has a scale for each row, under its name and `.scale`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from deixis.adapters.bundles import Weights
from deixis.errors import InputError
from deixis.files import atomic_write

SCALE = ".scale"
#: Smaller ones are not worth a line that tells where else they are.
LEAST_SHARED = 1024
#: As safetensors has it.
LONGEST_HEADER = 100_000_000

Array = NDArray[Any]


class Place(NamedTuple):
    """Where a tensor lies: safetensors' name of its type, its shape, and bytes from the file's beginning."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    length: int


class WeightFile:
    """The header of a file that `write_weights` wrote: what is where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(length, LONGEST_HEADER)))
            self._shared: dict[str, str] = json.loads(header.pop("__metadata__")["shared"])
            self._places = {
                name: Place(each["dtype"], tuple(each["shape"]), 8 + length + start, end - start)
                for name, each in header.items()
                for start, end in [each["data_offsets"]]
            }
        except OSError as fault:
            raise InputError(path, fault.strerror or str(fault)) from None
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise InputError(path, f"is not the file of a bundle's weights ({fault})") from None

    def __contains__(self, name: str) -> bool:
        return self._shared.get(name, name) in self._places

    def place(self, name: str) -> Place:
        return self._places[self._shared.get(name, name)]

    def names(self, prefix: str) -> list[str]:
        """All names with a prefix, scales left out."""
        known = {*self._places, *self._shared}
        return sorted(name for name in known if name.startswith(prefix) and not name.endswith(SCALE))

    def shared(self, name: str) -> str:
        """The name under which a tensor lies in the file."""
        return self._shared.get(name, name)


def write_weights(path: Path, weights: Mapping[str, Array], kept: Weights) -> None:
    """Write float32 arrays in the form that `kept` names."""
    stored: dict[str, Array] = {}
    shared: dict[str, str] = {}
    first: dict[str, str] = {}
    for name, array in weights.items():
        parts = _small(array, kept)
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


def _small(array: Array, kept: Weights) -> list[Array]:
    """The array as it is kept and, of 8-bit integers, its scales."""
    if kept == "float32":
        return [np.ascontiguousarray(array, np.float32)]
    if kept == "float16" or array.ndim != 2:
        return [np.ascontiguousarray(array, np.float16)]
    scale = np.maximum(np.abs(array).max(1, keepdims=True) / 127, 1e-12).astype(np.float32)
    return [np.rint(array / scale).astype(np.int8), scale]
