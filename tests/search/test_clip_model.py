"""A CLIP as a model: held to the model itself where open_clip can be imported, and to a stand-in everywhere."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.errors import DeixisError
from deixis.loading import absolute_name, load_search_model

TEXTS = ["a dog", "two red cars"]


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 8, 8)

    def forward(self, pictures: Tensor) -> Tensor:
        means: Tensor = self.patches(pictures).mean((2, 3))
        return means

    def forward_intermediates(self, pictures: Tensor, **options: Any) -> dict[str, list[Tensor]]:
        return {"image_intermediates": [self.patches(pictures)]}


class Model(nn.Module):
    """A CLIP as small as can be, with the methods of open_clip's."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.words = Tower(), nn.Embedding(128, 6)

    def encode_image(self, pictures: Tensor) -> Tensor:
        embedded: Tensor = self.visual(pictures)
        return embedded

    def encode_text(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.words(ids).mean(1)
        return embedded


def tokenizer(texts: Sequence[str]) -> Tensor:
    return torch.tensor([[ord(letter) % 128 for letter in text.ljust(20)[:20]] for text in texts])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a stand-in in open_clip's place, and tells which weights were asked for."""
    wanted: list[str] = []

    def create_model(name: str, pretrained: str, precision: str) -> Model:
        wanted.append(pretrained)
        torch.manual_seed(len(pretrained))
        return Model()

    stand_in = SimpleNamespace(
        create_model=create_model,
        get_tokenizer=lambda name: tokenizer,
        list_models=lambda: ["ViT-B-32", "bare"],
        list_pretrained_tags_by_model=lambda name: ["openai", "laion2b_x"] if name != "bare" else [],
        get_model_preprocess_cfg=lambda model: {
            "size": (16, 16),
            "mean": (0.5, 0.5, 0.5),
            "std": (0.25, 0.25, 0.25),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    )
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: stand_in if name == "open_clip" else real(name))
    return wanted


def test_rows_are_the_models_own(asked: list[str]) -> None:
    model = load_search_model("open_clip:ViT-B-32")
    assert asked == ["laion2b_x"]
    assert model.identity.name == "open_clip:ViT-B-32/laion2b_x"
    assert model.identity.dim == 6
    torch.manual_seed(len("laion2b_x"))
    network = Model()
    pixels = np.stack([model.prepare(Pillow.effect_noise((40, 30), 90).convert("RGB")) for _ in range(3)])
    assert pixels.shape == (3, 3, 16, 16)
    with torch.no_grad():
        pictures = F.normalize(network.encode_image((torch.from_numpy(pixels).float() / 255 - 0.5) / 0.25))
        texts = F.normalize(network.encode_text(tokenizer(TEXTS)))
    assert np.allclose(model.embed_prepared(list(pixels)).embeddings, pictures.numpy(), atol=1e-5)
    assert np.allclose(model.embed_queries(TEXTS).embeddings, texts.numpy(), atol=1e-6)
    assert model.embed_queries([]).embeddings.shape == (0, 6)
    with pytest.raises(DeixisError, match="no words"):
        model.embed_queries([" "])


def test_weights_are_distinguished(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights.pt").touch()
    one = load_search_model("open_clip:ViT-B-32/openai")
    other = load_search_model(f"open_clip:ViT-B-32/{tmp_path}/weights.pt")
    assert asked == ["openai", f"{tmp_path}/weights.pt"]
    assert one.identity != other.identity
    assert str(tmp_path) not in other.identity.name
    monkeypatch.chdir(tmp_path)
    assert absolute_name("open_clip:ViT-B-32/weights.pt") == f"open_clip:ViT-B-32/{tmp_path}/weights.pt"
    assert absolute_name("open_clip:ViT-B-32/openai") == "open_clip:ViT-B-32/openai"
    with pytest.raises(DeixisError, match="no model 'nothing'"):
        load_search_model("open_clip:nothing")
    with pytest.raises(DeixisError, match="name a file"):
        load_search_model("open_clip:bare")


@pytest.mark.filterwarnings("ignore")
def test_a_real_clip_with_random_weights(tmp_path: Path) -> None:
    try:
        open_clip = importlib.import_module("open_clip")
    except Exception as fault:  # A torchvision that was built for another torch fails with more than ImportError.
        pytest.skip(f"open_clip cannot be imported here: {fault}")
    network = open_clip.create_model("ViT-B-32").eval()
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    model = load_search_model(f"open_clip:ViT-B-32/{tmp_path}/weights.pth")
    with torch.no_grad():
        wanted = F.normalize(network.encode_text(open_clip.get_tokenizer("ViT-B-32")(TEXTS)))
    assert np.allclose(model.embed_queries(TEXTS).embeddings, wanted.numpy(), atol=1e-5)
    assert model.embed_prepared([model.prepare(Pillow.new("RGB", (50, 40), "red"))]).embeddings.shape == (1, 512)
