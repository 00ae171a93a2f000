"""The fused kernel on a GPU against float64; elsewhere its layout alone is tested (`test_alignment_packing`)."""

from __future__ import annotations

import pytest
import torch

from tests.papers.dvsa.test_alignment_packing import naive

pytest.importorskip("triton", reason="the fused kernel needs Triton")
if not torch.cuda.is_available():
    pytest.skip("the fused kernel needs a GPU", allow_module_level=True)

from deixis.papers.dvsa.fast.packing import Tiles, packed_regions, packed_words
from deixis.papers.dvsa.fast.product_kernel import available, best_product_sums, default_tiles
from deixis.papers.dvsa.network import AlignmentNetwork, AlignmentRecipe

CUDA = torch.device("cuda")


@pytest.mark.parametrize("images", [1, 100])
@pytest.mark.parametrize("tiles", [default_tiles(CUDA), Tiles(pictures=32, depth=32, stages=3, descriptors=False)])
def test_it_is_exact(tiles: Tiles, images: int) -> None:
    if not available(CUDA):
        pytest.skip("this GPU is too old for the kernel")
    generator = torch.Generator(CUDA).manual_seed(0)
    regions = torch.randn(images, 20, 300, generator=generator, device=CUDA).bfloat16()
    present = torch.rand(images, 20, generator=generator, device=CUDA) > 0.3
    present[:, 0] = True
    lengths = torch.randint(0, 40, (200,), generator=generator, device=CUDA)
    lengths[5] = 300
    text = torch.repeat_interleave(torch.arange(200, device=CUDA), lengths)
    words = torch.randn(len(text), 300, generator=generator, device=CUDA).bfloat16()
    found = best_product_sums(packed_regions(regions, present, tiles), packed_words(words, text, 200, tiles))
    expected = naive(regions, present, words, text, 200)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_a_network_in_half_precision_scores_as_it_does_without_the_kernel() -> None:
    if not available(CUDA):
        pytest.skip("this GPU is too old for the kernel")
    torch.manual_seed(0)
    network = AlignmentNetwork(7, 30, AlignmentRecipe(dim=96, word=8), rounded=True).eval()
    ids = torch.randint(0, 30, (50, 12, 1)).sort(1, descending=True).values
    regions, present = torch.randn(40, 20, 7), torch.rand(40, 20) > 0.3
    present[:, 0] = True
    expected = network.score_all(regions, present, ids)
    found = network.cuda().score_all(regions.cuda(), present.cuda(), ids.cuda()).cpu()
    # Vectors that the two devices round to different neighbours are a few thousandths apart.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 * float(expected.abs().max()))
