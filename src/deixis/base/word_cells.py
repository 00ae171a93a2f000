"""Pictures and sentences compared as wholes, and by the best matches of their cells and words.

As in DVSA's alignment (S_kl = Σ_t max_i v_i·s_t), with unit vectors and a learned weight of every word, and beside
the cosine of picture and sentence. Beyond the papers; learned by `deixis.base.pictures_task`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Words(NamedTuple):
    """The words of `texts` texts, one after another."""

    vectors: Tensor  # (words, fine), unit length
    weights: Tensor  # (words,), of one sum in every text
    text: Tensor  # (words,), to which each belongs
    texts: int


def best_cells(cells: Tensor, words: Words) -> Tensor:
    """`(pictures, texts)`: the weighted mean over a text's words of the cosine of each with the picture's best cell.

    Args:
        cells: `(pictures, cells, fine)`, unit length.
    """
    pictures, count, fine = cells.shape
    products = (cells.reshape(pictures * count, fine) @ words.vectors.T).reshape(pictures, count, -1)
    best = products.amax(1) * words.weights
    return best.new_zeros(pictures, words.texts).index_add(1, words.text, best)
