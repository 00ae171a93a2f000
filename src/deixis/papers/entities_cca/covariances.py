"""Joint covariances of two views, summed block by block, and the canonical correlations computed from them.

The arithmetic of `cca.py`, in PyTorch, so that it runs where the data are: CPU or GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import dgemv, dsyrk
from torch import Tensor

from deixis.errors import DeixisError

#: Columns of the covariance per matrix product. Of a panel only the rows below the diagonal are computed, which saves
#: nearly half of the symmetric matrix.
_PANEL = 512
#: Rows per product on a CPU.
_ROWS = 2048


class JointCovariance:
    r"""Mean and scatter matrix of samples (x, y), from blocks that are seen once.

    A block of m rows with mean :math:`b` joins n rows with mean :math:`a` by (Chan, Golub and LeVeque, 1983)

    .. math::
        S \leftarrow S + \sum_i (z_i - b)(z_i - b)^\top + \tfrac{n m}{n + m} (b - a)(b - a)^\top

    so that two large and nearly equal sums are never subtracted. The last term is one more row of the same product.

    Args:
        x_dimensions, y_dimensions: widths of the two views.
        device: where the sums are stored, (x_dimensions + y_dimensions)² doubles.
        dtype: precision of the products of a block; sums are always double.
    """

    def __init__(
        self,
        x_dimensions: int,
        y_dimensions: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.x_dimensions, self.y_dimensions, self.dtype = x_dimensions, y_dimensions, dtype
        width = x_dimensions + y_dimensions
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64, device=device)
        self._rows = torch.empty((0, width), dtype=dtype, device=device)
        #: Only the lower triangle is filled.
        self.scatter = torch.zeros((width, width), dtype=torch.float64, device=device)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows x (rows, x_dimensions) and y (rows, y_dimensions), pair by pair, of any float type."""
        size = _ROWS if self.mean.device.type == "cpu" else max(len(x), 1)
        for x_part, y_part in zip(torch.split(x, size), torch.split(y, size), strict=True):
            self._add(x_part.to(self.mean.device), y_part.to(self.mean.device))

    def _add(self, x: Tensor, y: Tensor) -> None:
        count, width, split = len(x), len(self.mean), self.x_dimensions
        if not count:
            return
        by_blas = self.dtype == torch.float64 and self.mean.device.type == "cpu"
        if by_blas:
            x, y = (view.double().resolve_neg() for view in (x, y))
        mean = torch.cat([_column_means(view) if by_blas else view.mean(0, dtype=torch.float64) for view in (x, y)])
        if not torch.isfinite(mean).all():
            raise ValueError("Input contains NaN or infinity")
        if len(self._rows) <= count:
            # Reused: clearing new memory takes as long as filling it.
            self._rows = torch.empty((count + 1, width), dtype=self.dtype, device=mean.device)
        rows, centre = self._rows[: count + 1], mean.to(self.dtype)
        step, total = mean - self.mean, self.count + count
        rows[count] = step * math.sqrt(self.count * count / total)
        for view, columns in ((x, slice(0, split)), (y, slice(split, None))):
            if by_blas:
                # By NumPy: idle threads of PyTorch would spin on the cores that BLAS needs next.
                np.subtract(view.numpy(), centre[columns].numpy(), out=rows[:count, columns].numpy())
            else:
                torch.sub(view.to(self.dtype), centre[columns], out=rows[:count, columns])
        if by_blas:
            # BLAS has a symmetric product; its upper triangle (Fortran order) is our lower one.
            dsyrk(1.0, rows.numpy().T, beta=1.0, c=self.scatter.numpy().T, lower=0, overwrite_c=1)
        else:
            for start in range(0, width, _PANEL):
                self.scatter[start:, start : start + _PANEL] += rows[:, start:].T @ rows[:, start : start + _PANEL]
        self.mean += step * (count / total)
        self.count = total


def _column_means(rows: Tensor) -> Tensor:
    """Column means of doubles on a CPU, as a matrix product: four times as fast as PyTorch's mean."""
    return torch.from_numpy(dgemv(1.0, rows.contiguous().numpy().T, np.ones(len(rows)))) / len(rows)


class CanonicalDirections(NamedTuple):
    """The solution of a CCA; components in order of decreasing correlation."""

    correlations: Tensor  # (components,)
    x_projection: Tensor  # (x_dimensions, components)
    y_projection: Tensor  # (y_dimensions, components)


def canonical_directions(
    sums: JointCovariance,
    components: int,
    *,
    ridge: float,
    x_parts: Sequence[int] | None = None,
    y_parts: Sequence[int] | None = None,
) -> CanonicalDirections:
    """Solve the CCA by whitening each view with its Cholesky factor; all in double precision.

    With C_xx = L_x L_xᵀ and C_yy = L_y L_yᵀ, both with the ridge on their diagonal, the correlations are the singular
    values of K = L_x⁻¹ C_xy L_y⁻ᵀ. The squares of them and the directions of the narrower view are the eigenvalues and
    eigenvectors of K Kᵀ (or KᵀK); the other view's are their images under K. A component whose correlation is 0 in
    double precision has no direction: it is all zeros.

    Args:
        sums: at least two rows.
        components: at most the narrower view's width.
        ridge: added to the diagonal, as a multiple of the mean variance of each part.
        x_parts, y_parts: widths of the parts of a view with separate scales; None: one part.
    """
    split = sums.x_dimensions
    x_factor = _factor(sums, slice(0, split), ridge, x_parts, "X")
    y_factor = _factor(sums, slice(split, None), ridge, y_parts, "Y")
    whitened = sums.scatter[split:, :split] / (sums.count - 1)
    whitened = torch.linalg.solve_triangular(y_factor, whitened, upper=False)
    whitened = torch.linalg.solve_triangular(x_factor.T, whitened, upper=True, left=False)  # Kᵀ, (y, x)

    x_is_narrower = split <= sums.y_dimensions
    narrow = whitened if x_is_narrower else whitened.T
    values, vectors = torch.linalg.eigh(narrow.T @ narrow)
    values, vectors = values[-components:].flip(0), vectors[:, -components:].flip(1)
    nonzero = values > len(vectors) * torch.finfo(torch.float64).eps * values[0]
    correlations = torch.where(nonzero, values, 0).sqrt()
    vectors = vectors * nonzero
    others = narrow @ vectors / torch.where(nonzero, correlations, 1)
    x_vectors, y_vectors = (vectors, others) if x_is_narrower else (others, vectors)

    x_projection = torch.linalg.solve_triangular(x_factor.T, x_vectors, upper=True)
    y_projection = torch.linalg.solve_triangular(y_factor.T, y_vectors, upper=True)
    # The sign of a direction is arbitrary; its largest entry in x is made positive, to be the same on all machines.
    largest = x_projection.gather(0, x_projection.abs().argmax(dim=0, keepdim=True)).sign()
    return CanonicalDirections(correlations.clamp(max=1), x_projection * largest, y_projection * largest)


def _factor(sums: JointCovariance, view: slice, ridge: float, parts: Sequence[int] | None, name: str) -> Tensor:
    """The Cholesky factor of one view's covariance with the ridge on its diagonal."""
    covariance = sums.scatter[view, view] / (sums.count - 1)
    diagonal = covariance.diagonal()
    for part in torch.split(diagonal, list(parts) if parts else [len(diagonal)]):
        part += ridge * part.mean()
    variances = diagonal.clone()
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    # A pivot is the variance of a feature that the features before it do not explain; rounding leaves about an eps.
    least = 10 * torch.finfo(sums.dtype).eps
    if failed or (factor.diagonal() ** 2 < least * variances).any():
        raise DeixisError(
            f"the covariance of {name} is singular after {sums.count} rows of {len(diagonal)} features: "
            f"give it a ridge (it was {ridge:g}), more rows, or no feature that others determine"
        )
    return factor
