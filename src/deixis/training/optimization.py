"""The state of a training: module, optimizer, moving average. All optimizer steps are taken here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim.swa_utils import get_ema_multi_avg_fn

from deixis.errors import DeixisError
from deixis.training.schedule import ParameterGroup, Schedule


class Learner:
    """A module with the optimizer of a schedule. Parameters that need no gradient are left alone."""

    def __init__(self, module: nn.Module, schedule: Schedule) -> None:
        self.module, self._schedule = module, schedule
        self._groups = _grouped(module, schedule.groups)
        #: Names of the parameters in the optimizer's order.
        self._names = [name for names in self._groups.values() for name in names]
        self.optimizer = _optimizer(module, schedule, self._groups)
        self._average: dict[str, Tensor] | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Switch to training mode, except frozen groups: their weights and statistics stay, without dropout."""
        self.module.train()
        parameters = dict(self.module.named_parameters())
        for group, names in self._groups.items():
            frozen = epoch <= group.frozen_epochs
            for name in names:
                parameters[name].requires_grad_(not frozen)
            if frozen:
                for name, part in self.module.named_modules():
                    if group.contains(name):
                        part.training = False

    def step(self, total: Tensor, factor: float | Tensor) -> Tensor:
        """One optimizer step at `factor` times the learning rate; returns the gradient's norm.

        A captured step reads the factor from a tensor.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        parameters = [value for group in self.optimizer.param_groups for value in group["params"]]
        norm = get_total_norm(value.grad for value in parameters if value.grad is not None)
        clip = self._schedule.clip
        if clip is not None and clip.kind == "norm":
            clip_grads_with_norm_(parameters, clip.at, norm)
        elif clip is not None:
            clip_grad_value_(parameters, clip.at)
        for group in self.optimizer.param_groups:
            group["lr"] = self._schedule.learning_rate * group["rate"] * factor
        self._begin_momentum(parameters)
        self.optimizer.step()
        if self._schedule.averaging is not None:
            self._update_average(self._schedule.averaging)
        return norm

    def _begin_momentum(self, parameters: list[Tensor]) -> None:
        """Fused SGD needs all momentum buffers or none, but some parameters get their first gradient later."""
        if not isinstance(self.optimizer, torch.optim.SGD) or not self._schedule.momentum:
            return
        for value in parameters:
            if value.grad is not None and self.optimizer.state[value].get("momentum_buffer") is None:
                self.optimizer.state[value]["momentum_buffer"] = torch.zeros_like(value)

    @torch.no_grad()
    def _update_average(self, decay: float) -> None:
        """average ← decay · average + (1 − decay) · weights, starting with the weights after the first step."""
        state = self.module.state_dict()
        if self._average is None:
            self._average = {name: value.clone() for name, value in state.items()}
            return
        moving = [name for name, value in state.items() if value.is_floating_point()]
        update: Any = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        update([self._average[name] for name in moving], [state[name] for name in moving], None)
        for name in state.keys() - set(moving):
            self._average[name].copy_(state[name])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients, with the averaged weights if there are any."""
        self.module.eval()
        average = self._average
        weights = {name: value.clone() for name, value in self.module.state_dict().items()} if average else None
        try:
            with torch.no_grad():
                if average:
                    self.module.load_state_dict(average)
                yield
        finally:
            if weights:
                self.module.load_state_dict(weights)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights: the averaged ones if there are any."""
        return {name: value.detach().clone() for name, value in (self._average or self.module.state_dict()).items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on, by name, not copied."""
        state = {f"weights/{name}": value for name, value in self.module.state_dict().items()}
        state |= {f"average/{name}": value for name, value in (self._average or {}).items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors = ((key, value) for key, value in values.items() if isinstance(value, Tensor))
            state |= {f"optimizer/{key}/{self._names[index]}": value for key, value in tensors}
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore `tensors()` of another process. Raises `KeyError` or `RuntimeError` if they do not fit."""
        weights, average = _under("weights/", tensors), _under("average/", tensors)
        self.module.load_state_dict(weights)
        current = self.module.state_dict()
        self._average = {name: value.to(current[name].device) for name, value in average.items()} or None
        indices = {name: index for index, name in enumerate(self._names)}
        parameters = dict(self.module.named_parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for key_and_name, value in _under("optimizer/", tensors).items():
            key, _, name = key_and_name.partition("/")
            parameter = parameters[name]
            if value.shape == parameter.shape:
                # In the memory format of the parameter (channels last, say), which fused steps require.
                value = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            state.setdefault(indices[name], {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _grouped(module: nn.Module, groups: tuple[ParameterGroup, ...]) -> dict[ParameterGroup, list[str]]:
    """Names of the trained parameters by group: the first group that contains them, or one for all others."""
    rest = ParameterGroup("the others")
    grouped: dict[ParameterGroup, list[str]] = {group: [] for group in (*groups, rest)}
    for name, value in module.named_parameters():
        if value.requires_grad:
            grouped[next((group for group in groups if group.contains(name)), rest)].append(name)
    for group in groups:
        if not grouped[group]:
            raise DeixisError(f"schedule.groups: no trained parameter is named {group.prefix!r} or {group.prefix}.…")
    return {group: names for group, names in grouped.items() if names}


def _optimizer(
    module: nn.Module, schedule: Schedule, groups: Mapping[ParameterGroup, list[str]]
) -> torch.optim.Optimizer:
    values = dict(module.named_parameters())
    # One kernel for all parameters, and the step count on the device, where a captured step can read it.
    fused = all(value.is_cuda for value in values.values())
    settings = [
        {"params": [values[name] for name in names], "rate": group.rate, "capturable": fused}
        for group, names in groups.items()
    ]
    if not settings:
        raise DeixisError("the model has no parameters to train")
    rate, decay, momentum = schedule.learning_rate, schedule.weight_decay, schedule.momentum
    match schedule.optimizer:
        case "adam":
            return torch.optim.Adam(settings, lr=rate, weight_decay=decay, fused=fused)
        case "adamw":
            return torch.optim.AdamW(settings, lr=rate, weight_decay=decay, fused=fused)
        case "sgd":
            return torch.optim.SGD(settings, lr=rate, weight_decay=decay, momentum=momentum, fused=fused)
        case "rmsprop":
            return torch.optim.RMSprop(settings, lr=rate, weight_decay=decay, momentum=momentum)
        case "adagrad":
            return torch.optim.Adagrad(settings, lr=rate, weight_decay=decay)
        case "adadelta":
            return torch.optim.Adadelta(settings, lr=rate, weight_decay=decay)
