"""Features on disk: the store, and the extraction that fills it."""

from deixis.features.arrays import FixedArray, Ragged, RaggedArray
from deixis.features.extraction import Report, extract
from deixis.features.layout import ArraySpec, Plan
from deixis.features.picture_loading import Mapper
from deixis.features.store import FeatureStore

__all__ = ["ArraySpec", "FeatureStore", "FixedArray", "Mapper", "Plan", "Ragged", "RaggedArray", "Report", "extract"]
