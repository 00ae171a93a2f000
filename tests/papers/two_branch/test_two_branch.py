"""The two-branch networks against layers written out by hand, and what their rows and scores promise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from deixis.errors import DeixisError
from deixis.papers.two_branch.network import EmbeddingRecipe, SimilarityNetwork, SimilarityRecipe, TwoBranchEmbedding
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe


def features(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def test_a_nonlinear_branch_is_fc_relu_fc_batch_normalization_unit_length() -> None:
    torch.manual_seed(0)
    network = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(6, 4), text=(3, 4)))
    images = features(8, 7)
    first, last, norm = network.images[0], network.images[3], network.images[4]
    hidden = torch.relu(images @ first.weight.T + first.bias) @ last.weight.T + last.bias
    plain = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + norm.eps).sqrt()
    wanted = plain / plain.norm(dim=1, keepdim=True)
    torch.testing.assert_close(network.embed_images(images), wanted)
    assert [tuple(value.shape) for value in network.texts.parameters()][::2] == [(3, 5), (4, 3), (4,)]


def test_text_features_are_multiplied_by_their_scale() -> None:
    network = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(4,), text=(4,), text_scale=77)).eval()
    texts = torch.randn(3, 5)
    expected = torch.nn.functional.normalize(network.texts(texts * 77), dim=-1)
    torch.testing.assert_close(network.embed_texts(texts), expected)
    with pytest.raises(ValueError, match="token ids, which have no scale"):
        EmbeddingRecipe(text_scale=2, recurrent=RecurrentRecipe())


def test_a_linear_branch_is_one_layer_at_unit_length() -> None:
    network = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(4,), text=(4,)))
    texts = features(3, 5)
    wanted = functional.normalize(texts @ network.texts[0].weight.T + network.texts[0].bias)
    torch.testing.assert_close(network.embed_texts(texts), wanted)
    assert sum(1 for _ in network.parameters()) == 4


def test_centred_features_count_by_their_direction_less_the_mean_one() -> None:
    network = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(4,), text=(4,), centred=True))
    images, lengths = features(9, 7) + 2, torch.arange(1.0, 10.0)[:, None]
    centre = functional.normalize(images).mean(0)
    network.centre.copy_(centre)
    rest = functional.normalize(functional.normalize(images) - centre) * 7**0.5
    wanted = functional.normalize(network.images(rest))
    torch.testing.assert_close(network.embed_images(lengths * images), wanted)
    again = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(4,), text=(4,), centred=True))
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again.embed_images(images), wanted)


def test_papers_sizes() -> None:
    phrases = TwoBranchEmbedding(4096, 6000, EmbeddingRecipe())
    shapes = [tuple(value.shape) for value in phrases.parameters() if value.dim() == 2]
    assert shapes == [(1024, 4096), (512, 1024), (1024, 6000), (512, 1024)]
    fusion = SimilarityNetwork(10, 10, SimilarityRecipe()).fusion
    assert [tuple(value.shape) for value in fusion.parameters() if value.dim() == 2] == [
        (512, 512),
        (256, 512),
        (1, 256),
    ]
    for layers in (1, 2, 3):
        fusion = SimilarityNetwork(10, 10, SimilarityRecipe(layers=layers)).fusion
        assert sum(isinstance(layer, nn.Linear) for layer in fusion) == layers
        assert isinstance(fusion[-1], nn.Linear)


def test_dropout_works_in_training_alone() -> None:
    network = TwoBranchEmbedding(7, 5, EmbeddingRecipe(image=(64, 4), text=(64, 4), dropout=0.5))
    images = features(8, 7)
    assert not torch.equal(network.embed_images(images), network.embed_images(images))
    network.eval()
    assert torch.equal(network.embed_images(images), network.embed_images(images))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_recurrent_encoder_reads_each_text_as_if_it_stood_alone(
    cell: Any, pooling: Any, bidirectional: bool
) -> None:
    torch.manual_seed(0)
    recipe = RecurrentRecipe(cell, word=4, hidden=3, bidirectional=bidirectional, pooling=pooling)
    encoder = RecurrentEncoder(9, recipe)
    ids = torch.tensor([[4, 8, 1, 0, 0, 0], [2, 0, 0, 0, 0, 0], [3, 5, 7, 6, 1, 0], [0, 0, 0, 0, 0, 0]])
    got = encoder(ids)
    assert got.shape == (4, encoder.dim) == (4, 6 if bidirectional else 3)
    for row, length in enumerate((3, 1, 5, 1)):
        states, final = encoder.recurrence(encoder.words(ids[row : row + 1, :length]))
        if pooling == "last":
            ends = final[0] if cell == "lstm" else final
            wanted = torch.cat(list(ends[:, 0]))
        else:
            wanted = states[0].mean(0) if pooling == "mean" else states[0].amax(0)
        torch.testing.assert_close(got[row], wanted)


def test_initial_word_vectors_are_learned_on_and_padding_stays_zero() -> None:
    vectors = features(9, 4)
    recipe = EmbeddingRecipe(image=(6, 4), text=(5, 4), recurrent=RecurrentRecipe(word=4, hidden=3))
    network = TwoBranchEmbedding(7, 9, recipe, vectors)
    assert network.encoder is not None
    words = network.encoder.words.weight
    assert torch.equal(words[1:], vectors[1:])
    assert not words[0].any()
    ids = torch.tensor([[4, 8, 1], [2, 0, 0], [3, 5, 0]])
    network.embed_texts(ids)[:, 0].sum().backward()
    assert words.grad is not None
    assert words.grad[4].any()
    assert not words.grad[0].any()
    with pytest.raises(DeixisError, match=r"\(8, 4\).*\(9, 4\)"):
        TwoBranchEmbedding(7, 9, recipe, vectors[:8])
    with pytest.raises(DeixisError, match="no token ids"):
        TwoBranchEmbedding(7, 9, EmbeddingRecipe(), vectors)


@pytest.mark.parametrize("recurrent", [None, RecurrentRecipe(word=4, hidden=3)])
def test_rows_have_unit_length(recurrent: RecurrentRecipe | None) -> None:
    network = TwoBranchEmbedding(7, 9, EmbeddingRecipe(image=(6, 4), text=(5, 4), recurrent=recurrent)).eval()
    texts = features(6, 9) if recurrent is None else torch.randint(0, 9, (6, 3))
    for rows in (network.embed_images(features(5, 7)), network.embed_texts(texts)):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
        assert rows.shape[1] == network.dim == 4


@pytest.mark.parametrize("block", [1, 40, 100, 1 << 24])
def test_scores_of_all_are_scores_of_pairs_whatever_the_block(block: int) -> None:
    torch.manual_seed(0)
    network = SimilarityNetwork(7, 5, SimilarityRecipe(image=(6, 4), text=(6, 4))).eval()
    images, texts = features(9, 7), features(11, 5, 1)
    scores = network.score_all(images, texts, block)
    pairs = network.score_pairs(images.repeat_interleave(11, 0), texts.repeat(9, 1))
    torch.testing.assert_close(scores.flatten(), pairs)


def test_a_block_of_scores_stays_bounded() -> None:
    network = SimilarityNetwork(7, 5, SimilarityRecipe(image=(6, 4), text=(6, 4))).eval()
    sizes: list[int] = []
    network.fusion.register_forward_hook(lambda _module, inputs, _output: sizes.append(inputs[0].numel()))
    network.score_all(features(20, 7), features(30, 5), block=100)
    assert max(sizes) <= 100
    assert sum(sizes) == 20 * 30 * 4


def test_one_layer_over_the_product_is_a_weighted_cosine() -> None:
    network = SimilarityNetwork(7, 5, SimilarityRecipe(image=(6, 4), text=(6, 4), layers=1)).eval()
    images, texts = features(3, 7), features(3, 5)
    layer = network.fusion[0]
    wanted = (network.embed_images(images) * network.embed_texts(texts) * layer.weight).sum(1) + layer.bias
    torch.testing.assert_close(network.score_pairs(images, texts), wanted)


def test_the_seed_decides_the_weights() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(SimilarityNetwork(7, 5, SimilarityRecipe()).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_recipes_are_distinguished_by_kind_and_checked() -> None:
    kinds = EmbeddingRecipe | SimilarityRecipe
    text = 'kind = "embedding"\nimage = [2048, 512]\ndropout = 0.5\n[recurrent]\ncell = "gru"\nbidirectional = true'
    wanted = EmbeddingRecipe((2048, 512), dropout=0.5, recurrent=RecurrentRecipe("gru", bidirectional=True))
    assert msgspec.toml.decode(text, type=kinds) == wanted
    assert msgspec.toml.decode('kind = "similarity"\nlayers = 2', type=kinds) == SimilarityRecipe(layers=2)
    for wrong in ("layers = 4", "dropout = 1", "image = []", "text = [0]", "hidden = 3"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.toml.decode(f'kind = "similarity"\n{wrong}', type=kinds)
    with pytest.raises(DeixisError, match="512 and 256"):
        TwoBranchEmbedding(7, 5, EmbeddingRecipe(text=(1024, 256)))
