"""Weights files: nothing in them is executed, what does not fit is reported, equal weights have equal hashes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deixis.errors import InputError
from deixis.vision.weights import load_weights, state_sha256


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_every_container_of_the_same_weights_gives_the_same_network(tmp_path: Path) -> None:
    state = network(1).state_dict()
    torch.save(state, tmp_path / "plain.pth")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "checkpoint.pt")
    torch.save({"model": state}, tmp_path / "model.pt")
    save_file(state, tmp_path / "weights.safetensors")
    for name in ("plain.pth", "checkpoint.pt", "model.pt", "weights.safetensors"):
        target = network(2)
        load_weights(target, tmp_path / name)
        assert state_sha256(target) == state_sha256(network(1)) != state_sha256(network(2))


def test_the_hash_sees_every_value_name_and_type() -> None:
    hashes = {state_sha256(network(1)), state_sha256(network(1).half()), state_sha256(nn.Sequential(network(1)))}
    changed = network(1)
    with torch.no_grad():
        changed[0].weight[0, 0, 0, 0] += 1e-6
    assert len(hashes | {state_sha256(changed)}) == 4


def test_a_classifier_may_be_left_out_and_nothing_else(tmp_path: Path) -> None:
    state = network(1).state_dict()
    torch.save({**state, "fc.weight": torch.zeros(2)}, tmp_path / "more.pth")
    load_weights(network(2), tmp_path / "more.pth", ignore=["fc."])
    with pytest.raises(InputError, match=r'Unexpected key\(s\) in state_dict: "fc\.weight"'):
        load_weights(network(2), tmp_path / "more.pth")
    del state["0.bias"]
    torch.save(state, tmp_path / "fewer.pth")
    with pytest.raises(InputError, match=r"fewer\.pth: .*Missing key"):
        load_weights(network(2), tmp_path / "fewer.pth", ignore=["0."])
    torch.save({**network(1).state_dict(), "0.bias": torch.zeros(9)}, tmp_path / "shape.pth")
    with pytest.raises(InputError, match="holds other weights"):
        load_weights(network(2), tmp_path / "shape.pth")


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("executed"),))


def test_code_in_a_file_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Malicious()))
    torch.save({"0.weight": Malicious()}, tmp_path / "evil2.pth")
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 40)
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("evil.pth", "evil2.pth", "text.pth", "torn.safetensors", "list.pth", "absent.pth"):
        with pytest.raises(InputError, match=name):
            load_weights(network(0), tmp_path / name)
    assert not (tmp_path / "executed").exists()
