"""Batches of few shapes: named dimensions are padded to one of few sizes, so that captured steps can be repeated.

A batch is a `NamedTuple` whose fields declare what their dimensions are:

    class Pairs(NamedTuple):
        images: Annotated[Tensor, "images"]
        texts: Annotated[Tensor, "texts"]
        match: Annotated[Tensor, "images", "texts"]

Tensors are padded with zeros, masks with False, so a loss that follows its masks stays what it was. A dimension that is
declared as None is left alone. Fields may be batches themselves, structures that pad themselves (`PadsItself`),
dictionaries of scalars, or None; what is not a tensor is for the host, and no captured step may depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from torch import Tensor
from torch.nn import functional

#: Multiples that sizes of a dimension are rounded up to; of others, `bucket_size`.
MULTIPLES: Final = {"words": 8, "captions": 4}


def bucket_size(count: int, dimension: str = "") -> int:
    """The next of few sizes: multiples of 64, and of more for large counts, unless `MULTIPLES` has the dimension.

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
        """The same with room for larger ones, and that room, for the next to be padded alike; at first it is None."""
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
    """Pads batches, one after another, to few shapes."""

    def __init__(self) -> None:
        #: Of parts that pad themselves, by their place in the batch.
        self._rooms: dict[tuple[str, ...], Any] = {}

    def __call__(self, batch: Any) -> Any:
        if 1 in _sizes(batch):
            return batch  # Batch norm refuses a single row, and should still see that it is one.
        return self._padded(batch, ())

    def _padded(self, batch: Any, path: tuple[str, ...]) -> Any:
        declared, fields = _declared(batch), {}
        for name, value in zip(batch._fields, batch, strict=True):
            own = (*path, name)
            if isinstance(value, Tensor) and value.dim():
                fields[name] = pad_to_buckets(value, declared[name])
            elif isinstance(value, PadsItself):
                fields[name], self._rooms[own] = value.padded(self._rooms.get(own))
            elif isinstance(value, tuple) and name not in declared:
                fields[name] = self._padded(value, own)
        return batch._replace(**fields)


def pad_to_buckets(values: Tensor, dimensions: tuple[str | None, ...]) -> Tensor:
    """A tensor with zeros behind its last element, in every dimension that has a name."""
    # Dimensions behind those that are declared have no name.
    names = [*dimensions, *[None] * values.dim()][: values.dim()]
    added = [bucket_size(size, name) - size if name else 0 for size, name in zip(values.shape, names, strict=True)]
    # `pad` counts dimensions from the last one.
    return functional.pad(values, [side for count in reversed(added) for side in (0, count)]) if any(added) else values


def _sizes(batch: Any) -> set[int]:
    """How many there are of whatever the batch and its parts name."""
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
    """By field of a batch the names of its dimensions, as `Annotated` has them."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is Annotated:
                found[name] = get_args(option)[1:]
    return found
