"""The score of a text and a picture, by which search ranks and calibrates.

It is the cosine of the embeddings. If the model has cells and words, the weighted mean over the text's words of the
cosine with the best cell of the picture is added (`deixis.base.word_cells`, after the alignment of the DVSA paper).
"""

from __future__ import annotations

import numpy as np

from deixis.adapters.search_model import Cells, Pictures, Rows, Texts

#: Number of values converted to float32 at a time.
BLOCK = 1 << 22


def scores(texts: Texts, pictures: Pictures) -> Rows:
    """`(texts, pictures)`; the cosine alone if there are no words or no cells."""
    whole: Rows = texts.rows @ pictures.rows.T
    return whole + best_cells(texts.words, pictures.cells) if texts.words.size and pictures.cells.size else whole


def best_cells(words: Rows, cells: Cells) -> Rows:
    """`(texts, pictures)`: the sum over a text's words of weight times cosine with the best cell.

    A word's weight is the length of its vector; padding is zero.
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
