"""What is computed with padding promises: the numbers and gradients of what is computed without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deixis.papers.concepts_order.network import SentenceGenerator
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe
from deixis.papers.dvsa.task import fragment_hinge
from deixis.text import recurrent as padding
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe, read, words_of
from deixis.training.masked_norm import Layers, RowNorm

LENGTHS = torch.tensor([3, 7, 1, 5])
REAL = torch.arange(7) < LENGTHS[:, None]
WORDS = 11


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[Any, Any]]:
    """What is found where lengths may be asked for, and where they may not."""

    def run(compute: Callable[[], Any]) -> tuple[Any, Any]:
        asked = compute()
        monkeypatch.setattr(padding, "may_ask", lambda tensor: False)
        return asked, compute()

    return run


def ids() -> Tensor:
    drawn = torch.randint(4, WORDS, REAL.shape, generator=torch.Generator().manual_seed(1))
    return drawn * REAL


def with_gradients(module: nn.Module, value: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [value, *torch.autograd.grad((value * weights).sum(), [*learned, *inputs], materialize_grads=True)]


def assert_close(found: tuple[list[Tensor], list[Tensor]]) -> None:
    for asked, unasked in zip(*found, strict=True):
        torch.testing.assert_close(unasked, asked, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("output", [0, 1], ids=["states", "last"])
def test_states_are_those_of_packed_texts(cell: Any, output: int, both: Any) -> None:
    torch.manual_seed(0)
    recurrence, words = cell(3, 4, batch_first=True), torch.randn(4, 7, 3, requires_grad=True)
    begin: Any = torch.randn(1, 4, 4)
    begin = (begin, torch.randn(1, 4, 4)) if cell is nn.LSTM else begin
    found = both(lambda: with_gradients(recurrence, read(recurrence, words, LENGTHS, begin)[output], words))
    assert_close(found)
    if output == 0:
        assert (found[1][0][~REAL] == 0).all()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
def test_texts_are_read_alike(pooling: Any, bidirectional: bool, both: Any) -> None:
    torch.manual_seed(0)
    recipe = RecurrentRecipe(word=3, hidden=4, pooling=pooling, bidirectional=bidirectional)
    encoder, texts = RecurrentEncoder(WORDS, recipe), ids()
    texts[2] = 0  # a text without a word
    assert_close(both(lambda: with_gradients(encoder, encoder(texts))))


def test_words_stand_in_the_order_of_their_texts(both: Any) -> None:
    values = torch.randn(4, 7, 2)
    (asked, owner), (every, whose) = both(lambda: words_of(values, REAL))
    assert torch.equal(every[whose < 4], asked)
    assert torch.equal(whose[whose < 4], owner)
    assert (whose == 4).sum() == (~REAL).sum()


def test_sentences_are_told_alike(both: Any) -> None:
    torch.manual_seed(0)
    generator, pictures = SentenceGenerator(nn.Embedding(WORDS, 3, padding_idx=0), 5), torch.randn(4, 5)
    assert_close(both(lambda: with_gradients(generator, generator.negative_log_likelihood(pictures, ids()))))


@pytest.mark.parametrize("score", ["best", "mean"])
def test_pairs_are_scored_alike(score: Any, both: Any) -> None:
    torch.manual_seed(0)
    network = AlignmentNetwork(6, WORDS, AlignmentRecipe(score=score, dim=8, word=3, dropout=0.0))
    features, present = torch.randn(3, 5, 6), torch.rand(3, 5) < 0.7
    present[:, 0] = True

    def scores() -> list[Tensor]:
        regions, fragments = network.embed_regions(features), network.embed_fragments(ids()[..., None])
        return with_gradients(network, network.score(regions, present, fragments, ids()[..., None]))

    assert_close(both(scores))


def test_the_fragment_hinge_is_the_same(both: Any) -> None:
    torch.manual_seed(0)
    regions, fragments = torch.randn(4, 5, 3, requires_grad=True), torch.randn(4, 7, 3, requires_grad=True)
    present, same = torch.ones(4, 5).bool(), torch.eye(4).bool()
    nothing = nn.Module()

    def hinge() -> list[Tensor]:
        return with_gradients(nothing, fragment_hinge(regions, present, fragments, REAL, same), regions, fragments)

    assert_close(both(hinge))


@pytest.mark.parametrize("mixed", [False, True])
def test_statistics_are_those_of_real_rows(mixed: bool) -> None:
    torch.manual_seed(0)
    right, norm = nn.BatchNorm1d(3), RowNorm(3)
    rows, count = torch.randn(9, 3) + 5, torch.tensor(6.0)
    rows[6:] = 1e4
    rows = rows.bfloat16() if mixed else rows
    branch = Layers(nn.Identity(), norm, nn.ReLU())
    for _ in range(3):
        found = branch(rows, count)[:6]
        assert found.dtype == rows.dtype
        torch.testing.assert_close(found, right(rows[:6]).relu())
    for name, value in right.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    branch.eval()
    right.eval()
    torch.testing.assert_close(branch(rows, count), right(rows).relu())


def test_gradients_are_those_of_real_rows() -> None:
    torch.manual_seed(0)
    right, norm = nn.BatchNorm1d(3), RowNorm(3)
    rows, weights = torch.randn(9, 3, requires_grad=True), torch.randn(6, 3)
    gradients = [
        torch.autograd.grad((out * weights).sum(), [rows, *module.parameters()])
        for module, out in ((right, right(rows[:6])), (norm, norm(rows, torch.tensor(6.0))[:6]))
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
