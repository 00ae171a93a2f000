"""What runs the networks of an extraction on a processor: PyTorch or onnxruntime, whichever is faster on the machine.

Their features are the same to rounding, not to the bit. So a store tells what made it, who goes on with it takes the
same, and what was measured is kept in the cache, so that a machine does not change its mind.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, get_args

import msgspec
import torch

from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.layout import PLAN, Plan
from deixis.features.memory import freed_memory_is_kept
from deixis.files import cache_folder, read_json, write_text
from deixis.vision import TOWER, Runtime
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.onnx_maps import can_run
from deixis.vision.tower import load_tower

FASTEST: Final = "fastest"
#: Of PyTorch's time what onnxruntime may take at most to be chosen: less than the noise of a measurement is no reason.
ENOUGH = 0.9
#: Pictures of a pass, pixels a side, and passes that are timed.
_PICTURES, _SIDE, _TURNS = 2, 256, 4
_KEPT = "runtimes.json"


def chosen_runtime(recipe: FeatureRecipe, wanted: str, device: str, out: Path) -> Runtime:
    """What is `wanted`, or by `fastest` what made the store `out` as far as it is there, else what is faster here."""
    if wanted not in (FASTEST, *get_args(Runtime)):
        raise DeixisError(f"unknown runtime {wanted!r}; known: {', '.join((FASTEST, *get_args(Runtime)))}")
    network = _network(recipe.backbone)
    if wanted == "onnxruntime":
        if device != "cpu" or network is None:
            raise DeixisError("onnxruntime runs the networks of Deixis itself, on a processor; use --runtime torch")
        if not can_run():
            raise DeixisError("networks by onnxruntime need onnx and onnxruntime: pip install 'deixis[export]'")
        return "onnxruntime"
    if wanted == "torch" or device != "cpu" or network is None or not can_run():
        return "torch"
    if (out / PLAN).exists():
        return "onnxruntime" if read_json(out / PLAN, Plan).provenance.get("runtime") == "onnxruntime" else "torch"
    seconds = _measured(network)
    return "onnxruntime" if seconds["onnxruntime"] <= ENOUGH * seconds["torch"] else "torch"


def _network(backbone: str) -> str | None:
    """The variant of the package's network that a backbone is, if it is one."""
    if backbone.startswith(TOWER):
        return load_tower(backbone.removeprefix(TOWER)).backbone_name
    return backbone if backbone in VARIANTS else None


def _measured(network: str) -> dict[str, float]:
    """Seconds of a pass in each runtime, as they were found before or are now."""
    path = cache_folder() / _KEPT
    kept: dict[str, dict[str, float]] = {}
    with suppress(OSError, msgspec.DecodeError):
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, float]])
    packages = " ".join(f"{name} {version(name)}" for name in ("torch", "onnxruntime"))
    key = f"{network}, {packages}, {_processor()}"
    if set(kept.get(key, ())) != {"torch", "onnxruntime"}:
        kept[key] = measure(network)
        # Where nothing can be kept it is measured again the next time.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=2).decode() + "\n")
    return kept[key]


def _processor() -> str:
    """Its name: a folder of caches may be seen by many machines."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure(network: str) -> dict[str, float]:
    """The best of a few passes in each runtime by turns, each in one thread, as extraction has them."""
    pictures = torch.randn(_PICTURES, 3, _SIDE, _SIDE).contiguous(memory_format=torch.channels_last)
    maps: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    for runtime in get_args(Runtime):
        own = EfficientNetLite(VARIANTS[network])
        own.fuse("cpu", runtime)
        maps[runtime] = own.to(memory_format=torch.channels_last).map  # type: ignore[call-overload]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = dict.fromkeys(maps, float("inf"))
    try:
        with torch.inference_mode(), freed_memory_is_kept():
            # The first turn does not count.
            for turn in range(_TURNS + 1):
                for name, run in maps.items():
                    start = time.perf_counter()
                    run(pictures)
                    if turn:
                        seconds[name] = min(seconds[name], time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return seconds
