"""The scores of all pictures with all sentences: by a fused kernel where there is one, else block by block."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deixis.papers.dvsa.fast.packing import packed_regions, packed_words

if TYPE_CHECKING:
    from deixis.papers.dvsa.network import AlignmentNetwork

#: Texts read together where no gradient is kept.
TEXTS = 1024


@torch.no_grad()
def score_all_pairs(network: AlignmentNetwork, regions: Tensor, present: Tensor, ids: Tensor) -> Tensor:
    """S `(images, texts)` of features `(images, regions, channels)` and fragment ids; texts are read block by block."""
    embedded = torch.cat([network.embed_regions(part.float()) for part in torch.split(regions, TEXTS)])
    kernel = fused_kernel(embedded.device) if network.rounded and network.recipe.score == "best" else None
    if kernel is not None:
        tiles = kernel.default_tiles(embedded.device)
        packed = packed_regions(embedded, present, tiles)
    elif network.rounded:
        embedded = embedded.bfloat16().float()
    blocks = []
    for part in torch.split(ids, TEXTS):
        part = part[:, : max(1, int((part[..., 0] != 0).sum(1).max()))]
        fragments = network.embed_fragments(part)
        if kernel is not None:
            real = part[..., 0] != 0
            words = packed_words(fragments[real], real.nonzero()[:, 0], len(part), tiles)
            blocks.append(kernel.best_product_sums(packed, words))
        else:
            rounded = fragments.bfloat16() if network.rounded else fragments
            blocks.append(network.score(embedded, present, rounded, part))
    return torch.cat(blocks, 1)


def fused_kernel(device: torch.device) -> Any:
    """The module of the fused kernel if it runs here (NVIDIA GPUs with Triton), or None."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    try:
        kernel = import_module("deixis.papers.dvsa.fast.product_kernel")
    except ImportError:  # Triton is too old
        return None
    return kernel if kernel.available(device) else None
