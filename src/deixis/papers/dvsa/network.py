"""Alignment of words and regions: both are vectors of one space, whose lengths count.

Regions are v = W_m CNN(I_b) + b_m. Words are read by a bidirectional recurrent network, or are edges of the dependency
tree (DepTree and DeFrag in Table 2 of the supplement). S_kl = Σ_t max_i v_i·s_t (eq. 1 of the supplement) scores
picture k with sentence l, so the length of a vector is its importance (section 1): v and s are not normalized. The
input CNN(I_b) is as printed in `brnn-raw`; `centred_regions`, used by `brnn`, subtracts the mean direction and
normalizes it.

Fragments are ids `(texts, longest, width)`, 0 = padding at the end: the id of a word (width 1), or head, dependent and
relation of an edge (width 3).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.features.centring import centred
from deixis.papers.dvsa.fast.all_pairs import score_all_pairs
from deixis.papers.dvsa.fast.products import Pool, pooled_products
from deixis.text.recurrent import Share, Width, flat_words


class AlignmentRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`score` "best" is eq. 1 of the supplement; "mean" is DeFrag's Σ_ij max(0, v_i·s_j) / (|g_k| (|g_l| + n))."""

    fragments: Literal["words", "edges"] = "words"
    score: Literal["best", "mean"] = "best"
    #: Size of the common space.
    dim: Width = 1024
    #: Size of the word vectors.
    word: Width = 300
    dropout: Share = 0.5
    #: Use only the direction of region features, minus the mean direction (`deixis.features.centring`).
    centred_regions: bool = False
    #: DeFrag's n: without it short sentences would have an advantage.
    smoothing: Annotated[float, Meta(ge=0)] = 5.0


class BidirectionalReader(nn.Module):
    """e_t = f(W_e x_t + b_e); h^f, h^b = f(e_t + W h_{t∓1} + b); s_t = f(W_d (h^f_t + h^b_t) + b_d); f is ReLU."""

    def __init__(self, recipe: AlignmentRecipe) -> None:
        super().__init__()
        bound = recipe.dim**-0.5
        self.enter = nn.Linear(recipe.word, recipe.dim)
        # Transposed W_f and W_b; b_f and b_b.
        self.recurrent = nn.Parameter(torch.empty(2, recipe.dim, recipe.dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, 1, recipe.dim))
        self.leave = nn.Linear(recipe.dim, recipe.dim)
        # Dropout is never applied inside the recurrence.
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, words: Tensor, real: Tensor) -> Tensor:
        """Word vectors `(texts, longest, word)` and the mask of real words to `(texts, longest, dim)`."""
        entered = self.dropout(self.enter(words).relu())
        position = torch.arange(words.shape[1], device=words.device)
        lengths = real.sum(1, keepdim=True)
        # Reversed from each text's own end; padding stays at the end in both directions.
        backwards = torch.where(position < lengths, lengths - 1 - position, position)[..., None].expand_as(entered)
        inputs = torch.stack([entered, entered.gather(1, backwards)])
        states = [inputs.new_zeros(2, len(words), entered.shape[-1])]
        for step in inputs.unbind(2):
            states.append((step + torch.baddbmm(self.bias, states[-1], self.recurrent)).relu())
        forward, backward = torch.stack(states[1:], 2)
        both = forward + backward.gather(1, backwards)
        read: Tensor = self.leave(self.dropout(both)).relu()
        return read


class EdgeReader(nn.Module):
    """s = f(W_R [W_e w₁; W_e w₂] + b_R) of a dependency edge; all relations share W_R, each has its b_R."""

    def __init__(self, recipe: AlignmentRecipe, relations: int) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * recipe.word, recipe.dim, bias=False)
        self.bias = nn.Embedding(relations, recipe.dim)
        nn.init.zeros_(self.bias.weight)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, heads: Tensor, dependents: Tensor, relations: Tensor) -> Tensor:
        """Word vectors of heads and dependents `(…, word)` and relation ids `(…)` to `(…, dim)`."""
        words = self.dropout(torch.cat([heads, dependents], -1))
        read: Tensor = (self.combine(words) + self.bias(relations)).relu()
        return read


class AlignmentNetwork(nn.Module):
    """Regions and fragments as vectors of one space.

    Args:
        channels: size of the region features.
        words: number of word ids, padding (0) included.
        relations: number of relation ids; only for edges.
        word_vectors: `(words, word)` initial word vectors, up to a common factor.
        fixed: word vectors are not learned.
        rounded: `score_all` uses vectors in bfloat16, on a GPU with the fused kernel.
        scale: region features are multiplied by this to have length 1 on average, as word vectors have. Otherwise the
            first scores dwarf the margin of 1, and only the longer side learns.
        centre: `(channels,)` the mean direction of region features, for `centred_regions`.

    >>> network = AlignmentNetwork(1280, 1000, AlignmentRecipe(dim=64, word=32)).eval()
    >>> network.embed_regions(torch.randn(4, 20, 1280)).shape
    torch.Size([4, 20, 64])
    """

    def __init__(
        self,
        channels: int,
        words: int,
        recipe: AlignmentRecipe,
        *,
        relations: int = 0,
        word_vectors: Tensor | None = None,
        fixed: bool = False,
        rounded: bool = False,
        scale: float = 1.0,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.rounded = recipe, rounded
        if recipe.centred_regions:
            self.centre = nn.Buffer(torch.zeros(channels) if centre is None else centre.clone())
        self.regions = nn.Linear(channels, recipe.dim)
        self.scale = nn.Buffer(torch.tensor(scale))
        self.words = nn.Embedding(words, recipe.word, padding_idx=0)
        nn.init.normal_(self.words.weight[1:], std=recipe.word**-0.5)
        if word_vectors is not None:
            if word_vectors.shape != self.words.weight.shape:
                given, wanted = tuple(word_vectors.shape), tuple(self.words.weight.shape)
                raise DeixisError(f"initial word vectors are {given}, the model needs {wanted}: set model.word")
            lengths = word_vectors.norm(dim=1)
            with torch.no_grad():
                self.words.weight[1:] = word_vectors[1:] / lengths[lengths > 0].mean()
        self.words.weight.requires_grad_(not fixed)
        self.reader: BidirectionalReader | EdgeReader
        self.reader = BidirectionalReader(recipe) if recipe.fragments == "words" else EdgeReader(recipe, relations)
        self.dropout = nn.Dropout(recipe.dropout)

    def embed_regions(self, regions: Tensor) -> Tensor:
        """v: `(…, channels)` to `(…, dim)`."""
        features = centred(regions, self.centre) if self.recipe.centred_regions else regions * self.scale
        embedded: Tensor = self.regions(self.dropout(features))
        return embedded

    def embed_fragments(self, ids: Tensor) -> Tensor:
        """s: ids `(texts, longest, width)` to `(texts, longest, dim)`; vectors at padding are meaningless."""
        words = self.words(ids[..., :2])
        if isinstance(self.reader, BidirectionalReader):
            read: Tensor = self.reader(words[..., 0, :], ids[..., 0] != 0)
        else:
            read = self.reader(words[..., 0, :], words[..., 1, :], ids[..., 2])
        return read

    def score(self, regions: Tensor, present: Tensor, fragments: Tensor, ids: Tensor) -> Tensor:
        """S_kl `(images, texts)` of all pairs: eq. 1 of the supplement, or DeFrag's score.

        Args:
            regions: v, `(images, regions, dim)`.
            present: `(images, regions)` false where an image has fewer regions.
            fragments: s, `(texts, longest, dim)`.
            ids: of the fragments.
        """
        real = ids[..., 0] != 0
        pool: Pool = "best" if self.recipe.score == "best" else "positive"
        totals = pooled_products(regions, present, *flat_words(fragments, real), len(ids), pool)
        if self.recipe.score == "best":
            return totals
        return totals / (present.sum(1)[:, None] * (real.sum(1) + self.recipe.smoothing))

    def score_all(self, regions: Tensor, present: Tensor, ids: Tensor) -> Tensor:
        """S_kl `(images, texts)` of features `(images, regions, channels)` and fragment ids, without gradient."""
        return score_all_pairs(self, regions, present, ids)
