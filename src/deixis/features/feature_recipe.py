"""Which features to extract: a short built-in name, or a TOML file.

backbone = "efficientnet-lite2"  # "none": only the boxes of the regions are kept; or a file of features
crops = "whole"            # the picture's vector from one pass over all of it; "grid": one of each ninth, which tells
                           # what is where; or "centre", "ten", "squash"
side = 384                 # pixels of that pass, about side × side

[regions]                  # left out: no regions
boxes = "drawn"            # the corpus' own boxes; "chains": one a chain, merged; a proposal method; the file of a
                           # trained proposer (.safetensors); or a feature store that has boxes of these pictures
count = 100                # at most so many a picture
features = "align"         # from the map of the same pass (RoIAlign); "crops": a pass a box (the Entities paper), slow
context = false            # append the picture's vector
coordinates = false        # append x1/W, y1/H, x2/W, y2/H and the share of the picture

[file]                     # for a file of features (.npy, .npz, .safetensors), which has no [regions] of its own
ids = "ids.txt"            # an image id or file name a line, row by row; left out: rows follow the corpus' images
array = "features"         # where the file holds several
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from deixis.errors import DeixisError
from deixis.files import read_toml
from deixis.vision import TOWER

#: The backbone of a recipe that keeps boxes alone.
NO_BACKBONE = "none"
#: How a file of features ends.
FILES = (".npy", ".npz", ".safetensors")


class RegionRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boxes: str = "learned"
    count: Annotated[int, Meta(ge=1, le=2000)] = 100
    features: Literal["align", "crops"] = "align"
    context: bool = False
    coordinates: bool = False


class FileRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to read a file of features; see `deixis.vision.feature_files`."""

    ids: str = ""
    array: str = ""


class FeatureRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`side` None is the backbone's own; it counts where all of a picture is seen at once (`one_pass`)."""

    backbone: str = "efficientnet-lite2"
    crops: Literal["whole", "grid", "centre", "ten", "squash"] = "centre"
    side: Annotated[int, Meta(ge=32, le=2048)] | None = None
    regions: RegionRecipe | None = None
    dtype: Literal["float16", "float32"] = "float16"
    file: FileRecipe | None = None

    def __post_init__(self) -> None:
        if self.from_file and self.regions:
            raise ValueError("a file of features has its own regions, or none; leave out [regions]")
        if self.file and not self.from_file:
            raise ValueError(f"[file] is for a backbone that is a file of features ({', '.join(FILES)})")
        if self.backbone == NO_BACKBONE and self.regions is None:
            raise ValueError("without a backbone there is nothing to keep but the boxes of regions; add [regions]")

    @property
    def from_file(self) -> bool:
        """Whether the features are somebody else's."""
        return self.backbone.endswith(FILES) and not self.backbone.startswith(TOWER)

    @property
    def cropped(self) -> Literal["centre", "ten", "squash"] | None:
        """How pictures are cropped; None where their vectors are pooled from the map of all of them."""
        return None if self.crops == "whole" or self.crops == "grid" else self.crops

    @property
    def one_pass(self) -> bool:
        """Whether all of the picture goes through the network at once."""
        return self.cropped is None or (self.regions is not None and self.regions.features == "align")


def made_by(recipe: FeatureRecipe, provenance: Mapping[str, Any]) -> bool:
    """Whether features of this provenance are what a recipe asks for; regions may be more, the best come first."""
    asked: dict[str, Any] = {"backbone": recipe.backbone, "crops": recipe.crops}
    if recipe.side:
        asked["side"] = recipe.side
    if recipe.regions is None:
        return asked.items() <= provenance.items()
    regions = provenance.get("regions") or {}
    own = msgspec.structs.asdict(recipe.regions)
    count = own.pop("count")
    return asked.items() <= provenance.items() and own.items() <= regions.items() and count <= regions.get("count", 0)


BUILT_IN = {
    "image": FeatureRecipe(),
    "ten-crop": FeatureRecipe(crops="ten"),
    "regions": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe()),
    "drawn": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe(boxes="drawn")),
    # No chain is left out: row k is that of an image's k-th chain that has boxes.
    "chains": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe(boxes="chains", count=2000)),
}


def load_recipe(name: str | Path) -> FeatureRecipe:
    """A recipe by built-in name, from a TOML file, or of a file of features; a fault names the file and the field."""
    if str(name) in BUILT_IN:
        return BUILT_IN[str(name)]
    path = Path(name)
    if path.suffix in FILES:
        return FeatureRecipe(backbone=str(name))
    if path.suffix != ".toml":
        others = f"a .toml file, or a file of features ({', '.join(FILES)})"
        raise DeixisError(f"unknown feature recipe {str(name)!r}; built in: {', '.join(BUILT_IN)}; or {others}")
    return read_toml(path, FeatureRecipe, "is no feature recipe")
