"""The kind `pictures` trained by several processes: each holds the pictures of some images, and embeds those.

Token ids are a two-hundredth of the bytes of pictures: every process has all of them, and embeds its part of a batch's
captions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deixis.base.pictures_task import Captioned, PictureBatch, PictureRecipe, PictureTask, contrast
from deixis.corpus import Corpus, TrainingSet
from deixis.errors import DeixisError
from deixis.training.augmentation import (
    Views,
    random_colours,
    random_views,
    recoloured,
    squashed_pictures,
    view_pictures,
)
from deixis.training.distributed import Held, Ranks, Sharing, summed
from deixis.training.inputs import fitted_text, initial_vectors
from deixis.training.task import Loss
from deixis.vision.reading import Skipped


class SharedPictureTask(PictureTask):
    """One process' part. The first alone has the validation split."""

    def __init__(
        self, recipe: PictureRecipe, training: TrainingSet, corpus: Corpus, device: torch.device, ranks: Ranks
    ) -> None:
        if recipe.model.fine or recipe.sampler.texts:
            raise DeixisError(
                f"{recipe.name} has model.fine or sampler.texts, which one process trains: start it without torchrun"
            )
        self.ranks = ranks
        # What is fitted is kept in the cache, and found there.
        with ranks.in_turn():
            text = fitted_text(recipe.text, training, corpus, device)
            if recipe.word_vectors:
                initial_vectors(recipe.text, training, text)
        super().__init__(recipe, training, corpus, device)
        self.sharing = Sharing(ranks, self.module)

    def _read_training(self, corpus: Corpus, side: int) -> Captioned:
        captioned = [image for image in corpus if image.captions]
        own = self.ranks.share(len(captioned))
        mine = captioned[own.start : own.stop]
        read = squashed_pictures(corpus, mine, side, Skipped())
        found = {image.id for image in read.images}
        readable = torch.zeros(len(captioned), dtype=torch.int64)
        readable[own.start : own.stop] = torch.tensor([image.id in found for image in mine], dtype=torch.int64)
        readable = summed(readable)
        if not readable.any():
            raise DeixisError(f"no picture of corpus {corpus.name or '(unnamed)'} with captions can be read")
        everyone = tuple(image for image, there in zip(captioned, readable.tolist(), strict=True) if there)
        made = self._captioned(read, everyone)
        self.held = Held(made.pixels, int(readable[: own.start].sum()))
        return made

    def _read(self, corpus: Corpus, side: int) -> Captioned:
        if self.ranks.first:
            return super()._read(corpus, side)
        return self._captioned(squashed_pictures(corpus, (), side, Skipped()), ())

    def loss(self, batch: PictureBatch) -> Loss:
        settings, count = self.recipe.sampler, len(batch.images)
        generator = torch.Generator(self.device).manual_seed(batch.seed)
        views, colours = random_views(count, settings.zoom, generator), random_colours(count, generator)
        places = self.held.places(batch.images)

        def embed() -> Tensor:
            pixels = self.held.values[batch.images[places] - self.held.first]
            seen = view_pictures(pixels, Views(*(field[places] for field in views)), self.recipe.model.side)
            pictures = recoloured(seen, colours[:, places]).contiguous(memory_format=torch.channels_last)
            return F.normalize(self.module.tower(pictures).float())

        images = self.sharing.gathered(places, count, embed)
        ids = self._hidden(self.data.texts[batch.captions], generator)
        texts = self.sharing.divided(
            len(ids), self.device, lambda part: F.normalize(self.module.texts(ids[part]).float())
        )
        total, parts = self.module.loss(images, texts, contrast(batch.owner, count))
        return Loss(total, parts)
