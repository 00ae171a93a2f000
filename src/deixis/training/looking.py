"""A person's own pictures, with the features that a finished run was trained on, worked out on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from PIL import Image as Pillow

from deixis.corpus.pictures import PICTURE_LIMIT
from deixis.corpus.records import Image
from deixis.errors import DeixisError, InputError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store_writing import Features
from deixis.model import ImageFeatures
from deixis.training.kinds import kind_of
from deixis.training.recipe import FitRecipe
from deixis.vision.reading import decode_picture

#: Boxes that only a corpus can have: a person's picture has none.
DRAWN = frozenset({"chains", "drawn"})


class Seen(NamedTuple):
    """A picture, upright and in RGB, and what a matcher is given of it."""

    path: Path
    picture: Pillow.Image
    features: ImageFeatures


class Looker:
    """Looks at picture files as the extraction behind a run did: the same backbone, crops and proposals.

    Args:
        recipe: of the run (`deixis.training.run_models.read_recipe`).
        device: where features are computed, `cpu` or `cuda`.
        run: its folder, where the run's own network makes its features.
    """

    def __init__(self, recipe: FitRecipe, device: str = "cpu", run: Path | None = None) -> None:
        kind = kind_of(recipe.kind)
        wanted = [
            each
            for each in dict.fromkeys(kind.features(recipe, run))
            if each.regions is None or each.regions.boxes not in DRAWN
        ]
        if not wanted or any(each.from_file for each in wanted):
            raise DeixisError(
                f"{recipe.name} was trained on features that cannot be worked out of other pictures on the spot"
            )
        self._mappers = [(each, make_mapper(each, device=device)) for each in wanted]
        self._by_regions, self._most = kind.by_regions(recipe), kind.regions_kept(recipe)

    def look(self, path: str | Path) -> Seen:
        """Read one picture; an `InputError` names a file that is none."""
        path = Path(path)
        data = _read(path)
        image = Image(path.name, file=str(path))
        made = [(recipe, mapper([mapper.prepare(image, data)])[0]) for recipe, mapper in self._mappers]
        return Seen(path, decode_picture(data, name=str(path)), self._features(made))

    def _features(self, made: Sequence[tuple[FeatureRecipe, Features]]) -> ImageFeatures:
        """As `deixis.model.read_images` joins stores."""
        with_regions = [features for recipe, features in made if recipe.regions is not None]
        alone = [features for recipe, features in made if recipe.regions is None]
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
        if self._most is None or found.regions is None or found.boxes is None:
            return found
        return replace(found, regions=found.regions[: self._most], boxes=found.boxes[: self._most])


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > PICTURE_LIMIT:
            raise InputError(path, f"is larger than the {PICTURE_LIMIT >> 20} MB that are read of a picture")
        return path.read_bytes()
    except OSError as fault:
        raise InputError(path, fault.strerror or str(fault)) from None
