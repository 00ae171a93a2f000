"""The projections of a fitted CCA, and their file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.files import atomic_write, require_regular


class Projections(NamedTuple):
    """Means and directions of two views; column k of both projections is component k."""

    correlations: NDArray[np.float64]  # (components,)
    x_mean: NDArray[np.float32]
    x_projection: NDArray[np.float32]  # (x dimensions, components)
    y_mean: NDArray[np.float32]
    y_projection: NDArray[np.float32]  # (y dimensions, components)


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit, and the exponent of the correlations."""

    power: float
    ridge: float
    pairs: int
    unit_x: bool = False


Stored = tuple[Projections, Setting]


def write_projections(path: str | Path, kind: str, models: Mapping[str, Stored]) -> None:
    """Write named projections to one safetensors file, marked as a `kind`."""
    arrays = {
        f"{name}.{field}": np.ascontiguousarray(array)
        for name, (projections, _) in models.items()
        for field, array in projections._asdict().items()
    }
    about = {name: msgspec.json.encode(setting).decode() for name, (_, setting) in models.items()}
    with atomic_write(path) as stream:
        stream.write(safetensors.numpy.save(arrays, {"kind": kind, **about}))


def read_projections(path: str | Path, kind: str, names: Sequence[str]) -> list[Stored]:
    """Read the projections of these names; raise an `InputError` for any other file."""
    try:
        with safetensors.safe_open(require_regular(path), "numpy") as file:
            about = file.metadata() or {}
            arrays: dict[str, NDArray[Any]] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.get("kind") != kind:
            raise InputError(path, f"does not hold a {kind}")
        models = [
            (
                Projections(*(arrays[f"{name}.{field}"] for field in Projections._fields)),
                msgspec.json.decode(about[name], type=Setting),
            )
            for name in names
        ]
    except (safetensors.SafetensorError, msgspec.MsgspecError, OSError, KeyError, TypeError) as fault:
        raise InputError(path, f"does not hold a {kind} ({fault})") from None
    for name, (projections, _) in zip(names, models, strict=True):
        components, x, y = len(projections.correlations), len(projections.x_mean), len(projections.y_mean)
        shapes = [(components,), (x,), (x, components), (y,), (y, components)]
        kinds = [np.float64, *4 * [np.float32]]
        if [array.shape for array in projections] != shapes or [array.dtype for array in projections] != kinds:
            raise InputError(path, "has arrays whose shapes or types do not fit together", name)
        if not all(np.isfinite(array).all() for array in projections):
            raise InputError(path, "has numbers that are not finite", name)
    return models
