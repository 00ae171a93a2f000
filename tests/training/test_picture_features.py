"""Features of any picture: what a picture file gives is what a store of the same pictures holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import open_corpus
from deixis.errors import DeixisError, InputError
from deixis.features.kept import features_for
from deixis.model import ImageFeatures, store_images
from deixis.training.feature_model import PictureFeatures, as_region
from deixis.training.inputs import find_store
from deixis.training.kinds import kind_of
from deixis.training.recipe import check_recipe
from deixis.vision.picture_files import read_picture_file

REGIONS = {"backbone": "efficientnet-lite0", "crops": "whole", "side": 96, "regions": {"boxes": "grid", "count": 12}}
SCHEDULE = {"epochs": 1, "learning_rate": 1e-3}
HM: dict[str, Any] = {"kind": "hm-lstm", "features": REGIONS, "alternation": {"coarse": 1, "rounds": 0}, "regions": 5}


def _features(recipe: Any) -> Any:
    return kind_of(recipe.kind).features(recipe)


def _recipe(settings: dict[str, Any]) -> Any:
    return check_recipe({"name": "x", "corpus": "scenes", "schedule": SCHEDULE, **settings}, "x")


@pytest.mark.parametrize("drawn", [False, True])
def test_a_picture_file_gives_what_the_store_holds(
    drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    whole = open_corpus("scenes")
    corpus = whole.with_images(whole.images[:2])
    recipe = _recipe({**HM, "drawn_regions": drawn})
    store = find_store([features_for(corpus, each) for each in kind_of("hm-lstm").features(recipe)], "proposals")
    pictures = PictureFeatures(_features(recipe), by_regions=True, regions_kept=5)
    assert corpus.pictures is not None
    for image, stored in zip(corpus, store_images(store, [image.id for image in corpus]), strict=True):
        path = tmp_path / f"{image.id}.png"
        path.write_bytes(corpus.pictures.read(image))
        from_file, from_picture = pictures([pictures.prepare(path), pictures.prepare(read_picture_file(path))])
        assert from_file.size == stored.size
        assert stored.regions is not None
        assert stored.boxes is not None
        for seen in (from_file, from_picture):
            assert seen.boxes is not None
            assert np.array_equal(seen.boxes, stored.boxes[:5])
            for name in ("image", "regions"):
                there = getattr(stored, name)[: None if name == "image" else 5]
                np.testing.assert_allclose(getattr(seen, name), there, rtol=0.01, atol=0.01)


def test_context_and_concepts_come_from_their_own_recipes(tmp_path: Path) -> None:
    concepts = tmp_path / "concepts.toml"
    concepts.write_text(
        'name = "c"\nkind = "concepts"\ncorpus = "scenes"\n[features]\nbackbone = "efficientnet-lite0"\n'
        'crops = "whole"\nside = 96\n[features.regions]\nboxes = "grid"\ncount = 7\n'
        "[schedule]\nepochs = 1\nlearning_rate = 1e-3\n"
    )
    context = {"backbone": "efficientnet-lite0", "crops": "squash"}
    recipe = _recipe({"kind": "concepts-order", "features": context, "concepts": str(concepts)})
    whole = open_corpus("scenes")
    assert whole.pictures is not None
    (tmp_path / "a.png").write_bytes(whole.pictures.read(whole.images[0]))
    pictures = PictureFeatures(_features(recipe))
    (found,) = pictures([pictures.prepare(tmp_path / "a.png")])
    assert found.regions is not None
    assert found.whole is not None
    assert len(found.regions) == 7
    assert not np.array_equal(found.whole, found.image)


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    pictures = PictureFeatures(_features(_recipe(HM)))
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(InputError, match=r"a\.jpg"):
        pictures.prepare(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="No such file"):
        pictures.prepare(tmp_path / "b.jpg")
    with pytest.raises(DeixisError, match="cannot be computed"):
        PictureFeatures(_features(_recipe({"kind": "concepts-order", "features": {"backbone": "f.npy"}})))


def test_a_whole_picture_gets_coordinates_where_regions_have_them() -> None:
    picture, boxes = np.ones(4, np.float16), np.array([[0, 0, 2, 2]], np.float32)
    with_coordinates = ImageFeatures(picture, np.ones((1, 9), np.float16), boxes, (4, 4))
    assert as_region(with_coordinates, picture).tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1]
    for regions in (None, np.ones((1, 4), np.float16)):
        assert as_region(ImageFeatures(picture, regions, boxes, (4, 4)), picture) is picture
