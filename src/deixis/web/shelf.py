"""What was made and may be wanted again, kept in memory up to a bound; what was unused for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shelf(Generic[Key, Value]):
    """Values by key; `size` is how much of `room` a value takes; the newest stays however large it is."""

    def __init__(self, room: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._room, self._size = room, size
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._taken = 0
        self._lock = Lock()

    def find(self, key: Key) -> Value | None:
        """The value of a key, if it is there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there; two threads may make it at once, and one is kept."""
        if (item := self.find(key)) is not None:
            return item
        value = make()
        self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, in place of an earlier one of this key."""
        with self._lock:
            if key in self._kept:
                self._taken -= self._size(self._kept.pop(key))
            self._kept[key] = value
            self._taken += self._size(value)
            while self._taken > self._room and len(self._kept) > 1:
                self._taken -= self._size(self._kept.popitem(last=False)[1])
