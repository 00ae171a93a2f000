"""The same CCA by inner products of pairs, for texts with more dimensions than there are pairs.

The two mixtures of Klein et al. give 36,000 numbers per sentence: a covariance and its factor of 20 GB. The inner
products of 30,000 sentences, in single precision and without the half above the diagonal, take 1.8 GB.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deixis.errors import DeixisError
from deixis.papers.entities_cca.covariances import CanonicalDirections

#: Pairs of a tile of the inner products.
_TILE = 2048


class PairProducts:
    r"""Pairs (x, y) on the CPU, and their CCA with a ridge above 0.

    With the centred rows X and Y of n pairs, :math:`G = Y Y^\top / (n - 1)` and y's ridge r,

    .. math::
        (C_{yy} + r I)^{-1} C_{yx} = Y^\top A, \qquad A = (G + r I)^{-1} X / (n - 1),

    so that C_yy is never formed. The squared correlations and the directions u of x are the eigenvalues and
    eigenvectors of :math:`C_{xy} (C_{yy} + r I)^{-1} C_{yx} = C_{xx} - r X^\top A` with regard to
    :math:`C_{xx} + r_x I`; the directions of y are :math:`Y^\top A u / \rho`.

    Rows of y are neither copied nor converted when they are added: half precision saves memory. G and its factor are
    in single precision, which the ridge allows.
    """

    def __init__(self, x_dimensions: int, y_dimensions: int) -> None:
        self.x_dimensions, self.y_dimensions = x_dimensions, y_dimensions
        self.count = 0
        self._sum = torch.zeros(x_dimensions + y_dimensions, dtype=torch.float64)
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []
        self._products: list[Tensor] = []

    @property
    def mean(self) -> Tensor:
        return self._sum / max(self.count, 1)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows x (rows, x_dimensions) and y (rows, y_dimensions), pair by pair."""
        total = torch.cat([view.sum(0, dtype=torch.float64) for view in (x, y)])
        if not torch.isfinite(total).all():
            raise ValueError("Input contains NaN or infinity")
        self._sum += total
        self._x.append(x)
        self._y.extend(torch.split(y, _TILE))
        self.count += len(x)
        self._products = []

    def directions(self, components: int, *, ridge: float) -> CanonicalDirections:
        """Solve the CCA; arguments as for `canonical_directions`."""
        if not ridge:
            raise DeixisError("a CCA with more dimensions than pairs needs a ridge above 0, or every correlation is 1")
        x = torch.cat(self._x).double() - self.mean[: self.x_dimensions]
        x_covariance = x.T @ x / (self.count - 1)
        self._products = self._products or self._inner_products()
        factor = [rows.clone() for rows in self._products]
        variance = sum(float(_last_square(rows).trace()) for rows in factor) / self.y_dimensions
        for rows in factor:
            _last_square(rows).diagonal().add_(ridge * variance)
        _cholesky(factor)
        a = _solve(factor, (x / (self.count - 1)).float()).double()
        del factor

        explained = x_covariance - ridge * variance * (x.T @ a)
        x_covariance.diagonal().add_(ridge * x_covariance.diagonal().mean())
        x_factor = torch.linalg.cholesky(x_covariance)
        explained = torch.linalg.solve_triangular(x_factor, (explained + explained.T) / 2, upper=False)
        explained = torch.linalg.solve_triangular(x_factor.T, explained, upper=True, left=False)
        values, vectors = torch.linalg.eigh((explained + explained.T) / 2)
        values, vectors = values[-components:].flip(0), vectors[:, -components:].flip(1)
        nonzero = values > len(vectors) * torch.finfo(torch.float32).eps * values[0]
        correlations = torch.where(nonzero, values, 0).sqrt()
        x_projection = torch.linalg.solve_triangular(x_factor.T, vectors * nonzero, upper=True)
        # As in `canonical_directions`: the largest entry of a direction in x is positive.
        x_projection *= x_projection.gather(0, x_projection.abs().argmax(dim=0, keepdim=True)).sign()
        y_projection = self._weighted_y((a @ x_projection) / torch.where(nonzero, correlations, 1))
        return CanonicalDirections(correlations.clamp(max=1), x_projection, y_projection)

    def _inner_products(self) -> list[Tensor]:
        """The rows of G, tile by tile, each up to its diagonal; in temporary files, for every ridge factors a copy."""
        products: list[Tensor] = []
        width = 0
        for index, part in enumerate(self._y):
            width += len(part)
            with tempfile.TemporaryFile() as file:
                mapped: Any = np.memmap(file, np.float32, "w+", shape=(len(part), width))
            rows, centred = torch.from_numpy(mapped), self._centred(index)
            columns = torch.split(rows, [len(tile) for tile in self._y[: index + 1]], dim=1)
            for other, square in enumerate(columns):
                torch.matmul(centred, self._centred(other).T, out=square)
            products.append(rows.div_(self.count - 1))
        return products

    def _centred(self, tile: int) -> Tensor:
        return self._y[tile].float() - self.mean[self.x_dimensions :].float()

    def _weighted_y(self, weights: Tensor) -> Tensor:
        """Sums of the centred rows of y: (y_dimensions, components) from weights (pairs, components)."""
        total = torch.zeros((self.y_dimensions, weights.shape[1]))
        for index, part in enumerate(torch.split(weights.float(), [len(rows) for rows in self._y])):
            total.addmm_(self._centred(index).T, part)
        return total.double()


def _last_square(rows: Tensor) -> Tensor:
    """The square on the diagonal of a tile's rows."""
    return rows[:, rows.shape[1] - len(rows) :]


def _cholesky(tiles: list[Tensor]) -> None:
    """The Cholesky factor of a symmetric matrix in place, from its rows up to the diagonal, tile by tile."""
    for index, rows in enumerate(tiles):
        for before in tiles[:index]:
            start, end = before.shape[1] - len(before), before.shape[1]
            square = rows[:, start:end] - rows[:, :start] @ before[:, :start].T
            torch.linalg.solve_triangular(_last_square(before).T, square, upper=True, left=False, out=square)
            rows[:, start:end] = square
        done = rows[:, : rows.shape[1] - len(rows)]
        factor, failed = torch.linalg.cholesky_ex(_last_square(rows) - done @ done.T)
        if failed:
            raise DeixisError("the inner products of Y are singular in single precision: give the CCA a larger ridge")
        _last_square(rows).copy_(factor)


def _solve(tiles: list[Tensor], right: Tensor) -> Tensor:
    """Solve L Lᵀ a = right, with L as `_cholesky` leaves it."""
    solved = right.clone()
    for rows in tiles:
        start, end = rows.shape[1] - len(rows), rows.shape[1]
        rest = solved[start:end] - rows[:, :start] @ solved[:start]
        solved[start:end] = torch.linalg.solve_triangular(_last_square(rows), rest, upper=False)
    for rows in reversed(tiles):
        start, end = rows.shape[1] - len(rows), rows.shape[1]
        solved[start:end] = torch.linalg.solve_triangular(_last_square(rows).T, solved[start:end], upper=True)
        solved[:start] -= rows[:, :start].T @ solved[start:end]
    return solved
