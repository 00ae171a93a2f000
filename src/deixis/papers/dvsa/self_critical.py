"""Self-critical training of the generator (Rennie et al., 2017), beyond the paper: CIDEr-D is the reward.

Several sentences are drawn for each picture. A sentence becomes more likely as its reward is above the mean of the
picture's other sentences, and less likely as it is below. Rewards are computed on the device, from ids: what CIDEr-D is
in `deixis.metrics.caption_metrics`, with rarities of the training captions, and with the end of a sentence as a word of
its own, without which sentences stop anywhere ("a man in a").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta, Struct
from torch import Tensor

from deixis.metrics.caption_metrics import ORDER, SIGMA
from deixis.text.vocabulary import END, PAD, Vocabulary


class RewardRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """`samples` of 0: sentences are learned by their likelihood alone."""

    #: Sentences drawn for each picture of a batch.
    samples: Annotated[int, Meta(ge=0)] = 0
    #: What CIDEr-D with the captions of another picture is multiplied by, and subtracted: it keeps sentences different.
    others: Annotated[float, Meta(ge=0)] = 0.0
    #: Of the cross-entropy of true captions beside the reward.
    likelihood: Annotated[float, Meta(ge=0)] = 0.1


class CiderReward:
    """CIDEr-D of sentences, given as ids, with the captions of training pictures.

    Args:
        ids: `(captions, longest)` each with its end, 0 = padding.
        picture_of: `(captions,)` from 0 on, every picture at least once.
        silent: ids that are left out, such as those of punctuation.
    """

    def __init__(self, ids: Tensor, picture_of: Tensor, silent: Sequence[int] = ()) -> None:
        device = ids.device
        self._silent = torch.tensor([PAD, *silent], device=device)
        words = self._spoken(ids)
        counts = torch.bincount(picture_of)
        order = picture_of.argsort(stable=True)
        position = torch.arange(len(order), device=device) - (counts.cumsum(0) - counts)[picture_of[order]]
        #: By picture, its captions, padded with empty ones: (pictures, captions, longest).
        self.captions = words.new_full((len(counts), int(counts.max()), words.shape[1]), PAD)
        self.captions[picture_of[order], position] = words[order]
        #: Of every order, n-grams in ascending order and the log of how many pictures have them.
        self._known: list[Tensor] = []
        self._rarity: list[Tensor] = []
        for grams in _grams(words):
            real = grams != PAD
            owners = picture_of[:, None].expand_as(grams)[real]
            pairs = torch.unique(torch.stack([grams[real], owners]), dim=1)
            known, pictures = torch.unique_consecutive(pairs[0], return_counts=True)
            self._known.append(known)
            self._rarity.append(math.log(len(counts)) - pictures.float().log())
        self._unseen = math.log(len(counts))

    def __call__(self, ids: Tensor, pictures: Tensor) -> Tensor:
        """`(sentences,)`: of sentences `(sentences, longest)` with the captions of `pictures` `(sentences,)`."""
        words, references = self._spoken(ids), self.captions[pictures]
        real = (references != PAD).any(-1)  # (sentences, captions)
        lengths, wanted_lengths = ((part != PAD).sum(-1) for part in (words, references))
        penalty = (-((lengths[:, None] - wanted_lengths) ** 2) / (2 * SIGMA**2)).exp()
        total = torch.zeros(references.shape[:2], device=ids.device)
        for order, (spoken, wanted) in enumerate(zip(_grams(words), _grams(references), strict=True)):
            rarity, wanted_rarity = self._rarities(order, spoken), self._rarities(order, wanted)
            # How often each n-gram occurs in the sentence itself and in each caption.
            times_said = _matches(spoken, spoken).sum(-1)
            there = _matches(spoken[:, None], wanted).sum(-1)  # (sentences, captions, n-grams)
            # A sum over different n-grams: an n-gram that is said twice counts half at each place.
            clipped = (
                torch.minimum(times_said[:, None], there) * there * (rarity.square() / times_said.clamp(min=1))[:, None]
            )
            norm = (times_said * rarity.square()).sum(-1).sqrt()
            wanted_norm = (_matches(wanted, wanted).sum(-1) * wanted_rarity.square()).sum(-1).sqrt()
            total += clipped.sum(-1) / (norm[:, None] * wanted_norm).clamp(min=1e-6)
        return 10 / ORDER * (total * penalty * real).sum(1) / real.sum(1)

    def _spoken(self, ids: Tensor) -> Tensor:
        """Ids without silent ones, which become padding at the end."""
        silent = torch.isin(ids, self._silent)
        return ids.masked_fill(silent, PAD).gather(1, silent.to(torch.uint8).argsort(dim=1, stable=True))

    def _rarities(self, order: int, grams: Tensor) -> Tensor:
        known, rarity = self._known[order], self._rarity[order]
        index = torch.searchsorted(known, grams).clamp(max=len(known) - 1)
        rarities = torch.where(known[index] == grams, rarity[index], self._unseen)
        return torch.where(grams == PAD, 0.0, rarities)


def silent_ids(vocabulary: Vocabulary) -> list[int]:
    """The ids of punctuation, which caption metrics leave out."""
    return [
        token_id
        for token_id in range(END + 1, len(vocabulary))
        if not any(map(str.isalnum, vocabulary.token(token_id)))
    ]


def advantages(rewards: Tensor) -> Tensor:
    """`(pictures, samples)`: by how much each reward is above the mean of the picture's other samples."""
    count = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * (count / max(1, count - 1))


def _grams(words: Tensor) -> list[Tensor]:
    """Numbers `(…, longest)` of the n-grams of each order that begin at each place; PAD where there is none."""
    grams = [words]
    for order in range(1, ORDER):
        following = torch.zeros_like(words)
        following[..., : words.shape[-1] - order] = words[..., order:]
        # Mixed into 63 bits: equal numbers of different n-grams are too rare to matter.
        mixed = (grams[-1] * 6364136223846793005 + following * 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
        grams.append(torch.where(following == PAD, PAD, mixed.clamp(min=1)))
    return grams


def _matches(first: Tensor, second: Tensor) -> Tensor:
    """`(…, n)`, `(…, m)` → `(…, n, m)` as 0 and 1: where n-grams are equal and not padding."""
    return ((first[..., :, None] == second[..., None, :]) & (first != PAD)[..., None]).float()
