"""Whether pointing is right about what is in a picture at all; `photo_search.py` runs it.

Asked are phrases of a picture's own captions (`shown`), phrases of other pictures whose last word its captions do not
have (`any`), and such phrases of the same entity type as a shown one (`same type`), which are harder. Some of what
captions do not mention is there, so the figures for absent phrases are lower bounds. `right` is the share of phrases of
each kind that are called there, or not there, rightly. `calibration` has for each tenth of the predicted probability
its mean and the share of phrases that are shown, with shown and other phrases weighing the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from photo_collections import Trial
from sklearn.metrics import roc_auc_score

from deixis.search.presence_calibration import phrase_questions, question_features

EXAMPLES = 6


def measure(trial: Trial) -> dict[str, Any]:
    fitted = trial.model.relevance.presence
    assert fitted is not None, "the bundle was not calibrated"
    record: dict[str, Any] = {"presence": fitted}
    for asked in trial.whole:
        questions = phrase_questions(trial.model.vocabulary, asked.images, np.random.default_rng(0))
        features = question_features(trial.model, asked.pictures, questions)
        odds = fitted.base + features @ [fitted.score, fitted.commonness, fitted.several]
        chances = 1 / (1 + np.exp(-odds))
        kinds = np.array([question.kind for question in questions])
        shown = kinds == "shown"
        weights = np.where(shown, 0.5 / shown.sum(), 0.5 / (~shown).sum())
        tenths = np.digitize(chances, np.linspace(0, 1, 11)[1:-1])
        wrong = (chances >= 0.5) != shown
        record[asked.corpus.name] = {
            "pictures": len(asked.images),
            "phrases": {kind: int((kinds == kind).sum()) for kind in ("shown", "any", "same type")},
            "right": {kind: round(float((~wrong)[kinds == kind].mean()), 4) for kind in ("shown", "any", "same type")},
            "right_of_all": round(float(weights @ ~wrong), 4),
            "area_under_curve": {
                kind: round(float(roc_auc_score(shown[own], chances[own])), 4)
                for kind in ("any", "same type")
                if (own := shown | (kinds == kind)).any()
            },
            "calibration": [
                [round(float(np.average(values[own], weights=weights[own])), 3) for values in (chances, shown)]
                for tenth in range(10)
                if (own := tenths == tenth).any()
            ],
            "examples_of_wrong": {
                kind: [questions[place].phrase for place in np.flatnonzero(wrong & (kinds == kind))[:EXAMPLES].tolist()]
                for kind in ("shown", "same type")
            },
        }
    return record
