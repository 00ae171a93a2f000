"""Pads the named dimensions of batches to one of few sizes, so that captured steps can be repeated.

A batch is a `NamedTuple` whose fields declare what their dimensions are:

    class Pairs(NamedTuple):
        images: Annotated[Tensor, "images"]
        texts: Annotated[Tensor, "texts"]
        match: Annotated[Tensor, "images", "texts"]

Tensors are padded with zeros. Fields whose names end in `mask` are None until then; padding sets them, true for what is
real and false for what it added, so it does not change a loss that uses them. A dimension
declared as None is not padded. Fields may be batches themselves, structures that pad themselves (`PadsItself`),
dictionaries of scalars, or None. What is not a tensor stays on the host; captured steps must not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

#: By dimension, the multiple that sizes are rounded up to; for other dimensions see `bucket_size`.
MULTIPLES: Final = {"words": 8, "captions": 4}


def bucket_size(count: int, dimension: str = "") -> int:
    """The next bucket size: a multiple of 64, or of more for large counts; for some dimensions of `MULTIPLES`.

    >>> [bucket_size(count) for count in (0, 64, 65, 1000, 13_000)]
    [0, 64, 128, 1024, 13312]
    >>> bucket_size(9, "words")
    16
    """
    step = MULTIPLES.get(dimension) or max(64, 1 << max(0, count.bit_length() - 4))
    return step * -(-count // step)


@runtime_checkable
class PadsItself(Protocol):
    """A part of a batch whose tensors refer to each other, such as a plan over trees."""

    def padded(self, room: Any) -> tuple[Any, Any]:
        """A padded copy and its sizes. Pass them as `room` to pad the next one alike; at first `room` is None."""
        ...


def has_dimensions(batch: Any) -> bool:
    """Whether a batch declares the dimensions of all its tensors."""
    if not isinstance(batch, tuple) or not hasattr(batch, "_fields"):
        return False
    declared = dimensions_of(type(batch))
    return all(
        name in declared or not isinstance(value, Tensor | tuple) or is_scalar(value) or can_be_padded(value)
        for name, value in zip(batch._fields, batch, strict=True)
    )


def can_be_padded(value: Any) -> bool:
    return isinstance(value, PadsItself) or has_dimensions(value)


def is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim()


class Padding:
    """Pads successive batches to few shapes."""

    def __init__(self) -> None:
        #: `room` of parts that pad themselves, by their path in the batch.
        self._rooms: dict[tuple[str, ...], Any] = {}
        self._masks: dict[tuple[int, int, torch.device], Tensor] = {}

    def __call__(self, batch: Any) -> Any:
        if 1 in _sizes(batch):
            return batch  # Batch norm must see that there is a single row, and refuse it.
        return self._padded(batch, ())

    def _padded(self, batch: Any, path: tuple[str, ...]) -> Any:
        declared, fields = _declared(batch), {}
        for name, value in zip(batch._fields, batch, strict=True):
            field_path = (*path, name)
            if isinstance(value, Tensor) and value.dim():
                fields[name] = pad_to_buckets(value, declared[name])
            elif isinstance(value, PadsItself):
                fields[name], self._rooms[field_path] = value.padded(self._rooms.get(field_path))
            elif isinstance(value, tuple) and name not in declared:
                fields[name] = self._padded(value, field_path)
        for name, dimensions in declared.items():
            if name.endswith("mask") and getattr(batch, name) is None:
                fields[name] = self._mask(batch, dimensions[0])
        return batch._replace(**fields)

    def _mask(self, batch: Any, dimension: str | None) -> Tensor:
        """True for the real rows of a dimension, the first one of some field of the batch."""
        declared = _declared(batch)
        rows = next(
            value
            for name, value in zip(batch._fields, batch, strict=True)
            if isinstance(value, Tensor) and value.dim() and declared[name][0] == dimension
        )
        key = (len(rows), bucket_size(len(rows), dimension or ""), rows.device)
        if key not in self._masks:
            self._masks[key] = torch.arange(key[1], device=rows.device) < len(rows)
        return self._masks[key]


def pad_to_buckets(values: Tensor, dimensions: tuple[str | None, ...]) -> Tensor:
    """Append zeros in every named dimension of a tensor, up to its bucket size."""
    # Dimensions after the declared ones have no name.
    names = [*dimensions, *[None] * values.dim()][: values.dim()]
    added = [bucket_size(size, name) - size if name else 0 for size, name in zip(values.shape, names, strict=True)]
    # `pad` counts dimensions from the last one.
    return functional.pad(values, [side for count in reversed(added) for side in (0, count)]) if any(added) else values


def _sizes(batch: Any) -> set[int]:
    """The sizes of the named dimensions of a batch and its parts."""
    declared, sizes = _declared(batch), set[int]()
    for name, value in zip(batch._fields, batch, strict=True):
        if isinstance(value, tuple) and name not in declared and not isinstance(value, PadsItself):
            sizes |= _sizes(value)
        elif isinstance(value, Tensor) and value.dim() and declared[name][0] and len(declared[name]) == 1:
            sizes.add(len(value))
    return sizes


def _declared(batch: tuple[Any, ...]) -> Mapping[str, tuple[str | None, ...]]:
    return dimensions_of(type(batch))


@cache
def dimensions_of(kind: type) -> Mapping[str, tuple[str | None, ...]]:
    """The names of the dimensions of each field of a batch, from `Annotated`."""
    dimensions = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is Annotated:
                dimensions[name] = get_args(option)[1:]
    return dimensions
