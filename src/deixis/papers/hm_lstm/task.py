"""Training the HM-LSTM by alternation (Fig. 3): recipes of the kind `hm-lstm`.

First a coarse stage with the losses at the roots alone. Then rounds: correspondences of noun phrases and regions are
found with the current weights (section 3.3), and all losses are trained for some epochs. A round begins with the first
batch of its first epoch.

Readings: in eq. 9, a root is contrasted with the other pairs of the batch, a phrase with the other phrases of its
image, as printed, or of the whole batch. A pair with the same string, or with the same region of the same image, is no
contrast. Eq. 10 is divided by the number of sentences.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.centring import mean_direction
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.store import FeatureStore
from deixis.metrics.results import Result
from deixis.papers.hm_lstm.correspondence_quality import correspondence_quality
from deixis.papers.hm_lstm.correspondences import (
    Correspondences,
    Indices,
    find_correspondences,
    save_correspondences,
    tree_data,
)
from deixis.papers.hm_lstm.fast.forest import NOUN_PHRASE, Plan
from deixis.papers.hm_lstm.loss import contrasted_phrases, contrasted_roots, contrastive_loss, total_loss
from deixis.papers.hm_lstm.model import HMLSTMModel
from deixis.papers.hm_lstm.network import HMLSTM, HMRecipe, TreeTexts
from deixis.text.featurizers import TextRecipe, text_features
from deixis.text.tokens import tokens_of, tokens_of_captions
from deixis.text.treebank import Tokens, Treebank, corpus_treebank
from deixis.text.trees import TokensAndTree, Tree, noun_phrases, read_trees, write_trees
from deixis.text.vector_features import MeanFeatures
from deixis.text.vocabulary import SPECIALS, Vocabulary
from deixis.training.inputs import find_store, region_recipes
from deixis.training.kind import Kind
from deixis.training.masked_norm import row_count
from deixis.training.placing import send
from deixis.training.recipe import Recipe
from deixis.training.run_protocols import (
    Evaluation,
    RunProtocol,
    ground_truth_region_ranking,
    image_text_ranking,
    sentence_ranking,
)
from deixis.training.running import TOWER_FILE, trained_backbone, with_backbone
from deixis.training.runs import read_weights
from deixis.training.sampling import concatenated_ranges, shuffled
from deixis.training.task import Batches, Gather, Loss, compute_all
from deixis.training.validation import retrieval_figures

VOCABULARY, TREES, PHRASES = "vocabulary.tsv", "trees.jsonl", "phrases.jsonl"
#: Maximum length of a phrase in the bank, and maximum number of phrases.
LONGEST_PHRASE, MOST_PHRASES = 12, 50_000
#: Before "of" and without an article these are parts of a preposition: "in front of several vehicles".
PLACES = frozenset(
    {"back", "bottom", "center", "centre", "corner", "edge", "end", "front", "middle", "rear", "side", "top"}
)
#: Tags with which a phrase begins or ends only by a parser's mistake.
NOT_FIRST = frozenset({"VB", "IN", "TO", "CC", "EX", "MD", "WD", "WR"})
NOT_LAST = frozenset({"IN", "TO", "DT", "CC", "PO"})
Count = Annotated[int, Meta(ge=1)]


class TreeRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """The source of trees (`deixis.text.treebank`), and word vectors (`TextRecipe.vectors`)."""

    trees: str = "spacy-md"
    vectors: str = TextRecipe().vectors


class HMLossRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`contrasts` of a phrase: the other phrases of its image, or of the whole batch."""

    margin: Annotated[float, Meta(gt=0)] = 0.2
    #: Weight of the losses at phrases beside those at roots.
    phrase_weight: Annotated[float, Meta(gt=0)] = 1.0
    contrasts: Literal["image", "batch"] = "image"
    #: Times the sum of squares of Û − Ū, where the model learns this difference.
    difference_decay: Annotated[float, Meta(ge=0)] = 0.0


class AlternationRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Epochs of the coarse stage, and the number of rounds, which share the remaining epochs equally.

    `temperature` is that of `find_correspondences`; 0 takes the best-matching region, as printed.
    """

    coarse: Count = 12
    rounds: Annotated[int, Meta(ge=0)] = 3
    temperature: Annotated[float, Meta(ge=0)] = 0.0


class HMLSTMRecipe(Recipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: TreeRecipe = TreeRecipe()
    model: HMRecipe = HMRecipe()
    loss: HMLossRecipe = HMLossRecipe()
    alternation: AlternationRecipe = AlternationRecipe()
    #: Proposals per picture, beside the whole picture.
    regions: Count = 19
    #: Also evaluate region-phrase ranking on ground-truth boxes. They are not used for training.
    drawn_regions: bool = False
    #: Image-sentence pairs per batch.
    batch: Annotated[int, Meta(ge=2)] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        left, rounds = self.schedule.epochs - self.alternation.coarse, self.alternation.rounds
        if left < rounds or (left % rounds if rounds else left):
            raise ValueError(
                f"alternation: of {self.schedule.epochs} epochs, {self.alternation.coarse} are coarse; "
                f"the other {left} cannot be divided equally among {rounds} rounds"
            )
        if self.model.difference and self.model.encoder != "h-lstm":
            raise ValueError("model.difference is for model.encoder = 'h-lstm': others treat all children alike")
        if self.loss.difference_decay and not self.model.difference:
            raise ValueError("loss.difference_decay needs model.difference = true")

    def round_of(self, epoch: int) -> int:
        """The round of an epoch, 0 for the coarse stage."""
        fine = epoch - self.alternation.coarse
        length = (self.schedule.epochs - self.alternation.coarse) // max(1, self.alternation.rounds)
        return 0 if fine <= 0 else 1 + (fine - 1) // length


class HMBatch(NamedTuple):
    """Sentences as a plan, the visual features that they match, and which pairs are contrasted."""

    #: Its roots are the sentences, its phrases those of all sentences (none in the coarse stage, statistics shared).
    plan: Plan
    captions: Indices
    #: Rows of visual features: whole pictures of the sentences, regions of the phrases.
    pictures: Annotated[Tensor, "sentences"]
    regions: Annotated[Tensor, "phrases"]
    root_contrast: Annotated[Tensor, "sentences", "sentences"]
    phrase_contrast: Annotated[Tensor, "phrases", "phrases"]
    #: Confidences.
    weights: Annotated[Tensor, "phrases"]
    #: Of a padded batch: false for padding.
    sentence_mask: Annotated[Tensor, "sentences"] | None = None
    phrase_mask: Annotated[Tensor, "phrases"] | None = None


class HMModule(nn.Module):
    """The network and the correspondences, so that both are in every checkpoint."""

    def __init__(self, network: HMLSTM, correspondences: Correspondences) -> None:
        super().__init__()
        self.network, self.correspondences = network, correspondences


class HMTask:
    """A `Task`, validated by retrieval in both directions."""

    def __init__(
        self, recipe: HMLSTMRecipe, training: TrainingSet, corpus: Corpus, store: FeatureStore, device: torch.device
    ) -> None:
        self.recipe, self.device, self.training = recipe, device, training
        #: Saved with the run, which needs the same features for other pictures.
        self.tower = trained_backbone(recipe, corpus, device)
        vocabulary, vectors = known_words(recipe, training, corpus)
        self.texts = TreeTexts(vocabulary, corpus_treebank(corpus, recipe.text.trees), recipe.model.encoder)
        self.data = tree_data(training, store, self.texts, recipe.regions, device)
        self.held_out = tree_data(corpus.split("val"), store, self.texts, 0, device)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(recipe.seed)
            centre = mean_direction(torch.split(self.data.visual, 1 << 15)) if recipe.model.centred_regions else None
            network = HMLSTM(self.data.visual.shape[1], vectors, recipe.model, centre)
        self.module = HMModule(network, Correspondences(recipe.alternation.rounds, self.data.mentions)).to(device)
        #: By caption its image and its string, by image its first row, by mention its string.
        tables = (self.data.image_of, self.data.tree, self.data.offsets[:-1], self.data.mention_string)
        self.image_of, self.string_of, self.first_row, self.name_of = (torch.from_numpy(t).to(device) for t in tables)
        self.row_count = torch.from_numpy(np.diff(self.data.offsets)).to(device)

    def batches(self, epoch: int) -> Batches[HMBatch]:
        round_ = self.recipe.round_of(epoch)
        correspondences = self.module.correspondences
        if round_ > int(correspondences.rounds):
            correspondences.add(
                *find_correspondences(self.module.network, self.texts, self.data, self.recipe.alternation.temperature)
            )

        def make(epoch: int, captions: Indices, following: Indices, random: np.random.Generator) -> HMBatch:
            return self._batch(captions, round_)

        return shuffled(len(self.data.tree), self.recipe.batch, self.recipe.seed, epoch, make)

    def _batch(self, captions: Indices, round_: int) -> HMBatch:
        """The sentences of a batch in round `round_`, 0 for the coarse stage; masks are made on the device.

        Phrases are not learned in the coarse stage. If they have batch statistics of their own, they are in the batch
        for these, each with any region of its picture: the first round looks for regions with them.
        """
        data, correspondences = self.data, self.module.correspondences
        plan = self.texts.forest.plan(data.tree[captions])
        with_phrases = bool(round_) or self.recipe.model.statistics == "separate"
        if not with_phrases:
            plan = plan._replace(phrase=plan.phrase[:0], phrase_tree=plan.phrase_tree[:0])
        first, last = data.mention_offsets[captions], data.mention_offsets[captions + 1]
        mentions = concatenated_ranges(first, last if with_phrases else first)[0]
        parts = [len(captions), len(mentions), len(mentions)]
        sent = np.concatenate([captions, mentions, plan.phrase_tree.numpy()])
        caption, mention, tree = torch.split(send(torch.from_numpy(sent), self.device), parts)
        image, string = self.image_of[caption], self.string_of[caption]
        pictures, owner, name = self.first_row[image], image[tree], self.name_of[mention]
        regions = self.first_row[owner] + mention % self.row_count[owner]
        weights = regions.new_zeros(len(regions), dtype=torch.float32)
        if round_:
            regions = self.first_row[owner] + correspondences.region[round_ - 1, mention]
            weights = correspondences.confidence[round_ - 1, mention].clamp(min=0)
        within_image = self.recipe.loss.contrasts == "image"
        return HMBatch(
            plan=plan,
            captions=captions,
            pictures=pictures,
            regions=regions,
            root_contrast=contrasted_roots(image, string),
            phrase_contrast=contrasted_phrases(owner, name, regions, within_image=within_image),
            weights=weights,
        )

    def loss(self, batch: HMBatch, gather: Gather = compute_all) -> Loss:
        """Eq. 10, divided by the number of sentences."""
        network, margin, plan = self.module.network, self.recipe.loss.margin, batch.plan.to(self.device)
        sentences, count = len(batch.pictures), row_count(batch.pictures, batch.sentence_mask)
        masks = [mask for mask in (batch.sentence_mask, batch.phrase_mask) if mask is not None]
        mask = torch.cat(masks) if masks else None
        nodes, rows = torch.cat([plan.root, plan.phrase]), torch.cat([batch.pictures, batch.regions])
        layer = torch.arange(len(rows), device=self.device) >= sentences if len(batch.regions) else None
        texts = gather(lambda rows_given, *rest: network.embed_nodes(plan, rows_given, *rest), nodes, mask, layer)
        visual = gather(
            lambda rows_given, *rest: network.embed_visual(self.data.visual[rows_given].float(), *rest),
            rows,
            mask,
            layer,
        )
        by_root = contrastive_loss(visual[:sentences], texts[:sentences], batch.root_contrast, margin)
        by_phrase = contrastive_loss(visual[sentences:], texts[sentences:], batch.phrase_contrast, margin)
        weights = self.recipe.loss.phrase_weight * batch.weights
        total = total_loss(by_root, by_phrase, weights) / count
        roots = by_root.detach().sum() / count
        parts = {"roots": roots, "noun_phrases": total.detach() - roots}
        difference, decay = network.encoder.difference, self.recipe.loss.difference_decay
        if difference is None or not decay:
            return Loss(total, parts)
        decayed = decay * difference.square().sum()
        return Loss(total + decayed, {**parts, "difference": decayed})

    def validate(self) -> Mapping[str, float]:
        network, held_out = self.module.network, self.held_out
        texts = network.embed_trees(self.texts.forest, held_out.tree, self.device)
        whole = torch.from_numpy(held_out.offsets[:-1]).to(self.device)
        images = network.embed_visual(held_out.visual[whole].float())
        return retrieval_figures(images @ texts.T, torch.from_numpy(held_out.image_of).to(self.device))

    def describe(self, batch: HMBatch) -> str:
        images = self.data.image_of[batch.captions[:5]].tolist()
        return "sentences of images " + ", ".join(self.data.image_ids[image] for image in images) + ", …"

    def save(self, folder: Path) -> None:
        self.texts.vocabulary.save(folder / VOCABULARY)
        self.texts.bank.save(folder / TREES)
        save_correspondences(folder, self.module.correspondences, self.data)
        captions = tokens_of_captions(self.training)
        write_trees(folder / PHRASES, phrase_bank(captions, self.texts.bank))
        if self.tower:
            shutil.copyfile(self.tower, folder / TOWER_FILE)


def phrase_bank(captions: Sequence[Tokens], bank: Treebank) -> list[TokensAndTree]:
    """The noun phrases of captions, the most frequent first, each with the tree of its first occurrence."""
    counts: Counter[tuple[str, ...]] = Counter()
    trees: dict[tuple[str, ...], Tree] = {}
    for tokens, tree in zip(captions, bank.trees(captions), strict=True):
        for phrase, phrase_tree in noun_phrases(tokens, tree, NOUN_PHRASE):
            if len(phrase) <= LONGEST_PHRASE and _reads_well(phrase, phrase_tree):
                counts[phrase] += 1
                trees.setdefault(phrase, phrase_tree)
    return [(phrase, trees[phrase]) for phrase, _ in counts.most_common(MOST_PHRASES)]


def _reads_well(phrase: Tokens, tree: Tree) -> bool:
    """False for mistakes of the parser: punctuation at the ends, a verb or preposition first, an open end ("a child
    with").
    """
    tags = [leaf.label[:2] for leaf in tree.leaves()]
    whole = all(map(str.isalnum, (phrase[0][0], phrase[-1][-1])))
    preposition = phrase[0] in PLACES and tuple(phrase[1:2]) == ("of",)
    return whole and not preposition and tags[0] not in NOT_FIRST and tags[-1] not in NOT_LAST


def known_words(recipe: HMLSTMRecipe, training: TrainingSet, corpus: Corpus) -> tuple[Vocabulary, Tensor]:
    """The words of the training captions and those of the rest of the corpus that have a vector, and their vectors.

    Vectors are normalized: at the length of spaCy's, about 50, the gates of the leaves would saturate. A word without a
    vector gets a random one of the same spread, determined by the seed; padding and the unknown word get zeros.
    """
    counts = Counter(token for image in training for caption in image.captions for token in tokens_of(caption))
    everything = tokens_of_captions(corpus)
    fitted = text_features(TextRecipe(kind="mean", vectors=recipe.text.vectors), training, also=everything)
    assert isinstance(fitted, MeanFeatures)
    others = sorted({token for tokens in everything for token in tokens} - set(counts))
    has_vector = fitted.vectors.look_up(others)[1]
    counts.update({word: 0 for word, has in zip(others, has_vector, strict=True) if has})
    vocabulary = Vocabulary(counts, minimum_count=0)
    vectors, has_vector = fitted.vectors.look_up(vocabulary.words)
    if not has_vector.any():
        raise DeixisError(f"{recipe.text.vectors} has no vector for any word of the training captions")
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    drawn = np.random.default_rng(recipe.seed).normal(0, vectors[has_vector].std(), vectors.shape)
    vectors[~has_vector] = drawn[~has_vector]
    special = np.zeros((len(SPECIALS), vectors.shape[1]), np.float32)
    return vocabulary, torch.from_numpy(np.concatenate([special, vectors]))


class HMLSTMKind(Kind[HMLSTMRecipe]):
    recipe_type = HMLSTMRecipe
    distributed = True

    def features(self, recipe: HMLSTMRecipe, run: Path | None = None) -> list[FeatureRecipe]:
        """Features of a run use its own trained backbone, if it has one."""
        features = region_recipes(recipe.feature_recipe)[: 1 + recipe.drawn_regions]
        if run is None or not (run / TOWER_FILE).exists():
            return features
        return [with_backbone(wanted, run / TOWER_FILE) for wanted in features]

    def task(
        self, recipe: HMLSTMRecipe, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device
    ) -> HMTask:
        return HMTask(recipe, training_set(corpus), corpus, find_store(stores, "proposals"), device)

    def load_model(self, folder: Path, recipe: HMLSTMRecipe, device: torch.device) -> HMLSTMModel:
        weights = _network_weights(folder)
        network = HMLSTM(weights["images.0.weight"].shape[1], weights["words.weight"], recipe.model)
        network.load_state_dict(weights)
        # Texts without a tree in the run are parsed by the parser of its captions; if those trees came from a file, by
        # the parser that is installed.
        parser = "auto" if "." in recipe.text.trees else recipe.text.trees
        bank = Treebank(dict(read_trees(folder / TREES)), parser)
        texts = TreeTexts(Vocabulary.load(folder / VOCABULARY), bank, recipe.model.encoder)
        return HMLSTMModel(network, texts, device, folder / PHRASES)

    def protocols(self, evaluation: Evaluation[HMLSTMRecipe]) -> Sequence[RunProtocol]:
        protocols: list[RunProtocol] = [image_text_ranking, sentence_ranking]
        if evaluation.drawn_regions or evaluation.recipe.drawn_regions:
            protocols.append(region_ranking)
            if evaluation.recipe.alternation.rounds:
                protocols.append(learned_correspondences)
        return protocols

    def by_regions(self, recipe: HMLSTMRecipe) -> bool:
        return True

    def regions_kept(self, recipe: HMLSTMRecipe) -> int:
        return recipe.regions


def region_ranking(evaluation: Evaluation[HMLSTMRecipe]) -> Iterator[Result]:
    """Phrases for every ground-truth region, and regions for every phrase, by the loss layers of phrases."""
    yield from ground_truth_region_ranking(replace(evaluation, model=evaluation.model.of_phrases))


def learned_correspondences(evaluation: Evaluation[HMLSTMRecipe]) -> Iterator[Result]:
    """Each round's correspondences against the ground-truth boxes of the training images."""
    yield correspondence_quality(evaluation.run, evaluation.corpus, **evaluation.details)


def _network_weights(folder: Path) -> dict[str, Tensor]:
    prefix = "network."
    return {name.removeprefix(prefix): value for name, value in read_weights(folder).items() if name.startswith(prefix)}
