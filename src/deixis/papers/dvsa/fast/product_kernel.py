"""S_kl = Σ_t max_i v_i·s_t of all pairs in one kernel (Triton): no product of a region and a word is written to memory.

Vectors are bfloat16, sums float32; `deixis.papers.dvsa.fast.packing` lays them out. The sums over a text's words are
products with the words' membership, in three parts of bfloat16 that make up float32. Where Triton or a GPU for it is
missing, `deixis.papers.dvsa.fast.products.pooled_products` does the same in blocks.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from deixis.errors import DeixisError
from deixis.papers.dvsa.fast.packing import PackedRegions, PackedWords, Tiles


def available(device: torch.device) -> bool:
    """Whether the kernel runs there: an NVIDIA GPU from Ampere on."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def default_tiles(device: torch.device) -> Tiles:
    """The tiles that were fastest on Hopper; smaller ones, without its tensor memory accelerator, before it."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return Tiles()
    return Tiles(pictures=32, depth=32, stages=3, descriptors=False)


def best_product_sums(regions: PackedRegions, words: PackedWords) -> Tensor:
    """S (images, texts), float32; 0 for a text without words."""
    tiles = regions.tiles
    if regions.rows.shape[1] != words.rows.shape[1]:
        raise DeixisError(f"regions have {regions.rows.shape[1]} numbers, words {words.rows.shape[1]}")
    bins, most = words.piece.shape
    out = regions.rows.new_zeros(regions.pictures, words.pieces, dtype=torch.float32)
    if bins:
        left: Any = words.rows
        right: Any = regions.rows
        if tiles.descriptors:
            left = TensorDescriptor.from_tensor(left, [tiles.words, tiles.depth])
            right = TensorDescriptor.from_tensor(right, [tiles.slots * tiles.pictures, tiles.depth])
        _score[(bins * triton.cdiv(regions.pictures, tiles.pictures),)](
            left,
            right,
            words.slot,
            words.piece,
            out,
            regions.pictures,
            bins,
            out.stride(0),
            DIM=regions.rows.shape[1],
            PARTS=regions.parts,
            WORDS=tiles.words,
            PICTURES=tiles.pictures,
            SLOTS=tiles.slots,
            DEPTH=tiles.depth,
            TEXTS=most,
            GROUP=tiles.group,
            FLAT=tiles.flat,
            DESCRIPTORS=tiles.descriptors,
            num_stages=tiles.stages,
            num_warps=tiles.warps,
        )
    if words.text_of is None:
        return out
    return out.new_zeros(regions.pictures, words.texts).index_add_(1, words.text_of, out)


@triton.jit
def _load(source, row, column, ROWS: tl.constexpr, DEPTH: tl.constexpr, DIM: tl.constexpr, DESCRIPTORS: tl.constexpr):
    if DESCRIPTORS:
        return source.load([row, column])
    else:
        rows = row.to(tl.int64) + tl.arange(0, ROWS)
        return tl.load(source + rows[:, None] * DIM + (column + tl.arange(0, DEPTH))[None, :])


@triton.jit
def _best_half(products, ROWS: tl.constexpr, HALF: tl.constexpr):
    """(ROWS, HALF): the greater of the first and the second half of the columns."""
    left, right = tl.split(tl.permute(tl.reshape(products, (ROWS, 2, HALF)), (0, 2, 1)))
    return tl.maximum(left, right)


@triton.jit
def _best_slot(products, ROWS: tl.constexpr, PICTURES: tl.constexpr, SLOTS: tl.constexpr):
    """(ROWS, PICTURES) of columns that run over pictures within slots."""
    tl.static_assert(SLOTS == 1 or SLOTS == 2 or SLOTS == 4)
    if SLOTS == 4:
        return _best_half(_best_half(products, ROWS, 2 * PICTURES), ROWS, PICTURES)
    elif SLOTS == 2:
        return _best_half(products, ROWS, PICTURES)
    else:
        return products


# One kernel for any number of pictures and texts.
@triton.jit(do_not_specialize=["pictures", "bins", "out_stride"])
def _score(
    words,
    regions,
    slot_of,
    piece_of,
    out,
    pictures,
    bins,
    out_stride,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    WORDS: tl.constexpr,
    PICTURES: tl.constexpr,
    SLOTS: tl.constexpr,
    DEPTH: tl.constexpr,
    TEXTS: tl.constexpr,
    GROUP: tl.constexpr,
    FLAT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    COLUMNS: tl.constexpr = SLOTS * PICTURES
    STEPS: tl.constexpr = DIM // DEPTH
    program = tl.program_id(0)
    first = program // (bins * GROUP) * GROUP
    wide = min(tl.cdiv(pictures, PICTURES) - first, GROUP)
    block = first + program % (bins * GROUP) % wide
    line = program % (bins * GROUP) // wide

    best = tl.full((WORDS, PICTURES), float("-inf"), tl.float32)
    row = block * PARTS * COLUMNS
    if FLAT:
        products = tl.zeros((WORDS, COLUMNS), tl.float32)
        for step in tl.range(0, PARTS * STEPS):
            offset = step % STEPS * DEPTH
            left = _load(words, line * WORDS, offset, WORDS, DEPTH, DIM, DESCRIPTORS)
            right = _load(regions, row + step // STEPS * COLUMNS, offset, COLUMNS, DEPTH, DIM, DESCRIPTORS)
            products = tl.dot(left, right.T, products)
            if step % STEPS == STEPS - 1:
                best = tl.maximum(best, _best_slot(products, WORDS, PICTURES, SLOTS))
                products = tl.zeros((WORDS, COLUMNS), tl.float32)
    else:
        for part in tl.range(0, PARTS):
            products = tl.zeros((WORDS, COLUMNS), tl.float32)
            for step in tl.range(0, STEPS):
                left = _load(words, line * WORDS, step * DEPTH, WORDS, DEPTH, DIM, DESCRIPTORS)
                right = _load(regions, row + part * COLUMNS, step * DEPTH, COLUMNS, DEPTH, DIM, DESCRIPTORS)
                products = tl.dot(left, right.T, products)
            best = tl.maximum(best, _best_slot(products, WORDS, PICTURES, SLOTS))

    slot = tl.load(slot_of + line * WORDS + tl.arange(0, WORDS))
    member = tl.where(slot[:, None] == tl.arange(0, TEXTS)[None, :], 1.0, 0.0).to(tl.bfloat16)
    transposed = tl.trans(best)
    high = transposed.to(tl.bfloat16)
    middle = (transposed - high.to(tl.float32)).to(tl.bfloat16)
    low = (transposed - high.to(tl.float32) - middle.to(tl.float32)).to(tl.bfloat16)
    totals = tl.dot(low, member, tl.dot(middle, member, tl.dot(high, member)))
    picture = block * PICTURES + tl.arange(0, PICTURES)
    piece = tl.load(piece_of + line * TEXTS + tl.arange(0, TEXTS))
    offset = out + picture.to(tl.int64)[:, None] * out_stride + piece[None, :]
    tl.store(offset, totals, mask=(picture < pictures)[:, None] & (piece >= 0)[None, :])
