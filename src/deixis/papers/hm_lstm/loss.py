"""The loss of the HM-LSTM (section 3.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def contrastive_loss(visual: Tensor, texts: Tensor, contrast: Tensor, margin: float) -> Tensor:
    """Eq. 9 by pair `(pairs,)`.

    Args:
        visual, texts: `(pairs, d)` unit embeddings; those of one place match.
        contrast: `(pairs, pairs)` true where the second is contrasted with the first; symmetric.
    """
    scores = visual @ texts.T
    own = scores.diagonal()[:, None]
    hinges = torch.relu(margin - own + scores) + torch.relu(margin - own + scores.T)
    return torch.where(contrast, hinges, 0).sum(1)
