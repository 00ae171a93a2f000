"""`deixis.evaluate`: image-text retrieval of any model on any corpus, no feature store needed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.records import Image
from deixis.errors import DeixisError
from deixis.features.store import FeatureStore
from deixis.metrics.ranking import TIES, evaluate_ranking
from deixis.metrics.results import Protocol, Result, corpus_reference, make_result
from deixis.metrics.score_blocks import EmbeddingScores, MatrixScores, Scores, tie_tolerance
from deixis.model import abilities_of, has_own_score, name_of, score_batches, store_images, texts_for
from deixis.vision.reading import read_picture


def evaluate(
    model: Any,
    corpus: Corpus | str | Path,
    split: str | None = "test",
    *,
    features: FeatureStore | str | Path | None = None,
    folds: int = 1,
    batch_size: int = 32,
) -> Result:
    """Rank captions for every image and images for every caption: Recall@1, 5, 10, median and mean rank.

    Recall@K is a hit rate, and ties count against the model (`deixis.metrics.recall_at_k`).

    Args:
        model: a model of Deixis, or any object with `embed_images(images)` and `embed_texts(texts)`, which return
            `(n, dim)` embeddings that are compared by their cosine, or with `score(images, texts)`, which returns
            `(images, texts)`, higher is better. One that has both is asked for scores. Images are PIL pictures in RGB,
            texts are strings; answers are NumPy arrays, tensors or lists.
        corpus: a corpus, or the path of one in any format that `deixis.open_corpus` reads.
        split: the split to evaluate; None for all images.
        features: a feature store or its path. A model of Deixis that was trained on such features is then given them
            instead of pictures.
        folds: rank within this many equal parts of the images and average (MS-COCO's "1K test": 5).
        batch_size: images given to the model at a time. `score` is given all captions with each batch, so let your
            model keep what it computes of them.

    Returns:
        A result: printing it shows the figures, `result.figures` has them as a dictionary
        (`result.figures["text_to_image.r@1"]`), and `deixis.metrics.results.save` writes it to a file.

    Raises:
        DeixisError: the model has none of the methods, or what they return cannot be ranked.

    >>> import numpy as np
    >>> class Brightness:
    ...     def score(self, images, texts):
    ...         light = np.array([np.asarray(image).mean() for image in images])
    ...         return light[:, None] * np.array(["white" in text for text in texts])
    >>> result = evaluate(Brightness(), "scenes:40", split="test")
    >>> result.counts["images"], result.figures["text_to_image.r@1"] < 1
    (5, True)
    """
    start = time.monotonic()
    corpus = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
    images = corpus.images if split is None else corpus.split(split).images
    store = FeatureStore(features) if isinstance(features, str | Path) else features
    captions = [(index, caption) for index, image in enumerate(images) for caption in image.captions]
    texts = texts_for(model, [caption for _, caption in captions])
    batches = _batches(corpus, images, store, batch_size)
    scores = _scores(model, batches, texts)
    expected = (len(images), len(texts))
    if scores.shape != expected:
        raise DeixisError(f"{name_of(model)} gave scores of shape {scores.shape}, not {expected} (images, captions)")
    ranking = evaluate_ranking(scores, np.array([image for image, _ in captions], np.int64), folds=folds)
    parameters: dict[str, Any] = {"model": name_of(model), "folds": folds, "tie_tolerance": tie_tolerance(scores)}
    if store is not None:
        parameters["features"] = store.fingerprint[:16]
    return make_result(
        Protocol("image-text ranking", TIES, parameters),
        ranking.as_dict(),
        duration=time.monotonic() - start,
        corpus=corpus_reference(corpus, split),
        counts={"images": len(images), "captions": len(texts)},
    )


def _batches(
    corpus: Corpus, images: Sequence[Image], store: FeatureStore | None, batch_size: int
) -> Iterator[list[Any]]:
    for first in range(0, len(images), batch_size):
        batch = images[first : first + batch_size]
        if store is None:
            yield [read_picture(corpus, image) for image in batch]
        else:
            yield list(store_images(store, [image.id for image in batch]))


def _scores(model: Any, batches: Iterator[list[Any]], texts: list[Any]) -> Scores:
    if has_own_score(model):
        scored = score_batches(model, batches, texts)
        return MatrixScores(_stacked([_matrix(model, "score", scores) for scores in scored]))
    if {"embed_images", "embed_texts"} <= abilities_of(model):
        encoded = _matrix(model, "embed_texts", model.embed_texts(texts))
        pictures = _stacked([_matrix(model, "embed_images", model.embed_images(batch)) for batch in batches])
        return EmbeddingScores(pictures, encoded)
    raise DeixisError(f"{name_of(model)} has neither embed_images and embed_texts nor score")


def _stacked(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if not parts:
        raise DeixisError("there are no images to evaluate on")
    if len({part.shape[1] for part in parts}) > 1:
        raise DeixisError(f"batches have different widths: {sorted({part.shape[1] for part in parts})}")
    return np.concatenate(parts)


def _matrix(model: Any, method: str, answer: Any) -> npt.NDArray[Any]:
    """What a method returned, as a matrix: a list, an array, or a tensor on any device."""
    matrix = np.asarray(answer.detach().cpu() if hasattr(answer, "detach") else answer)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise DeixisError(f"{name_of(model)}.{method} gave {matrix.dtype} of shape {matrix.shape}, not a matrix")
    return matrix
