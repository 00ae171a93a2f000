"""The H-LSTM (section 3.2.1, eqs. 2–8) over trees of any shape, level by level for a whole mini-batch.

The nodes of a `Plan` are ordered by their height. The network takes one matrix product a level for each kind of child,
forward and backward (`deixis.papers.hm_lstm.fast.levels`). A child-sum Tree-LSTM has one kind of child, a chain LSTM
a forest of chains.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deixis.papers.hm_lstm.fast.forest import Plan, Shape
from deixis.papers.hm_lstm.fast.levels import Levels, fused_levels


class TreeLSTM(nn.Module):
    """Hidden states of all nodes of a plan.

    `weight` holds W, `recurrent` Û and Ū (noun phrases first; one alone where children are treated alike), `bias` b,
    each for the gates i, o, u, f in this order. With `difference`, `recurrent` holds Ū alone and `difference` Û − Ū,
    which begins at 0: as a Tree-LSTM.
    """

    def __init__(self, inputs: int, hidden: int, shape: Shape = "h-lstm", *, difference: bool = False) -> None:
        super().__init__()
        kinds = 2 if shape == "h-lstm" and not difference else 1
        self.hidden = hidden
        self.weight = nn.Parameter(torch.empty(inputs, 4 * hidden))
        self.recurrent = nn.Parameter(torch.empty(kinds, hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        # As torch's own LSTM; but forget gates begin rather open, so that deep trees keep their leaves.
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
