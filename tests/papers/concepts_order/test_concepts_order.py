"""Paper 3's network against its equations, written out number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deixis.papers.concepts_order.network import ConceptsOrderNetwork, GatedFusion, OrderRecipe, SentenceGenerator
from deixis.text.vocabulary import END, START

SMALL = OrderRecipe(hidden=5, word=3, longest=6)
WORDS = 9
Vector = NDArray[np.float64]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def numbers(value: Tensor) -> Vector:
    return value.detach().double().numpy()


def sigmoid(value: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-value)))


def unit(value: Vector) -> Vector:
    return np.asarray(value / math.sqrt(sum(number**2 for number in value)))


def weight(layer: nn.Linear | None) -> Vector:
    assert layer is not None
    return numbers(layer.weight)


def test_the_gate_is_equation_2() -> None:
    fusion = GatedFusion(4, 6, 5, "gate").double()
    concepts, context = torch.rand(3, 4).double(), torch.randn(3, 6).double()
    for row, p, x in zip(numbers(fusion(concepts, context)), numbers(concepts), numbers(context), strict=True):
        x = unit(x)
        p_hat, x_hat = unit(weight(fusion.concepts) @ p), unit(weight(fusion.context) @ x)
        t = sigmoid(weight(fusion.concept_gate) @ p + weight(fusion.context_gate) @ x)
        for place in range(5):
            assert row[place] == pytest.approx(t[place] * p_hat[place] + (1 - t[place]) * x_hat[place])


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


def told_by_hand(model: SentenceGenerator, picture: Vector, sentence: list[int], read_instead: int = 0) -> float:
    """−log P of a sentence by eq. 3, with torch's order of gates (i, f, c, o) and its two biases.

    `read_instead` is read in place of every word but the start.
    """
    table, last_bias, recurrence = numbers(model.words.weight), numbers(model.bias), model.recurrence
    read, kept = numbers(recurrence.weight_ih_l0), numbers(recurrence.weight_hh_l0)
    bias = numbers(recurrence.bias_ih_l0) + numbers(recurrence.bias_hh_l0)
    h, c, last, total = picture, np.zeros(5), START, 0.0
    for word in [*sentence, END]:
        i, f, candidate, o = np.split(read @ table[last] + kept @ h + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
        h = sigmoid(o) * np.tanh(c)
        mapped = weight(model.map) @ h + numbers(model.map.bias)
        scores = [float(table[each] @ mapped) + float(last_bias[each]) for each in range(WORDS)]
        total -= scores[word] - math.log(sum(math.exp(score) for score in scores))
        last = read_instead or word
    return total


SENTENCES = [[4, 5, 6], [8], [7, 4, 4, 8, 5], []]


def padded(sentences: list[list[int]]) -> Tensor:
    return torch.tensor([sentence + [0] * (6 - len(sentence)) for sentence in sentences])


def test_the_generation_loss_is_equation_3_word_by_word() -> None:
    model, pictures = generator(), torch.randn(len(SENTENCES), 5).double()
    found = model.negative_log_likelihood(pictures, padded(SENTENCES))
    expected = [told_by_hand(model, numbers(own), each) for own, each in zip(pictures, SENTENCES, strict=True)]
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
    assert float(found) == pytest.approx(told_by_hand(model, numbers(pictures[0]), [4, 5], read_instead=7))
    assert float(found) != pytest.approx(told_by_hand(model, numbers(pictures[0]), [4, 5]), rel=1e-6)


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
    expected = [told_by_hand(made, numbers(own), each) for own, each in zip(pictures, SENTENCES, strict=True)]
    assert made.eval().negative_log_likelihood(pictures, ids).tolist() == pytest.approx(expected)


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
    """Two pictures with the same concepts, told apart by their context alone; their sentences are the same words."""
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
    assert network.tell(concepts, context).tolist() == [[4, 5, 6, 0], [6, 5, 4, 0]]
