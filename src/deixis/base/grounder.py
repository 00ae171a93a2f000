"""The matcher of `deixis.base.grounding_network`: points at phrases in a picture, and keeps network and words in one
file.

It is given pixels, not stored features, since proposals and regions come from its own fine-tuned backbone; and phrases
in their sentence, since it reads them there. It answers with boxes of its own for every phrase.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from deixis.base.grounding_boxes import by_coverage
from deixis.base.grounding_network import Captions, Grounding, GroundingNetwork, GroundingRecipe, Regions
from deixis.errors import InputError
from deixis.model import Localized, Mention
from deixis.text.vocabulary import PAD, SPECIALS, Vocabulary
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer, normalize, squashed
from deixis.vision.weights import fill_network, read_network, save_network

#: Words that change places when a picture is mirrored.
MIRRORED = (("left", "right"), ("leftmost", "rightmost"), ("left-hand", "right-hand"), ("lefthand", "righthand"))

_KIND = "deixis grounder 1"


class Grounder:
    """A network and its words; `load` opens a trained one.

    Args:
        network: pictures and captions to scores and boxes.
        vocabulary: the words that it knows.
        mirror: look at each picture once more from its mirror image: twice the time, a little more often right.
    """

    def __init__(self, network: GroundingNetwork, vocabulary: Vocabulary, *, mirror: bool = False) -> None:
        self.network, self.vocabulary, self.mirror = network, vocabulary, mirror
        self._mirrored = mirrored_words(vocabulary)

    def localize_mentions(self, picture: Pillow.Image, mentions: Sequence[Mention]) -> Localized:
        """Boxes `(mentions, regions, 4)` in the picture's pixels, and the chance newly covered by each (see
        `by_coverage`): the first is the answer, its score how sure it is."""
        if not mentions:
            return Localized(np.zeros((0, 0, 4), np.float32), np.zeros((0, 0), np.float32))
        pixels = squashed(picture, self.network.recipe.side)[None]
        answer, regions = self.answer(pixels, self.captions(mentions), mirror=self.mirror)
        real = regions.real[0]
        boxes = answer.boxes[0, :, real]
        scores = by_coverage(boxes, answer.scores[0, :, real], self.network.recipe.sharpness)
        size = np.array([picture.width, picture.height] * 2, dtype=np.float32)
        return Localized(boxes.cpu().numpy() * size, scores.cpu().numpy())

    def captions(self, mentions: Sequence[Mention]) -> Captions:
        """Mentions as a batch of one picture; those of one sentence are read together."""
        sentences = {
            sentence: row for row, sentence in enumerate(dict.fromkeys(tuple(one.sentence) for one in mentions))
        }
        tokens = torch.full((1, len(sentences), max(map(len, sentences))), PAD)
        for sentence, row in sentences.items():
            tokens[0, row, : len(sentence)] = torch.tensor(self.vocabulary.encode(sentence))
        spans = [(sentences[tuple(one.sentence)], one.start, one.end) for one in mentions]
        return Captions(tokens, *torch.tensor(spans).T[:, None])

    @torch.no_grad()
    def answer(self, pixels: Tensor, captions: Captions, *, mirror: bool) -> tuple[Grounding, Regions]:
        """Squashed pictures as bytes `(batch, 3, side, side)` and their captions → boxes, clipped, and their scores."""
        network = self.network
        device = next(network.parameters()).device
        captions = Captions(*(field.to(device) for field in captions))
        pictures = normalize(pixels.to(device)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output, pyramid = network.see(pictures)
            regions = network.propose(output)
            answer: Grounding = network(pyramid, regions, captions)
            if mirror:
                _, pyramid = network.see(pictures.flip(-1))
                turned = captions._replace(tokens=self._mirrored.to(device)[captions.tokens])
                other: Grounding = network(pyramid, regions._replace(boxes=mirrored(regions.boxes)), turned)
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
    def load(cls, path: str | Path, *, device: str = "cpu", mirror: bool = False) -> Grounder:
        """Open a file that `save` wrote, for use and not for training; anything else is an `InputError`."""
        from deixis.vision.learned_proposals import checked_device

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
        network.eval().proposer.backbone.fuse("cpu" if device == "cpu" else "")
        network.to(checked_device(device)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(network, vocabulary, mirror=mirror)


def empty_network(recipe: GroundingRecipe, words: int, *, proposer_width: int = 128) -> GroundingNetwork:
    """A network of this recipe with weights yet to be loaded."""
    backbone = EfficientNetLite(VARIANTS[recipe.backbone])
    return GroundingNetwork(recipe, Proposer(backbone, recipe.backbone, proposer_width), words)


def mirrored_words(vocabulary: Vocabulary) -> Tensor:
    """For each id the one that takes its place in a mirrored picture's captions."""
    ids = torch.arange(len(vocabulary))
    for pair in MIRRORED:
        if all(word in vocabulary for word in pair):
            left, right = vocabulary.encode(pair)
            ids[left], ids[right] = right, left
    return ids


def mirrored(boxes: Tensor) -> Tensor:
    """Boxes `(…, 4)` in [0, 1] in the mirror image."""
    return torch.stack([1 - boxes[..., 2], boxes[..., 1], 1 - boxes[..., 0], boxes[..., 3]], -1)
