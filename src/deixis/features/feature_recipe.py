"""Which features to extract: a short built-in name, or a TOML file.

backbone = "efficientnet-lite2"  # "none": store only the boxes of the regions; or a file of features
crops = "whole"            # one pass over the whole picture; "grid": its ninths as separate vectors, which keeps the
                           # layout; or "centre", "ten", "squash"
side = 384                 # size of that pass, about side × side pixels

[regions]                  # leave it out for no regions
boxes = "drawn"            # ground-truth boxes; "chains": merged per chain; a proposal method; the file of a trained
                           # proposer (.safetensors); or a feature store with boxes of these pictures
count = 100                # at most this many per picture
features = "align"         # RoIAlign on the map of the same pass; "crops": one pass per box (Entities paper), slow;
                           # "head": the region head of a trained detector (two-branch paper), backbone "detector:FILE"
bins = 1                   # "align": a region is this many bins per side, one after another
context = false            # append the vector of the whole picture
coordinates = false        # append x1/W, y1/H, x2/W, y2/H and the share of the picture
near_chains = 0.0          # keep only boxes with at least this IoU with the merged box of a chain (training positives)

[regions.edge_boxes]       # parameters of "edge-boxes", by the names of its paper; without it: chosen on validation
beta = 0.75                # boxes with a larger IoU are not both kept
gamma = 2.0
longer_side = 0            # pixels; 0: pictures keep their size

[file]                     # for a file of features (.npy, .npz, .safetensors), instead of [regions]
ids = "ids.txt"            # an image id or file name per row; leave it out if rows follow the corpus' images
array = "features"         # if the file has several arrays
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from deixis.errors import DeixisError
from deixis.files import read_toml
from deixis.vision import DETECTOR, TOWER, EdgeBoxesSettings

#: The backbone of a recipe that stores boxes only.
NO_BACKBONE = "none"
#: Suffixes of files of features.
FILES = (".npy", ".npz", ".safetensors")


class RegionRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boxes: str = "learned"
    count: Annotated[int, Meta(ge=1, le=2000)] = 100
    features: Literal["align", "crops", "head"] = "align"
    context: bool = False
    coordinates: bool = False
    bins: Annotated[int, Meta(ge=1, le=14)] = 1
    near_chains: Annotated[float, Meta(ge=0, le=1)] = 0.0
    edge_boxes: EdgeBoxesSettings | None = None

    def __post_init__(self) -> None:
        if self.bins > 1 and self.features != "align":
            raise ValueError(f"bins: only for features = 'align', not {self.features!r}")
        if self.edge_boxes is not None and self.boxes != "edge-boxes":
            raise ValueError(f"edge_boxes: parameters of boxes = 'edge-boxes', not of {self.boxes!r}")


#: Settings that were added later. They are left out where they have their default, so that features that were stored
#: before still belong to their recipe.
_ADDED = {field.name: field.default for field in msgspec.structs.fields(RegionRecipe)[-3:]}


class FileRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to read a file of features; see `deixis.features.precomputed`."""

    ids: str = ""
    array: str = ""


class FeatureRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`side` is used if the whole picture is seen at once (`one_pass`); None: that of the backbone."""

    backbone: str = "efficientnet-lite2"
    crops: Literal["whole", "grid", "centre", "ten", "squash"] = "centre"
    side: Annotated[int, Meta(ge=32, le=2048)] | None = None
    regions: RegionRecipe | None = None
    dtype: Literal["float16", "float32"] = "float16"
    file: FileRecipe | None = None

    def __post_init__(self) -> None:
        if self.from_file and self.regions:
            raise ValueError("a file of features cannot have [regions]; leave it out")
        if self.file and not self.from_file:
            raise ValueError(f"[file] is for a backbone that is a file of features ({', '.join(FILES)})")
        if self.backbone == NO_BACKBONE and self.regions is None:
            raise ValueError("without a backbone only the boxes of regions are stored; add [regions]")

    @property
    def from_file(self) -> bool:
        """Whether the features come from a file."""
        return self.backbone.endswith(FILES) and not self.backbone.startswith((TOWER, DETECTOR))

    @property
    def cropped(self) -> Literal["centre", "ten", "squash"] | None:
        """How pictures are cropped; None if vectors are pooled from the map of the whole picture."""
        return None if self.crops == "whole" or self.crops == "grid" else self.crops

    @property
    def one_pass(self) -> bool:
        """Whether the whole picture goes through the network at once."""
        return self.cropped is None or (self.regions is not None and self.regions.features != "crops")


def stored_settings(recipe: FeatureRecipe) -> dict[str, Any]:
    """The settings of a recipe as JSON values, as stores record them and as their names are hashed."""
    settings: dict[str, Any] = msgspec.to_builtins(recipe)
    if recipe.regions is not None:
        settings["regions"] = {
            name: value for name, value in settings["regions"].items() if name not in _ADDED or value != _ADDED[name]
        }
    return settings


def made_by(recipe: FeatureRecipe, provenance: Mapping[str, Any]) -> bool:
    """Whether features of this provenance match a recipe. There may be more regions: the best come first."""
    asked: dict[str, Any] = {"crops": recipe.crops}
    if recipe.backbone.startswith(DETECTOR):
        # Stores name the kind of a detector and the hash of its weights, not its file.
        if not str(provenance.get("backbone", "")).startswith(DETECTOR):
            return False
    else:
        asked["backbone"] = recipe.backbone
    if recipe.side:
        asked["side"] = recipe.side
    if recipe.regions is None:
        return asked.items() <= provenance.items()
    regions = provenance.get("regions") or {}
    settings = stored_settings(recipe)["regions"]
    count = settings.pop("count")
    same = all(regions.get(name) == value for name, value in settings.items())
    same = same and not any(name in regions and name not in settings for name in _ADDED)
    return asked.items() <= provenance.items() and same and count <= regions.get("count", 0)


BUILT_IN = {
    "image": FeatureRecipe(),
    "ten-crop": FeatureRecipe(crops="ten"),
    "regions": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe()),
    "drawn": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe(boxes="drawn")),
    # A count that leaves out no chain: row k is the k-th chain of an image that has boxes.
    "chains": FeatureRecipe(crops="whole", side=384, regions=RegionRecipe(boxes="chains", count=2000)),
}


def load_recipe(name: str | Path) -> FeatureRecipe:
    """A recipe by built-in name, from a TOML file, or for a file of features; errors name the file and the field."""
    if str(name) in BUILT_IN:
        return BUILT_IN[str(name)]
    path = Path(name)
    if path.suffix in FILES:
        return FeatureRecipe(backbone=str(name))
    if path.suffix != ".toml":
        others = f"a .toml file, or a file of features ({', '.join(FILES)})"
        raise DeixisError(f"unknown feature recipe {str(name)!r}; built in: {', '.join(BUILT_IN)}; or {others}")
    return read_toml(path, FeatureRecipe, "is no feature recipe")
