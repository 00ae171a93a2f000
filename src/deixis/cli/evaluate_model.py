"""`deixis evaluate retrieval`, `localization`, `twins` and `two-objects`: any model on the pictures of a corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusPath,
    Folds,
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
    from deixis.corpus import Corpus
    from deixis.metrics.results import Result
    from deixis.model import Model

ScoredModel = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="deixis-base, a run folder, onnx:FOLDER, or open_clip:NAME."),
]


def retrieval(
    corpus: CorpusPath,
    model: ScoredModel = "deixis-base",
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    folds: Folds = 1,
    device: ModelDevice = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Rank captions for every picture and pictures for every caption: Recall@1, 5, 10, median and mean rank.

    Example: deixis evaluate retrieval flickr8k/ --model onnx:my-model
    """
    from deixis.metrics.evaluation import evaluate

    def protocol(loaded: Model, opened: Corpus) -> Result:
        return evaluate(loaded, opened, split, folds=folds)

    _evaluate(protocol, model, device, corpus, pictures_in, split, out, force, as_json)


def localization(
    corpus: CorpusPath,
    model: ScoredModel = "deixis-base",
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    device: ModelDevice = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the box of every phrase, read in its caption: Recall@1, 5, 10 at IoU ≥ 0.5 (Flickr30k Entities).

    For models that look at pictures themselves, such as deixis-base; `deixis evaluate RUN` scores those that take
    features.

    Example: deixis evaluate localization flickr8k-entities/ --split val
    """
    from deixis.metrics.mention_localization import mention_localization

    def protocol(loaded: Model, opened: Corpus) -> Result:
        return mention_localization(loaded, opened, split)

    _evaluate(protocol, model, device, corpus, pictures_in, split, out, force, as_json)


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

    def protocol(loaded: Model, opened: Corpus) -> Result:
        return twin_accuracy(loaded, opened, split, seed=seed)

    _evaluate(protocol, model, device, corpus, pictures_in, split, out, force, as_json)


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
    from deixis.metrics.two_objects import choice_accuracy

    def protocol(loaded: Model, opened: Corpus) -> Result:
        return choice_accuracy(loaded, opened, split, seed=seed)

    _evaluate(protocol, model, device, corpus, pictures_in, split, out, force, as_json)


def _evaluate(
    protocol: Callable[[Model, Corpus], Result],
    model: str,
    device: str,
    corpus: str,
    pictures_in: Path | None,
    split: str,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    import msgspec

    from deixis.cli.evaluate_order import report
    from deixis.cli.output import busy
    from deixis.corpus import open_corpus
    from deixis.loading import load_model

    check_free(out, force)
    opened = open_corpus(corpus, pictures=pictures_in)
    loaded = load_model(model, device)
    with busy(f"Scoring {split}"):
        result = protocol(loaded, opened)
    parameters = {**result.protocol.parameters, **named_model(loaded)}
    result = msgspec.structs.replace(result, protocol=msgspec.structs.replace(result.protocol, parameters=parameters))
    report(result, f"{result.protocol.name}, {split}", out, as_json)


def named_model(model: Model) -> dict[str, str]:
    """The model as results name it, with the hash of its weights where it knows that."""
    identity = getattr(model, "identity", None)
    return {"model": model.name} | ({} if identity is None else {"weights_sha256": identity.weights_sha256})
