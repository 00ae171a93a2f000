"""Two-branch networks (section 3): images and texts in one space, or a learned similarity of the two.

`TwoBranchEmbedding` (section 3.2.1) maps each side through its branch to unit vectors; their distance ranks.
`SimilarityNetwork` (section 3.3) has the same branches, multiplies their outputs element by element and maps the
product through further layers to one logit. Losses are in `loss.py`, Algorithm 1 is in `phrase_sampling.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.features.centring import centred
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe, Share, Width
from deixis.training.masked_norm import MaskedBatchNorm, MaskedSequential

Widths = Annotated[tuple[Width, ...], Meta(min_length=1)]

#: Widths of the layers over the product (section 4.3). The paper also tries one and two layers and gives no widths:
#: then the last ones are used.
FUSION_WIDTHS = (512, 256, 1)
#: Products in memory at a time in `score_all`: 64 MB in float32.
BLOCK = 1 << 24


class EmbeddingRecipe(Struct, tag="embedding", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Widths of the fully connected layers of each branch; a single width is the paper's linear structure.

    The defaults are for phrases. For sentences the paper has (2048, 512) and dropout 0.5; for texts read by an LSTM,
    (1024, 512).
    """

    image: Widths = (1024, 512)
    text: Widths = (1024, 512)
    dropout: Share = 0.0
    #: Use only the direction of image or region features, minus the mean direction of the training data.
    centred: bool = False
    #: Text features are multiplied by this. Those of unit length in 6,000 dimensions have unit variance at 77.
    text_scale: Annotated[float, Meta(gt=0)] = 1.0
    recurrent: RecurrentRecipe | None = None

    def __post_init__(self) -> None:
        if self.recurrent is not None and self.text_scale != 1:
            raise ValueError("text_scale: an LSTM reads token ids, which have no scale")


class SimilarityRecipe(EmbeddingRecipe, tag="similarity", tag_field="kind", frozen=True, forbid_unknown_fields=True):
    """Branches as in `EmbeddingRecipe`, and how many fully connected layers follow their product."""

    layers: Literal[1, 2, 3] = 3


class Branch(MaskedSequential):
    """FC, ReLU, dropout, …, FC, BN (section 3.2.1); the linear branch of section 4.2 is one FC. Not normalized yet."""

    def __init__(self, inputs: int, widths: tuple[int, ...], dropout: float) -> None:
        layers: list[nn.Module] = []
        for width in widths[:-1]:
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
            inputs = width
        layers.append(nn.Linear(inputs, widths[-1]))
        if len(widths) > 1:
            layers.append(MaskedBatchNorm(widths[-1]))
        super().__init__(*layers)


class TwoBranchEmbedding(nn.Module):
    """Images and texts as unit vectors of one space (section 3.2.1).

    Args:
        image_dim: size of the image or region features.
        text_dim: size of the text features; for a recurrent branch the number of token ids, padding included.
        word_vectors: `(text_dim, word)` initial word vectors of a recurrent branch.

    >>> network = TwoBranchEmbedding(1280, 300, EmbeddingRecipe(image=(512, 128), text=(512, 128)))
    >>> network.embed_images(torch.randn(4, 1280)).shape
    torch.Size([4, 128])
    """

    def __init__(
        self, image_dim: int, text_dim: int, recipe: EmbeddingRecipe, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        if recipe.image[-1] != recipe.text[-1]:
            raise DeixisError(f"the branches end in {recipe.image[-1]} and {recipe.text[-1]} numbers; they must agree")
        if word_vectors is not None and recipe.recurrent is None:
            raise DeixisError("word vectors were given to a text branch that reads no token ids")
        self.dim, self._text_scale = recipe.image[-1], recipe.text_scale
        #: The mean direction that `centred` subtracts; set by the task.
        self.centre = nn.Buffer(torch.zeros(image_dim)) if recipe.centred else None
        self.encoder = RecurrentEncoder(text_dim, recipe.recurrent, word_vectors) if recipe.recurrent else None
        self.images = Branch(image_dim, recipe.image, recipe.dropout)
        self.texts = Branch(self.encoder.dim if self.encoder else text_dim, recipe.text, recipe.dropout)

    def embed_images(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features `(images, image_dim)` to unit embeddings `(images, dim)`; batch norm ignores masked rows."""
        if self.centre is not None:
            # Scaled to unit variance, which the first layer's initialization assumes.
            images = centred(images, self.centre) * len(self.centre) ** 0.5
        return functional.normalize(self.images(images, mask), dim=-1)

    def embed_texts(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features `(texts, text_dim)` or token ids `(texts, longest)` to unit embeddings `(texts, dim)`."""
        read = self.encoder(texts) if self.encoder else texts * self._text_scale
        return functional.normalize(self.texts(read, mask), dim=-1)


class SimilarityNetwork(TwoBranchEmbedding):
    """The branches, their element-wise product, and FC layers with ReLU between them (section 3.3); p_ij is a logit.

    >>> network = SimilarityNetwork(1280, 300, SimilarityRecipe(image=(512, 128), text=(512, 128)))
    >>> network.score_all(torch.randn(4, 1280), torch.randn(6, 300)).shape
    torch.Size([4, 6])
    """

    def __init__(
        self, image_dim: int, text_dim: int, recipe: SimilarityRecipe, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(image_dim, text_dim, recipe, word_vectors)
        inputs, layers = self.dim, list[nn.Module]()
        for width in FUSION_WIDTHS[-recipe.layers :]:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.fusion = nn.Sequential(*layers[:-1])

    def compare(self, images: Tensor, texts: Tensor) -> Tensor:
        """Logits `(…)` of embedded images and texts `(…, dim)`, pair by pair; the shapes broadcast."""
        logits: Tensor = self.fusion(images * texts)
        return logits.squeeze(-1)

    def score_pairs(self, images: Tensor, texts: Tensor) -> Tensor:
        """Logits `(pairs,)` of features: the first image with the first text, and so on."""
        return self.compare(self.embed_images(images), self.embed_texts(texts))

    @torch.no_grad()
    def score_all(self, images: Tensor, texts: Tensor, block: int = BLOCK) -> Tensor:
        """Logits `(images, texts)` of every image with every text, at most `block` products at a time."""
        embedded_images, embedded_texts = self.embed_images(images), self.embed_texts(texts)
        columns = max(1, min(len(texts), block // self.dim))
        rows = max(1, block // (self.dim * columns))
        scores = embedded_images.new_empty(len(images), len(texts))
        for top in range(0, len(images), rows):
            for left in range(0, len(texts), columns):
                pairs = embedded_images[top : top + rows, None], embedded_texts[left : left + columns]
                scores[top : top + rows, left : left + columns] = self.compare(*pairs)
        return scores
