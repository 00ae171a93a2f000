"""The grounding network (`deixis.base.grounding_network`) as a model: it finds phrases in a picture.

It is given pictures, not stored features, since proposals and regions come from its own fine-tuned backbone; and it
reads phrases in their sentence. Network and words are kept in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deixis.adapters.phrase_distance import Distances
from deixis.adapters.plural_boxes import plural_boxes
from deixis.base.grounding_boxes import by_coverage
from deixis.base.grounding_network import Captions, GroundingNetwork, GroundingRecipe, Regions
from deixis.base.grounding_network import Grounding as Answer
from deixis.base.region_colours import thumbnail
from deixis.errors import InputError
from deixis.model import (
    Grounding,
    ImageInput,
    Localized,
    Mention,
    Model,
    Text,
    Tokens,
    as_box,
    as_tokens,
    asked_phrases,
)
from deixis.text.vocabulary import PAD, SPECIALS, Vocabulary
from deixis.training.augmentation import mirrored_words
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.learned_proposals import checked_device
from deixis.vision.picture_files import as_picture
from deixis.vision.proposer import Proposer, normalize, squashed
from deixis.vision.weights import fill_network, read_network, save_network

_KIND = "deixis grounder 1"


class SeenRegions(msgspec.Struct, frozen=True):
    """A picture as the network has seen it: every phrase that is asked of it next costs milliseconds."""

    size: tuple[int, int]
    regions: Regions
    seen: Tensor


class GroundingModel(Model):
    """A network and its words; `load` opens a trained one.

    Args:
        network: pictures and captions to scores and boxes.
        vocabulary: the words that it knows.
        mirror: `localize` looks at each picture once more from its mirror image: twice the time, a little more often
            right.
        jpeg: of pictures, as in `deixis.vision.crops.squash`.
    """

    def __init__(
        self, network: GroundingNetwork, vocabulary: Vocabulary, *, mirror: bool = False, jpeg: int = 0
    ) -> None:
        self.network, self.vocabulary, self.mirror, self._jpeg = network, vocabulary, mirror, jpeg
        self._mirrored = mirrored_words(vocabulary)
        self._fused = False

    def ground(self, image: ImageInput, phrases: str | Sequence[Text]) -> list[Grounding]:
        """Scores are from 0 to 1: how likely the box is the right one if the thing is in the picture at all.

        Args:
            image: a path, a PIL picture, or what `look` returned.
        """
        asked = asked_phrases(phrases)
        seen = image if isinstance(image, SeenRegions) else self.look(image)
        if not asked:
            return []
        mentions = [phrase.mention for phrase in asked]
        distances = Distances(mentions)
        with torch.inference_mode():
            boxes, logits = _with_distances(distances, *self._point(seen, distances.asked))
            # The network's own probabilities say how often it is right; sharper ones rank better but promise too much.
            scores, best = by_coverage(boxes, logits, 1.0, count=1).max(-1)
            chosen = boxes[torch.arange(len(best)), best].cpu() * torch.tensor([*seen.size, *seen.size])

        def point(singles: Sequence[Tokens]) -> tuple[NDArray[Any], NDArray[Any]]:
            with torch.inference_mode():
                boxes, logits = self._point(seen, singles)
            return boxes.cpu().numpy(), logits.cpu().numpy()

        size = np.array([*seen.size, *seen.size], np.float32)
        several = plural_boxes(mentions, point)
        return [
            Grounding(
                phrase.text,
                phrase.start,
                phrase.end,
                as_box(round(side, 1) for side in box),
                round(min(score, 1.0), 4),
                boxes=tuple(as_box(round(side, 1) for side in (other * size).tolist()) for other in others),
            )
            for phrase, box, score, others in zip(asked, chosen.tolist(), scores.tolist(), several, strict=True)
        ]

    @torch.inference_mode()
    def phrase_logits(self, seen: SeenRegions, phrases: Sequence[Tokens]) -> NDArray[Any]:
        """`(phrases, regions)`."""
        return self._point(seen, phrases)[1].float().cpu().numpy()

    def _point(self, seen: SeenRegions, phrases: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Boxes `(phrases, regions, 4)` in [0, 1], moved for each phrase, and their logits `(phrases, regions)`."""
        captions = Captions(*(field.to(self.device) for field in self.captions(phrases)))
        answer = self.network.point(seen.seen, seen.regions, captions)
        return answer.boxes[0].clamp(0, 1), answer.scores[0]

    @torch.inference_mode()
    def look(self, image: ImageInput) -> SeenRegions:
        """See a picture once, to ground many phrases in it."""
        if not self._fused:
            # The same function without batch norm, in the layout that convolutions are fastest in.
            self.network.eval().proposer.backbone.fuse()
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._fused = True
        picture = as_picture(image)
        pixels = normalize(squashed(picture, self.network.recipe.side, self._jpeg)[None].to(self.device))
        output, pyramid = self.network.see(pixels.contiguous(memory_format=torch.channels_last))
        regions = self.network.propose(output)
        return SeenRegions(picture.size, regions, self.network.encode_regions(pyramid, regions, thumbnail(pixels)))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if token not in self.vocabulary]

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        """Boxes `(phrases, regions, 4)` in the picture's pixels, and the chance newly covered by each (see
        `by_coverage`): the first is the answer, its score how sure it is."""
        if not phrases:
            return Localized(np.zeros((0, 0, 4), np.float32), np.zeros((0, 0), np.float32))
        picture = as_picture(image)
        pixels = squashed(picture, self.network.recipe.side, self._jpeg)[None]
        distances = Distances(phrases)
        answer, regions = self.answer(pixels, self.captions(distances.asked), mirror=self.mirror)
        real = regions.real[0]
        boxes, logits = _with_distances(distances, answer.boxes[0, :, real], answer.scores[0, :, real])
        scores = by_coverage(boxes, logits, self.network.recipe.sharpness)
        size = np.array([picture.width, picture.height] * 2, dtype=np.float32)
        return Localized(boxes.cpu().numpy() * size, scores.cpu().numpy())

    def proposals(self, image: ImageInput) -> NDArray[Any]:
        seen = self.look(image)
        boxes = seen.regions.boxes[0, seen.regions.real[0]].cpu().numpy()
        return np.asarray(boxes * np.array([*seen.size, *seen.size], np.float32))

    def captions(self, phrases: Sequence[Tokens]) -> Captions:
        """Phrases as a batch of one picture; those of one sentence are read together."""
        mentions = [Mention.of(phrase) for phrase in phrases]
        sentences = {
            sentence: row for row, sentence in enumerate(dict.fromkeys(tuple(mention.sentence) for mention in mentions))
        }
        tokens = torch.full((1, len(sentences), max(map(len, sentences))), PAD)
        for sentence, row in sentences.items():
            tokens[0, row, : len(sentence)] = torch.tensor(self.vocabulary.encode(sentence))
        spans = [(sentences[tuple(mention.sentence)], mention.start, mention.end) for mention in mentions]
        return Captions(tokens, *torch.tensor(spans).T[:, None])

    @torch.no_grad()
    def answer(self, pixels: Tensor, captions: Captions, *, mirror: bool) -> tuple[Answer, Regions]:
        """Squashed pictures as bytes `(batch, 3, side, side)` and their captions → boxes, clipped, and their scores."""
        network = self.network
        device = self.device
        captions = Captions(*(field.to(device) for field in captions))
        pictures = normalize(pixels.to(device)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output, pyramid = network.see(pictures)
            regions = network.propose(output)
            answer: Answer = network(pyramid, regions, captions, thumbnail(pictures))
            if mirror:
                _, pyramid = network.see(pictures.flip(-1))
                turned = captions._replace(tokens=self._mirrored.to(device)[captions.tokens])
                opposite = regions._replace(boxes=mirrored(regions.boxes))
                other: Answer = network(pyramid, opposite, turned, thumbnail(pictures.flip(-1)))
                scores = (answer.scores.log_softmax(-1) + other.scores.log_softmax(-1)) / 2
                answer = answer._replace(scores=scores, boxes=(answer.boxes + mirrored(other.boxes)) / 2)
        return answer._replace(boxes=answer.boxes.clamp(0, 1)), regions

    def save(self, path: str | Path) -> None:
        """Weights as float16 safetensors; recipe and words are in the file's metadata."""
        metadata = {
            "kind": _KIND,
            "recipe": msgspec.json.encode(self.network.recipe).decode(),
            "proposer_width": str(self.network.proposer.width),
            "words": msgspec.json.encode(self.vocabulary.words).decode(),
        }
        save_network(self.network, path, metadata)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu", mirror: bool = False) -> GroundingModel:
        """Open a file that `save` wrote, for use and not for training; anything else is an `InputError`."""
        metadata, tensors = read_network(path, _KIND, "a trained grounder")
        try:
            recipe = msgspec.json.decode(metadata["recipe"], type=GroundingRecipe)
            words = msgspec.json.decode(metadata["words"], type=list[str])
            width = int(metadata["proposer_width"])
        except (KeyError, ValueError) as fault:
            raise InputError(path, f"its description is damaged ({fault})", "metadata") from None
        # Ids are by rank, which falling counts give back.
        vocabulary = Vocabulary({word: len(words) - rank for rank, word in enumerate(words)})
        network = empty_network(recipe, len(SPECIALS) + len(words), proposer_width=width)
        fill_network(network, tensors, path)
        network.eval().proposer.backbone.fuse()
        network.to(checked_device(device)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model = cls(network, vocabulary, mirror=mirror)
        model._fused = True
        return model


def _with_distances(distances: Distances, boxes: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    applied = distances.applied(boxes.float().cpu().numpy(), logits.float().cpu().numpy())
    return torch.from_numpy(applied[0]).to(boxes), torch.from_numpy(applied[1]).to(logits)


def empty_network(recipe: GroundingRecipe, words: int, *, proposer_width: int = 128) -> GroundingNetwork:
    """A network of this recipe with weights yet to be loaded."""
    backbone = EfficientNetLite(VARIANTS[recipe.backbone])
    return GroundingNetwork(recipe, Proposer(backbone, recipe.backbone, proposer_width), words)


def mirrored(boxes: Tensor) -> Tensor:
    """Boxes `(…, 4)` in [0, 1] in the mirror image."""
    return torch.stack([1 - boxes[..., 2], boxes[..., 1], 1 - boxes[..., 0], boxes[..., 3]], -1)
