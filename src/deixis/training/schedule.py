"""How a model is trained, as data: the `[schedule]` section of a recipe. Loads without torch.

[schedule]
epochs = 30
optimizer = "adam"                # or adamw, sgd (with momentum), rmsprop, adagrad, adadelta
learning_rate = 1e-4
decay = { kind = "cosine", warm_up = 0.5 }   # warm_up in epochs; or constant, or step (every, factor)
clip = { kind = "norm", at = 5.0 }           # of all gradients together; or "value": each element
averaging = 0.999                 # validate and keep a moving average of the weights
figure = "rsum"                   # the validation figure by which the best epoch is kept
first_kept = 1                    # the first epoch that can be kept
patience = 5                      # stop after this many epochs without improvement

[[schedule.groups]]               # parameters named `backbone` or `backbone.…`
prefix = "backbone"
rate = 0.1                        # factor of the learning rate
frozen_epochs = 2                 # weights and statistics do not change in the first two epochs
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
#: The largest rate: far above any useful one, and small enough that no optimizer overflows in its first step.
HIGHEST = 1000.0
Count = Annotated[int, Meta(ge=1)]


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """A constant learning rate, after a linear warm-up of `warm_up` epochs."""

    warm_up: NotNegative = 0.0

    def after_warm_up(self, time: float, epochs: int) -> float:
        return 1.0


class StepDecay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="step"):
    """The learning rate is multiplied by `factor` every `every` epochs."""

    every: Count
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.1
    warm_up: NotNegative = 0.0

    def after_warm_up(self, time: float, epochs: int) -> float:
        return self.factor ** (int(time) // self.every)


class Cosine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cosine"):
    """Half a cosine from the full learning rate down to `final` times it at the end of the last epoch."""

    warm_up: NotNegative = 0.0
    final: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def after_warm_up(self, time: float, epochs: int) -> float:
        share = (time - self.warm_up) / (epochs - self.warm_up)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * share))


class Clip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clip gradients by their global norm, or element by element (the DVSA paper: at 5)."""

    kind: Literal["norm", "value"]
    at: Positive


class ParameterGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters named `prefix` or `prefix.…`: their factor of the learning rate, and how long they are frozen."""

    prefix: Annotated[str, Meta(min_length=1)]
    rate: Annotated[float, Meta(ge=0, le=HIGHEST)] = 1.0
    frozen_epochs: Annotated[int, Meta(ge=0)] = 0

    def contains(self, name: str) -> bool:
        return name == self.prefix or name.startswith(f"{self.prefix}.")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[schedule]` section.

    `precision` "mixed" is autocast to bfloat16 on a GPU, and float32 elsewhere; "bfloat16" is autocast on any device.
    Without `figure`, the weights after the last epoch are kept.
    """

    epochs: Count
    learning_rate: Annotated[float, Meta(gt=0, le=HIGHEST)]
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "adadelta"] = "adam"
    #: For sgd and rmsprop.
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0, le=HIGHEST)] = 0.0
    groups: tuple[ParameterGroup, ...] = ()
    decay: Constant | StepDecay | Cosine = Constant()
    clip: Clip | None = None
    precision: Literal["float32", "mixed", "bfloat16"] = "float32"
    averaging: Annotated[float, Meta(gt=0, lt=1)] | None = None
    validate_every: Count = 1
    figure: str | None = None
    first_kept: Count = 1
    lower_is_better: bool = False
    patience: Count | None = None

    def __post_init__(self) -> None:
        if self.decay.warm_up >= self.epochs:
            raise ValueError(f"decay.warm_up of {self.decay.warm_up:g} epochs does not end within {self.epochs}")
        if self.first_kept > self.epochs:
            raise ValueError(f"first_kept is {self.first_kept}, but there are only {self.epochs} epochs")
        if self.patience is not None and self.figure is None:
            raise ValueError("patience needs a validation figure: set `figure`")
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ValueError(f"{self.optimizer} has no momentum; sgd and rmsprop do")

    def rate_factor(self, epoch: int, step: int, steps: int) -> float:
        """The factor of the learning rate in step `step` of the `steps` of an epoch, counted from 1.

        The schedule is evaluated at the middle of the step, so that no step has rate 0.
        """
        time = epoch - 1 + (step - 0.5) / steps
        if time < self.decay.warm_up:
            return time / self.decay.warm_up
        return self.decay.after_warm_up(time, self.epochs)

    def is_better(self, figure: float, than: float) -> bool:
        return figure < than if self.lower_is_better else figure > than

    def validates(self, epoch: int) -> bool:
        return epoch % self.validate_every == 0 or epoch == self.epochs
