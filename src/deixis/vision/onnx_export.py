"""Networks on a CPU: PyTorch defines and exports them, onnxruntime runs them.

A graph that only speeds up this machine is kept in the cache folder. Those of a bundle are in the bundle
(`deixis.base.bundle_export`).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.files import atomic_write, cache_folder
from deixis.vision.onnx_sessions import open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: Read by every onnxruntime since 1.15.
OPSET = 18
#: Raise it when the same network comes to have another graph.
_VERSION = 1

#: Sizes for which a graph stays open, some 20 MB each.
MOST_SIZES = 16

#: For each input and output its axes of any size, by their names.
Axes = Mapping[str, Mapping[int, str]]


class Function(nn.Module):
    """One function of a network as a module of its own, which is what PyTorch exports."""

    def __init__(self, network: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self._function = network, function

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs)


@torch.no_grad()
def export(
    network: nn.Module,
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
    *,
    fold: bool = True,
) -> bytes:
    """The ONNX graph of a function of a network, weights inside, named as in the network after `network.`.

    Args:
        network: in evaluation mode.
        function: tensors to a tensor or a tuple of tensors.
        inputs: an example of each.
        outputs: their names.
        axes: every other axis has the size of the example.
        fold: compute what depends on weights alone now; otherwise weights stay as they are in the network.
    """
    file = io.BytesIO()
    with warnings.catch_warnings():
        # The exporter that is not deprecated cannot export packed sequences.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                Function(network, function).eval(),
                tuple(inputs.values()),
                file,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: dict(sizes) for name, sizes in axes.items()},
                do_constant_folding=fold,
            )
        except torch.onnx.OnnxExporterError as fault:
            if "not installed" not in str(fault):
                raise
            raise DeixisError("networks on a CPU need the package onnx: pip install 'deixis[research]'") from None
    return file.getvalue()


class OnnxFunction:
    """A function of a network, run by onnxruntime; may be called from several threads, each call uses one.

    For each size of inputs the graph is opened anew, which takes a tenth of a second: once it knows the sizes,
    onnxruntime makes paddings part of the convolutions, and is a fifth faster.
    """

    def __init__(self, graph: bytes, axes: Axes) -> None:
        self._graph, self._axes = graph, axes
        self._sessions = lru_cache(MOST_SIZES)(self._opened)

    def __call__(self, **inputs: Tensor) -> list[Tensor]:
        sizes = {
            axis: value.shape[dimension]
            for name, value in inputs.items()
            for dimension, axis in self._axes[name].items()
        }
        arrays = {name: value.contiguous().numpy() for name, value in inputs.items()}
        session = self._sessions(tuple(sizes.items()))
        return [torch.from_numpy(values) for values in session.run(None, arrays)]

    def _opened(self, sizes: tuple[tuple[str, int], ...]) -> InferenceSession:
        return open_session(self._graph, threads=1, sizes=dict(sizes))


def cached_function(
    key: str,
    network: nn.Module,
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
) -> OnnxFunction:
    """`export`, from the cache folder where it was exported before; `key` says which function, of which weights."""
    path = cache_folder() / "graphs" / f"{key}-{torch.__version__}-{_VERSION}.onnx"
    with suppress(OSError):
        return OnnxFunction(path.read_bytes(), axes)
    graph = export(network, function, inputs, outputs, axes)
    # Where nothing can be written it is exported again the next time.
    with suppress(OSError), atomic_write(path) as stream:
        stream.write(graph)
    return OnnxFunction(graph, axes)
