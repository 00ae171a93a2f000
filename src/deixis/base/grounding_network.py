"""Phrase localization beyond the papers: backbone, proposals and matching in one network that is learned together.

One pass of an EfficientNet-Lite gives both the proposals (`deixis.vision.proposer`) and a fused map of stride 8, from
which each proposal is pooled by RoIAlign. A phrase is read in its caption by a bidirectional GRU, looks at the regions
and at the caption's other phrases, and then scores each region and moves its box. Backbone and proposals have seen
annotated boxes, and figures that use this network must say so. Training is in `deixis.base.grounding_task`.

Shapes: pictures `(batch, 3, side, side)`, squashed to a square; boxes `(…, 4)` as x1, y1, x2, y2 in [0, 1]; `phrases`
and `regions` of a picture are padded to the same number a batch.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.base.grounding_boxes import PLACE, moved, place
from deixis.base.region_colours import SHARPNESS, RegionColours
from deixis.base.region_comparison import Comparison
from deixis.corpus import TYPES
from deixis.text.vocabulary import PAD
from deixis.vision.box_tensors import suppress_batch
from deixis.vision.proposer import GROUPS, Proposer, ProposerOutput
from deixis.vision.regions import roi_align_each


class GroundingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network; each part that may be left out is a switch."""

    backbone: Literal["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"] = "efficientnet-lite2"
    #: Pictures are squashed to so many pixels a side.
    side: Annotated[int, Meta(ge=64, le=1024)] = 384
    #: Proposals a picture, how many anchors compete to be one, and how much two proposals may overlap.
    regions: Annotated[int, Meta(ge=1, le=300)] = 100
    candidates: Annotated[int, Meta(ge=1)] = 1000
    overlap: Annotated[float, Meta(gt=0, lt=1)] = 0.6
    #: Channels of the fused map, and bins a side of what RoIAlign cuts out of it.
    map_width: Annotated[int, Meta(ge=16, le=512, multiple_of=16)] = 192
    bins: Annotated[int, Meta(ge=1, le=7)] = 5
    #: Points per bin and axis that it looks at.
    samples: Annotated[int, Meta(ge=1, le=8)] = 4
    #: Width of a region and of a phrase.
    width: Annotated[int, Meta(ge=16, le=1024, multiple_of=8)] = 256
    #: Layers of attention among the regions of a picture; of phrases to regions and to phrases of their caption.
    region_layers: Annotated[int, Meta(ge=0, le=6)] = 1
    caption_layers: Annotated[int, Meta(ge=0, le=6)] = 1
    #: What a region knows beside its pixels and its place: the whole picture, and the types the proposer sees in it.
    context: bool = True
    types: bool = True
    #: Width of the recurrent states in each direction, and whether it reads the caption or the phrase alone.
    hidden: Annotated[int, Meta(ge=8, le=1024)] = 256
    reads: Literal["caption", "phrase"] = "caption"
    #: Compare regions with those of the same name and with a landmark (`deixis.base.region_comparison`).
    compare: bool = False
    #: Width of what compares the colours of regions with words (`deixis.base.region_colours`); 0: nothing does.
    colours: Annotated[int, Meta(ge=0, le=256)] = 0
    #: Move a region's box for each phrase.
    refine: bool = True
    #: Of the probabilities by which boxes after the first are ranked, see `by_coverage`.
    sharpness: Annotated[float, Meta(gt=0)] = 2.0
    #: Of the phrases' places beside the score, where sentences about one picture are compared; 0: they do not count.
    sentence_weight: Annotated[float, Meta(ge=0, le=100)] = 0.0
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.15


class Regions(NamedTuple):
    """The proposals of pictures."""

    boxes: Tensor  # (batch, regions, 4), float32
    types: Tensor  # (batch, regions, types): the proposer's logits
    real: Tensor  # (batch, regions), false where a picture has fewer
    #: Known to be true of all, so that nothing has to be masked.
    all_real: bool = False

    @property
    def mask(self) -> Tensor | None:
        """`(batch, 1, regions)`, or None if all regions are real."""
        return None if self.all_real else self.real[:, None]


class Captions(NamedTuple):
    """The captions of pictures and the phrases in them."""

    tokens: Tensor  # (batch, captions, words) ids, PAD after the end
    caption: Tensor  # (batch, phrases): which caption of its picture each phrase is in
    start: Tensor  # (batch, phrases)
    end: Tensor  # (batch, phrases), exclusive; equal to start where there is no phrase


class Grounding(NamedTuple):
    """What the network answers for each phrase and region."""

    scores: Tensor  # (batch, phrases, regions) logits, float32; −inf where there is no region
    boxes: Tensor  # (batch, phrases, regions, 4), float32, not clipped to the picture
    regions: Tensor  # (batch, regions, width)
    #: Log probabilities of regions to compare with, (batch, phrases, CHOICES, regions); None: nothing is compared.
    chosen: Tensor | None = None


class GroundingNetwork(nn.Module):
    """`see` a batch of pictures, choose `regions`, then `forward` reads their captions; proposals are the trunk's."""

    def __init__(self, recipe: GroundingRecipe, proposer: Proposer, words: int, word_width: int = 300) -> None:
        super().__init__()
        self.recipe, self.proposer = recipe, proposer
        # The backbone's classifier has no part in this: neither learned nor kept.
        for name in ("_conv_head", "_bn1", "_fc"):
            delattr(proposer.backbone, name)
        width, channels = recipe.width, proposer.backbone.pyramid_channels
        self.lateral = nn.ModuleList([nn.Conv2d(channel, recipe.map_width, 1) for channel in channels])
        self.fuse = nn.Sequential(
            nn.GroupNorm(GROUPS, recipe.map_width),
            nn.ReLU(inplace=True),
            nn.Conv2d(recipe.map_width, recipe.map_width, 3, padding=1, groups=recipe.map_width, bias=False),
            nn.Conv2d(recipe.map_width, recipe.map_width, 1, bias=False),
            nn.GroupNorm(GROUPS, recipe.map_width),
            nn.ReLU(inplace=True),
        )
        self.pooled = nn.Sequential(
            nn.Linear(recipe.map_width * recipe.bins**2, 2 * width), nn.ReLU(inplace=True), nn.Dropout(recipe.dropout)
        )
        self.appearance = nn.Linear(2 * width, width)
        self.place = nn.Sequential(nn.Linear(PLACE, width), nn.ReLU(inplace=True), nn.Linear(width, width))
        self.types = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * len(TYPES), width)) if recipe.types else None
        self.context = nn.Linear(channels[-1], width) if recipe.context else None
        self.region_norm = nn.LayerNorm(width)
        self.region_layers = nn.ModuleList([_RegionLayer(width, recipe.dropout) for _ in range(recipe.region_layers)])

        self.words = nn.Embedding(words, word_width, padding_idx=PAD)
        nn.init.normal_(self.words.weight, std=word_width**-0.5)
        self.forwards = nn.GRU(word_width, recipe.hidden, batch_first=True)
        self.backwards = nn.GRU(word_width, recipe.hidden, batch_first=True)
        self.phrase = nn.Linear(4 * recipe.hidden + word_width, width)
        self.phrase_norm = nn.LayerNorm(width)
        self.caption_layers = nn.ModuleList(
            [_CaptionLayer(width, recipe.dropout) for _ in range(recipe.caption_layers)]
        )

        self.dropout = nn.Dropout(recipe.dropout)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.pair_phrase, self.pair_region = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.pair = nn.Linear(width, 5 if recipe.refine else 1)
        self.comparison = Comparison(width) if recipe.compare else None
        self.colours = RegionColours(recipe.colours, words, word_width) if recipe.colours else None
        # Boxes begin where the proposals are.
        nn.init.zeros_(self.pair.weight)
        nn.init.zeros_(self.pair.bias)

    def see(self, pictures: Tensor) -> tuple[ProposerOutput, list[Tensor]]:
        """Normalized pictures → what the proposer says of every anchor, and the backbone's maps."""
        pyramid = self.proposer.backbone.pyramid(pictures)
        return self.proposer.read_pyramid(pyramid, pictures.shape[-1]), pyramid

    @torch.no_grad()
    def propose(self, output: ProposerOutput) -> Regions:
        """The best anchors that keep apart from each other."""
        logits = output.logits.detach().float()
        top = logits.amax(-1).topk(min(self.recipe.candidates, logits.shape[1]), dim=1)
        boxes = output.boxes.detach().gather(1, top.indices[..., None].expand(-1, -1, 4)).clamp(0, 1)
        indices, counts = suppress_batch(boxes, top.values, self.recipe.overlap, self.recipe.regions)
        anchors = top.indices.gather(1, indices)[..., None]
        return Regions(
            boxes.gather(1, indices[..., None].expand(-1, -1, 4)),
            logits.gather(1, anchors.expand(-1, -1, len(TYPES))),
            torch.arange(indices.shape[1], device=indices.device) < counts[:, None],
        )

    def forward(
        self, pyramid: list[Tensor], regions: Regions, captions: Captions, thumbnails: Tensor | None = None
    ) -> Grounding:
        """`thumbnails` of the pictures are needed where colours are compared."""
        return self.point(self.encode_regions(pyramid, regions, thumbnails), regions, captions)

    def point(self, encoded: Tensor, regions: Regions, captions: Captions) -> Grounding:
        """The phrases of captions among regions that are encoded already."""
        seen, colours = encoded[..., : self.recipe.width], encoded[..., self.recipe.width :]
        phrases = self.encode_phrases(captions)
        together = (captions.caption[:, :, None] == captions.caption[:, None, :]) & _present(captions)[:, None, :]
        # A phrase always sees itself, so that padding has something to attend to.
        numbers = torch.arange(together.shape[-1], device=together.device)
        together = together | (numbers[:, None] == numbers)
        for layer in self.caption_layers:
            phrases = layer(phrases, seen, regions.mask, together)
        answer = self.match(phrases, seen, regions)
        if self.colours is None:
            return answer
        asked = self.ask_colours(captions) @ colours.transpose(1, 2)
        return answer._replace(scores=answer.scores + SHARPNESS * asked.float())

    def encode_regions(self, pyramid: list[Tensor], regions: Regions, thumbnails: Tensor | None = None) -> Tensor:
        """`(batch, regions, width + colours)`.

        Pixels, place, types and the whole picture, then attention among the regions; after them the regions' colours.
        """
        fused = self.lateral[0](pyramid[0])
        for lateral, level in zip(self.lateral[1:], pyramid[1:], strict=True):
            fused = fused + F.interpolate(lateral(level), size=fused.shape[-2:])
        cut = roi_align_each(self.fuse(fused), regions.boxes, bins=self.recipe.bins, samples=self.recipe.samples)
        x: Tensor = self.appearance(self.pooled(cut.flatten(2))) + self.place(place(regions.boxes))
        if self.types is not None:
            # The logits are about −8 to 2.
            x = x + self.types(torch.cat([regions.types.sigmoid(), regions.types / 8], -1))
        if self.context is not None:
            x = x + self.context(pyramid[-1].mean((-2, -1)))[:, None]
        x = self.region_norm(x)
        for layer in self.region_layers:
            x = layer(x, regions.mask)
        if self.colours is None:
            return x
        if thumbnails is None:
            raise ValueError("thumbnails are needed, since colours are compared")
        return torch.cat([x, self.colours(thumbnails, regions.boxes, regions.mask)], -1)

    def encode_phrases(self, captions: Captions) -> Tensor:
        """`(batch, phrases, width)`: the greatest and the last state of a phrase's words, and their mean vector."""
        batch, count, length = captions.tokens.shape
        row = captions.caption + torch.arange(batch, device=captions.caption.device)[:, None] * count
        places = torch.arange(length, device=row.device)
        tokens = captions.tokens.reshape(batch * count, length)
        inside = (places >= captions.start[..., None]) & (places < captions.end[..., None])  # (batch, phrases, words)
        if self.recipe.reads == "caption":
            vectors = self.dropout(self.words(tokens))
            states, vectors = self._read(vectors, tokens != PAD)[row], vectors[row]
        else:
            # The phrase's own words, moved to the front.
            phrase_tokens = tokens[row].gather(2, (captions.start[..., None] + places).clamp(max=length - 1))
            inside = places < (captions.end - captions.start)[..., None]
            phrase_tokens = phrase_tokens.masked_fill(~inside, PAD).flatten(0, 1)
            vectors = self.dropout(self.words(phrase_tokens))
            states = self._read(vectors, phrase_tokens != PAD).reshape(*row.shape, length, -1)
            vectors = vectors.reshape(*row.shape, length, -1)
        greatest = states.masked_fill(~inside[..., None], -math.inf).amax(2)
        greatest = torch.where(_present(captions)[..., None], greatest, 0.0)
        last = (inside * (places + 1)).amax(-1).sub(1).clamp(min=0)
        final = states.gather(2, last[..., None, None].expand(-1, -1, 1, states.shape[-1])).squeeze(2)
        mean = (vectors * inside[..., None]).sum(2) / inside.sum(-1, keepdim=True).clamp(min=1)
        encoded: Tensor = self.phrase_norm(self.phrase(self.dropout(torch.cat([greatest, final, mean], -1))))
        return encoded

    def ask_colours(self, captions: Captions) -> Tensor:
        """What phrases ask of the colours of boxes, `(batch, phrases, colours)`."""
        assert self.colours is not None
        count, length = captions.tokens.shape[1:]
        places = torch.arange(length, device=captions.tokens.device)
        numbers = torch.arange(count, device=captions.tokens.device)
        inside = (places >= captions.start[..., None]) & (places < captions.end[..., None])
        # (batch, phrases, captions, words): which words are those of a phrase.
        inside = inside[:, :, None] & (numbers == captions.caption[..., None])[..., None]
        asked = self.colours.ask(captions.tokens, self.words(captions.tokens))
        return inside.flatten(2).to(asked.dtype) @ asked.flatten(1, 2)

    def match(self, phrases: Tensor, seen: Tensor, regions: Regions) -> Grounding:
        """Scores: a dot product and a small network on each pair, which also moves the box."""
        phrases, seen_too = self.dropout(phrases), self.dropout(seen)
        scores = self.query(phrases) @ self.key(seen_too).transpose(1, 2) / math.sqrt(self.recipe.width)
        added, scaled = self.pair_phrase(phrases)[:, :, None].chunk(2, -1)
        added_region, product = self.pair_region(seen_too)[:, None].chunk(2, -1)
        hidden, chosen = added + added_region + scaled * product, None
        if self.comparison is not None:
            values, chosen = self.comparison(phrases, seen_too, regions.boxes, regions.mask)
            scores = scores + self.comparison.scores(phrases, values)
            hidden = hidden + self.comparison.features(phrases, values)
        pair = self.pair(F.relu(hidden)).float()
        scores = scores.float() + pair[..., 0]
        if regions.mask is not None:
            scores = scores.masked_fill(~regions.mask, -math.inf)
        boxes = regions.boxes[:, None].expand(*scores.shape, 4)
        return Grounding(scores, moved(boxes, pair[..., 1:]) if self.recipe.refine else boxes, seen, chosen)

    def _read(self, vectors: Tensor, real: Tensor) -> Tensor:
        """Recurrent states `(sequences, words, 2 × hidden)` in both directions; the backward one starts at each end."""
        lengths = real.sum(1, keepdim=True)
        places = torch.arange(real.shape[1], device=real.device)
        # Where each word stands when its sequence is turned round and its padding stays behind.
        turned = torch.where(real, lengths - 1 - places, places)[..., None]
        # Single precision: recurrences are short of time, not of arithmetic.
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            ahead, _ = self.forwards(vectors)
            behind, _ = self.backwards(vectors.gather(1, turned.expand_as(vectors)))
        return torch.cat([ahead, behind.gather(1, turned.expand_as(behind))], -1)


def _present(captions: Captions) -> Tensor:
    return captions.end > captions.start


class _Attention(nn.Module):
    """Attention of several heads; `mask` `(batch, queries or 1, keys)` is true where a query may look, None: all."""

    def __init__(self, width: int, dropout: float, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.both, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), *self.both(memory).chunk(2, -1))
        )
        dropout = self.dropout if self.training else 0.0
        mask = None if mask is None else mask[:, None]
        looked = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        out: Tensor = self.out(looked.transpose(1, 2).flatten(-2))
        return out


class _RegionLayer(nn.Module):
    """Attention among regions, then a feed-forward network, each with normalization before and addition after."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.attention, self.forward_network = (
            nn.LayerNorm(width),
            _Attention(width, dropout),
            _dense(width, dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        normal = self.norm(x)
        x = x + self.dropout(self.attention(normal, normal, real))
        added: Tensor = x + self.forward_network(x)
        return added


class _CaptionLayer(nn.Module):
    """Phrases look at the regions, then at each other within a caption."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_regions, self.to_phrases = _Attention(width, dropout), _Attention(width, dropout)
        self.forward_network = _dense(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, regions: Tensor, real: Tensor | None, together: Tensor) -> Tensor:
        x = x + self.dropout(self.to_regions(self.norm(x), regions, real))
        normal = self.other_norm(x)
        x = x + self.dropout(self.to_phrases(normal, normal, together))
        added: Tensor = x + self.forward_network(x)
        return added


def _dense(width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
    )
