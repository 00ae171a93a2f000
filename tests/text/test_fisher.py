"""Fisher vectors are the gradients they claim to be, with unit variance; the fast path equals the slow, plain one."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

from deixis.errors import DeixisError, InputError
from deixis.text.fisher import FisherVectors, fisher_gradients
from deixis.text.mixtures import DiagonalMixture
from deixis.text.tokens import has_content
from deixis.text.word_vectors import WordVectors


def _mixture(separation: float, family: str = "hybrid") -> DiagonalMixture:
    """Three components in four dimensions, `separation` apart, of both families."""
    generator = np.random.default_rng(5)
    mixture = DiagonalMixture(3)
    mixture.weights_ = np.array([0.5, 0.3, 0.2])
    mixture.location_ = generator.normal(size=(3, 4)) + separation * np.arange(3)[:, None]
    mixture.scale_ = generator.uniform(0.5, 2, size=(3, 4))
    mixture.gaussian_ = generator.random((3, 4)) < 0.5 if family == "hybrid" else np.full((3, 4), family == "gaussian")
    mixture.n_features_in_ = 4
    return mixture


@pytest.mark.parametrize("family", ["hybrid", "gaussian", "laplacian"])
def test_gradients_are_those_of_the_log_likelihood(family: str) -> None:
    mixture = _mixture(1.0, family)
    samples, _ = mixture.sample(20, random_state=0)
    step = 1e-6
    numeric = np.empty((20, 2, 3, 4))
    for number, name in enumerate(("location_", "scale_")):
        for k in range(3):
            for d in range(4):
                parameters = getattr(mixture, name)
                original = parameters[k, d]
                sides = []
                for sign in (1, -1):
                    parameters[k, d] = original + sign * step
                    sides.append(mixture.score_samples(samples))
                parameters[k, d] = original
                numeric[:, number, k, d] = (sides[0] - sides[1]) / (2 * step)
    # The roots of the Fisher information: w/σ² and 2w/σ² of a Gaussian, w/s² twice of a Laplacian.
    information = mixture.weights_[:, None] / mixture.scale_**2
    numeric[:, 0] /= np.sqrt(information)
    numeric[:, 1] /= np.sqrt(np.where(mixture.gaussian_, 2 * information, information))
    np.testing.assert_allclose(fisher_gradients(mixture, samples), numeric.reshape(20, -1), atol=1e-6, rtol=1e-6)


def test_gradients_of_separated_components_have_unit_variance() -> None:
    mixture = _mixture(100.0)
    samples, _ = mixture.sample(200_000, random_state=1)
    gradients = fisher_gradients(mixture, samples)
    np.testing.assert_allclose(gradients.mean(axis=0), 0, atol=0.02)
    covariance = np.cov(gradients.T)
    # Fourth moments of a Laplacian's and Gaussian's squares make the variance of scales noisier than that of locations.
    np.testing.assert_allclose(np.diag(covariance), 1, atol=0.06)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=0.03)


def test_a_gaussian_mixture_gives_scikit_images_fisher_vector() -> None:
    skimage = pytest.importorskip("skimage.feature", reason="scikit-image is not installed")
    mixture = _mixture(2.0, "gaussian")
    theirs = GaussianMixture(3, covariance_type="diag")
    theirs.weights_, theirs.means_, theirs.covariances_ = mixture.weights_, mixture.location_, mixture.scale_**2
    theirs.precisions_cholesky_ = 1 / mixture.scale_
    samples, _ = mixture.sample(17, random_state=2)
    whole = skimage.fisher_vector(samples, theirs)
    # It begins with the weights' derivatives, takes the mean over samples, and turns the sign of the scales'.
    locations, scales = np.split(whole[3:], 2)
    ours = fisher_gradients(mixture, samples).mean(axis=0)
    np.testing.assert_allclose(ours, np.concatenate([locations, -scales]), rtol=1e-9, atol=1e-12)


def test_a_component_without_samples_has_no_gradient() -> None:
    mixture = _mixture(1.0)
    samples, _ = mixture.sample(5, random_state=0)
    mixture.weights_ = np.array([0.6, 0.4, 0.0])
    gradients = fisher_gradients(mixture, samples).reshape(5, 2, 3, 4)
    assert np.isfinite(gradients).all()
    assert not gradients[:, :, 2].any()


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    generator = np.random.default_rng(0)
    mixed = generator.laplace(size=(400, 10)) @ generator.normal(size=(10, 10))
    rows = {f"word{number}": number for number in range(400)}
    return WordVectors(mixed.astype(np.float32), rows.get, source="drawn")


@pytest.fixture(scope="module")
def fisher(vectors: WordVectors) -> FisherVectors:
    return FisherVectors(vectors, n_components=4, random_state=0).fit([[f"word{number}" for number in range(400)]])


def _captions(count: int, seed: int = 0) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    words = [*(f"word{number}" for number in range(400)), "unheard-of", "a", "."]
    return [list(generator.choice(words, size=generator.poisson(5))) for _ in range(count)]


def _slowly(fisher: FisherVectors, captions: list[list[str]]) -> NDArray[np.float64]:
    """One caption after the other, by the definition."""
    out = []
    for tokens in captions:
        array, found = fisher.vectors.look_up([token for token in tokens if has_content(token)])
        total = np.zeros(2 * fisher.mixture_.location_.size)
        if found.any():
            total = fisher_gradients(fisher.mixture_, (array[found] - fisher.mean_) @ fisher.unmixing_.T).sum(axis=0)
        rooted = np.sign(total) * np.sqrt(np.abs(total))
        out.append(rooted / (np.linalg.norm(rooted) or 1))
    return np.array(out)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_the_fast_path_equals_the_definition(fisher: FisherVectors, n_jobs: int) -> None:
    captions = [*_captions(300), [], ["unheard-of"], ["word1"] * 7]
    encoded = clone(fisher).set_params(n_jobs=n_jobs).fit([[f"word{n}" for n in range(400)]]).transform(captions)
    assert encoded.dtype == np.float32
    assert encoded.shape == (303, 2 * 4 * 10)
    # Shares under 1e-8 are left out, which after the root is 1e-4 of a number of size one.
    np.testing.assert_allclose(encoded, _slowly(fisher, captions), atol=2e-4)
    norms = np.linalg.norm(encoded, axis=1)
    known = [any(token.startswith("word") for token in tokens) for tokens in captions]
    np.testing.assert_allclose(norms, known, atol=1e-5)


@pytest.mark.parametrize("captions", [[], [[]], [[], []], [["."], []]], ids=str)
def test_captions_without_any_word_are_zeros(fisher: FisherVectors, captions: list[list[str]]) -> None:
    encoded = fisher.transform(captions)
    assert encoded.shape == (len(captions), 80)
    assert not encoded.any()


def test_vectors_stream_into_a_memory_map_of_any_float_type(fisher: FisherVectors, tmp_path: Path) -> None:
    captions = _captions(500)
    out = np.lib.format.open_memmap(tmp_path / "vectors.npy", "w+", np.float16, (500, 80))
    assert fisher.transform(captions, out=out) is out
    out.flush()
    written = np.load(tmp_path / "vectors.npy")
    whole = fisher.transform(captions)
    np.testing.assert_array_equal(written, whole.astype(np.float16))
    np.testing.assert_array_equal(np.concatenate(list(fisher.stream(captions))), written)
    with pytest.raises(DeixisError, match=r"out has shape \(499, 80\)"):
        fisher.transform(captions, out=out[1:])


def test_word_order_and_repetition_of_the_whole_do_not_count(fisher: FisherVectors) -> None:
    encoded = fisher.transform([["word1", "word2"], ["word2", "word1"], ["word1", "word2"] * 3, ["word1", "word3"]])
    np.testing.assert_allclose(encoded[1:3], encoded[[0, 0]], atol=1e-5)
    assert np.abs(encoded[3] - encoded[0]).max() > 0.01


def test_whitening_makes_the_dimensions_independent(fisher: FisherVectors) -> None:
    """The unmixed vectors are the Laplacian sources again, and the mixture sees what family they are."""
    unmixed = (fisher.vectors.table - fisher.mean_) @ fisher.unmixing_.T
    np.testing.assert_allclose(np.cov(unmixed.T), np.eye(10), atol=0.02)
    sources = np.random.default_rng(0).laplace(size=(400, 10))
    correlation = np.abs(np.corrcoef(unmixed.T, sources.T)[:10, 10:])
    assert correlation.max(axis=1).min() > 0.9


def test_the_same_seed_gives_the_same_vectors(vectors: WordVectors) -> None:
    words = [[f"word{number}" for number in range(300)]]
    first, second, other = (FisherVectors(vectors, 3, random_state=seed).fit(words) for seed in (1, 1, 2))
    captions = _captions(20)
    np.testing.assert_array_equal(first.transform(captions), second.transform(captions))
    assert np.abs(first.transform(captions) - other.transform(captions)).max() > 0.01


def test_fewer_words_than_dimensions_still_fit(vectors: WordVectors) -> None:
    fisher = FisherVectors(vectors, 2, minimum_words=0, random_state=0).fit(
        [["word1", "word2", "word3"], ["word4", "word5"]]
    )
    encoded = fisher.transform([["word1"], ["word5", "word2"]])
    assert encoded.shape == (2, 2 * 2 * 4)
    assert np.isfinite(encoded).all()
    with pytest.raises(DeixisError, match="30 components need as many words with vectors, 1 are there"):
        FisherVectors(vectors, minimum_words=0).fit([["word1", "unheard-of"]])


def test_few_words_borrow_the_frequent_words_of_the_vectors(vectors: WordVectors, fisher: FisherVectors) -> None:
    borrowed = FisherVectors(vectors, n_components=4, random_state=0).fit([["word1", "word2"]])
    np.testing.assert_array_equal(borrowed.mixture_.location_, fisher.mixture_.location_)
    some = FisherVectors(vectors, 2, minimum_words=50, random_state=0).fit([["word398", "word399"]])
    np.testing.assert_allclose(some.mean_, vectors.table[[*range(50), 398, 399]].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_saved_and_loaded_it_gives_the_same_vectors(
    fisher: FisherVectors, vectors: WordVectors, tmp_path: Path
) -> None:
    path = tmp_path / "fisher.safetensors"
    fisher.save(path)
    captions = _captions(20)
    for again in (FisherVectors.load(path, vectors), pickle.loads(pickle.dumps(fisher))):  # noqa: S301
        np.testing.assert_array_equal(again.transform(captions), fisher.transform(captions))
    with pytest.raises(InputError, match="fitted to the word vectors 'drawn', not 'others'"):
        FisherVectors.load(path, WordVectors(vectors.table, {}.get, source="others"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="does not hold Fisher vectors"):
        FisherVectors.load(path, vectors)


def test_cost_is_linear_in_words(fisher: FisherVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word of the vocabulary is worked on once, however often it occurs."""
    seen: list[int] = []
    look_up = WordVectors.look_up

    def counting(self: WordVectors, words: Any) -> Any:
        seen.append(len(words))
        return look_up(self, words)

    monkeypatch.setattr(WordVectors, "look_up", counting)
    captions = _captions(50)
    for times in (1, 4):
        fisher.transform(captions * times)
    assert seen[0] == seen[1] == len({token for tokens in captions for token in tokens})
    assert len(seen) == 2
    assert not any(second > first for first, second in pairwise(seen))
