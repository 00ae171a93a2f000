"""Networks, samplers and losses together: what is in the data is learned, and unseen pairs are distinguished by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from deixis.papers.two_branch.loss import LogisticRecipe, LossRecipe, RankingRecipe, make_loss
from deixis.papers.two_branch.network import EmbeddingRecipe, SimilarityNetwork, SimilarityRecipe, TwoBranchEmbedding
from deixis.papers.two_branch.phrase_sampling import PhraseSampler, PhraseSamplerRecipe
from deixis.training.contrastive import HardestNegativeRecipe, InfoNCERecipe
from deixis.training.sentence_pairs import SentenceSampler, SentenceSamplerRecipe
from tests.training.generated_pairs import GeneratedPhrases, generated_phrases, generated_sentences

DIM = 16


def planted(seed: int) -> GeneratedPhrases:
    """Phrases whose regions look like what they are called, the same look in every picture; a chain has one name."""
    data = generated_phrases(seed, images=40, strings=12, proposals=16, dim=DIM)
    looks = torch.randn(12, DIM, generator=torch.Generator().manual_seed(99))
    for chain in data.pair_chain.unique():
        pairs = (data.pair_chain == chain).nonzero()[:, 0]
        string = int(data.pair_string[pairs[0]])
        data.pair_string[pairs] = string
        rows = data.positive_rows[data.positive_offsets[pairs[0]] : data.positive_offsets[pairs[0] + 1]]
        data.regions[rows] = looks[string] + 0.3 * data.regions[rows]
    data.strings = torch.eye(12)
    return data


def first_hits(scores: Tensor, data: GeneratedPhrases) -> float:
    """The share of pairs whose best region in the picture is a positive; scores are (strings, regions)."""
    hits = []
    for pair, (string, image) in enumerate(zip(data.pair_string, data.pair_image, strict=True)):
        here = (data.region_image == image).nonzero()[:, 0]
        best = int(here[scores[string, here].argmax()])
        rows = data.positive_rows[data.positive_offsets[pair] : data.positive_offsets[pair + 1]]
        hits.append(best in rows.tolist())
    return float(np.mean(hits))


@pytest.mark.parametrize(
    ("recipe", "sampling"),
    [
        (RankingRecipe(), PhraseSamplerRecipe(20)),
        (RankingRecipe((1, 4, 0.1, 0.1), constraints_after=4), PhraseSamplerRecipe(20, neighbourhood="sampling")),
        (HardestNegativeRecipe(), PhraseSamplerRecipe(20, negatives="batch")),
        (InfoNCERecipe(), PhraseSamplerRecipe(20, candidates=6)),
    ],
    ids=["eq. 6", "constraints", "hardest negative", "infonce"],
)
def test_an_embedding_learns_to_point_at_regions_of_unseen_pictures(
    recipe: LossRecipe, sampling: PhraseSamplerRecipe
) -> None:
    torch.manual_seed(0)
    data, unseen = planted(1), planted(2)
    network = TwoBranchEmbedding(DIM, 12, EmbeddingRecipe((32, 16), (32, 16)))
    loss = make_loss(recipe)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], 1e-2)
    for epoch in range(1, 9):
        for batch in PhraseSampler(data, sampling, 0).triplets(epoch):
            images = network.embed_images(data.regions[batch.images])
            texts = network.embed_texts(data.strings[batch.texts])
            candidates = images if batch.candidates is None else images[batch.candidates]
            optimizer.zero_grad()
            loss(images[batch.targets], texts, batch.contrast, candidates).total.backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        scores = network.embed_texts(unseen.strings) @ network.embed_images(unseen.regions).T
    assert first_hits(scores, unseen) > 0.85
    assert first_hits(torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)), unseen) < 0.5


def test_a_similarity_network_learns_to_point_at_regions_of_unseen_pictures() -> None:
    torch.manual_seed(0)
    data, unseen = planted(1), planted(2)
    network = SimilarityNetwork(DIM, 12, SimilarityRecipe((32, 16), (32, 16)))
    loss = make_loss(LogisticRecipe())
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for epoch in range(1, 9):
        for batch in PhraseSampler(data, PhraseSamplerRecipe(20), 0).pairs(epoch):
            images = network.embed_images(data.regions[batch.images])
            texts = network.embed_texts(data.strings[batch.texts])
            optimizer.zero_grad()
            loss(
                network.compare(images[batch.image], texts[batch.text]), batch.labels, batch.pair_mask
            ).total.backward()
            optimizer.step()
    network.eval()
    assert first_hits(network.score_all(unseen.regions, unseen.strings).T, unseen) > 0.85


@pytest.mark.parametrize("neighbourhood", ["none", "sampling", "random"])
def test_sentences_find_their_images(neighbourhood: str) -> None:
    torch.manual_seed(0)
    data = generated_sentences(0, 30, 10**6, DIM)
    data.texts = data.images[data.image_of] @ torch.randn(DIM, DIM) + 0.1 * torch.randn(len(data.image_of), DIM)
    network = TwoBranchEmbedding(DIM, DIM, EmbeddingRecipe((64, 16), (64, 16)))
    loss = make_loss(RankingRecipe((1, 1.5, 0, 0.05 if neighbourhood == "sampling" else 0), hardest=10))
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    sampler = SentenceSampler(data, SentenceSamplerRecipe(25, neighbourhood), 0)  # type: ignore[arg-type]
    for epoch in range(1, 16):
        for batch in sampler.triplets(epoch):
            images, texts = (
                network.embed_images(data.images[batch.images]),
                network.embed_texts(data.texts[batch.texts]),
            )
            optimizer.zero_grad()
            loss(images, texts, batch.contrast).total.backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        found = (network.embed_texts(data.texts) @ network.embed_images(data.images).T).argmax(1)
    assert (found == data.image_of).float().mean() > 0.9
