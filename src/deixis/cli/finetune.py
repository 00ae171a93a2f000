"""`deixis finetune`: fine-tune a model on a person's captioned pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import NO_CAPTIONS, ForceFolder, Json, ModelDevice, PicturesIn, Seed
from deixis.cli.output_files import check_free, print_replaced, staged
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from deixis.adapters.bundles import Bundle
    from deixis.training.trainer import Progress


def finetune(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Captioned pictures: a corpus of any format.")],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of the new model; written only if it is better.")
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The model to start from: deixis-base, onnx:FOLDER, or a run folder.")
    ] = "deixis-base",
    general: Annotated[
        str,
        typer.Option(
            metavar="CORPUS", help="General pictures on which it must not get worse: a corpus with splits val and test."
        ),
    ] = "scenes",
    pictures_in: PicturesIn = None,
    epochs: Annotated[
        int, typer.Option(min=1, max=1000, help="At most this many epochs; it stops early before it overfits.")
    ] = 30,
    seed: Seed = 0,
    device: ModelDevice = "auto",
    force: ForceFolder = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on your own captioned pictures (a few hundred or more), and report whether it helped
    (needs the research extra).

    FOLDER has a captions.csv with the columns file and caption, one line per caption, or a .txt beside each picture; or
    it is any other corpus. A tenth of the pictures decides when to stop; a fifth is held out to measure the result,
    together with general pictures. A model that is not better is not written, and the exit code is 1.

    Example: deixis finetune my-photos --out my-model && deixis index ~/Pictures --model onnx:my-model
    """
    check_free(out, force)
    from deixis.cli.export_command import require_onnx

    require_onnx()
    from deixis.base.finetuning import finetune as run_finetuning
    from deixis.cli.output import busy, print_json
    from deixis.corpus import open_corpus
    from deixis.vision.learned_proposals import checked_device

    target = checked_device(device)
    with staged(out, force) as staging:
        with busy("Reading"):
            base = _start(model, staging.path.with_name(f"{out.name}-start"))
            corpus = open_corpus(folder, pictures=pictures_in)
            if not any(image.captions for image in corpus):
                raise InputError(folder, NO_CAPTIONS)
            general_corpus = open_corpus(general)
        with busy("Reading pictures, then training"):
            outcome, manifest = run_finetuning(
                base,
                corpus,
                general_corpus,
                staging.path,
                epochs=epochs,
                seed=seed,
                device=target,
                progress=_print_epoch,
            )
        staging.discarded = manifest is None
    if as_json:
        print_json({"out": str(out) if manifest else None, **{name: getattr(outcome, name) for name in _FIELDS}})
    else:
        typer.echo(outcome.verdict + (f"; written to {out}" if manifest else "; nothing was written"))
    if manifest is None:
        # So that `finetune … && index …` stops here.
        raise typer.Exit(1)
    if not as_json:
        print_replaced(staging.old)
        typer.echo(f"Use it with: deixis index DIR --model onnx:{out}")


_FIELDS = ("kept", "verdict", "held_out", "general", "learned_from", "epochs", "new_words", "share")


def _start(model: str, folder: Path) -> Bundle:
    """The bundle to start from; a run is exported to one first."""
    from deixis.adapters.bundles import open_bundle, read_bundle
    from deixis.loading import RUN

    if model.startswith(RUN) or Path(model).is_dir():
        from deixis.base.bundle_export import export_bundle

        export_bundle(Path(model.removeprefix(RUN)), folder, weights="float16")
        return read_bundle(folder)
    bundle = open_bundle(model)
    if bundle is None:
        raise DeixisError(f"unknown model {model!r}; known: deixis-base, onnx:FOLDER, a run folder")
    return bundle


def _print_epoch(progress: Progress) -> None:
    if (record := progress.epoch_record) is not None and record.figures:
        line = f"epoch {record.epoch}: loss {record.loss:.3f}, mean recall {record.figures['rsum'] / 6:.1f}"
        typer.echo(line + (" (best)" if record.best else ""), err=True)
