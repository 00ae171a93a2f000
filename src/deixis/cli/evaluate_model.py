"""`deixis evaluate retrieval`, `localization`, `twins` and `two-objects`: any model on the pictures of a corpus."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import (
    SCORED_SPLIT,
    CorpusPath,
    Folds,
    Force,
    Json,
    ModelDevice,
    ModelName,
    PicturesIn,
    ResultFile,
    Seed,
    Split,
)
from deixis.cli.output_files import check_free

if TYPE_CHECKING:
    from deixis.model import Model


def _evaluate(
    corpus: CorpusPath,
    model: ModelName = None,
    pictures_in: PicturesIn = None,
    split: Split = SCORED_SPLIT,
    device: ModelDevice = "auto",
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
    *,
    protocol: Callable[..., Any],
    **options: Any,
) -> None:
    import msgspec

    from deixis.adapters.bundles import DEFAULT
    from deixis.cli.evaluate_run import report
    from deixis.cli.output import busy
    from deixis.corpus import open_corpus
    from deixis.loading import load_model

    check_free(out, force)
    opened = open_corpus(corpus, pictures=pictures_in)
    loaded = load_model(model or DEFAULT, device)
    with busy(f"Scoring {split}"):
        result = protocol(loaded, opened, split, **options)
    parameters = {**result.protocol.parameters, **named_model(loaded)}
    result = msgspec.structs.replace(result, protocol=msgspec.structs.replace(result.protocol, parameters=parameters))
    report(result, f"{result.protocol.name}, {split}", out, as_json)


def _command(protocol: Callable[..., Any]) -> Callable[..., None]:
    """A command with the options of `_evaluate`, and those that the protocol takes by keyword."""

    def command(**options: Any) -> None:
        _evaluate(protocol=protocol, **options)

    of_all, protocol_parameters = (
        inspect.signature(function, eval_str=True).parameters for function in (_evaluate, protocol)
    )
    shared = [option for option in of_all.values() if option.kind is option.POSITIONAL_OR_KEYWORD]
    added = [option for option in protocol_parameters.values() if option.kind is option.KEYWORD_ONLY]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option.replace(kind=option.KEYWORD_ONLY) for option in (*shared, *added)]
    )
    command.__name__, command.__doc__ = protocol.__name__, protocol.__doc__
    return command


@_command
def retrieval(model: Any, corpus: Any, split: str, *, folds: Folds = 1) -> Any:
    """Rank captions for every picture and pictures for every caption: Recall@1, 5, 10, median and mean rank.

    Example: deixis evaluate retrieval flickr8k/ --model onnx:my-model
    """
    from deixis.metrics.evaluation import evaluate

    return evaluate(model, corpus, split, folds=folds)


@_command
def localization(
    model: Any,
    corpus: Any,
    split: str,
    *,
    found_phrases: Annotated[
        bool,
        typer.Option(
            "--found-phrases", help="Count phrases as missed that the chunker does not find (Entities, section 3.2)."
        ),
    ] = False,
) -> Any:
    """Find the box of every phrase, read in its caption: Recall@1, 5, 10 at IoU ≥ 0.5 (Flickr30k Entities).

    For models that look at pictures themselves, such as deixis-base; `deixis evaluate RUN` scores those that take
    features.

    Example: deixis evaluate localization flickr8k-entities/ --split val
    """
    from deixis.metrics.mention_localization import mention_localization
    from deixis.text.phrase_finding import phrases_in

    find_phrases = (lambda caption: phrases_in(caption.tokens)) if found_phrases else None
    return mention_localization(model, corpus, split, find_phrases=find_phrases)


@_command
def twins(model: Any, corpus: Any, split: str, *, seed: Seed = 0) -> Any:
    """Measure how often a true caption scores higher than a false one: another colour, number, attribute or role.

    False captions are made from the corpus and balanced so that a language model, which sees no picture, is right in
    half of the pairs. The corpus needs a split `train`, which that language model reads.

    Example: deixis evaluate twins flickr8k/ --split test
    """
    from deixis.metrics.caption_twins import twin_accuracy

    return twin_accuracy(model, corpus, split, seed=seed)


@_command
def two_objects(model: Any, corpus: Any, split: str, *, seed: Seed = 0) -> Any:
    """Measure how often a phrase is found at the right one of two objects with the same name.

    Expressions such as "the dog on the left" are made from labelled boxes (COCO); from captions with phrases and boxes
    (Flickr30k Entities), phrases that share a noun are used. The noun alone is right in half of the choices at most.

    Example: deixis evaluate two-objects coco/ --split val
    """
    from deixis.metrics.two_objects import choice_accuracy

    return choice_accuracy(model, corpus, split, seed=seed)


def named_model(model: Model) -> dict[str, str]:
    """The model as results name it, with the hashes of its weights."""
    return {"model": model.name, **model.hashes}
