"""How likely a picture shows a phrase, from the score of the two.

A logistic regression over the score, how common the phrase's rarest word is, and whether it has several words. It is
fitted (`deixis.search.presence_calibration`) on as many phrases that pictures show as phrases that they do not, so 0.5
means: as likely as not, if half of what is asked for is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.phrasing import embed_phrases, phrasing
from deixis.adapters.search_model import Pictures, SearchModel


def presence(model: SearchModel, picture: Pictures, phrases: Sequence[str]) -> list[float | None]:
    """The probability that a picture shows each phrase.

    None where the model has not read a word of the phrase, or was not calibrated for this.

    Args:
        picture: one embedded picture.
    """
    fitted = model.relevance.presence
    if fitted is None or not phrases:
        return [None] * len(phrases)
    asked = [phrasing(phrase, model) for phrase in phrases]
    scores = embed_phrases(model, asked).scores(picture)[:, 0]
    odds = (
        fitted.base
        + fitted.score * scores
        + fitted.commonness * np.array([phrase.commonness for phrase in asked])
        + fitted.several * np.array([phrase.several for phrase in asked])
    )
    chances: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(odds, -50, 50)))
    return [None if phrase.unknown else round(float(chance), 4) for phrase, chance in zip(asked, chances, strict=True)]
