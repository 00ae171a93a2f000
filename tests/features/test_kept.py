"""Kept features promise: extracted once, found again without pictures, never those of another corpus or recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from deixis.corpus import Box, Chain, Corpus, make_image
from deixis.errors import DeixisError, InputError
from deixis.features import mapper as mapper_room
from deixis.features.extraction import extract
from deixis.features.feature_recipe import BUILT_IN, FeatureRecipe, FileRecipe, RegionRecipe, made_by, stored_settings
from deixis.features.kept import features_for, kept_folder
from deixis.features.region_boxes import MergedBoxes, NearChains
from deixis.vision import EdgeBoxesSettings
from tests.features.fakes import FakeMapper, make_corpus


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The recipes that mappers were made for; the cache is a folder of the test."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    asked: list[str] = []

    def make_mapper(recipe: object, *, device: str) -> FakeMapper:
        asked.append(device)
        return FakeMapper(name=str(recipe))

    monkeypatch.setattr(mapper_room, "make_mapper", make_mapper)
    return asked


def test_extracted_once_and_found_again_without_pictures(made: list[str]) -> None:
    corpus = make_corpus(20, broken=[3])
    done: list[tuple[int, int]] = []
    first = features_for(corpus, BUILT_IN["image"], progress=lambda *numbers: done.append(numbers))
    assert done[-1] == (20, 20)
    assert len(first) == 19
    second = features_for(Corpus(corpus.images), BUILT_IN["image"])
    assert made == ["cpu"]
    assert second.fingerprint == first.fingerprint
    np.testing.assert_array_equal(np.asarray(second.image_vectors()), np.asarray(first.image_vectors()))


def test_an_unfinished_store_is_finished(made: list[str]) -> None:
    corpus = make_corpus(300)
    store = features_for(corpus, BUILT_IN["image"])
    (store.folder / "manifest.json").unlink()
    for path in store.folder.glob("partitions/00001.*"):
        path.unlink()
    assert len(features_for(corpus, BUILT_IN["image"])) == 300
    assert len(made) == 2


def test_other_corpora_and_recipes_have_stores_of_their_own(made: list[str]) -> None:
    corpora = [make_corpus(5), make_corpus(6)]
    folders = {kept_folder(corpus, recipe) for corpus in corpora for recipe in BUILT_IN.values()}
    assert len(folders) == 2 * len(BUILT_IN)


def test_other_pictures_of_the_same_corpus_are_refused(made: list[str]) -> None:
    features_for(make_corpus(5), BUILT_IN["image"])
    with pytest.raises(InputError, match="other pictures"):
        features_for(make_corpus(5, salt="other"), BUILT_IN["image"])


@pytest.mark.parametrize(
    ("recipe", "report"),
    [
        (BUILT_IN["image"], {"version": 0}),
        (BUILT_IN["regions"], {"regions": {"settings": {"weights_sha256": "another proposer's"}}}),
    ],
    ids=["mapper", "proposer"],
)
def test_features_that_an_earlier_release_made_in_another_way_are_refused(
    made: list[str], recipe: FeatureRecipe, report: dict[str, object]
) -> None:
    corpus, mapper = make_corpus(5), FakeMapper()
    mapper.provenance |= report
    extract(corpus, mapper, kept_folder(corpus, recipe))
    with pytest.raises(InputError, match="earlier Deixis"):
        features_for(corpus, recipe)


def test_without_pictures_and_store_nothing_can_be_had(made: list[str]) -> None:
    with pytest.raises(DeixisError, match="its pictures are missing"):
        features_for(Corpus(make_corpus(5).images, name="bare"), BUILT_IN["image"])


def test_a_file_of_features_is_kept_without_pictures(made: list[str], tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.save(tmp_path / "f.npy", rows)
    recipe, corpus = FeatureRecipe(backbone=str(tmp_path / "f.npy")), make_corpus(5)
    for same in (Corpus(corpus.images), corpus):
        np.testing.assert_array_equal(features_for(same, recipe).image_vectors()[:], rows.astype(np.float16))
    np.save(tmp_path / "f.npy", rows + 1)
    assert features_for(corpus, recipe).image_vectors()[0][0] == np.float16(rows[0, 0] + 1)
    assert made == []


def test_a_file_of_features_with_other_ids_is_read_again(made: list[str], tmp_path: Path) -> None:
    rows, ids = np.eye(5, dtype=np.float32), tmp_path / "ids.txt"
    np.save(tmp_path / "f.npy", rows)
    recipe, corpus = FeatureRecipe(str(tmp_path / "f.npy"), file=FileRecipe(str(ids))), make_corpus(5)
    for order in (range(5), range(4, -1, -1)):
        ids.write_text("".join(f"image {number}\n" for number in order))
        np.testing.assert_array_equal(features_for(corpus, recipe).image_vectors()[:], rows[list(order)])


def test_merged_boxes_are_one_a_chain_in_the_order_of_chains() -> None:
    boxes = [Box(0, 0, 10, 10), Box(20, 30, 40, 50), Box(4, 4, 8, 60)]
    chains = [Chain("7", (0, 1)), Chain("9"), Chain("3", (2,)), Chain("12", (0,))]
    image = make_image("one", width=100, height=100, boxes=boxes, chains=chains)
    # Half the original's size; chains are ordered by id: 3, 7, 9 (which has no box), 12.
    found = MergedBoxes()(image, Pillow.new("RGB", (50, 50)), 2000)
    assert found.tolist() == [[2, 2, 4, 30], [0, 0, 20, 25], [0, 0, 5, 5]]
    assert MergedBoxes()(make_image("none"), Pillow.new("RGB", (5, 5)), 2000).shape == (0, 4)


def test_settings_that_were_added_later_do_not_rename_older_stores() -> None:
    plain = FeatureRecipe(crops="whole", regions=RegionRecipe(boxes="edge-boxes"))
    assert set(stored_settings(plain)["regions"]) == {"boxes", "count", "features", "context", "coordinates"}
    chosen = FeatureRecipe(
        crops="whole", regions=RegionRecipe(boxes="edge-boxes", edge_boxes=EdgeBoxesSettings(beta=0.65))
    )
    provenance = {**stored_settings(plain), "version": 1}
    assert made_by(plain, provenance)
    assert not made_by(chosen, provenance)
    assert made_by(chosen, stored_settings(chosen))
    assert not made_by(plain, stored_settings(chosen))
    near = FeatureRecipe(crops="whole", regions=RegionRecipe(boxes="edge-boxes", near_chains=0.7))
    assert not made_by(plain, stored_settings(near))


def test_boxes_near_a_chain_are_kept() -> None:
    image = make_image(
        "a", width=100, height=100, boxes=[Box(0, 0, 20, 20), Box(30, 0, 50, 20)], chains=[Chain("1", (0, 1))]
    )

    class Three:
        def __init__(self) -> None:
            self.provenance = {"boxes": "three", "saw_boxes": False}

        def __call__(self, image, picture, count):
            return np.array([[0, 0, 48, 20], [0, 0, 20, 20], [60, 60, 80, 80]], np.float32)[:count]

    source = NearChains(Three(), 0.7)
    assert source(image, Pillow.new("RGB", (100, 100)), 3).tolist() == [[0, 0, 48, 20]]
    assert source.provenance["saw_boxes"]
    # The picture may be a smaller copy of the original.
    assert len(source(image, Pillow.new("RGB", (50, 50)), 3)) == 0
