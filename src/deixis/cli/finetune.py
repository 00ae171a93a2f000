"""`deixis finetune`: the package's own model taught a person's captioned pictures."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Force, Json, ModelDevice
from deixis.cli.output_files import check_free, put_in_place, system_faults
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.adapters.bundles import Bundle
    from deixis.training.trainer import Progress


def finetune(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Captioned pictures: any corpus that can be read.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the model is written, if it is better.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Where it begins: `deixis-base`, `onnx:FOLDER` or `run:FOLDER`.")
    ] = "deixis-base",
    general: Annotated[
        str, typer.Option(metavar="CORPUS", help="What must not be forgotten: a corpus with the splits val and test.")
    ] = "scenes",
    pictures_in: Annotated[
        Path | None,
        typer.Option(help="A folder or zip with the pictures, if they are kept elsewhere.", show_default=False),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="At most; it stops before it overfits.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Of what is held out, and of all that is drawn.")] = 0,
    device: ModelDevice = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on your own captioned pictures (a few hundred or more), and report whether it helped.

    A tenth of the pictures tells when to stop, a fifth is held out and judges the outcome, beside general pictures that
    must not be forgotten. What is not better is not written, and the exit code is 1. FOLDER has a captions.csv (file,
    caption), or a .txt beside each picture, or is any other corpus.

    Example: deixis finetune my-photos --out my-model && deixis index ~/Pictures --model onnx:my-model
    """
    check_free(out, force)
    from deixis.cli.export_command import require_onnx

    require_onnx()
    from deixis.base.finetuning import finetune as teach
    from deixis.cli.output import busy, print_json
    from deixis.corpus import open_corpus
    from deixis.vision.learned_proposals import checked_device

    target = checked_device(device)
    with system_faults(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name[:40]}.", suffix=".part", dir=out.parent))
    try:
        with busy("Reading"):
            base = _start(model, staging / "base")
            own, others = open_corpus(folder, pictures=pictures_in), open_corpus(general)
        with busy("Looking at pictures, then learning"):
            outcome, manifest = teach(
                base, own, others, staging / "out", epochs=epochs, seed=seed, device=target, progress=_tell
            )
        old = None
        if manifest is not None:
            with system_faults(out):
                old = put_in_place(staging / "out", out, force)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if as_json:
        print_json({"out": str(out) if manifest else None, **{name: getattr(outcome, name) for name in _FIELDS}})
    else:
        typer.echo(outcome.verdict + (f"; written to {out}" if manifest else "; nothing was written"))
    if manifest is None:
        # What is to come after it must not.
        raise typer.Exit(1)
    if not as_json:
        if old is not None:
            typer.echo(f"What was there is now {old}")
        typer.echo(f"Use it with: deixis index DIR --model onnx:{out}")


_FIELDS = ("kept", "verdict", "held_out", "general", "learned_from", "epochs", "new_words", "share")


def _start(model: str, folder: Path) -> Bundle:
    """The bundle to begin with; a run becomes one first."""
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


def _tell(progress: Progress) -> None:
    if (record := progress.epoch_record) is not None and record.figures:
        told = f"epoch {record.epoch}: loss {record.loss:.3f}, mean recall {record.figures['rsum'] / 6:.1f}"
        typer.echo(told + (" (best)" if record.best else ""), err=True)
