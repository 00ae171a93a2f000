"""On real photos: every one is read, and the default network, preprocessed as we do it, names what is in them."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from deixis.corpus.tree import FileTree, open_tree
from deixis.vision.reading import decode_picture, read_size

FLICKR8K = Path(os.environ.get("DEIXIS_DATA", "no data")) / "flickr8k"
pytestmark = pytest.mark.skipif(not FLICKR8K.is_dir(), reason="needs DEIXIS_DATA, a folder that holds flickr8k")
#: ImageNet's classes of dogs, 118 of 1,000.
DOGS = range(151, 269)


@pytest.fixture(scope="module")
def pictures() -> FileTree:
    return open_tree(FLICKR8K / "images_320px.zip")


def test_photos_are_read_at_the_size_their_header_gives(pictures: FileTree) -> None:
    names = [name for name in pictures.names() if name.endswith(".jpg")]
    assert len(names) == 8091
    for name in names[::40]:
        data = pictures.read(name)
        picture = decode_picture(data, name=name)
        assert picture.size == read_size(data)
        assert max(picture.size) == 320


def test_the_default_network_sees_dogs(pictures: FileTree) -> None:
    import torch

    from deixis.vision.backbones import as_bytes
    from deixis.vision.crops import centre_crop
    from deixis.vision.efficientnet_lite import VARIANTS, load_efficientnet_lite

    captions = defaultdict(list)
    for line in (FLICKR8K / "Flickr8k.token.txt").read_text().splitlines():
        name, text = line.split("\t")
        captions[name.split("#")[0]].append(text.lower().split())
    train = (FLICKR8K / "Flickr_8k.trainImages.txt").read_text().split()
    with_dog = [name for name in train if all("dog" in words for words in captions[name])][:24]
    without = [name for name in train if not any({"dog", "dogs", "puppy"} & set(words) for words in captions[name])][
        :24
    ]
    paths = {Path(name).name: name for name in pictures.names()}
    network, side = load_efficientnet_lite("efficientnet-lite2"), VARIANTS["efficientnet-lite2"].side

    def share_of_dogs(names: list[str]) -> float:
        found = 0
        for name in names:
            picture = decode_picture(pictures.read(paths[name]), name=name)
            batch = as_bytes(centre_crop(picture, side, side / (side + 32)))[None]
            with torch.no_grad():
                found += int(network((batch.float() - 127) / 128).argmax()) in DOGS
        return found / len(names)

    assert share_of_dogs(with_dog) >= 0.75
    assert share_of_dogs(without) <= 0.1
