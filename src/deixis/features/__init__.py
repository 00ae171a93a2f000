"""Features on disk: the store, and the extraction that fills it (imported when it is first used)."""

from typing import TYPE_CHECKING, Any

from deixis.features.arrays import FixedArray, Ragged, RaggedArray
from deixis.features.layout import ArraySpec, Plan
from deixis.features.store import FeatureStore

if TYPE_CHECKING:
    from deixis.features.extraction import Report, extract
    from deixis.features.picture_loading import Mapper

__all__ = ["ArraySpec", "FeatureStore", "FixedArray", "Mapper", "Plan", "Ragged", "RaggedArray", "Report", "extract"]


def __getattr__(name: str) -> Any:
    if name in ("Mapper", "Report", "extract"):
        from deixis.features import extraction, picture_loading

        return getattr(picture_loading if name == "Mapper" else extraction, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
