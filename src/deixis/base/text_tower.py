"""The text branch beside a picture tower, and what both are made like: beyond the papers, learned together."""

from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.word_cells import Words
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe


class TowerRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    backbone: str = "efficientnet-lite2"
    side: Annotated[int, Meta(ge=32, le=1024)] = 256
    dim: Annotated[int, Meta(ge=1)] = 1024
    queries: Annotated[int, Meta(ge=1, le=64)] = 4
    #: Numbers of the embeddings of the map's cells and of words, whose best matches count beside the whole; 0: none.
    fine: Annotated[int, Meta(ge=0, le=1024)] = 0
    #: Of the words' best matches beside the whole, once it is trained; in training they count as much.
    word_weight: Annotated[float, Meta(gt=0, le=100)] = 1.0
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    recurrent: RecurrentRecipe = RecurrentRecipe(
        cell="gru", word=300, hidden=1024, bidirectional=True, pooling="max", dropout=0.2
    )


class TextTower(nn.Module):
    """Token ids to embeddings `(texts, dim)`, of any length."""

    def __init__(self, recipe: TowerRecipe, words: int, vectors: Tensor | None = None) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(words, recipe.recurrent, vectors)
        self.dropout = nn.Dropout(recipe.dropout)
        self.project = nn.Linear(self.encoder.dim, recipe.dim)
        self.words = nn.Linear(self.encoder.dim, recipe.fine) if recipe.fine else None
        self.weigh = nn.Linear(self.encoder.dim, 1) if recipe.fine else None
        self.word_weight = recipe.word_weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(self.encoder(ids))

    def with_words(self, ids: Tensor) -> tuple[Tensor, Words]:
        """Embeddings, and those of all words."""
        pooled, states = self.encoder.with_states(ids)
        words = self.words_of(states, ids)
        words = words._replace(vectors=self.embed_words(words.vectors))
        return self.embed(pooled), words

    def embed(self, pooled: Tensor) -> Tensor:
        """Pooled states `(texts, state)` to embeddings `(texts, dim)`."""
        embedded: Tensor = self.project(self.dropout(pooled))
        return embedded

    def words_of(self, states: Tensor, ids: Tensor) -> Words:
        """The words of texts, with their states `(words, state)` as vectors."""
        mask = ids[:, : states.shape[1]] != 0
        return Words(states[mask], self._word_weights(states, mask)[mask], mask.nonzero()[:, 0], len(ids))

    def query(self, ids: Tensor) -> tuple[Tensor, ...]:
        """What search compares with pictures: unit embeddings `(texts, dim)` and, where the branch has them, words.

        Words `(texts, longest, fine)` are unit vectors times their weights, zero behind the end of a text.
        """
        pooled, states = self.encoder.with_states(ids)
        embedded = F.normalize(self.embed(pooled))
        if self.words is None:
            return (embedded,)
        return embedded, self.embed_words(states) * self._word_weights(states, ids != 0)[..., None]

    def _word_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """`(texts, longest)`, of one sum in every text; `mask` is true where there is a word."""
        assert self.weigh is not None, "a text branch without fine embeddings"
        weights: Tensor = self.weigh(states).squeeze(-1).float().masked_fill(~mask, -torch.inf).softmax(1)
        return weights if self.training else weights * self.word_weight

    def embed_words(self, states: Tensor) -> Tensor:
        """States `(…, state)` to unit embeddings `(…, fine)`."""
        assert self.words is not None, "a text branch without fine embeddings"
        return F.normalize(self.words(self.dropout(states)).float(), dim=-1)
