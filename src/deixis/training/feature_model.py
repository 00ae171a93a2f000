"""Base classes of models trained on stored features, which can also compute the features of any picture.

`FeatureModel` is the base of all of them, `EmbeddingModel` of those with a joint space of unit vectors for visual
features and texts.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
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
#: Number of texts whose embeddings are cached: phrases like "a man" repeat from picture to picture.
CACHED_TEXTS = 200_000
#: Kinds of boxes that need annotations; pictures outside a corpus have none.
ANNOTATED = frozenset({"chains", "drawn"})
#: Coordinates of the whole picture, for features that contain coordinates.
WHOLE = (0.0, 0.0, 1.0, 1.0, 1.0)


class PictureFeatures:
    """Computes features of any picture as they were extracted for a run: same backbone, crops and proposals.

    Args:
        recipes: the run's feature recipes.
        device: where they are computed, `cpu` or `cuda`.
        by_regions: take the vector of the whole picture from the features with regions.
        regions_kept: use only this many regions, the first ones; None: all.
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
            recipe
            for recipe in dict.fromkeys(recipes)
            if recipe.regions is None or recipe.regions.boxes not in ANNOTATED
        ]
        if not self.recipes or any(recipe.from_file for recipe in self.recipes):
            raise DeixisError("the model was trained on features that cannot be computed for other pictures")
        self._device, self._by_regions, self._regions_kept = device, by_regions, regions_kept

    @cached_property
    def _mappers(self) -> list[BoxMapper]:
        return [make_mapper(recipe, device=self._device) for recipe in self.recipes]

    @property
    def at_least(self) -> int:
        """The size of the shorter side in pixels that the features need; 0: the full picture."""
        needed = [mapper.at_least for mapper in self._mappers]
        return max(needed) if all(needed) else 0

    def prepare(self, image: str | Path | Picture) -> tuple[PreparedPicture, ...]:
        """Decode a picture as far as needed; thread-safe. Raises `InputError` if a file is not a picture."""
        if not isinstance(image, str | Path):
            return tuple(mapper.prepare_picture(Image("picture"), image) for mapper in self._mappers)
        data, name = read_named_file(image)
        return tuple(mapper.prepare(Image(name, file=name), data) for mapper in self._mappers)

    def __call__(self, prepared: Sequence[tuple[PreparedPicture, ...]]) -> list[ImageFeatures]:
        computed = [mapper([parts[index] for parts in prepared]) for index, mapper in enumerate(self._mappers)]
        return [self._joined(list(features)) for features in zip(*computed, strict=True)]

    def _joined(self, computed: Sequence[Features]) -> ImageFeatures:
        """Join the features of several recipes, as `deixis.model.store_images` does for stores."""
        pairs = list(zip(self.recipes, computed, strict=True))
        with_regions = [features for recipe, features in pairs if recipe.regions is not None]
        alone = [features for recipe, features in pairs if recipe.regions is None]
        regions = with_regions[0] if with_regions else None
        whole = regions if regions is not None and (self._by_regions or not alone) else alone[0]
        width, height = whole["size"].tolist()
        features = ImageFeatures(
            image=whole["image"],
            regions=None if regions is None else regions["regions"],
            boxes=None if regions is None else regions["boxes"],
            size=(width, height),
            whole=None if regions is None or regions is whole else regions["image"],
        )
        if self._regions_kept is None or features.regions is None or features.boxes is None:
            return features
        first = slice(self._regions_kept)
        return replace(features, regions=features.regions[first], boxes=features.boxes[first])


@dataclass(frozen=True)
class RunInfo:
    """The run that a model was loaded from: its recipe's name, its weights, the features it is used with."""

    recipe: str
    weights_sha256: str
    features: Sequence[FeatureRecipe]
    #: The model needs regions, and takes the vector of the whole picture from the features with regions.
    by_regions: bool = False
    #: Number of regions of a picture that the model uses, the first ones; None: all.
    regions_kept: int | None = None


class FeatureModel(SearchModel):
    """A model of stored features. If it was loaded from a run, it computes the features of any other picture itself."""

    localizes_features = True
    #: Abilities that need regions.
    needs_regions: frozenset[str] = frozenset({"localize", "ground", "describe_regions", "align"})
    #: The run it was loaded from, if any.
    run: RunInfo | None = None

    def loaded_from(self, run: RunInfo) -> None:
        """Make it able to compute features of pictures as for its training, and to index photos."""
        self.run = run
        if not any(recipe.regions and recipe.regions.boxes not in ANNOTATED for recipe in run.features):
            self.lacks = self.lacks | self.needs_regions

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def pictures(self) -> PictureFeatures:
        """Computes the features of pictures."""
        if self.run is None:
            raise DeixisError(f"{self.name or type(self).__name__} takes only stored features (ImageFeatures)")
        return PictureFeatures(
            self.run.features, self._device.type, by_regions=self.run.by_regions, regions_kept=self.run.regions_kept
        )

    def features_of(self, images: Sequence[ImageInput]) -> list[ImageFeatures]:
        """Features of all images: stored ones as they are, others computed."""
        all_features = list(images)
        pictures = [index for index, image in enumerate(images) if not isinstance(image, ImageFeatures)]
        for start in range(0, len(pictures), PICTURES):
            indices = pictures[start : start + PICTURES]
            computed = self.pictures([self.pictures.prepare(images[index]) for index in indices])
            for index, features in zip(indices, computed, strict=True):
                all_features[index] = features
        return all_features

    def score_batches(self, batches: Iterable[Sequence[ImageInput]], texts: Sequence[Text]) -> Iterator[Array]:
        """All batches at once: features are small, and the texts are read once."""
        yield self.score([features for images in batches for features in self.features_of(images)], texts)

    @property
    def hashes(self) -> dict[str, str]:
        return {} if self.run is None else {"weights_sha256": self.run.weights_sha256}

    def look(self, image: ImageInput) -> ImageFeatures:
        """The features of a picture."""
        return self.features_of([image])[0]

    @cached_property
    def identity(self) -> Identity:  # type: ignore[override]
        if self.run is None:
            raise DeixisError(f"{type(self).__name__} was not loaded from a run, so it cannot index photos")
        features = [msgspec.to_builtins(recipe) for recipe in self.pictures.recipes]
        preprocessing = {"features": features, "at_least": self.pictures.at_least}
        return Identity(self.run.recipe, self.run.weights_sha256, self.dim, preprocessing)

    @property
    def dim(self) -> int:
        """Dimensions of an embedding."""
        return int(self.embed_texts([("a",)]).shape[1])

    def prepare(self, picture: Picture) -> Any:
        return self.pictures.prepare(picture)

    def embed_prepared(self, batch: Sequence[Any]) -> Pictures:
        return whole_pictures(np.asarray(self.embed_images(self.pictures(batch)), np.float32))


def as_region(image: ImageFeatures, picture: Array) -> Array:
    """The vector of the whole picture, with its coordinates if those of the regions have theirs."""
    if image.regions is not None and image.regions.shape[1] == len(picture) + len(WHOLE):
        return np.concatenate([picture, np.array(WHOLE, picture.dtype)])
    return picture


class TextInput(Protocol):
    """The part of `deixis.text.featurizers.TextFeatures` that a model uses."""

    def transform(self, texts: Sequence[Tokens]) -> Array:
        """One row for each text."""

    def knows(self, word: str) -> bool:
        """Whether a word has any influence."""


class EmbeddingModel(FeatureModel, ABC):
    """A joint space of unit vectors for visual features and texts. Embeddings of texts are cached."""

    def __init__(self, text: TextInput, device: torch.device) -> None:
        super().__init__(device)
        self._text = text
        self._embeddings: dict[tuple[str, ...], Array] = {}
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
        return self.embed_visual(np.stack([as_region(image, image.image) for image in self.features_of(images)]))

    def _text_branch(self, texts: Sequence[Text]) -> Array:
        keys = [tuple(as_tokens(text)) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._embeddings))
        if len(self._embeddings) + len(new) > CACHED_TEXTS:
            self._embeddings = {}
            new = list(dict.fromkeys(keys))
        for start in range(0, len(new), BLOCK):
            part = new[start : start + BLOCK]
            self._embeddings.update(zip(part, self._embed_text(self._text.transform(part)), strict=True))
        return np.stack([self._embeddings[key] for key in keys])

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if not self._text.knows(token)]

    def prepare_texts(self, texts: Sequence[Tokens], *, keep: bool = False) -> None:
        """Embed texts at once, which is faster than one by one, and cache the embeddings (`keep`: on disk)."""
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
        self._embeddings.update(zip(map(tuple, texts), embeddings.astype(np.float32), strict=True))

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        """Scores proposals by the cosine of region and phrase, each phrase without its sentence."""
        regions, boxes = regions_of(self.look(image))
        # Average precision uses the same thousands of phrases with every picture.
        if self._asked is None or phrases is not self._asked[0]:
            self._asked = tuple(phrases), self._text_branch(phrases)
        return Localized(boxes, self.compare(self._asked[1], self.embed_visual(regions)))

    def compare(self, texts: Array, visual: Array) -> Array:
        """Scores `(texts, visual)` of embeddings: their cosines."""
        rows, columns = (torch.from_numpy(side).to(self._device) for side in (texts, visual))
        return (rows @ columns.T).cpu().numpy()
