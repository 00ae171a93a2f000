"""Gated fusion (eq. 2) and sentence generation (eq. 3) of one image, as printed.

Slow, and easy to check against the paper; the tests hold `network.py` to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deixis.papers.concepts_order.network import GatedFusion, SentenceGenerator
from deixis.text.vocabulary import END, START


def gated_fusion(fusion: GatedFusion, p: Tensor, x: Tensor) -> Tensor:
    """Eq. 2 for one image: concepts p `(concepts,)` and context x `(context,)` to v `(hidden,)`.

    p̂ = ‖W_l p‖₂, x̂ = ‖W_g x‖₂, t = σ(U_l p + U_g x), v = t ⊙ p̂ + (1 - t) ⊙ x̂, where ‖·‖₂ makes unit length.
    """
    assert fusion.concepts is not None
    assert fusion.context is not None
    assert fusion.concept_gate is not None
    assert fusion.context_gate is not None
    x = functional.normalize(x, dim=0)
    p_hat, x_hat = fusion.concepts.weight @ p, fusion.context.weight @ x
    p_hat, x_hat = functional.normalize(p_hat, dim=0), functional.normalize(x_hat, dim=0)
    t: Tensor = torch.sigmoid(fusion.concept_gate.weight @ p + fusion.context_gate.weight @ x)
    return t * p_hat + (1 - t) * x_hat


def sentence_negative_log_likelihood(
    generator: SentenceGenerator, v: Tensor, word_ids: Sequence[int], read_instead: int | None = None
) -> Tensor:
    """-log P(sentence | v) by eq. 3: an LSTM that starts at h_0 = v, and word scores F^T (map of h_t) + bias.

    Args:
        v: the image `(hidden,)`.
        word_ids: the sentence without its end.
        read_instead: a word that is read in place of every word except the start token.
    """
    F: Tensor = generator.words.weight
    lstm: Any = generator.recurrence
    bias = lstm.bias_ih_l0 + lstm.bias_hh_l0
    h, c = v, torch.zeros_like(v)
    last, total = START, v.new_zeros(())
    for word in [*word_ids, END]:
        i, f, candidate, o = (lstm.weight_ih_l0 @ F[last] + lstm.weight_hh_l0 @ h + bias).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(candidate)
        h = torch.sigmoid(o) * torch.tanh(c)
        scores = F @ generator.map(h) + generator.bias
        total = total - torch.log_softmax(scores, 0)[word]
        last = word if read_instead is None else read_instead
    return total
