"""`deixis evaluate`: score a run, or the output of any model, under the papers' protocols."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.evaluate_boxes import boxes, queries
from deixis.cli.evaluate_captions import captions
from deixis.cli.evaluate_model import localization, retrieval, twins, two_objects
from deixis.cli.evaluate_run import RunOrCommand, order, random, run
from deixis.cli.options import SCORED_SPLIT, Folds, Force, Json, ResultFile, Split
from deixis.cli.output_files import Record
from deixis.errors import DeixisError, InputError
from deixis.files import read_utf8, require_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from deixis.metrics.ranking import Ranking
    from deixis.metrics.results import CorpusReference
    from deixis.metrics.score_blocks import Scores

app = typer.Typer(
    cls=RunOrCommand,
    no_args_is_help=True,
    help="Evaluate a trained run, or the output of any model, under the papers' protocols.",
)
app.command()(run)
app.command()(captions)
app.command()(order)
app.command()(random)
app.command()(retrieval)
app.command()(localization)
app.command()(twins)
app.command()(two_objects)
app.command()(queries)
app.command()(boxes)

CaptionsPerImage = Annotated[
    int | None,
    typer.Option(min=1, help="Captions per image, listed image by image.", show_default="5"),
]
CaptionImages = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="For uneven numbers of captions: the image (from 0) of each caption, as a .npy file or one per line.",
        show_default=False,
    ),
]
CheckedCorpus = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        metavar="CORPUS",
        help="Take the captions of each image from this corpus and record the split's hash.",
        show_default=False,
    ),
]
CheckedIds = Annotated[
    Path | None,
    typer.Option(
        "--ids",
        metavar="FILE",
        help="The list that the matrix follows (`deixis evaluate queries`); checked against --corpus.",
        show_default=False,
    ),
]


@app.command()
def scores(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .npy matrix, images × captions; higher is better.")],
    captions_per_image: CaptionsPerImage = None,
    caption_images: CaptionImages = None,
    corpus: CheckedCorpus = None,
    split: Split = SCORED_SPLIT,
    ids: CheckedIds = None,
    folds: Folds = 1,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score an image × caption matrix: recalls and ranks in both directions, ties counting against the model.

    The file is read in blocks, so it may be larger than memory. Five folds of 5,000 images are MS-COCO's "1K test".
    With --corpus, rows and columns follow the split's images and captions, and the result says which split it is.

    Example: deixis evaluate scores scores.npy --corpus flickr8k/ --ids queries.json
    """
    from deixis.metrics.score_blocks import MatrixScores

    record = Record(out, force, {"scores": file} | ({} if ids is None else {"ids": ids}))
    matrix = _open_matrix(file, "images × captions")
    where = f"shape {matrix.shape}"
    owners, reference = _checked_owners(
        file, matrix.shape, where, captions_per_image, caption_images, corpus, split, ids
    )
    _report(str(file), lambda: MatrixScores(matrix), owners, folds, record, as_json, reference)


@app.command()
def embeddings(
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="A .npy matrix, images × dimensions.")],
    captions: Annotated[Path, typer.Argument(metavar="CAPTIONS", help="A .npy matrix, captions × dimensions.")],
    captions_per_image: CaptionsPerImage = None,
    caption_images: CaptionImages = None,
    corpus: CheckedCorpus = None,
    split: Split = SCORED_SPLIT,
    ids: CheckedIds = None,
    folds: Folds = 1,
    dot: Annotated[bool, typer.Option("--dot", help="Score by dot products, not cosines.")] = False,
    out: ResultFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score image and caption embeddings by their cosine, or by their dot product with --dot.

    Files are read in blocks, so they may be larger than memory. With --corpus, rows follow the split's images and
    captions, and the result says which split it is.

    Example: deixis evaluate embeddings images.npy captions.npy --corpus flickr8k/ --ids queries.json
    """
    from deixis.metrics.score_blocks import EmbeddingScores

    files = {"images": images, "captions": captions} | ({} if ids is None else {"ids": ids})
    record = Record(out, force, files, {"score": "dot product" if dot else "cosine"})
    left, right = _open_matrix(images, "images × dimensions"), _open_matrix(captions, "captions × dimensions")
    if left.shape[1] != right.shape[1]:
        raise InputError(
            captions, f"has {right.shape[1]} dimensions, but {images.name} has {left.shape[1]}", f"shape {right.shape}"
        )
    shape = len(left), len(right)
    where = f"shape {right.shape}, {images.name} {left.shape}"
    owners, reference = _checked_owners(captions, shape, where, captions_per_image, caption_images, corpus, split, ids)
    sources = f"{images} and {captions}"
    _report(sources, lambda: EmbeddingScores(left, right, normalize=not dot), owners, folds, record, as_json, reference)


def _open_matrix(path: Path, meaning: str) -> npt.NDArray[Any]:
    """Map a .npy matrix of numbers into memory; any other file is an `InputError`."""
    from numpy.lib.format import open_memmap

    require_regular(path)
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


def _checked_owners(
    path: Path,
    shape: tuple[int, ...],
    where: str,
    captions_per_image: int | None,
    caption_images: Path | None,
    corpus: str | None,
    split: str,
    ids: Path | None,
) -> tuple[npt.NDArray[np.int64], CorpusReference | None]:
    """The image of each caption, and the split it is from where a corpus was given.

    `shape` is (images, captions); `where` describes the arrays of the file in messages.
    """
    if corpus is None:
        if ids is not None:
            raise DeixisError("--ids is checked against a corpus: give it with --corpus")
        return _owners(path, shape, where, captions_per_image, caption_images), None
    if captions_per_image is not None or caption_images is not None:
        raise DeixisError("--corpus says which captions an image has: give no --captions-per-image or --caption-images")
    import numpy as np

    from deixis.cli.output import busy
    from deixis.corpus import open_corpus
    from deixis.metrics.query_list import check_list
    from deixis.metrics.results import corpus_reference

    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus)
    chosen = None if split == "all" else split
    images = opened.images if chosen is None else opened.split(chosen).images
    owners = np.array([index for index, image in enumerate(images) for _ in image.captions], np.int64)
    if shape != (len(images), len(owners)):
        hint = "; images and captions look exchanged" if shape == (len(owners), len(images)) else ""
        raise InputError(
            path,
            f"{split} of {opened.name or corpus} has {len(images):,} images and {len(owners):,} captions{hint}",
            where,
        )
    if ids is not None:
        check_list(ids, opened, chosen)
    return owners, corpus_reference(opened, chosen)


def _owners(
    path: Path, shape: tuple[int, ...], where: str, captions_per_image: int | None, caption_images: Path | None
) -> npt.NDArray[np.int64]:
    """The image of each caption, from the number of captions per image or from a file."""
    from deixis.metrics.ranking import captions_evenly

    images, captions = shape
    if caption_images is not None:
        if captions_per_image is not None:
            raise DeixisError("--captions-per-image and --caption-images exclude each other: give one of them")
        return _read_owners(caption_images, images, captions)
    per_image = captions_per_image or 5
    if captions != images * per_image:
        hint = ""
        if images == captions * per_image:
            hint = "; images and captions look exchanged: transpose the matrix, or exchange the files"
        elif captions % images == 0:
            hint = f"; if every image has {captions // images}, give --captions-per-image {captions // images}"
        raise InputError(
            path,
            f"{images} images with {per_image} captions each need {images * per_image} captions, not {captions}{hint}",
            where,
        )
    return captions_evenly(images, per_image)


def _read_owners(path: Path, images: int, captions: int) -> npt.NDArray[np.int64]:
    import numpy as np

    numbers: list[int] = []
    try:
        if path.suffix == ".npy":
            # Mapped: an array that a header only claims to have takes no memory.
            loaded = np.load(require_regular(path), mmap_mode="r", allow_pickle=False).ravel()
            if loaded.dtype.kind not in "iu":
                raise InputError(path, "must hold one whole number per caption", f"type {loaded.dtype}")
            numbers = loaded.tolist()
        else:
            for line in read_utf8(path).splitlines():
                numbers.append(int(line))
    except DeixisError:
        raise
    # NumPy evaluates the header of a .npy file; a damaged one can fail in many ways.
    except Exception as fault:
        raise InputError(path, "must hold one whole number per caption", f"entry {len(numbers) + 1}") from fault
    for entry, index in enumerate(numbers, 1):
        if not 0 <= index < images:
            raise InputError(path, f"image {index}, but images are 0 to {images - 1}", f"entry {entry}")
    if len(numbers) != captions:
        raise InputError(path, f"has {len(numbers)} numbers for {captions} captions")
    return np.array(numbers, dtype=np.int64)


def _report(
    path: str,
    make_scores: Callable[[], Scores],
    owners: npt.NDArray[np.int64],
    folds: int,
    record: Record,
    as_json: bool,
    corpus: CorpusReference | None = None,
) -> None:
    """Rank, print, and write the result file; scores that cannot be ranked are an `InputError` of the file."""
    from deixis.cli.output import print_json
    from deixis.metrics.ranking import TIES, evaluate_ranking
    from deixis.metrics.score_blocks import ScoreError

    start = time.monotonic()
    try:
        scores = make_scores()
        ranking = evaluate_ranking(scores, owners, folds=folds)
    except ScoreError as fault:
        raise InputError(path, fault.problem, fault.place) from fault
    except DeixisError as fault:
        raise InputError(path, str(fault)) from fault
    counts = {"images": scores.shape[0], "captions": scores.shape[1], "folds": folds}
    # Scores of equal embeddings may differ by rounding; differences up to this count as ties. 0 for a matrix.
    tolerance = max((float(side.max(initial=0.0)) for side in scores.slack), default=0.0)
    parameters: dict[str, str | float] = {"folds": folds, "tie_tolerance": tolerance}
    record.write("image-text ranking", TIES, parameters, ranking.as_dict(), counts, start, corpus)
    if as_json:
        named = {} if corpus is None else {"split": corpus.split, "split_hash": corpus.split_hash}
        print_json({**ranking.as_dict(), **counts, **named})
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
    console().print(f"mR {ranking.mean_recall:.2f}; recalls in percent; ties count against the model")
