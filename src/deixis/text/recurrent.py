"""Recurrent text encoders: from token ids of texts of different lengths to states and one vector per text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from deixis.errors import DeixisError

Width = Annotated[int, Meta(ge=1)]


Share = Annotated[float, Meta(ge=0, lt=1)]


class RecurrentRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """The recurrent network at the start of a text branch; the defaults are the LSTM of section 5.3.

    `pooling` "last" takes the state after the last token (of both directions, if bidirectional); "mean" and "max" are
    over the states of all tokens.
    """

    cell: Literal["lstm", "gru"] = "lstm"
    word: Width = 256
    hidden: Width = 512
    bidirectional: bool = False
    pooling: Literal["last", "mean", "max"] = "last"
    #: Dimensions of the word vectors.
    dropout: Share = 0.0


class RecurrentEncoder(nn.Module):
    """Token ids (texts, longest), 0 = padding at the end, to one vector per text (texts, dim)."""

    def __init__(self, words: int, recipe: RecurrentRecipe, word_vectors: Tensor | None = None) -> None:
        super().__init__()
        self.pooling = recipe.pooling
        self.words = nn.Embedding(words, recipe.word, padding_idx=0)
        if word_vectors is not None:
            if word_vectors.shape != self.words.weight.shape:
                given, wanted = tuple(word_vectors.shape), tuple(self.words.weight.shape)
                raise DeixisError(f"initial word vectors are {given}, the text branch needs {wanted}")
            with torch.no_grad():
                self.words.weight[1:] = word_vectors[1:]
        self.dropout = nn.Dropout(recipe.dropout)
        cell = nn.LSTM if recipe.cell == "lstm" else nn.GRU
        self.recurrence = cell(recipe.word, recipe.hidden, batch_first=True, bidirectional=recipe.bidirectional)
        self.dim = recipe.hidden * (2 if recipe.bidirectional else 1)

    def forward(self, ids: Tensor) -> Tensor:
        if not len(ids):
            # A process may have none of a batch's texts.
            return self.words.weight.new_zeros(0, self.dim)
        return self.with_states(ids)[0]

    def with_states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of texts, and the states of their tokens (texts, longest, dim), zero for padding."""
        # A text without a token is read as one padding token, whose vector is zero.
        lengths = (ids != 0).sum(1).clamp(min=1)
        states, last = read(self.recurrence, self.dropout(self.words(ids)), lengths)
        return last if self.pooling == "last" else self._pool(states, lengths), states

    def _pool(self, states: Tensor, lengths: Tensor) -> Tensor:
        if self.pooling == "mean":
            return states.sum(1) / lengths[:, None]
        beyond = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        return states.masked_fill(beyond[..., None], -torch.inf).amax(1)


def read(recurrence: nn.LSTM | nn.GRU, words: Tensor, lengths: Tensor, begin: Any = None) -> tuple[Tensor, Tensor]:
    """States after each word `(texts, longest, dim)`, zero after a text's end, and after the last word `(texts, dim)`.

    Without gradients, padding is skipped. With gradients, a single direction is computed including its padding, so that
    a GPU is not waited for to learn the lengths.

    Args:
        words: `(texts, longest, word)`.
        lengths: `(texts,)`, 1 or more.
        begin: the initial state of the recurrence.
    """
    if recurrence.bidirectional or not torch.is_grad_enabled():
        packed = pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        read_words, final = recurrence(packed, begin)
        last: Tensor = final[0] if isinstance(final, tuple) else final
        unpacked: Tensor = pad_packed_sequence(read_words, batch_first=True, total_length=words.shape[1])[0]
        return unpacked, last.transpose(0, 1).flatten(1)
    # What follows a text's end does not change what precedes it.
    states, _ = recurrence(words, begin)
    last = states.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
    beyond = torch.arange(words.shape[1], device=words.device) >= lengths[:, None]
    return states.masked_fill(beyond[..., None], 0.0), last


def flat_words(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the words of texts, `(texts, longest, …)`, as one list of words, and the index of each word's text.

    Without gradients, padding is left out. In training it stays, as words of one additional text with the index
    `len(mask)`: leaving it out would give every batch another shape, which a captured CUDA graph cannot have. Callers
    sum by text and drop that one.

    Args:
        mask: `(texts, longest)`, true where there is a word.
    """
    if not torch.is_grad_enabled():
        return values[mask], mask.nonzero()[:, 0]
    text = torch.arange(len(mask), device=mask.device)[:, None]
    return values.flatten(0, 1), torch.where(mask, text, len(mask)).flatten()
