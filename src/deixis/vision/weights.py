"""Reading a network's weights so that nothing in the file is ever executed, and telling which they were."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deixis.errors import InputError


def load_weights(network: nn.Module, path: str | Path, *, ignore: Sequence[str] = ()) -> None:
    """Fill a network from a state dict (`.pt`, `.pth`, `.safetensors`); every parameter must be there and fit.

    Args:
        network: what to fill.
        path: the file. A checkpoint that keeps the weights under `state_dict` or `model` is opened.
        ignore: prefixes of weights that may be in the file though the network has no place for them (a classifier).
    """
    state = _read_state(Path(path))
    own = network.state_dict()
    kept = {name: value for name, value in state.items() if name in own or not name.startswith(tuple(ignore))}
    try:
        network.load_state_dict(kept)
    except RuntimeError as fault:
        first = str(fault).replace("\n\t", " ").split(". ")[0]
        raise InputError(path, f"holds other weights than the network's: {first[:300]}") from None


def _read_state(path: Path) -> dict[str, Tensor]:
    state: Any
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as fault:
        raise InputError(path, fault.strerror or "cannot be read") from None
    # A damaged archive shows itself as RuntimeError, UnpicklingError, EOFError, SafetensorError and more.
    except Exception as fault:
        raise InputError(path, f"is no file of weights ({str(fault).splitlines()[0][:200]})") from None
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(path, "is not a state dict (names and tensors)")
    return {str(name): value for name, value in state.items()}


def file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as fault:
        raise InputError(path, fault.strerror or "cannot be read") from None


def state_sha256(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values: the same weights have one hash from whatever file they came."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
