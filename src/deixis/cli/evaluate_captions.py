"""`deixis evaluate captions`: score generated captions, whatever made them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import Force, Json, ResultFile, SplitIfAny
from deixis.cli.output import scored_split
from deixis.cli.result_record import Record
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from deixis.metrics.results import CorpusReference


def captions(
    candidates: Annotated[
        Path,
        typer.Argument(help='JSON: {"image id": "caption"}, or [{"image_id": …, "caption": …}] as COCO results are.'),
    ],
    references: Annotated[
        Path, typer.Argument(help='JSON: {"image id": ["caption", …]}, or any corpus with captions.')
    ],
    split: SplitIfAny = None,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score generated captions: BLEU-1 to 4, ROUGE-L and CIDEr-D in percent, as pycocoevalcap computes them.

    Example: deixis evaluate captions generated.json dataset_flickr8k.json --split test
    """
    from deixis.cli.output import print_json, print_table
    from deixis.metrics.caption_metrics import caption_scores

    start = time.monotonic()
    record = Record(out, force, {"candidates": candidates})
    generated = _read_candidates(candidates)
    known, corpus = _read_references(references, split)
    try:
        figures = caption_scores(generated, known)
    except DeixisError as fault:
        raise InputError(candidates, str(fault)) from fault
    counts = {"images": len(known), "references": sum(map(len, known.values()))}
    parameters: dict[str, str | float] = {"tokenizer": "as PTBTokenizer of pycocoevalcap"}
    record.write("caption metrics", "not applicable", parameters, figures, counts, start, corpus)
    if as_json:
        print_json({**figures, **counts})
    else:
        title = f"{counts['images']:,} captions against {counts['references']:,} references, in percent"
        print_table(title, ["metric", "score"], [(name, f"{value:.2f}") for name, value in figures.items()])


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
