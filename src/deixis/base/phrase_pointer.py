"""Pointing at the phrases of a sentence in a picture, for the commands and the pages.

Phrases are found by the chunker that comes with the package (NumPy alone), those that name nothing one could see are
left out, and a sentence in which it finds none is one phrase. The network is that of `deixis.base.grounding_network`.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from deixis.adapters.bundles import DEFAULT, ONNX, open_bundle
from deixis.adapters.encoders import RUN
from deixis.base.grounder import Grounder as Matcher
from deixis.base.grounding_boxes import by_coverage
from deixis.base.grounding_network import Regions
from deixis.corpus.records import NOT_VISUAL
from deixis.errors import DeixisError
from deixis.model import Mention
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes
from deixis.text.tokens import has_content, tokenize
from deixis.vision.picture_files import as_picture
from deixis.vision.proposer import normalize, squashed

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

#: Longer sentences are refused: whoever types one does not describe a picture.
TOKENS = 200

Box = tuple[float, float, float, float]


class GroundedPhrase(msgspec.Struct, frozen=True):
    """A phrase of a sentence and where it is.

    `start` and `end` (exclusive) are places of characters in the sentence as it was given; `box` is x1, y1, x2, y2 in
    the picture's pixels; `score`, from 0 to 1, tells how likely the box is the right one if the thing is there at all.
    """

    phrase: str
    start: int
    end: int
    box: Box
    score: float


class Looked(msgspec.Struct, frozen=True):
    """A picture as the network has seen it: whatever is asked of it next costs milliseconds."""

    size: tuple[int, int]
    regions: Regions
    seen: torch.Tensor


class Grounder:
    """Points at phrases; `Grounder.open` opens a trained one.

    >>> Grounder.open("run:runs/grounding").ground(picture, "a man in a red shirt")  # doctest: +SKIP
    [GroundedPhrase(phrase='a man', start=0, end=5, box=(10.2, 3.0, 100.9, 211.5), score=0.98), …]
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._network = matcher.network
        self._device = next(matcher.network.parameters()).device
        self._chunker, self._types = Chunker.load(), EntityTypes.load()

    @classmethod
    def open(cls, name: str = DEFAULT, *, device: str = "cpu") -> Grounder:
        """Open one by name: `deixis-base`, `onnx:FOLDER`, or `run:FOLDER` of the kind `grounding` or `base`."""
        if name.startswith(RUN):
            matcher = _of_run(Path(name.removeprefix(RUN)), device)
        elif (bundle := open_bundle(name)) is not None:
            from deixis.base.bundle_networks import bundle_grounder

            matcher = bundle_grounder(bundle, device)
        else:
            raise DeixisError(f"unknown model {name!r}; known: {DEFAULT}, {ONNX}FOLDER, {RUN}FOLDER")
        # The same function without normalizations, in the layout that convolutions are fastest in.
        matcher.network.proposer.backbone.fuse(device)
        matcher.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(matcher)

    def ground(self, picture: str | Path | Picture | Looked, sentence: str) -> list[GroundedPhrase]:
        """The phrases of a sentence in its order, each with its box; a sentence without words is a `DeixisError`.

        Args:
            picture: a file, a picture in RGB, or what `look` made of it.
        """
        spans, phrases = self.phrases(sentence)
        words = [token.lower() for token in tokenize(sentence)]
        captions = self._matcher.captions([Mention(words, start, end) for start, end in phrases])
        looked = picture if isinstance(picture, Looked) else self.look(picture)
        with torch.inference_mode():
            captions = captions._replace(**{name: field.to(self._device) for name, field in captions._asdict().items()})
            answer = self._network.point(looked.seen, looked.regions, captions)
            boxes = answer.boxes[0].clamp(0, 1)
            # The network's own chances tell how often it is right; sharper ones, which rank better, promise too much.
            scores, best = by_coverage(boxes, answer.scores[0], 1.0, count=1).max(-1)
            size = torch.tensor([*looked.size, *looked.size])
            chosen = boxes[torch.arange(len(best)), best].cpu() * size
        found = []
        for (first, last), box, score in zip(phrases, chosen.tolist(), scores.tolist(), strict=True):
            start, end = spans[first][0], spans[last - 1][1]
            x1, y1, x2, y2 = (round(side, 1) for side in box)
            found.append(GroundedPhrase(sentence[start:end], start, end, (x1, y1, x2, y2), round(min(score, 1.0), 4)))
        return found

    @torch.inference_mode()
    def look(self, picture: str | Path | Picture) -> Looked:
        """See a picture once, to be asked of many sentences."""
        picture = as_picture(picture)
        pixels = normalize(squashed(picture, self._network.recipe.side)[None].to(self._device))
        output, pyramid = self._network.see(pixels.contiguous(memory_format=torch.channels_last))
        regions = self._network.propose(output)
        return Looked(picture.size, regions, self._network.encode_regions(pyramid, regions))

    def phrases(self, sentence: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Where the tokens of a sentence stand in its text, and its phrases as spans of tokens."""
        tokens = tokenize(sentence)
        if not any(map(has_content, tokens)):
            raise DeixisError(f"the sentence {sentence!r} has no words")
        if len(tokens) > TOKENS:
            raise DeixisError(f"the sentence has {len(tokens):,} words; up to {TOKENS} are read")
        found = self._chunker.phrases(tokens)
        types = self._types.types_in(tokens, found)
        visible = [span for span, own in zip(found, types, strict=True) if NOT_VISUAL not in own]
        return token_places(sentence, tokens), visible or found or [_trimmed(tokens)]


def token_places(sentence: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end of each token of `tokenize(sentence)` in the sentence, whose characters that may have composed.

    >>> token_places("A man’s  cafe\u0301.", tokenize("A man’s  cafe\u0301."))
    [(0, 1), (2, 5), (5, 7), (9, 14), (14, 15)]
    """
    composed = unicodedata.normalize("NFC", sentence).replace("\u2019", "'")
    # Of each place in the sentence, the place in its composed form.
    places = list(range(len(sentence) + 1))
    if len(composed) != len(sentence):
        places = [len(unicodedata.normalize("NFC", sentence[:place])) for place in places]
    found, place = [], 0
    for token in tokens:
        start = composed.index(token, place)
        place = start + len(token)
        # A composed character ends where the last of its parts does.
        found.append((bisect_right(places, start) - 1, bisect_right(places, place) - 1))
    return found


def _trimmed(tokens: Sequence[str]) -> tuple[int, int]:
    """All tokens but for signs at either end."""
    real = [number for number, token in enumerate(tokens) if any(map(str.isalnum, token))]
    return real[0], real[-1] + 1


def _of_run(folder: Path, device: str) -> Matcher:
    from deixis.training.run_models import load_matcher
    from deixis.vision.learned_proposals import checked_device

    matcher = load_matcher(folder, checked_device(device))
    # A run that does more besides has one inside.
    matcher = getattr(matcher, "grounder", matcher)
    if not isinstance(matcher, Matcher):
        raise DeixisError(f"{folder} does not point at phrases; a run of the kind 'grounding' or 'base' does")
    return matcher
