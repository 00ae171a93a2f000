"""Texts as the input of a text branch: Fisher vectors, mean vectors, tf-idf, or word ids for an LSTM.

Sentences and phrases go through the same features, which are fitted to the captions of a training set alone. Fitted
features are cached under a hash of the settings and of those captions. Their files (safetensors, JSON, text) contain
the vectors of all words of the corpus, so a machine without word vectors gives the same numbers for its texts. Other
words are unknown there: vectors and tf-idf leave them out, word ids use the id of the unknown word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, cast

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from deixis.corpus.leak_guard import TrainingSet
from deixis.errors import DeixisError
from deixis.files import atomic_write, cache_folder, read_json
from deixis.text.tokens import has_content, tokens_of_captions, tokens_of_phrases
from deixis.text.vocabulary import PAD, Vocabulary
from deixis.text.word_vectors import SPACY, WordVectors

if TYPE_CHECKING:
    from deixis.text.vector_features import FisherFeatures, VectorFeatures

Tokens = Sequence[str]

#: Part of every cache key: increase it when the same settings give different features.
VERSION = 1
RECIPE, VOCABULARY = "recipe.json", "vocabulary.tsv"
FISHER_KINDS = ("hglmm", "gmm+hglmm")


class TextRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[text]` section of a recipe."""

    #: Fisher vectors of a hybrid mixture ("hglmm") or of a Gaussian and a hybrid one (Klein et al.), or other features.
    kind: Literal["hglmm", "gmm+hglmm", "mean", "tfidf", "tokens"] = "hglmm"
    #: Fisher vectors: centres of a mixture. 30 centres of 300-dimensional word vectors give 18,000 dimensions.
    centres: Annotated[int, Meta(ge=1)] = 30
    #: Fisher vectors: number of principal components (6,000 in the two-branch paper); 0: no PCA (the Entities paper).
    pca: Annotated[int, Meta(ge=0)] = 0
    #: What the principal components are fitted to: captions, or the different phrases of the captions.
    pca_from: Literal["captions", "phrases"] = "captions"
    #: tfidf, tokens: words in fewer captions (tfidf), or with fewer occurrences (tokens), are unknown.
    minimum_count: Annotated[int, Meta(ge=1)] = 1
    #: Fisher vectors, mean: spaCy's vectors, or a word2vec, GloVe or .vec file.
    vectors: str = SPACY
    #: Fisher vectors: seed of the independent components and of the mixture.
    seed: Annotated[int, Meta(ge=0)] = 0


class TextFeatures(Protocol):
    """Fitted text features: word ids of the kind "tokens", vectors of the others."""

    @property
    def recipe(self) -> TextRecipe: ...

    @property
    def dim(self) -> int:
        """Dimensions of a text's vector; for "tokens" the number of ids, including padding (0)."""

    def transform(self, texts: Sequence[Tokens]) -> NDArray[Any]:
        """`(texts, dim)` float32; for "tokens" ids `(texts, longest)` int64, padded with 0."""

    def knows(self, word: str) -> bool:
        """Whether a lower-case word has any influence."""

    def stream(self, texts: Sequence[Tokens]) -> Iterator[NDArray[Any]]:
        """`transform` in blocks of rows, in order; ids come in one block.

        Pass all texts at once: what depends on a word alone is computed once per call.
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
    """The features of a recipe from the cache, or fitted to the captions of a training set and cached.

    Args:
        recipe: all settings.
        training: the features are fitted to its captions, and no others.
        also: other texts that will be transformed, such as those of the validation split. The vectors of their words
            are stored too, for machines without word vectors. Nothing is fitted to them.
        device: where principal components are computed, `cuda` or `cpu`; None: a GPU where there is one.
    """
    captions, also = tokens_of_captions(training), list(also)
    words = content_words([*captions, *also])
    folder = cache_folder() / "text" / _key(recipe, captions)
    if (folder / RECIPE).exists():
        features = load_text_features(folder, device=device)
        if recipe.kind in ("tfidf", "tokens"):
            return features
        stored = cast("VectorFeatures", features)
        vectors = stored.vectors.updated(recipe.vectors, words)
        if vectors is not None:
            if vectors is not stored.vectors:
                stored.vectors = vectors
                vectors.save(folder)
            return features
        (folder / RECIPE).unlink(missing_ok=True)
    if recipe.kind in FISHER_KINDS and recipe.pca:
        fitted_to = captions if recipe.pca_from == "captions" else tokens_of_phrases(training)
        check_components(recipe, len(fitted_to))
        # The mixture is the slow part, and the only one that needs all word vectors: it is fitted and cached once.
        unreduced = msgspec.structs.replace(recipe, pca=0, pca_from="captions")
        mixture = text_features(unreduced, training, also=also, device=device)
        features = cast("FisherFeatures", mixture).reduced(recipe, fitted_to, device=device)
    else:
        features = fit_text_features(recipe, captions, words=words)
    features.save(folder)
    return features


def content_words(texts: Iterable[Tokens]) -> list[str]:
    """The different words of texts that have a part in sums over word vectors."""
    return sorted({word for text in texts for word in text if has_content(word)})


def fit_text_features(
    recipe: TextRecipe,
    captions: Sequence[Tokens],
    *,
    words: Iterable[str] = (),
    vectors: WordVectors | None = None,
    device: str | None = None,
) -> TextFeatures:
    """Fit the features of a recipe to captions. `text_features` takes a training set, and caches.

    Args:
        recipe: all settings.
        captions: the tokens of the captions.
        words: words whose vectors are stored beside those of the captions.
        vectors: the vectors that the recipe names, if they are loaded already.
        device: where principal components are computed.
    """
    if not captions:
        raise DeixisError("there are no captions to fit text features to")
    if recipe.pca and recipe.pca_from == "phrases":
        raise DeixisError("text.pca_from = 'phrases' needs a training set with phrases: use `text_features`")
    if recipe.kind == "tokens":
        return TokenIds(recipe, Vocabulary.of(captions, minimum_count=recipe.minimum_count))
    from deixis.text import vector_features

    if recipe.kind == "tfidf":
        return vector_features.TfidfFeatures.fit(recipe, captions)
    all_words = sorted({*words, *content_words(captions)})
    return vector_features.fit(recipe, captions, all_words, vectors, device)


def load_text_features(folder: str | Path, *, device: str | None = None) -> TextFeatures:
    """Read what `save` wrote; `device` as for `text_features`."""
    folder = Path(folder)
    recipe = read_json(folder / RECIPE, TextRecipe, "does not describe text features")
    if recipe.kind == "tokens":
        return TokenIds(recipe, Vocabulary.load(folder / VOCABULARY))
    from deixis.text import vector_features

    if recipe.kind == "tfidf":
        return vector_features.TfidfFeatures.load(folder, recipe)
    return vector_features.load(folder, recipe, device)


def check_components(recipe: TextRecipe, captions: int) -> None:
    """Refuse more principal components than captions or phrases before the mixture is fitted, which takes minutes."""
    if recipe.kind in FISHER_KINDS and recipe.pca > captions > 0:
        raise DeixisError(
            f"text.pca = {recipe.pca}: {captions:,} training {recipe.pca_from} have at most as many principal "
            f"components; use fewer (`deixis train … --set text.pca={min(200, captions)}`), or 0 for no PCA"
        )


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
        save_recipe(folder, self.recipe)


def _key(recipe: TextRecipe, captions: Iterable[Tokens]) -> str:
    settings = msgspec.to_builtins(recipe)
    if recipe.pca_from == "captions":
        del settings["pca_from"]  # Features that were cached before the setting existed keep their names.
    digest = hashlib.sha256(b"%d\n" % VERSION + msgspec.json.encode(settings))
    for caption in captions:
        digest.update(b"\n" + " ".join(caption).encode(errors="surrogatepass"))
    return digest.hexdigest()[:32]


def save_recipe(folder: str | Path, recipe: TextRecipe) -> None:
    """Written last: a folder that has it is complete."""
    with atomic_write(Path(folder) / RECIPE) as stream:
        stream.write(msgspec.json.encode(recipe))
