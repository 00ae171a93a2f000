"""The H-LSTM (section 3.2.1, eqs. 2 to 8) for a whole mini-batch of trees; `reference.py` has it node by node.

`fast/levels.py` computes all nodes of one height together. A child-sum Tree-LSTM is an H-LSTM with one kind of child, a
chain LSTM one whose trees are chains.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deixis.papers.hm_lstm.fast.forest import Plan, Shape
from deixis.papers.hm_lstm.fast.levels import Levels, fused_levels


class TreeLSTM(nn.Module):
    """Hidden states of all nodes of a plan.

    `weight` is W, `recurrent` is Û and Ū (for noun phrases first; a single one if children are treated alike), `bias`
    is b, each for the gates i, o, u, f in this order. With `difference`, `recurrent` is Ū alone and `difference` Û − Ū,
    initially 0, which makes it a Tree-LSTM.
    """

    def __init__(self, inputs: int, hidden: int, shape: Shape = "h-lstm", *, difference: bool = False) -> None:
        super().__init__()
        kinds = 2 if shape == "h-lstm" and not difference else 1
        self.hidden = hidden
        self.weight = nn.Parameter(torch.empty(inputs, 4 * hidden))
        self.recurrent = nn.Parameter(torch.empty(kinds, hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        # As torch.nn.LSTM, except that forget gates are open at first, so that deep trees keep their leaves.
        for parameter in (self.weight, self.recurrent):
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
        with torch.no_grad():
            self.bias[3 * hidden :] = 1.0
        self.difference = nn.Parameter(torch.zeros(1, hidden, 4 * hidden)) if difference else None

    def forward(self, words: Tensor, plan: Plan) -> Tensor:
        """Hidden states `(plan.rows, hidden)`.

        Args:
            words: the vectors of `plan.word`, `(words, inputs)`.
        """
        with torch.autocast(words.device.type, enabled=False):
            inputs = words.to(self.weight.dtype) @ self.weight
            levels = fused_levels(words.device) or Levels
            recurrent: Tensor = self.recurrent
            if self.difference is not None:
                recurrent = torch.cat([recurrent + self.difference, recurrent])
            hidden: Tensor = levels.apply(inputs, self.bias, recurrent, plan)
        return hidden
