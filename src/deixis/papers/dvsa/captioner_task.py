"""Training the generator on pictures and captions, or on regions and an aligner's snippets: the kind `captioner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import safetensors.torch
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from deixis.corpus import Corpus, Image, TrainingSet, training_set
from deixis.errors import DeixisError, InputError
from deixis.features.centring import mean_direction
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.files import TABLE_LIMIT, atomic_write, read_regular
from deixis.metrics.caption_metrics import caption_scores
from deixis.model import Tokens, store_images
from deixis.papers.dvsa.captioner import (
    Captioner,
    CaptionerRecipe,
    DecodingRecipe,
    captioner_input,
    text_ids,
)
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.papers.dvsa.evaluations import evaluate_captioner
from deixis.papers.dvsa.model import AlignmentModel, with_picture
from deixis.papers.dvsa.self_critical import CiderReward, RewardRecipe, advantages, silent_ids
from deixis.papers.dvsa.task import AlignmentTaskRecipe
from deixis.text.coreference import DETERMINERS
from deixis.text.featurizers import TextRecipe, TokenIds, load_text_features, text_features
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.text.vocabulary import PAD, Vocabulary
from deixis.training.inputs import TEXT, find_store, initial_vectors, region_recipes
from deixis.training.kind import Kind
from deixis.training.kinds import kind_of
from deixis.training.recipe import Recipe
from deixis.training.run_models import load_run
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    has_ground_truth_regions,
    image_text_ranking,
    word_order,
)
from deixis.training.running import cached_run, recipe_of
from deixis.training.runs import read_weights
from deixis.training.sampling import Indices, shuffled
from deixis.training.task import Batches, Loss

#: Texts whose likelihood is computed together.
TEXTS = 256
#: Number of training inputs over which p(text) is averaged when captions are ranked, and their file.
BACKGROUND = 100
BACKGROUND_FILE = "background.safetensors"
#: Words that connect two things and belong to neither.
JOINING = frozenset({
    "across", "along", "and", "are", "around", "as", "at", "be", "behind", "being", "beside", "between", "by", "during",
    "for", "from", "has", "have", "in", "inside", "into", "is", "near", "next", "of", "off", "on", "onto", "or", "over",
    "past", "through", "to", "toward", "towards", "under", "up", "was", "while", "who", "with",
})  # fmt: skip


class CaptioningRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: CaptionerRecipe = CaptionerRecipe()
    #: The vocabulary and its `vectors`.
    text: TextRecipe = TextRecipe(kind="tokens", minimum_count=5)
    word_vectors: Literal["random", "pretrained"] = "random"
    #: Train on whole pictures and captions, or on regions and the snippets of an aligner: a recipe, whose run is
    #: trained and cached, or a finished run.
    pairs: Literal["pictures", "regions"] = "pictures"
    aligner: str = "dvsa/brnn"
    #: For regions: concatenate the vector of the whole picture (supplement, section 4).
    context: bool = False
    batch: Annotated[int, Meta(ge=2)] = 100
    decoding: DecodingRecipe = DecodingRecipe()
    #: Begin with the words and weights of a recipe, whose run is trained and cached, or of a finished run; "": anew.
    start: str = ""
    #: Self-critical training with CIDEr-D as reward (`deixis.papers.dvsa.self_critical`).
    reward: RewardRecipe = RewardRecipe()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.kind != "tokens":
            raise ValueError("text.kind: a captioner says words; it must be 'tokens'")
        if self.context and self.pairs == "pictures":
            raise ValueError("context is for pairs = 'regions': a whole picture has no other beside it")
        if self.reward.samples == 1:
            raise ValueError("reward.samples: a sentence is compared with others of its picture; draw two at least")

    @property
    def builds_on(self) -> tuple[str, ...]:
        runs = (*((self.aligner,) if self.pairs == "regions" else ()), *((self.start,) if self.start else ()))
        return (*runs, *super().builds_on)


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Pictures or regions, and their texts."""

    inputs: Tensor  # (inputs, channels), as stored
    ids: Tensor  # (texts, longest), each with its end
    lengths: Indices  # (texts,), with the end
    input_of: Tensor  # (texts,)
    image_of: Indices  # (texts,)
    image_ids: tuple[str, ...]


class CaptionBatch(NamedTuple):
    texts: Annotated[Tensor, "captions"]
    ids: Annotated[Tensor, "captions", "words"]


class CaptioningTask:
    """A `Task`; validated by perplexity and, for whole pictures, by caption metrics."""

    def __init__(
        self,
        recipe: CaptioningRecipe,
        training: TrainingSet,
        corpus: Corpus,
        store: FeatureStore,
        aligner: AlignmentModel | None,
        device: torch.device,
        start: Path | None = None,
    ) -> None:
        self.recipe = recipe
        text = (
            text_features(recipe.text, training, also=tokens_of_captions(corpus), device=device.type)
            if start is None
            else load_text_features(start / TEXT)
        )
        assert isinstance(text, TokenIds)
        self.text = text
        val = [image for image in corpus.split("val") if image.id not in store.skipped]
        known = [image for image in training if image.id not in store.skipped]
        if not val or not known:
            raise DeixisError("none of these images has features")
        self.data, self.held_out = (
            caption_data(images, store, text.vocabulary, aligner, recipe.context, device) for images in (known, val)
        )
        self.references = {image.id: [caption.text for caption in image.captions] for image in val}
        vectors = initial_vectors(recipe.text, training, text) if recipe.word_vectors == "pretrained" else None
        counts = torch.bincount(self.data.ids[self.data.ids != PAD], minlength=text.dim).cpu()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            network = Captioner(
                self.data.inputs.shape[1],
                text.dim,
                recipe.model,
                frequencies=counts if recipe.model.frequency_biases else None,
                word_vectors=vectors,
                centre=centres(self.data.inputs, recipe.context),
            )
        if start is not None:
            try:
                network.load_state_dict(read_weights(start))
            except RuntimeError as fault:
                reason = str(fault).splitlines()[-1].strip()
                raise DeixisError(f"start: {start} is no such captioner ({reason})") from None
        self.module: nn.Module = network.to(device)
        silent = silent_ids(text.vocabulary)
        self._reward = CiderReward(self.data.ids, self.data.input_of, silent) if recipe.reward.samples else None

    def batches(self, epoch: int) -> Batches[CaptionBatch]:
        data, recipe = self.data, self.recipe

        def make(epoch: int, texts: Indices, following: Indices, random: np.random.Generator) -> CaptionBatch:
            rows = torch.from_numpy(texts).to(data.ids.device, non_blocking=True)
            return CaptionBatch(rows, data.ids[rows, : int(data.lengths[texts].max())])

        return shuffled(len(data.lengths), recipe.batch, recipe.seed, epoch, make)

    def loss(self, batch: CaptionBatch) -> Loss:
        data, network = self.data, self.module
        assert isinstance(network, Captioner)
        inputs = data.input_of[batch.texts]
        logits = network.logits(data.inputs[inputs].float(), batch.ids)
        likelihood = functional.cross_entropy(logits.float().flatten(0, 1), batch.ids.flatten(), ignore_index=PAD)
        if self._reward is None:
            return Loss(likelihood)
        reward, samples = self.recipe.reward, self.recipe.reward.samples
        pictures = inputs.repeat_interleave(samples)
        ids, chances = network.sample(data.inputs[pictures].float(), self.recipe.decoding.longest)
        with torch.no_grad():
            rewards = fit = self._reward(ids, pictures)
            if reward.others:
                # Captions of the picture that is next in the batch.
                rewards = fit - reward.others * self._reward(ids, inputs.roll(1).repeat_interleave(samples))
            weights = advantages(rewards.view(-1, samples)).view(-1, 1)
        critical = -(weights * chances).sum() / (ids != PAD).sum()
        parts = {"cider_d": fit.mean(), "likelihood": likelihood.detach()}
        return Loss(critical + reward.likelihood * likelihood, parts)

    def validate(self) -> Mapping[str, float]:
        network, data = self.module, self.held_out
        assert isinstance(network, Captioner)
        total = sum(
            float(network.log_likelihood(data.inputs[data.input_of[texts]].float(), data.ids[texts]).sum())
            for texts in torch.split(torch.arange(len(data.ids), device=data.ids.device), TEXTS)
        )
        figures = {"perplexity": float(np.exp(-total / data.lengths.sum()))}
        if self.recipe.pairs == "regions":
            return figures
        spoken = network.speak(data.inputs.float(), self.recipe.decoding)
        captions = [" ".join(self.text.vocabulary.decode(beam[0].words)) for beam in spoken]
        scores = caption_scores(dict(zip(data.image_ids, captions, strict=True)), self.references)
        return {**figures, **scores, "different": 100 * len(set(captions)) / len(captions)}

    def describe(self, batch: CaptionBatch) -> str:
        images = self.data.image_of[batch.texts[:5].cpu().numpy()].tolist()
        return "texts of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"

    def save(self, folder: Path) -> None:
        self.text.save(folder / TEXT)
        random = np.random.default_rng(self.recipe.seed)
        rows = random.choice(len(self.data.inputs), min(BACKGROUND, len(self.data.inputs)), replace=False)
        chosen = self.data.inputs[torch.from_numpy(np.sort(rows)).to(self.data.inputs.device)]
        with atomic_write(folder / BACKGROUND_FILE) as stream:
            stream.write(safetensors.torch.save({"inputs": chosen.cpu()}))


def caption_data(
    images: Sequence[Image],
    store: FeatureStore,
    vocabulary: Vocabulary,
    aligner: AlignmentModel | None,
    context: bool,
    device: torch.device,
) -> CaptionData:
    """Pictures and their captions; with an aligner, its regions and their snippets."""
    inputs, input_of, image_of, texts = list[np.ndarray](), list[int](), list[int](), list[Tokens]()
    rows = 0
    for index, (image, features) in enumerate(zip(images, store_images(store, (i.id for i in images)), strict=True)):
        captions = [tokens_of(caption) for caption in image.captions]
        if aligner is None:
            inputs.append(features.image[None])
            input_of += [index] * len(captions)
            texts += captions
        else:
            inputs.append(captioner_input(with_picture(features, aligner.regions)[0], features.image, context))
            for tokens, snippets in zip(captions, aligner.align_captions(features, captions)[1], strict=True):
                for snippet in snippets:
                    if words := naming(tokens[snippet.start : snippet.end]):
                        input_of.append(rows + snippet.region)
                        texts.append(words)
        rows += len(inputs[-1])
        image_of += [index] * (len(texts) - len(image_of))
    return CaptionData(
        inputs=torch.from_numpy(np.concatenate(inputs)).to(device),
        ids=torch.from_numpy(text_ids(vocabulary, texts)).to(device),
        lengths=np.array([1 + len(text) for text in texts], np.int64),
        input_of=torch.tensor(input_of, device=device),
        image_of=np.array(image_of, np.int64),
        image_ids=tuple(image.id for image in images),
    )


def naming(snippet: Tokens) -> Tokens:
    """The words of a snippet without punctuation and without connecting words at its ends ("in", "in a"); empty if it
    names nothing, as a lone "the".

    >>> naming(("with", "a", "red", "hat", "in", "the")), naming(("the", "."))
    (('a', 'red', 'hat'), ())
    """
    words = [token for token in snippet if any(map(str.isalnum, token))]
    while words and words[0] in JOINING:
        del words[0]
    while words and words[-1] in JOINING | DETERMINERS:
        del words[-1]
    return tuple(words)


def centres(inputs: Tensor, context: bool) -> Tensor:
    """The mean directions `(vectors, channels)` of a region's vector and, with context, of the picture's."""
    vectors = inputs.view(len(inputs), 1 + context, -1)
    return torch.stack([mean_direction(torch.split(vectors[:, index], 4096)) for index in range(vectors.shape[1])])


class CaptionerKind(Kind[CaptioningRecipe]):
    recipe_type = CaptioningRecipe

    def features(self, recipe: CaptioningRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        """A captioner of regions is also evaluated on ground-truth boxes, which are not used for training."""
        return region_recipes(recipe.feature_recipe) if recipe.pairs == "regions" else [recipe.feature_recipe]

    def task(
        self, recipe: CaptioningRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> CaptioningTask:
        start = cached_run(recipe.start, corpus, stores, device) if recipe.start else None
        if recipe.pairs == "pictures":
            store = find_store(stores, "image")
            return CaptioningTask(recipe, training_set(corpus), corpus, store, None, device, start)
        if not isinstance(recipe_of(recipe.aligner).recipe, AlignmentTaskRecipe):
            raise DeixisError(f"aligner: {recipe.aligner!r} does not learn to align")
        store = find_store(stores, "proposals")
        aligner = load_run(cached_run(recipe.aligner, corpus, [store], device), device)
        assert isinstance(aligner, AlignmentModel)
        return CaptioningTask(recipe, training_set(corpus), corpus, store, aligner, device, start)

    def load_model(self, folder: Path, recipe: CaptioningRecipe, device: torch.device) -> CaptionerModel:
        text, weights = load_text_features(folder / TEXT), read_weights(folder)
        assert isinstance(text, TokenIds)
        network = Captioner(weights["picture.weight"].shape[1], text.dim, recipe.model, centre=weights.get("centre"))
        network.load_state_dict(weights)
        path = folder / BACKGROUND_FILE
        try:
            background = safetensors.torch.load(read_regular(path, TABLE_LIMIT))["inputs"]
        except (OSError, KeyError, safetensors.SafetensorError) as fault:
            raise InputError(path, f"does not hold inputs of training pictures ({fault})") from None
        return CaptionerModel(network, text.vocabulary, recipe.decoding, background, device, context=recipe.context)

    def protocols(self, evaluation: Evaluation[CaptioningRecipe]) -> Sequence[RunProtocol]:
        protocols: list[RunProtocol] = [evaluate_captioner, image_text_ranking]
        # A region alone has no picture for the context.
        alone = has_ground_truth_regions(evaluation.stores) and not evaluation.recipe.context
        if evaluation.drawn_regions or alone:
            protocols.append(ground_truth_region_ranking)
        return [*protocols, word_order]

    def by_regions(self, recipe: CaptioningRecipe) -> bool:
        return recipe.pairs == "regions"

    def regions_kept(self, recipe: CaptioningRecipe) -> int | None:
        """A captioner of regions gets as many regions as its aligner; all, if the aligner's run is gone."""
        if recipe.pairs == "regions":
            with suppress(DeixisError):
                aligner = recipe_of(recipe.aligner).recipe
                return kind_of(aligner.kind).regions_kept(aligner)
        return None
