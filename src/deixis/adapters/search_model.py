"""What a model needs beyond `Model` to index a photo folder, with defaults for any model that embeds.

An index is bound to the model's `identity`. Pictures are prepared in threads and embedded in batches. Some models also
return cells of a picture and words of a text, which refine the score (`scores`). A subclass must have an `identity`;
everything else has a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Relevance, default_relevance
from deixis.errors import CannotError, DeixisError
from deixis.model import ImageInput, Model, Text, as_tokens
from deixis.text.vocabulary import Vocabulary
from deixis.vision.crops import BILINEAR, squash
from deixis.vision.picture_files import as_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Cells = NDArray[np.int8]

#: Texts and pictures embedded at a time.
TEXT_BATCH, PICTURE_BATCH = 256, 16
#: Values of cells converted to float32 at a time.
VALUES_AT_ONCE = 1 << 22


class Identity(msgspec.Struct, frozen=True):
    """What an index is bound to. Embeddings of models with equal identities can be compared."""

    name: str
    weights_sha256: str
    dim: int
    preprocessing: dict[str, Any]
    #: Number of cells per picture, which words are compared with, and their dimension; 0 if the model has no cells.
    cells: int = 0
    cell_dim: int = 0

    def __str__(self) -> str:
        cells = f", {self.cells} cells of {self.cell_dim}" if self.cells else ""
        return f"{self.name} ({self.weights_sha256[:12]}, {self.dim} numbers{cells})"

    @property
    def at_least(self) -> int:
        """Pixels of the shorter side that are enough for the model; 0: it uses all pixels."""
        return int(self.preprocessing.get("at_least", 0))


class Pictures(NamedTuple):
    embeddings: Floats  # (pictures, dim), unit embeddings
    cells: Cells  # (pictures, cells, cell_dim), directions


class Texts(NamedTuple):
    embeddings: Floats  # (texts, dim), unit embeddings or means of them
    #: (texts, longest, cell_dim): unit vectors times weights that have the same sum in every text; padding is zero.
    words: Floats


class SearchModel(Model):
    """A model that can index a photo folder and search it."""

    identity: Identity
    #: Which pictures match a query; the default is not fitted to the model.
    relevance: Relevance = default_relevance(0)
    #: The words of its training texts with their counts; None if unknown.
    known_words: Vocabulary | None = None

    @property
    def hashes(self) -> dict[str, str]:
        return {"weights_sha256": self.identity.weights_sha256}

    def prepare(self, picture: Picture) -> Any:
        """Input of `embed_prepared` for one picture; called from several threads."""
        return picture

    def embed_prepared(self, batch: Sequence[Any]) -> Pictures:
        """Embed prepared pictures."""
        return whole_pictures(np.asarray(self.embed_images(batch), np.float32))

    def embed_queries(self, texts: Sequence[Text]) -> Texts:
        """Embed texts; a text without words is a `DeixisError`."""
        if not texts:
            return whole_texts(np.empty((0, self.identity.dim), np.float32))
        return whole_texts(np.asarray(self.embed_texts([words_of(text) for text in texts]), np.float32))


class PreparedModel(SearchModel):
    """A model that implements `prepare`, `embed_prepared` and `embed_queries`; the other methods call these."""

    def embed_images(self, images: Sequence[ImageInput]) -> Floats:
        parts = [
            self._embedded(images[start : start + PICTURE_BATCH]) for start in range(0, len(images), PICTURE_BATCH)
        ]
        return np.concatenate([np.empty((0, self.identity.dim), np.float32), *(part.embeddings for part in parts)])

    def embed_texts(self, texts: Sequence[Text]) -> Floats:
        return self.embed_queries(texts).embeddings

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Floats:
        """The score of search (`scores`)."""
        blocks = [images[start : start + PICTURE_BATCH] for start in range(0, len(images), PICTURE_BATCH)]
        return np.concatenate([np.empty((0, len(texts)), np.float32), *self.score_batches(blocks, texts)])

    def score_batches(self, batches: Iterable[Sequence[ImageInput]], texts: Sequence[Text]) -> Iterator[Floats]:
        queries = self.embed_queries(texts)
        for images in batches:
            yield scores(queries, self._embedded(images)).T

    def _embedded(self, images: Sequence[ImageInput]) -> Pictures:
        return self.embed_prepared([self.prepared(image) for image in images])

    def prepared(self, image: ImageInput) -> Any:
        """The picture as `embed_prepared` takes it, decoded with as many pixels as `prepare` needs."""
        return self.prepare(self.as_picture(image, self.identity.at_least))

    def as_picture(self, image: ImageInput, at_least: int = 0) -> Picture:
        """The picture of a path; stored features are a `DeixisError`, since this model takes pictures."""
        picture = as_picture(image, at_least=at_least)
        if not hasattr(picture, "convert"):
            raise DeixisError(f"{self.name} takes paths and PIL pictures, not {type(image).__name__}")
        return picture


def as_search_model(model: Model) -> SearchModel:
    """The model, if it can index a photo folder; otherwise a `CannotError` that says what is missing."""
    missing = [name for name in ("embed_images", "embed_texts") if name not in model.abilities]
    if missing or not isinstance(model, SearchModel):
        able = ", ".join(sorted(model.abilities))
        raise CannotError(f"{model.name} cannot index photos: it does not embed pictures and texts; it can: {able}")
    return model


def scores(texts: Texts, pictures: Pictures) -> Floats:
    """`(texts, pictures)`, by which search ranks and calibrates.

    The cosine of the embeddings. If the model has cells and words, the weighted mean over the text's words of the
    cosine with the best cell of the picture is added (`deixis.base.word_cells`, after the alignment of the DVSA paper).
    """
    whole: Floats = texts.embeddings @ pictures.embeddings.T
    return whole + best_cells(texts.words, pictures.cells) if texts.words.size and pictures.cells.size else whole


def best_cells(words: Floats, cells: Cells) -> Floats:
    """`(texts, pictures)`: the sum over a text's words of weight times cosine with the best cell.

    A word's weight is the length of its vector; padding is zero.
    """
    texts, longest, numbers = words.shape
    flat = words.reshape(-1, numbers)
    real = np.flatnonzero(flat.any(1))
    flat = flat[real]
    having, starts = np.unique(real // longest, return_index=True)
    sums = np.zeros((len(cells), texts), np.float32)
    step = max(1, VALUES_AT_ONCE // (cells.shape[1] * max(numbers, len(flat))))
    for start in range(0, len(cells) if len(real) else 0, step):
        part = cells[start : start + step].reshape(-1, numbers).astype(np.float32)
        products = part @ flat.T
        products /= np.maximum(np.sqrt(np.einsum("cn,cn->c", part, part)), 1e-12)[:, None]
        best = products.reshape(-1, cells.shape[1], len(flat)).max(1)
        sums[start : start + step, having] = np.add.reduceat(best, starts, axis=1)
    return sums.T


def words_of(text: Text) -> Sequence[str]:
    """The tokens of a text; a text without words is a `DeixisError`."""
    if not (tokens := as_tokens(text)):
        raise DeixisError(f"the text {text!r} has no words")
    return tokens


def squashed(picture: Picture, side: int, jpeg: int = 0) -> Bytes:
    """The whole picture resized to a square, bytes `(3, side, side)`, resampled as in training, or by a JPEG file."""
    return np.ascontiguousarray(np.asarray(squash(picture, side, BILINEAR, jpeg)).transpose(2, 0, 1))


def rounded(cells: Floats) -> Cells:
    """Cells `(…, cell_dim)` as 8-bit integers; only their directions are kept."""
    largest = np.maximum(np.abs(cells).max(-1, keepdims=True, initial=0), 1e-12)
    directions: Cells = np.rint(cells * (127 / largest)).astype(np.int8)
    return directions


def whole_pictures(rows: Floats) -> Pictures:
    """Embeddings of pictures, without cells."""
    return Pictures(rows, np.empty((len(rows), 0, 0), np.int8))


def whole_texts(rows: Floats) -> Texts:
    """Embeddings of texts, without words; also of pictures used as queries."""
    return Texts(rows, np.empty((len(rows), 0, 0), np.float32))


def joined(parts: Sequence[Texts], identity: Identity) -> Texts:
    """Concatenate texts that were embedded in parts of different lengths."""
    longest = max((part.words.shape[1] for part in parts), default=0)
    rows = np.concatenate([np.empty((0, identity.dim), np.float32), *(part.embeddings for part in parts)])
    words = np.zeros((len(rows), longest, identity.cell_dim), np.float32)
    start = 0
    for part in parts:
        words[start : (start := start + len(part.embeddings)), : part.words.shape[1]] = part.words
    return Texts(rows, words)
