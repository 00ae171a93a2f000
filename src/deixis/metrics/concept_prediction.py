"""Concept prediction (SCO, section 3.2): average precision of every concept over the pictures of a split.

A picture is positive for a concept if one of its captions has a word of it. Captions do not mention everything, so the
figures only compare predictors. Ties count against the model. Concepts that no picture of the split has are left out
and counted. Beside the mean is what one score for all pictures gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from deixis.metrics.precision import average_precision
from deixis.metrics.protocols import Pictures, ResultFields
from deixis.metrics.ranking import TIES
from deixis.metrics.results import Protocol, Result, make_result
from deixis.model import ImageFeatures
from deixis.text.concept_words import ConceptVocabulary
from deixis.text.tokens import tokens_of

Floats = npt.NDArray[np.floating]
Labels = npt.NDArray[np.bool_]
#: Confidences `(images, concepts)` of pictures.
Predict = Callable[[Sequence[ImageFeatures]], Floats]


def concept_precision(confidences: Floats, labels: Labels) -> npt.NDArray[np.float64]:
    """Average precision of each concept in percent; NaN where no picture has it.

    Args:
        confidences: `(images, concepts)`.
        labels: the same shape, true where a picture has the concept.

    >>> concept_precision(np.array([[0.9, 0.1], [0.4, 0.2]]), np.array([[True, False], [False, False]]))
    array([100.,  nan])
    """
    precisions = np.full(labels.shape[1], np.nan)
    for concept in np.flatnonzero(labels.any(0)):
        precisions[concept] = 100 * average_precision(confidences[:, concept], labels[:, concept])
    return precisions


def concept_prediction(
    predictors: Mapping[str, Predict], vocabulary: ConceptVocabulary, pictures: Pictures, **fields: Unpack[ResultFields]
) -> Result:
    """The result of predictors of one vocabulary: `concepts`, the mean of each predictor and figures by concept.

    Args:
        predictors: by name, such as `whole` and `regional`.
        vocabulary: the concepts.
        pictures: with regions, where a predictor uses them.
        fields: for the result.
    """
    start = time.monotonic()
    labels = np.stack([vocabulary.labels(map(tokens_of, image.captions)) for image in pictures.images])
    features = pictures.all_features()
    present = np.flatnonzero(labels.any(0))
    figures = {name: concept_precision(predict(features), labels)[present] for name, predict in predictors.items()}
    metrics: dict[str, Any] = {name: {"map": float(precisions.mean())} for name, precisions in figures.items()}
    # With one score for all pictures every positive ranks behind every negative: precision is the share of positives.
    metrics["constant_score"] = {"map": float(100 * labels.mean(0)[present].mean())}
    metrics["by_concept"] = {
        vocabulary.words[concept]: {name: float(precisions[index]) for name, precisions in figures.items()}
        | {"images": float(labels[:, concept].sum())}
        for index, concept in enumerate(present)
    }
    return make_result(
        Protocol("concept prediction", TIES, {**pictures.parameters, "concepts": len(vocabulary)}),
        {"concepts": metrics},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(pictures.images), "concepts": len(present), "left_out": len(vocabulary) - len(present)},
        box_supervision=pictures.box_supervision(),
        **fields,
    )
