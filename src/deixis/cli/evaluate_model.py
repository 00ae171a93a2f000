"""`deixis evaluate twins` and `two-objects`: what a model reads in captions and phrases, on pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusPath,
    Force,
    Json,
    ModelDevice,
    PicturesIn,
    ResultFile,
    Seed,
    Split,
)
from deixis.cli.output_files import check_free

if TYPE_CHECKING:
    from deixis.metrics.results import Result
    from deixis.model import Model

ScoredModel = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="deixis-base, a run folder, onnx:FOLDER, or open_clip:NAME."),
]


def twins(
    corpus: CorpusPath,
    model: ScoredModel = "deixis-base",
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    seed: Seed = 0,
    device: ModelDevice = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure how often a true caption scores higher than a false one: another colour, number, attribute or role.

    False captions are made from the corpus and balanced so that a language model, which sees no picture, is right in
    half of the pairs. The corpus needs a split `train`, which that language model reads.

    Example: deixis evaluate twins flickr8k/ --split test
    """
    from deixis.metrics.caption_twins import twin_accuracy

    _evaluate(twin_accuracy, model, device, corpus, pictures_in, split, seed, out, force, as_json)


def two_objects(
    corpus: CorpusPath,
    model: ScoredModel = "deixis-base",
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    seed: Seed = 0,
    device: ModelDevice = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure how often a phrase is found at the right one of two objects with the same name.

    Expressions such as "the dog on the left" are made from labelled boxes (COCO); from captions with phrases and boxes
    (Flickr30k Entities), phrases that share a noun are used. The noun alone is right in half of the choices at most.

    Example: deixis evaluate two-objects coco/ --split val
    """
    from deixis.metrics import two_objects as protocol

    _evaluate(protocol.two_objects, model, device, corpus, pictures_in, split, seed, out, force, as_json)


def _evaluate(
    protocol: Callable[..., Result],
    model: str,
    device: str,
    corpus: str,
    pictures_in: Path | None,
    split: str,
    seed: int,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    from deixis.cli.evaluate_order import report
    from deixis.cli.output import busy
    from deixis.corpus import open_corpus
    from deixis.loading import load_model

    check_free(out, force)
    opened = open_corpus(corpus, pictures=pictures_in)
    loaded = load_model(model, device)
    with busy(f"Scoring {split}"):
        result = protocol(loaded, opened, split, seed=seed, parameters=named_model(loaded))
    report(result, f"{result.protocol.name}, {split}", out, as_json)


def named_model(model: Model) -> dict[str, str]:
    """The model as the result names it, with the hash of its weights where it knows that."""
    identity = getattr(model, "identity", None)
    return {"model": model.name} | ({} if identity is None else {"weights_sha256": identity.weights_sha256})
