"""`deixis evaluate`: score any model's output under the papers' protocols."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.evaluate_order import order, random
from deixis.cli.evaluate_run import RunOrCommand, run
from deixis.cli.writing import check_free, system_faults
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from deixis.evaluation.ranking import Ranking
    from deixis.evaluation.results import CorpusReference
    from deixis.evaluation.scores import Scores

app = typer.Typer(
    cls=RunOrCommand,
    no_args_is_help=True,
    help="Score a trained run (`deixis evaluate RUN`), or any model's output, under the papers' protocols.",
)
app.command()(run)
app.command()(order)
app.command()(random)

CaptionsPerImage = Annotated[
    int | None,
    typer.Option(min=1, help="Captions of each image, listed image by image.", show_default="5"),
]
CaptionImages = Annotated[
    Path | None,
    typer.Option(
        help="For uneven numbers: a .npy file, or a text file with a number a line, that gives each caption's image "
        "(from 0).",
        show_default=False,
    ),
]
Folds = Annotated[int, typer.Option(min=1, help="Rank within this many equal parts of the images and average.")]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes that count, with 128 MB of tiles each; the outcome is the same.")
]
Out = Annotated[Path | None, typer.Option(help="Write a result record to this file.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def scores(
    file: Annotated[Path, typer.Argument(help="A .npy matrix, images × captions; higher is better.")],
    captions_per_image: CaptionsPerImage = None,
    caption_images: CaptionImages = None,
    folds: Folds = 1,
    workers: Workers = 1,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score an image × caption matrix: recalls and ranks in both directions, ties counting against the model.

    The file is read in blocks, so it may be larger than memory. Five folds of 5,000 images are MS-COCO's "1K test".
    """
    from deixis.evaluation.scores import MatrixScores

    matrix = _open_matrix(file, "images × captions")
    owners = _owners(file, matrix.shape, captions_per_image, caption_images)
    record = _Record(out, force, {"scores": file})
    _report(str(file), lambda: MatrixScores(matrix), owners, folds, workers, record, as_json)


@app.command()
def embeddings(
    images: Annotated[Path, typer.Argument(help="A .npy matrix, images × dimensions.")],
    captions: Annotated[Path, typer.Argument(help="A .npy matrix, captions × dimensions.")],
    captions_per_image: CaptionsPerImage = None,
    caption_images: CaptionImages = None,
    folds: Folds = 1,
    workers: Workers = 1,
    dot: Annotated[bool, typer.Option("--dot", help="Score by dot products, not cosines.")] = False,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score image and caption embeddings, by the cosine of their angle unless --dot is given.

    Files are read in blocks, so they may be larger than memory.

    Example: deixis evaluate embeddings images.npy captions.npy --workers 8
    """
    from deixis.evaluation.scores import EmbeddingScores

    left, right = _open_matrix(images, "images × dimensions"), _open_matrix(captions, "captions × dimensions")
    if left.shape[1] != right.shape[1]:
        raise InputError(
            captions, f"has {right.shape[1]} dimensions, but {images.name} has {left.shape[1]}", f"shape {right.shape}"
        )
    owners = _owners(captions, (len(left), len(right)), captions_per_image, caption_images)
    record = _Record(
        out, force, {"images": images, "captions": captions}, {"score": "dot product" if dot else "cosine"}
    )
    sources = f"{images} and {captions}"
    _report(sources, lambda: EmbeddingScores(left, right, normalize=not dot), owners, folds, workers, record, as_json)


@app.command()
def captions(
    candidates: Annotated[
        Path,
        typer.Argument(help='JSON: {"image id": "caption"}, or [{"image_id": …, "caption": …}] as COCO results are.'),
    ],
    references: Annotated[
        Path, typer.Argument(help='JSON: {"image id": ["caption", …]}, or any corpus, whose captions are taken.')
    ],
    split: Annotated[str | None, typer.Option(help="The split of the corpus that was captioned.")] = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score generated captions: BLEU-1 to 4, ROUGE-L and CIDEr-D in percent, as pycocoevalcap computes them.

    Example: deixis evaluate captions generated.json dataset_flickr8k.json --split test
    """
    from deixis.cli.output import print_json, print_table
    from deixis.evaluation.captions import caption_scores

    start = time.monotonic()
    record = _Record(out, force, {"candidates": candidates})
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
    found: dict[str, Any] = data if isinstance(data, dict) else {}
    if isinstance(data, list):
        for number, row in enumerate(data):
            if not isinstance(row, dict) or not {"image_id", "caption"} <= row.keys():
                raise InputError(path, "has no image_id and caption", f"entry {number + 1}")
            if str(row["image_id"]) in found:
                raise InputError(path, f"captions image {row['image_id']} twice", f"entry {number + 1}")
            found[str(row["image_id"])] = row["caption"]
    for image, caption in found.items():
        if not isinstance(caption, str):
            raise InputError(path, "must be one caption, a text", f"image {image}")
    return found


def _read_references(path: Path, split: str | None) -> tuple[dict[str, list[str]], CorpusReference | None]:
    """The captions of each image, and what a result says of the corpus they are from."""
    from deixis.corpus import open_corpus
    from deixis.evaluation.results import corpus_reference

    data = _read_json(path) if path.suffix == ".json" and path.is_file() else None
    if isinstance(data, dict) and data and all(_is_texts(value) for value in data.values()):
        if split is not None:
            raise InputError(path, f"lists captions by image and has no split {split!r}; leave --split away")
        return data, None
    corpus = open_corpus(path)
    chosen = corpus if split is None else corpus.split(split)
    texts = {image.id: [caption.text for caption in image.captions] for image in chosen if image.captions}
    return texts, corpus_reference(corpus, split)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _read_json(path: Path) -> Any:
    import msgspec

    try:
        data = msgspec.json.decode(path.read_bytes())
    except OSError as fault:
        raise InputError(path, fault.strerror or "cannot be read") from fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InputError(path, f"is not JSON: {fault}") from fault
    if not isinstance(data, dict | list):
        raise InputError(path, "must be a JSON object or list")
    return data


@dataclass(frozen=True)
class _Record:
    """The result file that was asked for, if one was: its inputs are told by name and SHA-256."""

    out: Path | None
    force: bool
    inputs: dict[str, Path]
    parameters: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.out is not None:
            check_free(self.out, self.force)

    def write(
        self,
        protocol: str,
        ties: str,
        parameters: dict[str, str | float],
        figures: dict[str, Any],
        counts: dict[str, int],
        start: float,
        corpus: CorpusReference | None = None,
    ) -> None:
        if self.out is None:
            return
        from deixis.evaluation.results import Protocol, make_result, save

        told: dict[str, str | float] = {**self.parameters, **parameters}
        for name, path in self.inputs.items():
            with path.open("rb") as stream:
                told |= {name: path.name, f"{name}_sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        result = make_result(
            Protocol(protocol, ties, {**told}), figures, duration=time.monotonic() - start, counts=counts, corpus=corpus
        )
        with system_faults(self.out):
            save(result, self.out)


def _open_matrix(path: Path, meaning: str) -> npt.NDArray[Any]:
    """Map a .npy matrix of numbers into memory; whatever else the file is, is an `InputError`."""
    from numpy.lib.format import open_memmap

    try:
        matrix = open_memmap(path, mode="r")
    except OSError as fault:
        raise InputError(path, fault.strerror or "cannot be read") from fault
    except Exception as fault:
        # NumPy evaluates the header; a damaged one can fail in many ways.
        reason = "it holds Python objects" if "Python objects" in str(fault) else "it is not one, or it is cut short"
        raise InputError(path, f"cannot be read as a .npy matrix: {reason}") from fault
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(path, f"must be a matrix, {meaning}", f"shape {matrix.shape}")
    if matrix.dtype.kind not in "fiu" or matrix.dtype.itemsize > 8:
        raise InputError(path, "must hold floats of 16, 32 or 64 bits or whole numbers", f"type {matrix.dtype}")
    return matrix


def _owners(
    path: Path, shape: tuple[int, ...], captions_per_image: int | None, caption_images: Path | None
) -> npt.NDArray[np.int64]:
    """The image of each caption, from a number or from a file."""
    from deixis.evaluation.ranking import captions_evenly

    images, captions = shape
    if caption_images is not None:
        if captions_per_image is not None:
            raise DeixisError("--captions-per-image and --caption-images say the same thing: give one of them")
        return _read_owners(caption_images, images, captions)
    each = captions_per_image or 5
    if captions != images * each:
        hint = ""
        if images == captions * each:
            hint = "; it looks like captions × images: transpose it"
        elif captions % images == 0:
            hint = f"; if they are {captions // images} each, give --captions-per-image {captions // images}"
        raise InputError(
            path,
            f"{images} images with {each} captions each need {images * each} captions, not {captions}{hint}",
            f"shape ({images}, {captions})",
        )
    return captions_evenly(images, each)


def _read_owners(path: Path, images: int, captions: int) -> npt.NDArray[np.int64]:
    import numpy as np

    numbers: list[int] = []
    try:
        if path.suffix == ".npy":
            loaded = np.load(path, allow_pickle=False).ravel()
            if loaded.dtype.kind not in "iu":
                raise InputError(path, "must hold one whole number a caption", f"type {loaded.dtype}")
            numbers = loaded.tolist()
        else:
            for line in path.read_text(encoding="utf-8").splitlines():
                numbers.append(int(line))
    except OSError as fault:
        raise InputError(path, fault.strerror or "cannot be read") from fault
    except (ValueError, EOFError) as fault:
        raise InputError(path, "must hold one whole number a caption", f"entry {len(numbers) + 1}") from fault
    for entry, number in enumerate(numbers, 1):
        if not 0 <= number < images:
            raise InputError(path, f"image {number}, but images are 0 to {images - 1}", f"entry {entry}")
    if len(numbers) != captions:
        raise InputError(path, f"has {len(numbers)} numbers for {captions} captions")
    return np.array(numbers, dtype=np.int64)


def _report(
    path: str,
    make_scores: Callable[[], Scores],
    owners: npt.NDArray[np.int64],
    folds: int,
    workers: int,
    record: _Record,
    as_json: bool,
) -> None:
    """Rank, print, and write the record; scores that cannot be ranked are laid to the file."""
    from deixis.cli.output import print_json
    from deixis.evaluation.ranking import TIES, evaluate_ranking
    from deixis.evaluation.scores import ScoreError

    start = time.monotonic()
    try:
        given = make_scores()
        ranking = evaluate_ranking(given, owners, folds=folds, workers=workers)
    except ScoreError as fault:
        raise InputError(path, fault.problem, fault.place) from fault
    except DeixisError as fault:
        raise InputError(path, str(fault)) from fault
    counts = {"images": given.shape[0], "captions": given.shape[1], "folds": folds}
    # What rounding may do to the scores of equal embeddings counts as a tie; 0 for a matrix.
    tolerance = max((float(side.max(initial=0.0)) for side in given.slack), default=0.0)
    record.write(
        "image-text ranking", TIES, {"folds": folds, "tie_tolerance": tolerance}, ranking.as_dict(), counts, start
    )
    if as_json:
        print_json({**ranking.as_dict(), **counts})
    else:
        _print_ranking(ranking, counts)


def _print_ranking(ranking: Ranking, counts: dict[str, int]) -> None:
    from deixis.cli.output import console, print_table

    rows = [
        (name, *(f"{value:.2f}" for value in side.recall.values()), f"{side.median_rank:g}", f"{side.mean_rank:.1f}")
        for name, side in (("image → text", ranking.image_to_text), ("text → image", ranking.text_to_image))
    ]
    parts = f", the mean of {counts['folds']} folds" if counts["folds"] > 1 else ""
    title = f"{counts['images']:,} images × {counts['captions']:,} captions{parts}"
    print_table(title, ["", *(f"R@{k}" for k in ranking.image_to_text.recall), "Med r", "Mean r"], rows)
    console().print(f"mR {ranking.mean_recall:.2f}; recalls in percent; ties count against the model", markup=False)
