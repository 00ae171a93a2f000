"""The aligner of the DVSA paper against explicit loops over pictures, words and regions: values and gradients."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from deixis.errors import DeixisError
from deixis.papers.dvsa.fast import all_pairs
from deixis.papers.dvsa.fast.products import Pool, pooled_products
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe, BidirectionalReader
from deixis.papers.dvsa.reference import pair_scores, read_words

RECIPE = AlignmentRecipe(dim=5, word=4, dropout=0.0)


def random_pairs(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Regions (4 pictures), which are there, word vectors, and the sentence of each (3, of which one is empty)."""
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(4, 3, 5, generator=generator, dtype=torch.double)
    present = torch.tensor([[True, True, True], [True, False, False], [True, True, False], [True, True, True]])
    words = torch.randn(9, 5, generator=generator, dtype=torch.double)
    return regions, present, words, torch.tensor([0, 0, 0, 0, 2, 2, 2, 2, 2])


@pytest.mark.parametrize("pool", ["best", "positive", "hinge"])
@pytest.mark.parametrize("block", [1, 7, 30, 1 << 24])
def test_scores_and_gradients_of_all_pairs_are_those_of_loops_in_any_block(pool: Pool, block: int) -> None:
    regions, present, words, text = random_pairs(0)
    weights = torch.randn(4, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    outcomes = []
    for slow in (True, False):
        given = [regions.clone().requires_grad_(), words.clone().requires_grad_()]
        if slow:
            scores = pair_scores(given[0], present, given[1], text, 3, pool)
        else:
            scores = pooled_products(given[0], present, given[1], text, 3, pool, block)
        (scores * weights).sum().backward()  # type: ignore[no-untyped-call]
        outcomes.append([scores.detach(), *(value.grad for value in given)])
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gradient_holds_no_more_products_than_a_block() -> None:
    """Between forward and backward nothing of the size of all products is kept."""
    regions, words = torch.randn(20, 10, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    kept: list[int] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        scores = pooled_products(
            regions, torch.ones(20, 10, dtype=torch.bool), words, torch.arange(50) % 5, 5, block=500
        )
    scores.sum().backward()  # type: ignore[no-untyped-call]
    assert max(kept, default=0) <= max(regions.numel(), words.numel())
    assert regions.grad is not None


def test_words_are_read_as_the_equations_say_whatever_is_in_the_batch() -> None:
    torch.manual_seed(0)
    reader = BidirectionalReader(RECIPE).double()
    nn.init.normal_(reader.bias)
    lengths = [6, 1, 3]
    words = torch.randn(3, 6, 4, dtype=torch.double)
    found = reader(words, torch.arange(6) < torch.tensor(lengths)[:, None])
    for row, text, length in zip(found, words, lengths, strict=True):
        torch.testing.assert_close(row[:length], read_words(reader, text[:length]))


def test_scores_are_eq_1_of_the_supplement_and_keep_the_length_of_vectors() -> None:
    torch.manual_seed(0)
    network = AlignmentNetwork(7, 11, RECIPE).eval()
    ids = torch.tensor([[[3], [4], [5]], [[6], [0], [0]]])
    regions, present = torch.randn(2, 3, 7), torch.tensor([[True, True, True], [True, True, False]])
    scores = network.score_all(regions, present, ids)
    for k, count in enumerate((3, 2)):
        for text, length in enumerate((3, 1)):
            s = read_words(network.reader, network.words(ids[text, :length, 0]))  # type: ignore[arg-type]
            v = regions[k, :count] @ network.regions.weight.T + network.regions.bias
            assert scores[k, text].item() == pytest.approx((s @ v.T).max(1).values.sum().item(), abs=1e-5)
    with torch.no_grad():
        network.regions.weight.mul_(2)
        network.regions.bias.mul_(2)
    torch.testing.assert_close(network.score_all(regions, present, ids), 2 * scores)


def test_regions_may_be_read_by_how_their_directions_differ_from_the_mean_one() -> None:
    torch.manual_seed(0)
    centre = torch.randn(7)
    recipe = msgspec.structs.replace(RECIPE, centred_regions=True)
    network = AlignmentNetwork(7, 11, recipe, scale=3.0, centre=centre).eval()
    regions = torch.randn(2, 3, 7)
    torch.testing.assert_close(network.embed_regions(5 * regions), network.embed_regions(regions))
    differs = regions / regions.norm(dim=-1, keepdim=True) - centre
    expected = differs / differs.norm(dim=-1, keepdim=True) @ network.regions.weight.T + network.regions.bias
    torch.testing.assert_close(network.embed_regions(regions), expected)


def test_in_half_precision_vectors_are_rounded_and_nothing_else() -> None:
    torch.manual_seed(0)
    whole = AlignmentNetwork(7, 11, RECIPE).eval()
    half = AlignmentNetwork(7, 11, RECIPE, rounded=True).eval()
    half.load_state_dict(whole.state_dict())
    ids = torch.tensor([[[3], [4], [5]], [[6], [0], [0]], [[0], [0], [0]]])
    regions, present = torch.randn(2, 3, 7), torch.tensor([[True, True, True], [True, True, False]])
    v = whole.embed_regions(regions).bfloat16().double()
    s = whole.embed_fragments(ids).bfloat16().double()
    products = torch.einsum("kid,ltd->kilt", v, s).masked_fill(~present[..., None, None], -torch.inf).amax(1)
    expected = products.masked_fill(ids[..., 0] == 0, 0).sum(-1)
    torch.testing.assert_close(half.score_all(regions, present, ids).double(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(half.score_all(regions, present, ids), whole.score_all(regions, present, ids))


def test_defrag_scores_are_the_smoothed_mean_of_positive_products() -> None:
    torch.manual_seed(0)
    recipe = AlignmentRecipe(fragments="edges", score="mean", dim=5, word=4, dropout=0.0, smoothing=5.0)
    network = AlignmentNetwork(7, 11, recipe, relations=3).eval()
    reader: Any = network.reader
    nn.init.normal_(reader.bias.weight)
    ids = torch.tensor([[[2, 4, 1], [4, 5, 2]], [[2, 6, 1], [0, 0, 0]]])
    regions, present = torch.randn(2, 3, 7), torch.tensor([[True, True, True], [True, True, False]])
    scores = network.score_all(regions, present, ids)
    weight, bias = reader.combine.weight, reader.bias.weight
    for k, count in enumerate((3, 2)):
        for text, length in enumerate((2, 1)):
            total = 0.0
            for head, dependent, relation in ids[text, :length].tolist():
                pair = torch.cat([network.words.weight[head], network.words.weight[dependent]])
                s = torch.clamp(weight @ pair + bias[relation], min=0)
                for region in regions[k, :count]:
                    total += max(0.0, float(((network.regions.weight @ region + network.regions.bias) @ s).detach()))
            assert scores[k, text].item() == pytest.approx(total / (count * (length + 5)), abs=1e-5)


def test_fixed_word_vectors_are_not_learned_and_must_fit() -> None:
    vectors = torch.randn(11, 4)
    network = AlignmentNetwork(7, 11, RECIPE, word_vectors=vectors, fixed=True)
    assert not network.words.weight.requires_grad
    # But for a common factor, that brings them to length 1 in the mean.
    torch.testing.assert_close(network.words.weight[1:], vectors[1:] / vectors.norm(dim=1).mean())
    with pytest.raises(DeixisError, match=r"model\.word"):
        AlignmentNetwork(7, 11, RECIPE, word_vectors=torch.randn(11, 9))


@pytest.mark.parametrize("lacking", ["no Triton", "an old Triton"])
def test_blocks_do_what_the_kernel_would_where_triton_does_not_suffice(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_old(name: str) -> Any:
        raise ImportError(f"cannot import what {name} needs of triton")

    found = None if lacking == "no Triton" else object()
    monkeypatch.setattr(all_pairs, "find_spec", lambda name: found)
    monkeypatch.setattr(all_pairs, "import_module", import_old)
    assert all_pairs.fused_kernel(torch.device("cuda")) is None
