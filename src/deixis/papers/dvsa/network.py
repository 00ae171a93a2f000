"""Alignment of words and regions (paper 4, DVSA): both in one space, in which nothing is normalized.

Regions are v = W_m f + b_m; words are read by a bidirectional network of rectified units, or come as edges of the
dependency tree (the rows DepTree and DeFrag of the supplement's Table 2). S_kl = Σ_t max_i v_i·s_t (eq. 1 of the
supplement) scores picture k with sentence l; the length of a vector is how much it matters (section 1).

Fragments are ids `(texts, longest, width)`, 0 = padding at the end: a word's id (width 1), or an edge's head,
dependent and relation (width 3).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deixis.errors import DeixisError
from deixis.features.centring import centred
from deixis.papers.dvsa.fast.packing import packed_regions, packed_words
from deixis.text.recurrent import Share, Width, flat_words

#: Numbers that one block of region-word products may hold: 64 MB in float32.
BLOCK = 1 << 24
#: Texts read together where no gradient is kept.
TEXTS = 1024
#: What the products of one word with a picture's regions come to: the best (DVSA); the sum of the positive ones
#: (DeFrag's score); the sum of max(0, 1 + product) (DeFrag's hinge of regions that do not show the fragment).
Pool = Literal["best", "positive", "hinge"]


class AlignmentRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`score` "best" is eq. 1 of the supplement; "mean" is DeFrag's Σ_ij max(0, v_i·s_j) / (|g_k| (|g_l| + n))."""

    fragments: Literal["words", "edges"] = "words"
    score: Literal["best", "mean"] = "best"
    #: Of the common space.
    dim: Width = 1024
    #: Of the word vectors.
    word: Width = 300
    dropout: Share = 0.5
    #: Region features are taken by their direction, less the mean one (`deixis.features.centring`).
    centred_regions: bool = False
    #: DeFrag's n, which keeps short sentences from an advantage.
    smoothing: Annotated[float, Meta(ge=0)] = 5.0


class BidirectionalReader(nn.Module):
    """e_t = f(W_e x_t + b_e); h^f, h^b = f(e_t + W h_{t∓1} + b); s_t = f(W_d (h^f_t + h^b_t) + b_d); f is ReLU."""

    def __init__(self, recipe: AlignmentRecipe) -> None:
        super().__init__()
        bound = recipe.dim**-0.5
        self.enter = nn.Linear(recipe.word, recipe.dim)
        # W_f and W_b, transposed, and b_f and b_b.
        self.recurrent = nn.Parameter(torch.empty(2, recipe.dim, recipe.dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, 1, recipe.dim))
        self.leave = nn.Linear(recipe.dim, recipe.dim)
        # The recurrence itself is never dropped.
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, words: Tensor, real: Tensor) -> Tensor:
        """Word vectors (texts, longest, word), and which are real, to (texts, longest, dim)."""
        entered = self.dropout(self.enter(words).relu())
        place = torch.arange(words.shape[1], device=words.device)
        lengths = real.sum(1, keepdim=True)
        # Backwards from each text's own end; padding stays where it is, behind both readings.
        backwards = torch.where(place < lengths, lengths - 1 - place, place)[..., None].expand_as(entered)
        inputs = torch.stack([entered, entered.gather(1, backwards)])
        states = [inputs.new_zeros(2, len(words), entered.shape[-1])]
        for step in inputs.unbind(2):
            states.append((step + torch.baddbmm(self.bias, states[-1], self.recurrent)).relu())
        forward, backward = torch.stack(states[1:], 2)
        both = forward + backward.gather(1, backwards)
        read: Tensor = self.leave(self.dropout(both)).relu()
        return read


class EdgeReader(nn.Module):
    """s = f(W_R [W_e w₁; W_e w₂] + b_R) of a dependency edge; W_R is one for all relations, b_R is each one's own."""

    def __init__(self, recipe: AlignmentRecipe, relations: int) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * recipe.word, recipe.dim, bias=False)
        self.bias = nn.Embedding(relations, recipe.dim)
        nn.init.zeros_(self.bias.weight)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, heads: Tensor, dependents: Tensor, relations: Tensor) -> Tensor:
        """Word vectors (…, word) twice and relation ids (…) to (…, dim)."""
        words = self.dropout(torch.cat([heads, dependents], -1))
        read: Tensor = (self.combine(words) + self.bias(relations)).relu()
        return read


class AlignmentNetwork(nn.Module):
    """Regions and fragments as vectors of one space.

    Args:
        channels: of the region features.
        words: how many word ids there are, that of padding (0) included.
        relations: how many relation ids there are; for edges alone.
        word_vectors: (words, word) what the word vectors are at first, but for a common factor.
        fixed: they stay so.
        rounded: all pairs are scored by vectors in bfloat16 (`score_all`), on a GPU by the fused kernel.
        scale: what region features are multiplied by, so that they are about as long as word vectors, 1. Else the
            margin of 1 is lost in the first scores, and whichever side is longer alone learns.
        centre: (channels,) the mean direction of region features, for `centred_regions`.
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
        """v: (…, channels) to (…, dim)."""
        given = regions * self.scale
        if self.recipe.centred_regions:
            given = centred(regions, self.centre)
        embedded: Tensor = self.regions(self.dropout(given))
        return embedded

    def embed_fragments(self, ids: Tensor) -> Tensor:
        """s: ids (texts, longest, width) to (texts, longest, dim); what stands at padding has no meaning."""
        words = self.words(ids[..., :2])
        if isinstance(self.reader, BidirectionalReader):
            read: Tensor = self.reader(words[..., 0, :], ids[..., 0] != 0)
        else:
            read = self.reader(words[..., 0, :], words[..., 1, :], ids[..., 2])
        return read

    def score(self, regions: Tensor, present: Tensor, fragments: Tensor, ids: Tensor) -> Tensor:
        """S (images, texts) of embedded regions and fragments, all pairs.

        Args:
            regions: (images, regions, dim).
            present: (images, regions) false where an image has fewer regions.
            fragments: (texts, longest, dim).
            ids: of the fragments.
        """
        real = ids[..., 0] != 0
        pool: Pool = "best" if self.recipe.score == "best" else "positive"
        totals = pooled_products(regions, present, *flat_words(fragments, real), len(ids), pool)
        if self.recipe.score == "best":
            return totals
        return totals / (present.sum(1)[:, None] * (real.sum(1) + self.recipe.smoothing))

    @torch.no_grad()
    def score_all(self, regions: Tensor, present: Tensor, ids: Tensor) -> Tensor:
        """S (images, texts) of features (images, regions, channels) and fragment ids; texts are read block by block."""
        embedded = torch.cat([self.embed_regions(part.float()) for part in torch.split(regions, TEXTS)])
        kernel = fused_kernel(embedded.device) if self.rounded and self.recipe.score == "best" else None
        if kernel is not None:
            tiles = kernel.default_tiles(embedded.device)
            packed = packed_regions(embedded, present, tiles)
        elif self.rounded:
            embedded = embedded.bfloat16().float()
        blocks = []
        for part in torch.split(ids, TEXTS):
            own = part[:, : max(1, int((part[..., 0] != 0).sum(1).max()))]
            fragments = self.embed_fragments(own)
            if kernel is not None:
                real = own[..., 0] != 0
                words = packed_words(fragments[real], real.nonzero()[:, 0], len(own), tiles)
                blocks.append(kernel.best_product_sums(packed, words))
            else:
                blocks.append(self.score(embedded, present, fragments.bfloat16() if self.rounded else fragments, own))
        return torch.cat(blocks, 1)


def fused_kernel(device: torch.device) -> Any:
    """The module of the fused kernel where it runs, on NVIDIA GPUs with Triton; elsewhere None, and blocks do it."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    try:
        kernel = import_module("deixis.papers.dvsa.fast.product_kernel")
    except ImportError:  # a Triton too old for what the kernel asks of it
        return None
    return kernel if kernel.available(device) else None


def pooled_products(
    regions: Tensor,
    present: Tensor,
    words: Tensor,
    text: Tensor,
    texts: int,
    pool: Pool = "best",
    block: int = BLOCK,
) -> Tensor:
    """Σ over a text's words of their pooled products with an image's regions: `(images, texts)`.

    At most `block` products are in memory at a time, for the gradient too: it makes them again.

    Args:
        regions: (images, regions, dim).
        present: (images, regions) false where an image has fewer regions.
        words: (words, dim), those of all texts.
        text: (words,) the text of each; what is said of others than the first `texts` is left out.
        texts: how many.
    """
    # Sums of many products: half precision would drown a margin.
    with torch.autocast(regions.device.type, enabled=False):
        full = torch.promote_types(regions.dtype, torch.float32)
        regions, words = regions.to(full), words.to(full)
        columns = max(1, min(len(words), block // max(1, regions.shape[1])))
        rows = max(1, block // (columns * max(1, regions.shape[1])))
        parts = []
        for own, real in zip(torch.split(regions, rows), torch.split(present, rows), strict=True):
            total = own.new_zeros(len(own), texts + 1)
            for some, of in zip(torch.split(words, columns), torch.split(text, columns), strict=True):
                if torch.is_grad_enabled():
                    pooled = checkpoint(_pooled, own, real, some, pool, use_reentrant=False, preserve_rng_state=False)
                else:
                    pooled = _pooled(own, real, some, pool)
                total = total.index_add(1, of, pooled)
            parts.append(total[:, :texts])
        return torch.cat(parts)


def _pooled(regions: Tensor, present: Tensor, words: Tensor, pool: Pool) -> Tensor:
    """(images, words)"""
    products = (regions.flatten(0, 1) @ words.T).view(*regions.shape[:2], len(words))
    absent = ~present[..., None]
    if pool == "best":
        products.masked_fill_(absent, -torch.inf)
        # The gradient goes to one region; without it, which one need not be found.
        return products.max(1).values if torch.is_grad_enabled() else products.amax(1)
    rectified = (products if pool == "positive" else products + 1).relu()
    return rectified.masked_fill(absent, 0).sum(1)
