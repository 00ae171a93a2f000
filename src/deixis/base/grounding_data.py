"""What `deixis.base.grounding_task` learns from, as tensors on one device; and the network it begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch.nn import functional as F

from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import Captions, GroundingNetwork, GroundingRecipe
from deixis.corpus import TYPES, Box, Corpus, Image
from deixis.corpus.boxes import box_array, merge
from deixis.corpus.leak_guard import TrainingSet
from deixis.errors import DeixisError
from deixis.metrics.localization import PhraseQuery, gold_queries
from deixis.text.expressions import MOST
from deixis.text.featurizers import TextRecipe, text_features
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vector_features import MeanFeatures
from deixis.text.vocabulary import PAD, UNKNOWN, Vocabulary
from deixis.text.word_vectors import SPACY
from deixis.training.augmentation import SquashedPictures, squashed_pictures
from deixis.training.placing import send
from deixis.training.tools.proposer_training import padded_targets
from deixis.vision.learned_proposals import LearnedProposals
from deixis.vision.proposals import load_method
from deixis.vision.reading import Skipped

#: The proposer learns from so many boxes of a picture, the largest.
MOST_BOXES = 40
#: Objects of one name that a phrase is compared with: as many as expressions distinguish.
ALIKE_BOXES = MOST
#: Types of which COCO's labels leave little out.
LABELLED_WHOLLY = ("people", "animals", "vehicles")


class GroundingText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The words: those of the training captions that occur `minimum_count` times.

    `vectors` are their first vectors: spaCy's, a word2vec, GloVe or .vec file, or "" for random ones.
    """

    vectors: str = SPACY
    minimum_count: Annotated[int, Meta(ge=1)] = 1


@dataclass(frozen=True)
class GroundingData:
    """Pictures, captions and boxes of some images on one device, padded to the same numbers an image."""

    image_ids: tuple[str, ...]
    pictures: Tensor  # (n, 3, side, side) bytes
    captions: Captions
    gold: Tensor  # (n, phrases, 4): the merged box of each phrase in [0, 1], zeros where there is no phrase
    #: `(n, phrases)`: a phrase of two types counts twice, as in Table 2 of the Entities paper; 0 where there is none.
    weight: Tensor
    #: The proposer's targets.
    boxes: Tensor  # (n, g, 4)
    types: Tensor  # (n, g, types)
    #: Words of the longest caption of each image, on the CPU.
    longest: Tensor
    #: And of the longest phrase.
    longest_phrase: Tensor
    #: `(n, types)`: whether everything of a type has a box, so that the rest is background.
    background: Tensor
    #: `(n, phrases, ALIKE_BOXES, 4)`: the things of the phrase's name, its own among them; zeros where there are fewer.
    alike: Tensor
    #: `(n, phrases, 4)`: what the phrase's distance is measured to ("nearest to the bench"); zeros if nothing.
    landmark: Tensor

    def __len__(self) -> int:
        return len(self.image_ids)

    def part(self, rows: Tensor) -> Captions:
        """The captions of some images, no longer than they must be."""
        device_rows = send(rows, self.gold.device)
        captions = Captions(*(field[device_rows] for field in self.captions))
        return captions._replace(tokens=captions.tokens[:, :, : int(self.longest[rows].max())])


#: By image and caption, the chain that an expression's distance is measured to.
Landmarks = Mapping[str, Mapping[int, str]]


def grounding_data(
    corpus: Corpus,
    images: Iterable[Image],
    vocabulary: Vocabulary,
    side: int,
    device: torch.device,
    skipped: Skipped,
    landmarks: Landmarks | None = None,
    *,
    jpeg: int = 0,
) -> GroundingData:
    """Read the pictures that have a phrase with a box; those that cannot be read are noted in `skipped`.

    Args:
        jpeg: of pictures, as in `deixis.vision.crops.squash`.
    """
    chosen = [image for image in images if gold_queries(image)[0]]
    if not chosen:
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'} has no phrase with a box among these images")
    read = squashed_pictures(corpus, chosen, side, skipped, jpeg)
    if not read.images:
        raise DeixisError(f"none of these {len(chosen)} pictures can be read; {skipped}")
    return as_tensors(read, vocabulary, device, landmarks)


def as_tensors(
    read: SquashedPictures, vocabulary: Vocabulary, device: torch.device, landmarks: Landmarks | None = None
) -> GroundingData:
    """The captions and boxes of pictures, each of which has a phrase with a box, beside the pictures."""
    captions, gold, weight = _padded_phrases(read, vocabulary)
    boxes, types = padded_targets(read, MOST_BOXES)
    alike, landmark = _compared_boxes(read, gold, landmarks or {})
    return GroundingData(
        tuple(image.id for image in read.images),
        read.pixels.to(device),
        Captions(*(field.to(device) for field in captions)),
        gold.to(device),
        weight.to(device),
        boxes.to(device),
        types.to(device),
        (captions.tokens != PAD).sum(-1).amax(-1),
        (captions.end - captions.start).amax(-1),
        torch.tensor([_background(image) for image in read.images]).to(device),
        alike.to(device),
        landmark.to(device),
    )


def _background(image: Image) -> list[bool]:
    """By type, whether everything of it has a box.

    Captions mention what has a box. Labelled boxes are of COCO's classes, which hold all people, but few clothes.
    """
    labelled = any(chain.label for chain in image.chains)
    too_many = len(image.boxes) > MOST_BOXES
    return [not labelled or (name in LABELLED_WHOLLY and not too_many) for name in TYPES]


def _compared_boxes(read: SquashedPictures, gold: Tensor, landmarks: Landmarks) -> tuple[Tensor, Tensor]:
    """`alike` and `landmark` of `GroundingData`.

    Things of one name are chains of one box with the same label or, without labels, with phrases that end in the same
    noun ("a young boy", "an older boy").
    """
    alike = np.zeros((*gold.shape[:2], ALIKE_BOXES, 4), np.float32)
    landmark = np.zeros(gold.shape, np.float32)
    alike[:, :, 0] = gold.numpy()
    for row, (image, size) in enumerate(zip(read.images, read.sizes, strict=True)):
        landmark_of = landmarks.get(image.id, {})
        chains = {chain.id: chain for chain in image.chains}
        by_label: dict[str, list[Box]] = {}
        for chain in image.chains:
            if chain.label and len(chain.boxes) == 1:
                by_label.setdefault(chain.label, []).append(image.boxes[chain.boxes[0]])
        queries = gold_queries(image)[0]
        by_noun: dict[str, dict[str, Box]] = {}
        for query in queries:
            chain = chains[query.phrase.chain]
            if not chain.label and len(chain.boxes) == 1:
                by_noun.setdefault(_noun(query), {})[chain.id] = image.boxes[chain.boxes[0]]
        captions = {id(caption): position for position, caption in enumerate(image.captions)}
        for index, query in enumerate(queries):
            chain = chains[query.phrase.chain]
            if chain.label:
                same = by_label.get(chain.label, [])
            else:
                named = by_noun.get(_noun(query), {})
                same = [*named.values()] if chain.id in named else []
            if 1 < len(same) <= ALIKE_BOXES:
                alike[row, index, : len(same)] = box_array(same) / np.tile(size, 2)
            if (other := landmark_of.get(captions[id(query.caption)])) is not None:
                landmark[row, index] = merge(box_array(image.chain_boxes(other))) / np.tile(size, 2)
    return torch.from_numpy(alike), torch.from_numpy(landmark)


def _noun(query: PhraseQuery) -> str:
    return tokens_of(query.caption)[query.phrase.end - 1]


def _padded_phrases(read: SquashedPictures, vocabulary: Vocabulary) -> tuple[Captions, Tensor, Tensor]:
    tokens = [[tokens_of(caption) for caption in image.captions] for image in read.images]
    queries = [gold_queries(image) for image in read.images]
    count, most = len(tokens), max(len(phrases) for phrases, _ in queries)
    longest = max(len(words) for image_tokens in tokens for words in image_tokens)
    ids = np.full((count, max(map(len, tokens)), longest), PAD, np.int64)
    spans = np.zeros((3, count, most), np.int64)
    gold = np.zeros((count, most, 4), np.float32)
    weight = np.zeros((count, most), np.float32)
    for row, (image, size) in enumerate(zip(read.images, read.sizes, strict=True)):
        for index, words in enumerate(tokens[row]):
            ids[row, index, : len(words)] = vocabulary.encode(words)
        numbers = {id(caption): position for position, caption in enumerate(image.captions)}
        for index, (query, boxes) in enumerate(zip(*queries[row], strict=True)):
            spans[:, row, index] = numbers[id(query.caption)], query.phrase.start, query.phrase.end
            gold[row, index] = merge(boxes) / np.tile(size, 2)
            weight[row, index] = max(1, len(query.phrase.types))
    captions = Captions(torch.from_numpy(ids), *map(torch.from_numpy, spans))
    return captions, torch.from_numpy(gold), torch.from_numpy(weight)


def new_grounder(
    training: TrainingSet, recipe: GroundingRecipe, text: GroundingText, *, proposer: str = "learned", seed: int = 0
) -> GroundingModel:
    """A network that knows the training captions' words, on a trained proposer (`learned`, or a file)."""
    trunk = load_method(proposer)
    if not isinstance(trunk, LearnedProposals) or trunk.model.backbone_name != recipe.backbone:
        raise DeixisError(f"proposals {proposer!r} are not those of a proposer on {recipe.backbone}")
    counts = Counter(token for image in training for caption in image.captions for token in tokens_of(caption))
    vocabulary = Vocabulary(counts, minimum_count=text.minimum_count)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = GroundingNetwork(recipe, trunk.model, len(vocabulary))
    if text.vectors:
        # The mean vector's features hold the vectors of all words of the training set, and are kept.
        means = text_features(TextRecipe(kind="mean", vectors=text.vectors), training)
        assert isinstance(means, MeanFeatures)
        vectors = means.vectors
        array, has_vector = vectors.look_up(vocabulary.words)
        if vectors.dimension != network.words.embedding_dim:
            raise DeixisError(f"{text.vectors}: vectors have {vectors.dimension} numbers, not 300")
        known = torch.from_numpy(has_vector)
        with torch.no_grad():
            # Unit length, like the random ones of words without a vector.
            network.words.weight[-len(known) :][known] = F.normalize(torch.from_numpy(array)[known], dim=1)
    return GroundingModel(network, vocabulary)


def named_words(data: GroundingData, vocabulary: Vocabulary, minimum: int) -> tuple[Tensor, int]:
    """For each id of the vocabulary its class among the words that phrases often have, and how many classes there are.

    Words without a class have the class after the last.
    """
    captions = data.captions
    places = torch.arange(captions.tokens.shape[-1], device=captions.tokens.device)
    caption_tokens = captions.tokens.gather(1, captions.caption[..., None].expand(-1, -1, len(places)))
    inside = (places >= captions.start[..., None]) & (places < captions.end[..., None])
    counts = torch.bincount(caption_tokens[inside], minlength=len(vocabulary)).tolist()
    chosen = [
        word_id
        for word_id, count in enumerate(counts)
        if count >= minimum and word_id != UNKNOWN and has_content(vocabulary.token(word_id))
    ]
    classes = torch.full((len(vocabulary),), len(chosen))
    classes[chosen] = torch.arange(len(chosen))
    return classes.to(captions.tokens.device), len(chosen)
