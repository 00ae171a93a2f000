"""Train the coreference scorer (`deixis.text.coreference`) on pairs of mentions in different captions of an image.

Pairs are those that the annotation workflow would ask about: of different captions, with a type in common. The loss is
the logistic loss; the weights are exported to plain arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.corpus.leak_guard import TrainingSet
from deixis.corpus.records import Image
from deixis.text.coreference import (
    FEATURES,
    LONGEST,
    CoreferenceScorer,
    MentionText,
    image_mentions,
    labelled_pairs,
    pair_features,
    word_rows,
)
from deixis.training.schedule import Cosine, Schedule
from deixis.training.task import Batches, Loss
from deixis.training.tools.tool_runs import ToolRecipe


class CoreferenceRecipe(ToolRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a coreference scorer's training."""

    name: str = "coreference"
    kind: str = "coreference"
    about: str = "Decides whether mentions in two captions are the same entity."
    batch_size: int = 1024
    width: int = 16
    hidden: int = 64
    dropout: float = 0.2
    minimum_count: int = 20
    #: Share of words that are replaced by the unknown word, so that the model learns to do without them.
    forgotten: float = 0.05


def coreference_recipe(epochs: int = 4, seed: int = 0) -> CoreferenceRecipe:
    schedule = Schedule(
        epochs=epochs,
        learning_rate=3e-3,
        optimizer="adamw",
        weight_decay=0.01,
        decay=Cosine(warm_up=0.3 * epochs),
    )
    return CoreferenceRecipe(seed=seed, schedule=schedule)


@dataclass(frozen=True)
class Pairs:
    """Pairs as arrays: word rows (pairs, 2, 1 + LONGEST), the head first, padded with -1; features; labels."""

    rows: NDArray[np.int64]
    features: NDArray[np.float32]
    labels: NDArray[np.float32]
    #: The image of each pair.
    image_ids: list[str]


def pairs_f1(scorer: CoreferenceScorer, images: Iterable[Image]) -> float:
    """F1 of "same entity" over all labelled pairs of some images."""
    pairs = [pair for image in images for pair in labelled_pairs(image)]
    predicted = scorer.probabilities([(first, second) for first, second, _ in pairs]) > 0.5
    same = np.array([label for _, _, label in pairs])
    return float(2 * (predicted & same).sum() / max(predicted.sum() + same.sum(), 1))


class ScorerNetwork(nn.Module):
    """Logits (pairs,) from word rows and features; row 0 is the unknown word."""

    def __init__(self, words: int, recipe: CoreferenceRecipe) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, recipe.width)
        nn.init.normal_(self.vectors.weight, std=0.3)
        self.hidden = nn.Linear(4 * recipe.width + FEATURES, recipe.hidden)
        self.dropout = nn.Dropout(recipe.dropout)
        self.out = nn.Linear(recipe.hidden, 1)

    def forward(self, rows: Tensor, features: Tensor) -> Tensor:
        present = (rows >= 0).unsqueeze(-1)
        vectors = self.vectors(rows.clamp(min=0)) * present
        words = vectors[:, :, 1:].sum(2) / present[:, :, 1:].sum(2)
        sides = torch.cat([vectors[:, :, 0], words], dim=-1)
        first, second = sides[:, 0], sides[:, 1]
        inputs = torch.cat([first * second, (first - second).abs(), features], dim=-1)
        logits: Tensor = self.out(self.dropout(torch.relu(self.hidden(inputs)))).squeeze(-1)
        return logits


class PairBatch(NamedTuple):
    rows: Tensor
    features: Tensor
    labels: Tensor
    pairs: NDArray[np.intp]


class CoreferenceTask:
    """The trainer's task (`deixis.training.task.Task`).

    Args:
        training: images whose captions have phrases in chains.
        held_out: other images, to validate on.
        recipe: all settings.
    """

    def __init__(self, training: TrainingSet, held_out: Iterable[Image], recipe: CoreferenceRecipe) -> None:
        self._recipe, self._held_out = recipe, tuple(held_out)
        self.vocabulary = _vocabulary(training, recipe.minimum_count)
        self._pairs = _arrays(training, self.vocabulary)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.module = ScorerNetwork(1 + len(self.vocabulary), recipe)

    def batches(self, epoch: int) -> Batches[PairBatch]:
        random = np.random.default_rng((self._recipe.seed, epoch))
        order, size = random.permutation(len(self._pairs.labels)), self._recipe.batch_size
        starts = range(0, len(order), size)
        return Batches(len(starts), (self._batch(order[start : start + size], random) for start in starts))

    def _batch(self, pairs: NDArray[np.intp], random: np.random.Generator) -> PairBatch:
        rows = self._pairs.rows[pairs]
        rows = np.where((random.random(rows.shape) < self._recipe.forgotten) & (rows > 0), 0, rows)
        features, labels = self._pairs.features[pairs], self._pairs.labels[pairs]
        return PairBatch(torch.from_numpy(rows), torch.from_numpy(features), torch.from_numpy(labels), pairs)

    def loss(self, batch: PairBatch) -> Loss:
        logits = self.module(batch.rows, batch.features)
        return Loss(nn.functional.binary_cross_entropy_with_logits(logits, batch.labels))

    def validate(self) -> dict[str, float]:
        """F1 of the pairs of the images that were held out."""
        return {"f1": pairs_f1(self.export(), self._held_out)}

    def describe(self, batch: PairBatch) -> str:
        return "images " + ", ".join(dict.fromkeys(self._pairs.image_ids[pair] for pair in batch.pairs))

    def export(self) -> CoreferenceScorer:
        """The scorer with the weights as they are now."""
        return export(self.module, self.vocabulary)


def export(network: ScorerNetwork, vocabulary: Iterable[str]) -> CoreferenceScorer:
    """The network's weights as the plain arrays that `CoreferenceScorer` takes."""
    layers = {"hidden": network.hidden, "out": network.out}
    arrays = {"vectors": network.vectors.weight.detach().numpy().copy()}
    for name, layer in layers.items():
        arrays[f"{name}.weight"] = layer.weight.detach().numpy().T.copy()
        arrays[f"{name}.bias"] = layer.bias.detach().numpy().copy()
    return CoreferenceScorer(tuple(vocabulary), arrays)


def _vocabulary(training: TrainingSet, minimum: int) -> list[str]:
    counts = Counter(word for image in training for text in image_mentions(image)[0] for word in text.words)
    return sorted(word for word, count in counts.items() if count >= minimum)


def _arrays(training: TrainingSet, vocabulary: list[str]) -> Pairs:
    known = {word: row for row, word in enumerate(vocabulary, start=1)}
    rows, features, labels, image_ids = [], [], [], []
    for image in training:
        for first, second, same in labelled_pairs(image):
            rows.append([_padded(first, known), _padded(second, known)])
            features.append(pair_features(first, second))
            labels.append(float(same))
            image_ids.append(image.id)
    return Pairs(np.array(rows, np.int64), np.array(features, np.float32), np.array(labels, np.float32), image_ids)


def _padded(mention: MentionText, known: dict[str, int]) -> list[int]:
    rows = word_rows(mention, known)
    return rows + [-1] * (1 + LONGEST - len(rows))
