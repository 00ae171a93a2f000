"""How trained aligners and captioners are evaluated, beside retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from deixis.corpus import training_set
from deixis.metrics.captioning_protocol import captioning, region_captioning, sentence_baseline, word_neighbours
from deixis.metrics.localization import gold_queries
from deixis.metrics.protocols import Pictures
from deixis.metrics.results import Result, corpus_reference
from deixis.papers.dvsa.alignment_protocol import Smoothing, alignment, best_smoothing, counting, magnitudes
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.papers.dvsa.model import AlignmentModel
from deixis.papers.dvsa.snippet_queries import snippet_queries
from deixis.text.parsing import ParserMissing
from deixis.text.tokens import tokens_of_captions
from deixis.training.inputs import find_store
from deixis.training.run_protocols import Evaluation, has_ground_truth_regions
from deixis.training.run_records import StepRecord
from deixis.training.runs import read_log, read_model
from deixis.training.threads import one_thread

#: The smoothings that are tried on the validation split: of the single best path, and of the chain posterior.
BEST = [Smoothing(beta) for beta in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
SHARED = [Smoothing(beta, heat) for heat in (0.25, 0.5, 1.0, 2.0) for beta in (0.125, 0.5, 1.0, 2.0)]
#: Steps at the beginning of a training whose mean losses are reported.
EARLY = (10, 100, 300)


def evaluate_aligner(evaluation: Evaluation[Any]) -> Iterator[Result]:
    """Lengths of word vectors, the best training captions for a picture, the regions that words are aligned with,
    counted phrases, and whether colours distinguish things.

    Alignment and counting need ground-truth boxes. The smoothing of words is chosen on the validation split if its
    phrases have boxes; otherwise it is the recipe's.
    """
    model: AlignmentModel = evaluation.model
    pictures, validation = (
        Pictures(
            evaluation.corpus,
            split,
            find_store(evaluation.stores, "proposals"),
            learned_from_boxes=False,
            # The picture itself is a region, too.
            regions_kept=model.regions - 1,
        )
        for split in (evaluation.split, "val")
    )
    captions = tokens_of_captions(training_set(evaluation.corpus))
    trained_on = corpus_reference(evaluation.corpus, "train")
    yield magnitudes(model.word_magnitudes(captions), pictures, trained_on, **evaluation.details)
    yield sentence_baseline(model, pictures, captions, **evaluation.details)
    if _has_boxes(pictures):
        chosen = _has_boxes(validation)
        by_recipe = [Smoothing(model.beta)], [Smoothing(model.beta, model.temperature or 1.0)]
        best, shared = (best_smoothing(model, validation, ways) for ways in ((BEST, SHARED) if chosen else by_recipe))
        yield alignment(model, pictures, best, shared, chosen_by_boxes=chosen, **evaluation.details)
        counted = counting(model, pictures, shared, chosen_by_boxes=chosen, **evaluation.details)
        if counted:
            yield counted
    # Without a parser an aligner of dependency edges cannot read the queries: they are no captions of the corpus, whose
    # edges are kept with the run.
    try:
        asked = snippet_queries(model, pictures, **evaluation.details)
    except ParserMissing:
        return
    if asked:
        yield asked


def _has_boxes(pictures: Pictures) -> bool:
    return any(gold_queries(image)[0] for image in pictures.images)


@one_thread()
def evaluate_captioner(evaluation: Evaluation[Any]) -> list[Result]:
    """Captions of pictures, with figures of the training; captions of ground-truth regions, if there are features of
    them; and the neighbours of its word vectors.
    """
    model: CaptionerModel = evaluation.model
    captions = tokens_of_captions(training_set(evaluation.corpus))
    whole_pictures = captioning(model, evaluation.pictures, captions, **evaluation.details)
    training = training_figures(evaluation.run)
    results = [msgspec.structs.replace(whole_pictures, metrics={**whole_pictures.metrics, "training": training})]
    if has_ground_truth_regions(evaluation.stores):
        store = find_store(evaluation.stores, "chains")
        drawn = Pictures(evaluation.corpus, evaluation.split, store, learned_from_boxes=False)
        results.append(region_captioning(model, drawn, **evaluation.details))
    neighbours = word_neighbours(model, evaluation.pictures, **evaluation.details)
    return [*results, neighbours] if neighbours else results


def training_figures(run: str | Path) -> dict[str, float]:
    """How a training began (mean losses of its first steps; section 5 of the supplement), and how it ended."""
    losses = [record.loss for record in read_log(run) if isinstance(record, StepRecord)]
    report = read_model(run).report
    figures = {f"loss_first_{steps}": float(np.mean(losses[:steps])) for steps in EARLY}
    figures |= {"perplexity": report.figures["perplexity"]} if "perplexity" in report.figures else {}
    return figures | {"best_epoch": report.epoch, "epochs": report.epochs, "seconds": report.seconds}
