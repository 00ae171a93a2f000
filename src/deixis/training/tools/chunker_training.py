"""Train the caption chunker (`deixis.text.chunker`) on the phrases of a corpus.

The network is a linear-chain conditional random field over a few convolutions; its loss is the negative log-likelihood
of the whole label sequence (Lafferty et al., ICML 2001). The weights are exported to plain arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.corpus.leak_guard import TrainingSet
from deixis.corpus.records import Caption, Image
from deixis.metrics.phrase_chunking import score_chunking
from deixis.text.chunker import BEGIN, INSIDE, LABELS, PAD, SHAPES, UNKNOWN, VIEWS, Chunker, row_maps, view_rows
from deixis.training.schedule import Cosine, Schedule
from deixis.training.task import Batches, Loss
from deixis.training.tools.tool_runs import ToolRecipe


class ChunkerRecipe(ToolRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a chunker's training."""

    name: str = "chunker"
    kind: str = "chunker"
    about: str = "Finds the phrases of captions."
    batch_size: int = 128
    word_width: int = 32
    affix_width: int = 8
    shape_width: int = 4
    hidden: int = 96
    depth: int = 3
    dropout: float = 0.3
    minimum_word_count: int = 3
    minimum_affix_count: int = 10
    #: Share of captions that are shown in lower case and without their full stop, as people type queries.
    plain_share: float = 0.2


def chunker_recipe(epochs: int = 5, seed: int = 0) -> ChunkerRecipe:
    schedule = Schedule(
        epochs=epochs, learning_rate=4e-3, optimizer="adamw", weight_decay=1e-4, decay=Cosine(warm_up=0.1)
    )
    return ChunkerRecipe(seed=seed, schedule=schedule)


class ChunkerNetwork(nn.Module):
    """Label scores (captions, tokens, 3) from view rows (captions, tokens, views); padding is row `PAD`."""

    def __init__(self, rows: Mapping[str, int], recipe: ChunkerRecipe) -> None:
        super().__init__()
        widths = {"word": recipe.word_width, "shape": recipe.shape_width}
        self.vectors = nn.ModuleDict(
            {view: nn.Embedding(count, widths.get(view, recipe.affix_width), PAD) for view, count in rows.items()}
        )
        for weight in self.vectors.parameters():
            nn.init.normal_(weight, std=0.3)
            weight.data[PAD] = 0
        inputs = sum(widths.get(view, recipe.affix_width) for view in rows)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(recipe.hidden if layer else inputs, recipe.hidden, 3, padding=1) for layer in range(recipe.depth)
        )
        self.labels = nn.Linear(recipe.hidden, LABELS)
        self.pairs = nn.Parameter(torch.zeros(LABELS, LABELS))
        self.first = nn.Parameter(torch.zeros(LABELS))
        self.last = nn.Parameter(torch.zeros(LABELS))
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, rows: Tensor) -> Tensor:
        real = (rows[..., 0] != PAD)[:, None]
        vectors = [vectors(rows[..., index]) for index, vectors in enumerate(self.vectors.children())]
        hidden = self.dropout(torch.cat(vectors, dim=-1)).transpose(1, 2)
        for layer, convolution in enumerate(self.convolutions):
            change = torch.relu(convolution(hidden)) * real
            hidden = self.dropout(hidden + change if layer else change)
        scores: Tensor = self.labels(hidden.transpose(1, 2))
        return scores


def sequence_loss(scores: Tensor, labels: Tensor, real: Tensor, network: ChunkerNetwork) -> Tensor:
    """Negative log-likelihood of label sequences, per token.

    Args:
        scores: (captions, tokens, labels).
        labels: (captions, tokens).
        real: (captions, tokens) 1 for a token, 0 for padding at the end.
        network: has the scores of label pairs and of first and last labels.
    """
    score = (scores.gather(2, labels[..., None])[..., 0] * real).sum(1) + network.first[labels[:, 0]]
    score = score + (network.pairs[labels[:, :-1], labels[:, 1:]] * real[:, 1:]).sum(1)
    final = labels.gather(1, real.sum(1, keepdim=True).long() - 1)[:, 0]
    score = score + network.last[final]
    total = network.first + scores[:, 0]
    for step in range(1, scores.shape[1]):
        longer = torch.logsumexp(total[:, :, None] + network.pairs, dim=1) + scores[:, step]
        total = torch.where(real[:, step, None] > 0, longer, total)
    return (torch.logsumexp(total + network.last, dim=1) - score).sum() / real.sum()


class ChunkerBatch(NamedTuple):
    """View rows (captions, tokens, views), labels (captions, tokens), and the indices of the captions."""

    rows: Tensor
    labels: Tensor
    captions: NDArray[np.intp]


class ChunkerTask:
    """The trainer's task (`deixis.training.task.Task`).

    Args:
        training: images whose captions have phrases.
        held_out: other images, to validate on.
        recipe: all settings.
    """

    def __init__(self, training: TrainingSet, held_out: Iterable[Image], recipe: ChunkerRecipe) -> None:
        self._recipe = recipe
        self._held_out = [caption for image in held_out for caption in image.captions]
        pairs = [(image.id, caption) for image in training for caption in image.captions if caption.tokens]
        self._image_ids = [image_id for image_id, _ in pairs]
        captions = [caption for _, caption in pairs]
        counts = Counter(token.lower() for caption in captions for token in caption.tokens)
        self.vocabularies = _vocabularies(counts, recipe)
        self._examples = _Examples(captions, self.vocabularies)
        # Rare words are often shown as unknown, so that affixes and neighbours learn to do without them.
        shares = (0.03 + 3 / (3 + counts[word]) for word in self.vocabularies["word"])
        self._hidden_share = np.array([0, 0, *shares])
        rows = {view: len(strings) + 2 for view, strings in self.vocabularies.items()} | {"shape": SHAPES}
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            self.module = ChunkerNetwork(rows, recipe)

    def batches(self, epoch: int) -> Batches[ChunkerBatch]:
        random = np.random.default_rng((self._recipe.seed, epoch))
        batches = _batches(self._examples.lengths, self._recipe.batch_size, random)
        return Batches(len(batches), (self._batch(captions, random) for captions in batches))

    def _batch(self, captions: NDArray[np.intp], random: np.random.Generator) -> ChunkerBatch:
        rows, labels = self._examples.padded(captions, random.random(len(captions)) < self._recipe.plain_share)
        hide = random.random(labels.shape) < self._hidden_share[rows[..., 0]]
        rows[..., 0][hide] = UNKNOWN
        return ChunkerBatch(torch.from_numpy(rows), torch.from_numpy(labels), captions)

    def loss(self, batch: ChunkerBatch) -> Loss:
        real = (batch.rows[..., 0] != PAD).float()
        return Loss(sequence_loss(self.module(batch.rows), batch.labels, real, self.module))

    def validate(self) -> dict[str, float]:
        """F1 of the spans of the captions that were held out."""
        spans = self.export().phrases_of(self._held_out)
        phrases = zip(
            self._held_out, spans, ([("other",)] * len(caption_spans) for caption_spans in spans), strict=True
        )
        return {"f1": score_chunking(phrases).overall.f1}

    def describe(self, batch: ChunkerBatch) -> str:
        return "images " + ", ".join(self._image_ids[caption] for caption in batch.captions)

    def export(self) -> Chunker:
        """The chunker with the weights as they are now."""
        return export(self.module, self.vocabularies)


def export(network: ChunkerNetwork, vocabularies: Mapping[str, Sequence[str]]) -> Chunker:
    """The weights of the network as a chunker, which needs no torch."""
    arrays: dict[str, Tensor] = {
        f"vectors.{view}": vectors.get_parameter("weight") for view, vectors in network.vectors.items()
    }
    arrays |= {"pairs": network.pairs, "first": network.first, "last": network.last}
    arrays |= {"labels.weight": network.labels.weight.T, "labels.bias": network.labels.bias}
    for index, convolution in enumerate(network.convolutions):
        weight = convolution.get_parameter("weight").permute(2, 1, 0)  # (3, inputs, outputs)
        arrays[f"convolution.{index}.weight"] = weight.flatten(0, 1)
        arrays[f"convolution.{index}.bias"] = convolution.get_parameter("bias")
    return Chunker(vocabularies, {name: array.detach().numpy().copy() for name, array in arrays.items()})


class _Examples:
    """Captions as arrays: view rows as written and in lower case, and labels."""

    def __init__(self, captions: Sequence[Caption], vocabularies: Mapping[str, Sequence[str]]) -> None:
        maps = row_maps(vocabularies)
        known: dict[str, tuple[int, ...]] = {}

        def rows(tokens: Sequence[str]) -> NDArray[np.int64]:
            for token in tokens:
                if token not in known:
                    known[token] = view_rows(token, maps)
            return np.array([known[token] for token in tokens])

        self.rows = [rows(caption.tokens) for caption in captions]
        self.plain = [rows([token.lower() for token in caption.tokens]) for caption in captions]
        self.stops = [caption.tokens[-1] == "." and len(caption.tokens) > 1 for caption in captions]
        self.labels = [_labels(caption) for caption in captions]
        self.lengths = np.array([len(rows) for rows in self.rows])

    def padded(self, batch: NDArray[np.intp], plain: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """View rows (captions, tokens, views) and labels (captions, tokens) of a batch, padded at the end."""
        longest = int(self.lengths[batch].max())
        rows = np.full((len(batch), longest, self.rows[0].shape[1]), PAD)
        labels = np.zeros((len(batch), longest), np.int64)
        for row, index in enumerate(batch):
            length = self.lengths[index] - (plain[row] and self.stops[index])
            rows[row, :length] = (self.plain if plain[row] else self.rows)[index][:length]
            labels[row, :length] = self.labels[index][:length]
        return rows, labels


def _labels(caption: Caption) -> NDArray[np.int64]:
    labels = np.zeros(len(caption.tokens), np.int64)
    for phrase in caption.phrases:
        labels[phrase.start] = BEGIN
        labels[phrase.start + 1 : phrase.end] = INSIDE
    return labels


def _vocabularies(counts: Counter[str], recipe: ChunkerRecipe) -> dict[str, list[str]]:
    """Strings of each view that occur often enough, by decreasing count, ties in alphabetical order."""
    vocabularies = {}
    for view, function in VIEWS.items():
        strings: Counter[str] = Counter()
        for word, count in counts.items():
            strings[function(word)] += count
        minimum = recipe.minimum_word_count if view == "word" else recipe.minimum_affix_count
        frequent = [(-count, string) for string, count in strings.items() if count >= minimum]
        vocabularies[view] = [string for _, string in sorted(frequent)]
    return vocabularies


def _batches(lengths: NDArray[np.intp], size: int, random: np.random.Generator) -> list[NDArray[np.intp]]:
    """Batches of captions of similar length, in random order."""
    order = np.argsort(lengths + 4 * random.random(len(lengths)), kind="stable")
    batches = np.array_split(order, max(1, len(order) // size))
    return [batches[index] for index in random.permutation(len(batches))]
