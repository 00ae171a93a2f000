"""PCA by blocks is scikit-learn's PCA, whatever the block, the float type, or the shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from deixis.errors import DeixisError, InputError
from deixis.text.streamed_pca import StreamedPCA


def _rows(count: int, dimensions: int) -> Any:
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, dimensions)) * np.linspace(3, 0.1, dimensions) + 50


@pytest.mark.parametrize(("count", "dimensions"), [(500, 20), (15, 40), (30, 30)])
@pytest.mark.parametrize("block", [7, 64, 10_000])
def test_it_is_scikit_learns(count: int, dimensions: int, block: int) -> None:
    rows = _rows(count, dimensions)
    ours = StreamedPCA(6, block=block, device="cpu").fit(rows)
    theirs = PCA(6, svd_solver="full").fit(rows)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-5)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-4)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-4)
    cosines = np.abs((ours.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-4)
    np.testing.assert_allclose(np.abs(ours.transform(rows)), np.abs(theirs.transform(rows)), atol=5e-3)


def test_components_without_variance_have_no_direction() -> None:
    """Fewer rows than dimensions, most of them copies: four directions, and none made of rounding errors."""
    different = _rows(5, 40)
    pca = StreamedPCA(12, device="cpu").fit(np.repeat(different, 4, axis=0))
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.diag([1.0] * 4 + [0.0] * 8), atol=1e-5)
    theirs = PCA(4).fit(np.repeat(different, 4, axis=0))
    np.testing.assert_allclose(pca.explained_variance_[:4], theirs.explained_variance_, rtol=1e-4)
    np.testing.assert_allclose(pca.explained_variance_[4:], 0, atol=1e-9)


def test_a_memory_map_of_float16_is_read_and_written_by_blocks(tmp_path: Path) -> None:
    rows = (_rows(300, 12) - 50).astype(np.float16)
    np.save(tmp_path / "rows.npy", rows)
    pca = StreamedPCA(4, block=50, device="cpu").fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float16, (300, 4))
    assert pca.transform(rows, out=out) is out
    np.testing.assert_allclose(
        out, PCA(4).fit(rows.astype(float)).transform(rows.astype(float)) * _signs(pca, rows), atol=0.02
    )
    with pytest.raises(DeixisError, match="out has shape"):
        pca.transform(rows, out=out[:, :2])


def _signs(pca: StreamedPCA, rows: Any) -> Any:
    theirs = PCA(4).fit(rows.astype(float))
    return np.sign((pca.components_ * theirs.components_).sum(axis=1))


def test_a_row_that_is_no_number_is_named() -> None:
    rows = _rows(100, 5)
    rows[77, 3] = np.nan
    with pytest.raises(ValueError, match="within rows 70 to 79"):
        StreamedPCA(2, block=10, device="cpu").fit(rows)


def test_a_device_that_is_not_there_is_reported() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeixisError, match="sees no GPU"):
        StreamedPCA(2, device="cuda").fit(_rows(10, 5))
    with pytest.raises(ValueError, match="'cuda', 'cpu' or None"):
        StreamedPCA(2, device="tpu").fit(_rows(10, 5))


def test_a_gpu_gives_what_the_processor_gives() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    for shape in ((500, 20), (15, 40)):
        rows = _rows(*shape)
        here, there = (StreamedPCA(6, block=64, device=device).fit(rows) for device in ("cpu", "cuda"))
        np.testing.assert_allclose(there.components_, here.components_, atol=1e-3)
        np.testing.assert_allclose(there.transform(rows), here.transform(rows), atol=1e-2)


def test_saved_and_loaded_it_projects_the_same(tmp_path: Path) -> None:
    rows = _rows(60, 8)
    pca = StreamedPCA(3, device="cpu").fit(rows)
    pca.save(tmp_path / "pca.safetensors")
    again = StreamedPCA.load(tmp_path / "pca.safetensors", device="cpu")
    np.testing.assert_array_equal(again.transform(rows), pca.transform(rows))
    with pytest.raises(InputError, match="does not hold a PCA"):
        StreamedPCA.load(tmp_path / "absent.safetensors")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([StreamedPCA(1, device="cpu")])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)
