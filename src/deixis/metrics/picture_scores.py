"""Captions scored against their pictures by a model, without references (as CLIPScore does, Hessel et al., 2021).

Scores are the model's own, so they compare captions of the same pictures under the same model only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from deixis.corpus import Corpus, make_image
from deixis.corpus.pictures import StoredPictures
from deixis.errors import DeixisError
from deixis.metrics.ranking import recall_at_k
from deixis.model import Model
from deixis.vision.reading import read_picture

#: Pictures read at a time.
BATCH = 32


class PictureScores(NamedTuple):
    #: The score of each image's caption with its picture.
    by_image: dict[str, float]
    #: `picture_score`, the mean; `other_pictures`, the mean over all other pictures; `picture_by_caption`, how often a
    #: caption finds its picture among all, in percent.
    figures: dict[str, Any]


def picture_scores(model: Model, corpus: Corpus, captions: Mapping[str, str]) -> PictureScores:
    """Score one caption of every image.

    Args:
        model: scores pictures and texts.
        corpus: has the pictures.
        captions: by image id.
    """
    known = {image.id: image for image in corpus}
    missing = next((image for image in captions if image not in known), None)
    if missing is not None:
        raise DeixisError(f"no picture of image {missing}")
    if len(captions) < 2:
        raise DeixisError("at least two captions are needed, of different pictures")
    images, texts = [known[image] for image in captions], list(captions.values())
    scores = np.concatenate(
        [
            np.asarray(model.score([read_picture(corpus, image) for image in images[first : first + BATCH]], texts))
            for first in range(0, len(images), BATCH)
        ]
    ).astype(np.float64)
    right_scores = scores.diagonal()
    others = (scores.sum() - right_scores.sum()) / (scores.size - len(right_scores))
    figures = {
        "picture_score": float(right_scores.mean()),
        "other_pictures": float(others),
        "picture_by_caption": recall_at_k(scores, captions_per_image=1)["text_to_image"],
    }
    return PictureScores(dict(zip(captions, right_scores.tolist(), strict=True)), figures)


def pictures_by_name(pictures: StoredPictures, image_ids: Mapping[str, Any]) -> Corpus:
    """The images whose file name, or file name without its suffix and leading zeros, is their id."""
    by_id: dict[str, str] = {}
    for name in pictures.names:
        path = PurePosixPath(name)
        for key in (path.stem.lstrip("0"), path.stem, path.name, name):
            by_id[key] = name
    return Corpus([make_image(image, file=by_id[image]) for image in image_ids if image in by_id], pictures=pictures)
