"""Normalized canonical correlation analysis (sections 3.1 and 4.1), from covariances summed block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from deixis.errors import DeixisError
from deixis.papers.entities_cca.covariances import JointCovariance, canonical_directions
from deixis.papers.entities_cca.pair_products import PairProducts
from deixis.papers.entities_cca.projections import Projections, Setting, Stored, read_projections, write_projections

Rows = ArrayLike | Tensor
_FLOATS = [np.float64, np.float32, np.float16]


class NormalizedCCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Directions of two views whose projections correlate most, scaled by their correlation and set to unit length.

    With C the covariances of the pairs (x, y), the columns of the projections solve

    .. math::
        \begin{pmatrix} 0 & C_{xy} \\ C_{yx} & 0 \end{pmatrix} \begin{pmatrix} u \\ v \end{pmatrix} = \rho
        \begin{pmatrix} C_{xx} + r_x I & 0 \\ 0 & C_{yy} + r_y I \end{pmatrix} \begin{pmatrix} u \\ v \end{pmatrix},
        \qquad r_x = \text{ridge} \cdot \mathrm{tr}(C_{xx}) / d_x

    with both projections of unit variance (ridge included). An embedding is :math:`(x - \bar x)\, U \,\rho^p` divided
    by its length, so that the product of two embeddings is the cosine that ranks.

    Pairs are seen once, in blocks: memory is that of the covariances, (x + y dimensions)² doubles, for any number of
    pairs. The result is exact, not a stochastic approximation. The ridge is relative to a view's mean variance, so
    scaling a view changes nothing; with ridge 0, no invertible affine map of a view changes the correlations.

    The paper scales by "the eigenvalues" and cites Gong et al., who write the problem with C_xx and C_yy on the left as
    well, which makes the eigenvalue 1 + ρ, and take its fourth power. Here it is ρ, which is 0 for uncorrelated
    directions, and `power` is a parameter.

    `sklearn.cross_decomposition.CCA` finds components one after another by power iterations, `cca_zoo.linear.CCA`
    decomposes the samples themselves. Both keep all samples in memory; their directions are these with ridge 0.

    Parameters
    ----------
    n_components : int or None
        None: as many as the narrower view has dimensions.
    ridge : float
        Added to the diagonal of each covariance, as a multiple of its mean variance. With 0, covariances must be
        invertible.
    power : float
        Exponent of the correlations in the scaling.
    unit_x : bool
        Normalize the rows of X to unit length first, for fitting and for encoding.
    block : int
        Rows processed together.
    dtype : {"float64", "float32"}
        Precision of the products of a block; sums and solution are double. float32 is for GPUs that are slow at double.
    device : {"cuda", "cpu"} or None
        Where to compute; None takes a GPU if PyTorch sees one.
    by_pairs : bool
        Compute from the inner products of the rows of Y, which are kept, in place of its covariance: less memory where
        Y has more dimensions than there are pairs. On the CPU, with a ridge above 0, in single precision.

    Attributes
    ----------
    correlations_ : (components,), falling
        Of the training pairs when ridge is 0; less with a ridge.
    x_projection_, y_projection_ : (dimensions, components) of float32, before the scaling
    x_mean_, y_mean_ : (dimensions,) of float32
    n_samples_seen_ : int

    References
    ----------
    H. Hotelling. "Relations between two sets of variates", Biometrika 28, 1936. Y. Gong, Q. Ke, M. Isard, S. Lazebnik.
    "A multi-view embedding space for modeling internet images, tags, and their semantics", IJCV 106, 2014.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> shared = generator.normal(size=(500, 2))
    >>> X, Y = (np.hstack([shared, generator.normal(size=(500, 3))]) for _ in range(2))
    >>> cca = NormalizedCCA(n_components=2, ridge=0, device="cpu")
    >>> for block in range(0, 500, 100):
    ...     cca = cca.partial_fit(X[block : block + 100], Y[block : block + 100])
    >>> cca.correlations_.round(3).tolist()
    [1.0, 1.0]
    >>> cosines = (cca.encode_x(X) * cca.encode_y(Y)).sum(axis=1)
    >>> bool((cosines > 0.999).all())
    True
    """

    _sums: JointCovariance | PairProducts | None
    _projections: Projections | None

    def __init__(
        self,
        n_components: int | None = None,
        *,
        ridge: float = 1e-2,
        power: float = 1.0,
        unit_x: bool = False,
        block: int = 4096,
        dtype: Literal["float64", "float32"] = "float64",
        device: str | None = None,
        by_pairs: bool = False,
    ) -> None:
        self.n_components = n_components
        self.ridge = ridge
        self.power = power
        self.unit_x = unit_x
        self.block = block
        self.dtype = dtype
        self.device = device
        self.by_pairs = by_pairs

    def fit(self, X: Rows, Y: Rows | None = None) -> Self:
        """Fit to pairs of rows X `(pairs, x dimensions)` and Y `(pairs, y dimensions)`, from scratch."""
        for name in ("_sums", "_projections"):
            self.__dict__.pop(name, None)
        return self._add(X, Y, least=2).solve()

    def partial_fit(self, X: Rows, Y: Rows | None = None) -> Self:
        """Add pairs of rows: arrays, memory-maps of any float type, or PyTorch tensors on any device.

        Directions are computed when they are first needed. If a block is refused (NaN), earlier ones may have been
        added: start again.
        """
        return self._add(X, Y, least=1)

    def solve(self) -> Self:
        """Compute the directions from the covariances; after `set_params(ridge=…)`, no pairs are needed again."""
        check_is_fitted(self)
        if self._sums is None:
            raise DeixisError("a CCA that was loaded from a file has no covariances; fit it to pairs first")
        sums = self._sums
        most = min(sums.x_dimensions, sums.y_dimensions)
        components = most if self.n_components is None else self.n_components
        if not 1 <= components <= most:
            raise ValueError(f"n_components={components} must be within 1 and {most}")
        if self.ridge < 0:
            raise ValueError(f"ridge={self.ridge} must not be negative")
        if sums.count < 2:
            raise ValueError("a CCA needs at least 2 pairs, 1 sample was seen")
        if isinstance(sums, PairProducts):
            directions = sums.directions(components, ridge=self.ridge)
        else:
            x_parts, y_parts = self._parts()
            directions = canonical_directions(sums, components, ridge=self.ridge, x_parts=x_parts, y_parts=y_parts)
        x_mean, y_mean = torch.split(sums.mean, [sums.x_dimensions, sums.y_dimensions])
        correlations, *rest = (
            part.cpu().numpy()
            for part in (directions.correlations, x_mean, directions.x_projection, y_mean, directions.y_projection)
        )
        self._projections = Projections(correlations, *(np.ascontiguousarray(part, np.float32) for part in rest))
        return self

    def encode_x(self, X: Rows) -> NDArray[np.float32]:
        """Unit embeddings `(rows, components)`; a row that projects to zero stays zero."""
        check_is_fitted(self)
        return self._encode(self._checked_x(X, reset=False), "x")

    def encode_y(self, Y: Rows) -> NDArray[np.float32]:
        """The same for rows of the other view."""
        check_is_fitted(self)
        return self._encode(self._checked_y(Y, self.n_features_y_), "y")

    def transform(self, X: Rows, Y: Rows | None = None) -> Any:
        """`encode_x(X)`, or the embeddings of both views if Y is given, as scikit-learn's `CCA` does."""
        return self.encode_x(X) if Y is None else (self.encode_x(X), self.encode_y(Y))

    @property
    def correlations_(self) -> NDArray[np.float64]:
        return self._found().correlations

    @property
    def x_mean_(self) -> NDArray[np.float32]:
        return self._found().x_mean

    @property
    def x_projection_(self) -> NDArray[np.float32]:
        return self._found().x_projection

    @property
    def y_mean_(self) -> NDArray[np.float32]:
        return self._found().y_mean

    @property
    def y_projection_(self) -> NDArray[np.float32]:
        return self._found().y_projection

    def save(self, path: str | Path) -> None:
        """Write the projections to one safetensors file; covariances are not saved."""
        write_projections(path, "NormalizedCCA", {"cca": self._stored()})

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> NormalizedCCA:
        """Read what `save` wrote. The result encodes, and cannot be fitted further."""
        (stored,) = read_projections(path, "NormalizedCCA", ["cca"])
        return cls(device=device)._restore(stored)

    def _stored(self) -> Stored:
        return self._found(), Setting(float(self.power), float(self.ridge), self.n_samples_seen_, self.unit_x)

    def _restore(self, stored: Stored) -> Self:
        fitted, setting = stored
        self.n_components, self.power, self.ridge = len(fitted.correlations), setting.power, setting.ridge
        self.unit_x = setting.unit_x
        self._sums, self._projections, self.n_samples_seen_ = None, fitted, setting.pairs
        self.n_features_in_, self.n_features_y_ = len(fitted.x_mean), len(fitted.y_mean)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_projections")

    def _found(self) -> Projections:
        check_is_fitted(self)
        if self._projections is None:
            self.solve()
        assert self._projections is not None
        return self._projections

    def _add(self, X: Rows, Y: Rows | None, *, least: int) -> Self:
        if Y is None:
            raise ValueError("NormalizedCCA requires y to be passed, but the target y is None")
        first = not hasattr(self, "_sums")
        if not first and self._sums is None:
            raise DeixisError("a CCA that was loaded from a file cannot be fitted further; fit a new one")
        x_rows = self._checked_x(X, reset=first, least=least)
        y_rows = self._checked_y(Y, None if first else self.n_features_y_)
        check_consistent_length(x_rows, y_rows)
        sums = None if first else self._sums
        x_features, y_features = self._features("x"), self._features("y")
        for index, (x, y) in enumerate(zip(self._blocks(x_rows), self._blocks(y_rows), strict=True)):
            x, y = x_features(x), y_features(y)
            if sums is None:
                if self.dtype not in ("float64", "float32"):
                    raise ValueError(f"dtype must be 'float64' or 'float32', not {self.dtype!r}")
                if self.by_pairs and x.device.type != "cpu":
                    raise ValueError("by_pairs computes on the CPU only")
                if self.by_pairs:
                    sums = PairProducts(x.shape[1], y.shape[1])
                else:
                    sums = JointCovariance(x.shape[1], y.shape[1], device=x.device, dtype=getattr(torch, self.dtype))
            try:
                sums.add(x, y)
            except ValueError as fault:
                start = index * self.block
                raise ValueError(f"{fault} within rows {start} to {start + len(x) - 1}") from None
        assert sums is not None
        self._sums, self._projections = sums, None
        self.n_features_y_, self.n_samples_seen_ = y_rows.shape[1], sums.count
        return self

    def _features(self, view: Literal["x", "y"]) -> Callable[[Tensor], Tensor]:
        """The function that turns rows of a view into the features that the CCA is fitted to."""
        if view == "x" and self.unit_x:
            return lambda block: torch.nn.functional.normalize(block.float())
        return lambda block: block

    def _parts(self) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """Widths of the parts of these features that have separate scales."""
        return None, None

    def _checked_x(self, X: Rows, *, reset: bool, least: int = 1) -> Any:
        if isinstance(X, Tensor):
            X = _checked_tensor(X, None if reset else self.n_features_in_, "X")
            if reset:
                self.n_features_in_ = X.shape[1]
            return X
        # Blocks are checked for NaN when they are read; checking here would read the whole memory-map.
        return validate_data(self, X, reset=reset, dtype=_FLOATS, ensure_all_finite=False, ensure_min_samples=least)

    def _checked_y(self, Y: Rows, dimensions: int | None) -> Any:
        if isinstance(Y, Tensor):
            return _checked_tensor(Y, dimensions, "Y")
        rows = check_array(Y, dtype=_FLOATS, ensure_2d=False, ensure_all_finite=False, input_name="Y")
        rows = rows.reshape(-1, 1) if rows.ndim == 1 else rows
        if dimensions is not None and rows.shape[1] != dimensions:
            raise ValueError(f"Y has {rows.shape[1]} features, but NormalizedCCA is expecting {dimensions} features")
        return rows

    def _blocks(self, rows: NDArray[Any] | Tensor) -> Iterator[Tensor]:
        device = chosen_device(self.device)
        for start in range(0, len(rows), self.block):
            part = rows[start : start + self.block]
            if isinstance(part, Tensor):
                yield part.detach().to(device)
                continue
            # Copied only if PyTorch cannot share the memory: read-only memory-maps and negative strides.
            array = np.require(part, None, ["C", "W"])
            yield torch.from_numpy(array.copy() if min(array.strides) < 0 else array).to(device)

    def _encoder(self, view: Literal["x", "y"]) -> Callable[[Tensor], Tensor]:
        """The function from blocks of rows to unit embeddings, with its matrices on the device."""
        fitted, device, features = self._found(), chosen_device(self.device), self._features(view)
        mean, projection = (fitted.x_mean, fitted.x_projection) if view == "x" else (fitted.y_mean, fitted.y_projection)
        centre = torch.from_numpy(mean).to(device)
        scaling = torch.from_numpy(fitted.correlations**self.power).to(device)
        matrix = (torch.from_numpy(projection).to(device) * scaling).float()
        return lambda block: torch.nn.functional.normalize((features(block.to(device)).float() - centre) @ matrix)

    def _encode(self, rows: NDArray[Any] | Tensor, view: Literal["x", "y"]) -> NDArray[np.float32]:
        encoder = self._encoder(view)
        encoded = np.empty((len(rows), len(self.correlations_)), dtype=np.float32)
        for index, block in enumerate(self._blocks(rows)):
            unit = encoder(block)
            if not torch.isfinite(unit).all():
                start = index * self.block
                raise ValueError(f"Input contains NaN or infinity within rows {start} to {start + len(block) - 1}")
            encoded[index * self.block : index * self.block + len(block)] = unit.cpu().numpy()
        return encoded


def chosen_device(device: str | None) -> torch.device:
    """The device of this name; None: a GPU if PyTorch sees one."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be 'cuda', 'cpu' or None, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeixisError("device 'cuda' was asked for, and PyTorch sees no GPU")
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _checked_tensor(rows: Tensor, dimensions: int | None, name: str) -> Tensor:
    if rows.ndim != 2 or not rows.is_floating_point() or not len(rows):
        raise ValueError(f"{name} must be a float tensor of at least one row and two axes, not {tuple(rows.shape)}")
    if dimensions is not None and rows.shape[1] != dimensions:
        raise ValueError(f"{name} has {rows.shape[1]} features, but NormalizedCCA is expecting {dimensions} features")
    return rows
