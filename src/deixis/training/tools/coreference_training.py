"""Train the coreference scorer (`deixis.text.coreference`) on pairs of mentions in different captions of an image.

Pairs are those that the annotation workflow would ask about: of different captions, with a type in common. The loss is
the logistic one; what was learned is exported to plain arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.corpus.records import Image
from deixis.corpus.training import TrainingSet
from deixis.text.coreference import (
    FEATURES,
    LONGEST,
    CoreferenceScorer,
    MentionText,
    mention_texts,
    pair_features,
    word_rows,
)


@dataclass(frozen=True)
class Schedule:
    epochs: int = 4
    batch_size: int = 1024
    learning_rate: float = 3e-3
    width: int = 16
    hidden: int = 64
    dropout: float = 0.2
    minimum_count: int = 20
    #: Share of words that are hidden from the model, so that it learns to go without.
    forgotten: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Pairs:
    """Pairs as arrays: word rows (pairs, 2, 1 + LONGEST) with the head first and -1 for none, features, labels."""

    rows: NDArray[np.int64]
    features: NDArray[np.float32]
    labels: NDArray[np.float32]


def mentions_of(image: Image) -> tuple[list[MentionText], list[int], list[str]]:
    """The visual mentions of an image, each with its caption and its chain."""
    found = [
        (number, caption.tokens[phrase.start : phrase.end], phrase)
        for number, caption in enumerate(image.captions)
        for phrase in caption.phrases
        if phrase.visual
    ]
    texts = mention_texts((number, tokens, phrase.types) for number, tokens, phrase in found)
    return texts, [number for number, _, _ in found], [phrase.chain for _, _, phrase in found]


def labelled_pairs(image: Image) -> Iterator[tuple[MentionText, MentionText, bool]]:
    """The pairs of mentions that would be asked about, and whether they name the same."""
    texts, captions, chains = mentions_of(image)
    for first, second in combinations(range(len(texts)), 2):
        if captions[first] != captions[second] and not set(texts[first].types).isdisjoint(texts[second].types):
            yield texts[first], texts[second], chains[first] == chains[second]


def pairs_f1(scorer: CoreferenceScorer, images: Iterable[Image]) -> float:
    """F1 of "the same" over all pairs that would be asked about."""
    pairs = [pair for image in images for pair in labelled_pairs(image)]
    found = scorer.probabilities([(first, second) for first, second, _ in pairs]) > 0.5
    same = np.array([label for _, _, label in pairs])
    return float(2 * (found & same).sum() / max(found.sum() + same.sum(), 1))


class ScorerNetwork(nn.Module):
    """Logits (pairs,) from word rows and features; row 0 is the unknown word's."""

    def __init__(self, words: int, schedule: Schedule) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, schedule.width)
        nn.init.normal_(self.vectors.weight, std=0.3)
        self.hidden = nn.Linear(4 * schedule.width + FEATURES, schedule.hidden)
        self.dropout = nn.Dropout(schedule.dropout)
        self.out = nn.Linear(schedule.hidden, 1)

    def forward(self, rows: Tensor, features: Tensor) -> Tensor:
        present = (rows >= 0).unsqueeze(-1)
        vectors = self.vectors(rows.clamp(min=0)) * present
        words = vectors[:, :, 1:].sum(2) / present[:, :, 1:].sum(2)
        sides = torch.cat([vectors[:, :, 0], words], dim=-1)
        first, second = sides[:, 0], sides[:, 1]
        inputs = torch.cat([first * second, (first - second).abs(), features], dim=-1)
        logits: Tensor = self.out(self.dropout(torch.relu(self.hidden(inputs)))).squeeze(-1)
        return logits


def train_scorer(
    training: TrainingSet, schedule: Schedule | None = None
) -> Iterator[tuple[int, float, CoreferenceScorer]]:
    """Each epoch's number, mean loss, and the scorer as it is then."""
    schedule = schedule or Schedule()
    vocabulary = _vocabulary(training, schedule.minimum_count)
    pairs = _arrays((pair for image in training for pair in labelled_pairs(image)), vocabulary)
    torch.manual_seed(schedule.seed)
    chance = np.random.default_rng(schedule.seed)
    network = ScorerNetwork(1 + len(vocabulary), schedule)
    steps = schedule.epochs * -(-len(pairs.labels) // schedule.batch_size)
    optimizer = torch.optim.AdamW(network.parameters(), schedule.learning_rate)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.learning_rate, total_steps=steps)
    for epoch in range(schedule.epochs):
        network.train()
        losses = []
        order = chance.permutation(len(pairs.labels))
        for start in range(0, len(order), schedule.batch_size):
            batch = order[start : start + schedule.batch_size]
            rows = pairs.rows[batch]
            rows = np.where((chance.random(rows.shape) < schedule.forgotten) & (rows > 0), 0, rows)
            logits = network(torch.from_numpy(rows), torch.from_numpy(pairs.features[batch]))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(pairs.labels[batch]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            slower.step()
            losses.append(loss.item())
        yield epoch, float(np.mean(losses)), export(network, vocabulary)


def export(network: ScorerNetwork, vocabulary: Iterable[str]) -> CoreferenceScorer:
    """The network's weights as the plain arrays that `CoreferenceScorer` takes."""
    layers = {"hidden": network.hidden, "out": network.out}
    arrays = {"vectors": network.vectors.weight.detach().numpy().copy()}
    for name, layer in layers.items():
        arrays[f"{name}.weight"] = layer.weight.detach().numpy().T.copy()
        arrays[f"{name}.bias"] = layer.bias.detach().numpy().copy()
    return CoreferenceScorer(tuple(vocabulary), arrays)


def _vocabulary(training: TrainingSet, minimum: int) -> list[str]:
    counts = Counter(word for image in training for text in mentions_of(image)[0] for word in text.words)
    return sorted(word for word, count in counts.items() if count >= minimum)


def _arrays(pairs: Iterable[tuple[MentionText, MentionText, bool]], vocabulary: list[str]) -> Pairs:
    known = {word: row for row, word in enumerate(vocabulary, start=1)}
    rows, features, labels = [], [], []
    for first, second, same in pairs:
        rows.append([_padded(first, known), _padded(second, known)])
        features.append(pair_features(first, second))
        labels.append(float(same))
    return Pairs(np.array(rows, np.int64), np.array(features, np.float32), np.array(labels, np.float32))


def _padded(mention: MentionText, known: dict[str, int]) -> list[int]:
    rows = word_rows(mention, known)
    return rows + [-1] * (1 + LONGEST - len(rows))
