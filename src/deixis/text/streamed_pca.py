"""PCA of more rows than memory holds, on a GPU if there is one: 18,000-d Fisher vectors to 6,000 (two-branch, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write


class StreamedPCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Principal components from a covariance that is summed block by block.

    With :math:`\bar x` the mean of the n rows, the components are the eigenvectors of

    .. math::
        C = \frac{1}{n - 1} \Big( \sum_i (x_i - c)(x_i - c)^\top - n (\bar x - c)(\bar x - c)^\top \Big)

    for any fixed c: the mean of the first block, so that the two terms are not large and nearly equal. Products of a
    block are single precision, their sum and the eigenvectors double. Rows may be a memory-map of any float type; one
    block of them is in memory at a time, beside a matrix of dimensions². With fewer rows than dimensions, the
    eigenvectors come from the smaller matrix of the rows' products instead.

    The outcome is that of scikit-learn's `PCA`, up to signs (the largest entry of a component is positive here).
    `IncrementalPCA` is for few components: it decomposes a block of at least `n_components` rows at every step.

    Parameters
    ----------
    n_components : int
        At most the number of rows and of dimensions.
    block : int
        Rows in memory at a time.
    device : {"cuda", "cpu"} or None
        Where to compute; None takes a GPU if PyTorch sees one.

    Attributes
    ----------
    mean_ : (dimensions,) of float32
    components_ : (n_components, dimensions) of float32
    explained_variance_, explained_variance_ratio_ : (n_components,)

    References
    ----------
    I. T. Jolliffe. "Principal Component Analysis", 2nd edition, Springer 2002.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [3, 2, 1]
    >>> pca = StreamedPCA(n_components=2, device="cpu").fit(rows)
    >>> np.abs(pca.components_).round(1).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    def __init__(self, n_components: int = 6000, *, block: int = 4096, device: str | None = None) -> None:
        self.n_components = n_components
        self.block = block
        self.device = device

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Fit to rows X (rows, dimensions)."""
        rows = self._checked(X, reset=True)
        count, dimensions = rows.shape
        if not 1 <= self.n_components <= min(count, dimensions):
            raise ValueError(f"n_components={self.n_components} must be within 1 and {min(count, dimensions)}")
        cuda = _cuda(self.device)
        values, vectors = (self._of_rows if count < dimensions else self._of_dimensions)(rows, cuda)
        signs = np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1))
        self.components_ = np.ascontiguousarray(vectors * signs, dtype=np.float32)
        self.explained_variance_ = np.maximum(values, 0.0)
        self.explained_variance_ratio_ = self.explained_variance_ / (self._total_variance or 1.0)
        return self

    def transform(self, X: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Project rows, (rows, n_components); `out` may be an array or memory-map of any float type to fill."""
        check_is_fitted(self)
        rows = self._checked(X, reset=False)
        if out is None:
            out = np.empty((len(rows), len(self.components_)), dtype=np.float32)
        if out.shape != (len(rows), len(self.components_)):
            raise DeixisError(f"out has shape {out.shape}, not {(len(rows), len(self.components_))}")
        cuda = _cuda(self.device)
        projection = cuda.as_tensor(self.components_, device="cuda").T if cuda else self.components_.T
        start = 0
        for block in self._blocks(rows, self.mean_):
            projected = (
                (cuda.as_tensor(block, device="cuda") @ projection).cpu().numpy() if cuda else block @ projection
            )
            out[start : start + len(block)] = projected
            start += len(block)
        return out

    def save(self, path: str | Path) -> None:
        """Write the fitted components as safetensors."""
        check_is_fitted(self)
        names = ("mean_", "components_", "explained_variance_", "explained_variance_ratio_")
        with atomic_write(path) as stream:
            stream.write(safetensors.numpy.save({name: getattr(self, name) for name in names}))

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> StreamedPCA:
        """Read a file written by `save`."""
        try:
            arrays = safetensors.numpy.load_file(path)
            pca = cls(len(arrays["components_"]), device=device)
            pca.mean_, pca.components_ = arrays["mean_"], arrays["components_"]
            pca.explained_variance_ = arrays["explained_variance_"]
            pca.explained_variance_ratio_ = arrays["explained_variance_ratio_"]
        except (safetensors.SafetensorError, OSError, KeyError) as fault:
            raise InputError(path, f"does not hold a PCA ({fault})") from None
        if pca.components_.shape[1:] != pca.mean_.shape:
            raise InputError(path, "has arrays whose shapes do not fit together")
        pca.n_features_in_ = len(pca.mean_)
        return pca

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _checked(self, X: ArrayLike, *, reset: bool) -> NDArray[Any]:
        # A block is checked for NaN when it is read; checking all here would read, or copy, the whole memory-map.
        least = 2 if reset else 1
        rows: NDArray[Any] = validate_data(
            self, X, reset=reset, dtype=[np.float64, np.float32, np.float16], ensure_all_finite=False,
            ensure_min_samples=least,
        )  # fmt: skip
        return rows

    def _blocks(self, rows: NDArray[Any], shift: NDArray[np.float32] | None) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(rows), self.block):
            block = np.asarray(rows[start : start + self.block], dtype=np.float32)
            if not np.isfinite(block).all():
                raise ValueError(f"Input X contains NaN or infinity within rows {start} to {start + len(block) - 1}")
            yield block if shift is None else block - shift

    def _of_dimensions(self, rows: NDArray[Any], cuda: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Leading eigenvalues and eigenvectors (n_components, dimensions) of the covariance."""
        count, dimensions = rows.shape
        shift = next(self._blocks(rows, None)).mean(axis=0)
        total = np.zeros(dimensions)
        scatter = _zeros(dimensions, cuda)
        for block in self._blocks(rows, shift):
            total += block.sum(axis=0, dtype=np.float64)
            part = cuda.as_tensor(block, device="cuda") if cuda else block
            scatter += part.T @ part
        offset = total / count
        self.mean_ = (shift + offset).astype(np.float32)
        correction = cuda.as_tensor(offset, device="cuda") if cuda else offset
        scatter -= count * correction[:, None] * correction
        scatter /= count - 1
        return self._leading(scatter, cuda)

    def _of_rows(self, rows: NDArray[Any], cuda: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same from the products of the rows: if X Xᵀ u = λ u, then Xᵀ u is a component."""
        centred = np.concatenate(list(self._blocks(rows, None))).astype(np.float64)
        mean = centred.mean(axis=0)
        self.mean_ = mean.astype(np.float32)
        centred -= mean
        part = cuda.as_tensor(centred, device="cuda") if cuda else centred
        values, vectors = self._leading(part @ part.T / (len(rows) - 1), cuda)
        components = vectors @ centred
        # The last component of n centred rows, and one more for every row that is a copy, has no variance and no
        # direction of its own, only that of rounding errors (of λ, whose root the norm is); it is left at zero.
        norms = np.linalg.norm(components, axis=1, keepdims=True)
        real = norms > np.sqrt(len(rows) * np.finfo(np.float64).eps) * norms.max()
        return values, np.where(real, components / np.where(real, norms, 1.0), 0.0)

    def _leading(self, matrix: Any, cuda: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The largest eigenvalues of a symmetric matrix, descending, and their eigenvectors as rows."""
        size = len(matrix)
        self._total_variance = float(matrix.trace())
        if cuda:
            values, vectors = cuda.linalg.eigh(matrix)
            values, vectors = values[-self.n_components :].cpu().numpy(), vectors[:, -self.n_components :].cpu().numpy()
        else:
            values, vectors = scipy.linalg.eigh(
                matrix, subset_by_index=(size - self.n_components, size - 1), overwrite_a=True
            )
        return values[::-1], np.ascontiguousarray(vectors.T[::-1])


def _zeros(size: int, cuda: Any) -> Any:
    return cuda.zeros((size, size), dtype=cuda.float64, device="cuda") if cuda else np.zeros((size, size))


def _cuda(device: str | None) -> Any:
    """PyTorch if a GPU is used, else None."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be 'cuda', 'cpu' or None, not {device!r}")
    if device == "cpu" or (device is None and find_spec("torch") is None):
        return None
    import torch

    if torch.cuda.is_available():
        return torch
    if device == "cuda":
        raise DeixisError("device 'cuda' was asked for, and PyTorch sees no GPU")
    return None
