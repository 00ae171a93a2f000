"""Text features that are vectors: Fisher vectors, mean word vectors, tf-idf (made by `deixis.text.featurizers`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import DTypeLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer

from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, require_regular
from deixis.text.featurizers import TextRecipe, Tokens, check_components, save_recipe
from deixis.text.fisher import Family, FisherVectors
from deixis.text.streamed_pca import StreamedPCA
from deixis.text.tokens import has_content
from deixis.text.vector_files import StoredVectors, named_vectors
from deixis.text.word_vectors import WordVectors

PCA, IDF = "pca.safetensors", "idf.safetensors"
#: The mixtures of each kind of Fisher vectors, and the file of each mixture.
FAMILIES: dict[str, tuple[Family, ...]] = {"hglmm": ("hybrid",), "gmm+hglmm": ("gaussian", "hybrid")}
FILES = {"hybrid": "fisher.safetensors", "gaussian": "fisher-gaussian.safetensors"}
#: Texts that are projected, or made dense, at a time.
BLOCK = 4096


def fit(
    recipe: TextRecipe,
    captions: Sequence[Tokens],
    words: Iterable[str],
    vectors: WordVectors | None,
    device: str | None,
) -> VectorFeatures:
    """Fit mean vectors or Fisher vectors; arguments as for `deixis.text.featurizers.fit_text_features`."""
    vectors = vectors or named_vectors(recipe.vectors)
    stored = StoredVectors.of(vectors, words)
    if recipe.kind == "mean":
        return MeanFeatures(recipe, stored)
    settings: dict[str, Any] = {"random_state": recipe.seed, "n_jobs": os.cpu_count() or 1}
    parts = [
        FisherVectors(vectors, recipe.centres, family=family, **settings).fit(captions)
        for family in FAMILIES[recipe.kind]
    ]
    features = FisherFeatures(recipe, parts)
    features.vectors = stored
    return features.reduced(recipe, captions, device=device) if recipe.pca else features


def load(folder: Path, recipe: TextRecipe, device: str | None) -> VectorFeatures:
    """Read saved mean vectors or Fisher vectors."""
    vectors = StoredVectors.load(folder)
    if recipe.kind == "mean":
        return MeanFeatures(recipe, vectors)
    jobs = os.cpu_count() or 1
    parts = [FisherVectors.load(folder / FILES[family], vectors, n_jobs=jobs) for family in FAMILIES[recipe.kind]]
    return FisherFeatures(recipe, parts, StreamedPCA.load(folder / PCA, device=device) if recipe.pca else None)


class FisherFeatures:
    """Fisher vectors of mixtures over word vectors, raw (Entities) or their principal components (two-branch).

    With two mixtures (Klein et al., GMM + HGLMM) the two vectors follow each other, together at unit length.
    """

    def __init__(self, recipe: TextRecipe, parts: Sequence[FisherVectors], pca: StreamedPCA | None = None) -> None:
        self.recipe, self._parts, self._pca = recipe, parts, pca
        self.dim = pca.n_components if pca else sum(part.dim for part in parts)

    def reduced(self, recipe: TextRecipe, captions: Sequence[Tokens], *, device: str | None) -> FisherFeatures:
        """The same followed by a PCA, fitted to the captions."""
        check_components(recipe, len(captions))
        if recipe.pca > self.dim:
            raise DeixisError(f"text.pca = {recipe.pca}: Fisher vectors have only {self.dim:,} dimensions")
        # In a file, as float16: 30,000 captions take 1.1 GB.
        with tempfile.TemporaryFile() as file:
            rows: Any = np.memmap(file, np.float16, "w+", shape=(len(captions), self.dim))
            start = 0
            for block in self._raw(captions, np.float16):
                rows[start : start + len(block)] = block
                start += len(block)
            return FisherFeatures(recipe, self._parts, StreamedPCA(recipe.pca, device=device).fit(rows))

    def _raw(self, texts: Sequence[Tokens], dtype: DTypeLike) -> Iterator[NDArray[Any]]:
        """Blocks of vectors before the PCA."""
        if len(self._parts) == 1:
            yield from self._parts[0].stream(texts, dtype)
            return
        share = np.asarray(len(self._parts) ** -0.5, dtype)
        for blocks in zip(*(part.stream(texts, dtype) for part in self._parts), strict=True):
            yield np.concatenate(blocks, 1) * share

    @property
    def vectors(self) -> StoredVectors:
        return cast(StoredVectors, self._parts[0].vectors)

    @vectors.setter
    def vectors(self, vectors: StoredVectors) -> None:
        for part in self._parts:
            part.vectors = vectors

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        blocks = self._raw(texts, np.float32)
        if self._pca is None:
            yield from blocks
            return
        pending: list[NDArray[Any]] = []
        for block in blocks:
            pending.append(block)
            if sum(map(len, pending)) >= BLOCK:
                yield self._pca.transform(np.concatenate(pending))
                pending = []
        if pending:
            yield self._pca.transform(np.concatenate(pending))

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return _concatenated(self.stream(texts), (len(texts), self.dim))

    def knows(self, word: str) -> bool:
        return _has_vector(word, self.vectors)

    def save(self, folder: str | Path) -> None:
        self.vectors.save(Path(folder))
        for part in self._parts:
            part.save(Path(folder) / FILES[part.family])
        if self._pca is not None:
            self._pca.save(Path(folder) / PCA)
        save_recipe(folder, self.recipe)


class MeanFeatures:
    """The mean vector of a text's words (two-branch networks, Table 2 a)."""

    def __init__(self, recipe: TextRecipe, vectors: StoredVectors) -> None:
        self.recipe, self.vectors = recipe, vectors

    @property
    def dim(self) -> int:
        return self.vectors.dimension

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return MeanVectors(self.vectors).transform(texts)

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        yield self.transform(texts)

    def knows(self, word: str) -> bool:
        return _has_vector(word, self.vectors)

    def save(self, folder: str | Path) -> None:
        self.vectors.save(Path(folder))
        save_recipe(folder, self.recipe)


class TfidfFeatures:
    """tf-idf: one number per word of the training captions (two-branch networks, section 4.3)."""

    def __init__(self, recipe: TextRecipe, vectorizer: TfidfVectorizer) -> None:
        self.recipe, self._vectorizer = recipe, vectorizer
        self.dim = len(vectorizer.idf_)

    @classmethod
    def fit(cls, recipe: TextRecipe, captions: Sequence[Tokens]) -> TfidfFeatures:
        return cls(recipe, tfidf(min_df=recipe.minimum_count, dtype=np.float32).fit(captions))

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        for start in range(0, len(texts), BLOCK):
            yield self._vectorizer.transform(texts[start : start + BLOCK]).toarray()

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return _concatenated(self.stream(texts), (len(texts), self.dim))

    def knows(self, word: str) -> bool:
        return word in self._vectorizer.vocabulary_

    def save(self, folder: str | Path) -> None:
        words = sorted(self._vectorizer.vocabulary_, key=self._vectorizer.vocabulary_.__getitem__)
        idf = np.ascontiguousarray(self._vectorizer.idf_)
        with atomic_write(Path(folder) / IDF) as stream:
            stream.write(safetensors.numpy.save({"idf": idf}, {"words": msgspec.json.encode(words).decode()}))
        save_recipe(folder, self.recipe)

    @classmethod
    def load(cls, folder: Path, recipe: TextRecipe) -> TfidfFeatures:
        try:
            with safetensors.safe_open(require_regular(folder / IDF), "numpy") as file:
                words = msgspec.json.decode((file.metadata() or {})["words"], type=list[str])
                vectorizer = tfidf(vocabulary=words, dtype=np.float32)
                vectorizer.idf_ = file.get_tensor("idf")
        except (safetensors.SafetensorError, OSError, KeyError, ValueError, msgspec.DecodeError) as fault:
            raise InputError(folder / IDF, f"does not hold tf-idf weights ({fault})") from None
        return cls(recipe, vectorizer)


VectorFeatures = FisherFeatures | MeanFeatures


def _has_vector(word: str, vectors: StoredVectors) -> bool:
    """Whether a word has a vector, or, like "the", needs none."""
    return not has_content(word) or bool(vectors.look_up([word])[1][0])


def _concatenated(blocks: Iterator[NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.float32]:
    out = np.empty(shape, np.float32)
    start = 0
    for block in blocks:
        out[start : start + len(block)] = block
        start += len(block)
    return out


def tfidf(**options: Any) -> TfidfVectorizer:
    r"""scikit-learn's tf-idf on token lists; `options` are those of `TfidfVectorizer`.

    A word t of a caption counts :math:`\mathrm{tf} \cdot (1 + \ln\frac{1 + n}{1 + \mathrm{df}_t})`, rows have norm 1.
    The result is a sparse array. In two-branch networks (section 4.2) it is nearly as good as Fisher vectors.

    >>> features = tfidf().fit([("a", "dog"), ("a", "cat")])
    >>> features.transform([("a", "dog", "dog")]).toarray().round(2).tolist()
    [[0.34, 0.0, 0.94]]
    """
    return TfidfVectorizer(analyzer=_as_they_are, **options)


def _as_they_are(tokens: Sequence[str]) -> Sequence[str]:
    return tokens


class MeanVectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""A caption as the mean :math:`\frac1T \sum_t v(t)` of the vectors of its words with content.

    Words without a vector are left out; a caption without any vector is all zeros.

    Parameters
    ----------
    vectors : WordVectors

    References
    ----------
    G. Lev, B. Klein, L. Wolf. "In Defense of Word Embedding for Generic Text Representation", NLDB 2015.

    Examples
    --------
    >>> vectors = WordVectors(np.eye(2, dtype=np.float32), {"dog": 0, "runs": 1}.get)
    >>> MeanVectors(vectors).fit_transform([("a", "dog", "runs", "."), ()]).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """

    def __init__(self, vectors: WordVectors) -> None:
        self.vectors = vectors

    def fit(self, token_lists: Sequence[Sequence[str]], y: Any = None) -> Self:
        """Nothing is learned."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, token_lists: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Mean vectors, (captions, dimension)."""
        words = sorted({token for tokens in token_lists for token in tokens if has_content(token)})
        array, has_vector = self.vectors.look_up(words)
        rows = {word: row for row, word in enumerate(words) if has_vector[row]}
        means = np.zeros((len(token_lists), self.vectors.dimension), dtype=np.float32)
        for mean, tokens in zip(means, token_lists, strict=True):
            chosen = [rows[token] for token in tokens if token in rows]
            if chosen:
                mean[:] = array[chosen].mean(axis=0)
        return means
