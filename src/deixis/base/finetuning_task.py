"""What `deixis.base.finetuning` trains: a bundle's pooling and text branch, on pictures that were seen once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.text_tower import TextTower
from deixis.base.word_cells import best_cells
from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError
from deixis.papers.two_branch.loss import make_loss
from deixis.text.featurizers import TokenIds
from deixis.text.tokens import tokens_of_captions
from deixis.text.vocabulary import UNKNOWN
from deixis.training.augmentation import some_of_each, squashed_pictures
from deixis.training.contrastive import InfoNCERecipe, ScoreInfoNCE, caption_contrast
from deixis.training.sampling import Indices, shuffled
from deixis.training.task import Batches, Loss
from deixis.training.validation import retrieval_figures
from deixis.vision.proposer import normalize
from deixis.vision.reading import Skipped
from deixis.vision.tower import PictureTower

#: Images and captions of a batch, words read as unknown, pictures looked at together, and the fewest that will do.
IMAGES, CAPTIONS, HIDDEN, LOOK, LEAST = 64, 5, 0.1, 8, 10


class Looked(NamedTuple):
    """Pictures as maps of a backbone, each also mirrored, and their captions as ids."""

    maps: Tensor  # (views, images, channels, rows, columns), float16
    texts: Tensor  # (captions, longest)
    image_of: Tensor  # (captions,)
    starts: Indices  # (images + 1,) each image's captions


class Compared(NamedTuple):
    """Pictures and texts of unit length, and their scores `(pictures, texts)` as search has them."""

    images: Tensor
    texts: Tensor
    scores: Tensor


class Heads(nn.Module):
    """What learns: the tower without its backbone, the text branch, and the losses' temperatures."""

    def __init__(self, tower: PictureTower, texts: TextTower) -> None:
        super().__init__()
        self.tower, self.texts, self.loss = tower, texts, make_loss(InfoNCERecipe())
        self.fine_loss = ScoreInfoNCE() if tower.fine else None

    def compare(self, maps: Tensor, ids: Tensor) -> Compared:
        images = F.normalize(self.tower.pooled(maps))
        if self.fine_loss is None:
            texts = F.normalize(self.texts(ids))
            return Compared(images, texts, images @ texts.T)
        embedded, words = self.texts.with_words(ids)
        texts = F.normalize(embedded)
        cells = self.tower.few_cells(self.tower.embed_cells(maps))
        return Compared(images, texts, images @ texts.T + best_cells(cells, words))

    def scores(self, data: Looked) -> Tensor:
        """Of the pictures as they are, `(images, captions)`."""
        parts = [
            [self.compare(maps.float(), ids).scores for ids in torch.split(data.texts, 512)]
            for maps in torch.split(data.maps[0], 64)
        ]
        return torch.cat([torch.cat(row, 1) for row in parts])


class FinetuningTask:
    """The trainer's task: `deixis.training.task.Task`."""

    def __init__(self, heads: Heads, data: Looked, stop: Looked, seed: int) -> None:
        self.module: nn.Module = heads
        self._heads, self.data, self.stop, self._seed = heads, data, stop, seed

    def batches(self, epoch: int) -> Batches[tuple[Indices, int]]:
        def make(epoch: int, images: Indices, following: object, random: np.random.Generator) -> Any:
            return images, int(random.integers(1 << 62))

        return shuffled(len(self.data.starts) - 1, IMAGES, self._seed, epoch, make)

    def loss(self, batch: tuple[Indices, int]) -> Loss:
        images, seed = batch
        random = np.random.default_rng(seed)
        rows, owners = some_of_each(self.data.starts, images, CAPTIONS, random)
        owner = torch.from_numpy(owners)
        device = self.data.texts.device
        ids = self.data.texts[torch.from_numpy(rows).to(device)]
        ids = ids[:, : int((ids != 0).sum(1).max())]
        hidden = torch.from_numpy(random.random(tuple(ids.shape)) < HIDDEN).to(device)
        ids = torch.where(hidden & (ids != 0), UNKNOWN, ids)
        view = torch.from_numpy(random.integers(0, len(self.data.maps), len(images)))
        maps = self.data.maps[view.to(device), torch.from_numpy(images).to(device)].float()
        heads, owner = self._heads, owner.to(device)
        compared = heads.compare(maps, ids)
        whole: Loss = heads.loss(compared.images, compared.texts, caption_contrast(owner, len(images)))
        if heads.fine_loss is None:
            return whole
        fine = heads.fine_loss(compared.scores, owner)
        return Loss(whole.total + fine, {**whole.parts, "fine": fine})

    def validate(self) -> Mapping[str, float]:
        return retrieval_figures(self._heads.scores(self.stop), self.stop.image_of)

    def describe(self, batch: tuple[Indices, int]) -> str:
        return f"a batch of {len(batch[0])} pictures"


def look(
    tower: PictureTower,
    text: TokenIds,
    corpus: Corpus,
    images: Sequence[Image],
    device: torch.device,
    *,
    mirrored: bool,
    jpeg: int,
) -> Looked:
    """See pictures once with a tower's backbone; `jpeg` is the bundle's."""
    read = squashed_pictures(corpus, images, tower.side, Skipped(), jpeg)
    if len(read.images) < LEAST:
        raise DeixisError(
            f"of {len(images)} captioned pictures of {corpus.name or 'the corpus'} {len(read.images)} can be read"
        )
    views = []
    with torch.inference_mode():
        for turned in (False, True)[: 2 if mirrored else 1]:
            parts = [
                tower.backbone.map(normalize(part.flip(-1) if turned else part).to(device)).half()
                for part in torch.split(read.pixels, LOOK)
            ]
            views.append(torch.cat(parts))
    counts = [len(image.captions) for image in read.images]
    ids = text.transform(tokens_of_captions(read.images))
    return Looked(
        torch.stack(views).clone(),
        torch.from_numpy(ids).to(device),
        torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(device),
        np.concatenate([[0], np.cumsum(counts)]),
    )
