"""Feature stores in the cache folder: features of a corpus and a recipe are extracted once.

The name of a store is a hash of corpus and recipe, so a finished store can be opened, or copied to another machine,
without pictures and backbone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from deixis.corpus import Corpus
from deixis.errors import InputError
from deixis.features.extraction import extract, sample_hash
from deixis.features.feature_recipe import FeatureRecipe, stored_settings
from deixis.features.layout import MANIFEST, PLAN
from deixis.features.store import FeatureStore
from deixis.files import cache_folder, in_turn
from deixis.vision import DETECTOR, TOWER


def features_for(
    corpus: Corpus,
    recipe: FeatureRecipe,
    *,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FeatureStore:
    """The features of all images of a corpus, extracted into the cache folder if they are not there yet.

    Pass the whole corpus, not a split of it: each corpus has its own store. A killed extraction is continued.

    Args:
        corpus: its pictures may be absent if the store is finished.
        recipe: which features.
        device: `cpu` or `cuda`.
        progress: called with the number of finished images and of all images.

    Raises:
        InputError: the store was made from other pictures of the same corpus, or by an incompatible version.
    """
    folder = kept_folder(corpus, recipe)
    if not (folder / MANIFEST).exists():
        with in_turn(folder):
            if not (folder / MANIFEST).exists():
                _make(folder, corpus, recipe, device, progress)
    store = FeatureStore(folder)
    if recipe.from_file:
        return store
    if _made_otherwise(store, recipe):
        raise InputError(folder, "holds features as an earlier Deixis made them; remove it to extract them again")
    pictures = corpus.pictures
    made_of = store.plan.provenance["pictures_sha256"]
    if pictures is not None and any(map(pictures.has, corpus)) and sample_hash(pictures, corpus) != made_of:
        raise InputError(
            folder, f"holds features of other pictures of {corpus.name!r}; remove it to extract them again"
        )
    return store


def _make(
    folder: Path, corpus: Corpus, recipe: FeatureRecipe, device: str, progress: Callable[[int, int], None]
) -> None:
    origin = {"corpus": corpus.fingerprint}
    if recipe.from_file:
        from deixis.features.precomputed import precomputed

        rows, with_rows = precomputed(recipe, corpus)
        extract(with_rows, rows, folder, provenance=origin, progress=progress)
    else:
        from deixis.features.mapper import make_mapper

        extract(corpus, make_mapper(recipe, device=device), folder, provenance=origin, progress=progress)


def _made_otherwise(store: FeatureStore, recipe: FeatureRecipe) -> bool:
    """Whether the recipe gives other features today: the mapper or the packaged proposer has changed."""
    from deixis.features.mapper import VERSION
    from deixis.vision.learned_proposals import BUNDLED
    from deixis.vision.weights import file_sha256

    provenance = store.plan.provenance
    if provenance.get("version", VERSION) != VERSION:
        return True
    if recipe.regions is None or recipe.regions.boxes != "learned":
        return False
    return bool(provenance["regions"]["settings"]["weights_sha256"] != file_sha256(BUNDLED))


def kept_folder(corpus: Corpus, recipe: FeatureRecipe) -> Path:
    """The folder of the store of a corpus and a recipe; files named in the recipe are hashed by content."""
    digest = hashlib.sha256(corpus.fingerprint.encode() + b"\n" + msgspec.json.encode(stored_settings(recipe)))
    boxes, ids = recipe.regions.boxes if recipe.regions else "", recipe.file.ids if recipe.file else ""
    for name in (recipe.backbone.removeprefix(TOWER).removeprefix(DETECTOR), boxes, ids):
        for path in (Path(name), Path(name) / PLAN):
            if path.is_file():
                # Files of features may be larger than memory.
                with path.open("rb") as stream:
                    while block := stream.read(1 << 24):
                        digest.update(block)
    return cache_folder() / "features" / digest.hexdigest()[:32]
