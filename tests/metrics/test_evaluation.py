"""`deixis.evaluate` takes anything that embeds or scores, on any corpus, and gives the figures of the bare metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deixis
from deixis.corpus import Corpus
from deixis.features.store import FeatureStore
from deixis.metrics.protocols import Pictures, retrieval
from deixis.training.feature_model import FeatureModel
from tests.search.fakes import CellModel
from tests.stores import make_store


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return deixis.open_corpus("scenes:40")


def colours(image: Any) -> np.ndarray:
    return np.asarray(image.resize((4, 4)), np.float32).reshape(-1) / 255


def letters(text: str) -> np.ndarray:
    return np.array([text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"])


class Embeds:
    """What a user may write: it knows nothing of Deixis."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def embed_images(self, images: list[Any]) -> np.ndarray:
        assert all(image.mode == "RGB" for image in images)
        self.batches.append(len(images))
        return np.stack([colours(image) for image in images])

    def embed_texts(self, texts: list[str]) -> np.ndarray:
        assert all(isinstance(text, str) for text in texts)
        return np.stack([letters(text) for text in texts]).astype(np.float32)


class ScoresTensors:
    def score(self, images: list[Any], texts: list[str]) -> torch.Tensor:
        arrays = (Embeds().embed_images(images), Embeds().embed_texts(texts))
        sides = [torch.tensor(side, requires_grad=True) for side in arrays]
        return torch.nn.functional.normalize(sides[0]) @ torch.nn.functional.normalize(sides[1]).T


def figures_of(corpus: Corpus) -> dict[str, Any]:
    from deixis.vision.reading import read_picture

    images = np.stack([colours(read_picture(corpus, image)) for image in corpus])
    texts = np.stack([letters(caption.text) for image in corpus for caption in image.captions])
    image_of = [number for number, image in enumerate(corpus) for _ in image.captions]
    return deixis.metrics.embedding_recall_at_k(images, texts.astype(np.float32), image_of=image_of)


def test_a_class_of_ones_own_gets_the_figures_of_its_embeddings(corpus: Corpus) -> None:
    model, test = Embeds(), corpus.split("test")
    result = deixis.evaluate(model, corpus, batch_size=3)
    assert result.metrics == figures_of(test)
    assert sum(model.batches) == len(test) == result.counts["images"]
    assert max(model.batches) == 3
    assert result.protocol.parameters["model"] == "Embeds"
    assert result.corpus is not None
    assert result.corpus.split_hash == corpus.split_hash("test")
    assert repr(result).startswith(f"image-text ranking on {corpus.name} test ({len(test)} images")


def test_scores_as_tensors_and_corpora_as_paths(corpus: Corpus, tmp_path: Path) -> None:
    expected = deixis.evaluate(Embeds(), corpus, split=None).figures
    assert deixis.evaluate(ScoresTensors(), corpus, split=None).figures == pytest.approx(expected)
    deixis.write_corpus(corpus, tmp_path / "written", format="karpathy", pictures=True)
    again = deixis.evaluate(Embeds(), str(tmp_path / "written"), split=None)
    assert again.counts == {"images": len(corpus), "captions": sum(len(image.captions) for image in corpus)}
    assert deixis.evaluate(Embeds(), "scenes:40", split=None).figures == expected


def test_a_model_of_deixis_is_given_tokens_and_stored_features(corpus: Corpus, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", corpus, channels=48)

    class Stored(deixis.Model):
        name = "stored"

        def embed_images(self, images: Any) -> np.ndarray:
            return np.stack([image.image for image in images]).astype(np.float32)

        def embed_texts(self, texts: Any) -> np.ndarray:
            assert all(isinstance(text, tuple) for text in texts)
            return np.stack([letters(" ".join(text)) for text in texts]).astype(np.float32)

    expected = retrieval(Stored(), Pictures(corpus, "test", store, learned_from_boxes=False))
    result = deixis.evaluate(Stored(), corpus, features=store)
    assert result.metrics == expected.metrics
    assert result.protocol.parameters["features"] == store.fingerprint[:16]
    assert deixis.evaluate(Stored(), corpus, features=tmp_path / "store").metrics == expected.metrics
    assert FeatureStore(tmp_path / "store").fingerprint == store.fingerprint


class Wrong:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def score(self, images: list[Any], texts: list[str]) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (object(), "object has neither embed_images and embed_texts nor score"),
        (Wrong(np.zeros(3)), r"Wrong.score gave float64 of shape \(3,\), not a matrix"),
        (Wrong(np.zeros((1, 1))), r"Wrong gave scores of shape \(1, 1\), not"),
        (Wrong([["a"]]), "not a matrix"),
        (deixis.Model(), "Model has neither"),
    ],
    ids=["no methods", "a vector", "another shape", "text", "a model that can nothing"],
)
def test_faults_of_a_model_are_named(model: Any, message: str, corpus: Corpus) -> None:
    with pytest.raises(deixis.DeixisError, match=message):
        deixis.evaluate(model, corpus)


def test_a_model_of_deixis_reads_the_captions_once(corpus: Corpus, tmp_path: Path) -> None:
    """Not once per batch of pictures, whether it takes pictures or features; scores are the same."""

    class Words(CellModel):
        asked = 0

        def embed_queries(self, texts: Any) -> Any:
            self.asked += 1
            return super().embed_queries([" ".join(text) for text in texts])

    class Scores(FeatureModel):
        asked = 0

        def score(self, images: Any, texts: Any) -> np.ndarray:
            self.asked += 1
            rows = np.stack([image.image for image in self.features_of(images)]).astype(np.float32)
            return rows @ np.stack([letters(" ".join(text)) for text in texts]).T

    store = make_store(tmp_path / "store", corpus, channels=48)
    for model, features in ((Words(), None), (Scores(torch.device("cpu")), store)):
        result = deixis.evaluate(model, corpus, split=None, features=features, batch_size=3)
        assert model.asked == 1
        assert result.metrics == deixis.evaluate(model, corpus, split=None, features=features, batch_size=40).metrics
