"""Inputs that the tasks of several papers share: feature stores by role, fitted text features, initial word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.features.feature_recipe import FeatureRecipe
from deixis.text.featurizers import TextFeatures, TextRecipe, TokenIds, check_components, text_features
from deixis.text.vocabulary import SPECIALS
from deixis.training.recipe import regions_of

if TYPE_CHECKING:
    from deixis.features.store import FeatureStore

#: More merged boxes than any picture has, so that none is left out and all recipes share one store.
ALL_CHAINS = 2000
#: The folder of fitted text features in a run.
TEXT = "text"


def check_caption_count(recipe: TextRecipe, corpus: Corpus) -> None:
    """Raise a `DeixisError` if the training captions are fewer than the components of the text features' PCA."""
    if recipe.pca:
        check_components(recipe, sum(len(image.captions) for image in training_set(corpus)))


def initial_vectors(recipe: TextRecipe, training: TrainingSet, text: TextFeatures) -> Tensor:
    """The vectors that `vectors` of a text recipe names, by id `(ids, word)`, at unit length; zeros for unknown words.

    Some files have longer vectors than others. At the length of spaCy's, about 50, the gates of a recurrent network
    would start saturated.
    """
    if not isinstance(text, TokenIds):
        raise DeixisError("word_vectors = true is for text.kind 'tokens' alone")
    # A text of one word has that word's vector as its mean.
    mean = text_features(msgspec.structs.replace(recipe, kind="mean", minimum_count=1), training)
    words = torch.from_numpy(mean.transform([(word,) for word in text.vocabulary.words]))
    return torch.cat([words.new_zeros(len(SPECIALS), words.shape[1]), functional.normalize(words)])


def region_recipes(proposals: FeatureRecipe) -> list[FeatureRecipe]:
    """Features of proposals, and of all merged ground-truth boxes by the same backbone."""
    merged = msgspec.structs.replace(regions_of(proposals), boxes="chains", count=ALL_CHAINS, edge_boxes=None)
    return [proposals, msgspec.structs.replace(proposals, regions=merged)]


def find_store(stores: Sequence[FeatureStore], role: str) -> FeatureStore:
    """The feature store for `image` (whole pictures), `chains` (merged ground-truth boxes), `proposals` or `positives`.

    The first of several. For `image`, stores without regions come first.
    """
    if role == "image":
        matching = sorted(stores, key=lambda store: "regions" in store.plan.arrays)
    else:
        matching = [store for store in stores if _role(store) == role]
    if not matching:
        needed = {
            "image": "whole pictures (--features with any recipe)",
            "chains": "merged ground-truth boxes (the feature recipe `chains`)",
            "proposals": "proposals (a feature recipe with [regions])",
            "positives": "further positives (a feature recipe with regions.near_chains)",
        }[role]
        raise DeixisError(f"this recipe needs a feature store of {needed}; give it with --features STORE")
    return matching[0]


def _role(store: FeatureStore) -> str:
    regions = store.plan.provenance.get("regions") or {}
    if not regions.get("boxes"):
        return "image"
    if regions["boxes"] == "chains":
        return "chains"
    return "positives" if regions.get("near_chains") else "proposals"
