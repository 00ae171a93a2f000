"""The fusion and the generator against the equations, one image at a time (`reference.py`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from deixis.papers.concepts_order.network import ConceptsOrderNetwork, GatedFusion, OrderRecipe, SentenceGenerator
from deixis.papers.concepts_order.reference import gated_fusion, sentence_negative_log_likelihood

SMALL = OrderRecipe(hidden=5, word=3, longest=6)
WORDS = 9


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_the_gate_is_equation_2() -> None:
    fusion = GatedFusion(4, 6, 5, "gate").double()
    concepts, context = torch.rand(3, 4).double(), torch.randn(3, 6).double()
    for row, p, x in zip(fusion(concepts, context), concepts, context, strict=True):
        torch.testing.assert_close(row, gated_fusion(fusion, p, x))


def test_the_ablations_are_the_summands_alone_and_their_sum() -> None:
    concepts, context = torch.rand(3, 4), torch.randn(3, 6)
    both = GatedFusion(4, 6, 5, "sum")
    alone = [GatedFusion(4, 0, 5, "gate"), GatedFusion(0, 6, 5, "gate")]
    assert alone[0].context is None
    assert alone[1].concepts is None
    alone[0].concepts, alone[1].context = both.concepts, both.context
    parts = [alone[0](concepts, None), alone[1](None, context)]
    for part in parts:
        torch.testing.assert_close(part.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(both(concepts, context), parts[0] + parts[1])
    names = {name for name, _ in both.named_parameters()}
    assert names == {"concepts.weight", "context.weight"}, "what has no part is no parameter"


def test_gradients_of_the_gate_are_those_of_finite_differences() -> None:
    fusion = GatedFusion(3, 4, 5, "gate").double()
    concepts = torch.rand(2, 3, dtype=torch.double, requires_grad=True)
    context = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(fusion, (concepts, context))


def generator(shared: nn.Embedding | None = None) -> SentenceGenerator:
    made = SentenceGenerator(shared or nn.Embedding(WORDS, 3), 5).double()
    nn.init.normal_(made.bias)
    return made


SENTENCES = [[4, 5, 6], [8], [7, 4, 4, 8, 5], []]


def padded(sentences: list[list[int]]) -> Tensor:
    return torch.tensor([sentence + [0] * (6 - len(sentence)) for sentence in sentences])


def test_the_generation_loss_is_equation_3_word_by_word() -> None:
    model, pictures = generator(), torch.randn(len(SENTENCES), 5).double()
    found = model.negative_log_likelihood(pictures, padded(SENTENCES))
    expected = [
        sentence_negative_log_likelihood(model, own, each).item() for own, each in zip(pictures, SENTENCES, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected)


def test_gradients_of_the_generation_loss_are_those_of_finite_differences() -> None:
    model = generator()
    pictures = torch.randn(2, 5, dtype=torch.double, requires_grad=True)
    ids = padded(SENTENCES[:2])
    assert torch.autograd.gradcheck(lambda own: model.negative_log_likelihood(own, ids), (pictures,))


def test_scheduled_sampling_reads_the_sentence_at_0_and_itself_at_1() -> None:
    model, pictures = generator(), torch.randn(len(SENTENCES), 5).double()
    ids = padded(SENTENCES)
    torch.testing.assert_close(
        model.sampled_negative_log_likelihood(pictures, ids, 0.0), model.negative_log_likelihood(pictures, ids)
    )
    with torch.no_grad():
        # It always says 7, so that is what it reads.
        model.bias[7] = 60
        found = model.sampled_negative_log_likelihood(pictures[:1], padded([[4, 5]]), 1.0)
    assert float(found) == pytest.approx(
        sentence_negative_log_likelihood(model, pictures[0], [4, 5], read_instead=7).item()
    )
    assert float(found) != pytest.approx(sentence_negative_log_likelihood(model, pictures[0], [4, 5]).item(), rel=1e-6)


def test_a_picture_s_vector_learns_from_the_generation_loss() -> None:
    network = ConceptsOrderNetwork(4, 6, WORDS, SMALL, generates=True)
    assert network.generator is not None
    fused = network.fuse(torch.rand(2, 4), torch.randn(2, 6))
    network.generator.negative_log_likelihood(fused, padded(SENTENCES[:2])).sum().backward()
    assert all(bool(value.grad.abs().sum() > 0) for value in network.fusion.parameters() if value.grad is not None)
    assert all(value.grad is not None for value in network.fusion.parameters())


def test_words_are_shared_where_the_recipe_says_so() -> None:
    shared = OrderRecipe(hidden=5, word=3, shared_words=True)
    for recipe, same in ((SMALL, False), (shared, True)):
        network = ConceptsOrderNetwork(4, 6, WORDS, recipe, generates=True)
        assert network.generator is not None
        assert (network.generator.words is network.sentences.words) == same


def test_what_it_speaks_is_as_likely_as_it_says() -> None:
    model, pictures = generator(), torch.randn(3, 5).double()
    for own, spoken in zip(pictures, model.speak(pictures, width=4, longest=5), strict=True):
        assert spoken
        for each in spoken:
            assert each.words
            assert all(word >= 4 for word in each.words), "no start, padding or unknown word is said"
        # Among what may be said, so more likely than with the words it must not say.
        said = padded([spoken[0].words])
        assert spoken[0].score >= -float(model.negative_log_likelihood(own[None], said).detach()) - 1e-9


def test_dropout_is_of_training_alone_and_of_words_and_states() -> None:
    made = SentenceGenerator(nn.Embedding(WORDS, 3), 5, dropout=0.5).double()
    pictures, ids = torch.randn(4, 5).double(), padded(SENTENCES)
    first, second = (made.negative_log_likelihood(pictures, ids) for _ in range(2))
    assert not torch.equal(first, second)
    expected = [
        sentence_negative_log_likelihood(made, own, each).item() for own, each in zip(pictures, SENTENCES, strict=True)
    ]
    assert made.eval().negative_log_likelihood(pictures, ids).tolist() == pytest.approx(expected)


def test_dropout_of_the_generator_may_differ_from_the_encoder_s() -> None:
    for recipe, expected in ((OrderRecipe(dropout=0.3), 0.3), (OrderRecipe(generator_dropout=0.5), 0.5)):
        network = ConceptsOrderNetwork(4, 6, WORDS, recipe, generates=True)
        assert network.generator is not None
        assert network.generator.dropout.p == expected
        assert network.sentences.dropout.p == recipe.dropout


def test_the_initial_state_is_the_picture_times_a_learned_factor_if_asked_for() -> None:
    words, pictures, ids = nn.Embedding(WORDS, 3), torch.randn(4, 5), padded(SENTENCES)
    scaled = SentenceGenerator(words, 5, scaled=True)
    plain = SentenceGenerator(words, 5)
    plain.load_state_dict({name: value for name, value in scaled.state_dict().items() if name != "scale"})
    expected = plain.negative_log_likelihood(5**0.5 * pictures, ids)
    found = scaled.negative_log_likelihood(pictures, ids)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert scaled.scale is not None
    assert scaled.scale.grad != 0


def test_context_may_be_its_direction_minus_the_mean_one() -> None:
    centre, context = torch.randn(6), torch.randn(3, 6)
    fusion = GatedFusion(0, 6, 5, "gate", centre)
    assert fusion.context is not None
    direction = nn.functional.normalize(nn.functional.normalize(context) - centre)
    torch.testing.assert_close(fusion(None, context), nn.functional.normalize(fusion.context(direction)))
    torch.testing.assert_close(fusion(None, 7 * context), fusion(None, context))
    assert "centre" in fusion.state_dict(), "kept with the weights"


def test_texts_become_unit_rows_and_what_is_unknown_becomes_zeros() -> None:
    network = ConceptsOrderNetwork(4, 0, WORDS, SMALL, generates=False)
    assert network.generator is None
    rows = network.embed_texts(torch.tensor([[4, 5, 0], [1, 1, 0], [0, 0, 0]]))
    torch.testing.assert_close(rows.norm(dim=1), torch.tensor([1.0, 0.0, 0.0]))
    assert network.embed_texts(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 5)
    # Beyond the longest it stops reading.
    long = torch.tensor([[4, 5, 6, 7, 8, 4, 5, 5]])
    torch.testing.assert_close(network.embed_texts(long), network.embed_texts(long[:, :6]))


def test_it_learns_who_does_what_to_whom() -> None:
    """Two pictures with the same concepts, distinguished by their context alone; their sentences are the same words."""
    network = ConceptsOrderNetwork(3, 4, WORDS, OrderRecipe(hidden=16, word=8, longest=4), generates=True)
    assert network.generator is not None
    concepts, context = torch.ones(2, 3), torch.eye(4)[:2]
    ids = torch.tensor([[4, 5, 6], [6, 5, 4]])
    optimizer = torch.optim.Adam(network.parameters(), 2e-2)
    for _ in range(150):
        fused = network.fuse(concepts, context)
        cosines = nn.functional.normalize(fused) @ network.embed_texts(ids).T
        hinge = (0.2 - cosines.diagonal() + cosines.fliplr().diagonal()).relu().sum()
        optimizer.zero_grad()
        (hinge + network.generator.negative_log_likelihood(fused, ids).mean()).backward()
        optimizer.step()
    with torch.no_grad():
        cosines = network.embed_images(concepts, context) @ network.embed_texts(ids).T
    assert (cosines.diagonal() > cosines.fliplr().diagonal() + 0.1).all()
    spoken = network.generator.speak(network.fuse(concepts, context), width=5, longest=4)
    assert [own[0].words for own in spoken] == [[4, 5, 6], [6, 5, 4]]
