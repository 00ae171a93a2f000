"""Word order: a true caption against its twin, the same words with two roles exchanged (SCO, section 1).

A pair is correct if the true caption scores higher for its picture; ties, up to rounding, count against the model. A
model that guesses is correct half of the time; one that ignores order ties, and is never correct.

"A dog catches a ball" is more likely than its twin without any picture. So every pair is also scored with other
pictures of the split: `other_pictures` is how often the true caption wins there, from the words alone. `by_picture` is
how often it wins by more with its own picture than with another: a model that ignores the picture stays at 50 or, if
its scores do not depend on the picture, at 0. A model that sees objects but not their arrangement may exceed that if it
knows which sentences make no sense. So `reversible` has the pairs in which both roles are people or animals.

A generative model also has log p(caption | picture): `likelihood` ranks by it; `likelihood_ratio` subtracts
log p(caption), the mean over the other pictures; `match_and_likelihood` adds the differences of both, each divided by
its standard deviation over the pairs, so that no weight has to be chosen.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from deixis.errors import DeixisError
from deixis.metrics.protocols import Pictures, ResultFields
from deixis.metrics.results import Protocol, Result, make_result
from deixis.model import ImageFeatures, Model, Tokens, abilities_of, has_own_score
from deixis.text.entity_types import EntityTypes
from deixis.text.twins import Twins, reversible

#: Scores that differ by less, absolutely or relative to the larger, are ties: words in another order are summed in
#: another order.
TOLERANCE = 1e-6
#: The number of other pictures that a pair is scored with.
OTHERS = 20

Array = NDArray[np.float64]


class Leads(NamedTuple):
    """True minus twin's scores `(pairs, pictures)`, own picture first, and the differences that count as ties."""

    by: Array
    tie: Array


def order_accuracy(model: Model, pictures: Pictures, twins: Sequence[Twins], **fields: Unpack[ResultFields]) -> Result:
    """The share of twins whose true caption scores higher, in percent: `order.accuracy`, and by relation.

    Args:
        model: scores or embeds; one with `log_likelihood` is evaluated by that too.
        pictures: the split; twins of other images are left out.
        twins: from `deixis.text.twins`.
        fields: for the result.
    """
    start = time.monotonic()
    images = {image.id: image for image in pictures.images}
    by_image: dict[str, list[Twins]] = {}
    for twin in twins:
        if twin.image in images:
            by_image.setdefault(twin.image, []).append(twin)
    if not by_image:
        raise DeixisError("none of the exchanged captions is of an image of this split")
    leads = _all_leads(model, pictures, by_image)
    scored = [twin for twins_of_image in by_image.values() for twin in twins_of_image]
    relations, types = [twin.relation for twin in scored], EntityTypes.load()
    either = [row for row, twin in enumerate(scored) if reversible(twin, types)]
    figures: dict[str, Any] = {**lead_figures(leads["match"]), "by_relation": _by_relation(leads["match"], relations)}
    if either:
        figures["reversible"] = lead_figures(Leads(*(part[either] for part in leads["match"])))
    figures |= {name: lead_figures(parts) for name, parts in leads.items() if name != "match"}
    others = leads["match"].by.shape[1] - 1
    parameters: dict[str, Any] = {**pictures.parameters, "tie_tolerance": TOLERANCE, "other_pictures": others}
    return make_result(
        Protocol("order of words", "a tie is wrong", parameters),
        {"order": figures},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(by_image), "pairs": len(relations)},
        box_supervision=pictures.box_supervision(),
        **fields,
    )


def _all_leads(model: Model, pictures: Pictures, by_image: Mapping[str, Sequence[Twins]]) -> dict[str, Leads]:
    """The differences in the model's scores (`match`) and, where it has them, in likelihoods."""
    images = {image.id: image for image in pictures.images}
    texts = [
        tuple(text.split(" "))
        for twins_of_image in by_image.values()
        for twin in twins_of_image
        for text in (twin.true, twin.false)
    ]
    spread = np.linspace(0, len(images) - 1, min(OTHERS + 1, len(images))).astype(int)
    others = [pictures.images[index] for index in spread]
    shown = [pictures.features(image) for image in others]
    # All texts with these pictures at once; with their own picture image by image.
    scores, logs = _scores(model, shown, texts), _logs(model, shown, texts)
    leads, first = defaultdict[str, list[Leads]](list), 0
    for image_id, twins_of_image in by_image.items():
        picture, last = [pictures.features(images[image_id])], first + 2 * len(twins_of_image)
        other_rows = [row for row, image in enumerate(others) if image.id != image_id][: len(others) - 1]
        columns = np.ix_(other_rows, range(first, last))
        leads["match"].append(
            score_leads(np.concatenate([_scores(model, picture, texts[first:last]), scores[columns]]))
        )
        if logs is not None:
            all_logs = np.concatenate([_logs(model, picture, texts[first:last]), logs[columns]])
            leads["likelihood"].append(score_leads(all_logs))
            # A model with a score of its own ranks by such ratios already.
            if other_rows and not has_own_score(model):
                leads["likelihood_ratio"].append(score_leads(all_logs[:1] - logsumexp(all_logs[1:], axis=0)))
        first = last
    joined = {name: _joined(parts) for name, parts in leads.items()}
    if logs is not None and not has_own_score(model):
        joined["match_and_likelihood"] = _sum(joined["match"], joined["likelihood"])
    return joined


def _scores(model: Model, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Array:
    """(images, texts)"""
    if has_own_score(model):
        return np.asarray(model.score(images, texts), np.float64)
    return np.asarray(model.embed_images(images) @ model.embed_texts(texts).T, np.float64)


def _logs(model: Model, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> Array | None:
    """(images, texts): log p(text | picture), where the model has it."""
    if "log_likelihood" not in abilities_of(model):
        return None
    return np.asarray(model.log_likelihood(images, texts), float)


def score_leads(scores: Array) -> Leads:
    """From scores `(pictures, texts)` in which every true caption is followed by its twin."""
    true, false = scores[:, ::2].T, scores[:, 1::2].T
    return Leads(true - false, TOLERANCE * np.maximum(1, np.maximum(abs(true), abs(false))))


def _joined(parts: Sequence[Leads]) -> Leads:
    return Leads(np.concatenate([part.by for part in parts]), np.concatenate([part.tie for part in parts]))


def _sum(first: Leads, second: Leads) -> Leads:
    """The sum of both, each divided by its standard deviation over the pairs with their own pictures."""
    units = [leads.by[:, 0].std() or 1.0 for leads in (first, second)]
    return Leads(
        *(first_lead / units[0] + second_lead / units[1] for first_lead, second_lead in zip(first, second, strict=True))
    )


def lead_figures(leads: Leads) -> dict[str, float]:
    with_picture, tie = leads.by[:, 0], leads.tie[:, 0]
    figures = {
        "accuracy": 100 * float(np.mean(with_picture > tie)),
        "pairs": len(with_picture),
        "ties": int((abs(with_picture) <= tie).sum()),
    }
    if leads.by.shape[1] > 1:
        others, ties = leads.by[:, 1:], leads.tie[:, 1:]
        figures["other_pictures"] = 100 * float(np.mean(others > ties))
        figures["by_picture"] = 100 * float(np.mean(with_picture[:, None] - others > np.maximum(tie[:, None], ties)))
    return figures


def _by_relation(leads: Leads, relations: Sequence[str]) -> dict[str, dict[str, float]]:
    """Figures with the pairs' own pictures, the most frequent relation first."""
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(relations):
        rows_of.setdefault(name, []).append(row)
    ordered = sorted(rows_of.items(), key=lambda item: -len(item[1]))
    return {name: lead_figures(Leads(leads.by[rows, :1], leads.tie[rows, :1])) for name, rows in ordered}
