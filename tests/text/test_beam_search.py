"""Beam search against all sentences there are."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from deixis.text.beam_search import State, beam_search

START, END, WORDS, LONGEST = 0, 1, 4, 3


def model(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A small recurrence: states of 5 numbers, words of 4."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in ((5, 5), (WORDS, 5), (5, WORDS)))  # type: ignore[return-value]


def stepper(seed: int):  # type: ignore[no-untyped-def]
    mix, words, out = model(seed)

    def step(last: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = torch.tanh(state[0] @ mix + words[last])
        logits = hidden @ out
        logits[:, START] = -torch.inf
        return logits.log_softmax(1), (hidden,)

    return step


def everything(seed: int, first: Tensor) -> dict[tuple[int, ...], float]:
    """Every sentence of at most LONGEST words, with its log-probability, word by word."""
    step, found = stepper(seed), {}
    spoken = [word for word in range(WORDS) if word not in (START, END)]
    for length in range(LONGEST + 1):
        for sentence in product(spoken, repeat=length):
            state, last, total = (first[None],), START, 0.0
            for word in (*sentence, END):
                log_probabilities, state = step(torch.tensor([last]), state)
                total, last = total + float(log_probabilities[0, word]), word
            found[sentence] = total
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_the_best_of_all_sentences_of_every_picture(seed: int) -> None:
    first = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))
    found = beam_search(stepper(seed), (first,), start=START, end=END, width=20, longest=LONGEST)
    for own, spoken in zip(first, found, strict=True):
        expected = sorted(everything(seed, own).items(), key=lambda pair: -pair[1])
        # Two words: 1 + 2 + 4 + 8 sentences.
        assert [tuple(each.words) for each in spoken] == [sentence for sentence, _ in expected]
        assert [each.score for each in spoken] == pytest.approx([score for _, score in expected], abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_narrow_beam_gives_sentences_with_their_own_probabilities_best_first(width: int) -> None:
    first = torch.randn(2, 5, generator=torch.Generator().manual_seed(9))
    found = beam_search(stepper(9), (first,), start=START, end=END, width=width, longest=LONGEST)
    for own, spoken in zip(first, found, strict=True):
        all_of_them = everything(9, own)
        assert 1 <= len(spoken) <= width
        scores = [each.score for each in spoken]
        assert scores == sorted(scores, reverse=True)
        assert scores == pytest.approx([all_of_them[tuple(each.words)] for each in spoken], abs=1e-5)
        assert len({tuple(each.words) for each in spoken}) == len(spoken)


def test_a_sentence_ends_only_where_the_end_is_among_the_likeliest_words() -> None:
    """Two words that go on for ever with a long tail: to stop at once would be the most likely of all sentences."""
    chances = torch.tensor([0.0, 0.1, 0.45, 0.45]).log()

    def step(last: Tensor, state: State) -> tuple[Tensor, State]:
        return chances.repeat(len(last), 1), state

    # (width, words): with two words kept, the end comes third.
    for width, length in ((2, LONGEST), (3, 0)):
        found = beam_search(step, (torch.zeros(1, 1),), start=START, end=END, width=width, longest=LONGEST)
        assert len(found[0][0].words) == length
