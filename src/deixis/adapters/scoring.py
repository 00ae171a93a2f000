"""How well a text meets a picture: the one score that search ranks, calibrates and tells by.

The cosine of the embeddings, and beside it, where the model has cells and words, the weighted mean over the text's
words of the cosine of each with the picture's best cell (`deixis.base.word_cells`, after the DVSA paper's alignment).
"""

from __future__ import annotations

import numpy as np

from deixis.adapters.search_model import Cells, Pictures, Rows, Texts

#: Numbers of cells turned into float32 at a time.
BLOCK = 1 << 22


def scores(texts: Texts, pictures: Pictures) -> Rows:
    """`(texts, pictures)`; the cosine alone of what has no words, or no cells."""
    whole: Rows = texts.rows @ pictures.rows.T
    return whole + best_cells(texts.words, pictures.cells) if texts.words.size and pictures.cells.size else whole


def best_cells(words: Rows, cells: Cells) -> Rows:
    """`(texts, pictures)`: for every word its best cell's cosine, times its weight, and these added up.

    A word that is none gets 0 from every cell, and a word's weight is in its vector: the best of the weighted products
    is the weighted best product.
    """
    texts, longest, numbers = words.shape
    flat = words.reshape(-1, numbers)
    real = np.flatnonzero(flat.any(1))
    flat = flat[real]
    having, starts = np.unique(real // longest, return_index=True)
    found = np.zeros((len(cells), texts), np.float32)
    step = max(1, BLOCK // (cells.shape[1] * max(numbers, len(flat))))
    for start in range(0, len(cells) if len(real) else 0, step):
        part = cells[start : start + step].reshape(-1, numbers).astype(np.float32)
        products = part @ flat.T
        products /= np.maximum(np.sqrt(np.einsum("cn,cn->c", part, part)), 1e-12)[:, None]
        best = products.reshape(-1, cells.shape[1], len(flat)).max(1)
        found[start : start + step, having] = np.add.reduceat(best, starts, axis=1)
    return found.T
