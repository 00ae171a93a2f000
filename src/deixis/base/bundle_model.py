"""A bundle as a model: `deixis-base`, or one that `deixis export` wrote.

It runs on onnxruntime. On a GPU, grounding and describing run on PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import BACKBONE, CAPTIONER_VOCABULARY, GROUNDING_VOCABULARY, MANIFEST, VOCABULARY, Bundle
from deixis.adapters.graph_runner import ANY
from deixis.adapters.onnx_captioner import CaptionerSettings, OnnxCaptioner
from deixis.adapters.onnx_grounding import LEVELS, GroundingSettings, OnnxGrounder
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.phrase_presence import presence
from deixis.adapters.search_model import Bytes, Pictures, scores
from deixis.adapters.sentence_comparison import certainty_of_places
from deixis.errors import InputError
from deixis.model import Description, Grounding, ImageInput, Localized, Text, Tokens
from deixis.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.base.bundle_networks import BundleCaptioner
    from deixis.base.grounding_model import GroundingModel

Settings = TypeVar("Settings")


class SeenPicture(NamedTuple):
    """A picture as each network sees it; what the bundle cannot do is None."""

    size: tuple[int, int]
    prepared: Bytes
    embedded: Pictures
    regions: Any
    captioned: Any


class BundleModel(OnnxModel):
    """Args: `device`, where grounding and describing run: `cpu` or `auto`, which is the same, or `cuda`."""

    def __init__(self, bundle: Bundle, name: str = "", device: str = "auto") -> None:
        super().__init__(bundle, name)
        self._device = device
        lacks = set() if bundle.manifest.grounding else {"localize", "ground"}
        self.lacks = frozenset(lacks if bundle.manifest.captioner else {*lacks, "describe"})

    def ground(self, image: ImageInput, phrases: str | Sequence[Text]) -> list[Grounding]:
        """Scores are from 0 to 1: how likely the box is the right one if the thing is in the picture at all."""
        if "ground" not in self.abilities:
            raise self.cannot("ground")
        regions, embedded = self._regions(image)
        grounded = self._grounder.ground(regions, phrases)
        chances = presence(self, embedded, [grounding.phrase for grounding in grounded])
        return [
            msgspec.structs.replace(grounding, presence=chance)
            for grounding, chance in zip(grounded, chances, strict=True)
        ]

    def score_texts(self, image: ImageInput, texts: Sequence[Text]) -> NDArray[Any]:
        """The score, and how surely the phrases of each text are found in the picture."""
        if not self._sentence_weight:
            return super().score_texts(image, texts)
        regions, embedded = self._regions(image)
        fits = scores(self.embed_queries(texts), embedded)[:, 0]
        places = certainty_of_places(partial(self._grounder.phrase_logits, regions), texts)
        return np.asarray(fits + np.float32(self._sentence_weight) * places)

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        if "localize" not in self.abilities:
            raise self.cannot("localize")
        return self._grounder.localize(self.as_picture(image), phrases)

    def proposals(self, image: ImageInput) -> NDArray[Any] | None:
        return self._grounder.proposals(self.as_picture(image)) if "localize" in self.abilities else None

    def describe(self, image: ImageInput, count: int = 3) -> list[Description]:
        """Scores are log probabilities or, where the bundle says so, with how well the sentence matches the picture.

        Texts that differ only in a final full stop are one sentence.
        """
        if "describe" not in self.abilities:
            raise self.cannot("describe")
        captioner = self._captioner
        pixels = image.captioned if isinstance(image, SeenPicture) else captioner.prepare(self.as_picture(image))
        match = captioner.settings.match
        most = max(count, captioner.settings.decoding.beam)
        maps = None
        if isinstance(captioner, OnnxCaptioner):
            maps = self._maps(pixels[None], captioner.settings.side)
            spoken = captioner.describe(maps, most)
        else:
            spoken = captioner.describe(pixels, most)
        sentences = [description.sentence for description in spoken]
        spoken = [
            description for index, description in enumerate(spoken) if description.sentence not in sentences[:index]
        ]
        if not match or not spoken:
            return spoken[:count]
        if maps is None or captioner.settings.side != self._manifest.side:
            embedded = self._embedded([image])
        else:
            embedded = self._embed_maps(maps)
        fits = scores(self.embed_queries([description.tokens for description in spoken]), embedded)[:, 0]
        rated = [
            msgspec.structs.replace(description, score=description.score + match * float(fit))
            for description, fit in zip(spoken, fits, strict=True)
        ]
        return sorted(rated, key=lambda description: -description.score)[:count]

    def look(self, image: ImageInput) -> SeenPicture:
        """See a picture once. `ground` then takes milliseconds per sentence."""
        picture = self.as_picture(image)
        prepared = self.prepare(picture)
        if "ground" in self.abilities:
            regions, embedded = self._seen(picture, prepared)
        else:
            regions, embedded = None, self.embed_prepared([prepared])
        return SeenPicture(
            picture.size,
            prepared,
            embedded,
            regions,
            self._captioner.prepare(picture) if "describe" in self.abilities else None,
        )

    def _regions(self, image: ImageInput) -> tuple[Any, Pictures]:
        """What grounding sees in a picture that may have been seen before, and its embedding."""
        if isinstance(image, SeenPicture):
            return image.regions, image.embedded
        picture = self.as_picture(image)
        return self._seen(picture, self.prepare(picture))

    @cached_property
    def _sentence_weight(self) -> float:
        """Of the phrases' places, where sentences about one picture are compared."""
        grounding = self._manifest.grounding
        return 0.0 if grounding is None else bundle_settings(self.bundle, grounding, GroundingSettings).sentence_weight

    def _seen(self, picture: Picture, prepared: Bytes) -> tuple[Any, Pictures]:
        """What grounding sees in a picture, and its embedding: by one pass of the backbone, where both share one."""
        grounder, side = self._grounder, self._manifest.side
        if not isinstance(grounder, OnnxGrounder) or grounder.shared_side != side:
            return grounder.look(picture), self.embed_prepared([prepared])
        shapes = dict.fromkeys((*LEVELS, "map"), (1, ANY, ANY, ANY))
        *pyramid, maps = self._run(BACKBONE, {"pictures": prepared[None]}, shapes, side=side)
        return grounder.look_at(picture.size, prepared, pyramid), self._embed_maps(maps)

    def prepared(self, image: ImageInput) -> Bytes:
        return image.prepared if isinstance(image, SeenPicture) else super().prepared(image)

    @cached_property
    def _grounder(self) -> OnnxGrounder | GroundingModel:
        if self._device == "cuda":
            from deixis.base.bundle_networks import bundle_grounder
            from deixis.training.loading_limits import loading

            with loading(self.bundle.folder):
                return bundle_grounder(self.bundle, self._device)
        settings = bundle_settings(self.bundle, self._manifest.grounding, GroundingSettings)
        return OnnxGrounder(self._run, settings, bundle_words(self.bundle, GROUNDING_VOCABULARY))

    @cached_property
    def _captioner(self) -> OnnxCaptioner | BundleCaptioner:
        if self._device == "cuda":
            from deixis.base.bundle_networks import BundleCaptioner
            from deixis.training.loading_limits import loading

            with loading(self.bundle.folder):
                return BundleCaptioner(self.bundle, self._device)
        settings = bundle_settings(self.bundle, self._manifest.captioner, CaptionerSettings)
        return OnnxCaptioner(self._run, settings, bundle_words(self.bundle, CAPTIONER_VOCABULARY))


def bundle_words(bundle: Bundle, name: str) -> Vocabulary:
    """The vocabulary of one network, which is that of the text branch where it has no file of its own."""
    return Vocabulary.load(bundle.file(name if name in bundle.manifest.files else VOCABULARY))


#: Settings of earlier versions, which were off in all bundles.
REMOVED_SETTINGS = ("few_cells", "choose_by_words")


def bundle_settings(bundle: Bundle, settings: object, kind: type[Settings]) -> Settings:
    """Settings of the manifest as a record; an `InputError` where they are none."""
    if isinstance(settings, dict):
        settings = {name: value for name, value in settings.items() if value or name not in REMOVED_SETTINGS}
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as fault:
        raise InputError(bundle.folder / MANIFEST, f"is damaged, or of another version of Deixis ({fault})") from None
