"""Where features are stored: on the device if they fit, otherwise in main memory, from which batches copy rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

#: Share of a device's free memory that features may take; steps and validation need the rest.
MEMORY_SHARE = 0.7


def place_of(size: int, device: str | torch.device) -> torch.device:
    """The device if it has room for `size` bytes of features, otherwise the CPU."""
    target = torch.device(device)
    if target.type == "cuda" and size > MEMORY_SHARE * torch.cuda.mem_get_info(target.index)[0]:
        return torch.device("cpu")
    return target


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table on any device, on the device of the indices `rows`."""
    return table[rows.to(table.device)].to(rows.device)


def send(array: Tensor, device: torch.device | str) -> Tensor:
    """Copy to a device, through pinned memory so that a busy GPU is not waited for."""
    device = torch.device(device)
    return array.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else array.to(device)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device. Those elsewhere are copied together, one copy per dtype."""
    leaves, structure = tree_flatten(batch)
    elsewhere: dict[torch.dtype, list[int]] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.device.type != device.type:
            elsewhere.setdefault(leaf.dtype, []).append(index)
    for indices in elsewhere.values():
        sizes = [leaves[index].numel() for index in indices]
        sent = send(torch.cat([leaves[index].flatten() for index in indices]), device)
        for index, part in zip(indices, torch.split(sent, sizes), strict=True):
            leaves[index] = part.view(leaves[index].shape)
    return tree_unflatten(leaves, structure) if elsewhere else batch
