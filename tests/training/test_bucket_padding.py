"""Padded batches promise: losses, parts, gradients and statistics of the batches that they were made of."""

from __future__ import annotations

import doctest
from typing import Annotated, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from deixis.papers.two_branch.loss import LogisticRecipe, LossRecipe, RankingRecipe, make_loss
from deixis.papers.two_branch.network import EmbeddingRecipe, SimilarityNetwork, SimilarityRecipe, TwoBranchEmbedding
from deixis.papers.two_branch.phrase_sampling import PhraseSampler, PhraseSamplerRecipe
from deixis.training import bucket_padding
from deixis.training.bucket_padding import Padding, dimensions_of, has_dimensions
from deixis.training.graph_capture import shapes_of
from deixis.training.sampling import PairBatch
from deixis.training.sentence_pairs import SentenceSampler, SentenceSamplerRecipe
from tests.training.generated_pairs import generated_phrases, generated_sentences

DIM = 6
CONSTRAINED = RankingRecipe((1, 4, 0.1, 0.1), hardest=5)
ALIKE = RankingRecipe((1, 1.5, 0, 0.05), hardest=5)
#: What is sampled, and the loss.
CASES: dict[str, tuple[str, Any, LossRecipe]] = {
    "phrases": ("phrases", PhraseSamplerRecipe(20), RankingRecipe(hardest=5)),
    "phrases of the batch": ("phrases", PhraseSamplerRecipe(20, negatives="batch"), RankingRecipe(hardest=5)),
    "phrases with seconds": ("phrases", PhraseSamplerRecipe(20, neighbourhood="sampling"), CONSTRAINED),
    "phrases with more": ("phrases", PhraseSamplerRecipe(20, neighbourhood="random"), RankingRecipe()),
    "pairs": ("pairs", PhraseSamplerRecipe(20), LogisticRecipe()),
    "sentences with seconds": ("sentences", SentenceSamplerRecipe(20, "sampling"), ALIKE),
    "sentences with more": ("sentences", SentenceSamplerRecipe(20, "random"), RankingRecipe((1, 1.5, 0, 0))),
}


def drawn(kind: str, recipe: Any) -> tuple[Any, Any, list[Any]]:
    """Visual features, text features, and the batches of an epoch."""
    if kind == "sentences":
        data = generated_sentences(0, 60, 40, DIM)
        return data.images, data.texts, list(SentenceSampler(data, recipe, 0).triplets(1))
    phrases = generated_phrases(1, images=40, strings=12, proposals=16, dim=DIM)
    sampler = PhraseSampler(phrases, recipe, 0)
    return phrases.regions, phrases.strings, list((sampler.pairs if kind == "pairs" else sampler.triplets)(1))


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    kind, sampling, recipe = CASES[name]
    visual, texts, batches = drawn(kind, sampling)
    widths = (8, 4), (8, 4)
    network: Any = TwoBranchEmbedding(DIM, texts.shape[1], EmbeddingRecipe(*widths))
    if kind == "pairs":
        network = SimilarityNetwork(DIM, texts.shape[1], SimilarityRecipe(*widths))
    network, visual, texts = network.double(), visual.double(), texts.double()
    loss = make_loss(recipe)
    padded = Padding()
    assert all(map(has_dimensions, batches))
    shapes = {shapes_of(padded(batch)) for batch in batches[:-1]}
    assert len(shapes) < len({shapes_of(batch) for batch in batches[:-1]})
    start = {key: value.clone() for key, value in network.state_dict().items()}
    for batch in batches:
        found = []
        for own in (batch, padded(batch)):
            network.load_state_dict(start)
            network.zero_grad()
            images = network.embed_images(visual[own.images], own.image_mask)
            rows = network.embed_texts(texts[own.texts], own.text_mask)
            if isinstance(own, PairBatch):
                total, parts = loss(network.compare(images[own.image], rows[own.text]), own.labels, own.pair_mask)
            elif own.targets is None:
                total, parts = loss(images, rows, own.contrast)
            else:
                candidates = images if own.candidates is None else images[own.candidates]
                total, parts = loss(images[own.targets], rows, own.contrast, candidates)
            total.backward()
            gradients = {key: value.grad for key, value in network.named_parameters() if value.requires_grad}
            after = {f"after {key}": value.clone() for key, value in network.state_dict().items()}
            figures = {key: torch.as_tensor(value) for key, value in {**parts, **own.statistics}.items()}
            found.append({"total": total, **gradients, **figures, **after})
        assert found[0].keys() == found[1].keys()
        for key, value in found[0].items():
            torch.testing.assert_close(found[1][key].to(value), value, rtol=1e-5, atol=1e-6, msg=key)


def test_a_single_row_is_left_as_it_is() -> None:
    """So that batch norm refuses it."""
    _, _, batches = drawn("sentences", SentenceSamplerRecipe(20, "sampling"))
    alone = batches[0]._replace(images=batches[0].images[:1])
    assert Padding()(alone) is alone


class Part(NamedTuple):
    words: Annotated[Tensor, "texts", "words"] | None


class Grown:
    """Pads itself to the largest of its kind so far."""

    def __init__(self, size: int) -> None:
        self.size = size

    def padded(self, room: int | None) -> tuple[Grown, int]:
        room = max(self.size, room or 0)
        return Grown(room), room


class Whole(NamedTuple):
    images: Annotated[Tensor, "images"]
    left_alone: Annotated[Tensor, None]
    part: Part
    grown: Grown
    scalar: Tensor
    host: str = "kept"


def test_every_named_dimension_is_padded_and_nothing_else() -> None:
    def whole(images: int, words: int, grown: int) -> Whole:
        part = Part(torch.ones(70, words, dtype=torch.int64))
        return Whole(torch.ones(images).bool(), torch.ones(3), part, Grown(grown), torch.ones(()))

    assert dimensions_of(Whole) == {"images": ("images",), "left_alone": (None,)}
    assert has_dimensions(whole(2, 3, 4))
    padded = Padding()
    first, second = padded(whole(65, 9, 5)), padded(whole(3, 16, 4))
    assert [len(first.images), int(first.images.sum()), len(second.images)] == [128, 65, 64]
    assert first.part.words.shape == second.part.words.shape == (128, 16)
    assert int(first.part.words.sum()) == 70 * 9
    assert [first.grown.size, second.grown.size, len(first.left_alone), first.host] == [5, 5, 3, "kept"]
    assert padded(Whole(torch.ones(2), torch.ones(3), Part(None), Grown(1), torch.ones(()))).part.words is None


def test_what_declares_no_dimensions_cannot_be_padded() -> None:
    class Undeclared(NamedTuple):
        images: Tensor

    assert not has_dimensions(Undeclared(torch.ones(3)))
    assert not has_dimensions(torch.ones(3))
    assert not has_dimensions((torch.ones(3),))


def test_sizes_are_few() -> None:
    assert doctest.testmod(bucket_padding) == (0, 2)
