"""Regions and words as the fused kernel of the aligner reads them (`deixis.papers.dvsa.fast.product_kernel`).

A tile is `Tiles.words` words by `Tiles.slots` regions of each of `Tiles.pictures` pictures. Its columns run over the
pictures first, so that the best of a picture's slots is taken within a thread; further regions of the same pictures
follow until all are seen. So hardly a column is spent on padding, and an absent region is a copy of one that is there,
which changes no maximum. Texts lie whole in the rows of a tile, so that their sums are whole there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Tiles(NamedTuple):
    """How the work is cut; `stages` and `warps` are Triton's. Powers of two, `words` and `pictures` at least 16."""

    words: int = 128
    pictures: int = 64
    #: Regions of a picture side by side: 1, 2 or 4.
    slots: int = 4
    depth: int = 64
    stages: int = 4
    warps: int = 8
    #: Picture blocks that go through all words together, so that they stay in the cache of the card.
    group: int = 4
    #: One loop over all regions and depths, not one within the other: loads never wait at the seam.
    flat: bool = True
    #: Loads by the tensor memory accelerator (Hopper and later).
    descriptors: bool = True


class PackedRegions(NamedTuple):
    rows: Tensor  # (blocks × parts × slots × pictures of a tile, dim)
    pictures: int
    parts: int
    tiles: Tiles


class PackedWords(NamedTuple):
    rows: Tensor  # (bins × words of a tile, dim)
    slot: Tensor  # (bins × words of a tile,) int32: the place of a word's text in its bin, −1 for no word
    piece: Tensor  # (bins, texts of a bin) int32: the column of each, −1 for none
    pieces: int
    text_of: Tensor | None  # (pieces,), None where every text is one piece, in order
    texts: int


def packed_regions(regions: Tensor, present: Tensor, tiles: Tiles) -> PackedRegions:
    """Regions (images, regions, dim), each image with one at least, as the kernel reads them."""
    images, count, dim = regions.shape
    parts, blocks = -(-count // tiles.slots), -(-images // tiles.pictures)
    numbers = torch.arange(count, device=regions.device)
    indices = torch.where(present, numbers, present.int().argmax(1, keepdim=True))
    # The last ones again until the slots are full.
    indices = indices[:, torch.arange(parts * tiles.slots, device=regions.device).clamp(max=count - 1)]
    rows = regions.new_zeros(blocks * tiles.pictures, parts * tiles.slots, _whole(dim, tiles), dtype=torch.bfloat16)
    rows[:images, :, :dim] = regions.gather(1, indices[..., None].expand(-1, -1, dim)).to(torch.bfloat16)
    laid = rows.view(blocks, tiles.pictures, parts, tiles.slots, -1).permute(0, 2, 3, 1, 4)
    return PackedRegions(laid.reshape(-1, rows.shape[-1]), images, parts, tiles)


def packed_words(words: Tensor, text: Tensor, texts: int, tiles: Tiles) -> PackedWords:
    """Words (words, dim) as the kernel reads them; `text` (words,), ascending, is the text of each word.

    A text that is longer than a tile goes in pieces.
    """
    lengths = torch.bincount(text, minlength=texts).cpu().numpy()
    pieces = [
        (owner, start, min(tiles.words, int(length) - start))
        for owner, length in enumerate(lengths)
        for start in range(0, int(length), tiles.words)
    ]
    first = np.concatenate([[0], np.cumsum(lengths)])
    bins = fill_bins([length for _, _, length in pieces], tiles.words)
    most = max(16, 1 << (max(map(len, bins), default=1) - 1).bit_length())
    source = np.full(len(bins) * tiles.words, -1, np.int64)
    slot = np.full(len(source), -1, np.int32)
    piece = np.full((len(bins), most), -1, np.int32)
    for line, line_pieces in enumerate(bins):
        first_word = line * tiles.words
        for within, index in enumerate(line_pieces):
            of, start, length = pieces[index]
            source[first_word : first_word + length] = np.arange(first[of] + start, first[of] + start + length)
            slot[first_word : first_word + length] = within
            piece[line, within] = index
            first_word += length
    device = words.device
    rows = words.new_zeros(len(source), _whole(words.shape[1], tiles), dtype=torch.bfloat16)
    filled = torch.from_numpy(np.flatnonzero(source >= 0)).to(device)
    rows[filled, : words.shape[1]] = words[torch.from_numpy(source[source >= 0]).to(device)].to(torch.bfloat16)
    owners = [owner for owner, _, _ in pieces]
    return PackedWords(
        rows,
        torch.from_numpy(slot).to(device),
        torch.from_numpy(piece).to(device),
        len(pieces),
        None if owners == list(range(texts)) else torch.tensor(owners, device=device, dtype=torch.int64),
        texts,
    )


def fill_bins(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Numbers of lengths, in bins of at most `capacity` together: the longest first, each where it fits best."""
    bins: list[list[int]] = []
    #: Bins by the room that is left in them.
    room: list[list[int]] = [[] for _ in range(capacity + 1)]
    for longest in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[longest]
        left = next((left for left in range(length, capacity + 1) if room[left]), None)
        if left is None:
            bins.append([])
            chosen, left = len(bins) - 1, capacity
        else:
            chosen = room[left].pop()
        bins[chosen].append(longest)
        room[left - length].append(chosen)
    return bins


def _whole(dim: int, tiles: Tiles) -> int:
    return -(-dim // tiles.depth) * tiles.depth
