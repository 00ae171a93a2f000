"""What is computed with padding promises: the numbers and gradients of every text computed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deixis.papers.concepts_order.network import SentenceGenerator
from deixis.papers.dvsa.loss import fragment_hinge
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe, flat_words, read
from deixis.training.masked_norm import MaskedBatchNorm, MaskedSequential

LENGTHS = torch.tensor([3, 7, 1, 5])
REAL = torch.arange(7) < LENGTHS[:, None]
WORDS = 11


def ids() -> Tensor:
    drawn = torch.randint(4, WORDS, REAL.shape, generator=torch.Generator().manual_seed(1))
    return drawn * REAL


def alone(values: Tensor, text: int) -> Tensor:
    """A text without the others and without padding."""
    return values[text : text + 1, : int(LENGTHS[text])]


def with_gradients(module: nn.Module, value: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [value, *torch.autograd.grad((value * weights).sum(), [*learned, *inputs], materialize_grads=True)]


def assert_close(found: list[Tensor], right: list[Tensor]) -> None:
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("output", [0, 1], ids=["states", "last"])
def test_states_are_those_of_each_text_alone(cell: Any, output: int) -> None:
    torch.manual_seed(0)
    recurrence, words = cell(3, 4, batch_first=True), torch.randn(4, 7, 3, requires_grad=True)
    hidden, memory = torch.randn(1, 4, 4), torch.randn(1, 4, 4)

    def begin(text: slice) -> Any:
        return (hidden[:, text], memory[:, text]) if cell is nn.LSTM else hidden[:, text]

    every = read(recurrence, words, LENGTHS, begin(slice(None)))[output]
    parts = [
        read(recurrence, alone(words, text), LENGTHS[text : text + 1], begin(slice(text, text + 1)))[output]
        for text in range(4)
    ]
    if output == 0:
        parts = [nn.functional.pad(part, (0, 0, 0, 7 - part.shape[1])) for part in parts]
        assert (every[~REAL] == 0).all()
    right = torch.cat(parts)
    assert_close(with_gradients(recurrence, every, words), with_gradients(recurrence, right, words))
    with torch.no_grad():
        torch.testing.assert_close(read(recurrence, words, LENGTHS, begin(slice(None)))[output], right)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
def test_texts_are_read_alike(pooling: Any, bidirectional: bool) -> None:
    torch.manual_seed(0)
    recipe = RecurrentRecipe(word=3, hidden=4, pooling=pooling, bidirectional=bidirectional)
    encoder, texts = RecurrentEncoder(WORDS, recipe), ids()
    texts[2] = 0  # a text without a word
    every, right = encoder(texts), torch.cat([encoder(alone(texts, text)) for text in range(4)])
    assert_close(with_gradients(encoder, every), with_gradients(encoder, right))
    with torch.no_grad():
        torch.testing.assert_close(encoder(texts), right)


def test_words_are_in_the_order_of_their_texts() -> None:
    values = torch.randn(4, 7, 2)
    every, whose = flat_words(values, REAL)
    with torch.no_grad():
        real, owner = flat_words(values, REAL)
    assert torch.equal(every[whose < 4], real)
    assert torch.equal(whose[whose < 4], owner)
    assert (whose == 4).sum() == (~REAL).sum()


def test_sentences_are_generated_alike() -> None:
    torch.manual_seed(0)
    generator, pictures = SentenceGenerator(nn.Embedding(WORDS, 3, padding_idx=0), 5), torch.randn(4, 5)
    likelihood, texts = generator.negative_log_likelihood, ids()
    right = torch.cat([likelihood(pictures[text : text + 1], alone(texts, text)) for text in range(4)])
    assert_close(with_gradients(generator, likelihood(pictures, texts)), with_gradients(generator, right))


@pytest.mark.parametrize("score", ["best", "mean"])
def test_pairs_are_scored_alike(score: Any) -> None:
    torch.manual_seed(0)
    network = AlignmentNetwork(6, WORDS, AlignmentRecipe(score=score, dim=8, word=3, dropout=0.0))
    features, present = torch.randn(3, 5, 6), torch.rand(3, 5) < 0.7
    present[:, 0] = True
    regions = network.embed_regions(features)

    def scores(texts: Tensor) -> Tensor:
        return network.score(regions, present, network.embed_fragments(texts), texts)

    every = with_gradients(network, scores(ids()[..., None]))
    regions = network.embed_regions(features)
    right = torch.cat([scores(alone(ids()[..., None], text)) for text in range(4)], 1)
    assert_close(every, with_gradients(network, right))


def test_masked_pairs_of_the_fragment_hinge_cost_nothing() -> None:
    torch.manual_seed(0)
    regions, fragments = torch.randn(4, 5, 3, requires_grad=True), torch.randn(4, 7, 3, requires_grad=True)
    present, different = torch.ones(4, 5).bool(), ~torch.eye(4).bool()
    right = fragment_hinge(regions, present, fragments, REAL, different)
    pad = nn.functional.pad
    larger = fragment_hinge(
        pad(regions, (0, 0, 0, 0, 0, 2)),
        pad(present, (0, 0, 0, 2)),
        pad(fragments, (0, 0, 0, 1, 0, 2)),
        pad(REAL, (0, 1, 0, 2)),
        pad(different, (0, 2, 0, 2)),
    )
    nothing = nn.Module()
    found, wanted = (with_gradients(nothing, value, regions, fragments) for value in (larger, right))
    assert_close(found, wanted)


@pytest.mark.parametrize("mixed", [False, True])
def test_statistics_are_those_of_real_rows(mixed: bool) -> None:
    torch.manual_seed(0)
    right, norm = nn.BatchNorm1d(3), MaskedBatchNorm(3)
    rows, mask = torch.randn(9, 3) + 5, torch.arange(9) < 6
    rows[6:] = 1e4
    rows = rows.bfloat16() if mixed else rows
    branch = MaskedSequential(nn.Identity(), norm, nn.ReLU())
    for _ in range(3):
        found = branch(rows, mask)[:6]
        assert found.dtype == rows.dtype
        torch.testing.assert_close(found, right(rows[:6]).relu())
    for name, value in right.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    branch.eval()
    right.eval()
    torch.testing.assert_close(branch(rows, mask), right(rows).relu())


def test_gradients_are_those_of_real_rows() -> None:
    torch.manual_seed(0)
    right, norm = nn.BatchNorm1d(3), MaskedBatchNorm(3)
    rows, weights = torch.randn(9, 3, requires_grad=True), torch.randn(6, 3)
    gradients = [
        torch.autograd.grad((out * weights).sum(), [rows, *module.parameters()])
        for module, out in ((right, right(rows[:6])), (norm, norm(rows, torch.arange(9) < 6)[:6]))
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
