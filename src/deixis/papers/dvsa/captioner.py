"""The generator: a recurrent network that describes a picture or a region (supplement, section 5).

h_t = f(W_hx x_t + W_hh h_{t−1} + b_h + 1[t = 1] W_hi CNN(I)), y_t = softmax(W_oh h_t + b_o): the picture enters with
the start token and never again. In an LSTM, W_hi CNN(I) is added to the inputs of all four gates at that step.

Texts are ids `(texts, longest)` that end with the end token, 0 = padding after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.features.centring import centred
from deixis.model import Tokens
from deixis.text.beam_search import Spoken, State, beam_search
from deixis.text.recurrent import Share, Width
from deixis.text.vocabulary import END, PAD, START, UNKNOWN, Vocabulary

#: Logits in memory at a time without gradient: 128 MB in float32.
BLOCK = 1 << 25
#: Pictures that are described together.
PICTURES = 256

Array = NDArray[Any]


class CaptionerRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    cell: Literal["rnn", "lstm"] = "rnn"
    word: Width = 256
    hidden: Width = 512
    #: Dropout of the inputs and of the states before the output layer, never inside the recurrence.
    dropout: Share = 0.5
    #: Initial W_hh of an RNN. With small random numbers rectified units forget the picture within a few words; with the
    #: identity (Le, Jaitly and Hinton, 2015) they keep it until they learn otherwise.
    recurrent: Literal["uniform", "identity"] = "uniform"
    #: Initialize output biases with the words' log frequencies, so that they need not be learned first.
    frequency_biases: bool = True
    #: Use only the direction of features, minus the mean direction (`deixis.features.centring`), scaled to about 1.
    centred: bool = False


class DecodingRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Beam search."""

    beam: Annotated[int, Meta(ge=1)] = 5
    longest: Annotated[int, Meta(ge=1)] = 25
    #: Sentences are ranked by log p / words^power; 0 favours short ones, 1 is the mean over words.
    length_power: Annotated[float, Meta(ge=0)] = 0.0
    #: No sequence of this many words occurs twice in a sentence; 0: no limit.
    distinct_runs: Annotated[int, Meta(ge=0)] = 0


class Captioner(nn.Module):
    """Predicts the next word from a picture and the words so far.

    Args:
        channels: size of the pictures' features.
        words: number of word ids, special tokens included.
        frequencies: `(words,)` counts of the ids, for the output biases.
        word_vectors: `(words, word)` initial word vectors, up to a common factor.
        centre: (vectors, channels / vectors) the mean direction of each of the vectors that stand side by side in what
            is described, for `centred`.

    >>> captioner = Captioner(1280, 1000, CaptionerRecipe(cell="lstm", word=32, hidden=64)).eval()
    >>> sum(parameter.numel() for parameter in captioner.parameters()) > 100_000
    True
    """

    def __init__(
        self,
        channels: int,
        words: int,
        recipe: CaptionerRecipe,
        *,
        frequencies: Tensor | None = None,
        word_vectors: Tensor | None = None,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.centre = nn.Buffer(torch.zeros(1, channels) if centre is None else centre) if recipe.centred else None
        self.words = nn.Embedding(words, recipe.word, padding_idx=PAD)
        if word_vectors is not None:
            if word_vectors.shape != self.words.weight.shape:
                given, wanted = tuple(word_vectors.shape), tuple(self.words.weight.shape)
                raise DeixisError(f"initial word vectors are {given}, the model needs {wanted}: set model.word")
            # Scaled to the mean length of random ones.
            lengths = word_vectors.norm(dim=1)
            with torch.no_grad():
                self.words.weight[1:] = word_vectors[1:] * (recipe.word**0.5 / lengths[lengths > 0].mean())
        self.recurrence: nn.RNN | nn.LSTM
        if recipe.cell == "rnn":
            self.recurrence = nn.RNN(recipe.word, recipe.hidden, nonlinearity="relu", batch_first=True)
            if recipe.recurrent == "identity":
                with torch.no_grad():
                    self.recurrence.weight_hh_l0.copy_(torch.eye(recipe.hidden))  # type: ignore[operator]
        else:
            self.recurrence = nn.LSTM(recipe.word, recipe.hidden, batch_first=True)
        self.picture = nn.Linear(channels, recipe.hidden * (1 if recipe.cell == "rnn" else 4), bias=False)  # W_hi
        self.output = nn.Linear(recipe.hidden, words)
        self.dropout = nn.Dropout(recipe.dropout)
        if frequencies is not None:
            # An id that was never seen counts as 0.5.
            seen = frequencies.double().clamp(min=0.5)
            with torch.no_grad():
                self.output.bias.copy_((seen / seen.sum()).log())

    def begin(self, pictures: Tensor) -> State:
        """The states after the start token and the pictures `(pictures, channels)`: h_1, and c_1 of an LSTM."""
        cell: Any = self.recurrence
        start = self.dropout(
            self.words(torch.full(pictures.shape[:1], START, dtype=torch.int64, device=pictures.device))
        )
        inputs = functional.linear(start, cell.weight_ih_l0, cell.bias_ih_l0) + cell.bias_hh_l0
        if self.centre is not None:
            width = self.centre.shape[1]
            pictures = centred(pictures.view(-1, *self.centre.shape), self.centre).flatten(1) * width**0.5
        inputs = inputs + self.picture(self.dropout(pictures))
        if isinstance(cell, nn.RNN):
            return (inputs.relu(),)
        enters, _, new, leaves = inputs.chunk(4, -1)
        memory = enters.sigmoid() * new.tanh()
        return leaves.sigmoid() * memory.tanh(), memory

    def read(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """h_t after each word, `(texts, longest, hidden)`, and the states after the last."""
        words = self.dropout(self.words(ids))
        before = tuple(part[None] for part in state)
        if isinstance(self.recurrence, nn.RNN):
            hidden, last = self.recurrence(words, before[0])
            return hidden, (last[0],)
        hidden, after = self.recurrence(words, before)
        return hidden, tuple(part[0] for part in after)

    def logits(self, pictures: Tensor, ids: Tensor) -> Tensor:
        """`(texts, longest, words)`: logits of each word from the picture and the words before it."""
        state = self.begin(pictures)
        hidden = state[0][:, None]
        if ids.shape[1] > 1:
            hidden = torch.cat([hidden, self.read(ids[:, :-1], state)[0]], 1)
        logits: Tensor = self.output(self.dropout(hidden))
        return logits

    def log_likelihood(self, pictures: Tensor, ids: Tensor) -> Tensor:
        """`(texts,)`: log p of each text, its end included, given the picture in the same row."""
        logits = self.logits(pictures, ids).float()
        losses = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=PAD, reduction="none")
        return -losses.view(ids.shape).sum(1)

    @torch.no_grad()
    def score_all(self, pictures: Tensor, ids: Tensor, block: int = BLOCK) -> Tensor:
        """`(pictures, texts)`: log p of every text given every picture, at most `block` logits at a time."""
        scores = pictures.new_empty(len(pictures), len(ids), dtype=torch.float32)
        # Texts of similar length go together, so that little is computed for padding.
        order = (ids != PAD).sum(1).argsort()
        for columns in torch.split(order, max(1, block // (ids.shape[1] * self.output.out_features))):
            texts = ids[columns, : int((ids[columns] != PAD).sum(1).max())]
            start = 0
            for part in torch.split(pictures, max(1, block // (texts.numel() * self.output.out_features))):
                pairs = self.log_likelihood(part.repeat_interleave(len(texts), 0), texts.repeat(len(part), 1))
                scores[start : start + len(part), columns] = pairs.view(-1, len(texts))
                start += len(part)
        return scores

    def sample(self, pictures: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """One sentence for each picture, drawn at random.

        Returns:
            Ids `(pictures, longest + 1)`, padded after the end, and the log probability of each, 0 for padding.
        """
        state = self.begin(pictures)
        hidden, ended = state[0], torch.zeros(len(pictures), dtype=torch.bool, device=pictures.device)
        words, chances = [], []
        numbers = torch.arange(self.output.out_features, device=pictures.device)
        never = (numbers == PAD) | (numbers == UNKNOWN) | (numbers == START)
        for position in range(longest + 1):
            logits = self.output(self.dropout(hidden)).float()
            log_p = logits.masked_fill(never if position else never | (numbers == END), -torch.inf).log_softmax(-1)
            # The largest after Gumbel noise is a draw, and unlike `multinomial` does not wait for the GPU.
            noise = torch.empty_like(log_p).exponential_().log()
            word = (log_p.detach() - noise).argmax(-1, keepdim=True)
            chances.append(log_p.gather(1, word)[:, 0].masked_fill(ended, 0.0))
            words.append(word[:, 0].masked_fill(ended, PAD))
            ended = ended | (words[-1] == END)
            read, state = self.read(words[-1][:, None], state)
            hidden = read[:, 0]
        return torch.stack(words, 1), torch.stack(chances, 1)

    @torch.no_grad()
    def speak(self, pictures: Tensor, decoding: DecodingRecipe, count: int = 1) -> list[list[Spoken]]:
        """At most `count` sentences of each picture, best first, with their scores."""
        sentences: list[list[Spoken]] = []
        width = max(count, decoding.beam)
        for part in torch.split(pictures, PICTURES):
            # The state includes the words so far, for `distinct_runs`. `begin` has already read the start token.
            state = (*self.begin(part), torch.empty(len(part), 0, dtype=torch.int64, device=part.device))
            spoken = beam_search(
                lambda last, state: self._next(last, state, decoding),
                state,
                start=START,
                end=END,
                width=width,
                longest=decoding.longest,
            )
            sentences += [_ranked(beam, decoding.length_power)[:count] for beam in spoken]
        return sentences

    def _next(self, last: Tensor, state: State, decoding: DecodingRecipe) -> tuple[Tensor, State]:
        *recurrent, words = state
        hidden, first = recurrent[0], not words.shape[1]
        words = torch.cat([words, last[:, None]], 1)
        if not first:
            read, after = self.read(last[:, None], tuple(recurrent))
            hidden, recurrent = read[:, 0], list(after)
        log_p = self.output(hidden).float().log_softmax(-1)
        log_p[:, [PAD, UNKNOWN, START, *([END] if first else [])]] = -torch.inf
        if decoding.distinct_runs and words.shape[1] >= decoding.distinct_runs:
            _forbid_repeats(log_p, words, decoding.distinct_runs)
        return log_p, (*recurrent, words)


def _forbid_repeats(log_p: Tensor, words: Tensor, size: int) -> None:
    """−∞ for each word that would complete a sequence of `size` words that a sentence `(rows, words)` already has."""
    runs = words.unfold(1, size, 1)  # (rows, runs, size)
    before = words[:, words.shape[1] - size + 1 :]
    repeated = (runs[..., :-1] == before[:, None]).all(-1)
    row, run = repeated.nonzero(as_tuple=True)
    log_p[row, runs[row, run, -1]] = -torch.inf


def _ranked(spoken: Sequence[Spoken], power: float) -> list[Spoken]:
    rated = [Spoken(words, score / (len(words) + 1) ** power) for words, score in spoken]
    return sorted(rated, key=lambda sentence: -sentence.score)


def text_ids(vocabulary: Vocabulary, texts: Sequence[Tokens]) -> NDArray[np.int64]:
    """Ids `(texts, longest)`, each text with the end token, 0 = padding."""
    ids = np.full((len(texts), 1 + max(map(len, texts), default=0)), PAD, np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text) + 1] = vocabulary.encode(text, end=True)
    return ids


def captioner_input(regions: Array, picture: Array, context: bool) -> Array:
    """Vectors of regions; with `context`, each concatenated with the whole picture's vector (supplement, section 4)."""
    if not context:
        return regions
    return np.concatenate([regions, np.broadcast_to(picture, regions.shape)], 1)
