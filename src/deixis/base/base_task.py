"""One network for pictures with sentences and regions with phrases, on one backbone: recipes of the kind `base`.

Beyond the papers: what the package's own model is trained by. A step looks once at every picture of its batch; all of
them are matched with their captions (`deixis.base.pictures_task`), those with annotated boxes also teach proposals and
phrase grounding (`deixis.base.grounding_task`). Both text branches have the same word vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.base_run_model import DeixisBaseRunModel
from deixis.base.expression_images import expression_images
from deixis.base.grounding_data import as_tensors, grounding_data
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingNetwork, GroundingRecipe
from deixis.base.grounding_task import Augmentation, GroundingLoss, GroundingTask, localize_mentions, recalls
from deixis.base.pictures_task import (
    PictureBatch,
    PictureRecipe,
    PictureTask,
    ReadTexts,
    Rows,
    TowerKind,
    joined_losses,
    load_text_tower,
    tower_file,
)
from deixis.base.region_colours import thumbnail
from deixis.base.text_tower import TowerRecipe
from deixis.base.twin_data import TwinData, draw_twins, own_scores, twin_data, twin_loss
from deixis.base.warm_start import start_from_bundle
from deixis.corpus import Corpus, Image, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.localization import gold_queries
from deixis.text.false_captions import KINDS
from deixis.text.featurizers import TextFeatures, TokenIds
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary
from deixis.training.augmentation import SquashedPictures, Views
from deixis.training.placing import send
from deixis.training.run_protocols import Evaluation, RunProtocol, ground_truth_region_ranking, image_text_ranking
from deixis.training.runs import read_weights
from deixis.training.task import Gather, Loss, compute_all
from deixis.training.tools.proposer_training import new_proposer
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer, normalize
from deixis.vision.reading import Skipped

#: Training pictures that batch statistics are measured on, where training begins with a bundle.
MEASURED = 1024


class GroundingPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: GroundingRecipe = GroundingRecipe(side=320)
    loss: GroundingLoss = GroundingLoss()
    augmentation: Augmentation = Augmentation()
    #: Pictures of a batch whose phrases are grounded, of those with boxes.
    images: Annotated[int, Meta(ge=1)] = 32
    #: Of the grounding in the whole loss.
    weight: Annotated[float, Meta(gt=0)] = 0.5
    #: Expressions of a picture that are made from its labelled boxes ("the dog on the left"); 0: none.
    expressions: Annotated[int, Meta(ge=0)] = 0
    #: How often an epoch shows the pictures whose captions have phrases with boxes.
    repeats: Annotated[int, Meta(ge=1)] = 1


class TwinPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """False captions, one of them beside a true one: `deixis.text.false_captions`."""

    #: Of a batch; 0: none.
    captions: Annotated[int, Meta(ge=0)] = 0
    #: Of these in the whole loss.
    weight: Annotated[float, Meta(gt=0)] = 0.5


class DeixisBaseRecipe(PictureRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: TowerRecipe = TowerRecipe(side=320, fine=128)
    grounding: GroundingPart = GroundingPart()
    twins: TwinPart = TwinPart()
    #: The bundle to begin with, as NAME@SHA-256 of its weights, which may be cut short; "": ImageNet weights alone.
    start: str = ""

    @property
    def learns_from_boxes(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        model, grounding = self.model, self.grounding.model
        if (model.backbone, model.side) != (grounding.backbone, grounding.side):
            raise ValueError("model and grounding.model must have the same backbone and side: there is one pass")
        if not model.fine:
            raise ValueError("model.fine must be 1 at the least")


class DeixisBaseTask(PictureTask):
    """Validated by retrieval and by phrase localization."""

    recipe: DeixisBaseRecipe

    def __init__(self, recipe: DeixisBaseRecipe, training: TrainingSet, corpus: Corpus, device: torch.device) -> None:
        part = recipe.grounding
        self._expressed = expression_images(training, part.expressions, recipe.seed) if part.expressions else {}
        super().__init__(recipe, training, corpus, device)
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        words = _vocabulary(self.text)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            trunk = new_proposer(part.model.backbone, recipe.seed)
            network = GroundingNetwork(part.model, trunk, len(words), recipe.model.recurrent.word)
        borrow(network, "words", self.module.texts.encoder.words)
        borrow(network.proposer, "backbone", self.module.tower.backbone)
        if recipe.start:
            start_from_bundle(recipe.start, self.module, network, words, self._some_pictures())
        phrased = [bool(gold_queries(image)[0]) for image in self.data.images]
        boxed = [row for row, image in enumerate(self.data.images) if phrased[row] or image.id in self._expressed]
        if not boxed:
            raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no phrase with a box in its training pictures")
        #: Of every picture its row among those with boxes, or −1.
        self._boxed = np.full(len(self.data.images), -1)
        self._boxed[boxed] = np.arange(len(boxed))
        self._phrased = np.array(phrased)
        again = np.tile(np.flatnonzero(self._phrased), part.repeats - 1)
        self._epoch_rows = np.concatenate([self._epoch_rows, again])
        # Training looks at the pictures that are there already.
        annotated = SquashedPictures(
            tuple(self._with_phrases(self.data.images[row]) for row in boxed),
            tuple(self.data.sizes[row] for row in boxed),
            self.data.pixels[:0],
        )
        validation = corpus.split("val")
        self.grounding = GroundingTask(
            GroundingModel(network, words),
            as_tensors(
                annotated,
                words,
                device,
                {name: image_expressions.landmarks for name, image_expressions in self._expressed.items()},
            ),
            grounding_data(corpus, validation, words, part.model.side, device, Skipped(), jpeg=recipe.jpeg),
            loss=part.loss,
            augmentation=part.augmentation,
            batch_size=part.images,
            seed=recipe.seed,
        )
        self.module.add_module("grounding", self.grounding.module)
        expressed = expression_images(validation, part.expressions, recipe.seed) if part.expressions else {}
        #: Expressions about pictures of the validation split.
        self.held_out_expressions = (
            grounding_data(
                corpus,
                [image_expressions.image for image_expressions in expressed.values()],
                words,
                part.model.side,
                device,
                Skipped(),
                jpeg=recipe.jpeg,
            )
            if expressed
            else None
        )
        self.twins = twin_data(self.data.images, self.text, device, recipe.seed) if recipe.twins.captions else None
        self.held_out_twins = (
            twin_data(self.held_out.images, self.text, device, recipe.seed) if recipe.twins.captions else None
        )

    def _fit_text(self, training: TrainingSet, corpus: Corpus) -> TextFeatures:
        """The words of the training captions, and those of expressions and false captions, however rare."""
        captions = Counter(token for image in training for caption in image.captions for token in tokens_of(caption))
        captions_of = {image.id: {tokens_of(caption) for caption in image.captions} for image in training}
        made_captions = [
            tokens
            for name, expressed in self._expressed.items()
            for tokens in map(tokens_of, expressed.image.captions)
            if tokens not in captions_of[name]
        ]
        least = self.recipe.text.minimum_count
        needed = dict.fromkeys((token for tokens in made_captions for token in tokens), least)
        counts = {**needed, **captions, **{word: max(captions[word], least) for word in needed}}
        return TokenIds(self.recipe.text, Vocabulary(counts, minimum_count=least))

    def _learns_from(self, image: Image) -> bool:
        return bool(image.captions) or image.id in self._expressed

    def _with_phrases(self, image: Image) -> Image:
        """The image whose captions have phrases with boxes: its own, or one with expressions."""
        expressed = self._expressed.get(image.id)
        return image if expressed is None else expressed.image

    def _some_pictures(self) -> Iterator[Tensor]:
        """Training pictures as they are validated, to measure batch statistics on."""
        rows = np.random.default_rng(self.recipe.seed).permutation(len(self.data.images))[:MEASURED]
        for part in np.array_split(rows, max(1, len(rows) // 64)):
            pixels = normalize(self.data.pixels[torch.from_numpy(part).to(self.device)])
            side = self.recipe.model.side
            yield F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False)

    def _twins(self, captions: Rows, owners: Rows, random: np.random.Generator) -> Tensor | None:
        if self.twins is None:
            return None
        drawn = draw_twins(self.twins, captions, owners, self.recipe.twins.captions, random)
        return send(torch.from_numpy(drawn), self.device)

    def loss(self, batch: PictureBatch, gather: Gather = compute_all) -> Loss:
        views, colours, generator = self._augmentation(batch)
        backbone = self.module.tower.backbone
        # Texts first, see `PictureTask.loss`.
        captions = self._read_captions(batch, views, generator, gather)
        twins = self._read_twins(batch, views, gather)
        lone = self._lone_loss(batch, generator, gather)

        def look(*given: Tensor) -> tuple[Any, ...]:
            windows = self._windows(*given)
            pyramid = backbone.pyramid(windows)
            return *self._embed(backbone.head(pyramid[-1])), thumbnail(windows), *pyramid

        images, cells, thumbnails, *pyramid = gather(look, batch.images, *views, colours)
        matching = self._match(batch, images, cells, captions)
        told_apart = None if twins is None else self._twin_loss(batch, images, cells, twins)
        grounding = self._grounding_loss(batch, views, pyramid, thumbnails, generator)
        return joined_losses(matching, lone, told_apart, grounding)

    def _grounding_loss(
        self,
        batch: PictureBatch,
        views: Views,
        pyramid: list[Tensor],
        thumbnails: Tensor,
        generator: torch.Generator,
    ) -> Loss | None:
        part = self.recipe.grounding
        boxed = np.flatnonzero(self._boxed[batch.rows] >= 0)
        if not len(boxed):
            return None
        # Those with annotated phrases first; always as many, so that shapes repeat.
        phrased = self._phrased[batch.rows[boxed]]
        boxed = np.resize(np.concatenate([boxed[phrased], boxed[~phrased]]), part.images)
        places = send(torch.from_numpy(boxed), self.device)
        levels = [level[places] for level in pyramid]
        output = self.grounding.network.proposer.read_pyramid(levels, self.recipe.model.side)
        rows = torch.from_numpy(self._boxed[batch.rows[boxed]])
        seen = Views(*(field[places] for field in views))
        loss = self.grounding.loss_of(rows, seen, output, levels, thumbnails[places], generator)
        return Loss(part.weight * loss.total, {f"grounding.{name}": value for name, value in loss.parts.items()})

    def _read_twins(self, batch: PictureBatch, views: Views, gather: Gather) -> ReadTexts | None:
        """True captions, and behind them their false twins."""
        if self.twins is None or batch.twins is None or not len(batch.twins):
            return None
        picture, true, false = batch.twins.unbind(1)
        ids = _padded(self.data.texts[true], self.twins.texts[false])
        ids = ids[:, : int((ids != 0).sum(1).max())]
        return self._read_texts(self._as_seen(ids, views, picture.repeat(2)), gather)

    def _twin_loss(self, batch: PictureBatch, images: Tensor, cells: Tensor, twins: ReadTexts) -> Loss:
        """The loss of false captions beside true ones, each with its own picture."""
        assert batch.twins is not None
        assert twins.words is not None
        assert self.module.fine_loss is not None
        true, false = own_scores(images, cells, twins.texts, twins.words, batch.twins[:, 0].repeat(2)).chunk(2)
        loss = twin_loss(true, false, self.module.fine_loss.scale)
        return Loss(self.recipe.twins.weight * loss, {"twins": loss, "twins.right": (true > false).float().mean()})

    def validate(self) -> Mapping[str, float]:
        """Retrieval, `grounding` of phrases and of `expressions`, and `twins`.

        `twins` is how often the true caption scores higher than the false one, by kind of change.
        `balance` weighs retrieval and grounding, for choosing an epoch: `rsum` and twice each R@1 of grounding.
        """
        figures = {"grounding": recalls(self.grounding.grounder, self.grounding.validation)}
        if self.held_out_expressions is not None:
            figures["expressions"] = recalls(self.grounding.grounder, self.held_out_expressions)
        if self.held_out_twins is not None:
            figures["twins"] = self._twins_right(self.held_out_twins)
        retrieval = super().validate()
        grounded = sum(figures[part]["r@1"] for part in ("grounding", "expressions") if part in figures)
        named = {f"{part}.{name}": value for part, figures in figures.items() for name, value in figures.items()}
        return {**retrieval, **named, "balance": retrieval["rsum"] + 2 * grounded}

    def _twins_right(self, twins: TwinData) -> dict[str, float]:
        data, tower = self.held_out, self.module.tower
        maps = [tower.backbone.map(normalize(part)) for part in torch.split(data.pixels, 64)]
        images = torch.cat([F.normalize(tower.pooled(part)) for part in maps])
        cells = torch.cat([tower.embed_cells(part) for part in maps])
        true = torch.from_numpy(twins.caption).to(self.device)
        leads = []
        for rows in torch.split(torch.arange(len(true), device=self.device), 256):
            owner = data.image_of[true[rows]].repeat(2)
            ids = _padded(data.texts[true[rows]], twins.texts[rows])
            read = self._read_texts(ids)
            assert read.words is not None
            true_score, other = own_scores(images, cells, read.texts, read.words, owner).chunk(2)
            leads.append(true_score - other)
        right = (torch.cat(leads) > 0).cpu().numpy()
        return {
            kind: 100 * float(right[twins.kind == index].mean())
            for index, kind in enumerate(KINDS)
            if (twins.kind == index).any()
        }


def _padded(first: Tensor, second: Tensor) -> Tensor:
    """Ids of texts, one after another, at the length of the longer ones."""
    longest = max(first.shape[1], second.shape[1])
    return torch.cat([F.pad(ids, (0, longest - ids.shape[1])) for ids in (first, second)])


def borrow(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Let a part of `owner` be another's, which alone keeps, moves and trains it."""
    delattr(owner, name)
    object.__setattr__(owner, name, module)


def _vocabulary(text: TextFeatures) -> Vocabulary:
    assert isinstance(text, TokenIds)
    return text.vocabulary


class DeixisBaseKind(TowerKind[DeixisBaseRecipe]):
    recipe_type = DeixisBaseRecipe

    def task(
        self, recipe: DeixisBaseRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> DeixisBaseTask:
        return DeixisBaseTask(recipe, training_set(corpus), corpus, device)

    def load_model(self, folder: Path, recipe: DeixisBaseRecipe, device: torch.device) -> DeixisBaseRunModel:
        texts, text = load_text_tower(folder, recipe)
        return DeixisBaseRunModel(texts, text, load_grounder(folder, recipe, device), device, tower_file(folder))

    def protocols(self, evaluation: Evaluation[DeixisBaseRecipe]) -> Sequence[RunProtocol]:
        localization = partial(localize_mentions, regions=evaluation.recipe.grounding.model.regions)
        protocols: list[RunProtocol] = [localization, image_text_ranking]
        return [*protocols, ground_truth_region_ranking] if evaluation.drawn_regions else protocols


def load_grounder(folder: Path, recipe: DeixisBaseRecipe, device: torch.device) -> GroundingModel:
    """What points at phrases, with the backbone that the run shares."""
    _, text = load_text_tower(folder, recipe)
    words, weights = _vocabulary(text), read_weights(folder)
    model = recipe.grounding.model
    trunk = Proposer(EfficientNetLite(VARIANTS[model.backbone]), model.backbone)
    network = GroundingNetwork(model, trunk, len(words), recipe.model.recurrent.word)
    parts = {"grounding.network.": "", "texts.encoder.words.": "words.", "tower.backbone.": "proposer.backbone."}
    renamed = {
        to + name.removeprefix(prefix): value
        for prefix, to in parts.items()
        for name, value in weights.items()
        if name.startswith(prefix)
    }
    wanted = network.state_dict()
    network.load_state_dict({name: value for name, value in renamed.items() if name in wanted})
    return GroundingModel(network.eval().to(device), words)
