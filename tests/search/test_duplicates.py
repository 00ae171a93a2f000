"""Files that show the same are found, whatever their size and format; pictures that only look alike are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageEnhance

from deixis.cli import main
from deixis.search.collection import Collection
from deixis.search.duplicates import find_duplicates
from deixis.search.indexing import index_folders
from deixis.vision.fingerprints import BYTES, fingerprint, signs
from tests.search.fakes import COLOURS, ColourModel, paint


def photo(seed: int, size: tuple[int, int] = (400, 300)) -> Pillow.Image:
    """A picture with something in it: random blobs."""
    small = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    return Pillow.fromarray(small).resize(size, Pillow.Resampling.BICUBIC)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    photo(1).save(pictures / "one.png")
    photo(1).resize((200, 150)).save(pictures / "one-small.jpg", quality=60)
    ImageEnhance.Brightness(photo(1)).enhance(1.15).save(pictures / "one-brighter.jpg")
    photo(2).save(pictures / "two.png")
    (pictures / "two-copy.png").write_bytes((pictures / "two.png").read_bytes())
    photo(3).save(pictures / "three.png")
    for name in ("red", "blue", "white"):
        # Plain surfaces have no fingerprint.
        paint(pictures / f"{name}.png", COLOURS[name], (50, 50))
    index_folders(tmp_path / "index", [pictures], ColourModel(), "colours")
    return tmp_path / "index"


def test_groups_are_led_by_the_largest_picture(index: Path) -> None:
    collection = Collection(index)
    progress: list[tuple[int, int]] = []
    groups = find_duplicates(collection, lambda done, total: progress.append((done, total)))
    collection.close()
    names = {tuple(os.path.basename(copy.path).decode() for copy in group) for group in groups}
    assert {frozenset(group) for group in names} == {
        frozenset({"one.png", "one-small.jpg", "one-brighter.jpg"}),
        frozenset({"two.png", "two-copy.png"}),
    }
    (ones,) = (group for group in names if "one.png" in group)
    assert ones[-1] == "one-small.jpg"
    assert progress[-1] == (5, 5)


def test_every_picture_is_in_one_group_and_is_like_its_leader(tmp_path: Path) -> None:
    """A picture that fades into another, step by step, is not one group from end to end."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for step in range(21):
        Pillow.blend(photo(1), photo(2), step / 20).save(pictures / f"{step:02}.png")
    index_folders(tmp_path / "index", [pictures], ColourModel(), "colours")
    collection = Collection(tmp_path / "index")
    groups = find_duplicates(collection)
    assert len(groups) > 1
    paths = [copy.path for group in groups for copy in group]
    assert len(paths) == len(set(paths))
    for group in groups:
        bits = signs([collection.details(copy.picture).fingerprint for copy in group])
        assert ((bits != bits[0]).mean(1) <= 0.2).all()
    collection.close()


def test_fingerprints_survive_edits_and_distinguish_pictures() -> None:
    scenes = [photo(seed) for seed in range(8)]
    own = signs([fingerprint(scene) for scene in scenes])
    edited = signs([fingerprint(scene.resize((scene.width // 2, scene.height // 2))) for scene in scenes])
    assert len(fingerprint(scenes[0])) == BYTES
    assert (own != edited).mean(1).max() < 0.1
    different = [(own[a] != own[b]).mean() for a in range(8) for b in range(a)]
    assert min(different) > 0.2


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["deixis", "duplicates", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (None, 0)


def test_the_command_prints_groups_json_and_paths(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(monkeypatch, "--index", index)
    out = capsysbinary.readouterr().out.decode()
    assert "400 × 300" in out
    assert out.endswith("2 groups; files besides the largest of each: 3\n")
    run(monkeypatch, "--index", index, "--json")
    groups = json.loads(capsysbinary.readouterr().out)["groups"]
    assert sorted(len(group) for group in groups) == [2, 3]
    assert groups[0][0]["width"] == 400
    run(monkeypatch, "--index", index, "--paths-only", "--null")
    paths = capsysbinary.readouterr().out.split(b"\0")[:-1]
    assert len(paths) == 3
    assert all(os.path.exists(path) for path in paths)
