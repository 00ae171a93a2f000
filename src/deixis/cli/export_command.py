"""`deixis export`: write trained runs as bundles for search and other programs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import ForceFolder, Json, PicturesIn
from deixis.cli.output import busy, print_json
from deixis.cli.output_files import check_free, print_replaced, staged, system_faults
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.adapters.bundles import Manifest

app = typer.Typer(no_args_is_help=True, help="Export trained runs as bundles for search and other programs.")


class WeightsChoice(StrEnum):
    MIXED = "mixed"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


OutOption = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the bundle.")]
WeightsOption = Annotated[
    WeightsChoice,
    typer.Option(help="How weights are stored; `mixed`: int8 for matrices and large kernels, float16 for the rest."),
]
SideOption = Annotated[
    int | None,
    typer.Option(min=32, max=1024, help="Side of the input pictures in pixels.", show_default="as in training"),
]
WordWeightOption = Annotated[
    float | None,
    typer.Option(
        help="Weight of cell-word scores beside the embeddings, for models that have them.", show_default="the run's"
    ),
]
CalibrateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CORPUS",
        help="A captioned corpus on whose validation pictures the match thresholds are fitted; may be repeated.",
        show_default="the thresholds of a similar model",
    ),
]


@app.command()
def onnx(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished run of the kind `pictures` or `base`.")
    ],
    out: OutOption,
    weights: WeightsOption = WeightsChoice.MIXED,
    side: SideOption = None,
    word_weight: WordWeightOption = None,
    calibrate: CalibrateOption = None,
    pictures_in: PicturesIn = None,
    force: ForceFolder = False,
    as_json: Json = False,
) -> None:
    """Write a bundle that searches: image and text networks for onnxruntime, weights, vocabulary, manifest.

    Example: deixis export onnx runs/pictures --out my-model && deixis index ~/Pictures --model onnx:my-model
    """
    export_bundle = _exporter()
    build = partial(export_bundle, run, weights=weights.value, side=side, word_weight=word_weight)
    _write(build, out, (calibrate, pictures_in), force, as_json)


@app.command()
def base(
    pictures: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="A run of the kind `base` or `pictures`; or a bundle (deixis-base, onnx:FOLDER), which then searches "
            "as before, with its indexes, and gets another grounding or captioner.",
        ),
    ],
    out: OutOption,
    grounding: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="A run of the kind `grounding`.", show_default="that of a `base` run or of a bundle"
        ),
    ] = None,
    captioner: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A captioner trained on the features of the image network.",
            show_default="that of a bundle",
        ),
    ] = None,
    result: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A result for the model card; may be repeated.", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="The name of the model.")] = "deixis-base",
    weights: WeightsOption = WeightsChoice.MIXED,
    side: SideOption = None,
    word_weight: WordWeightOption = None,
    caption_match: Annotated[
        float,
        typer.Option(min=0, help="Weight of the search score by which the captioner's sentences are ranked again."),
    ] = 0.0,
    jpeg: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            help="Turn larger pictures into JPEG files of this quality and of the input's size first; 0: do not.",
            show_default="that of a bundle, or 0",
        ),
    ] = None,
    grounding_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Change a setting of grounding that no weight depends on (regions, candidates, overlap, samples, "
            "sharpness, sentence_weight); may be repeated.",
            show_default="as in training",
        ),
    ] = None,
    calibrate: CalibrateOption = None,
    pictures_in: PicturesIn = None,
    force: ForceFolder = False,
    as_json: Json = False,
) -> None:
    """Write a bundle that searches, grounds and describes, with a model card. `deixis-base` was made by it.

    Example: deixis export base --pictures runs/base --captioner runs/captions --calibrate flickr8k --out base
    """
    from deixis.metrics.results import load

    results = [load(path) for path in result or []]
    export_bundle = _exporter()
    from deixis.adapters.bundles import open_bundle
    from deixis.base.model_card import bundle_card

    def card(manifest: Manifest) -> str:
        first = None if open_bundle(pictures) else Path(pictures)
        runs = {"pictures": first, "grounding": grounding or (first if manifest.grounding else None)}
        runs["captioner"] = captioner
        return bundle_card(manifest, {task: run for task, run in runs.items() if run is not None}, results)

    build = partial(
        export_bundle,
        pictures,
        grounding=grounding,
        captioner=captioner,
        name=name,
        weights=weights.value,
        side=side,
        word_weight=word_weight,
        caption_match=caption_match,
        jpeg=jpeg,
        grounding_set=grounding_set or (),
    )
    _write(build, out, (calibrate, pictures_in), force, as_json, card)


@app.command("calibrate")
def calibrate_bundle(
    bundle: Annotated[Path, typer.Argument(metavar="FOLDER", help="A bundle; it is changed in place.")],
    corpora: Annotated[list[str], typer.Argument(metavar="CORPUS", help="Captioned corpora with validation pictures.")],
    pictures_in: PicturesIn = None,
    boxes: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS",
            help="Training pictures with labelled boxes, for thresholds of the labels.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the match thresholds of a bundle on the validation pictures of captioned corpora.

    Fitted are whether anything matches at all, where the list of matches ends (for words, and for an example picture
    beside words), and how far below the matches of an excluded thing a picture must score. Nothing else in the bundle
    changes, so indexes made with it stay valid.

    Example: deixis export calibrate my-model flickr8k coco_mini
    """
    with system_faults(bundle), busy("Calibrating"):
        manifest = _calibrate(bundle, corpora, pictures_in, boxes)
    if as_json:
        print_json({"bundle": str(bundle), "thresholds": manifest.thresholds})
    else:
        typer.echo(f"Calibrated {manifest.name} in {bundle}")


@app.command()
def upgrade(
    bundle: Annotated[Path, typer.Argument(metavar="FOLDER", help="A bundle, which is changed in place.")],
    as_json: Json = False,
) -> None:
    """Convert a bundle of an earlier version of Deixis. Its weights stay as they are, so indexes stay valid.

    Example: deixis export upgrade my-model
    """
    _exporter()
    from deixis.base.bundle_export import upgrade_bundle

    with system_faults(bundle), busy("Exporting"):
        manifest = upgrade_bundle(bundle)
    if as_json:
        print_json({"bundle": str(bundle), "manifest": manifest})
    else:
        typer.echo(f"Upgraded {manifest.name} in {bundle}")


def _calibrate(bundle: Path, corpora: Sequence[str], pictures: Path | None, boxes: str | None = None) -> Manifest:
    from deixis.corpus import open_corpus
    from deixis.search.bundle_calibration import calibrate

    captioned = [open_corpus(corpus, pictures=pictures) for corpus in corpora]
    return calibrate(bundle, captioned, boxes=open_corpus(boxes, pictures=pictures) if boxes else None)


def require_onnx() -> None:
    """Raise an error that says what to install if bundles cannot be written. Call it before PyTorch is imported."""
    # PyTorch's exporter warns of shapes that it cannot infer, on stderr.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if importlib.util.find_spec("onnx") is None:
        raise DeixisError("writing a bundle needs the package onnx; pip install 'deixis[research]'")


def _exporter() -> Callable[..., Any]:
    require_onnx()
    from deixis.base.bundle_export import export_bundle

    return export_bundle


def _write(
    build: Callable[[Path], Manifest],
    out: Path,
    calibrate: tuple[list[str] | None, Path | None],
    force: bool,
    as_json: bool,
    card: Callable[[Manifest], str] | None = None,
) -> None:
    """Build a bundle, and move it to `out` when it is complete."""
    check_free(out, force)
    from deixis.adapters.bundles import CARD
    from deixis.files import write_text

    with system_faults(out), busy("Exporting"), staged(out, force) as staging:
        manifest = build(staging.path)
        corpora, pictures = calibrate
        if corpora:
            manifest = _calibrate(staging.path, corpora, pictures)
        if card is not None:
            write_text(staging.path / CARD, card(manifest))
    size = sum(file.bytes for file in manifest.files.values())
    if as_json:
        print_json({"out": str(out), "bytes": size, "manifest": manifest})
        return
    typer.echo(f"Wrote {manifest.name} to {out} ({size / 1e6:.1f} MB, {manifest.weights})")
    print_replaced(staging.old)
    typer.echo(f"Use it with: deixis index DIR --model onnx:{out}")
