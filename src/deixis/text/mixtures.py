"""Gaussian, Laplacian and hybrid mixtures with diagonal scales, fitted by EM: the densities under Fisher vectors."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

Floats: TypeAlias = NDArray[np.float64]
Randomness: TypeAlias = int | np.random.RandomState | None
#: Samples processed together: a block of 300 dimensions fits into a core's cache.
_BLOCK = 256


class DiagonalMixture(DensityMixin, BaseEstimator):  # type: ignore[misc]
    r"""Mixture whose components are products of one-dimensional Gaussians or Laplacians.

    .. math::
        p(x) = \sum_k w_k \prod_d p_{kd}(x_d), \qquad
        p_{kd} = \mathcal N(\mu_{kd}, \sigma_{kd}^2)^{b_{kd}} \, \mathrm{Laplace}(m_{kd}, s_{kd})^{1 - b_{kd}}

    `family` sets b: all one (Gaussian), all zero (Laplacian), or free (hybrid). The hybrid of Klein et al. is a
    weighted geometric mean of the two densities with weight b in [0, 1]; the expected log-likelihood is linear in b,
    so its maximum is always at 0 or 1: each component and dimension is whichever of the two explains it better.

    EM. The E-step gives the responsibilities :math:`\gamma_{ik} = w_k p_k(x_i) / p(x_i)`. The M-step maximizes the
    expected log-likelihood in closed form, with all sums weighted by :math:`\gamma_{ik}` and the sample weights:

    - weights: :math:`w_k` = mean responsibility;
    - Gaussian: location = mean, scale² = mean squared deviation; log-likelihood per unit of weight
      :math:`-\tfrac12 \log(2\pi\sigma^2) - \tfrac12`;
    - Laplacian: location = weighted median, scale = mean absolute deviation from it; log-likelihood
      :math:`-\log(2 s) - 1`;
    - hybrid: both, then the better of the two for each component and dimension.

    Scales have a floor, at which the two log-likelihoods are evaluated as they are; maximizing under the floor is still
    exact, so the likelihood never falls from one step to the next.

    `family="gaussian"` is scikit-learn's `GaussianMixture(covariance_type="diag")` up to that floor, which stands in
    for `reg_covar`. Starting values come from k-means, so the outcome depends on `random_state`.

    Parameters
    ----------
    n_components : int
        Number of components; Klein et al. use 30.
    family : {"hybrid", "gaussian", "laplacian"}
    max_iter, tol : int, float
        EM ends after `max_iter` steps, or when the mean log-likelihood of a sample rises by less than `tol`.
    min_scale : float
        Floor of the scales, as a share of each dimension's standard deviation.
    random_state : int, RandomState or None

    Attributes
    ----------
    weights_ : (components,)
    location_, scale_ : (components, dimensions)
        Mean and standard deviation, or median and mean absolute deviation.
    gaussian_ : (components, dimensions) of bool
        Which of the two each component and dimension is: the b above.
    log_likelihoods_ : list of float
        Mean log-likelihood of a sample before each M-step, and after the last.
    converged_, n_iter_ : bool, int

    References
    ----------
    B. Klein, G. Lev, G. Sadeh, L. Wolf. "Associating Neural Word Embeddings with Deep Image Representations using
    Fisher Vectors", CVPR 2015; first as "Fisher Vectors Derived from Hybrid Gaussian-Laplacian Mixture Models for Image
    Annotation", arXiv:1411.7399, 2014.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> samples = np.stack([generator.normal(0, 1, 5000), generator.laplace(0, 1, 5000)], axis=1)
    >>> mixture = DiagonalMixture(n_components=1, random_state=0).fit(samples)
    >>> mixture.gaussian_.tolist()
    [[True, False]]
    """

    def __init__(
        self,
        n_components: int = 30,
        *,
        family: Literal["hybrid", "gaussian", "laplacian"] = "hybrid",
        max_iter: int = 100,
        tol: float = 1e-3,
        min_scale: float = 1e-3,
        random_state: Randomness = None,
    ) -> None:
        self.n_components = n_components
        self.family = family
        self.max_iter = max_iter
        self.tol = tol
        self.min_scale = min_scale
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to samples X (samples, dimensions); a weight counts as that many equal samples."""
        if self.family not in ("hybrid", "gaussian", "laplacian"):
            raise ValueError(f"family must be 'hybrid', 'gaussian' or 'laplacian', not {self.family!r}")
        samples: Floats = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        weights: Floats = _check_sample_weight(sample_weight, samples, dtype=np.float64, ensure_non_negative=True)
        samples, weights = samples[weights > 0], weights[weights > 0]
        if len(samples) < self.n_components:
            raise ValueError(f"{self.n_components} components need as many samples; n_samples={len(samples)}")
        data = _Samples(samples, weights, self.min_scale, sort=self.family != "gaussian")
        self.location_ = np.zeros((self.n_components, samples.shape[1]))
        self.scale_ = np.ones_like(self.location_)
        self.gaussian_ = np.ones(self.location_.shape, dtype=bool)
        # Distances are in units of each dimension's standard deviation, as in the densities.
        k_means = KMeans(self.n_components, n_init=1, random_state=self.random_state)
        labels = k_means.fit_predict(data.values / data.spread, sample_weight=weights)
        self._maximize(data, np.eye(self.n_components)[labels] * weights[:, None])
        self.log_likelihoods_: list[float] = []
        self.converged_ = False
        for _ in range(self.max_iter + 1):
            joint = self._joint_log_density(data.values)
            log_density = logsumexp(joint, axis=1)
            self.log_likelihoods_.append(float(np.average(log_density, weights=weights)))
            self.n_iter_ = len(self.log_likelihoods_)
            if self.n_iter_ > 1 and self.log_likelihoods_[-1] - self.log_likelihoods_[-2] < self.tol:
                self.converged_ = True
            if self.converged_ or self.n_iter_ > self.max_iter:
                break
            self._maximize(data, np.exp(joint - log_density[:, None]) * weights[:, None])
        self.location_ += data.mean
        if not self.converged_:
            warnings.warn(
                f"EM had not settled after {self.max_iter} steps; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log-density of each sample, (samples,)."""
        return np.asarray(logsumexp(self._checked_joint(X), axis=1))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Mean log-density of the samples."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Responsibilities: the probability of each component given each sample, (samples, components)."""
        joint = self._checked_joint(X)
        return np.asarray(np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """The most probable component of each sample."""
        return np.asarray(self._checked_joint(X).argmax(axis=1))

    def sample(self, n_samples: int = 1, random_state: Randomness = None) -> tuple[Floats, NDArray[np.intp]]:
        """Draw from the density: samples (samples, dimensions) and the component each is from."""
        check_is_fitted(self)
        generator = check_random_state(random_state)
        component = generator.choice(self.n_components, size=n_samples, p=self.weights_ / self.weights_.sum())
        shape = (n_samples, self.n_features_in_)
        standard = np.where(self.gaussian_[component], generator.normal(size=shape), generator.laplace(size=shape))
        return self.location_[component] + self.scale_[component] * standard, component

    def _checked_joint(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return self._joint_log_density(validate_data(self, X, dtype=np.float64, reset=False))

    def _joint_log_density(self, X: Floats) -> Floats:
        """log w_k + log p_k(x), (samples, components)."""
        joint = np.empty((len(X), self.n_components))
        half_precision = np.where(self.gaussian_, 0.5 / self.scale_**2, 0.0)
        inverse_scale = np.where(self.gaussian_, 0.0, 1 / self.scale_)
        norm = np.where(self.gaussian_, np.sqrt(2 * np.pi), 2.0) * self.scale_
        with np.errstate(divide="ignore"):
            constants = np.log(self.weights_) - np.log(norm).sum(axis=1)
        for start in range(0, len(X), _BLOCK):
            block = X[start : start + _BLOCK]
            for k, constant in enumerate(constants):
                deviation = np.abs(block - self.location_[k])
                exponent = deviation @ inverse_scale[k] + np.square(deviation, out=deviation) @ half_precision[k]
                joint[start : start + _BLOCK, k] = constant - exponent
        return joint

    def _maximize(self, data: _Samples, responsibilities: Floats) -> None:
        """The M-step; responsibilities (samples, components) include the sample weights."""
        totals = responsibilities.sum(axis=0)
        self.weights_ = totals / totals.sum()
        # A component without samples stays, with weight 0.
        alive = np.flatnonzero(totals > 0)
        weights = np.ascontiguousarray((responsibilities[:, alive] / totals[alive]).T)
        if self.family != "laplacian":
            location, scale, likelihood = _fit_gaussians(data, weights)
            gaussian = np.ones(location.shape, dtype=bool)
        if self.family != "gaussian":
            median, deviation, laplacian_likelihood = _fit_laplacians(data, weights)
            if self.family == "hybrid":
                gaussian = likelihood >= laplacian_likelihood
                location, scale = np.where(gaussian, location, median), np.where(gaussian, scale, deviation)
            else:
                location, scale, gaussian = median, deviation, np.zeros(median.shape, dtype=bool)
        self.location_[alive], self.scale_[alive], self.gaussian_[alive] = location, scale, gaussian


class _Samples:
    """Samples as EM needs them: values, their order in each dimension, and the floor of the scales.

    Samples are centred, so that the variance is not lost in the difference of two large numbers.
    """

    def __init__(self, values: Floats, weights: Floats, min_scale: float, *, sort: bool) -> None:
        self.weights = weights
        self.mean = np.average(values, axis=0, weights=weights)
        self.values = values - self.mean
        spread = np.sqrt(np.average(self.values**2, axis=0, weights=weights))
        self.spread = np.where(spread > 0, spread, 1.0)
        self.floor = min_scale * self.spread
        #: (dimensions, samples), ascending
        self.order = np.ascontiguousarray(self.values.T).argsort(axis=1) if sort else None


def _fit_gaussians(data: _Samples, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, deviation, log-likelihood, each (components, dimensions); weights (components, samples) sum to one."""
    mean = weights @ data.values
    variance = np.maximum(weights @ data.values**2 - mean**2, 0.0)
    scale = np.maximum(np.sqrt(variance), data.floor)
    return mean, scale, -0.5 * np.log(2 * np.pi * scale**2) - 0.5 * variance / scale**2


def _fit_laplacians(data: _Samples, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Weighted median, mean absolute deviation, log-likelihood, each (components, dimensions)."""
    median = _weighted_medians(data, weights)
    deviation = np.zeros_like(median)
    for start in range(0, len(data.values), _BLOCK):
        block = data.values[start : start + _BLOCK]
        for k, location in enumerate(median):
            deviation[k] += weights[k, start : start + _BLOCK] @ np.abs(block - location)
    scale = np.maximum(deviation, data.floor)
    return median, scale, -np.log(2 * scale) - deviation / scale


def _weighted_medians(data: _Samples, weights: Floats) -> Floats:
    """For each component and dimension the first sample, in ascending order, at which half of the weight is reached.

    It minimizes the weighted absolute deviations. The weight is summed by segments, and sample by sample only in the
    segment where the half falls.
    """
    assert data.order is not None
    count = len(data.values)
    length = int(np.sqrt(count)) + 1
    starts = np.arange(0, count, length)
    medians = np.empty((len(weights), len(data.order)))
    for dimension, order in enumerate(data.order):
        ordered = weights.take(order, axis=1)
        reached = np.add.reduceat(ordered, starts, axis=1).cumsum(axis=1)
        half = 0.5 * reached[:, -1]
        for k, segment in enumerate((reached < half[:, None]).sum(axis=1)):
            before = reached[k, segment - 1] if segment else 0.0
            inside = before + ordered[k, segment * length : (segment + 1) * length].cumsum()
            position = min(segment * length + int(np.searchsorted(inside, half[k])), count - 1)
            medians[k, dimension] = data.values[order[position], dimension]
    return medians
