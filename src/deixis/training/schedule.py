"""How a model is trained, as data: the `[schedule]` section of a recipe. Loads without torch.

[schedule]
epochs = 30
optimizer = "adam"                # or adamw, sgd (with momentum), rmsprop, adagrad, adadelta
learning_rate = 1e-4
decay = { kind = "cosine", warm_up = 0.5 }   # warm_up in epochs; or constant, or step (every, factor)
clip = { kind = "norm", at = 5.0 }           # of all gradients together; or "value": each element
averaging = 0.999                 # the moving average of the weights is what is validated and kept
figure = "rsum"                   # validation figure that decides which epoch is kept
first_kept = 1                    # of the epochs from this one on
patience = 5                      # stop after so many epochs without a better one

[[schedule.groups]]               # parameters of this name, or below it
prefix = "backbone"
rate = 0.1                        # times the learning rate
frozen_epochs = 2                 # neither weights nor statistics change in the first two
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
#: Of a rate: far beyond any that learns, and small enough that no optimizer leaves float32 in its first step.
HIGHEST = 1000.0
Count = Annotated[int, Meta(ge=1)]


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """The learning rate stays; after a linear `warm_up` of so many epochs."""

    warm_up: NotNegative = 0.0

    def after_warm_up(self, time: float, epochs: int) -> float:
        return 1.0


class StepDecay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="step"):
    """The learning rate is multiplied by `factor` after `every` epochs, again and again."""

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
    """Gradients are scaled down to a norm, all together, or cut element by element (the DVSA paper: at 5)."""

    kind: Literal["norm", "value"]
    at: Positive


class ParameterGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters named `prefix`, or below it: their share of the learning rate, and how long they stay frozen."""

    prefix: Annotated[str, Meta(min_length=1)]
    rate: Annotated[float, Meta(ge=0, le=HIGHEST)] = 1.0
    frozen_epochs: Annotated[int, Meta(ge=0)] = 0

    def holds(self, name: str) -> bool:
        return name == self.prefix or name.startswith(f"{self.prefix}.")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`precision` "mixed" is bfloat16 where it is safe, on a GPU alone; "bfloat16" does so on any device.

    Without `figure`, the weights after the last epoch are kept.
    """

    epochs: Count
    learning_rate: Annotated[float, Meta(gt=0, le=HIGHEST)]
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "adadelta"] = "adam"
    #: Of sgd and rmsprop.
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
            raise ValueError(f"first_kept is epoch {self.first_kept}, but there are {self.epochs}: none would be kept")
        if self.patience is not None and self.figure is None:
            raise ValueError("patience needs a figure to watch: name it as `figure`")
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ValueError(f"momentum is of sgd and rmsprop, not of {self.optimizer}")

    def rate_factor(self, epoch: int, step: int, steps: int) -> float:
        """What the learning rate is multiplied by in step `step` of `steps` of an epoch, all counted from 1.

        Time runs in epochs and is taken at the middle of the step, so that no step has the rate 0.
        """
        time = epoch - 1 + (step - 0.5) / steps
        if time < self.decay.warm_up:
            return time / self.decay.warm_up
        return self.decay.after_warm_up(time, self.epochs)

    def is_better(self, figure: float, than: float) -> bool:
        return figure < than if self.lower_is_better else figure > than

    def validates(self, epoch: int) -> bool:
        return epoch % self.validate_every == 0 or epoch == self.epochs
