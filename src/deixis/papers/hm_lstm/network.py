"""Hierarchical multimodal LSTM of paper 2 (section 3.2.2): sentences, phrases, pictures and regions in one space.

The states of the H-LSTM (`deixis.papers.hm_lstm.tree_lstm`) at roots and at noun phrases go through one text branch,
pictures and regions through one visual branch, each of one fully connected layer (W_t, W_m), batch normalization and L2
normalization; all loss layers share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from deixis.features.centring import centred
from deixis.papers.hm_lstm.forest import Forest, Plan, Shape
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.treebank import Tokens, Treebank
from deixis.text.vocabulary import UNKNOWN, Vocabulary
from deixis.training.masked_norm import MaskedBatchNorm, MaskedSequential

#: Texts that go through the network together where nothing is learned.
TEXTS = 1024
Array = NDArray[Any]


class HMRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """The `[model]` section: "tree-lstm" and "chain" are the ablations of "h-lstm"."""

    encoder: Shape = "h-lstm"
    hidden: Annotated[int, Meta(ge=1)] = 512
    dim: Annotated[int, Meta(ge=1)] = 512
    #: Of the features of pictures and regions, while learning.
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    #: Of the states of the trees' nodes, while learning.
    text_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    #: Take only the direction of pictures' and regions' features, less the mean one (`deixis.features.centring`).
    centred_regions: bool = False
    #: Whether word vectors are learned too.
    learn_words: bool = False


class TreeTexts:
    """Texts as the numbers of their trees in a forest, which grows as they come.

    Args:
        vocabulary: ids of words.
        bank: their trees.
        shape: of the forest.
    """

    def __init__(self, vocabulary: Vocabulary, bank: Treebank, shape: Shape) -> None:
        self.vocabulary, self.bank, self.forest = vocabulary, bank, Forest(shape)
        self._numbers: dict[tuple[str, ...], int] = {}
        #: By tree, whether one of its words is known.
        self.known: list[bool] = []

    def knows(self, word: str) -> bool:
        return word in self.vocabulary

    def transform(self, texts: Sequence[Tokens]) -> Array:
        """`(texts,)`: numbers of trees, equal for equal tokens."""
        keys = [tuple(text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._numbers))
        for key, tree in zip(new, self.bank.trees(new), strict=True):
            words = self.vocabulary.encode(key)
            self._numbers[key] = self.forest.add(tree, words)
            self.known.append(any(word != UNKNOWN for word in words))
        return np.array([self._numbers[key] for key in keys], np.int64)


class HMLSTM(nn.Module):
    """The network.

    Args:
        visual_dim: of the features of pictures and regions.
        vectors: `(ids, size)` of words, by their id.
        centre: `(visual_dim,)`, the mean direction of features, for `centred_regions`.
    """

    def __init__(self, visual_dim: int, vectors: Tensor, recipe: HMRecipe, centre: Tensor | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        if recipe.centred_regions:
            self.centre = nn.Buffer(torch.zeros(visual_dim) if centre is None else centre.clone())
        self.words = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=vectors)
        self.words.weight.requires_grad_(recipe.learn_words)
        self.encoder = TreeLSTM(vectors.shape[1], recipe.hidden, recipe.encoder)
        self.dropout, self.text_dropout = nn.Dropout(recipe.dropout), nn.Dropout(recipe.text_dropout)
        self.images = MaskedSequential(nn.Linear(visual_dim, recipe.dim), MaskedBatchNorm(recipe.dim))  # eq. 1
        self.texts = MaskedSequential(nn.Linear(recipe.hidden, recipe.dim), MaskedBatchNorm(recipe.dim))

    def embed_visual(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pictures or regions `(n, visual_dim)` to unit embeddings `(n, dim)`; batch norm leaves out what is masked."""
        given = centred(features, self.centre) if self.recipe.centred_regions else features
        return functional.normalize(self.images(self.dropout(given), mask), dim=-1)

    def embed_nodes(self, plan: Plan, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Nodes of a plan, by row, to unit embeddings `(rows, dim)`."""
        states = self.encoder(self.words(plan.word), plan)[rows]
        return functional.normalize(self.texts(self.text_dropout(states), mask), dim=-1)

    def embed_trees(self, forest: Forest, trees: Array, device: torch.device) -> Tensor:
        """Whole texts `(trees, dim)`, some at a time."""
        parts = []
        for start in range(0, len(trees), TEXTS):
            plan = forest.plan(trees[start : start + TEXTS]).to(device)
            parts.append(self.embed_nodes(plan, plan.root))
        return torch.cat(parts)
