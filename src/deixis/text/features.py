"""Texts as what a text branch takes: Fisher vectors, mean vectors, tf-idf, or word ids for an LSTM.

Sentences and phrases go through the same features, fitted to the captions of a training set alone. Fitted ones are
kept in the cache under a hash of the settings and of those captions. Their files (safetensors, JSON, text) are all
that is needed to use them: the vectors of the words met go along, so a machine without word vectors gives the same
numbers for every text of the corpus. A word that was not met is unknown there: vectors leave it out, as they do a word
without a vector, tf-idf too; word ids give it that of the unknown word.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import Meta
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from deixis.corpus.training import TrainingSet
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, cache_folder, read_json
from deixis.text.bag_of_words import MeanVectors, tfidf
from deixis.text.fisher import FisherVectors
from deixis.text.kept_vectors import KeptVectors
from deixis.text.named_vectors import SPACY, named_vectors, up_to_date
from deixis.text.streamed_pca import StreamedPCA
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vocabulary import PAD, Vocabulary
from deixis.text.word_vectors import WordVectors

Tokens = Sequence[str]

#: Part of every cache key: raise it when the same settings come to give other features.
VERSION = 1
#: Texts that are projected, or made dense, together.
BLOCK = 4096
RECIPE, FISHER, PCA, IDF, VOCABULARY = (
    "recipe.json", "fisher.safetensors", "pca.safetensors", "idf.safetensors", "vocabulary.tsv",
)  # fmt: skip


class TextRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[text]` section of a recipe."""

    kind: Literal["hglmm", "mean", "tfidf", "tokens"] = "hglmm"
    #: hglmm: centres of the mixture; 30 centres of 300-d word vectors give 18,000 numbers.
    centres: Annotated[int, Meta(ge=1)] = 30
    #: hglmm: principal components kept (6,000 in the two-branch paper); 0 keeps all numbers (the Entities paper).
    pca: Annotated[int, Meta(ge=0)] = 0
    #: tfidf, tokens: a word must be in so many captions (tfidf), or occur so often (tokens), to be known.
    minimum_count: Annotated[int, Meta(ge=1)] = 1
    #: hglmm, mean: spaCy's vectors, or a word2vec, GloVe or .vec file.
    vectors: str = SPACY
    #: hglmm: of the independent components and of the mixture.
    seed: Annotated[int, Meta(ge=0)] = 0


class TextFeatures(Protocol):
    """Fitted text features. The kind "tokens" gives word ids, the others vectors."""

    @property
    def recipe(self) -> TextRecipe: ...

    @property
    def dim(self) -> int:
        """How many numbers a text becomes; for "tokens", how many ids there are, that of padding (0) included."""

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(texts, dim)` float32; for "tokens" ids `(texts, longest)` int64, shorter texts padded with 0."""

    def knows(self, word: str) -> bool:
        """Whether a lower-case word counts at all."""

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        """The same in blocks of rows, in order, for whoever moves them elsewhere; ids come in one block.

        All texts at once, since what is worked out of a word is worked out once a call.
        """

    def save(self, folder: str | Path) -> None:
        """Write everything that `load_text_features` needs."""


def text_features(
    recipe: TextRecipe,
    training: TrainingSet,
    *,
    also: Iterable[Tokens] = (),
    device: str | None = None,
) -> TextFeatures:
    """The features of a recipe from the cache, or fitted to the captions of a training set and left there.

    Args:
        recipe: which.
        training: whose captions, and no others, they are fitted to.
        also: other texts that will be met, such as those of the validation split: the vectors of their words are kept
            too, so that they can be used where no word vectors are installed. Nothing is fitted to them.
        device: where principal components are computed, `cuda` or `cpu`; None takes a GPU where there is one.
    """
    captions, also = training_captions(training), list(also)
    words = content_words([*captions, *also])
    folder = cache_folder() / "text" / _key(recipe, captions)
    if (folder / RECIPE).exists():
        features = load_text_features(folder, device=device)
        if not isinstance(features, FisherFeatures | MeanFeatures):
            return features
        kept = up_to_date(features.vectors, recipe.vectors, words)
        if kept is not None:
            if kept is not features.vectors:
                features.vectors = kept
                kept.save(folder)
            return features
        (folder / RECIPE).unlink(missing_ok=True)
    if recipe.kind == "hglmm" and recipe.pca:
        check_components(recipe, len(captions))
        # The mixture is the slow part, and the only one that needs all word vectors: it is fitted and kept once.
        whole = text_features(msgspec.structs.replace(recipe, pca=0), training, also=also, device=device)
        assert isinstance(whole, FisherFeatures)
        features = whole.reduced(recipe, captions, device=device)
    else:
        features = fit_text_features(recipe, captions, words=words)
    features.save(folder)
    return features


def training_captions(training: TrainingSet) -> list[tuple[str, ...]]:
    """The tokens of all captions of a training set, in order: what text features are fitted to."""
    return [tokens_of(caption) for image in training for caption in image.captions]


def content_words(texts: Iterable[Tokens]) -> list[str]:
    """The different words of texts that count in sums over word vectors."""
    return sorted({word for text in texts for word in text if has_content(word)})


def fit_text_features(
    recipe: TextRecipe,
    captions: Sequence[Tokens],
    *,
    words: Iterable[str] = (),
    vectors: WordVectors | None = None,
    device: str | None = None,
) -> TextFeatures:
    """Fit the features of a recipe; `text_features` is the door that minds the training set and the cache.

    Args:
        recipe: which.
        captions: the tokens of a training set's captions.
        words: words whose vectors are kept beside those of the captions.
        vectors: those that the recipe names, where they are at hand already.
        device: where principal components are computed.
    """
    if not captions:
        raise DeixisError("there are no captions to fit text features to")
    if recipe.kind == "tokens":
        return TokenIds(recipe, Vocabulary.of(captions, minimum_count=recipe.minimum_count))
    if recipe.kind == "tfidf":
        return TfidfFeatures(recipe, tfidf(min_df=recipe.minimum_count, dtype=np.float32).fit(captions))
    met = sorted({*words, *content_words(captions)})
    vectors = vectors or named_vectors(recipe.vectors)
    kept = KeptVectors.of(vectors, met)
    if recipe.kind == "mean":
        return MeanFeatures(recipe, kept)
    fisher = FisherVectors(vectors, recipe.centres, random_state=recipe.seed, n_jobs=os.cpu_count() or 1).fit(captions)
    fisher.vectors = kept
    features = FisherFeatures(recipe, fisher)
    return features.reduced(recipe, captions, device=device) if recipe.pca else features


def load_text_features(folder: str | Path, *, device: str | None = None) -> TextFeatures:
    """Read what `save` wrote; `device` as for `text_features`."""
    folder = Path(folder)
    recipe = read_json(folder / RECIPE, TextRecipe, "does not tell of text features")
    if recipe.kind == "tokens":
        return TokenIds(recipe, Vocabulary.load(folder / VOCABULARY))
    if recipe.kind == "tfidf":
        return TfidfFeatures.load(folder, recipe)
    kept = KeptVectors.load(folder)
    if recipe.kind == "mean":
        return MeanFeatures(recipe, kept)
    fisher = FisherVectors.load(folder / FISHER, kept, n_jobs=os.cpu_count() or 1)
    return FisherFeatures(recipe, fisher, StreamedPCA.load(folder / PCA, device=device) if recipe.pca else None)


def check_components(recipe: TextRecipe, captions: int) -> None:
    """Refuse more principal components than captions: before the mixture, which takes minutes."""
    if recipe.kind == "hglmm" and recipe.pca > captions > 0:
        raise DeixisError(
            f"text.pca = {recipe.pca}: {captions:,} training captions have at most as many principal components; "
            f"use fewer (`deixis train … --set text.pca={min(200, captions)}`), or 0 for all of a Fisher vector's"
        )


class FisherFeatures:
    """Fisher vectors of a mixture over word vectors, raw (Entities) or their principal components (two-branch)."""

    def __init__(self, recipe: TextRecipe, fisher: FisherVectors, pca: StreamedPCA | None = None) -> None:
        self.recipe, self._fisher, self._pca = recipe, fisher, pca
        self.dim = pca.n_components if pca else 2 * int(fisher.mixture_.location_.size)

    def reduced(self, recipe: TextRecipe, captions: Sequence[Tokens], *, device: str | None) -> FisherFeatures:
        """The same with principal components of the captions' vectors, as many as the recipe says."""
        check_components(recipe, len(captions))
        if recipe.pca > self.dim:
            raise DeixisError(f"text.pca = {recipe.pca}: Fisher vectors have only {self.dim:,} dimensions")
        # Half precision in a file: 30,000 captions are 1.1 GB.
        with tempfile.TemporaryFile() as file:
            rows: Any = np.memmap(file, np.float16, "w+", shape=(len(captions), self.dim))
            self._fisher.transform(captions, out=rows)
            return FisherFeatures(recipe, self._fisher, StreamedPCA(recipe.pca, device=device).fit(rows))

    @property
    def vectors(self) -> KeptVectors:
        return cast(KeptVectors, self._fisher.vectors)

    @vectors.setter
    def vectors(self, kept: KeptVectors) -> None:
        self._fisher.vectors = kept

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        blocks = self._fisher.stream(texts, np.float32)
        if self._pca is None:
            yield from blocks
            return
        waiting: list[NDArray[Any]] = []
        for block in blocks:
            waiting.append(block)
            if sum(map(len, waiting)) >= BLOCK:
                yield self._pca.transform(np.concatenate(waiting))
                waiting = []
        if waiting:
            yield self._pca.transform(np.concatenate(waiting))

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return _filled(self.stream(texts), (len(texts), self.dim))

    def knows(self, word: str) -> bool:
        # Words without content have no vector, and need none.
        return not has_content(word) or bool(self.vectors.look_up([word])[1][0])

    def save(self, folder: str | Path) -> None:
        self.vectors.save(Path(folder))
        self._fisher.save(Path(folder) / FISHER)
        if self._pca is not None:
            self._pca.save(Path(folder) / PCA)
        _save_recipe(folder, self.recipe)


class MeanFeatures:
    """The mean vector of a text's words (two-branch networks, Table 2 a)."""

    def __init__(self, recipe: TextRecipe, vectors: KeptVectors) -> None:
        self.recipe, self.vectors = recipe, vectors

    @property
    def dim(self) -> int:
        return self.vectors.dimension

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return MeanVectors(self.vectors).transform(texts)

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        yield self.transform(texts)

    def knows(self, word: str) -> bool:
        # Words without content have no vector, and need none.
        return not has_content(word) or bool(self.vectors.look_up([word])[1][0])

    def save(self, folder: str | Path) -> None:
        self.vectors.save(Path(folder))
        _save_recipe(folder, self.recipe)


class TfidfFeatures:
    """tf-idf: one number per word of the training captions (two-branch networks, section 4.3)."""

    def __init__(self, recipe: TextRecipe, vectorizer: TfidfVectorizer) -> None:
        self.recipe, self._vectorizer = recipe, vectorizer
        self.dim = len(vectorizer.idf_)

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        for start in range(0, len(texts), BLOCK):
            yield self._vectorizer.transform(texts[start : start + BLOCK]).toarray()

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        return _filled(self.stream(texts), (len(texts), self.dim))

    def knows(self, word: str) -> bool:
        return word in self._vectorizer.vocabulary_

    def save(self, folder: str | Path) -> None:
        words = sorted(self._vectorizer.vocabulary_, key=self._vectorizer.vocabulary_.__getitem__)
        idf = np.ascontiguousarray(self._vectorizer.idf_)
        _write(Path(folder) / IDF, safetensors.numpy.save({"idf": idf}, {"words": msgspec.json.encode(words).decode()}))
        _save_recipe(folder, self.recipe)

    @classmethod
    def load(cls, folder: Path, recipe: TextRecipe) -> TfidfFeatures:
        try:
            with safetensors.safe_open(folder / IDF, "numpy") as file:
                words = msgspec.json.decode((file.metadata() or {})["words"], type=list[str])
                vectorizer = tfidf(vocabulary=words, dtype=np.float32)
                vectorizer.idf_ = file.get_tensor("idf")
        except (safetensors.SafetensorError, OSError, KeyError, ValueError, msgspec.DecodeError) as fault:
            raise InputError(folder / IDF, f"does not hold tf-idf weights ({fault})") from None
        return cls(recipe, vectorizer)


class TokenIds:
    """Ids of words in a vocabulary, for a text branch that learns its own word vectors."""

    def __init__(self, recipe: TextRecipe, vocabulary: Vocabulary) -> None:
        self.recipe, self.vocabulary = recipe, vocabulary
        self.dim = len(vocabulary)

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        ids = np.full((len(texts), max(map(len, texts), default=0)), PAD, np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = self.vocabulary.encode(text)
        return ids

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        yield self.transform(texts)

    def knows(self, word: str) -> bool:
        return word in self.vocabulary

    def save(self, folder: str | Path) -> None:
        self.vocabulary.save(Path(folder) / VOCABULARY)
        _save_recipe(folder, self.recipe)


def _key(recipe: TextRecipe, captions: Iterable[Tokens]) -> str:
    digest = hashlib.sha256(b"%d\n" % VERSION + msgspec.json.encode(recipe))
    for caption in captions:
        digest.update(b"\n" + " ".join(caption).encode(errors="surrogatepass"))
    return digest.hexdigest()[:32]


def _filled(blocks: Iterator[NDArray[Any]], shape: tuple[int, int]) -> NDArray[np.float32]:
    out = np.empty(shape, np.float32)
    start = 0
    for block in blocks:
        out[start : start + len(block)] = block
        start += len(block)
    return out


def _save_recipe(folder: str | Path, recipe: TextRecipe) -> None:
    """Written last: a folder that has it is whole."""
    _write(Path(folder) / RECIPE, msgspec.json.encode(recipe))


def _write(path: Path, data: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(data)
