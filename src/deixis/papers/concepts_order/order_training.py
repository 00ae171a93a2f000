"""Eq. 4 of a batch and its validation, for training on stored features and on pictures.

Not in the paper: captions with two roles exchanged can count as mismatches of their pictures (`loss.order`).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.metrics.word_order import TOLERANCE
from deixis.papers.concepts_order.loss import exchanged_ranking, structured_ranking
from deixis.papers.concepts_order.network import ConceptsOrderNetwork
from deixis.text.featurizers import TokenIds
from deixis.text.twins import corpus_twins
from deixis.text.vocabulary import PAD
from deixis.training.masked_norm import row_count
from deixis.training.sampling import Indices, as_indices
from deixis.training.sentence_pairs import SentenceData
from deixis.training.task import Gather, Loss, compute_all
from deixis.training.validation import retrieval_figures


class OrderLossRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Eq. 4. With `generation` 0 there is no generator; with `matching` 0 it is a captioner, a `speaker`."""

    margin: Annotated[float, Meta(gt=0)] = 0.2
    matching: Annotated[float, Meta(ge=0)] = 1.0
    #: λ.
    generation: Annotated[float, Meta(ge=0)] = 1.0
    #: Scheduled sampling: share of input words that the model draws itself. It rises linearly from 0 in the first epoch
    #: to this value in epoch `sampling_epochs`.
    sampling: Annotated[float, Meta(ge=0, le=1)] = 0.0
    sampling_epochs: Annotated[int, Meta(ge=2)] = 10
    #: Not in the paper: weight of the loss against captions with exchanged roles.
    order: Annotated[float, Meta(ge=0)] = 0.0

    def sampled(self, epoch: int) -> float:
        return self.sampling * min(1.0, (epoch - 1) / (self.sampling_epochs - 1))


class Captions(NamedTuple):
    """The captions of a batch of images."""

    #: Word ids, 0 = padding at the end.
    ids: Annotated[Tensor, "captions", "words"]
    #: The index of each caption's image in the batch.
    owner: Annotated[Tensor, "captions"]
    #: Word ids of the captions with two roles exchanged, zeros where there is no such twin; None: not used.
    twins: Annotated[Tensor, "captions", "words"] | None = None
    #: Of a padded batch: false for padding.
    mask: Annotated[Tensor, "captions"] | None = None


def order_loss(
    network: ConceptsOrderNetwork,
    settings: OrderLossRecipe,
    fused: Tensor,
    captions: Captions,
    mismatch: Tensor,
    share: Tensor | None = None,
    gather: Gather = compute_all,
) -> Loss:
    """Eq. 4, L_mat + λ L_gen, averaged over the captions of a batch; plus the loss of exchanged captions, if any.

    Args:
        fused: v, `(images, hidden)`.
        captions: captions of these images.
        mismatch: `(captions, images)` true where they do not match.
        share: `()` of scheduled sampling; None: none.
        gather: computes embeddings and likelihoods.
    """
    ids, mask, count = captions.ids[:, : network.longest], captions.mask, row_count(captions.ids, captions.mask)
    images, texts = nn.functional.normalize(fused), gather(network.embed_texts, ids)
    matching = structured_ranking(images, texts, captions.owner, mismatch, settings.margin, mask)
    parts = {"matching": matching / count}
    total = settings.matching * parts["matching"]
    if captions.twins is not None:
        twins = gather(network.embed_texts, captions.twins)
        hinges = exchanged_ranking(images[captions.owner], texts, twins, captions.twins, settings.margin)
        parts["order"] = hinges / count
        total = total + settings.order * parts["order"]
    if network.generator is not None:
        if share is None:
            losses = gather(network.generator.negative_log_likelihood, fused[captions.owner], ids)
        else:
            likelihood = network.generator.sampled_negative_log_likelihood
            losses = gather(lambda pictures, words: likelihood(pictures, words, share), fused[captions.owner], ids)
        parts["generation"] = (losses if mask is None else losses.masked_fill(~mask, 0)).sum() / count
        total = total + settings.generation * parts["generation"]
    return Loss(total, parts)


def order_figures(
    network: ConceptsOrderNetwork, fused: Tensor, data: SentenceData, twins: Tensor | None
) -> dict[str, float]:
    """Recalls; how often a caption scores above its twin; with a generator, mean log-likelihood and perplexity."""
    texts = torch.cat([network.embed_texts(part) for part in torch.split(data.texts, 4096)])
    images = nn.functional.normalize(fused)
    figures = retrieval_figures(images @ texts.T, data.image_of)
    if twins is not None:
        rows = (twins != 0).any(1).nonzero()[:, 0]
        others = torch.cat([network.embed_texts(twins[part]) for part in torch.split(rows, 4096)])
        difference = (images[data.image_of[rows]] * (texts[rows] - others)).sum(1)
        figures["order"] = 100 * float((difference > TOLERANCE).float().mean())
    if network.generator is not None:
        # 512 sentences at a time: each of their words has logits of the whole vocabulary.
        ids = data.texts[:, : network.longest]
        parts = [
            network.generator.negative_log_likelihood(fused[data.image_of[rows]], ids[rows])
            for rows in torch.split(torch.arange(len(ids), device=fused.device), 512)
        ]
        losses = torch.cat(parts)
        figures["log_likelihood"] = -float(losses.mean())
        # A sentence has one more word to predict than it has: its end.
        figures["perplexity"] = float((losses.sum() / ((ids != PAD).sum() + len(ids))).exp())
    return figures


def twin_ids(data: SentenceData, source: Corpus, text: TokenIds) -> Tensor:
    """`(captions, longest)`: ids of the captions with roles exchanged (`deixis.text.twins`), 0 = padding."""
    exchanged = {(twins.image, twins.true): tuple(twins.false.split(" ")) for twins in corpus_twins(source)}
    images = (data.image_ids[index] for index in data.image_of.tolist())
    texts = [exchanged.get((image, " ".join(words)), ()) for image, words in zip(images, data.captions, strict=True)]
    if not any(texts):
        raise DeixisError("loss.order: none of these captions has a twin with exchanged roles")
    return torch.from_numpy(text.transform(texts))


def caption_lengths(data: SentenceData, twins: Tensor | None) -> Indices:
    """`(captions,)`: number of words of a caption, or of its twin if that is longer."""
    lengths = np.array([len(text) for text in data.captions], np.int64)
    return lengths if twins is None else np.maximum(lengths, as_indices((twins != PAD).sum(1)))
