"""The layout of the fused kernel: tile by tile it comes to the sum over words of the best region's product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deixis.papers.dvsa.fast.packing import PackedRegions, PackedWords, Tiles, fill_bins, packed_regions, packed_words


def naive(regions: Tensor, present: Tensor, words: Tensor, text: Tensor, texts: int) -> Tensor:
    products = torch.einsum("kid,td->kit", regions.double(), words.double())
    best = products.masked_fill(~present[..., None], -torch.inf).amax(1)
    return best.new_zeros(len(regions), texts).index_add(1, text, best)


def tile_by_tile(regions: PackedRegions, words: PackedWords) -> Tensor:
    """What the kernel does, a tile after the other, with its own views of memory."""
    tiles, (bins, most) = regions.tiles, words.piece.shape
    columns = tiles.slots * tiles.pictures
    out = torch.zeros(regions.pictures, words.pieces, dtype=torch.double)
    for line in range(bins):
        own = words.rows[line * tiles.words :][: tiles.words].double()
        member = (words.slot[line * tiles.words :][: tiles.words, None] == torch.arange(most)).double()
        for block in range(len(regions.rows) // (regions.parts * columns)):
            best = torch.full((tiles.words, tiles.pictures), -torch.inf, dtype=torch.double)
            for part in range(regions.parts):
                there = regions.rows[(block * regions.parts + part) * columns :][:columns].double()
                best = torch.maximum(best, (own @ there.T).view(-1, tiles.slots, tiles.pictures).amax(1))
            totals = best.T @ member
            first = block * tiles.pictures
            for slot in range(most):
                if words.piece[line, slot] >= 0:
                    some = totals[: regions.pictures - first, slot]
                    out[first : first + tiles.pictures, words.piece[line, slot]] = some
    if words.text_of is None:
        assert words.pieces == words.texts
        return out
    return out.new_zeros(regions.pictures, words.texts).index_add(1, words.text_of, out)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_all_pairs_are_scored_whatever_the_numbers(slots: int, count: int) -> None:
    tiles = Tiles(words=16, pictures=16, slots=slots, depth=16)
    generator = torch.Generator().manual_seed(0)
    regions = torch.randn(21, count, 40, generator=generator).bfloat16()
    present = torch.rand(21, count, generator=generator) > 0.4
    present[torch.arange(21), torch.randint(count, (21,), generator=generator)] = True
    # Empty texts, and one that is longer than a tile.
    lengths = torch.randint(0, 9, (30,), generator=generator)
    lengths[4], lengths[7] = 37, 0
    text = torch.repeat_interleave(torch.arange(30), lengths)
    words = torch.randn(len(text), 40, generator=generator).bfloat16()
    packed = packed_regions(regions, present, tiles), packed_words(words, text, 30, tiles)
    torch.testing.assert_close(tile_by_tile(*packed), naive(regions, present, words, text, 30))


@pytest.mark.parametrize("lengths", [[3, 5, 2], [0, 20], [20, 0], [0, 0]])
def test_texts_without_words_and_in_pieces_are_distinguished(lengths: list[int]) -> None:
    """As many pieces as texts does not mean that each is one."""
    tiles = Tiles(words=16, pictures=16, depth=16)
    text = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    regions, present = torch.randn(2, 3, 16).bfloat16(), torch.ones(2, 3, dtype=torch.bool)
    words = torch.randn(len(text), 16).bfloat16()
    packed = packed_regions(regions, present, tiles), packed_words(words, text, len(lengths), tiles)
    torch.testing.assert_close(tile_by_tile(*packed), naive(regions, present, words, text, len(lengths)))


@given(st.lists(st.integers(1, 32), max_size=60))
def test_everything_is_in_one_bin_and_none_is_too_full(lengths: list[int]) -> None:
    bins = fill_bins(lengths, 32)
    assert sorted(number for own in bins for number in own) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in own) <= 32 for own in bins)
    # Two bins that would fit into one are never left.
    filled = sorted(sum(lengths[number] for number in own) for own in bins)
    assert len(filled) < 2 or filled[0] + filled[1] > 32


def test_sentences_fill_their_tiles() -> None:
    """As long as Flickr8k's: hardly a row is spent on padding."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.randn(1000, generator=generator) * 3.9 + 11.8).round().clamp(3, 37).int().tolist()
    assert sum(lengths) > 0.99 * 128 * len(fill_bins(lengths, 128))
