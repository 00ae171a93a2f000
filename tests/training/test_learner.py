"""One step of the learner against torch's own optimizers, clipping, averaging; groups and freezing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from deixis.errors import DeixisError
from deixis.training.optimization import Learner
from tests.training.toy import schedule


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


INPUTS = torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(1))


def descend(module: nn.Module, **settings: Any) -> Learner:
    """Five steps at the full learning rate."""
    learner = Learner(module, schedule(learning_rate=0.1, **settings))
    for epoch, batch in enumerate(INPUTS, start=1):
        learner.begin_epoch(epoch)
        learner.step(module(batch).square().sum(), 1.0)
    return learner


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([value.grad.flatten() for value in module.parameters() if value.grad is not None])


@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [
        ("adam", {"weight_decay": 0.1}, lambda values: torch.optim.Adam(values, 0.1, weight_decay=0.1)),
        ("adamw", {"weight_decay": 0.1}, lambda values: torch.optim.AdamW(values, 0.1, weight_decay=0.1)),
        ("sgd", {"momentum": 0.9}, lambda values: torch.optim.SGD(values, 0.1, momentum=0.9)),
        ("rmsprop", {"momentum": 0.5}, lambda values: torch.optim.RMSprop(values, 0.1, momentum=0.5)),
    ],
)
def test_steps_are_those_of_the_named_optimizer(name: str, settings: dict[str, Any], make: Any) -> None:
    ours, theirs = network(), network()
    descend(ours, optimizer=name, **settings)
    optimizer = make(theirs.parameters())
    for batch in INPUTS:
        optimizer.zero_grad()
        theirs(batch).square().sum().backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["norm", "value"])
def test_gradients_are_clipped_all_together_or_each(kind: str) -> None:
    free, clipped = network(), network()
    norm = Learner(free, schedule(optimizer="sgd")).step(free(INPUTS[0]).square().sum(), 1.0)
    learner = Learner(clipped, schedule(optimizer="sgd", clip={"kind": kind, "at": 0.5}))
    assert learner.step(clipped(INPUTS[0]).square().sum(), 1.0) == norm == gradients(free).norm()
    assert norm > 0.5
    expected = gradients(free) * 0.5 / norm if kind == "norm" else gradients(free).clamp(-0.5, 0.5)
    torch.testing.assert_close(gradients(clipped), expected)
    # A gradient within the bound is left as it is.
    calm = network()
    Learner(calm, schedule(clip={"kind": kind, "at": 1e6})).step(calm(INPUTS[0]).square().sum(), 1.0)
    assert torch.equal(gradients(calm), gradients(free))


def test_the_average_is_that_of_torch_and_is_what_is_validated_and_kept() -> None:
    ours, theirs = network(), network()
    learner = Learner(ours, schedule(learning_rate=0.1, averaging=0.7))
    moving: Any = get_ema_multi_avg_fn(0.7)  # type: ignore[no-untyped-call]
    average = AveragedModel(theirs, multi_avg_fn=moving, use_buffers=True)
    optimizer = torch.optim.Adam(theirs.parameters(), 0.1)
    for batch in INPUTS:
        learner.step(ours(batch).square().sum(), 1.0)
        optimizer.zero_grad()
        theirs(batch).square().sum().backward()
        optimizer.step()
        average.update_parameters(theirs)
    expected = average.module.state_dict()
    before = copy.deepcopy(ours.state_dict())
    kept = learner.weights()
    with learner.evaluating():
        seen = copy.deepcopy(ours.state_dict())
        assert not ours.training
        assert not torch.is_grad_enabled()
    for name in expected:
        # A count (of batches seen) is not averaged.
        if expected[name].is_floating_point():
            torch.testing.assert_close(seen[name], expected[name])
        assert torch.equal(seen[name], kept[name])
        assert torch.equal(ours.state_dict()[name], before[name])
    assert not torch.equal(seen["0.weight"], before["0.weight"])


def test_a_group_has_its_share_of_the_rate_and_is_frozen_as_long_as_it_says() -> None:
    module = network()
    start = copy.deepcopy(module.state_dict())
    groups = [{"prefix": "0", "rate": 0.25}, {"prefix": "1", "frozen_epochs": 2}]
    learner = Learner(module, schedule(optimizer="sgd", learning_rate=0.1, groups=groups))
    learner.begin_epoch(2)
    learner.step(module(INPUTS[0]).square().sum(), 0.5)
    for name, value in module.named_parameters():
        share = {"0": 0.25, "1": None, "3": 1.0}[name[0]]
        if share is None:
            assert value.grad is None
            assert torch.equal(value, start[name])
        else:
            torch.testing.assert_close(value.detach(), start[name] - 0.1 * 0.5 * share * value.grad)
    # Its statistics rest too, and are learned like all else from the third epoch on.
    assert torch.equal(module.state_dict()["1.running_mean"], start["1.running_mean"])
    learner.begin_epoch(3)
    learner.step(module(INPUTS[1]).square().sum(), 0.5)
    assert not torch.equal(module.state_dict()["1.weight"], start["1.weight"])
    assert not torch.equal(module.state_dict()["1.running_mean"], start["1.running_mean"])


def test_what_needs_no_gradient_is_never_learned() -> None:
    module = network()
    module[0].requires_grad_(False)
    start = copy.deepcopy(module.state_dict())
    descend(module, optimizer="adamw", weight_decay=0.5)
    assert torch.equal(module.state_dict()["0.weight"], start["0.weight"])
    assert not torch.equal(module.state_dict()["3.weight"], start["3.weight"])
    with pytest.raises(DeixisError, match="no trained parameter is named '0'"):
        descend(module, groups=[{"prefix": "0"}])
    with pytest.raises(DeixisError, match="no parameters to train"):
        descend(nn.Sequential(nn.ReLU()))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "adagrad", "adadelta"])
def test_a_learner_that_goes_on_has_its_moments_in_memory_as_its_weights_are(optimizer: str) -> None:
    def learner() -> Learner:
        layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Learner(layer, schedule(learning_rate=0.1, optimizer=optimizer))

    def step(one: Learner, seed: int) -> None:
        pictures = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
        one.step(one.module(pictures).square().sum(), 1.0)

    begun, other = learner(), learner()
    step(begun, 0)
    other.restore({name: value.clone(memory_format=torch.contiguous_format) for name, value in begun.tensors().items()})
    weight = other.module.weight
    assert not weight.is_contiguous()
    moments = [value for value in other.optimizer.state[weight].values() if value.shape == weight.shape]
    assert moments
    assert {value.stride() for value in moments} == {weight.stride()}
    step(begun, 1)
    step(other, 1)
    assert all(torch.equal(value, begun.tensors()[name]) for name, value in other.tensors().items())


@pytest.mark.parametrize("fused", [False, True])
def test_momentum_begins_with_a_parameter_s_first_gradient(fused: bool) -> None:
    """As with torch's own loop over parameters, also where one kernel steps all of them."""
    ours, theirs = network(), network()
    learner = Learner(ours, schedule(learning_rate=0.1, optimizer="sgd", momentum=0.9))
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9, foreach=False)
    for group in learner.optimizer.param_groups:
        group["fused"], group["foreach"] = fused, False
    for number, batch in enumerate(INPUTS):
        # At first the last layer has no part in it.
        losses = [(module if number > 1 else module[:2])(batch).square().sum() for module in (ours, theirs)]
        learner.step(losses[0], 1.0)
        optimizer.zero_grad()
        losses[1].backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
