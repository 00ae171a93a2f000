"""Hierarchical multimodal LSTM (Niu et al., section 3.2.2): sentences, phrases, pictures and regions in one space.

The states of the H-LSTM (`deixis.papers.hm_lstm.tree_lstm`) at roots and at noun phrases go through one text branch,
pictures and regions through one visual branch, each of one fully connected layer (W_t, W_m), batch normalization and L2
normalization. All loss layers share W_t and W_m; the statistics of batch normalization they may share or have apart.
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

from deixis.features.centring import centred
from deixis.papers.hm_lstm.fast.forest import Forest, Plan, Shape
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.treebank import Tokens, Treebank
from deixis.text.vocabulary import UNKNOWN, Vocabulary
from deixis.training.masked_norm import MaskedBatchNorm, MaskedSequential

#: Texts embedded together without gradient.
TEXTS = 1024
Array = NDArray[Any]


class HMRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the network; encoders "tree-lstm" and "chain" are ablations of "h-lstm"."""

    encoder: Shape = "h-lstm"
    hidden: Annotated[int, Meta(ge=1)] = 512
    dim: Annotated[int, Meta(ge=1)] = 512
    #: Dropout of the features of pictures and regions.
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    #: Dropout of the states of the trees' nodes.
    text_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    #: Use only the direction of visual features, minus the mean direction (`deixis.features.centring`).
    centred_regions: bool = False
    #: Learn word vectors too.
    learn_words: bool = False
    #: Learn Û − Ū in place of Û (h-lstm), to be kept small by `loss.difference_decay`.
    difference: bool = False
    #: Statistics of batch norm: of roots and phrases together, of pictures and regions together; or of each by itself.
    statistics: Literal["shared", "separate"] = "shared"


class TreeTexts:
    """Texts as indices of their trees in a forest, to which new texts are added.

    Args:
        vocabulary: ids of words.
        bank: trees of texts.
        shape: shape of the forest.
    """

    def __init__(self, vocabulary: Vocabulary, bank: Treebank, shape: Shape) -> None:
        self.vocabulary, self.bank, self.forest = vocabulary, bank, Forest(shape)
        self._numbers: dict[tuple[str, ...], int] = {}
        #: By tree, whether the vocabulary has one of its words.
        self.known: list[bool] = []

    def knows(self, word: str) -> bool:
        return word in self.vocabulary

    def transform(self, texts: Sequence[Tokens]) -> Array:
        """`(texts,)`: indices of trees, equal for equal tokens."""
        keys = [tuple(text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._numbers))
        for key, tree in zip(new, self.bank.trees(new), strict=True):
            words = self.vocabulary.encode(key)
            self._numbers[key] = self.forest.add(tree, words)
            self.known.append(any(word != UNKNOWN for word in words))
        return np.array([self._numbers[key] for key in keys], np.int64)


class HMLSTM(nn.Module):
    """Pictures, regions, sentences and phrases as unit vectors of one space (section 3).

    Args:
        visual_dim: size of the features of pictures and regions.
        vectors: `(ids, size)` word vectors by id.
        centre: `(visual_dim,)`, the mean direction of features, for `centred_regions`.

    >>> network = HMLSTM(1280, torch.randn(100, 300), HMRecipe(dim=64, hidden=64)).eval()
    >>> network.embed_visual(torch.randn(4, 1280)).shape
    torch.Size([4, 64])
    """

    def __init__(self, visual_dim: int, vectors: Tensor, recipe: HMRecipe, centre: Tensor | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        if recipe.centred_regions:
            self.centre = nn.Buffer(torch.zeros(visual_dim) if centre is None else centre.clone())
        self.words = nn.Embedding(vectors.shape[0], vectors.shape[1], _weight=vectors)
        self.words.weight.requires_grad_(recipe.learn_words)
        self.encoder = TreeLSTM(vectors.shape[1], recipe.hidden, recipe.encoder, difference=recipe.difference)
        self.dropout, self.text_dropout = nn.Dropout(recipe.dropout), nn.Dropout(recipe.text_dropout)
        self.images = MaskedSequential(nn.Linear(visual_dim, recipe.dim), MaskedBatchNorm(recipe.dim))  # eq. 1
        self.texts = MaskedSequential(nn.Linear(recipe.hidden, recipe.dim), MaskedBatchNorm(recipe.dim))
        if recipe.statistics == "separate":
            self.region_statistics, self.phrase_statistics = Statistics(recipe.dim), Statistics(recipe.dim)

    def embed_visual(
        self, features: Tensor, mask: Tensor | None = None, regions: Tensor | Literal[True] | None = None
    ) -> Tensor:
        """Pictures and regions `(n, visual_dim)` to unit embeddings `(n, dim)`.

        Args:
            mask: `(n,)`, false for rows that batch norm leaves out.
            regions: `(n,)`, true for regions; True: all are; None: none is.
        """
        inputs = centred(features, self.centre) if self.recipe.centred_regions else features
        statistics = self.region_statistics if self.recipe.statistics == "separate" else None
        return _embedded(self.images, statistics, self.dropout(inputs), mask, regions)

    def embed_nodes(
        self, plan: Plan, rows: Tensor, mask: Tensor | None = None, phrases: Tensor | Literal[True] | None = None
    ) -> Tensor:
        """Nodes of a plan, by row, to unit embeddings `(rows, dim)`; `phrases` as `regions` in `embed_visual`."""
        states = self.encoder(self.words(plan.word), plan)[rows]
        statistics = self.phrase_statistics if self.recipe.statistics == "separate" else None
        return _embedded(self.texts, statistics, self.text_dropout(states), mask, phrases)

    def embed_trees(self, forest: Forest, trees: Array, device: torch.device, *, phrases: bool = False) -> Tensor:
        """Unit embeddings of whole texts `(trees, dim)`, sentences or phrases."""
        parts = []
        for start in range(0, len(trees), TEXTS):
            plan = forest.plan(trees[start : start + TEXTS]).to(device)
            parts.append(self.embed_nodes(plan, plan.root, phrases=phrases or None))
        return torch.cat(parts)


class Statistics(MaskedBatchNorm):
    """The statistics of a loss layer. Scale and shift are those of the branch, so its own stay 1 and 0."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.requires_grad_(False)


def _embedded(
    branch: MaskedSequential,
    statistics: Statistics | None,
    rows: Tensor,
    mask: Tensor | None,
    at_phrases: Tensor | Literal[True] | None,
) -> Tensor:
    """Unit embeddings by a branch; rows of the loss layers at phrases are normalized by `statistics` if given."""
    if statistics is None or at_phrases is None:
        return functional.normalize(branch(rows, mask), dim=-1)
    linear, norm = branch
    projected = linear(rows)
    if at_phrases is True:
        return functional.normalize(_scaled(statistics(projected, mask), norm), dim=-1)
    mask = torch.ones_like(at_phrases) if mask is None else mask
    by_phrases = _scaled(statistics(projected, mask & at_phrases), norm)
    return functional.normalize(
        torch.where(at_phrases[:, None], by_phrases, norm(projected, mask & ~at_phrases)), dim=-1
    )


def _scaled(rows: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.BatchNorm1d)
    return rows * norm.weight + norm.bias
