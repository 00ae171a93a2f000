"""The mapper promises: what extraction stores equals what the backbone gives one picture at a time."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from deixis.corpus import Box, Corpus, Image, make_image
from deixis.corpus.pictures import RenderedPictures
from deixis.errors import DeixisError, InputError
from deixis.features.extraction import extract
from deixis.features.feature_recipe import BUILT_IN, FeatureRecipe, RegionRecipe, load_recipe
from deixis.features.mapper import BackboneMapper, BoxMapper, make_mapper
from deixis.features.picture_loading import read
from deixis.features.region_boxes import DrawnBoxes, LearnedBoxes, ProposedBoxes, StoredBoxes, load_boxes
from deixis.features.store import FeatureStore
from deixis.vision.backbones import NetworkBackbone, NetworkInput, as_bytes
from deixis.vision.learned_proposals import BUNDLED, LearnedProposals
from deixis.vision.proposals import Proposals
from deixis.vision.reading import read_picture
from deixis.vision.regions import box_crops, roi_align
from deixis.vision.weights import state_sha256

CHANNELS = 24
SIZES = [(120, 80), (80, 120), (96, 96), (120, 80), (100, 60), (80, 120), (120, 80), (97, 95)]


@pytest.fixture(scope="module")
def backbone() -> NetworkBackbone:
    """A network of one layer: what is tested is what is put in and taken out."""
    network = torch.nn.Conv2d(3, CHANNELS, 16, stride=16)
    torch.nn.init.normal_(network.weight, std=0.1, generator=torch.Generator().manual_seed(3))
    return NetworkBackbone(
        "tiny",
        network,
        NetworkInput(64, 0.875, (127.0,) * 3, (64.0,) * 3),
        vectors=lambda batch: network(batch).relu().mean((-2, -1)),
        maps=lambda batch: network(batch).relu(),
        weights_sha256=state_sha256(network),
    )


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Pictures at half the original's size, 0 to 3 boxes each, one of them broken."""
    generator = np.random.default_rng(5)
    files: dict[str, bytes] = {}
    images = []
    for number, (width, height) in enumerate(SIZES):
        pixels = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Pillow.fromarray(pixels).resize((width, height), Pillow.Resampling.BICUBIC).save(stream, "PNG")
        boxes = [Box(4.0 * k, 6.0, 60.0 + 20 * k, 100.0) for k in range(number % 4)]
        files[f"p{number}"] = stream.getvalue()
        images.append(make_image(f"p{number}", width=2 * width, height=2 * height, boxes=boxes))
    files["broken"] = b"\xff\xd8 no picture"
    images.insert(3, make_image("broken"))
    return Corpus(images, name="small", pictures=RenderedPictures(files, files.__getitem__))


def stored(corpus: Corpus, recipe: FeatureRecipe, backbone: NetworkBackbone, folder: Path) -> FeatureStore:
    extract(corpus, BackboneMapper(recipe, backbone, DrawnBoxes()), folder, partition_size=4)
    return FeatureStore(folder)


def close(ours: Any, expected: Any) -> None:
    expected = np.asarray(expected, np.float32)
    np.testing.assert_allclose(
        ours.astype(np.float32), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max(initial=0)
    )


def whole_pictures(corpus: Corpus) -> list[tuple[Image, Pillow.Image]]:
    return [(image, read_picture(corpus, image)) for image in corpus if image.id != "broken"]


@pytest.mark.parametrize("crops", ["centre", "ten", "squash"])
def test_image_vectors_are_the_mean_over_the_crops(
    corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path, crops: Any
) -> None:
    store = stored(corpus, FeatureRecipe(crops=crops), backbone, tmp_path)
    assert store.skipped.keys() == {"broken"}
    assert list(store.plan.arrays) == ["image", "size"]
    for number, (image, picture) in enumerate(whole_pictures(corpus)):
        close(store["image"][number], backbone.vectors(backbone.preprocess(picture, crops)).mean(0))
        assert store["size"][number].tolist() == [image.width, image.height]


def test_a_grid_has_the_mean_of_each_ninth_of_the_map(
    corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path
) -> None:
    store = stored(corpus, FeatureRecipe(crops="grid", side=192), backbone, tmp_path)
    for number, (_, picture) in enumerate(whole_pictures(corpus)):
        values = backbone.maps(backbone.whole(picture, 192)[None]).values[0]
        cells = store["image"][number].reshape(-1, 3, 3)
        assert len(cells) == backbone.map_channels
        height, width = values.shape[1:]
        for row, column in ((0, 0), (0, 2), (1, 1), (2, 1)):
            rows = slice(row * height // 3, -(-(row + 1) * height // 3))
            columns = slice(column * width // 3, -(-(column + 1) * width // 3))
            close(cells[:, row, column], values[:, rows, columns].mean((1, 2)))


def test_regions_are_aligned_on_the_map_of_the_whole_picture(
    corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path
) -> None:
    recipe = FeatureRecipe(crops="whole", side=160, regions=RegionRecipe(context=True, coordinates=True))
    store = stored(corpus, recipe, backbone, tmp_path)
    assert store.plan.arrays["regions"].shape == (2 * CHANNELS + 5,)
    assert [len(store.boxes(image_id)) for image_id in store.ids] == [number % 4 for number in range(len(SIZES))]
    for image, picture in whole_pictures(corpus):
        pixels = backbone.whole(picture, 160)
        maps = backbone.maps(pixels[None])
        number = store.numbers([image.id])[0]
        close(store["image"][number], maps.values.mean((-2, -1))[0])
        drawn = np.array([(box.x1, box.y1, box.x2, box.y2) for box in image.boxes]).reshape(-1, 4)
        np.testing.assert_allclose(store.boxes(image.id), drawn, atol=1e-4)
        for row, (x1, y1, x2, y2) in zip(store.regions(image.id), drawn, strict=True):
            across, down = pixels.shape[2] / image.width, pixels.shape[1] / image.height
            box = torch.tensor([[x1 * across, y1 * down, x2 * across, y2 * down]], dtype=torch.float32)
            close(row[:CHANNELS], roi_align(maps, box, torch.tensor([0])).mean((-2, -1))[0])
            close(row[CHANNELS:-5], maps.values.mean((-2, -1))[0])
            area = (x2 - x1) * (y2 - y1) / (image.width * image.height)
            relative = [x1 / image.width, y1 / image.height, x2 / image.width, y2 / image.height, area]
            close(row[-5:], relative)


def test_regions_by_a_pass_a_box(corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path) -> None:
    recipe = FeatureRecipe(regions=RegionRecipe(features="crops", count=2))
    store = stored(corpus.subset(["p0", "p3"]), recipe, backbone, tmp_path)
    assert store.regions("p0").shape == (0, CHANNELS)
    picture = read_picture(corpus, corpus["p3"])
    boxes = corpus["p3"].scaled_boxes(*picture.size)[:2]
    for row, box in zip(store.regions("p3"), boxes, strict=True):
        corners = torch.tensor([[box.x1, box.y1, box.x2, box.y2]])
        close(row, backbone.vectors(box_crops(as_bytes(picture), corners, backbone.side))[0])


def test_large_photos_are_decoded_small_and_keep_their_size(backbone: NetworkBackbone, tmp_path: Path) -> None:
    stream = io.BytesIO()
    Pillow.linear_gradient("L").resize((1600, 1200)).convert("RGB").save(stream, "JPEG")
    data = stream.getvalue()
    corpus = Corpus([make_image("photo")], pictures=RenderedPictures(["photo"], lambda image_id: data))
    mapper = BackboneMapper(FeatureRecipe(crops="squash"), backbone, DrawnBoxes())
    assert mapper.prepare(corpus["photo"], data).decoded == (200, 150)
    store = stored(corpus, FeatureRecipe(crops="squash"), backbone, tmp_path)
    assert store["size"][0].tolist() == [1600, 1200]
    exact = backbone.vectors(backbone.preprocess(read_picture(corpus, corpus["photo"]), "squash"))[0]
    np.testing.assert_allclose(store["image"][0], exact, atol=0.02 * float(exact.max()))


class HalfAndWhole:
    """A proposal method: the picture, and its left half."""

    name, saw_boxes, settings = "half and whole", False, {"parts": 2}

    def propose(self, picture: Pillow.Image, count: int) -> Proposals:
        width, height = picture.size
        boxes = np.array([(0, 0, width, height), (0, 0, width / 2, height)], np.float32)
        return Proposals(boxes[:count], np.ones(min(count, 2), np.float32))


def test_a_proposal_method_gives_the_boxes(corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path) -> None:
    source = ProposedBoxes(HalfAndWhole())
    mapper = BackboneMapper(FeatureRecipe(regions=RegionRecipe(count=5)), backbone, source)
    assert mapper.provenance["regions"]["boxes"] == "half and whole"
    assert mapper.provenance["regions"]["settings"] == {"parts": 2}
    extract(corpus, mapper, tmp_path)
    store = FeatureStore(tmp_path)
    for image_id in store.ids:
        # In the original's pixels, though the picture at hand is half as large.
        width, height = corpus[image_id].width, corpus[image_id].height
        np.testing.assert_allclose(store.boxes(image_id), [(0, 0, width, height), (0, 0, width / 2, height)])


def test_pictures_of_all_shapes_may_come_together(corpus: Corpus, backbone: NetworkBackbone) -> None:
    """As they do on a GPU."""
    recipe = FeatureRecipe(crops="whole", side=160, regions=RegionRecipe(context=True))
    mapper = BackboneMapper(recipe, backbone, DrawnBoxes())
    assert corpus.pictures is not None
    prepared = [mapper.prepare(image, corpus.pictures.read(image)) for image, _ in whole_pictures(corpus)]
    assert len({picture.shape for picture in prepared}) > 2
    for picture, together in zip(prepared, mapper(prepared), strict=True):
        for name, values in mapper([picture])[0].items():
            close(together[name], values)


@pytest.mark.skipif(sys.platform != "linux", reason="readers are processes on Linux alone")
@pytest.mark.parametrize("recipe", [
    FeatureRecipe(crops="ten", side=96, regions=RegionRecipe()),
    FeatureRecipe(regions=RegionRecipe(features="crops")),
])  # fmt: skip
def test_what_is_read_in_processes_is_what_threads_read(
    corpus: Corpus, backbone: NetworkBackbone, recipe: FeatureRecipe
) -> None:
    """As beside a GPU: pixels come through shared memory or, where they are many, through a pipe."""
    mapper = BackboneMapper(recipe, backbone, DrawnBoxes())
    assert corpus.pictures is not None
    beside = list(read(corpus.pictures, mapper, corpus, 2))
    mapper.read_apart = True
    for ours, theirs in zip(read(corpus.pictures, mapper, corpus, 2), beside, strict=True):
        assert (ours.image, ours.reason, ours.picture is None) == (theirs.image, theirs.reason, theirs.picture is None)
        for name, value in vars(theirs.picture).items() if theirs.picture is not None else ():
            np.testing.assert_array_equal(getattr(ours.picture, name), value)


@pytest.fixture(scope="module")
def learned() -> LearnedProposals:
    return LearnedProposals.load(BUNDLED)


def test_learned_boxes_of_a_batch_are_those_of_each_picture(
    corpus: Corpus, backbone: NetworkBackbone, learned: LearnedProposals, tmp_path: Path
) -> None:
    recipe = FeatureRecipe(crops="whole", side=160, regions=RegionRecipe(count=20, coordinates=True))
    batched = BackboneMapper(recipe, backbone, LearnedBoxes(learned))
    one_by_one = BackboneMapper(recipe, backbone, ProposedBoxes(learned))
    assert batched.provenance == one_by_one.provenance
    few = corpus.subset(["p0", "p1", "p3", "p6"])
    for folder, mapper in (("batched", batched), ("one", one_by_one)):
        extract(few, mapper, tmp_path / folder)
    ours, theirs = FeatureStore(tmp_path / "batched"), FeatureStore(tmp_path / "one")
    for image in few:
        assert 0 < len(ours.boxes(image.id)) <= 20
        np.testing.assert_allclose(ours.boxes(image.id), theirs.boxes(image.id), atol=1e-3)
        close(ours.regions(image.id), theirs.regions(image.id))


def test_learned_boxes_are_there_before_they_are_cut_out(
    corpus: Corpus, backbone: NetworkBackbone, learned: LearnedProposals, tmp_path: Path
) -> None:
    recipe = FeatureRecipe(regions=RegionRecipe(count=2, features="crops"))
    extract(corpus.subset(["p0"]), BackboneMapper(recipe, backbone, LearnedBoxes(learned)), tmp_path)
    store = FeatureStore(tmp_path)
    expected = learned.propose(read_picture(corpus, corpus["p0"]), 2).boxes * 2
    np.testing.assert_allclose(store.boxes("p0"), expected, atol=1e-3)
    assert store.regions("p0").shape == (2, CHANNELS)


def test_boxes_alone_are_the_boxes_of_a_later_extraction(
    corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path
) -> None:
    """Found once, where the method is; features where the network is, here on other copies of the pictures."""
    alone = BoxMapper(FeatureRecipe(backbone="none", regions=RegionRecipe(count=5)), ProposedBoxes(HalfAndWhole()))
    extract(corpus, alone, tmp_path / "boxes")
    boxes = FeatureStore(tmp_path / "boxes")
    assert set(boxes.plan.arrays) == {"boxes", "size"}
    assert boxes.skipped.keys() == {"broken"}
    source = load_boxes(str(tmp_path / "boxes"))
    assert isinstance(source, StoredBoxes)
    assert source.provenance["boxes"] == "half and whole"
    assert source.provenance["saw_boxes"] is False
    assert source.provenance["box_store"] == boxes.fingerprint
    recipe = FeatureRecipe(crops="whole", side=160, regions=RegionRecipe())
    extract(corpus, BackboneMapper(recipe, backbone, source), tmp_path / "features")
    direct = BackboneMapper(recipe, backbone, ProposedBoxes(HalfAndWhole()))
    extract(corpus, direct, tmp_path / "direct")
    ours, theirs = FeatureStore(tmp_path / "features"), FeatureStore(tmp_path / "direct")
    for image_id in theirs.ids:
        np.testing.assert_allclose(ours.boxes(image_id), theirs.boxes(image_id), rtol=1e-6)
        close(ours.regions(image_id), theirs.regions(image_id))
    smaller = Pillow.new("RGB", (30, 20))
    np.testing.assert_allclose(source(corpus["p0"], smaller, 1), [(0, 0, 30, 20)], atol=1e-4)
    with pytest.raises(DeixisError, match="no features of image 'elsewhere'"):
        source(make_image("elsewhere"), smaller, 1)


def test_a_store_without_boxes_gives_none(corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path) -> None:
    stored(corpus.subset(["p0"]), FeatureRecipe(), backbone, tmp_path / "image")
    with pytest.raises(InputError, match="without boxes"):
        load_boxes(str(tmp_path / "image"))
    with pytest.raises(InputError, match="is not a feature store"):
        load_boxes(str(tmp_path))


def test_the_provenance_distinguishes_recipes_and_weights(backbone: NetworkBackbone) -> None:
    def provenance(recipe: FeatureRecipe) -> dict[str, Any]:
        return BackboneMapper(recipe, backbone, DrawnBoxes()).provenance

    plain = provenance(FeatureRecipe())
    assert plain["weights_sha256"] == backbone.weights_sha256
    assert plain["side"] == backbone.side
    regions = provenance(FeatureRecipe(regions=RegionRecipe()))
    assert regions["regions"]["saw_boxes"] is True
    assert plain != provenance(FeatureRecipe(crops="ten"))


def test_batches_are_mapped_in_one_thread_each_and_torch_keeps_its_own(
    corpus: Corpus, backbone: NetworkBackbone, tmp_path: Path
) -> None:
    seen: list[int] = []

    class Watching(BackboneMapper):
        def __call__(self, batch: Any) -> Any:
            made = super().__call__(batch)
            seen.append(torch.get_num_threads())
            return made

    before = torch.get_num_threads()
    extract(corpus, Watching(FeatureRecipe(), backbone, DrawnBoxes()), tmp_path)
    assert set(seen) == {1}
    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before


def test_recipes_are_found_by_name_or_file(tmp_path: Path) -> None:
    assert load_recipe("image") == BUILT_IN["image"]
    path = tmp_path / "mine.toml"
    path.write_text('crops = "whole"\nside = 320\n[regions]\ncount = 50\ncontext = true\n')
    assert load_recipe(path) == FeatureRecipe(crops="whole", side=320, regions=RegionRecipe(count=50, context=True))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("side = 'large'", r"\$\.side"),
        ("[regions]\ncount = 0", r"\$\.regions\.count"),
        ("[regions]\nfeatures = 'pooled'", r"\$\.regions\.features"),
        ("colour = 'blue'", "colour"),
        ("side = ", "end of document"),
        ("backbone = 'none'", "add \\[regions\\]"),
    ],
)
def test_a_fault_in_a_recipe_names_the_file_and_the_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as fault:
        load_recipe(path)
    assert fault.value.path == str(path)


def test_unknown_recipes_boxes_and_devices_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DeixisError, match="built in: image, ten-crop, regions, drawn"):
        load_recipe("everything")
    with pytest.raises(InputError, match="No such file"):
        load_recipe(tmp_path / "absent.toml")
    with pytest.raises(DeixisError, match="unknown device 'tpu'"):
        make_mapper(FeatureRecipe(), device="tpu")
    with pytest.raises(DeixisError, match="unknown proposals 'guessed'"):
        make_mapper(FeatureRecipe(regions=RegionRecipe(boxes="guessed")))
