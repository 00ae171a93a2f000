"""`deixis proposals`: measure any method against a corpus' boxes, draw its boxes, train the learned one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Device, Force, Json
from deixis.cli.output import busy, print_json, print_table, track
from deixis.cli.output_files import check_free, system_faults
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deixis.corpus.boxes import Boxes
    from deixis.corpus.records import Corpus, Image
    from deixis.metrics.localization import Localization
    from deixis.training.augmentation import SquashedPictures
    from deixis.vision.learned_proposals import LearnedProposals
    from deixis.vision.proposals import ProposalMethod
    from deixis.vision.reading import Skipped

app = typer.Typer(no_args_is_help=True, help="Region proposals: measure, draw, train.")

MethodOption = Annotated[
    str,
    typer.Option(help="learned, edge-boxes, selective-search, selective-search-quality, grid, or a .safetensors file."),
]
EdgeModelOption = Annotated[
    Path | None,
    typer.Option(help="For edge-boxes: OpenCV's structured-forest model (model.yml.gz).", show_default=False),
]
PicturesOption = Annotated[
    str | None, typer.Option("--pictures-in", metavar="PATH", help="A folder or .zip of pictures kept elsewhere.")
]


@app.command()
def report(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="Pictures, phrases and boxes, in any format.")],
    method: MethodOption = "learned",
    split: Annotated[
        str | None,
        typer.Option(
            help="The split to measure on; test, or all images of a corpus without splits.", show_default=False
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N images.", show_default=False)] = None,
    edge_model: EdgeModelOption = None,
    pictures_in: PicturesOption = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Write a result record to this file.", show_default=False)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Recall of proposals: how many phrases have a box among the first 10, 50, 100, 200 proposals, by phrase type.

    Boxes of a plural phrase are merged into one. These figures are the upper bounds of phrase localization.

    Example: deixis proposals report joined/ --method edge-boxes --split val --limit 200
    """
    if out is not None:
        check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.metrics.proposal_recall import COUNTS, IOUS, proposal_recall, recall_figures
    from deixis.metrics.results import BoxSupervision, Protocol, corpus_reference, make_result, save
    from deixis.vision.proposals import load_method
    from deixis.vision.reading import Skipped

    start = time.monotonic()
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    if split is None and set(opened.splits) != {""}:
        split = "test"
    chosen = opened if split is None else opened.split(split)
    if limit is not None:
        chosen = chosen.with_images(chosen.images[:limit])
    proposer = load_method(method, edge_model=edge_model, device=device)
    skipped = Skipped()
    found, seconds, busy_seconds = _propose_all(proposer, chosen, max(COUNTS), skipped)
    recall = proposal_recall(found)
    widest = recall[IOUS[0]]
    figures = recall_figures(recall)
    figures["seconds_per_picture"] = seconds / len(found)
    figures["processor_seconds_per_picture"] = busy_seconds / len(found)
    figures["boxes_per_picture"] = sum(len(boxes) for _, boxes in found) / len(found)
    counts = {"images": len(found), "skipped": len(skipped)}
    counts |= {"phrases": widest.phrases, "instances": widest.overall.instances, "without_box": widest.without_box}
    if out is not None:
        result = make_result(
            Protocol("proposal recall", "none: the order of the proposals is strict", _parameters(proposer)),
            figures,
            duration=time.monotonic() - start,
            # A limited run says by its hashes that it saw other images than the whole split.
            corpus=corpus_reference(opened if limit is None else chosen, split),
            counts=counts,
            box_supervision=BoxSupervision(
                backbone=False,
                proposals=proposer.saw_boxes,
                statement=_statement(proposer),
                regions=100,
                upper_bound=widest.overall.recall[100],
            ),
        )
        with system_faults(out):
            save(result, out)
    if json:
        print_json({"method": proposer.name, "saw_boxes": proposer.saw_boxes, **figures, **counts})
    else:
        _print_recall(proposer, recall, figures, counts)
    if skipped:
        typer.echo(str(skipped), err=True)


@app.command()
def show(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A picture, or a corpus.")],
    image: Annotated[str | None, typer.Argument(metavar="[ID]", help="The image's id in the corpus.")] = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("proposals.png"),
    method: MethodOption = "learned",
    count: Annotated[int, typer.Option(min=1, max=1000, help="Draw the first N.")] = 15,
    edge_model: EdgeModelOption = None,
    pictures_in: PicturesOption = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw a method's first proposals over a picture, numbered from the best.

    Example: deixis proposals show photo.jpg --method edge-boxes --out photo-boxes.png
    """
    if out.suffix.lower() != ".png":
        raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.errors import InputError
    from deixis.files import atomic_write
    from deixis.vision.proposal_drawing import draw_proposals
    from deixis.vision.proposals import load_method
    from deixis.vision.reading import decode_picture, read_picture

    if image is None:
        try:
            picture = decode_picture(Path(path).read_bytes(), name=path)
        except OSError as fault:
            hint = "; of a corpus, give an image's id too" if Path(path).is_dir() else ""
            raise InputError(path, f"{fault.strerror or 'cannot be read'}{hint}") from None
    else:
        opened = open_corpus(path, pictures=pictures_in)
        picture = read_picture(opened, opened[image])
    proposals = load_method(method, edge_model=edge_model, device=device).propose(picture, count)
    drawing = draw_proposals(picture, proposals)
    with system_faults(out), atomic_write(out) as stream:
        drawing.save(stream, "PNG")
    typer.echo(f"Drew {len(proposals.boxes)} proposals to {out} ({drawing.width} × {drawing.height})")


@app.command()
def train(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="Pictures and boxes, in splits train and val.")],
    out: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    backbone: Annotated[str, typer.Option(help="efficientnet-lite0, 1 or 2.")] = "efficientnet-lite2",
    side: Annotated[int, typer.Option(min=32, max=2048, help="Pictures are squashed to so many pixels a side.")] = 384,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training pictures.")] = 30,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures in a step.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the head's first weights, of order and augmentation.")] = 0,
    pictures_in: PicturesOption = None,
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
) -> None:
    """Train learned proposals on a corpus' boxes. Pictures of the Flickr8k dev and test splits are never trained on.

    Every sixth epoch is measured on the split val, and the one with the best recall at 100 boxes is kept.

    Example: deixis proposals train joined/ --out proposer.safetensors --device cuda
    """
    if out.suffix != ".safetensors":
        raise DeixisError(f"{out}: weights are .safetensors files; choose a name that ends so")
    check_free(out, force)
    from deixis.corpus import open_corpus
    from deixis.corpus.training import training_set
    from deixis.training.augmentation import squashed_pictures
    from deixis.training.tools.proposer_training import Schedule, box_set, new_proposer, train_proposer
    from deixis.vision.learned_proposals import LearnedProposals, checked_device, save_proposer
    from deixis.vision.reading import Skipped

    target = checked_device(device)
    with busy(f"Reading {corpus}"):
        opened = open_corpus(corpus, pictures=pictures_in)
    validation, training = opened.split("val"), training_set(opened)
    skipped = Skipped()
    with busy("Reading pictures"):
        data = box_set(training, side, target, skipped)
        held = squashed_pictures(validation, validation, side, skipped)
    model = new_proposer(backbone, seed).to(target)
    schedule = Schedule(epochs=epochs, batch_size=batch_size, side=side, seed=seed)
    tried: list[dict[str, float]] = []
    for epoch, loss, average in track(train_proposer(model, data, schedule), "Training", total=epochs):
        if (epoch + 1) % 6 and epoch + 1 < epochs:
            continue
        recall = _recall_at_100(LearnedProposals(average, side), held)
        if recall > max((one["recall"] for one in tried), default=-1):
            with system_faults(out):
                save_proposer(average, side, out)
        tried.append({"epoch": epoch + 1, "loss": loss, "recall": recall})
        typer.echo(f"epoch {epoch + 1}: loss {loss:.3f}, recall at 100 on val {recall:.2f}", err=True)
    kept = max(tried, key=lambda one: one["recall"])
    counts = {"trained_on": len(data), "held_out": training.excluded, "validated_on": len(held.images)}
    if json:
        print_json({"out": str(out), **kept, **counts, "skipped": skipped.reasons, "tried": tried})
    else:
        rows = [(f"{one['epoch']}", f"{one['loss']:.3f}", f"{one['recall']:.2f}") for one in tried]
        print_table("Recall at 100 boxes and IoU 0.5 on val", ["epoch", "loss", "recall"], rows)
        typer.echo(f"Trained on {len(data):,} pictures; epoch {kept['epoch']} is kept in {out}")
    if skipped:
        typer.echo(str(skipped), err=True)


def _propose_all(
    proposer: ProposalMethod, corpus: Corpus, count: int, skipped: Skipped
) -> tuple[list[tuple[Image, Boxes]], float, float]:
    """Each image's proposals in the original picture's pixels, and what they took, decoding apart.

    Seconds by the clock, and seconds of all processors together, which tell the cost on a machine with other work.
    """
    import numpy as np

    from deixis.vision.reading import iterate_pictures

    found: list[tuple[Image, Boxes]] = []
    seconds = busy_seconds = 0.0
    for image, picture in iterate_pictures(corpus, track(corpus, f"{proposer.name} proposals", len(corpus)), skipped):
        start, busy_start = time.perf_counter(), time.process_time()
        boxes = proposer.propose(picture, count).boxes
        seconds += time.perf_counter() - start
        busy_seconds += time.process_time() - busy_start
        original = (image.width or picture.width, image.height or picture.height)
        found.append((image, boxes * np.tile(np.divide(original, picture.size), 2)))
    if not found:
        raise DeixisError(f"no picture of these {len(corpus)} images can be read; {skipped}")
    return found, seconds, busy_seconds


def _recall_at_100(proposals: LearnedProposals, held: SquashedPictures) -> float:
    """Recall in percent at 100 boxes and IoU 0.5 on squashed pictures."""
    import numpy as np

    from deixis.metrics.proposal_recall import proposal_recall

    batches = (held.pixels[start : start + 32] for start in range(0, len(held.images), 32))
    boxes = [found.boxes for batch in batches for found in proposals.propose_batch(batch, 100)]
    pairs = [(image, own * np.tile(size, 2)) for image, size, own in zip(held.images, held.sizes, boxes, strict=True)]
    return proposal_recall(pairs, ious=(0.5,))[0.5].overall.recall[100]


def _parameters(proposer: ProposalMethod) -> dict[str, str | int | float | bool]:
    return {"method": proposer.name, "boxes": "merged", **proposer.settings}


def _statement(proposer: ProposalMethod) -> str:
    if proposer.saw_boxes:
        return "the proposals were trained on drawn boxes"
    return "no drawn box was learned from; parameters were chosen on validation boxes"


def _print_recall(
    proposer: ProposalMethod,
    recall: Mapping[float, Localization],
    figures: Mapping[str, float],
    counts: Mapping[str, int],
) -> None:
    for iou, one in recall.items():
        rows = {**one.by_type, "overall": one.overall}
        print_table(
            f"{proposer.name}, IoU {iou}: recall in % by boxes",
            ["type", "phrases", *map(str, one.overall.recall)],
            [
                [name, f"{row.instances:,}", *(f"{value:.2f}" for value in row.recall.values())]
                for name, row in rows.items()
            ],
        )
    typer.echo(
        f"{counts['images']:,} images; {figures['boxes_per_picture']:.0f} boxes and "
        f"{figures['seconds_per_picture']:.2f} s a picture; {_statement(proposer)}"
    )
