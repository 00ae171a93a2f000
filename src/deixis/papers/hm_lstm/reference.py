"""The H-LSTM node by node (section 3.2.1, eqs. 2 to 8), and correspondences as printed (section 3.3).

Slow, and easy to check against the paper; the tests hold `tree_lstm.py` and `correspondences.py` to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deixis.papers.hm_lstm.fast.forest import NOUN_PHRASE
from deixis.papers.hm_lstm.tree_lstm import TreeLSTM
from deixis.text.trees import Tree


def node_states(
    lstm: TreeLSTM, word_vectors: Tensor, tree: Tree, word_ids: Sequence[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Hidden state h and memory c of every node of a tree, by the node's `id`.

    Hatted symbols of the paper belong to noun-phrase children, barred ones to all others. With one kind of child
    (a child-sum Tree-LSTM) both share their weights; with `lstm.difference`, Û is Ū plus that difference.

    Args:
        word_vectors: `(words, inputs)`.
        word_ids: the row of each token of the tree in `word_vectors`.
    """
    hidden = lstm.hidden
    W_i, W_o, W_u, W_f = lstm.weight.chunk(4, 1)
    b_i, b_o, b_u, b_f = lstm.bias.chunk(4)
    all_hat, all_bar = lstm.recurrent[0], lstm.recurrent[-1]
    if lstm.difference is not None:
        all_hat = all_bar + lstm.difference[0]
    U_hat, U_bar = all_hat.chunk(4, 1), all_bar.chunk(4, 1)
    states: dict[int, tuple[Tensor, Tensor]] = {}

    def visit(node: Tree) -> tuple[Tensor, Tensor]:
        # Only leaves have a word.
        x = word_vectors[word_ids[node.token]] if node.is_leaf else word_vectors.new_zeros(word_vectors.shape[1])
        children = [(is_noun_phrase(child), *visit(child)) for child in node.children]
        zero = word_vectors.new_zeros(hidden)
        h_hat = sum((h for noun, h, _ in children if noun), zero)
        h_bar = sum((h for noun, h, _ in children if not noun), zero)
        i = torch.sigmoid(x @ W_i + h_hat @ U_hat[0] + h_bar @ U_bar[0] + b_i)
        o = torch.sigmoid(x @ W_o + h_hat @ U_hat[1] + h_bar @ U_bar[1] + b_o)
        u = torch.tanh(x @ W_u + h_hat @ U_hat[2] + h_bar @ U_bar[2] + b_u)
        c = i * u
        for noun, h, c_child in children:
            f = torch.sigmoid(x @ W_f + h @ (U_hat if noun else U_bar)[3] + b_f)
            c = c + f * c_child
        states[id(node)] = (o * torch.tanh(c), c)
        return states[id(node)]

    visit(tree)
    return states


def best_regions(v: Tensor, h: Tensor) -> tuple[list[int], list[float]]:
    """Section 3.3: for each phrase the region of its image with the largest s_ij = v_i · h_j, and that confidence.

    Args:
        v: `(regions, d)` unit embeddings of the image and its regions.
        h: `(phrases, d)` unit embeddings of its noun phrases.
    """
    regions, confidences = [], []
    for h_j in h:
        s = [float(v_i @ h_j) for v_i in v]
        regions.append(s.index(max(s)))
        confidences.append(max(s))
    return regions, confidences


def is_noun_phrase(node: Tree) -> bool:
    return node.label == NOUN_PHRASE and not node.is_leaf
