"""Training the aligner on pictures and sentences alone: recipes of the kind `alignment`.

Readings: the loss is averaged over the pairs of a batch. A caption of the same picture, or with the same words, is no
negative. DeFrag's hinge is averaged over labels +1 and over labels −1 separately, since the regions of other pictures
outnumber those of the own picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.centring import mean_direction
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.model import Tokens, store_images
from deixis.papers.dvsa.colours import colour_ids, coloured_things, grouped, recoloured
from deixis.papers.dvsa.evaluations import evaluate_aligner
from deixis.papers.dvsa.fragments import EdgeFragments, Fragments, WordFragments, load_fragments
from deixis.papers.dvsa.loss import fragment_hinge, max_margin, mismatched_pairs, recolouring_hinge
from deixis.papers.dvsa.model import AlignmentModel, stacked, with_picture
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe
from deixis.text.dependencies import corpus_dependencies
from deixis.text.featurizers import TextRecipe, TokenIds, text_features
from deixis.text.tokens import tokens_of_captions
from deixis.training.feature_model import WHOLE
from deixis.training.inputs import TEXT, find_store, initial_vectors
from deixis.training.kind import Kind
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    has_ground_truth_regions,
    image_text_ranking,
)
from deixis.training.runs import read_weights
from deixis.training.sampling import Indices, shuffled
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.training.validation import retrieval_figures


class AlignmentTaskRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: AlignmentRecipe = AlignmentRecipe()
    #: The vocabulary and its `vectors`.
    text: TextRecipe = TextRecipe(kind="tokens")
    #: Initial word vectors, and whether they are learned; the main paper keeps pretrained ones fixed.
    word_vectors: Literal["random", "pretrained", "fixed"] = "fixed"
    #: Regions per picture: the picture itself and its best proposals.
    regions: Annotated[int, Meta(ge=1)] = 20
    batch: Annotated[int, Meta(ge=2)] = 100
    margin: Annotated[float, Meta(gt=0)] = 1.0
    #: Weight of DeFrag's hinge beside the ranking loss.
    fragment_weight: Annotated[float, Meta(ge=0)] = 0.0
    #: Captions of one coloured thing ("red bus") that come into a batch together; 1: batches are random.
    group: Annotated[int, Meta(ge=1)] = 1
    #: Weight of the loss against the same caption with other colours.
    colour_weight: Annotated[float, Meta(ge=0)] = 0.0
    #: β of the trained model's snippets: what neighbouring words in the same region add to the score.
    beta: Annotated[float, Meta(ge=0)] = 1.0
    #: Regions of words in the trained model. 0 (as in the paper): the single best path (Viterbi). Above 0: the region
    #: with the largest expected overlap under the chain posterior at this temperature.
    temperature: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.kind != "tokens":
            raise ValueError("text.kind: the aligner reads words; it must be 'tokens'")


@dataclass(frozen=True, eq=False)
class AlignmentData:
    """Images as regions, captions as fragments. Build it with `alignment_data`."""

    regions: Tensor  # (images, regions, channels), as stored
    present: Tensor  # (images, regions)
    ids: Tensor  # (captions, longest, width)
    lengths: Indices  # (captions,)
    image_of: Tensor  # (captions,), ascending
    string: Tensor  # (captions,), equal where their words are
    things: Indices  # (captions,), equal where they name the same coloured thing; −1: none
    image_ids: tuple[str, ...]


class AlignmentBatch(NamedTuple):
    """Captions; each is paired with its image."""

    captions: Annotated[Tensor, "captions"]
    #: Their fragments.
    ids: Annotated[Tensor, "captions", "words", None]
    #: Which other colours the captions get (`recoloured`), if they do.
    shifts: Annotated[Tensor, "captions"] | None = None
    #: Of a padded batch: false for padding.
    mask: Annotated[Tensor, "captions"] | None = None


def alignment_data(
    source: TrainingSet | Corpus,
    store: FeatureStore,
    fragments: Fragments,
    regions: int,
    *,
    device: str | torch.device = "cpu",
) -> AlignmentData:
    """All images of a training set or split that have features, and their captions.

    Args:
        source: the images.
        store: vectors of whole pictures and of regions, of the same size.
        fragments: turns captions into ids.
        regions: maximum per picture, the picture itself included.
    """
    images = [image for image in source if image.id not in store.skipped]
    if not images:
        raise DeixisError("none of these images has features")
    picture, region = (store.plan.arrays[name].shape[0] for name in ("image", "regions"))
    if region - picture not in (0, len(WHOLE)):
        sizes = f"{picture} and {region}"
        raise DeixisError(f"{store.folder}: vectors of pictures and regions must have one size, they have {sizes}")
    features = store_images(store, (image.id for image in images))
    rows, present = stacked([with_picture(image, regions)[0] for image in features])
    captions: Sequence[Tokens] = tokens_of_captions(images)
    counts = torch.tensor([len(image.captions) for image in images])
    strings = {caption: index for index, caption in enumerate(dict.fromkeys(map(tuple, captions)))}
    return AlignmentData(
        regions=rows.to(device),
        present=present.to(device),
        ids=torch.from_numpy(fragments.ids(captions)).to(device),
        lengths=np.array([len(caption) for caption in captions], np.int64),
        image_of=torch.repeat_interleave(torch.arange(len(images)), counts).to(device),
        string=torch.tensor([strings[tuple(caption)] for caption in captions], device=device),
        things=coloured_things(captions),
        image_ids=tuple(image.id for image in images),
    )


class AlignmentTask:
    """A `Task`; validated by retrieval in both directions on the validation split."""

    def __init__(
        self,
        recipe: AlignmentTaskRecipe,
        training: TrainingSet,
        corpus: Corpus,
        store: FeatureStore,
        device: torch.device,
    ) -> None:
        self.recipe = recipe
        text = text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
        assert isinstance(text, TokenIds)
        self.fragments = make_fragments(recipe, text, training, corpus)
        self.data = alignment_data(training, store, self.fragments, recipe.regions, device=device)
        self.held_out = alignment_data(corpus.split("val"), store, self.fragments, recipe.regions, device=device)
        vectors = None if recipe.word_vectors == "random" else initial_vectors(recipe.text, training, text)
        colours = colour_ids(text.vocabulary)
        if recipe.colour_weight and len(colours) < 2:
            raise DeixisError("colour_weight: the training captions have fewer than two colours")
        self.colours = torch.from_numpy(colours).to(device)
        scale, centre = region_statistics(self.data)
        channels = self.data.regions.shape[2]
        self.module: nn.Module = make_network(recipe, channels, self.fragments, vectors, scale, centre).to(device)

    def batches(self, epoch: int) -> Batches[AlignmentBatch]:
        data, recipe = self.data, self.recipe

        def make(epoch: int, captions: Indices, following: Indices, random: np.random.Generator) -> AlignmentBatch:
            rows = torch.from_numpy(captions).to(data.image_of.device, non_blocking=True)
            ids = data.ids[rows, : max(1, int(data.lengths[captions].max()))]
            shifts = None
            if recipe.colour_weight:
                drawn = random.integers(1, len(self.colours), len(captions))
                shifts = torch.from_numpy(drawn).to(rows.device, non_blocking=True)
            return AlignmentBatch(rows, ids, shifts)

        arrange = partial(grouped, data.things, recipe.group) if recipe.group > 1 else None
        return shuffled(len(data.lengths), recipe.batch, recipe.seed, epoch, make, arrange)

    def loss(self, batch: AlignmentBatch, gather: Gather = compute_all) -> Loss:
        data, network, mask = self.data, self.module, batch.mask
        assert isinstance(network, AlignmentNetwork)
        images, string = data.image_of[batch.captions], data.string[batch.captions]
        present = data.present[images]
        regions = gather(lambda rows: network.embed_regions(data.regions[rows].float()), images)
        fragments = gather(network.embed_fragments, batch.ids)
        scores = network.score(regions, present, fragments, batch.ids)
        different = mismatched_pairs(images, string, mask)
        ranking, parts = max_margin(scores, different, self.recipe.margin, mask)
        total = ranking
        if batch.shifts is not None:
            ids = recoloured(batch.ids, self.colours, batch.shifts)
            others = network.score(regions, present, gather(network.embed_fragments, ids), ids)
            has_colour = (ids != batch.ids).flatten(1).any(1)  # false for padding, whose ids are all 0
            parts["colours"] = recolouring_hinge(scores.diagonal(), others.diagonal(), has_colour, self.recipe.margin)
            total = total + self.recipe.colour_weight * parts["colours"]
        if self.recipe.fragment_weight:
            words = batch.ids[..., 0] != 0
            parts["fragments"] = fragment_hinge(regions, present, fragments, words, different)
            total = total + self.recipe.fragment_weight * parts["fragments"]
        return Loss(total, parts)

    def validate(self) -> Mapping[str, float]:
        network, held_out = self.module, self.held_out
        assert isinstance(network, AlignmentNetwork)
        scores = network.score_all(held_out.regions, held_out.present, held_out.ids)
        return retrieval_figures(scores, held_out.image_of)

    def describe(self, batch: AlignmentBatch) -> str:
        images = self.data.image_of[batch.captions[:5]].tolist()
        return "sentences of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"

    def save(self, folder: Path) -> None:
        self.fragments.save(folder / TEXT)


def region_statistics(data: AlignmentData) -> tuple[float, Tensor]:
    """The factor that gives region features length 1 on average, and their mean direction, `(channels,)`."""

    def blocks() -> Iterator[Tensor]:
        for rows, present in zip(torch.split(data.regions, 256), torch.split(data.present, 256), strict=True):
            yield rows[present].float()

    lengths = sum(float(rows.norm(dim=-1).double().sum()) for rows in blocks())
    return int(data.present.sum()) / lengths, mean_direction(blocks())


def make_fragments(recipe: AlignmentTaskRecipe, text: TokenIds, training: TrainingSet, corpus: Corpus) -> Fragments:
    if recipe.model.fragments == "words":
        return WordFragments(text)
    return EdgeFragments.of(text, tokens_of_captions(training), corpus_dependencies(corpus))


def make_network(
    recipe: AlignmentTaskRecipe,
    channels: int,
    fragments: Fragments,
    vectors: Tensor | None = None,
    scale: float = 1.0,
    centre: Tensor | None = None,
) -> AlignmentNetwork:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(recipe.seed)
        return AlignmentNetwork(
            channels,
            fragments.text.dim,
            recipe.model,
            relations=1 + len(fragments.relations),
            word_vectors=vectors,
            fixed=recipe.word_vectors == "fixed",
            # Scored in the precision that it was trained in.
            rounded=recipe.schedule.precision != "float32",
            scale=scale,
            centre=centre,
        )


class AlignmentKind(Kind[AlignmentTaskRecipe]):
    recipe_type = AlignmentTaskRecipe
    distributed = True

    def features(self, recipe: AlignmentTaskRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        return [recipe.region_features]

    def task(
        self, recipe: AlignmentTaskRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> AlignmentTask:
        return AlignmentTask(recipe, training_set(corpus), corpus, find_store(stores, "proposals"), device)

    def load_model(self, folder: Path, recipe: AlignmentTaskRecipe, device: torch.device) -> AlignmentModel:
        fragments, weights = load_fragments(folder / TEXT), read_weights(folder)
        network = make_network(recipe, weights["regions.weight"].shape[1], fragments)
        network.load_state_dict(weights)
        return AlignmentModel(network, fragments, recipe.regions, recipe.beta, device, temperature=recipe.temperature)

    def protocols(self, evaluation: Evaluation[AlignmentTaskRecipe]) -> Sequence[RunProtocol]:
        protocols: list[RunProtocol] = [image_text_ranking, evaluate_aligner]
        if evaluation.drawn_regions or has_ground_truth_regions(evaluation.stores):
            protocols.append(ground_truth_region_ranking)
        return protocols

    def by_regions(self, recipe: AlignmentTaskRecipe) -> bool:
        return True

    def regions_kept(self, recipe: AlignmentTaskRecipe) -> int:
        """One less than `recipe.regions`, which counts the picture itself."""
        return recipe.regions - 1
