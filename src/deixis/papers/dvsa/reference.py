"""DVSA one word, one region and one sentence at a time, as the equations are printed.

Slow, and easy to check against the paper; the batched code of this folder is held to it by the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from deixis.papers.dvsa.captioner import Captioner
from deixis.papers.dvsa.fast.products import Pool
from deixis.papers.dvsa.network import BidirectionalReader
from deixis.text.vocabulary import START


def read_words(brnn: BidirectionalReader, words: Tensor) -> Tensor:
    """The BRNN over one sentence: word vectors `(words, word)` to s `(words, dim)`; f is ReLU.

    e_t = f(W_e x_t + b_e); h^f_t = f(e_t + W_f h^f_{t-1} + b_f); h^b_t = f(e_t + W_b h^b_{t+1} + b_b);
    s_t = f(W_d (h^f_t + h^b_t) + b_d).
    """

    def f(value: Tensor) -> Tensor:
        return value.clamp(min=0)

    (W_f, W_b), (b_f, b_b) = brnn.recurrent.transpose(1, 2), brnn.bias[:, 0]
    e = [f(brnn.enter.weight @ x + brnn.enter.bias) for x in words]
    forward, backward = [torch.zeros_like(b_f)], [torch.zeros_like(b_b)]
    for e_t in e:
        forward.append(f(e_t + W_f @ forward[-1] + b_f))
    for e_t in reversed(e):
        backward.append(f(e_t + W_b @ backward[-1] + b_b))
    states = zip(forward[1:], reversed(backward[1:]), strict=True)
    return torch.stack([f(brnn.leave.weight @ (h_f + h_b) + brnn.leave.bias) for h_f, h_b in states])


def pair_scores(regions: Tensor, present: Tensor, words: Tensor, text: Tensor, texts: int, pool: Pool) -> Tensor:
    """Scores `(images, texts)` by loops; `pool` "best" is S_kl = Σ_t max_i v_i·s_t, eq. 1 of the supplement.

    Args:
        regions: `(images, regions, dim)`, of which those in `present` `(images, regions)` exist.
        words: `(words, dim)`, and in `text` `(words,)` the sentence of each.
        pool: what the products of a word with an image's regions are reduced to (see `fast.products.Pool`).
    """
    rows = []
    for image, exists in zip(regions, present, strict=True):
        totals = [words.new_zeros(()) for _ in range(texts)]
        for word, sentence in zip(words, text.tolist(), strict=True):
            products = [region @ word for region, real in zip(image, exists.tolist(), strict=True) if real]
            if pool == "best":
                totals[sentence] = totals[sentence] + torch.stack(products).max()
            else:
                shift = 0 if pool == "positive" else 1
                totals[sentence] = totals[sentence] + sum(torch.clamp(value + shift, min=0) for value in products)
        rows.append(torch.stack(totals))
    return torch.stack(rows)


def chain_score(scores: Tensor, states: Sequence[int], beta: float) -> float:
    """The score of one assignment of regions to words: Σ_t v_{a_t}·s_t + β Σ_t 1[a_t = a_{t+1}].

    Args:
        scores: `(words, regions)`.
        states: the region a_t of each word.
    """
    unary = sum(float(scores[t, state]) for t, state in enumerate(states))
    return unary + beta * sum(one == other for one, other in pairwise(states))


def best_chain_score(scores: Tensor, beta: float) -> float:
    """The greatest `chain_score` over all assignments, tried one by one."""
    words, regions = scores.shape
    return max(chain_score(scores, states, beta) for states in product(range(regions), repeat=words))


def caption_log_likelihood(captioner: Captioner, image: Tensor, word_ids: Sequence[int]) -> float:
    """log p(words | image) of one caption; the image enters at t = 1 alone.

    h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1[t = 1] W_hi CNN(I)); y_t = softmax(W_oh h_t + b_o). With an
    LSTM in place of f the image is added to all gates in the same way.
    """
    cell: Any = captioner.recurrence
    W_hx, W_hh, b_h = cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0 + cell.bias_hh_l0
    h = memory = W_hh.new_zeros(W_hh.shape[1])
    total = 0.0
    for t, (word, following) in enumerate(zip([START, *word_ids], word_ids, strict=False), start=1):
        gates = W_hx @ captioner.words.weight[word] + W_hh @ h + b_h
        if t == 1:
            gates = gates + captioner.picture.weight @ image
        if isinstance(cell, torch.nn.RNN):
            h = gates.clamp(min=0)
        else:
            i, f, g, o = gates.view(4, -1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(memory)
        log_y = torch.log_softmax(captioner.output.weight @ h + captioner.output.bias, 0)
        total += float(log_y[following].detach())
    return total
