"""Small networks in one thread: more gain them nothing, and wait for each other where the processors are busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread while inside. On two busy processors a beam search was 17 times as fast by it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
