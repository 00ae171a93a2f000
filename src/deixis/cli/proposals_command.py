"""`deixis proposals`: measure region proposals against ground-truth boxes, draw them, train proposers and detectors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deixis.cli.options import CorpusPath, Device, Force, Json, Limit, PicturesIn, ResultFile, Seed, SplitIfAny
from deixis.cli.output import busy, print_json, print_table, resumable, scored_split, track
from deixis.cli.output_files import check_drawing, check_free, system_faults, write_drawing
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deixis.corpus.boxes import Boxes
    from deixis.corpus.records import Corpus, Image
    from deixis.metrics.localization import Localization
    from deixis.vision.proposals import ProposalMethod
    from deixis.vision.reading import Skipped

app = typer.Typer(no_args_is_help=True, help="Measure, draw and train region proposals.")

MethodOption = Annotated[
    str,
    typer.Option(help="learned, edge-boxes, selective-search, selective-search-quality, grid, or a .safetensors file."),
]
EdgeModelOption = Annotated[
    Path | None,
    typer.Option(help="For edge-boxes: OpenCV's structured-forest model (model.yml.gz).", show_default=False),
]

WeightsOut = Annotated[Path, typer.Option(metavar="FILE", help="The weights to write (.safetensors).")]
Backbone = Annotated[str, typer.Option(help="efficientnet-lite0, 1 or 2.")]
Side = Annotated[int, typer.Option(min=32, max=2048, help="The network sees squares of this many pixels.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the training pictures.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Pictures per step.")]


@app.command()
def report(
    corpus: CorpusPath,
    method: MethodOption = "learned",
    split: SplitIfAny = None,
    limit: Limit = None,
    edge_model: EdgeModelOption = None,
    features: Annotated[
        Path | None,
        typer.Option(metavar="STORE", help="Measure the boxes of this feature store; no picture is read."),
    ] = None,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    out: ResultFile = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure proposals: the share of phrases with a correct box among the first 10, 50, 100, 200, by phrase type.

    The boxes of a plural phrase are merged into one. These recalls are the upper bounds of phrase localization. Beside
    them: how many proposals are positives of a phrase (IoU of at least 0.7), and the text-blind baselines.

    Example: deixis proposals report joined/ --method edge-boxes --split val --limit 200
    """
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.metrics.proposal_recall import COUNTS, IOUS, positives_per_phrase, proposal_recall, recall_figures
    from deixis.metrics.results import BoxSupervision, Protocol, corpus_reference, make_result, save
    from deixis.metrics.text_blind import baseline_figures, text_blind_localizations
    from deixis.vision.proposals import load_method
    from deixis.vision.reading import Skipped

    start = time.monotonic()
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    split = scored_split(opened, split)
    chosen = opened if split is None else opened.split(split)
    if limit is not None:
        chosen = chosen.with_images(chosen.images[:limit])
    skipped, times = Skipped(), {}
    if features is not None:
        proposals, settings, saw_boxes = _stored(features, chosen)
    else:
        proposer = load_method(method, edge_model=edge_model, device=device)
        proposals, seconds, cpu_seconds = _propose_all(proposer, chosen, max(COUNTS), skipped)
        settings, saw_boxes = {"method": proposer.name, **proposer.settings}, proposer.saw_boxes
        times = {"seconds_per_picture": seconds / len(proposals)}
        times["processor_seconds_per_picture"] = cpu_seconds / len(proposals)
    statement = _statement(saw_boxes, stored=features is not None)
    recall = proposal_recall(proposals)
    widest = recall[IOUS[0]]
    figures = recall_figures(recall) | times
    figures["boxes_per_picture"] = sum(len(boxes) for _, boxes in proposals) / len(proposals)
    figures["positives"] = positives_per_phrase(proposals)
    boxes_of = {image.id: boxes for image, boxes in proposals}
    images = [image for image, _ in proposals]
    if all(image.width and image.height for image in images):
        blind = text_blind_localizations(
            images, lambda image: (image.width, image.height), lambda image: boxes_of[image.id]
        )
        figures |= baseline_figures(blind)
    counts = {"images": len(proposals), "skipped": len(skipped)}
    counts |= {"phrases": widest.phrases, "instances": widest.overall.instances, "without_box": widest.without_box}
    if out is not None:
        result = make_result(
            Protocol("proposal recall", "none: the order of the proposals is strict", {"boxes": "merged", **settings}),
            figures,
            duration=time.monotonic() - start,
            # With --limit the hashes are those of the images that were used, not of the whole split.
            corpus=corpus_reference(opened if limit is None else chosen, split),
            counts=counts,
            box_supervision=BoxSupervision(
                backbone=False,
                proposals=saw_boxes,
                statement=statement,
                regions=100,
                upper_bound=widest.overall.recall[100],
            ),
        )
        with system_faults(out):
            save(result, out)
    if json:
        print_json({"method": settings["method"], "saw_boxes": saw_boxes, **figures, **counts})
    else:
        _print_recall(str(settings["method"]), statement, recall, figures, counts)
    if skipped:
        typer.echo(str(skipped), err=True)


@app.command()
def show(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A picture, or a corpus.")],
    image: Annotated[str | None, typer.Argument(metavar="ID", help="The image's id in the corpus.")] = None,
    out: Annotated[Path, typer.Option(metavar="PNG", help="The file to write.")] = Path("proposals.png"),
    method: MethodOption = "learned",
    count: Annotated[int, typer.Option(min=1, max=1000, help="Draw the first N.")] = 15,
    edge_model: EdgeModelOption = None,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw the first proposals of a method on a picture, numbered from the best.

    Example: deixis proposals show photo.jpg --method edge-boxes --out photo-boxes.png
    """
    check_drawing(out, force)
    from deixis.corpus import open_corpus
    from deixis.vision.drawing.pages import draw_proposals
    from deixis.vision.picture_files import read_picture_file
    from deixis.vision.proposals import load_method
    from deixis.vision.reading import read_picture

    if image is None:
        if Path(path).is_dir():
            raise InputError(path, "is a folder; for a corpus, also give the id of an image")
        picture = read_picture_file(path)
    else:
        opened = open_corpus(path, pictures=pictures_in)
        picture = read_picture(opened, opened[image])
    proposals = load_method(method, edge_model=edge_model, device=device).propose(picture, count)
    drawing = draw_proposals(picture, proposals)
    write_drawing(drawing, out)
    if json:
        print_json({"out": str(out), "boxes": proposals.boxes.tolist()})
    else:
        typer.echo(f"Drew {len(proposals.boxes)} proposals to {out} ({drawing.width} × {drawing.height})")


def _check_weights(out: Path, force: bool) -> None:
    if out.suffix != ".safetensors":
        raise DeixisError(f"{out}: weights are .safetensors files; choose a name that ends in .safetensors")
    check_free(out, force)


@app.command()
def train(
    corpus: CorpusPath,
    out: WeightsOut,
    backbone: Backbone = "efficientnet-lite2",
    side: Side = 384,
    epochs: Epochs = 30,
    batch_size: BatchSize = 64,
    seed: Seed = 0,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Train the learned proposals on the boxes of a corpus.

    The corpus needs the splits train and val. Every sixth epoch is measured on val, and the one with the best recall
    at 100 boxes is saved. Pictures of the Flickr8k dev and test splits are never trained on.
    Run the same command again to continue an interrupted training: its checkpoints and log are in a run folder beside
    the weights.

    Example: deixis proposals train joined/ --out proposer.safetensors --device cuda
    """
    _check_weights(out, force)
    from deixis.cli.train import training_progress
    from deixis.corpus import open_corpus
    from deixis.corpus.leak_guard import training_set
    from deixis.training.augmentation import squashed_pictures
    from deixis.training.run_records import epochs_of
    from deixis.training.runs import read_log
    from deixis.training.tools.proposer_training import ProposerTask, box_set, new_proposer, proposer_recipe
    from deixis.training.tools.tool_runs import train_tool
    from deixis.vision.learned_proposals import checked_device, save_proposer
    from deixis.vision.reading import Skipped

    target = checked_device(device)
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    validation, training = opened.split("val"), training_set(opened)
    skipped = Skipped()
    with busy("Reading pictures"):
        data = box_set(training, side, target, skipped)
        held_out = squashed_pictures(validation, validation, side, skipped)
    recipe = proposer_recipe(epochs, seed, backbone=backbone, side=side, batch_size=batch_size)
    model, run = new_proposer(backbone, seed).to(target), out.with_suffix(".run")
    task = ProposerTask(model, data, held_out, recipe)
    with resumable(), training_progress(recipe) as (progress, say):
        report = train_tool(task, recipe, opened, run, target, progress=progress, say=say)
    with system_faults(out):
        save_proposer(model, side, out)
    epochs_measured = [
        {"epoch": record.epoch, "loss": record.loss, "recall": record.figures["recall_at_100"]}
        for record in epochs_of(read_log(run))
        if record.figures
    ]
    best = next(measured for measured in epochs_measured if measured["epoch"] == report.epoch)
    counts = {"trained_on": len(data), "held_out": training.excluded, "validated_on": len(held_out.images)}
    if json:
        print_json({"out": str(out), **best, **counts, "skipped": skipped.reasons, "tried": epochs_measured})
    else:
        rows = [
            (f"{measured['epoch']}", f"{measured['loss']:.3f}", f"{measured['recall']:.2f}")
            for measured in epochs_measured
        ]
        print_table("Recall at 100 boxes and IoU 0.5 on val", ["epoch", "loss", "recall"], rows)
        typer.echo(f"Trained on {len(data):,} pictures; saved epoch {best['epoch']} to {out}")
    if skipped:
        typer.echo(str(skipped), err=True)


@app.command("train-detector")
def train_detector(
    corpus: CorpusPath,
    out: WeightsOut,
    backbone: Backbone = "efficientnet-lite2",
    side: Side = 384,
    stored_side: Annotated[
        int,
        typer.Option(min=32, max=2048, help="Pictures are kept in memory as squares of this many pixels."),
    ] = 256,
    epochs: Epochs = 12,
    batch_size: BatchSize = 128,
    seed: Seed = 0,
    pictures_in: PicturesIn = None,
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a detector on the labelled boxes of a corpus, such as COCO's instances.

    It replaces the Fast R-CNN of the two-branch paper: recipes use its region features with
    `features.backbone = "detector:FILE"` and `features.regions.features = "head"`. Every 25th training picture is held
    out; every third epoch and the last are measured there, and the one with the best average precision is saved.
    Pictures of the Flickr8k and COCO-mini test splits are never trained on. All pictures are in the device's memory:
    50,000 at 256 pixels take 10 GB. Run the same command again to continue an interrupted training.

    Example: deixis proposals train-detector coco/ --out coco-detector.safetensors --device cuda
    """
    _check_weights(out, force)
    from deixis.cli.train import training_progress
    from deixis.corpus import open_corpus
    from deixis.corpus.leak_guard import training_set
    from deixis.training.tools.detector_task import (
        DetectorTask,
        class_names,
        detector_recipe,
        labelled_boxes,
        new_detector,
    )
    from deixis.training.tools.tool_runs import hold_out, train_tool
    from deixis.vision.detector import save_detector
    from deixis.vision.learned_proposals import checked_device
    from deixis.vision.reading import Skipped

    target = checked_device(device)
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    training, held_out = hold_out(training_set(opened))
    names, skipped = class_names(training), Skipped()
    with busy("Reading pictures"):
        data = labelled_boxes(opened, training, names, stored_side, target, skipped)
        validation = labelled_boxes(opened, held_out, names, stored_side, target, skipped)
    recipe = detector_recipe(epochs, seed, backbone=backbone, side=side, stored_side=stored_side, batch_size=batch_size)
    model = new_detector(recipe, len(names)).to(target)
    task = DetectorTask(model, data, validation, recipe)
    with resumable(), training_progress(recipe) as (progress, say):
        report = train_tool(task, recipe, opened, out.with_suffix(".run"), target, progress=progress, say=say)
    with system_faults(out):
        save_detector(model, out)
    counts = {"classes": len(names), "trained_on": len(data), "validated_on": len(validation)}
    figures = {name: round(value, 2) for name, value in report.figures.items()}
    if json:
        print_json({"out": str(out), "epoch": report.epoch, **figures, **counts, "skipped": skipped.reasons})
    else:
        typer.echo(f"Trained on {len(data):,} pictures with {len(names)} classes; saved epoch {report.epoch} to {out}")
        typer.echo(
            f"On {len(validation):,} held-out pictures: average precision {figures['ap50']} at IoU 0.5, "
            f"{figures['class_accuracy']}% of the regions on a box have its class"
        )
    if skipped:
        typer.echo(str(skipped), err=True)


def _propose_all(
    proposer: ProposalMethod, corpus: Corpus, count: int, skipped: Skipped
) -> tuple[list[tuple[Image, Boxes]], float, float]:
    """The proposals of each image in pixels of the original picture, and the time they took without decoding.

    Wall-clock seconds, and CPU seconds of all cores, which also hold on a busy machine.
    """
    import numpy as np

    from deixis.vision.reading import iterate_pictures

    proposals: list[tuple[Image, Boxes]] = []
    seconds = cpu_seconds = 0.0
    for image, picture in iterate_pictures(corpus, track(corpus, f"{proposer.name} proposals", len(corpus)), skipped):
        start, cpu_start = time.perf_counter(), time.process_time()
        boxes = proposer.propose(picture, count).boxes
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        original = (image.width or picture.width, image.height or picture.height)
        proposals.append((image, boxes * np.tile(np.divide(original, picture.size), 2)))
    if not proposals:
        raise DeixisError(f"none of the {len(corpus)} pictures can be read; {skipped}")
    return proposals, seconds, cpu_seconds


def _stored(
    folder: Path, corpus: Corpus
) -> tuple[list[tuple[Image, Boxes]], dict[str, str | int | float | bool], bool]:
    """The boxes in a feature store, the settings of the method that made them, and whether it was trained on boxes."""
    from deixis.features.store import FeatureStore

    store = FeatureStore(folder)
    regions = store.plan.provenance.get("regions")
    if not isinstance(regions, dict):
        raise InputError(folder, "has no boxes; extract it with a recipe that has `regions`")
    proposals = [(image, store.boxes(image.id).astype(float)) for image in corpus if image.id not in store.skipped]
    if not proposals:
        raise InputError(folder, "has boxes of none of these images")
    settings = {"method": str(regions["boxes"]), **regions.get("settings", {})}
    return proposals, settings, bool(regions.get("saw_boxes"))


def _statement(saw_boxes: bool, *, stored: bool) -> str:
    """How boxes were used. Stored proposals may have any parameters, so nothing is said about their choice."""
    if saw_boxes:
        return "the proposals were trained on annotated boxes"
    training = "no box annotation was used for training"
    return training if stored else f"{training}; parameters were chosen on validation boxes"


def _print_recall(
    method: str,
    statement: str,
    recall: Mapping[float, Localization],
    figures: Mapping[str, Any],
    counts: Mapping[str, int],
) -> None:
    for iou, localization in recall.items():
        rows = {**localization.by_type, "overall": localization.overall}
        print_table(
            f"{method}, IoU {iou}: recall in % by number of boxes",
            ["type", "phrases", *map(str, localization.overall.recall)],
            [
                [name, f"{row.instances:,}", *(f"{value:.2f}" for value in row.recall.values())]
                for name, row in rows.items()
            ],
        )
    if blind := figures.get("text_blind"):
        print_table(
            "Text-blind: recall in % at an IoU of 0.5",
            ["answer", "R@1", "R@5", "R@10"],
            [
                [name.replace("_", " "), *(f"{row[cut]:.2f}" if cut in row else "" for cut in ("r@1", "r@5", "r@10"))]
                for name, row in blind.items()
            ],
        )
    if positives := figures["positives"]:
        typer.echo(
            f"{positives['per_phrase']:.2f} proposals per phrase have an IoU of at least 0.7; "
            f"{positives['two_or_more']:.1f}% of the phrases have two or more"
        )
    seconds = figures.get("seconds_per_picture")
    duration = "" if seconds is None else f" and {seconds:.2f} s"
    typer.echo(
        f"{counts['images']:,} images; {figures['boxes_per_picture']:.0f} boxes{duration} per picture; {statement}"
    )
