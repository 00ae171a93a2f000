"""What concepts and order are learned by beside generation: L_mat (paper 3, section 3.4), and exchanged captions.

The second is not in the paper: training captions with two roles exchanged are mismatches of their pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.learning.data import SentenceData
from deixis.learning.losses import Contrast, Direction
from deixis.text.features import TokenIds
from deixis.text.twins import corpus_twins


def structured_ranking(images: Tensor, texts: Tensor, contrast: Contrast, margin: float) -> Tensor:
    """L_mat of section 3.4: Σ_ik max(0, m − s_ii + s_ik) + max(0, m − s_ii + s_ki), over the mismatched pairs.

    Args:
        images, texts: unit rows; s are their cosines.
        contrast: who matches whom, and who does not.
    """
    # Under mixed precision too, half precision would blur the cosines.
    with torch.autocast(images.device.type, enabled=False):
        full = torch.promote_types(images.dtype, torch.float32)
        cosines = images.to(full) @ texts.to(full).T
    total = cosines.new_zeros(())
    for table, direction in ((cosines, contrast.image_to_text), (cosines.T, contrast.text_to_image)):
        total = total + _hinges(table, direction, margin).sum()
    return total


def exchanged_ranking(images: Tensor, texts: Tensor, twins: Tensor, ids: Tensor, margin: float) -> Tensor:
    """Σ max(0, m − s_ii + s_i′) over the captions whose twin i′ has `ids`, meaned over all; rows are unit vectors."""
    hinges = nn.functional.relu(margin - (images * (texts - twins)).sum(1))
    return hinges.masked_fill((ids == 0).all(1), 0.0).mean()


def twin_ids(data: SentenceData, source: Corpus, text: TokenIds) -> Tensor:
    """`(captions, longest)`: the captions of a corpus with roles exchanged (`deixis.text.twins`), 0 = padding."""
    false = {(twins.image, twins.true): tuple(twins.false.split(" ")) for twins in corpus_twins(source)}
    owners = (data.image_ids[number] for number in data.image_of.tolist())
    texts = [false.get((owner, " ".join(own)), ()) for owner, own in zip(owners, data.captions, strict=True)]
    if not any(texts):
        raise DeixisError("loss.order: none of these captions has a twin with exchanged roles")
    return torch.from_numpy(text.transform(texts))


def _hinges(cosines: Tensor, direction: Direction, margin: float) -> Tensor:
    """`(pairs, candidates)`, 0 where a candidate is no mismatch."""
    matched = cosines[direction.anchor, direction.positive]
    hinges = nn.functional.relu(margin - matched[:, None] + cosines[direction.anchor])
    return hinges.masked_fill(~direction.negative, 0.0)
