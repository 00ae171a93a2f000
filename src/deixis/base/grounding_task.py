"""Learn `deixis.base.grounding_network` from the phrases and boxes of a training set: the kind "grounding" of recipes.

Pictures stay on the device as bytes and are mirrored (with "left" and "right" swapped in the captions), zoomed and
recoloured there. Proposals are made anew in every step by the network itself, then moved and dropped at random, since
those of training pictures are better than any other picture's. A phrase's softmax over the regions is held to their
overlap with its merged box once they have been moved.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.expression_images import expression_images
from deixis.base.grounding_boxes import by_coverage, moved, offsets_to
from deixis.base.grounding_data import GroundingData, GroundingText, grounding_data, named_words, new_grounder
from deixis.base.grounding_model import GroundingModel, empty_network
from deixis.base.grounding_network import Captions, Grounding, GroundingRecipe, Regions
from deixis.base.region_colours import SHRINK, colour_loss, thumbnail
from deixis.base.region_comparison import ALIKE, LANDMARK, choice_loss
from deixis.base.warm_start import start_grounder
from deixis.corpus import Corpus
from deixis.corpus.leak_guard import training_set
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.mention_localization import mention_localization
from deixis.metrics.results import Result
from deixis.text.featurizers import VOCABULARY
from deixis.text.vocabulary import PAD, UNKNOWN, Vocabulary
from deixis.training.augmentation import (
    Views,
    mirrored_words,
    random_colours,
    random_views,
    recoloured,
    view_boxes,
    view_pictures,
)
from deixis.training.kind import Kind
from deixis.training.placing import send
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import Evaluation, RunProtocol
from deixis.training.runs import read_weights
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.training.tools.proposer_training import proposer_loss
from deixis.vision.box_tensors import aligned_iou, pairwise_iou
from deixis.vision.proposer import ProposerOutput
from deixis.vision.reading import Skipped

#: Overlap with the phrase's box that makes a region right; from the second on, its box is taught to move.
RIGHT_IOU, NEAR_IOU = 0.5, 0.4
#: From this overlap an annotated box is that of the phrase.
SAME_IOU = 0.99
#: Pictures in a pass of the validation.
PASS = 100


class GroundingLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of the parts beside the phrases' softmax; 0 leaves a part out.

    `targets`: "soft" shares a phrase's probability out by overlap, "any" asks for it on any right region.
    """

    targets: Literal["soft", "any"] = "soft"
    #: The phrases' softmax itself; 0: only colours are learned, and the network does not look at the pictures.
    phrases: Annotated[float, Meta(ge=0)] = 1.0
    #: What colours of objects phrases ask for, by the colours alone (`deixis.base.region_colours`).
    colours: Annotated[float, Meta(ge=0)] = 0.0
    #: L1 and generalized IoU of moved boxes.
    boxes: Annotated[float, Meta(ge=0)] = 1.0
    #: The proposer's own loss.
    proposer: Annotated[float, Meta(ge=0)] = 0.5
    #: Regions name the words of the phrases that name them, those that are in `named` phrases at least.
    words: Annotated[float, Meta(ge=0)] = 0.3
    named: Annotated[int, Meta(ge=1)] = 20
    #: Softmax between objects of one name: the phrase's own against the others.
    apart: Annotated[float, Meta(ge=0)] = 0.0
    #: What phrases choose to compare regions with (`deixis.base.region_comparison`).
    choices: Annotated[float, Meta(ge=0)] = 0.3


class Augmentation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Windows have sides from 1 − zoom to 1.15 of the picture's.
    zoom: Annotated[float, Meta(ge=0, lt=1)] = 0.45
    colours: bool = True
    #: Proposals are moved and scaled by normal noise of so many times their size, and dropped with this chance.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.08
    drop: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    #: The chance that a word is read as unknown.
    forget: Annotated[float, Meta(ge=0, lt=1)] = 0.08
    #: The chance that the phrases of a batch are read alone, as people ask for them, not in their captions.
    alone: Annotated[float, Meta(ge=0, le=1)] = 0.0


class GroundingTraining(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole recipe. `proposer` is where the network begins: `learned`, or the file of a trained proposer."""

    #: None are stored: the network looks at pictures.
    features: None = None  # type: ignore[assignment]
    proposer: str = "learned"
    #: Begin with the grounding network of a bundle and its words instead, as NAME@SHA-256 of its weights, which may be
    #: cut short. Where backbone and words are frozen (`schedule.groups`), it can replace that of the bundle.
    start: str = ""
    #: Expressions of a picture that are made from its labelled boxes ("the dog on the left"), if its captions have no
    #: phrases; 0: none.
    expressions: Annotated[int, Meta(ge=0)] = 0
    #: How often an epoch shows the pictures whose captions have phrases with boxes.
    repeats: Annotated[int, Meta(ge=1)] = 1
    #: Whether larger pictures become JPEG files of this quality first, as those of the bundle do; 0: they do not.
    jpeg: Annotated[int, Meta(ge=0, le=100)] = 0
    batch_size: Annotated[int, Meta(ge=1)] = 64
    #: Whether the model looks at a picture's mirror image too.
    mirror: bool = False
    text: GroundingText = GroundingText()
    model: GroundingRecipe = GroundingRecipe()
    loss: GroundingLoss = GroundingLoss()
    augmentation: Augmentation = Augmentation()

    @property
    def learns_from_boxes(self) -> bool:
        return True


class GroundingKind(Kind[GroundingTraining]):
    recipe_type = GroundingTraining
    distributed = True

    def features(self, recipe: GroundingTraining, run: Path | None = None) -> list[FeatureRecipe]:
        """None: it looks at the pictures themselves."""
        return []

    def task(
        self, recipe: GroundingTraining, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> GroundingTask:
        """Reads the pictures of the training and the validation split; those that cannot be read are reported."""
        training, skipped = training_set(corpus), Skipped()
        grounder = (
            start_grounder(recipe.start, recipe.model, recipe.seed)
            if recipe.start
            else new_grounder(training, recipe.model, recipe.text, proposer=recipe.proposer, seed=recipe.seed)
        )
        side, words, validation = recipe.model.side, grounder.vocabulary, corpus.split("val")
        expressed, asked = (
            expression_images(images, recipe.expressions, recipe.seed) if recipe.expressions else {}
            for images in (training, validation)
        )
        shown = [expressed[image.id].image if image.id in expressed else image for image in training]
        landmarks = {name: expressions.landmarks for name, expressions in expressed.items()}
        if device.type == "cuda":
            # Shapes repeat, and depthwise convolutions differ much in speed between algorithms.
            torch.backends.cudnn.benchmark = True
        read = partial(grounding_data, vocabulary=words, side=side, device=device, skipped=skipped, jpeg=recipe.jpeg)
        task = GroundingTask(
            grounder,
            read(training.corpus, shown, landmarks=landmarks),
            read(corpus, validation),
            loss=recipe.loss,
            augmentation=recipe.augmentation,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            expressions=read(corpus, [expressions.image for expressions in asked.values()]) if asked else None,
            repeats={image.id: recipe.repeats for image in shown if image.id not in expressed},
        )
        if skipped:
            print(skipped, file=sys.stderr)
        return task

    def load_model(self, folder: Path, recipe: GroundingTraining, device: torch.device) -> GroundingModel:
        vocabulary = Vocabulary.load(folder / VOCABULARY)
        prefix = "network."
        weights = {
            name.removeprefix(prefix): value for name, value in read_weights(folder).items() if name.startswith(prefix)
        }
        width = len(weights["proposer.lateral.0.weight"])
        network = empty_network(recipe.model, len(vocabulary), proposer_width=width)
        network.load_state_dict(weights)
        return GroundingModel(network.eval().to(device), vocabulary, mirror=recipe.mirror, jpeg=recipe.jpeg)

    def protocols(self, evaluation: Evaluation[GroundingTraining]) -> Sequence[RunProtocol]:
        return [partial(localize_mentions, regions=evaluation.recipe.model.regions)]


def localize_mentions(evaluation: Evaluation[Any], regions: int) -> Iterator[Result]:
    """Phrase localization from the pictures themselves, each phrase read in its caption.

    Args:
        regions: how many boxes the model proposes at most.
    """
    yield mention_localization(
        evaluation.model, evaluation.corpus, evaluation.split, regions=regions, **evaluation.details
    )


class GroundingBatch(NamedTuple):
    rows: Tensor  # on the CPU
    #: Of all that is drawn at random in this step, dropout apart.
    seed: int


class GroundingTask:
    """The trainer's task: `deixis.training.task.Task`."""

    def __init__(
        self,
        grounder: GroundingModel,
        training: GroundingData,
        validation: GroundingData,
        *,
        loss: GroundingLoss,
        augmentation: Augmentation,
        batch_size: int,
        seed: int,
        expressions: GroundingData | None = None,
        repeats: Mapping[str, int] | None = None,
    ) -> None:
        if not loss.phrases:
            # Thumbnails are all that is looked at.
            parts = [thumbnail(part.float()).round().byte() for part in torch.split(training.pictures, PASS)]
            training = replace(training, pictures=torch.cat(parts))
        self.grounder, self.training, self.validation = grounder, training, validation
        self.weights, self.augmentation = loss, augmentation
        #: Expressions about pictures of the validation split.
        self.expressions = expressions
        again = [(repeats or {}).get(name, 1) for name in training.image_ids]
        #: The rows of the pictures that an epoch shows.
        self._epoch_rows = torch.arange(len(training)).repeat_interleave(torch.tensor(again))
        self._batch_size, self._seed = min(batch_size, len(training)), seed
        self.network = grounder.network
        if self.network.colours is not None:
            self.network.colours.set_words(grounder.vocabulary)
        device = training.pictures.device
        self._mirrored = mirrored_words(grounder.vocabulary).to(device)
        self.module = nn.ModuleDict({"network": self.network})
        self._names, classes = named_words(training, grounder.vocabulary, loss.named)
        if loss.words and classes:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(seed)
                self.module["namer"] = nn.Linear(self.network.recipe.width, classes)
        self.module.to(device)
        self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def batches(self, epoch: int) -> Batches[GroundingBatch]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order = self._epoch_rows[torch.randperm(len(self._epoch_rows), generator=generator)]
        # Whole batches only: the pictures left over are others in each epoch.
        count = len(order) // self._batch_size
        seeds = torch.randint(2**62, (count,), generator=generator).tolist()
        rows = order[: count * self._batch_size].reshape(count, -1)
        return Batches(count, map(GroundingBatch, rows, seeds))

    def describe(self, batch: GroundingBatch) -> str:
        return ", ".join(self.training.image_ids[row] for row in batch.rows.tolist())

    def loss(self, batch: GroundingBatch, gather: Gather = compute_all) -> Loss:
        data, network = self.training, self.network
        generator = torch.Generator(data.pictures.device).manual_seed(batch.seed)
        views = random_views(len(batch.rows), self.augmentation.zoom, generator)
        colours = []
        if self.augmentation.colours:
            colours.append(random_colours(len(batch.rows), generator).transpose(0, 1))

        def windows(side: int, rows: Tensor, start: Tensor, sides: Tensor, flip: Tensor, *colours: Tensor) -> Tensor:
            pictures = view_pictures(data.pictures[rows], Views(start, sides, flip), side)
            for change in colours:
                pictures = recoloured(pictures, change.transpose(0, 1))
            return pictures.contiguous(memory_format=torch.channels_last)

        def look(*given: Tensor) -> tuple[Tensor, ...]:
            pictures = windows(network.recipe.side, *given)
            return thumbnail(pictures), *network.proposer.backbone.pyramid(pictures)

        seen = (send(batch.rows, data.pictures.device), *views, *colours)
        if not self.weights.phrases:
            loss = self._colour_loss(batch.rows, views, windows(network.recipe.side // SHRINK, *seen), generator)
            return Loss(self.weights.colours * loss, {"colours": loss.detach()})
        thumbnails, *pyramid = gather(look, *seen)
        output = network.proposer.read_pyramid(pyramid, network.recipe.side)
        return self.loss_of(batch.rows, views, output, pyramid, thumbnails, generator)

    def loss_of(
        self,
        rows: Tensor,
        views: Views,
        output: ProposerOutput,
        pyramid: list[Tensor],
        thumbnails: Tensor,
        generator: torch.Generator,
    ) -> Loss:
        """The loss of what the network saw in these views of the pictures of `rows`, which are on the CPU."""
        data, device_rows, how = self.training, send(rows, generator.device), self.augmentation
        captions, gold, alike, landmark = self._asked(rows, views)
        mirrored = views.flip[:, None, None] < 0
        captions = captions._replace(tokens=torch.where(mirrored, self._mirrored[captions.tokens], captions.tokens))
        # Drawn on the CPU: reading a number from a GPU would wait for all that is queued there.
        if random.Random(generator.initial_seed()).random() < how.alone:
            captions = phrases_alone(captions, int(data.longest_phrase[rows].max()))
        regions = jittered(self.network.propose(output), how, generator)
        asked = forgotten(captions, how.forget, generator)
        answer: Grounding = self.network(pyramid, regions, asked, thumbnails)
        parts = {"phrases": phrase_loss(answer, gold, self.weights.targets)}
        total = self.weights.phrases * parts["phrases"]
        if self.weights.colours:
            parts["colours"] = self._colour_loss(rows, views, thumbnails, generator)
            total = total + self.weights.colours * parts["colours"]
        if self.network.recipe.refine and self.weights.boxes:
            parts["boxes"] = box_loss(answer, regions, gold)
            total = total + self.weights.boxes * parts["boxes"]
        if self.weights.apart:
            parts["apart"] = apart_loss(answer.scores, regions, gold, alike)
            total = total + self.weights.apart * parts["apart"]
        if self.weights.choices and answer.chosen is not None:
            parts["choices"] = choice_loss(answer.chosen[:, :, ALIKE], _on_objects(regions, alike)) + choice_loss(
                answer.chosen[:, :, LANDMARK], _on_objects(regions, landmark[:, :, None])
            )
            total = total + self.weights.choices * parts["choices"]
        if self.weights.proposer:
            boxes = view_boxes(data.boxes[device_rows], views)
            types = data.types[device_rows] & (boxes.amax(-1) > 0)[..., None]
            parts["proposer"] = proposer_loss(output, boxes, types, data.background[device_rows])
            total = total + self.weights.proposer * parts["proposer"]
        if "namer" in self.module:
            parts["words"] = self._naming_loss(answer.regions, regions, captions, gold)
            total = total + self.weights.words * parts["words"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})

    def _asked(self, rows: Tensor, views: Views) -> tuple[Captions, Tensor, Tensor, Tensor]:
        """The phrases that a step asks for, and `gold`, `alike` and `landmark` of `GroundingData` in the views."""
        data = self.training
        device_rows = send(rows, data.gold.device)
        gold, alike, landmark = data.gold[device_rows], data.alike[device_rows], data.landmark[device_rows]
        needed = landmark.amax(-1) > 0
        landmark, seen = view_boxes(landmark, views), view_boxes(gold, views)
        # "The dog nearest to the bench" says nothing where the bench is cut off.
        seen = torch.where((needed & (landmark.amax(-1) == 0))[..., None], 0.0, seen)
        return data.part(rows), seen, view_boxes(alike.flatten(1, 2), views).reshape(alike.shape), landmark

    def _colour_loss(self, rows: Tensor, views: Views, thumbnails: Tensor, generator: torch.Generator) -> Tensor:
        """Of phrases about one of the annotated boxes in these views."""
        colours, data, device_rows = self.network.colours, self.training, send(rows, generator.device)
        assert colours is not None
        boxes = view_boxes(data.boxes[device_rows], views)
        types = data.types[device_rows] & (boxes.amax(-1) > 0)[..., None]
        captions, gold, _, _ = self._asked(rows, views)
        overlap, objects = pairwise_iou(gold, boxes).max(-1)
        asks = colours.asks[captions.tokens]
        asks = asks.gather(1, captions.caption[..., None].expand(-1, -1, asks.shape[-1]))
        places = torch.arange(asks.shape[-1], device=asks.device)
        inside = (places >= captions.start[..., None]) & (places < captions.end[..., None])
        learned = (overlap >= SAME_IOU) & (asks * inside).any(-1) & types.any(-1).gather(1, objects)
        noise = self.augmentation.jitter * torch.randn(boxes.shape, device=boxes.device, generator=generator)
        features = colours.read(colours.shares(thumbnails, moved(boxes, noise).clamp(0, 1)))
        return colour_loss(self.network.ask_colours(captions), features, objects.where(learned, -1), types)

    def _naming_loss(self, seen: Tensor, regions: Regions, captions: Captions, gold: Tensor) -> Tensor:
        """Softmax over words for regions on a phrase's box, the words of all such phrases being right alike."""
        named = self._names[captions.tokens]  # (batch, captions, words), one class more for words without a name
        places = torch.arange(named.shape[-1], device=named.device)
        inside = (places >= captions.start[..., None]) & (places < captions.end[..., None])
        names = named.gather(1, captions.caption[..., None].expand(-1, -1, named.shape[-1]))
        logits: Tensor = self.module["namer"](seen).float()
        classes = logits.shape[-1]
        names = names.masked_fill(~inside, classes)
        words = logits.new_zeros(*names.shape[:2], classes + 1).scatter_(2, names, 1.0)[..., :classes]
        on_box = ((pairwise_iou(regions.boxes, gold) >= RIGHT_IOU) & regions.real[..., None]).to(words.dtype)
        wanted = (on_box @ words).clamp(max=1)  # (batch, regions, classes)
        counts = wanted.sum(-1, keepdim=True)
        losses = -(wanted / counts.clamp(min=1) * logits.log_softmax(-1)).sum(-1)
        return losses.sum() / (counts > 0).sum().clamp(min=1)

    def save(self, folder: Path) -> None:
        self.grounder.vocabulary.save(folder / VOCABULARY)

    def validate(self) -> Mapping[str, float]:
        """`recalls` of the validation split, and beside them what a second look at the mirror image would give.

        With expressions, their figures too, and `balance`: R@1 plus the share of right objects among those of one name.
        """
        once, twice = (recalls(self.grounder, self.validation, mirror=mirror) for mirror in (False, True))
        figures = {**once, "r@1_mirrored": twice["r@1"]}
        if self.expressions is None:
            return figures
        expressed = recalls(self.grounder, self.expressions)
        figures |= {f"expressions.{name}": value for name, value in expressed.items()}
        return {**figures, "balance": once["r@1"] + expressed["apart"]}


def recalls(grounder: GroundingModel, data: GroundingData, *, mirror: bool = False) -> dict[str, float]:
    """`evaluate_localization`'s overall row, all on the device, and what helps to choose settings.

    `r@K` are the model's. `upper_bound` is that of the moved boxes, `proposals` that of the proposals themselves.
    `apart` is about phrases that distinguish two objects of one name, where there are such phrases: how
    often the best box on the phrase's object is ranked before the best on the other.
    """
    ranks, bounds, leads, pairs = [], [], [], []
    for rows in torch.split(torch.arange(len(data)), PASS):
        device_rows = rows.to(data.gold.device)
        answer, regions = grounder.answer(data.pictures[device_rows], data.part(rows), mirror=mirror)
        gold = data.gold[device_rows]
        right = aligned_iou(answer.boxes, gold[:, :, None])[0] >= RIGHT_IOU
        ranked = by_coverage(answer.boxes, answer.scores, grounder.network.recipe.sharpness)
        ranks.append(first_right(ranked, right))
        alike = data.alike[device_rows]
        other = ((alike - gold[:, :, None]).abs().amax(-1) > 0) & (alike.amax(-1) > 0)
        # Names of two objects ("the dogs") have the merged box, which is neither of them.
        pairs.append(((alike.amax(-1) > 0).sum(-1) == 2) & (other.sum(-1) == 1))
        second = (alike * other[..., None]).sum(2)
        on_other = aligned_iou(answer.boxes, second[:, :, None])[0] >= RIGHT_IOU
        best, rival = (ranked.masked_fill(~on, -math.inf).amax(-1) for on in (right, on_other))
        leads.append(best > rival)
        bounds.append(((pairwise_iou(gold, regions.boxes) >= RIGHT_IOU) & regions.real[:, None]).any(-1))
    weight, rank = data.weight / data.weight.sum() * 100, torch.cat(ranks)

    def share(hit: Tensor) -> float:
        return float((weight * hit).sum())

    figures = {
        **{f"r@{k}": share((rank > 0) & (rank <= k)) for k in (1, 5, 10)},
        "upper_bound": share(rank > 0),
        "proposals": share(torch.cat(bounds)),
    }
    pair = torch.cat(pairs)
    return {**figures, "apart": 100 * float(torch.cat(leads)[pair].float().mean())} if pair.any() else figures


def first_right(scores: Tensor, right: Tensor) -> Tensor:
    """The rank, from 1, of the best right region of each phrase; ties count against it; 0 where none is right."""
    right = right & (scores > -math.inf)
    best = scores.masked_fill(~right, -math.inf).amax(-1, keepdim=True)
    before = ((scores >= best) & ~right & (scores > -math.inf)).sum(-1)
    return torch.where(right.any(-1), before + 1, 0)


def jittered(regions: Regions, how: Augmentation, generator: torch.Generator) -> Regions:
    """Proposals moved, scaled and dropped at random."""
    shape, device = regions.boxes.shape, regions.boxes.device
    noise = how.jitter * torch.randn(shape, device=device, generator=generator)
    present = torch.rand(shape[:2], device=device, generator=generator) >= how.drop
    # The best proposal stays, so that no picture is without any.
    present[:, 0] = True
    return regions._replace(boxes=moved(regions.boxes, noise).clamp(0, 1), real=regions.real & present)


def phrases_alone(captions: Captions, longest: int) -> Captions:
    """Each phrase, of at most `longest` words, as a caption of its own."""
    places = torch.arange(captions.tokens.shape[-1], device=captions.tokens.device)
    lengths = captions.end - captions.start
    caption_tokens = captions.tokens.gather(1, captions.caption[..., None].expand(-1, -1, len(places)))
    words = caption_tokens.gather(2, (captions.start[..., None] + places).clamp(max=len(places) - 1))
    words = words.masked_fill(places >= lengths[..., None], PAD)[..., :longest]
    numbers = torch.arange(lengths.shape[1], device=lengths.device).expand_as(lengths)
    return Captions(words, numbers, torch.zeros_like(lengths), lengths)


def forgotten(captions: Captions, chance: float, generator: torch.Generator) -> Captions:
    """Captions of which some words are unknown."""
    drawn = torch.rand(captions.tokens.shape, device=captions.tokens.device, generator=generator) < chance
    return captions._replace(tokens=captions.tokens.masked_fill(drawn & (captions.tokens != PAD), UNKNOWN))


def phrase_loss(answer: Grounding, gold: Tensor, targets: Literal["soft", "any"]) -> Tensor:
    """Cross-entropy of each phrase's softmax over the regions; phrases without a right region are left out."""
    with torch.no_grad():
        overlap = aligned_iou(answer.boxes.clamp(0, 1), gold[:, :, None])[0]
        real = answer.scores > -math.inf
        right = (overlap >= RIGHT_IOU) & real & (gold.amax(-1) > 0)[..., None]
        wanted = right * (overlap - NEAR_IOU)
        wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-6)
        learned = right.any(-1)
    chance = answer.scores.log_softmax(-1)
    if targets == "soft":
        losses = -(wanted * chance.masked_fill(~real, 0.0)).sum(-1)
    else:
        losses = -chance.masked_fill(~right, -math.inf).logsumexp(-1)
    return torch.where(learned, losses, 0.0).sum() / learned.sum().clamp(min=1)


def _on_objects(regions: Regions, boxes: Tensor) -> Tensor:
    """`(batch, phrases, objects, regions)`: which regions are on `boxes` `(batch, phrases, objects, 4)`."""
    batch, phrases, objects, _ = boxes.shape
    overlap = pairwise_iou(boxes.reshape(batch, phrases * objects, 4), regions.boxes)
    on = (overlap >= RIGHT_IOU) & regions.real[:, None]
    return on.reshape(batch, phrases, objects, -1)


def apart_loss(scores: Tensor, regions: Regions, gold: Tensor, alike: Tensor) -> Tensor:
    """−log of the share that a phrase's own object has in the softmax over regions on objects of its name.

    Phrases without a region on their object, or on another one of the name, are left out.

    Args:
        scores: `(batch, phrases, regions)`.
        alike: `(batch, phrases, objects, 4)`, zeros where there are fewer objects.
    """
    on_gold = _on_objects(regions, gold[:, :, None])[:, :, 0]
    every = _on_objects(regions, alike).any(2) | on_gold
    learned = on_gold.any(-1) & (every & ~on_gold).any(-1)
    # Zeros where nothing is learned keep the gradient finite.
    known = scores.masked_fill(~learned[..., None], 0.0)
    own_share, whole = (
        known.masked_fill(~(mask | ~learned[..., None]), -math.inf).logsumexp(-1) for mask in (on_gold, every)
    )
    return torch.where(learned, whole - own_share, 0.0).sum() / learned.sum().clamp(min=1)


def box_loss(answer: Grounding, regions: Regions, gold: Tensor) -> Tensor:
    """L1 of the offsets and 1 − generalized IoU, over the regions near each phrase's box."""
    start = regions.boxes[:, None]
    near = (aligned_iou(start, gold[:, :, None])[0] >= NEAR_IOU) & regions.real[:, None]
    near &= (gold.amax(-1) > 0)[..., None]
    generalized = aligned_iou(answer.boxes, gold[:, :, None])[1]
    start, wanted = start.expand_as(answer.boxes), gold[:, :, None].expand_as(answer.boxes)
    apart = F.smooth_l1_loss(
        offsets_to(start, answer.boxes), offsets_to(start, wanted), reduction="none", beta=0.1
    ).sum(-1)
    losses = 1 - generalized + apart
    return torch.where(near, losses, 0.0).sum() / near.sum().clamp(min=1)
