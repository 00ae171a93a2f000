"""How far a sentence's phrases are from an image's regions, in an embedding space of regions and phrases.

Eq. 1 of Flickr30k Entities (section 4.2), and d_rp of two-branch networks (section 5.6). Lower is better.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.floating[Any]]


def region_phrase_distances(
    regions: Floats,
    region_offsets: ArrayLike,
    phrases: Floats,
    mentions: ArrayLike,
    mention_offsets: ArrayLike,
    *,
    gamma: float = 1.5,
    squared: bool = True,
    device: torch.device | str = "cpu",
    memory: int = 2**28,
) -> NDArray[np.float32]:
    r"""D_RP of every image and sentence, (images, sentences); eq. 1 of Flickr30k Entities:

    .. math:: D_{RP} = \frac{1}{L^\gamma} \sum_{i=1}^{L} \min_r \|p_i - r\|^2

    d_rp of two-branch networks is the plain mean of distances: `gamma=1, squared=False`. A sentence without phrases
    has no such distance: its column is NaN.

    Phrases repeat ("a man"): each is compared with the regions once, however many sentences mention it.

    Args:
        regions: embedded regions of all images, (regions, dimensions), those of an image together.
        region_offsets: (images + 1,): image i has rows region_offsets[i] to region_offsets[i + 1].
        phrases: embedded phrases, (phrases, dimensions), each once.
        mentions: rows of `phrases` that the sentences mention, (mentions,), those of a sentence together.
        mention_offsets: (sentences + 1,), as region_offsets.
        memory: bytes of region × phrase distances at a time.
    """
    starts, mentioned = np.asarray(region_offsets, np.int64), np.asarray(mentions, np.int64)
    ends = np.asarray(mention_offsets, np.int64)
    if (np.diff(starts) < 1).any():
        raise ValueError(f"image {int(np.argmax(np.diff(starts) < 1))} has no regions")
    if starts[0] != 0 or starts[-1] != len(regions) or ends[0] != 0 or ends[-1] != len(mentioned):
        raise ValueError("offsets must begin at 0 and end at the number of regions, or of mentions")
    if len(mentioned) and not (mentioned.min() >= 0 and mentioned.max() < len(phrases)):
        raise ValueError(f"mentions must be rows of phrases, within 0 and {len(phrases) - 1}")
    lengths = np.diff(ends).astype(np.float64)
    with np.errstate(divide="ignore"):
        weights = np.repeat(lengths**-gamma, np.diff(ends))
    sums = csr_array((weights, mentioned, ends), shape=(len(lengths), len(phrases)))
    distances = np.empty((len(starts) - 1, len(lengths)), dtype=np.float32)
    for image, best in enumerate(_nearest(regions, starts, phrases, device, memory)):
        distances[image] = sums @ (best if squared else np.sqrt(best))
    distances[:, lengths == 0] = np.nan
    return distances


def _nearest(
    regions: Floats, starts: NDArray[np.int64], phrases: Floats, device: torch.device | str, memory: int
) -> Iterator[Floats]:
    """For each image in turn, the squared distance of each phrase to its nearest region, (phrases,)."""
    columns = torch.from_numpy(np.ascontiguousarray(phrases, np.float32)).to(device)
    lengths = (columns**2).sum(dim=1)
    widest = max(1, memory // (4 * int(np.diff(starts).max())))
    for start, stop in itertools.pairwise(starts):
        rows = torch.from_numpy(np.array(regions[start:stop], np.float32)).to(device)
        offsets = (rows**2).sum(dim=1)
        nearest = [torch.addmm(offsets, part, rows.T, alpha=-2).amin(dim=1) for part in torch.split(columns, widest)]
        yield (torch.cat(nearest) + lengths).clamp(min=0).cpu().numpy()
