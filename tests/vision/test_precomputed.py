"""Features from files: the right row for the right image, and a clear line for every other file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deixis.corpus import Corpus, make_image
from deixis.errors import InputError
from deixis.features.precomputed import PrecomputedFeatures

ROWS = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
CORPUS = Corpus([make_image(name, file=f"{name}.jpg") for name in "abcd"])


def save(path: Path, rows: np.ndarray, **more: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, features=rows, **more)
    else:
        from safetensors.numpy import save_file

        save_file({"features": rows, **more}, path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_rows_follow_the_images(tmp_path: Path, suffix: str) -> None:
    features = PrecomputedFeatures(save(tmp_path / f"f{suffix}", ROWS), CORPUS)
    np.testing.assert_array_equal(features.vectors([CORPUS["c"], CORPUS["a"]]), ROWS[[2, 0]])
    assert features.channels == 6
    assert len(features.weights_sha256) == 64


def test_five_copies_an_image_as_in_vsepp(tmp_path: Path) -> None:
    features = PrecomputedFeatures(save(tmp_path / "dev_ims.npy", ROWS.repeat(5, 0)), CORPUS)
    np.testing.assert_array_equal(features.vectors(CORPUS), ROWS)
    with pytest.raises(InputError, match="5 different rows per image"):
        PrecomputedFeatures(save(tmp_path / "tiled.npy", np.tile(ROWS, (5, 1))), CORPUS)


def test_rows_by_ids_or_file_names(tmp_path: Path) -> None:
    path = save(tmp_path / "f.npy", ROWS)
    (tmp_path / "ids.txt").write_text("c.jpg\nelsewhere.jpg\na\r\nb.jpg\n")
    features = PrecomputedFeatures(path, CORPUS, ids=tmp_path / "ids.txt")
    np.testing.assert_array_equal(features.vectors([CORPUS[name] for name in "cab"]), ROWS[[0, 2, 3]])
    assert [features.has(image) for image in CORPUS] == [True, True, True, False]
    with pytest.raises(InputError, match=r"f\.npy: image d: has no row"):
        features.vectors([CORPUS["d"]])
    inside = save(tmp_path / "f.npz", ROWS, ids=np.array(list("dcba")))
    np.testing.assert_array_equal(PrecomputedFeatures(inside, CORPUS).vectors(CORPUS), ROWS[::-1])


def test_region_rows_keep_their_shape(tmp_path: Path) -> None:
    regions = np.random.default_rng(1).normal(size=(4, 36, 5)).astype(np.float16)
    features = PrecomputedFeatures(save(tmp_path / "f.npy", regions), CORPUS)
    np.testing.assert_array_equal(features.vectors([CORPUS["b"]]), regions[[1]])


def test_faults_are_reported(tmp_path: Path) -> None:
    cases = [
        (save(tmp_path / "short.npy", ROWS[:3]), "has 3 rows for 4 images"),
        (save(tmp_path / "flat.npy", ROWS.ravel()), "not floats"),
        (save(tmp_path / "whole.npy", ROWS.astype(int)), "not floats"),
        (save(tmp_path / "two.npz", ROWS, other=ROWS), "name the array to take; it has features, other"),
        (tmp_path / "absent.npy", "No such file"),
    ]
    np.save(tmp_path / "objects.npy", np.array([{}] * 4, dtype=object), allow_pickle=True)
    cases.append((tmp_path / "objects.npy", "cannot be read as features"))
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    cases.append((tmp_path / "torn.npz", "cannot be read as features"))
    (tmp_path / "f.mat").write_bytes(b"MATLAB")
    cases.append((tmp_path / "f.mat", "neither .npy"))
    for path, problem in cases:
        with pytest.raises(InputError, match=problem):
            PrecomputedFeatures(path, CORPUS)
    (tmp_path / "ids.txt").write_text("x\ny\n")
    with pytest.raises(InputError, match="4 rows, but 2 ids"):
        PrecomputedFeatures(save(tmp_path / "f.npy", ROWS), CORPUS, ids=tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_text("w\nx\ny\nz\n")
    with pytest.raises(InputError, match="lists no image of the corpus; its first id is 'w'"):
        PrecomputedFeatures(save(tmp_path / "f.npy", ROWS), CORPUS, ids=tmp_path / "ids.txt")
    bad = ROWS.copy()
    bad[2, 3] = np.nan
    features = PrecomputedFeatures(save(tmp_path / "nan.npy", bad), CORPUS)
    with pytest.raises(InputError, match="row 2: holds a value that is not a number"):
        features.vectors(CORPUS)
    np.testing.assert_array_equal(features.vectors([CORPUS["a"]]), ROWS[:1])
