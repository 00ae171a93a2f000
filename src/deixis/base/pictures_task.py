"""A picture tower and a recurrent text branch learned together from pictures: recipes of the kind `pictures`.

Beyond the papers, whose networks keep their picture features as they are. Pictures lie on the device as bytes, and
every step sees other windows and colours of them. What comes out is a tower that opens as a backbone, and a text branch
whose embeddings compare with the tower's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.text_tower import TextTower, TowerRecipe
from deixis.base.tower_model import FineTowerModel, TowerModel
from deixis.base.word_cells import Words, best_cells
from deixis.corpus import Corpus, Image, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.papers.two_branch.loss import make_loss
from deixis.text.featurizers import TextFeatures, TextRecipe, TokenIds, load_text_features, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.text.vocabulary import UNKNOWN
from deixis.training.augmentation import (
    MARGIN,
    Views,
    mirrored_words,
    random_colours,
    random_views,
    recoloured,
    some_of_each,
    squashed_pictures,
    view_pictures,
)
from deixis.training.contrastive import (
    HardestNegativeRecipe,
    InfoNCERecipe,
    ScoreInfoNCE,
    caption_contrast,
    contrast_of,
)
from deixis.training.inputs import TEXT, initial_vectors
from deixis.training.kind import Kind
from deixis.training.placing import send
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
)
from deixis.training.runs import read_weights
from deixis.training.sampling import shuffled
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.training.validation import retrieval_figures
from deixis.vision import TOWER as TOWER_PREFIX
from deixis.vision.efficientnet_lite import load_efficientnet_lite
from deixis.vision.reading import Skipped
from deixis.vision.tower import CELLS, TOWER, PictureTower, save_tower

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class PictureSamplerRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`zoom`: windows of a picture have sides of 1 − zoom at the least."""

    images: Annotated[int, Meta(ge=2)] = 128
    captions: Annotated[int, Meta(ge=1)] = 5
    zoom: Annotated[float, Meta(ge=0, lt=1)] = 0.45
    #: Share of the words of a caption that are read as unknown.
    hide_words: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    #: Images without a picture at hand of which a step takes two captions each: the text branch learns that they match.
    texts: Annotated[int, Meta(ge=0)] = 0


class PictureRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: None are stored: the tower looks at pictures.
    features: None = None  # type: ignore[assignment]
    text: TextRecipe = TextRecipe(kind="tokens", minimum_count=2)
    model: TowerRecipe = TowerRecipe()
    loss: InfoNCERecipe | HardestNegativeRecipe = InfoNCERecipe()
    sampler: PictureSamplerRecipe = PictureSamplerRecipe()
    #: Begin with the word vectors that `text.vectors` names.
    word_vectors: bool = True
    #: Whether larger pictures become JPEG files of this quality first, as those of a bundle do; 0: they do not.
    jpeg: Annotated[int, Meta(ge=0, le=100)] = 0

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
            self.tower = PictureTower(network, model.backbone, model.side, model.dim, model.queries, model.fine)
            self.texts = TextTower(model, words, vectors)
            self.loss = make_loss(recipe.loss)
            temperature = recipe.loss.temperature if isinstance(recipe.loss, InfoNCERecipe) else None
            self.fine_loss = ScoreInfoNCE(temperature) if model.fine else None
            self.text_loss = make_loss(InfoNCERecipe()) if recipe.sampler.texts else None


class PictureBatch(NamedTuple):
    rows: Rows  # (images,) on the host
    images: Tensor  # (images,) rows of the pictures
    captions: Tensor  # (captions,) rows of the captions
    owner: Tensor  # (captions,) place in `images`
    pairs: Tensor  # (texts, 2) rows of the captions of images without pictures
    seed: int
    #: (twins, 3): place in `images`, row of a caption, row of a false one. None: false captions are not used.
    twins: Tensor | None = None


class ReadTexts(NamedTuple):
    """Embeddings `(texts, dim)` of unit length, and those of words where cells count."""

    texts: Tensor
    words: Words | None


class Captioned(NamedTuple):
    """Pictures as bytes and their captions as ids, on the device."""

    images: tuple[Image, ...]
    sizes: tuple[tuple[int, int], ...]  # width and height of the originals
    pixels: Tensor  # (images, 3, side, side)
    texts: Tensor  # (captions, longest)
    image_of: Tensor  # (captions,)
    starts: Rows  # (images + 1,) each image's captions


class PictureTask:
    """Validated by retrieval in both directions on the validation split."""

    def __init__(self, recipe: PictureRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.text = self._fit_text(training, corpus)
        vectors = initial_vectors(recipe.text, training, self.text) if recipe.word_vectors else None
        self.module = TowerModule(recipe, self.text.dim, vectors).to(device)
        self.module.tower.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shown = [image for image in training if self._learns_from(image)]
        self.data = self._read(training.corpus, shown, round(recipe.model.side * MARGIN / 32) * 32)
        validation = corpus.split("val")
        captioned = [image for image in validation if image.captions]
        self.held_out = self._read(validation, captioned, recipe.model.side)
        #: The rows of the pictures that an epoch shows.
        self._epoch_rows: Rows = np.arange(len(self.data.images))
        assert isinstance(self.text, TokenIds)
        self._mirrored = mirrored_words(self.text.vocabulary).to(device)
        #: Captions of images without pictures, and where each image's begin.
        self.lone_captions: Tensor | None = None
        self._lone_starts: Rows = np.zeros(1, np.int64)
        if recipe.sampler.texts:
            self.lone_captions, self._lone_starts = self._captions_without_pictures(training.corpus)

    def _fit_text(self, training: TrainingSet, corpus: Corpus) -> TextFeatures:
        return text_features(self.recipe.text, training, also=tokens_of_captions(corpus), device=self.device.type)

    def _learns_from(self, image: Image) -> bool:
        """Whether a training step can use an image, if it has a picture."""
        return bool(image.captions)

    def _captions_without_pictures(self, corpus: Corpus) -> tuple[Tensor, Rows]:
        seen = {image.id for image in self.data.images}
        lone = [image for image in corpus if image.id not in seen and len(image.captions) > 1]
        if not lone:
            raise DeixisError("sampler.texts: there is no image that has captions alone")
        ids = self.text.transform(tokens_of_captions(lone))
        return torch.from_numpy(ids).to(self.device), np.cumsum([0, *(len(image.captions) for image in lone)])

    def _read(self, corpus: Corpus, images: Sequence[Image], side: int) -> Captioned:
        read = squashed_pictures(corpus, images, side, Skipped(), self.recipe.jpeg)
        if not any(image.captions for image in read.images):
            raise DeixisError(f"no picture of corpus {corpus.name or '(unnamed)'} with captions can be read")
        counts = [len(image.captions) for image in read.images]
        ids = self.text.transform(tokens_of_captions(read.images))
        owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
        starts = np.concatenate([[0], np.cumsum(counts)])
        pixels, texts = read.pixels.to(self.device), torch.from_numpy(ids).to(self.device)
        return Captioned(read.images, read.sizes, pixels, texts, owners.to(self.device), starts)

    def batches(self, epoch: int) -> Batches[PictureBatch]:
        return shuffled(len(self._epoch_rows), self.recipe.sampler.images, self.recipe.seed, epoch, self._batch)

    def _batch(self, epoch: int, places: Rows, following: object, random: np.random.Generator) -> PictureBatch:
        images = random.permutation(self._different_pictures(places, random))
        drawn = some_of_each(self.data.starts, images, self.recipe.sampler.captions, random)
        lone = random.permutation(len(self._lone_starts) - 1)[: self.recipe.sampler.texts]
        pairs = some_of_each(self._lone_starts, lone, 2, random)[0].reshape(-1, 2)
        rows, captions, owner, texts = (send(torch.from_numpy(part), self.device) for part in (images, *drawn, pairs))
        seed = int(random.integers(1 << 62))
        return PictureBatch(images, rows, captions, owner, texts, seed, self._twins(*drawn, random))

    def _different_pictures(self, places: Rows, random: np.random.Generator) -> Rows:
        """The pictures at these places of an epoch, each once: one that is shown twice is not a negative of itself.

        Others are added where some are missing, so that all batches have the same size.
        """
        images = np.unique(self._epoch_rows[places])
        missing = self.recipe.sampler.images - len(images)
        others = random.permutation(np.setdiff1d(self._epoch_rows, images))[: max(0, missing)]
        return np.concatenate([images, others])

    def _twins(self, captions: Rows, owners: Rows, random: np.random.Generator) -> Tensor | None:
        """False captions beside true ones of a batch, for tasks that learn from them."""
        return None

    def loss(self, batch: PictureBatch, gather: Gather = compute_all) -> Loss:
        views, colours, generator = self._augmentation(batch)
        # Texts first: their lengths make a GPU wait, which then has the pictures to work on while the rest is queued.
        captions = self._read_captions(batch, views, generator, gather)
        lone = self._lone_loss(batch, generator, gather)

        def look(*given: Tensor) -> tuple[Tensor, Tensor | None]:
            return self._embed(self.module.tower.backbone.map(self._windows(*given)))

        images, cells = gather(look, batch.images, *views, colours)
        return joined_losses(self._match(batch, images, cells, captions), lone)

    def _augmentation(self, batch: PictureBatch) -> tuple[Views, Tensor, torch.Generator]:
        """Windows and colours `(images, 3, 1, 1, 1)` of the batch's pictures, and what draws everything else."""
        generator = torch.Generator(self.device).manual_seed(batch.seed)
        views = random_views(len(batch.images), self.recipe.sampler.zoom, generator)
        return views, random_colours(len(batch.images), generator).transpose(0, 1), generator

    def _windows(self, rows: Tensor, start: Tensor, sides: Tensor, flip: Tensor, colours: Tensor) -> Tensor:
        """What the tower sees of the pictures in these rows of the data."""
        seen = view_pictures(self.data.pixels[rows], Views(start, sides, flip), self.recipe.model.side)
        return recoloured(seen, colours.transpose(0, 1)).contiguous(memory_format=torch.channels_last)

    def _embed(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        """Embeddings of pictures, given as maps of the backbone, and of their cells where these count."""
        tower = self.module.tower
        cells = None if self.module.fine_loss is None else tower.embed_cells(maps)
        return F.normalize(tower.pooled(maps).float()), cells

    def _read_captions(
        self, batch: PictureBatch, views: Views, generator: torch.Generator, gather: Gather
    ) -> ReadTexts:
        ids = self._as_seen(self.data.texts[batch.captions], views, batch.owner)
        return self._read_texts(self._hidden(ids, generator), gather)

    def _read_texts(self, ids: Tensor, gather: Gather = compute_all) -> ReadTexts:
        """Embeddings of texts and, where cells count, of their words."""
        texts = self.module.texts
        if self.module.fine_loss is None:
            return ReadTexts(gather(self._embed_texts, ids), None)
        pooled, states = gather(texts.encoder.with_states, ids)
        words = texts.words_of(states, ids)
        words = words._replace(vectors=gather(texts.embed_words, words.vectors))
        return ReadTexts(gather(lambda rows: F.normalize(texts.embed(rows).float()), pooled), words)

    def _match(self, batch: PictureBatch, images: Tensor, cells: Tensor | None, captions: ReadTexts) -> Loss:
        """The loss of embedded pictures and their sentences."""
        module = self.module
        total, parts = module.loss(images, captions.texts, caption_contrast(batch.owner, len(images)))
        if cells is not None and module.fine_loss is not None and captions.words is not None:
            scores = images @ captions.texts.T + best_cells(cells, captions.words)
            parts = {**parts, "fine": module.fine_loss(scores, batch.owner)}
            total = total + parts["fine"]
        return Loss(total, parts)

    def _lone_loss(self, batch: PictureBatch, generator: torch.Generator, gather: Gather) -> Loss | None:
        """The loss of captions of images without pictures, matched with other captions of the same image."""
        if self.module.text_loss is None or self.lone_captions is None:
            return None
        ids = self._hidden(self.lone_captions[batch.pairs.T.flatten()], generator)
        first, second = gather(self._embed_texts, ids).chunk(2)
        same = torch.eye(len(first), dtype=torch.bool, device=self.device)
        loss = self.module.text_loss(first, second, contrast_of(same))[0]
        return Loss(loss, {"texts": loss})

    def _embed_texts(self, ids: Tensor) -> Tensor:
        return F.normalize(self.module.texts(ids).float())

    def _as_seen(self, ids: Tensor, views: Views, owner: Tensor) -> Tensor:
        """Texts with "left" and "right" exchanged where the picture that they belong to is mirrored."""
        return torch.where(views.flip[owner, None] < 0, self._mirrored[ids], ids)

    def _hidden(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Texts no longer than they must be, of which some words are unknown."""
        ids = ids[:, : int((ids != 0).sum(1).max())]
        hidden = torch.rand(ids.shape, device=self.device, generator=generator) < self.recipe.sampler.hide_words
        return torch.where(hidden & (ids != 0), UNKNOWN, ids)

    def validate(self) -> Mapping[str, float]:
        """Recalls; where cells and words count, `whole.rsum` is that of the embeddings alone."""
        data, module = self.held_out, self.module
        maps = [module.tower.backbone.map((part.float() - 127) / 128) for part in torch.split(data.pixels, 64)]
        images = torch.cat([F.normalize(module.tower.pooled(part)) for part in maps])
        parts = torch.split(data.texts, 1024)
        texts = torch.cat([F.normalize(module.texts(part)) for part in parts])
        whole = images @ texts.T
        if module.fine_loss is None:
            return retrieval_figures(whole, data.image_of)
        cells = torch.cat([module.tower.embed_cells(part) for part in maps])
        fine = torch.cat([best_cells(cells, module.texts.with_words(part)[1]) for part in parts], 1)
        return {
            **retrieval_figures(whole + fine, data.image_of),
            "whole.rsum": retrieval_figures(whole, data.image_of)["rsum"],
        }

    def describe(self, batch: PictureBatch) -> str:
        return "images " + ", ".join(self.data.images[row].id for row in batch.rows[:5]) + ", …"

    def save(self, folder: Path) -> None:
        save_tower(self.module.tower, folder / TOWER, cells=False)
        if self.recipe.model.fine:
            save_tower(self.module.tower, folder / CELLS)
        self.text.save(folder / TEXT)


def joined_losses(first: Loss, *others: Loss | None) -> Loss:
    """The sum of losses with the parts of all; None is left out."""
    for other in others:
        if other is not None:
            first = Loss(first.total + other.total, {**first.parts, **other.parts})
    return first


P = TypeVar("P", bound=PictureRecipe)


class TowerKind(Kind[P]):
    """What the kinds `pictures` and `base` have in common."""

    makes_features = True
    distributed = True

    def features(self, recipe: P, run: Path | None = None) -> list[FeatureRecipe]:
        """It learns from the pictures themselves; a run is used with its tower's embeddings, and its cells' if any."""
        return [] if run is None else [FeatureRecipe(backbone=f"{TOWER_PREFIX}{tower_file(run)}", crops="squash")]


class PicturesKind(TowerKind[PictureRecipe]):
    recipe_type = PictureRecipe

    def task(
        self, recipe: PictureRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> PictureTask:
        return PictureTask(recipe, training_set(corpus), corpus, device)

    def load_model(self, folder: Path, recipe: PictureRecipe, device: torch.device) -> TowerModel:
        model_type = FineTowerModel if recipe.model.fine else TowerModel
        return model_type(*load_text_tower(folder, recipe), device, tower_file(folder))

    def protocols(self, evaluation: Evaluation[PictureRecipe]) -> Sequence[RunProtocol]:
        protocols = [image_text_ranking]
        if not evaluation.recipe.model.fine:
            protocols.append(sentence_ranking)
        if evaluation.drawn_regions:
            protocols.append(ground_truth_region_ranking)
        return protocols


def tower_file(folder: Path) -> Path:
    """The picture tower of a finished run, with the embeddings of cells where there are any."""
    return folder / CELLS if (folder / CELLS).exists() else folder / TOWER


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
