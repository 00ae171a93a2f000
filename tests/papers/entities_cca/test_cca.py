"""CCA from streamed covariances is the textbook's, however the pairs arrive; saved and loaded it encodes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from cca_zoo.linear import CCA
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from deixis.errors import DeixisError, InputError
from deixis.papers.entities_cca import pair_products
from deixis.papers.entities_cca.cca import NormalizedCCA
from deixis.papers.entities_cca.reference import cca_eigenproblem
from deixis.papers.entities_cca.stacked_embedding import StackedAuxiliaryEmbedding


def _views(pairs: int = 600, x: int = 8, y: int = 6, seed: int = 0) -> tuple[Any, Any]:
    """Correlated views, each mixed by a matrix of its own and far from 0."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=(pairs, 5)) * np.linspace(2, 0.3, 5)
    views = [
        (shared @ generator.normal(size=(5, width)) + generator.normal(size=(pairs, width)))
        @ generator.normal(size=(width, width))
        + generator.normal(size=width) * 30
        for width in (x, y)
    ]
    return views[0], views[1]


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize(("x", "y"), [(8, 6), (6, 8), (7, 7), (5, 1), (700, 40)])
def test_it_solves_thecca_eigenproblem(x: int, y: int, ridge: float) -> None:
    X, Y = _views(900, x, y)
    ours = NormalizedCCA(ridge=ridge, device="cpu", block=128).fit(X, Y)
    correlations, U, V = cca_eigenproblem(X, Y, ridge)
    np.testing.assert_allclose(ours.correlations_, correlations, rtol=1e-6, atol=1e-6)
    signs = np.sign((ours.x_projection_ * U).sum(axis=0))
    scale = np.abs(U).max()
    np.testing.assert_allclose(ours.x_projection_, U * signs, atol=2e-4 * scale)
    np.testing.assert_allclose(ours.y_projection_, V * signs, atol=2e-4 * np.abs(V).max())


def test_it_is_cca_zoos() -> None:
    X, Y = _views()
    ours = NormalizedCCA(4, ridge=0, device="cpu").fit(X, Y)
    theirs = CCA(n_components=4).fit([X, Y])
    scores = theirs.transform([X, Y])
    expected = [np.corrcoef(scores[0][:, k], scores[1][:, k])[0, 1] for k in range(4)]
    np.testing.assert_allclose(ours.correlations_, expected, atol=1e-9)
    for mean, projection, rows, score in (
        (ours.x_mean_, ours.x_projection_, X, scores[0]),
        (ours.y_mean_, ours.y_projection_, Y, scores[1]),
    ):
        cosines = [np.corrcoef(((rows - mean) @ projection)[:, k], score[:, k])[0, 1] for k in range(4)]
        np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-6)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 299), max_size=6, unique=True), block=st.integers(1, 400))
def test_streamed_is_one_shot(cuts: list[int], block: int) -> None:
    X, Y = _views(300)
    X[:50] += 1000  # The first block is unlike the rest.
    whole = NormalizedCCA(device="cpu", block=10_000).fit(X, Y)
    streamed = NormalizedCCA(device="cpu", block=block)
    for x, y in zip(np.split(X, sorted(cuts)), np.split(Y, sorted(cuts)), strict=True):
        streamed.partial_fit(x, y)
    assert streamed.n_samples_seen_ == 300
    np.testing.assert_allclose(streamed.correlations_, whole.correlations_, atol=1e-10)
    np.testing.assert_allclose(streamed.x_projection_, whole.x_projection_, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(streamed.y_mean_, whole.y_mean_, rtol=1e-6)


def test_an_affine_map_of_a_view_leaves_the_correlations() -> None:
    X, Y = _views()
    generator = np.random.default_rng(1)
    mapped = X @ generator.normal(size=(8, 8)) + generator.normal(size=8)
    plain, other = (NormalizedCCA(ridge=0, device="cpu").fit(rows, Y) for rows in (X, mapped))
    np.testing.assert_allclose(other.correlations_, plain.correlations_, atol=1e-9)
    np.testing.assert_allclose(
        other.encode_x(mapped) @ other.encode_y(Y).T, plain.encode_x(X) @ plain.encode_y(Y).T, atol=1e-4
    )
    # With a ridge, a change of scale still leaves them.
    plain, other = (NormalizedCCA(ridge=0.3, device="cpu").fit(rows, Y) for rows in (X, 1e3 * X))
    np.testing.assert_allclose(other.correlations_, plain.correlations_, atol=1e-9)


def test_views_that_determine_each_other_correlate_wholly() -> None:
    X, _ = _views()
    cca = NormalizedCCA(ridge=0, device="cpu").fit(X, X @ np.random.default_rng(1).normal(size=(8, 8)) + 7)
    np.testing.assert_allclose(cca.correlations_, 1, atol=1e-9)


def test_views_that_are_independent_hold_nothing() -> None:
    generator = np.random.default_rng(0)
    X, Y = generator.normal(size=(2, 50_000, 4))
    assert NormalizedCCA(ridge=0, device="cpu").fit(X, Y).correlations_.max() < 0.02


def test_a_direction_without_correlation_is_zero() -> None:
    """Y's second column is made orthogonal to all of X in the sample, so one of two correlations is 0."""
    X, _ = _views(200, 5, 5)
    inner = np.column_stack([np.ones(200), X])
    noise = np.random.default_rng(2).normal(size=200)
    Y = np.column_stack([X[:, 0], noise - inner @ np.linalg.lstsq(inner, noise)[0]])
    cca = NormalizedCCA(ridge=0, device="cpu").fit(X, Y)
    np.testing.assert_allclose(cca.correlations_, [1, 0], atol=1e-6)
    assert np.isfinite(cca.x_projection_).all()
    assert np.isfinite(cca.encode_y(Y)).all()


def test_encoded_rows_are_unit_and_scaled_by_the_correlations() -> None:
    X, Y = _views()
    cca = NormalizedCCA(3, ridge=0.1, power=2, device="cpu", block=100).fit(X, Y)
    for encoded, rows, mean, projection in (
        (cca.encode_x(X), X, cca.x_mean_, cca.x_projection_),
        (cca.encode_y(Y), Y, cca.y_mean_, cca.y_projection_),
    ):
        expected = (rows - mean) @ (projection * cca.correlations_**2)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert encoded.dtype == np.float32
        np.testing.assert_allclose(encoded, expected, atol=1e-4)
    both = cca.transform(X, Y)
    np.testing.assert_array_equal(both[0], cca.transform(X))
    np.testing.assert_array_equal(both[1], cca.encode_y(Y))
    np.testing.assert_array_equal(cca.encode_x(cca.x_mean_[None]), np.zeros((1, 3)))


def test_a_new_ridge_needs_no_pair_again() -> None:
    X, Y = _views()
    cca = NormalizedCCA(ridge=0.5, device="cpu").fit(X, Y)
    again = cca.set_params(ridge=0.1, n_components=2).solve()
    np.testing.assert_allclose(again.correlations_, NormalizedCCA(2, ridge=0.1, device="cpu").fit(X, Y).correlations_)


def test_rows_may_count_by_their_direction_alone(tmp_path: Path) -> None:
    X, Y = _views()
    lengths = np.random.default_rng(1).uniform(0.5, 20, size=(len(X), 1))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    cca = NormalizedCCA(ridge=0.1, unit_x=True, device="cpu").fit(X * lengths, Y)
    plain = NormalizedCCA(ridge=0.1, device="cpu").fit(unit, Y)
    np.testing.assert_allclose(cca.correlations_, plain.correlations_, rtol=1e-4)
    np.testing.assert_allclose(cca.encode_x(X), plain.encode_x(unit), atol=1e-3)
    cca.save(tmp_path / "cca.safetensors")
    again = NormalizedCCA.load(tmp_path / "cca.safetensors", device="cpu")
    np.testing.assert_array_equal(again.encode_x(3 * X), cca.encode_x(3 * X))


def test_memory_maps_and_tensors_are_taken(tmp_path: Path) -> None:
    X, Y = _views()
    X -= X.mean(axis=0)
    np.save(tmp_path / "x.npy", X.astype(np.float16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = NormalizedCCA(device="cpu").fit(X.astype(np.float16).astype(float), Y)
    for rows in (mapped, torch.from_numpy(X.astype(np.float16))):
        cca = NormalizedCCA(device="cpu", block=77).fit(rows, torch.from_numpy(Y))
        np.testing.assert_allclose(cca.correlations_, expected.correlations_, atol=1e-10)
        np.testing.assert_allclose(cca.encode_x(rows), expected.encode_x(mapped), atol=1e-4)


def test_single_precision_products_are_close() -> None:
    X, Y = _views(5000)
    double, single = (NormalizedCCA(dtype=dtype, device="cpu").fit(X, Y) for dtype in ("float64", "float32"))
    np.testing.assert_allclose(single.correlations_, double.correlations_, atol=1e-5)


@pytest.mark.parametrize(("pairs", "tile"), [(150, 64), (150, 50), (60, 2048)])
def test_inner_products_of_pairs_give_what_covariances_give(
    pairs: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_products, "_TILE", tile)
    X, Y = _views(pairs, 8, 240)
    Y /= np.abs(Y).max()
    wide = NormalizedCCA(ridge=0.1, device="cpu", by_pairs=True)
    for start in range(0, pairs, 70):
        wide.partial_fit(X[start : start + 70], torch.from_numpy(Y[start : start + 70]))
    for ridge in (0.1, 1.0):
        plain = NormalizedCCA(ridge=ridge, device="cpu").fit(X, Y)
        wide.set_params(ridge=ridge).solve()
        np.testing.assert_allclose(wide.correlations_, plain.correlations_, atol=1e-5)
        np.testing.assert_allclose(wide.encode_x(X), plain.encode_x(X), atol=1e-3)
        np.testing.assert_allclose(wide.encode_y(Y), plain.encode_y(Y), atol=1e-3)
    with pytest.raises(DeixisError, match="needs a ridge above 0"):
        NormalizedCCA(ridge=0, device="cpu", by_pairs=True).fit(X, Y)
    with pytest.raises(ValueError, match="NaN or infinity"):
        wide.partial_fit(X[:3], Y[:3] * np.nan)


def test_a_gpu_gives_what_the_processor_gives() -> None:
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    X, Y = _views()
    here, there = (NormalizedCCA(device=device, block=64).fit(X, Y) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.correlations_, here.correlations_, atol=1e-9)
    np.testing.assert_allclose(there.encode_x(X), here.encode_x(X), atol=1e-4)


def test_rows_read_backwards_are_rows() -> None:
    X, Y = _views()
    plain, backwards = (NormalizedCCA(block=599, device="cpu").fit(X[::way], Y[::way]) for way in (1, -1))
    np.testing.assert_allclose(backwards.correlations_, plain.correlations_, atol=1e-12)
    np.testing.assert_array_equal(plain.encode_x(X[::-1][:1]), plain.encode_x(X[-1:]))


def test_what_cannot_be_solved_is_reported() -> None:
    X, Y = _views()
    doubled = np.hstack([X, X[:, :1]])
    with pytest.raises(DeixisError, match="covariance of X is singular after 600 rows of 9 features: give it a ridge"):
        NormalizedCCA(ridge=0, device="cpu").fit(doubled, Y)
    NormalizedCCA(ridge=1e-3, device="cpu").fit(doubled, Y)
    with pytest.raises(DeixisError, match="covariance of Y is singular"):
        NormalizedCCA(device="cpu").fit(X, np.ones((600, 2)))
    with pytest.raises(ValueError, match="n_components=7 must be within 1 and 6"):
        NormalizedCCA(7, device="cpu").fit(X, Y)
    with pytest.raises(ValueError, match="must not be negative"):
        NormalizedCCA(ridge=-1, device="cpu").fit(X, Y)
    with pytest.raises(ValueError, match="not 'float16'"):
        NormalizedCCA(dtype="float16", device="cpu").fit(X, Y)  # type: ignore[arg-type]
    X[333] = np.inf
    with pytest.raises(ValueError, match="NaN or infinity within rows 300 to 399"):
        NormalizedCCA(device="cpu", block=100).fit(X, Y)


def test_rows_that_do_not_fit_are_refused() -> None:
    X, Y = _views()
    cca = NormalizedCCA(device="cpu").partial_fit(X, Y)
    with pytest.raises(ValueError, match="Y has 5 features, but NormalizedCCA is expecting 6"):
        cca.partial_fit(X, Y[:, :5])
    with pytest.raises(ValueError, match="X has 7 features"):
        cca.encode_x(torch.from_numpy(X[:, :7]))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        cca.partial_fit(X, Y[:10])
    with pytest.raises(ValueError, match="float tensor"):
        cca.encode_y(torch.arange(6))
    with pytest.raises(ValueError, match="at least 2 pairs"):
        _ = NormalizedCCA(device="cpu").partial_fit(X[:1], Y[:1]).correlations_
    with pytest.raises(NotFittedError):
        NormalizedCCA(device="cpu").encode_y(Y)
    if not torch.cuda.is_available():
        with pytest.raises(DeixisError, match="sees no GPU"):
            NormalizedCCA(device="cuda").fit(X, Y)


def test_saved_and_loaded_it_encodes_the_same(tmp_path: Path) -> None:
    X, Y = _views()
    cca = NormalizedCCA(4, ridge=0.2, power=1.5, device="cpu").fit(X, Y)
    cca.save(tmp_path / "cca.safetensors")
    again = NormalizedCCA.load(tmp_path / "cca.safetensors", device="cpu")
    np.testing.assert_array_equal(again.encode_x(X), cca.encode_x(X))
    np.testing.assert_array_equal(again.encode_y(Y), cca.encode_y(Y))
    assert (again.ridge, again.power, again.n_samples_seen_) == (0.2, 1.5, 600)
    for learn in (lambda: again.partial_fit(X, Y), again.solve):
        with pytest.raises(DeixisError, match="loaded from a file"):
            learn()
    np.testing.assert_array_equal(again.fit(X, Y).encode_x(X), cca.encode_x(X))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda arrays, about: about.pop("kind"), "does not hold a NormalizedCCA"),
        (lambda arrays, about: about.update(cca="{"), "does not hold a NormalizedCCA"),
        (lambda arrays, about: about.update(cca='{"power": "x", "ridge": 1, "pairs": 2}'), "does not hold"),
        (lambda arrays, about: arrays.pop("cca.y_mean"), "does not hold a NormalizedCCA"),
        (lambda arrays, about: arrays.update({"cca.x_mean": np.zeros(3, np.float32)}), "do not fit together"),
        (lambda arrays, about: arrays.update({"cca.x_mean": np.zeros(8)}), "types do not fit"),
        (lambda arrays, about: arrays["cca.y_mean"].fill(np.nan), "not finite"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, spoil: Any, problem: str) -> None:
    path = tmp_path / "cca.safetensors"
    NormalizedCCA(4, device="cpu").fit(*_views()).save(path)
    with safetensors.safe_open(path, "numpy") as file:
        about, arrays = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    spoil(arrays, about)
    path.write_bytes(safetensors.numpy.save(arrays, about))
    with pytest.raises(InputError, match=problem):
        NormalizedCCA.load(path)
    path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(InputError, match="does not hold"):
        NormalizedCCA.load(path)
    with pytest.raises(InputError, match="absent: No such file"):
        NormalizedCCA.load(tmp_path / "absent")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([NormalizedCCA(1, device="cpu")])
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def _stacked(final: dict[str, Any]) -> tuple[StackedAuxiliaryEmbedding, NormalizedCCA, Any, Any]:
    auxiliary = NormalizedCCA(3, ridge=0.1, device="cpu").fit(*_views(400, seed=5))
    X, Y = _views(500)
    return StackedAuxiliaryEmbedding(auxiliary, device="cpu", **final), auxiliary, X, Y


def test_a_stacked_embedding_is_a_cca_of_features_beside_their_auxiliary_encoding() -> None:
    stacked, auxiliary, X, Y = _stacked({"n_components": 5, "ridge": 0.05, "block": 64})
    stacked.fit(X, Y)
    wide_x, wide_y = np.hstack([X, auxiliary.encode_x(X)]), np.hstack([Y, auxiliary.encode_y(Y)])
    # The oracle has a ridge by a view's whole variance, so each part is first brought to a mean variance of 1.
    for wide, width in ((wide_x, 8), (wide_y, 6)):
        for part in (wide[:, :width], wide[:, width:]):
            part /= np.sqrt(part.var(axis=0, ddof=1).mean())
    correlations, U, V = cca_eigenproblem(wide_x, wide_y, 0.05)
    np.testing.assert_allclose(stacked.correlations_, correlations[:5], atol=1e-6)
    scaled = [(wide - wide.mean(axis=0)) @ (W[:, :5] * correlations[:5]) for wide, W in ((wide_x, U), (wide_y, V))]
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in scaled)
    np.testing.assert_allclose(stacked.encode_x(X) @ stacked.encode_y(Y).T, x @ y.T, atol=1e-4)
    assert stacked.n_features_in_ == 8


def test_a_stacked_embedding_may_be_streamed_and_kept(tmp_path: Path) -> None:
    stacked, auxiliary, X, Y = _stacked({})
    whole = StackedAuxiliaryEmbedding(auxiliary, device="cpu").fit(X, Y)
    stacked.partial_fit(X[:100], Y[:100]).partial_fit(X[100:], Y[100:])
    np.testing.assert_allclose(stacked.correlations_, whole.correlations_, atol=1e-9)
    stacked.save(tmp_path / "stacked.safetensors")
    again = StackedAuxiliaryEmbedding.load(tmp_path / "stacked.safetensors", device="cpu")
    np.testing.assert_array_equal(again.encode_x(X), stacked.encode_x(X))
    np.testing.assert_array_equal(again.encode_y(Y), stacked.encode_y(Y))
    with pytest.raises(InputError, match="does not hold a NormalizedCCA"):
        NormalizedCCA.load(tmp_path / "stacked.safetensors")
    with pytest.raises(ValueError, match="features"):
        stacked.encode_x(X[:, :5])
