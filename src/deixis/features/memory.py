"""Memory that a network frees is kept for its next layer, on a processor under the GNU C library.

PyTorch has no pool of its own there, and the C library hands every block of a map's size back to the system at once:
each layer then begins with page faults, which cost about as much as its arithmetic.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Settings of mallopt(3): trim threshold, top pad, mmap threshold, number of arenas. Heaps other than the main one
#: are too small for a map, so that all threads share it.
_KEPT = {-1: 2**31 - 1, -2: 64 << 20, -3: 32 << 20, -8: 1}
#: What the library begins with; 0 arenas are as many as it likes.
_USUAL = {-1: 128 << 10, -2: 128 << 10, -3: 128 << 10, -8: 0}


@contextmanager
def freed_memory_is_kept() -> Iterator[None]:
    """While inside; elsewhere than under the GNU C library it does nothing. What was kept is given back at the end."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    assert library is not None
    for setting, value in _KEPT.items():
        library.mallopt(setting, value)
    try:
        yield
    finally:
        for setting, value in _USUAL.items():
            library.mallopt(setting, value)
        library.malloc_trim(0)
