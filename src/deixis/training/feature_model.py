"""What models trained on stored features share: they take `ImageFeatures`, or compute them of any picture.

`FeatureModel` is the base of all of them, `EmbeddingModel` of those with one space of unit vectors for visual features
and texts.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray

from deixis.adapters.search_model import Identity, Pictures, SearchModel, whole_pictures
from deixis.corpus.records import Image
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.mapper import BoxMapper, PreparedPicture, make_mapper
from deixis.features.store_writing import Features
from deixis.files import atomic_write, cache_folder
from deixis.model import ImageFeatures, ImageInput, Localized, Text, Tokens, as_tokens, regions_of
from deixis.vision.picture_files import read_named_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Array = NDArray[Any]

#: Embeddings computed at a time.
BLOCK = 8192
#: Pictures whose features are computed at a time.
PICTURES = 16
#: Texts whose embeddings are remembered: phrases come back picture after picture ("a man").
REMEMBERED = 200_000
#: Boxes that only a corpus can have: any other picture has none.
ANNOTATED = frozenset({"chains", "drawn"})


class PictureFeatures:
    """Features of any pictures, computed as the extraction behind a run did: same backbone, crops and proposals.

    Args:
        recipes: of the run's features.
        device: where they are computed, `cpu` or `cuda`.
        by_regions: the whole picture's vector is that computed as the regions' are.
        regions_kept: the first so many regions; None: all.
    """

    def __init__(
        self,
        recipes: Sequence[FeatureRecipe],
        device: str = "cpu",
        *,
        by_regions: bool = False,
        regions_kept: int | None = None,
    ) -> None:
        self.recipes = [
            each for each in dict.fromkeys(recipes) if each.regions is None or each.regions.boxes not in ANNOTATED
        ]
        if not self.recipes or any(each.from_file for each in self.recipes):
            raise DeixisError("the model was trained on features that cannot be computed of other pictures")
        self._device, self._by_regions, self._regions_kept = device, by_regions, regions_kept

    @cached_property
    def _mappers(self) -> list[BoxMapper]:
        return [make_mapper(each, device=self._device) for each in self.recipes]

    @property
    def at_least(self) -> int:
        """Pixels of the shorter side that the features need; 0: all."""
        needed = [mapper.at_least for mapper in self._mappers]
        return max(needed) if all(needed) else 0

    def prepare(self, image: str | Path | Picture) -> tuple[PreparedPicture, ...]:
        """What is needed of a picture; called from many threads. A file that is no picture is an `InputError`."""
        if not isinstance(image, str | Path):
            return tuple(mapper.prepare_picture(Image("picture"), image) for mapper in self._mappers)
        data, name = read_named_file(image)
        return tuple(mapper.prepare(Image(name, file=name), data) for mapper in self._mappers)

    def __call__(self, prepared: Sequence[tuple[PreparedPicture, ...]]) -> list[ImageFeatures]:
        computed = [mapper([own[place] for own in prepared]) for place, mapper in enumerate(self._mappers)]
        return [self._joined(list(each)) for each in zip(*computed, strict=True)]

    def _joined(self, computed: Sequence[Features]) -> ImageFeatures:
        """As `deixis.model.store_images` joins stores."""
        pairs = list(zip(self.recipes, computed, strict=True))
        with_regions = [features for recipe, features in pairs if recipe.regions is not None]
        alone = [features for recipe, features in pairs if recipe.regions is None]
        regions = with_regions[0] if with_regions else None
        whole = regions if regions is not None and (self._by_regions or not alone) else alone[0]
        width, height = whole["size"].tolist()
        found = ImageFeatures(
            image=whole["image"],
            regions=None if regions is None else regions["regions"],
            boxes=None if regions is None else regions["boxes"],
            size=(width, height),
            whole=None if regions is None or regions is whole else regions["image"],
        )
        if self._regions_kept is None or found.regions is None or found.boxes is None:
            return found
        kept = slice(self._regions_kept)
        return replace(found, regions=found.regions[kept], boxes=found.boxes[kept])


@dataclass(frozen=True)
class RunInfo:
    """The run that a model was loaded from: its recipe's name, its weights, the features it is used with."""

    recipe: str
    weights_sha256: str
    features: Sequence[FeatureRecipe]
    #: The model needs a picture's regions: the vector of the whole picture is the one computed with them.
    by_regions: bool = False
    #: The model is given the first so many regions of a picture; None: all.
    regions_kept: int | None = None


class FeatureModel(SearchModel):
    """A model of stored features. One that was loaded from a run computes those of any other picture itself."""

    localizes_features = True
    #: What it cannot do with features of whole pictures alone.
    needs_regions: frozenset[str] = frozenset({"localize", "ground", "describe_regions", "align"})
    #: What it was loaded from; None: a model that was made from networks.
    run: RunInfo | None = None

    def loaded_from(self, run: RunInfo) -> None:
        """Let it compute features of pictures as the run's training did, and be bound to an index."""
        self.run = run
        if not any(each.regions and each.regions.boxes not in ANNOTATED for each in run.features):
            self.lacks = self.lacks | self.needs_regions

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def pictures(self) -> PictureFeatures:
        """Computes the features of pictures."""
        if self.run is None:
            raise DeixisError(f"{self.name or type(self).__name__} takes stored features alone (ImageFeatures)")
        return PictureFeatures(
            self.run.features, self._device.type, by_regions=self.run.by_regions, regions_kept=self.run.regions_kept
        )

    def features_of(self, images: Sequence[ImageInput]) -> list[ImageFeatures]:
        """Stored features as they are, those of pictures computed."""
        found = list(images)
        places = [place for place, image in enumerate(images) if not isinstance(image, ImageFeatures)]
        for start in range(0, len(places), PICTURES):
            some = places[start : start + PICTURES]
            computed = self.pictures([self.pictures.prepare(images[place]) for place in some])
            for place, features in zip(some, computed, strict=True):
                found[place] = features
        return found

    def look(self, image: ImageInput) -> ImageFeatures:
        """The picture's features."""
        return self.features_of([image])[0]

    @cached_property
    def identity(self) -> Identity:  # type: ignore[override]
        if self.run is None:
            raise DeixisError(f"{type(self).__name__} was not loaded from a run: an index cannot be bound to it")
        features = [msgspec.to_builtins(recipe) for recipe in self.pictures.recipes]
        preprocessing = {"features": features, "at_least": self.pictures.at_least}
        return Identity(self.run.recipe, self.run.weights_sha256, self.dim, preprocessing)

    @property
    def dim(self) -> int:
        """Numbers of an embedding."""
        return int(self.embed_texts([("a",)]).shape[1])

    def prepare(self, picture: Picture) -> Any:
        return self.pictures.prepare(picture)

    def embed_prepared(self, batch: Sequence[Any]) -> Pictures:
        return whole_pictures(np.asarray(self.embed_images(self.pictures(batch)), np.float32))


class TextInput(Protocol):
    """What a model needs of `deixis.text.features.TextFeatures`."""

    def transform(self, texts: Sequence[Tokens]) -> Array:
        """One row, or one number, for each text."""

    def knows(self, word: str) -> bool:
        """Whether a word counts at all."""


class EmbeddingModel(FeatureModel, ABC):
    """One space of unit vectors for visual features and texts; embeddings of texts are remembered."""

    def __init__(self, text: TextInput, device: torch.device) -> None:
        super().__init__(device)
        self._text = text
        self._known: dict[tuple[str, ...], Array] = {}
        self._asked: tuple[Sequence[Tokens], Array] | None = None

    @abstractmethod
    def embed_visual(self, features: Array) -> Array:
        """Features of pictures or regions `(n, channels)` to unit embeddings."""

    @abstractmethod
    def _embed_text(self, features: Array) -> Array:
        """Text features to unit embeddings."""

    def embed_images(self, images: Sequence[ImageInput]) -> Array:
        return self._image_branch(images)

    def embed_texts(self, texts: Sequence[Text]) -> Array:
        return self._text_branch(texts)

    def _image_branch(self, images: Sequence[ImageInput]) -> Array:
        return self.embed_visual(np.stack([image.image for image in self.features_of(images)]))

    def _text_branch(self, texts: Sequence[Text]) -> Array:
        keys = [tuple(as_tokens(text)) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._known))
        if len(self._known) + len(new) > REMEMBERED:
            self._known = {}
            new = list(dict.fromkeys(keys))
        for start in range(0, len(new), BLOCK):
            part = new[start : start + BLOCK]
            self._known.update(zip(part, self._embed_text(self._text.transform(part)), strict=True))
        return np.stack([self._known[key] for key in keys])

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if not self._text.knows(token)]

    def prepare_texts(self, texts: Sequence[Tokens], *, keep: bool = False) -> None:
        """Embed texts at once, since text features work out a word once per call; the embeddings are remembered."""
        if not keep or self.run is None:
            self._text_branch(texts)
            return
        digest = hashlib.sha256(self.run.weights_sha256.encode())
        for tokens in texts:
            digest.update(b"\n" + " ".join(tokens).encode(errors="surrogatepass"))
        path = cache_folder() / "banks" / f"{digest.hexdigest()[:32]}.safetensors"
        try:
            embeddings = safetensors.numpy.load(path.read_bytes())["rows"]
        except (OSError, KeyError, safetensors.SafetensorError):
            embeddings = self._text_branch(texts).astype(np.float16)
            with atomic_write(path) as stream:
                stream.write(safetensors.numpy.save({"rows": np.ascontiguousarray(embeddings)}))
        self._known.update(zip(map(tuple, texts), embeddings.astype(np.float32), strict=True))

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        """By the cosine of region and phrase, each phrase read by itself."""
        regions, boxes = regions_of(self.look(image))
        # Average precision asks for the same thousands of phrases at every picture.
        if self._asked is None or phrases is not self._asked[0]:
            self._asked = tuple(phrases), self._text_branch(phrases)
        return Localized(boxes, self.compare(self._asked[1], self.embed_visual(regions)))

    def compare(self, texts: Array, visual: Array) -> Array:
        """Scores `(texts, visual)` of embeddings, higher is better: their cosines."""
        rows, columns = (torch.from_numpy(side).to(self._device) for side in (texts, visual))
        return (rows @ columns.T).cpu().numpy()
