"""`deixis evaluate captions`: score generated captions, whatever made them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import Force, Json, ResultFile, SplitIfAny
from deixis.cli.output import scored_split
from deixis.cli.output_files import Record
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from deixis.metrics.results import CorpusReference


def captions(
    candidates: Annotated[
        Path,
        typer.Argument(
            metavar="CANDIDATES",
            help='JSON: {"image id": "caption"}, or [{"image_id": …, "caption": …}] as COCO results are.',
        ),
    ],
    references: Annotated[
        Path | None,
        typer.Argument(
            metavar="REFERENCES",
            help='JSON: {"image id": ["caption", …]}, or any corpus with captions. May be left out with --pictures.',
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder or .zip of pictures, named after the image ids: also score captions against their pictures.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The model that scores captions against pictures.")
    ] = "deixis-base",
    split: SplitIfAny = None,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score generated captions: BLEU-1 to 4, ROUGE-L and CIDEr-D in percent, as pycocoevalcap computes them.

    With --pictures, a model also scores each caption against its picture, which needs no references: `picture_score` is
    the mean, `other_pictures` the mean with pictures that the captions do not belong to, and `picture_by_caption` how
    often a caption finds its picture among all. Compare these only for the same pictures and the same model.

    Example: deixis evaluate captions generated.json dataset_flickr8k.json --split test
    Example: deixis evaluate captions generated.json --pictures photos/
    """
    from deixis.cli.output import print_json, print_table
    from deixis.metrics.caption_metrics import caption_scores
    from deixis.metrics.results import flatten

    start = time.monotonic()
    record = Record(out, force, {"candidates": candidates})
    generated = _read_candidates(candidates)
    if references is None and pictures is None:
        raise DeixisError("there is nothing to score against: give references, --pictures DIR, or both")
    if references is None and split is not None:
        raise DeixisError("--split is for references that are a corpus")
    figures: dict[str, Any] = {}
    counts, corpus = {"images": len(generated), "different": len(set(generated.values()))}, None
    parameters: dict[str, str | float] = {}
    by_image: dict[str, float] = {}
    try:
        if references is not None:
            known, corpus = _read_references(references, split)
            figures |= caption_scores(generated, known)
            counts["references"] = sum(map(len, known.values()))
            parameters["tokenizer"] = "as PTBTokenizer of pycocoevalcap"
        if pictures is not None:
            by_image, against, named = _against_pictures(generated, pictures, model)
            figures, parameters = {**figures, **against}, {**parameters, **named}
    except InputError:
        raise
    except DeixisError as fault:
        raise InputError(candidates, str(fault)) from fault
    record.write("caption metrics", "not applicable", parameters, figures, counts, start, corpus)
    if as_json:
        print_json({**figures, **counts, **({"by_image": by_image} if by_image else {})})
    else:
        where = f" against {counts['references']:,} references, in percent" if references is not None else ""
        rows = [(name, f"{value:.2f}") for name, value in flatten(figures)]
        print_table(f"{counts['images']:,} captions{where}", ["metric", "score"], rows)


def _against_pictures(
    generated: dict[str, str], pictures: Path, model: str
) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """The score of each image's caption, the figures, and the model's name."""
    from deixis.cli.evaluate_model import named_model
    from deixis.cli.output import busy
    from deixis.corpus.pictures import open_pictures
    from deixis.loading import load_model
    from deixis.metrics.picture_scores import picture_scores, pictures_by_name

    loaded = load_model(model)
    with busy("Scoring captions against pictures"):
        scores = picture_scores(loaded, pictures_by_name(open_pictures(pictures), generated), generated)
    return scores.by_image, scores.figures, named_model(loaded)


def _read_candidates(path: Path) -> dict[str, str]:
    data = _read_json(path)
    captions: dict[str, Any] = data if isinstance(data, dict) else {}
    if isinstance(data, list):
        for entry, row in enumerate(data, start=1):
            if not isinstance(row, dict) or not {"image_id", "caption"} <= row.keys():
                raise InputError(path, "has no image_id and caption", f"entry {entry}")
            if str(row["image_id"]) in captions:
                raise InputError(path, f"captions image {row['image_id']} twice", f"entry {entry}")
            captions[str(row["image_id"])] = row["caption"]
    for image, caption in captions.items():
        if not isinstance(caption, str):
            raise InputError(path, "must be one caption, a text", f"image {image}")
    return captions


def _read_references(path: Path, split: str | None) -> tuple[dict[str, list[str]], CorpusReference | None]:
    """The captions of each image, and the corpus as a result file names it."""
    from deixis.corpus import open_corpus
    from deixis.metrics.results import corpus_reference

    data = _read_json(path) if path.suffix == ".json" and path.is_file() else None
    if isinstance(data, dict) and data and all(_is_texts(value) for value in data.values()):
        if split is not None:
            raise InputError(path, f"lists captions by image and has no split {split!r}; leave out --split")
        return data, None
    corpus = open_corpus(path)
    split = scored_split(corpus, split)
    chosen = corpus if split is None else corpus.split(split)
    texts = {image.id: [caption.text for caption in image.captions] for image in chosen if image.captions}
    return texts, corpus_reference(corpus, split)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _read_json(path: Path) -> Any:
    from deixis.files import read_json

    data = read_json(path, object, "is not JSON")
    if not isinstance(data, dict | list):
        raise InputError(path, "must be a JSON object or list")
    return data
