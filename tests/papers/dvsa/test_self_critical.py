"""Self-critical training: the reward on ids is the metric, draws have the likelihood of what was drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deixis.metrics.caption_metrics import cider_d
from deixis.papers.dvsa.captioner import Captioner, CaptionerRecipe
from deixis.papers.dvsa.self_critical import CiderReward, advantages, silent_ids
from deixis.text.vocabulary import END, PAD, Vocabulary

#: The id of a full stop.
STOP = 5


def test_the_reward_is_cider_d_of_the_words_and_the_end() -> None:
    random = np.random.default_rng(0)

    def sentence() -> list[int]:
        return [int(word) for word in random.integers(STOP, 12, random.integers(2, 9))]

    captions = [[sentence() for _ in range(random.integers(1, 4))] for _ in range(20)]
    spoken = [sentence() for _ in range(20)]
    owners = torch.tensor([owner for owner, own in enumerate(captions) for _ in own])
    reward = CiderReward(_ids([each for own in captions for each in own]), owners, [STOP])

    def said(words: list[int]) -> list[str]:
        return [*(str(word) for word in words if word != STOP), "end"]

    expected = cider_d([said(words) for words in spoken], [[said(each) for each in own] for own in captions])
    assert reward(_ids(spoken), torch.arange(20)).tolist() == pytest.approx(expected, abs=1e-5)
    # Of its own caption alone, a sentence has the greatest.
    assert float(reward(_ids([[7, 8, 9, 6]]), torch.tensor([0]))) < 10
    alone = CiderReward(_ids([[7, 8, 9, 6], [10, 11, 6, 6]]), torch.tensor([0, 1]))
    assert float(alone(_ids([[7, 8, 9, 6]]), torch.tensor([0]))) == pytest.approx(10, abs=1e-4)


def test_a_sentence_is_compared_with_the_others_of_its_picture() -> None:
    found = advantages(torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]]))
    assert found.tolist() == [[1 - 4.0, 2 - 3.5, 6 - 1.5], [0, 0, 0]]


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_sampled_sentences_have_their_likelihood_and_end_once(cell: str) -> None:
    torch.manual_seed(0)
    vocabulary = Vocabulary({"a": 3, "dog": 2, ".": 1})
    assert silent_ids(vocabulary) == vocabulary.encode(["."])
    network = Captioner(5, len(vocabulary), CaptionerRecipe(cell=cell, word=4, hidden=6)).eval()  # type: ignore[arg-type]
    pictures = torch.randn(1, 5).expand(4000, -1)
    with torch.no_grad():
        ids, chances = network.sample(pictures, 6)
        logits = network.logits(pictures, ids)
    # The start, unknown words and padding are never said, nor nothing at all.
    logits[..., :END] = -torch.inf
    logits[:, 0, END] = -torch.inf
    every = logits.log_softmax(-1).gather(2, ids[..., None])[..., 0].masked_fill(ids == PAD, 0.0)
    torch.testing.assert_close(chances, every, atol=1e-5, rtol=1e-5)
    ended = (ids == END).cumsum(1) > 0
    assert (ids[:, 1:][ended[:, :-1]] == PAD).all()
    assert (ids[~ended] > END).all()
    # They are drawn as often as they are likely.
    first = logits[0, 0].softmax(-1)
    drawn = torch.bincount(ids[:, 0], minlength=len(vocabulary)) / len(ids)
    torch.testing.assert_close(drawn, first, atol=0.03, rtol=0)


def _ids(sentences: list[list[int]]) -> torch.Tensor:
    ids = torch.full((len(sentences), 12), PAD)
    for row, words in zip(ids, sentences, strict=True):
        row[: len(words) + 1] = torch.tensor([*words, END])
    return ids
