"""Whether order is seen: a true caption against the same words with their roles exchanged (the SCO paper, section 1).

A pair is right if the true caption scores higher for its picture; ties, to rounding, count against us. A model that
guesses is right half of the time; one that does not read order at all ties, and is never right.

"A dog catches a ball" is likelier than its twin before any picture is looked at. So every pair is scored with other
pictures of the split too: `other_pictures` is how often the true caption is ahead there, which is what the words alone
give; `by_picture` is how often it is further ahead with its own picture than with another: a model that sees nothing
stays at 50 or, if it always gives the same, at 0. One that sees what is there but not how it is arranged may well pass
that, if it knows what makes no sense. So `reversible` has the pairs whose two parties are both people or animals.

A model that generates also has log p(caption | picture): `likelihood` ranks by it, `likelihood_ratio` by it less
log p(caption), the mean over the other pictures; `match_and_likelihood` adds how far the true caption is ahead by both,
each in units of its standard deviation over the pairs, so that no weight is chosen.
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
from deixis.metrics.protocols import Pictures, Told
from deixis.metrics.results import Protocol, Result, make_result
from deixis.model import ImageFeatures, Model, Tokens, abilities_of, has_own_score
from deixis.text.entity_types import EntityTypes
from deixis.text.twins import Twins, reversible

#: Scores closer than this, or than this share of the larger, are equal: the same words in another order sum up in
#: another order.
TOLERANCE = 1e-6
#: Other pictures that a pair is scored with.
OTHERS = 20

Array = NDArray[np.float64]


class Leads(NamedTuple):
    """How far true captions are ahead `(pairs, pictures)`, their own picture first, and what counts as a tie."""

    by: Array
    tie: Array


def order_accuracy(model: Model, pictures: Pictures, twins: Sequence[Twins], **told: Unpack[Told]) -> Result:
    """The share of twins whose true caption scores higher, in percent: `order.accuracy`, and by relation.

    Args:
        model: scores pairs, or embeds; one with `log_likelihood` is judged by that too.
        pictures: the split; twins of other images are left out.
        twins: from `deixis.text.twins`.
        told: for the result.
    """
    start = time.monotonic()
    images = {image.id: image for image in pictures.images}
    by_image: dict[str, list[Twins]] = {}
    for each in twins:
        if each.image in images:
            by_image.setdefault(each.image, []).append(each)
    if not by_image:
        raise DeixisError("none of the exchanged captions is of an image of this split")
    found = _all_leads(model, pictures, by_image)
    scored = [each for own in by_image.values() for each in own]
    relations, types = [each.relation for each in scored], EntityTypes.load()
    either = [row for row, each in enumerate(scored) if reversible(each, types)]
    figures: dict[str, Any] = {**_figures(found["match"]), "by_relation": _by_relation(found["match"], relations)}
    if either:
        figures["reversible"] = _figures(Leads(*(part[either] for part in found["match"])))
    figures |= {name: _figures(leads) for name, leads in found.items() if name != "match"}
    others = found["match"].by.shape[1] - 1
    parameters: dict[str, Any] = {**pictures.parameters, "tie_tolerance": TOLERANCE, "other_pictures": others}
    return make_result(
        Protocol("order of words", "a tie is wrong", parameters),
        {"order": figures},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(by_image), "pairs": len(relations)},
        box_supervision=pictures.box_supervision(),
        **told,
    )


def _all_leads(model: Model, pictures: Pictures, by_image: Mapping[str, Sequence[Twins]]) -> dict[str, Leads]:
    """By what the model ranks by, `match`, and, where it has them, by likelihoods."""
    images = {image.id: image for image in pictures.images}
    texts = [tuple(text.split(" ")) for own in by_image.values() for each in own for text in (each.true, each.false)]
    spread = np.linspace(0, len(images) - 1, min(OTHERS + 1, len(images))).astype(int)
    others = [pictures.images[place] for place in spread]
    shown = [pictures.features(image) for image in others]
    # All texts with these pictures at once; with their own picture image by image.
    scores, logs = _scores(model, shown, texts), _logs(model, shown, texts)
    found, first = defaultdict[str, list[Leads]](list), 0
    for image_id, own in by_image.items():
        picture, last = [pictures.features(images[image_id])], first + 2 * len(own)
        kept = [row for row, image in enumerate(others) if image.id != image_id][: len(others) - 1]
        columns = np.ix_(kept, range(first, last))
        found["match"].append(_leads(np.concatenate([_scores(model, picture, texts[first:last]), scores[columns]])))
        if logs is not None:
            here = np.concatenate([_logs(model, picture, texts[first:last]), logs[columns]])
            found["likelihood"].append(_leads(here))
            # A model with a score of its own ranks by such ratios already.
            if kept and not has_own_score(model):
                found["likelihood_ratio"].append(_leads(here[:1] - logsumexp(here[1:], axis=0)))
        first = last
    joined = {name: _joined(parts) for name, parts in found.items()}
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


def _leads(scores: Array) -> Leads:
    """Of scores (pictures, texts) in which every true caption stands before its twin."""
    true, false = scores[:, ::2].T, scores[:, 1::2].T
    return Leads(true - false, TOLERANCE * np.maximum(1, np.maximum(abs(true), abs(false))))


def _joined(parts: Sequence[Leads]) -> Leads:
    return Leads(np.concatenate([part.by for part in parts]), np.concatenate([part.tie for part in parts]))


def _sum(first: Leads, second: Leads) -> Leads:
    """Both in units of their standard deviation over the pairs, each with its own picture."""
    units = [each.by[:, 0].std() or 1.0 for each in (first, second)]
    return Leads(*(a / units[0] + b / units[1] for a, b in zip(first, second, strict=True)))


def _figures(leads: Leads) -> dict[str, float]:
    own, tie = leads.by[:, 0], leads.tie[:, 0]
    found = {
        "accuracy": 100 * float(np.mean(own > tie)),
        "pairs": len(own),
        "ties": int((abs(own) <= tie).sum()),
    }
    if leads.by.shape[1] > 1:
        others, ties = leads.by[:, 1:], leads.tie[:, 1:]
        found["other_pictures"] = 100 * float(np.mean(others > ties))
        found["by_picture"] = 100 * float(np.mean(own[:, None] - others > np.maximum(tie[:, None], ties)))
    return found


def _by_relation(leads: Leads, relations: Sequence[str]) -> dict[str, dict[str, float]]:
    """Most frequent first, with their own pictures alone."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(relations):
        rows.setdefault(name, []).append(row)
    ordered = sorted(rows.items(), key=lambda item: -len(item[1]))
    return {name: _figures(Leads(leads.by[own, :1], leads.tie[own, :1])) for name, own in ordered}
