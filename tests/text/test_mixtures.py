"""EM climbs, finds what made the data, agrees with scikit-learn on Gaussians, and chooses families per dimension."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.utils.estimator_checks import parametrize_with_checks

from deixis.text.mixtures import DiagonalMixture, _Samples, _weighted_medians

FAMILIES: tuple[Literal["hybrid", "gaussian", "laplacian"], ...] = ("hybrid", "gaussian", "laplacian")


def _overlapping(seed: int, count: int = 600) -> NDArray[np.float64]:
    """Clusters that overlap, of both families, with a few ties and a dimension of tiny scale."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(4, 5)) * 2
    chosen = generator.integers(4, size=count)
    noise = np.where(generator.random(5) < 0.5, generator.normal(size=(count, 5)), generator.laplace(size=(count, 5)))
    samples = centres[chosen] + noise
    samples[:, 4] *= 1e-4
    samples[: count // 10] = samples[0]
    return samples + 1000


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_likelihood_never_falls(family: Any, seed: int) -> None:
    samples = _overlapping(seed)
    weights = np.random.default_rng(seed).integers(0, 4, size=len(samples))
    for sample_weight in (None, weights):
        mixture = DiagonalMixture(6, family=family, tol=1e-9, max_iter=300, random_state=seed)
        steps = mixture.fit(samples, sample_weight=sample_weight).log_likelihoods_
        assert len(steps) > 3
        assert np.diff(steps).min() > -1e-9
        if sample_weight is None:
            assert mixture.score(samples) == pytest.approx(steps[-1])


def test_weighted_medians_are_those_of_a_sorted_list() -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 6, size=(57, 4)).astype(float)
    weights = generator.random((3, 57)) * (generator.random((3, 57)) < 0.4)
    data = _Samples(values, np.ones(57), 1e-3, sort=True)
    medians = _weighted_medians(data, weights) + data.mean
    for k in range(3):
        for d in range(4):
            order = values[:, d].argsort()
            reached = weights[k, order].cumsum()
            value = next(values[i, d] for i, sum_ in zip(order, reached, strict=True) if sum_ >= weights[k].sum() / 2)
            assert medians[k, d] == pytest.approx(value)


def test_a_gaussian_mixture_is_scikit_learns() -> None:
    generator = np.random.default_rng(1)
    samples = np.concatenate([generator.normal(centre, 1 + centre / 5, size=(300, 3)) for centre in (0, 4, 9)])
    ours = DiagonalMixture(3, family="gaussian", tol=1e-10, max_iter=500, random_state=0).fit(samples)
    theirs = GaussianMixture(
        3, covariance_type="diag", tol=1e-10, max_iter=500, reg_covar=0, means_init=ours.location_
    ).fit(samples)
    order = theirs.means_[:, 0].argsort()
    mine = ours.location_[:, 0].argsort()
    np.testing.assert_allclose(ours.location_[mine], theirs.means_[order], rtol=1e-4)
    np.testing.assert_allclose(ours.scale_[mine] ** 2, theirs.covariances_[order], rtol=1e-3)
    np.testing.assert_allclose(ours.score_samples(samples), theirs.score_samples(samples), rtol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(samples)[:, mine], theirs.predict_proba(samples)[:, order], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_component_is_the_maximum_of_the_likelihood(family: Any) -> None:
    samples = np.random.default_rng(2).laplace(size=(201, 1)) * 3 + 1
    mixture = DiagonalMixture(1, family=family, random_state=0).fit(samples)

    def loss(parameters: NDArray[np.float64], gaussian: bool) -> float:
        u = (samples[:, 0] - parameters[0]) / np.exp(parameters[1])
        log_density = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) if gaussian else -np.abs(u) - np.log(2)
        return float(-np.mean(log_density - parameters[1]))

    kinds = {"gaussian": [True], "laplacian": [False], "hybrid": [True, False]}[family]
    best = min(
        minimize(loss, [0.5, 0.5], args=(kind,), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}).fun
        for kind in kinds
    )
    assert -mixture.score(samples) == pytest.approx(best, abs=1e-6)


def test_the_hybrid_finds_which_dimensions_are_which() -> None:
    truth = DiagonalMixture(2)
    truth.weights_ = np.array([0.3, 0.7])
    truth.location_ = np.array([[0.0, 0, 0, 0], [20, 20, 20, 20]])
    truth.scale_ = np.array([[1.0, 2, 1, 2], [2, 1, 2, 1]])
    truth.gaussian_ = np.array([[True, True, False, False], [False, True, False, True]])
    truth.n_features_in_ = 4
    samples, component = truth.sample(20_000, random_state=0)
    fitted = DiagonalMixture(2, random_state=0).fit(samples)
    order = fitted.location_[:, 0].argsort()
    np.testing.assert_array_equal(fitted.gaussian_[order], truth.gaussian_)
    np.testing.assert_allclose(fitted.location_[order], truth.location_, atol=0.1)
    np.testing.assert_allclose(fitted.scale_[order], truth.scale_, rtol=0.05)
    np.testing.assert_allclose(fitted.weights_[order], truth.weights_, atol=0.02)
    assert (order.argsort()[fitted.predict(samples)] == component).mean() > 0.999
    for family in ("gaussian", "laplacian"):
        pure = DiagonalMixture(2, family=family, random_state=0).fit(samples)
        assert pure.score(samples) < fitted.score(samples)


def test_densities_integrate_to_one() -> None:
    samples = np.random.default_rng(3).laplace(size=(200, 1))
    grid = np.linspace(-40, 40, 400_001)
    for family in FAMILIES:
        mixture = DiagonalMixture(3, family=family, random_state=0, max_iter=200).fit(samples)
        total = np.exp(mixture.score_samples(grid[:, None])).sum() * (grid[1] - grid[0])
        assert total == pytest.approx(1, abs=1e-3)


def test_the_same_seed_gives_the_same_mixture() -> None:
    samples = _overlapping(0)
    first, second = (DiagonalMixture(5, random_state=7).fit(samples) for _ in range(2))
    np.testing.assert_array_equal(first.location_, second.location_)


def test_a_mixture_that_has_not_settled_says_so() -> None:
    samples = _overlapping(0)
    with pytest.warns(ConvergenceWarning, match="not settled after 1 steps"):
        mixture = DiagonalMixture(5, max_iter=1, tol=0, random_state=0).fit(samples)
    # Its likelihood is known all the same: before that step, and after it.
    assert len(mixture.log_likelihoods_) == 2
    assert mixture.score(samples) == pytest.approx(mixture.log_likelihoods_[-1])


def _expected_failures(estimator: Any) -> dict[str, str]:
    reason = (
        "k-means draws its first centres from the rows, so repeating a row draws others (as for scikit-learn's KMeans)"
    )
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::sklearn.exceptions.SkipTestWarning"
)
@parametrize_with_checks(
    [DiagonalMixture(2, family=family, random_state=0) for family in FAMILIES],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)
