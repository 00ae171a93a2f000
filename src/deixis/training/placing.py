"""Features on the device once and for all where they fit, else in main memory, from where each batch takes its rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

#: How much of what a device has free features may take: steps and validation need the rest.
ROOM = 0.7


def place_of(size: int, device: str | torch.device) -> torch.device:
    """Where `size` bytes of features go: to the device, or into main memory if that has no room for them."""
    target = torch.device(device)
    if target.type == "cuda" and size > ROOM * torch.cuda.mem_get_info(target.index)[0]:
        return torch.device("cpu")
    return target


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table, wherever it lies, on the device that their numbers are on."""
    return table[rows.to(table.device)].to(rows.device)


def send(array: Tensor, device: torch.device | str) -> Tensor:
    """To a device. A GPU that is at work is not waited for, as it would be without pinned memory."""
    device = torch.device(device)
    return array.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else array.to(device)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device; those that are not go there together."""
    leaves, structure = tree_flatten(batch)
    elsewhere: dict[torch.dtype, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.device.type != device.type:
            elsewhere.setdefault(leaf.dtype, []).append(number)
    for numbers in elsewhere.values():
        sizes = [leaves[number].numel() for number in numbers]
        sent = send(torch.cat([leaves[number].flatten() for number in numbers]), device)
        for number, part in zip(numbers, torch.split(sent, sizes), strict=True):
            leaves[number] = part.view(leaves[number].shape)
    return tree_unflatten(leaves, structure) if elsewhere else batch
