"""Which colours a region has, and which the words of a phrase ask for: "the black dog" beside "the brown dog".

The backbone keeps little of colours, so the picture itself is read again, small: each pixel is assigned softly to a few
learned colours, and their shares are pooled by RoIAlign. What is added to the score of a phrase and a region compares
these shares with the colour words of the phrase, and only with those. Beyond the papers; a part of
`deixis.base.grounding_network`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.text.entity_types import COLOURS
from deixis.text.vocabulary import SPECIALS, Vocabulary
from deixis.vision.proposer import normalize
from deixis.vision.regions import roi_align_each

#: The words that ask for colours or patterns.
_OTHER_WORDS = """
light dark bright pale gold golden silver cream blond blonde brunette colorful colored multicolored multi-colored
striped stripes plaid spotted denim camouflage camo checkered floral tie-dyed black-and-white brownish reddish
"""
COLOUR_WORDS = COLOURS | {*_OTHER_WORDS.split()}
#: Red, green and blue (0 to 1) of the colours that pixels are first assigned to.
FIRST_COLOURS = (
    (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (0.8, 0.1, 0.1), (0.1, 0.2, 0.7), (0.45, 0.3, 0.15),
    (0.1, 0.5, 0.1), (0.9, 0.9, 0.2), (0.9, 0.5, 0.1), (0.95, 0.6, 0.75), (0.5, 0.1, 0.5), (0.3, 0.3, 0.3),
    (0.75, 0.65, 0.5), (0.5, 0.7, 0.95), (0.1, 0.1, 0.25), (0.4, 0.05, 0.1),
)  # fmt: skip
PIXEL_COLOURS = len(FIRST_COLOURS)
#: Squared distance of colours at which a pixel's weight falls to 1/e.
SPREAD = 0.04
#: Pixels a side that become one before they are assigned, and assigned ones that become one cell after that.
SHRINK, CELL = 4, 2
#: Bins a side of a region, and samples per bin and axis.
BINS, SAMPLES = 3, 2
HIDDEN = 128
#: What scores are multiplied by where regions have the mean features of their neighbours, which differ less.
SHARPNESS = 2.0
#: Weight, beside objects of all pictures, of the choice among those of the phrase's own picture.
WITHIN = 2.0


class RegionColours(nn.Module):
    """Features of regions, and what colour words ask of them; their dot product is the score."""

    #: `(words,)`: 1 for the words that ask for colours.
    asks: Tensor

    def __init__(self, width: int, words: int, word_width: int) -> None:
        super().__init__()
        # softmax(−|pixel − colour|² / SPREAD) is that of a linear map of the pixel.
        self.pixels = nn.Conv2d(3, PIXEL_COLOURS, 1)
        colours, spread = normalize(255 * torch.tensor(FIRST_COLOURS)), SPREAD * (255 / 128) ** 2
        assert self.pixels.bias is not None
        with torch.no_grad():
            self.pixels.weight.copy_((2 * colours / spread)[..., None, None])
            self.pixels.bias.copy_(-colours.square().sum(1) / spread)
        self.hidden = nn.Linear(PIXEL_COLOURS * (BINS**2 + 1), HIDDEN)
        self.region = nn.Linear(HIDDEN, width)
        self.word = nn.Linear(word_width, width, bias=False)
        nn.init.normal_(self.word.weight, std=0.02)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("asks", torch.zeros(words))

    def set_words(self, vocabulary: Vocabulary) -> None:
        """Let the colour words of a vocabulary ask, and no other word."""
        known = [word in COLOUR_WORDS for word in vocabulary.words]
        self.asks.copy_(torch.tensor([False] * len(SPECIALS) + known))

    def forward(self, thumbnails: Tensor, boxes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Features of regions `(batch, regions, width)`.

        Each is a mean over the regions that overlap it, weighted by intersection over union: colours decide between
        things, not between boxes of one thing.

        Args:
            thumbnails: normalized pictures, see `thumbnail`.
            boxes: `(batch, regions, 4)` in [0, 1].
            mask: `(batch, 1, regions)`, true where there is a region; None: everywhere.
        """
        near = _overlaps(boxes)
        if mask is not None:
            near = near * mask
        near = near / near.sum(-1, keepdim=True).clamp(min=1e-6)
        return near.to(thumbnails.dtype) @ self.read(self.shares(thumbnails, boxes))

    def shares(self, thumbnails: Tensor, boxes: Tensor) -> Tensor:
        """The colours in each bin of a region and in the picture, `(batch, regions, PIXEL_COLOURS × (BINS² + 1))`."""
        maps = F.avg_pool2d(self.pixels(thumbnails).softmax(1), CELL)
        bins = roi_align_each(maps, boxes, bins=BINS, samples=SAMPLES).flatten(2)
        whole = maps.mean((-2, -1))[:, None].expand(-1, boxes.shape[1], -1)
        return torch.cat([bins, whole], -1)

    def read(self, shares: Tensor) -> Tensor:
        """Features `(…, width)` of regions with these `shares`, each by itself."""
        features: Tensor = self.region(self.dropout(F.relu(self.hidden(self.dropout(shares)))))
        return features

    def ask(self, tokens: Tensor, vectors: Tensor) -> Tensor:
        """What each word asks of single boxes, `(…, width)`: zeros if it is no colour word.

        Args:
            tokens: ids.
            vectors: `(…, word_width)`, those of the words.
        """
        asked: Tensor = self.word(vectors) * self.asks[tokens][..., None]
        return asked


def _overlaps(boxes: Tensor) -> Tensor:
    """`(batch, regions, 4)` → intersection over union of every two, `(batch, regions, regions)`.

    Plane by plane: on a CPU, arithmetic on pairs of coordinates is several times slower.
    """
    left, top, right, bottom = boxes.unbind(-1)
    width, height = (
        (torch.minimum(high[:, :, None], high[:, None]) - torch.maximum(low[:, :, None], low[:, None])).clamp(min=0)
        for low, high in ((left, right), (top, bottom))
    )
    inner, area = width * height, (right - left) * (bottom - top)
    return inner / (area[:, :, None] + area[:, None] - inner).clamp(min=1e-9)


def thumbnail(pictures: Tensor) -> Tensor:
    """Pictures `(batch, 3, rows, columns)`, small: colours need no detail."""
    return F.avg_pool2d(pictures, SHRINK)


def colour_loss(asked: Tensor, features: Tensor, objects: Tensor, types: Tensor) -> Tensor:
    """Softmax of a phrase's own object among all of its type: in the batch, and `WITHIN` times in its picture.

    A score learned so says how much more likely the phrase is for these colours than for others. It knows nothing else
    of the pictures, so training pictures do not teach it to rely on what it remembers of them.

    Args:
        asked: `(batch, phrases, width)`, a sum over their words of `RegionColours.ask`.
        features: `(batch, objects, width)`, from `RegionColours.read`.
        objects: `(batch, phrases)`, the object of each phrase; −1: the phrase is left out.
        types: `(batch, objects, types)`; padding has none.
    """
    batch, count = types.shape[:2]
    pictures = torch.arange(batch, device=asked.device)
    learned = objects >= 0
    targets = (objects + count * pictures[:, None])[learned]
    scores = (asked[learned] @ features.flatten(0, 1).T).float()
    every_type = types.flatten(0, 1).float()
    alike = every_type[targets] @ every_type.T > 0
    together = pictures.repeat_interleave(count) == (targets // count)[:, None]
    right = scores.gather(1, targets[:, None])[:, 0]
    everywhere, within = (
        scores.masked_fill(~among, -torch.inf).logsumexp(1) - right for among in (alike, alike & together)
    )
    several = (alike & together).sum(1) > 1
    return everywhere.sum() / learned.sum().clamp(min=1) + WITHIN * within[several].sum() / several.sum().clamp(min=1)
