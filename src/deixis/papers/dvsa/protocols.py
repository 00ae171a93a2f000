"""What the finished aligners and captioners of paper 4 are measured by, beside retrieval; `judge` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from deixis.corpus import Corpus, training_set
from deixis.features.store import FeatureStore
from deixis.metrics.captioning_protocol import captioning, region_captioning, sentence_baseline, word_neighbours
from deixis.metrics.localization import gold_queries
from deixis.metrics.protocols import Pictures
from deixis.metrics.results import Result
from deixis.papers.dvsa.alignment_protocol import Smoothing, alignment, best_smoothing, counting, magnitudes
from deixis.papers.dvsa.captioner import CaptionMatcher
from deixis.papers.dvsa.model import AlignmentMatcher
from deixis.papers.dvsa.snippet_queries import snippet_queries
from deixis.text.features import training_captions
from deixis.text.parsing import ParserMissing
from deixis.training.run_records import StepRecord
from deixis.training.runs import read_log, read_model
from deixis.training.threads import one_thread

#: Among which the smoothing of the best chain and that of all chains are chosen on the validation split.
BEST = [Smoothing(beta) for beta in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
SHARED = [Smoothing(beta, heat) for heat in (0.25, 0.5, 1.0, 2.0) for beta in (0.125, 0.5, 1.0, 2.0)]
#: Steps at the beginning of a training whose mean losses are told.
EARLY = (10, 100, 300)


def judge_aligner(
    matcher: AlignmentMatcher, corpus: Corpus, split: str, store: FeatureStore, told: dict[str, Any]
) -> list[Result]:
    """Where words lie and what is counted, both where phrases have boxes; how long vectors are; the best old captions;
    whether colours tell things apart.

    How words are smoothed is chosen on the validation split, where its phrases have boxes; elsewhere the recipe tells.
    """
    # The picture itself is a region, too.
    near, val = (
        Pictures(corpus, own, store, learned_from_boxes=False, regions_kept=matcher.regions - 1)
        for own in (split, "val")
    )
    known = training_captions(training_set(corpus))
    results = [
        magnitudes(matcher.word_magnitudes(known), near, **told),
        sentence_baseline(matcher, near, known, **told),
    ]
    if _has_boxes(near):
        chosen = _has_boxes(val)
        own = [Smoothing(matcher.beta)], [Smoothing(matcher.beta, matcher.temperature or 1.0)]
        best, shared = (best_smoothing(matcher, val, ways) for ways in ((BEST, SHARED) if chosen else own))
        results.append(alignment(matcher, near, best, shared, chosen_by_boxes=chosen, **told))
        counted = counting(matcher, near, shared, chosen_by_boxes=chosen, **told)
        results += [counted] if counted else []
    try:
        asked = snippet_queries(matcher, near, **told)
    except ParserMissing:
        # A colour and a thing by themselves are no text of the corpus, so that their edges are not kept with it.
        return results
    return [*results, asked] if asked else results


def _has_boxes(pictures: Pictures) -> bool:
    return any(gold_queries(image)[0] for image in pictures.images)


@one_thread()
def judge_captioner(
    run: str | Path,
    matcher: CaptionMatcher,
    pictures: Pictures,
    corpus: Corpus,
    stores: Sequence[FeatureStore],
    told: dict[str, Any],
) -> list[Result]:
    """What it says of pictures, with how its training began; of drawn regions, where there is a store of them; and the
    neighbours of its word vectors.
    """
    known = training_captions(training_set(corpus))
    said = captioning(matcher, pictures, known, **told)
    results = [msgspec.structs.replace(said, metrics={**said.metrics, "training": training_figures(run)})]
    chains = [each for each in stores if (each.plan.provenance.get("regions") or {}).get("boxes") == "chains"]
    if chains:
        drawn = Pictures(corpus, pictures.reference.split, chains[0], learned_from_boxes=False)
        results.append(region_captioning(matcher, drawn, **told))
    near = word_neighbours(matcher, pictures, **told)
    return [*results, near] if near else results


def training_figures(run: str | Path) -> dict[str, float]:
    """How a training began (mean losses of its first steps; section 5 of the supplement), and how it ended."""
    losses = [record.loss for record in read_log(run) if isinstance(record, StepRecord)]
    report = read_model(run).report
    found = {f"loss_first_{steps}": float(np.mean(losses[:steps])) for steps in EARLY}
    found |= {"perplexity": report.figures["perplexity"]} if "perplexity" in report.figures else {}
    return found | {"best_epoch": report.epoch, "epochs": report.epochs, "seconds": report.seconds}
