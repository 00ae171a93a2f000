"""Fisher vectors of captions over word vectors: text features (Entities, section 3.1; two-branch, section 4.2)."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import safetensors.numpy
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, require_regular
from deixis.text.mixtures import DiagonalMixture, Floats, Randomness
from deixis.text.tokens import has_content
from deixis.text.word_vectors import WordVectors

#: See `deixis.text.mixtures.DiagonalMixture`.
Family = Literal["hybrid", "gaussian", "laplacian"]
#: Smaller shares of a word in a component are ignored: after the square root they are below float16's resolution.
_SMALLEST_SHARE = 1e-8
#: Captions processed together.
_BLOCK = 128


def fisher_gradients(mixture: DiagonalMixture, samples: Floats) -> Floats:
    """Normalized gradients of log p(x) for each sample, (samples, 2 · components · dimensions).

    First the locations, component by component, then the scales; the formulas are in `FisherVectors`.
    """
    responsibilities = mixture.predict_proba(samples)
    parts = [
        responsibilities[:, k, None] * _component_gradients(mixture, samples, k) for k in range(mixture.n_components)
    ]
    return (
        np.stack(parts, axis=1)
        .reshape(len(samples), mixture.n_components, 2, -1)
        .swapaxes(1, 2)
        .reshape(len(samples), -1)
    )


def _component_gradients(mixture: DiagonalMixture, samples: Floats, k: int) -> Floats:
    """What a sample that is all of component k gives: (samples, locations then scales)."""
    u = (samples - mixture.location_[k]) / mixture.scale_[k]
    gaussian = mixture.gaussian_[k]
    # A median is the coordinate of some word: there the sign must be 0, not that of a rounding error.
    location = np.where(gaussian, u, np.sign(u) * (np.abs(u) > 1e-9))
    scale = np.where(gaussian, (u**2 - 1) / np.sqrt(2), np.abs(u) - 1)
    # A component that lost all its samples has weight 0, and no word has a share in it.
    weight = max(mixture.weights_[k], np.finfo(np.float64).tiny)
    return np.asarray(np.concatenate([location, scale], axis=1) / np.sqrt(weight))


class FisherVectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Captions as gradients of the log-likelihood of their words, under a mixture fitted to word vectors.

    With :math:`u = (x - \text{location}) / \text{scale}` for one dimension of component k, and :math:`\gamma_k(x)` the
    probability of the component given the word, the derivatives of :math:`\log p(x)` are

    ==========  ======================================  ========================================
    dimension   by location                             by scale
    ==========  ======================================  ========================================
    Gaussian    :math:`\gamma_k u / \sigma`             :math:`\gamma_k (u^2 - 1) / \sigma`
    Laplacian   :math:`\gamma_k \,\mathrm{sign}(u)/s`   :math:`\gamma_k (|u| - 1) / s`
    ==========  ======================================  ========================================

    (at the median itself, where a Laplacian has no derivative, 0 is taken). The Fisher information is taken as
    diagonal, with components that do not overlap, so that :math:`E[\gamma_k^2 f] = w_k E_k[f]`. Since
    :math:`E_k u^2 = 1` and :math:`E_k (u^2 - 1)^2 = 2` under a Gaussian, :math:`E_k \mathrm{sign}^2(u) = 1` and
    :math:`E_k(|u| - 1)^2 = 1` under a Laplacian, it is :math:`w_k/\sigma^2` and :math:`2 w_k/\sigma^2`, or
    :math:`w_k/s^2` both times. Each derivative is divided by the root of it:

    .. math::
        \frac{\gamma_k}{\sqrt{w_k}}\, u, \quad \frac{\gamma_k}{\sqrt{2 w_k}} (u^2 - 1)
        \qquad\text{or}\qquad
        \frac{\gamma_k}{\sqrt{w_k}}\, \mathrm{sign}(u), \quad \frac{\gamma_k}{\sqrt{w_k}} (|u| - 1)

    These are summed over the words of a caption, then comes the signed square root, then the division by the Euclidean
    norm. With z the sum, the outcome is :math:`\mathrm{sign}(z) \sqrt{|z| / \sum |z|}`: the number of words cancels. A
    caption without a known word is all zeros. 30 components × 300 dimensions × 2 = 18,000 numbers.

    Before the mixture, word vectors go through independent component analysis, which makes their dimensions as
    independent, and as far from Gaussian, as a linear map can: what a product of one-dimensional densities asks for.

    A caption's sum needs each word's gradients, which are computed once per word of the vocabulary; most words belong
    to one or two components, so most of their 18,000 numbers are zero. Captions are a sparse table of word
    counts, and each component's 600 columns are one product of its share of that table. The cost is linear in the
    number of running words, and normalizing and writing the outcome is the larger part of it. Of strings that occur
    often (phrases), encode each once.

    `MeanVectors` keeps only the first moment of the words; `deixis.text.StreamedPCA` takes the 18,000 to 6,000 as in
    the two-branch paper.

    Parameters
    ----------
    vectors : WordVectors
    n_components : int
        Components of the mixture.
    family : {"hybrid", "gaussian", "laplacian"}
        See `DiagonalMixture`.
    ica_iterations : int
        Maximum number of FastICA steps. Nearly Gaussian dimensions may never converge.
    minimum_words : int
        Independent components of 300 dimensions ask for thousands of vectors. Where the captions have fewer different
        ones, the first `minimum_words` rows of the vectors' table (the frequent words) are fitted with them.
    random_state : int, RandomState or None
    n_jobs : int
        Threads that work on blocks of captions.

    Attributes
    ----------
    mean_, unmixing_ : (dimension,), (dimensions kept, dimension)
        A word vector v becomes unmixing_ @ (v - mean_).
    mixture_ : DiagonalMixture

    References
    ----------
    B. Klein, G. Lev, G. Sadeh, L. Wolf. "Associating Neural Word Embeddings with Deep Image Representations using
    Fisher Vectors", CVPR 2015. F. Perronnin, J. Sánchez, T. Mensink. "Improving the Fisher Kernel for Large-Scale
    Image Classification", ECCV 2010.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> words = [f"word{number}" for number in range(500)]
    >>> rows = {word: row for row, word in enumerate(words)}
    >>> vectors = WordVectors(generator.laplace(size=(500, 8)).astype(np.float32), rows.get)
    >>> fisher = FisherVectors(vectors, n_components=3, random_state=0).fit([words])
    >>> fisher.transform([["word1", "word2"], ["word3"], ["?"]]).shape
    (3, 48)
    """

    def __init__(
        self,
        vectors: WordVectors,
        n_components: int = 30,
        *,
        family: Family = "hybrid",
        ica_iterations: int = 50,
        minimum_words: int = 10_000,
        random_state: Randomness = None,
        n_jobs: int = 1,
    ) -> None:
        self.vectors = vectors
        self.n_components = n_components
        self.family = family
        self.ica_iterations = ica_iterations
        self.minimum_words = minimum_words
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def dim(self) -> int:
        """Numbers of a fitted vector: 2 · components · dimensions."""
        return 2 * int(self.mixture_.location_.size)

    def fit(self, token_lists: Sequence[Sequence[str]], y: Any = None) -> Self:
        """Fit to the distinct vectors of the words of token lists, each counted once."""
        words = sorted({token for tokens in token_lists for token in tokens if has_content(token)})
        array, has_vector = self.vectors.look_up(words)
        distinct = np.unique(array[has_vector], axis=0)
        if len(distinct) < self.minimum_words:
            distinct = np.unique(np.concatenate([distinct, self.vectors.table[: self.minimum_words]]), axis=0)
        distinct = distinct.astype(np.float64)
        if len(distinct) < max(2, self.n_components):
            raise DeixisError(
                f"{self.n_components} components need as many words with vectors, {len(distinct)} are there"
            )
        # With fewer words than dimensions the words span fewer: whitening keeps what they span.
        rank = min(self.vectors.dimension, np.linalg.matrix_rank(distinct - distinct.mean(axis=0)))
        ica = FastICA(rank, max_iter=self.ica_iterations, random_state=self.random_state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            ica.fit(distinct)
        self.mean_, self.unmixing_ = ica.mean_, ica.components_
        self.mixture_ = DiagonalMixture(self.n_components, family=self.family, random_state=self.random_state)
        self.mixture_.fit((distinct - self.mean_) @ self.unmixing_.T)
        return self

    def transform(self, token_lists: Sequence[Sequence[str]], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Fisher vectors of token lists, (captions, 2 · components · dimensions).

        Args:
            token_lists: the tokens of each caption; words without a vector (`WordVectors.missing` counts them) and
                those without content (`has_content`) are left out.
            out: array or memory-map of that shape to fill, of any float type; a new float32 array when not given.
        """
        check_is_fitted(self)
        shape = (len(token_lists), 2 * self.mixture_.location_.size)
        if out is None:
            out = np.empty(shape, dtype=np.float32)
        if out.shape != shape:
            raise DeixisError(f"out has shape {out.shape}, not {shape}")
        start = 0
        for block in self.stream(token_lists, out.dtype):
            out[start : start + len(block)] = block
            start += len(block)
        return out

    def stream(self, token_lists: Sequence[Sequence[str]], dtype: DTypeLike = np.float16) -> Iterator[NDArray[Any]]:
        """`transform` in blocks of captions, in order: 100,000 float16 vectors take 3.6 GB."""
        check_is_fitted(self)
        words, counts = self._count(token_lists)
        parts = [(counts[:, chosen], table) for chosen, table in self._word_tables(words)]
        dimensions = self.mixture_.location_.shape[1]

        def encode(start: int) -> NDArray[Any]:
            stop = min(start + _BLOCK, len(token_lists))
            sums = np.empty((stop - start, 2, len(parts), dimensions), dtype=np.float32)
            for k, (part, table) in enumerate(parts):
                sums[:, :, k] = (part[start:stop] @ table).reshape(-1, 2, dimensions)
            return _cast(_normalized(sums.reshape(stop - start, -1)), np.dtype(dtype))

        with ThreadPoolExecutor(self.n_jobs) as pool:
            # At most one block more than there are threads is in memory, however slowly blocks are consumed.
            pending: deque[Future[NDArray[Any]]] = deque()
            for start in range(0, len(token_lists), _BLOCK):
                pending.append(pool.submit(encode, start))
                if len(pending) > self.n_jobs:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def save(self, path: str | Path) -> None:
        """Write the fitted parameters as safetensors, with the name of the word vectors but not the vectors."""
        check_is_fitted(self)
        mixture = self.mixture_
        arrays = {"mean": self.mean_, "unmixing": self.unmixing_, "weights": mixture.weights_}
        arrays |= {"location": mixture.location_, "scale": mixture.scale_, "gaussian": mixture.gaussian_}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with atomic_write(path) as stream:
            stream.write(safetensors.numpy.save(arrays, {"vectors": self.vectors.source, "family": self.family}))

    @classmethod
    def load(cls, path: str | Path, vectors: WordVectors, *, n_jobs: int = 1) -> FisherVectors:
        """Read a file written by `save`; `vectors` must be those it was fitted with."""
        try:
            with safetensors.safe_open(require_regular(path), "numpy") as file:
                about, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            shape = (len(arrays["weights"]), len(arrays["unmixing"]))
            fits = all(arrays[name].shape == shape for name in ("location", "scale", "gaussian"))
        except (safetensors.SafetensorError, OSError, KeyError, TypeError) as fault:
            raise InputError(path, f"does not hold Fisher vectors ({fault})") from None
        if not fits or arrays["unmixing"].shape[1:] != arrays["mean"].shape or arrays["gaussian"].dtype != bool:
            raise InputError(path, "has arrays whose shapes do not fit together")
        if (about.get("vectors"), len(arrays["mean"])) != (vectors.source, vectors.dimension):
            raise InputError(path, f"was fitted to the word vectors {about.get('vectors')!r}, not {vectors.source!r}")
        fisher = cls(vectors, shape[0], family=about.get("family", "hybrid"), n_jobs=n_jobs)
        fisher.mean_, fisher.unmixing_ = arrays["mean"], arrays["unmixing"]
        fisher.mixture_ = mixture = DiagonalMixture(shape[0], family=fisher.family)
        mixture.weights_, mixture.location_, mixture.scale_ = arrays["weights"], arrays["location"], arrays["scale"]
        mixture.gaussian_, mixture.n_features_in_ = arrays["gaussian"], shape[1]
        return fisher

    def _count(self, token_lists: Sequence[Sequence[str]]) -> tuple[list[str], csr_array]:
        """The distinct words, and how often each is in each caption, (captions, words)."""
        ids: dict[str, int] = {}
        indices = [ids.setdefault(token, len(ids)) for tokens in token_lists for token in tokens]
        ends = itertools.accumulate((len(tokens) for tokens in token_lists), initial=0)
        counts = csr_array(
            (np.ones(len(indices), dtype=np.float32), np.array(indices, dtype=np.int32), np.fromiter(ends, np.int32)),
            shape=(len(token_lists), len(ids)),
        )
        counts.sum_duplicates()
        return list(ids), counts

    def _word_tables(self, words: list[str]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """For each component, the words with a share in it and their gradients (words, 2 · dimensions)."""
        array, counts = self.vectors.look_up(words)
        counts &= np.array([has_content(word) for word in words], dtype=bool)
        samples = (array - self.mean_) @ self.unmixing_.T
        shares = self.mixture_.predict_proba(samples) * counts[:, None] if words else np.zeros((0, self.n_components))
        for k in range(self.mixture_.n_components):
            chosen = np.flatnonzero(shares[:, k] > _SMALLEST_SHARE)
            gradients = shares[chosen, k, None] * _component_gradients(self.mixture_, samples[chosen], k)
            yield chosen, gradients.astype(np.float32)


def _normalized(sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Signed square root and L2 normalization in one step: sign(z) √(|z| / Σ|z|)."""
    magnitude = np.abs(sums)
    total = magnitude.sum(axis=1, keepdims=True)
    magnitude /= np.where(total > 0, total, 1)
    np.sqrt(magnitude, out=magnitude)
    return np.copysign(magnitude, sums)


def _cast(block: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype != np.float16:
        return block.astype(dtype, copy=False)
    import torch

    # PyTorch converts to float16 by CPU instructions, NumPy in software, 25 times slower here.
    return torch.from_numpy(block).half().numpy()
