"""Load and save the weights of networks; loading executes nothing. Hashes identify weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deixis.errors import InputError
from deixis.files import atomic_write, open_regular, require_regular


def load_weights(network: nn.Module, path: str | Path, *, ignore: Sequence[str] = ()) -> None:
    """Load a state dict (`.pt`, `.pth`, `.safetensors`) into a network; all parameters must be there and fit.

    Args:
        path: the file; in a checkpoint, weights may be under `state_dict` or `model`.
        ignore: prefixes of weights in the file that the network may lack (a classifier).
    """
    state = _read_state(Path(path))
    expected = network.state_dict()
    used = {name: value for name, value in state.items() if name in expected or not name.startswith(tuple(ignore))}
    try:
        network.load_state_dict(used)
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
    # A damaged archive raises RuntimeError, UnpicklingError, EOFError, SafetensorError and more.
    except Exception as fault:
        raise InputError(path, f"is no file of weights ({str(fault).splitlines()[0][:200]})") from None
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(path, "is not a state dict (names and tensors)")
    return {str(name): value for name, value in state.items()}


def file_sha256(path: Path) -> str:
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def state_sha256(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values, independent of the file format."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


#: What is behind the name of a weight in 8-bit integers is the name of its scales, one per output channel.
SCALE = ".scale"
#: Smaller weights are float16: those of the first layers, which need the precision, and which take little room.
LEAST_ROUNDED = 32_768


def save_network(
    network: nn.Module,
    path: str | Path,
    description: Mapping[str, str],
    *,
    skip: Sequence[str] = (),
    integers: bool = False,
) -> None:
    """Save weights as float16 safetensors, with a description of the network (`kind` and settings) as metadata.

    Args:
        skip: prefixes of weights that are not saved.
        integers: matrices and kernels as 8-bit integers with a scale per output channel: half the file.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        if name.startswith(tuple(skip)):
            continue
        stored = value.detach().cpu().contiguous()
        if integers and value.ndim > 1 and value.numel() >= LEAST_ROUNDED:
            scale = stored.float().flatten(1).abs().amax(1).clamp(min=1e-12) / 127
            tensors[name + SCALE] = scale.reshape(-1, *[1] * (value.ndim - 1))
            tensors[name] = (stored / tensors[name + SCALE]).round().to(torch.int8)
        else:
            tensors[name] = stored.half() if value.is_floating_point() else stored
    with atomic_write(path) as stream:
        stream.write(save(tensors, dict(description)))


def read_network(path: str | Path, kind: str, name: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Description and weights (float32) of a file written by `save_network`; anything else is an `InputError`.

    Args:
        kind: the expected kind.
        name: its name in messages, "a trained proposer".
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InputError(path, f"no such file of {name}")
    try:
        with safe_open(require_regular(path), "pt") as file:
            description = file.metadata() or {}
            if description.get("kind") != kind:
                raise InputError(path, f"is not the file of {name}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as fault:
        raise InputError(path, f"is no file of {name} ({fault})") from None
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    for key, value in [(key, value) for key, value in tensors.items() if value.dtype == torch.int8]:
        scale = tensors.pop(key + SCALE, torch.empty(0))
        if scale.shape != (len(value), *[1] * (value.ndim - 1)):
            raise InputError(path, "holds integers without scales that fit", key)
        tensors[key] = value * scale
    broken = [key for key, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise InputError(path, "holds numbers that are not finite", broken[0])
    return description, tensors


def fill_network(
    network: nn.Module, tensors: Mapping[str, Tensor], path: str | Path, *, skip: Sequence[str] = ()
) -> None:
    """Load weights from `read_network`; all but the skipped ones must be there and fit."""
    expected = {name for name in network.state_dict() if not name.startswith(tuple(skip))}
    if tensors.keys() != expected:
        raise InputError(path, "holds other weights than the network's", min(tensors.keys() ^ expected))
    try:
        network.load_state_dict(tensors, strict=False)
    except RuntimeError as fault:
        reason = str(fault).splitlines()[-1].strip()
        raise InputError(path, f"holds other weights than the network's ({reason})") from None
    # What is not stored would be random, and a hash of the weights different each time.
    for name, values in network.state_dict().items():
        if name not in tensors:
            values.zero_()
