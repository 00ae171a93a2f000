"""A picture tower and a recurrent text branch learned together from pictures: recipes of the kind `pictures`.

Beyond the papers, whose networks keep their picture features as they are. Pictures lie on the device as bytes, and
every step sees other windows and colours of them. What comes out is a tower that opens as a backbone, and a text branch
whose embeddings compare with the tower's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.learning.checks import retrieval_figures
from deixis.learning.losses import Contrast, Direction, HardestNegativeRecipe, InfoNCERecipe, make_loss
from deixis.learning.proposer import random_views, recoloured, squashed_pictures, view_pictures
from deixis.learning.recipe import Recipe
from deixis.learning.runs import read_weights
from deixis.learning.sampling import shuffled
from deixis.learning.task import Batches, Loss
from deixis.learning.two_branch import TEXT, fitted_text, initial_vectors
from deixis.models.matchers import TowerMatcher
from deixis.models.two_branch import RecurrentEncoder, RecurrentRecipe
from deixis.text.features import TextFeatures, TextRecipe, load_text_features
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import UNKNOWN
from deixis.vision import TOWER as TOWER_PREFIX
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.reading import Skipped
from deixis.vision.tower import PictureTower, save_tower

TOWER = "tower.safetensors"
#: Pictures are kept a little larger than the network sees them, so that windows have something to choose from.
MARGIN = 1.125


class TowerRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    backbone: str = "efficientnet-lite2"
    side: Annotated[int, Meta(ge=32, le=1024)] = 256
    dim: Annotated[int, Meta(ge=1)] = 1024
    queries: Annotated[int, Meta(ge=1, le=64)] = 4
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    recurrent: RecurrentRecipe = RecurrentRecipe(
        cell="gru", word=300, hidden=1024, bidirectional=True, pooling="max", dropout=0.2
    )


class PictureSamplerRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`zoom`: windows of a picture have sides of 1 − zoom at the least."""

    images: Annotated[int, Meta(ge=2)] = 128
    captions: Annotated[int, Meta(ge=1)] = 5
    zoom: Annotated[float, Meta(ge=0, lt=1)] = 0.45
    #: Share of the words of a caption that are read as unknown.
    hide_words: Annotated[float, Meta(ge=0, lt=1)] = 0.1


class PictureRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: None are stored: the tower looks at pictures.
    features: None = None  # type: ignore[assignment]
    text: TextRecipe = TextRecipe(kind="tokens", minimum_count=2)
    model: TowerRecipe = TowerRecipe()
    loss: InfoNCERecipe | HardestNegativeRecipe = InfoNCERecipe()
    sampler: PictureSamplerRecipe = PictureSamplerRecipe()
    #: Begin with the word vectors that `text.vectors` names.
    word_vectors: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.kind != "tokens":
            raise ValueError("text.kind must be 'tokens': the text branch reads words")


class TowerModule(nn.Module):
    """Both branches and the loss, which may learn a temperature."""

    def __init__(self, recipe: PictureRecipe, words: int, vectors: Tensor | None) -> None:
        super().__init__()
        model = recipe.model
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            network = load_efficientnet_lite(model.backbone)
            self.tower = PictureTower(network, model.backbone, model.side, model.dim, model.queries)
            self.texts = TextTower(model, words, vectors)
            self.loss = make_loss(recipe.loss)


class TextTower(nn.Module):
    """Token ids to embeddings `(texts, dim)`, of any length."""

    def __init__(self, recipe: TowerRecipe, words: int, vectors: Tensor | None = None) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(words, recipe.recurrent, vectors)
        self.dropout = nn.Dropout(recipe.dropout)
        self.project = nn.Linear(self.encoder.dim, recipe.dim)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.project(self.dropout(self.encoder(ids)))
        return embedded


class PictureBatch(NamedTuple):
    epoch: int
    images: Tensor  # (images,) rows of the pictures
    captions: Tensor  # (captions,) rows of the captions
    owner: Tensor  # (captions,) place in `images`
    seed: int


class Captioned(NamedTuple):
    """Pictures as bytes and their captions as ids, on the device."""

    ids: tuple[str, ...]
    pixels: Tensor  # (images, 3, side, side)
    texts: Tensor  # (captions, longest)
    image_of: Tensor  # (captions,)
    starts: np.ndarray[tuple[int], np.dtype[np.int64]]  # (images + 1,) each image's captions


class PictureTask:
    """Validated by retrieval in both directions on the validation split."""

    def __init__(self, recipe: PictureRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.text = fitted_text(recipe.text, training, corpus, device)
        vectors = initial_vectors(recipe.text, training, self.text) if recipe.word_vectors else None
        self.module = TowerModule(recipe, self.text.dim, vectors).to(device)
        self.module.tower.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.data = self._read(training.corpus, round(recipe.model.side * MARGIN / 32) * 32)
        self.held_out = self._read(corpus.split("val"), recipe.model.side)

    def _read(self, corpus: Corpus, side: int) -> Captioned:
        captioned = [image for image in corpus if image.captions]
        read = squashed_pictures(corpus, captioned, side, Skipped())
        if not read.images:
            raise DeixisError(f"no picture of corpus {corpus.name or '(unnamed)'} with captions can be read")
        counts = [len(image.captions) for image in read.images]
        ids = self.text.transform([tokens_of(caption) for image in read.images for caption in image.captions])
        owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        starts = np.concatenate([[0], np.cumsum(counts)])
        names = tuple(image.id for image in read.images)
        return Captioned(
            names, read.pixels.to(self.device), torch.from_numpy(ids).to(self.device), owners.to(self.device), starts
        )

    def batches(self, epoch: int) -> Batches[PictureBatch]:
        return shuffled(len(self.data.ids), self.recipe.sampler.images, self.recipe.seed, epoch, self._batch)

    def _batch(
        self,
        epoch: int,
        images: np.ndarray[tuple[int], np.dtype[np.int64]],
        following: object,
        random: np.random.Generator,
    ) -> PictureBatch:
        captions, owners = [], []
        for place, image in enumerate(images):
            first, last = self.data.starts[image], self.data.starts[image + 1]
            chosen = first + random.permutation(last - first)[: self.recipe.sampler.captions]
            captions.append(chosen)
            owners.append(np.full(len(chosen), place))
        send = [
            torch.from_numpy(rows).to(self.device)
            for rows in (images, np.concatenate(captions), np.concatenate(owners))
        ]
        return PictureBatch(epoch, send[0], send[1], send[2], int(random.integers(1 << 62)))

    def loss(self, batch: PictureBatch) -> Loss:
        settings = self.recipe.sampler
        generator = torch.Generator(self.device).manual_seed(batch.seed)
        views = random_views(len(batch.images), settings.zoom, generator)
        pictures = recoloured(view_pictures(self.data.pixels[batch.images], views, self.recipe.model.side), generator)
        ids = self.data.texts[batch.captions]
        ids = ids[:, : int((ids != 0).sum(1).max())]
        hidden = torch.rand(ids.shape, device=self.device, generator=generator) < settings.hide_words
        ids = torch.where(hidden & (ids != 0), UNKNOWN, ids)
        images = F.normalize(self.module.tower(pictures.contiguous(memory_format=torch.channels_last)).float())
        texts = F.normalize(self.module.texts(ids).float())
        total, parts = self.module.loss(images, texts, contrast(batch.epoch, batch.owner, len(images)))
        return Loss(total, parts)

    def validate(self) -> Mapping[str, float]:
        data = self.held_out
        images = torch.cat(
            [F.normalize(self.module.tower((part.float() - 127) / 128)) for part in torch.split(data.pixels, 64)]
        )
        texts = torch.cat([F.normalize(self.module.texts(part)) for part in torch.split(data.texts, 1024)])
        return retrieval_figures(images @ texts.T, data.image_of)

    def describe(self, batch: PictureBatch) -> str:
        return "images " + ", ".join(self.data.ids[row] for row in batch.images[:5].tolist()) + ", …"

    def save(self, folder: Path) -> None:
        save_tower(self.module.tower, folder / TOWER)
        self.text.save(folder / TEXT)


def contrast(epoch: int, owner: Tensor, images: int) -> Contrast:
    """Every caption of a batch against every other picture, and every picture against all captions but its own."""
    captions = torch.arange(len(owner), device=owner.device)
    other = owner[:, None] != torch.arange(images, device=owner.device)  # (captions, images)
    return Contrast(
        epoch,
        image_to_text=Direction(owner, captions, owner[:, None] != owner),
        text_to_image=Direction(captions, owner, other),
    )


RECIPE = PictureRecipe


def feature_recipes(recipe: PictureRecipe) -> list[FeatureRecipe]:
    """None: it learns from the pictures themselves."""
    return []


def run_features(folder: Path) -> list[FeatureRecipe]:
    """The trained tower's embeddings."""
    return [FeatureRecipe(backbone=f"{TOWER_PREFIX}{folder / TOWER}", crops="squash")]


def build_task(
    recipe: PictureRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
) -> PictureTask:
    return PictureTask(recipe, training_set(corpus), corpus, device)


def load_matcher(folder: Path, recipe: PictureRecipe, device: torch.device) -> TowerMatcher:
    return TowerMatcher(*load_text_tower(folder, recipe), device)


def load_text_tower(folder: Path, recipe: PictureRecipe) -> tuple[TextTower, TextFeatures]:
    """The text branch of a finished run, and what makes token ids of texts."""
    text = load_text_features(folder / TEXT)
    tower = TextTower(recipe.model, text.dim)
    prefix = "texts."
    stored = read_weights(folder)
    tower.load_state_dict(
        {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}
    )
    return tower.eval(), text
