"""How commands write files: never over existing ones without --force, and complete or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deixis.cli.output import busy, print_json
from deixis.errors import DeixisError
from deixis.files import atomic_write, refuse_special

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from deixis.corpus import Corpus
    from deixis.metrics.results import BoxSupervision, CorpusReference


def check_free(out: Path | None, force: bool) -> None:
    """Refuse to replace an existing file or non-empty folder; called before the long work and again before the end."""
    if out is None:
        return
    with system_faults(out):
        refuse_special(out)
        occupied = any(out.iterdir()) if out.is_dir() else out.exists() and out.stat().st_size > 0
    if occupied and not force:
        raise DeixisError(f"{out}: already exists; give --force to replace it")


def check_drawing(out: Path | None, force: bool) -> None:
    """`check_free` for a drawing, whose name must end in .png."""
    if out is not None and out.suffix.lower() != ".png":
        raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
    check_free(out, force)


def drawing_targets(images: list[Path], out: Path | None, force: bool) -> list[Path | None]:
    """The path of each picture's drawing: `out` itself for one picture, a file in the folder `out` for several."""
    if out is None:
        return [None] * len(images)
    if len(images) == 1:
        targets = [out]
    elif out.suffix.lower() == ".png":
        raise DeixisError(f"{out}: drawings of several pictures go into a folder; give it another name")
    else:
        targets = [out / f"{image.stem}.png" for image in images]
        if len(set(targets)) < len(targets):
            raise DeixisError("two of the pictures have the same name, so their drawings would too")
    for target in targets:
        check_drawing(target, force)
    return [*targets]


def write_drawing(drawing: Picture, out: Path) -> None:
    """Write a PNG file."""
    with system_faults(out), atomic_write(out) as stream:
        drawing.save(stream, "PNG")


@contextmanager
def system_faults(path: Path) -> Iterator[None]:
    """Turn an error of the system (no permission, no space) into a `DeixisError`, which is printed as one line."""
    try:
        yield
    except OSError as fault:
        raise DeixisError(f"{path}: cannot be written: {fault.strerror or fault}") from None


@dataclass
class Staging:
    """Where to write a file or folder that will replace `out`; `old` is the new name of a folder that was replaced."""

    path: Path
    old: Path | None = None
    discarded: bool = False


@contextmanager
def staged(out: Path, force: bool) -> Iterator[Staging]:
    """Write beside `out`, and move into place at the end, so that a failure leaves `out` as it was.

    A folder that was there is renamed, not deleted. With `discarded` set, nothing is moved.
    """
    with system_faults(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name[:40]}.", suffix=".part", dir=out.parent))
    try:
        staging = Staging(folder / out.name)
        yield staging
        if not staging.discarded:
            with system_faults(out):
                staging.old = _put_in_place(staging.path, out, force)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_replaced(old: Path | None) -> None:
    """Say what became of a folder that was replaced."""
    if old is not None:
        typer.echo(f"The previous folder is now {old}")


def write_out(
    corpus: Corpus,
    out: Path,
    *,
    to: str,
    pictures: bool,
    force: bool,
    json: bool,
    counts: dict[str, int] | None = None,
) -> None:
    """Write a corpus and report what the format cannot store; `counts` are printed first, or added to the JSON."""
    from deixis.corpus import write_corpus
    from deixis.corpus.formats import get_format
    from deixis.corpus.opening import losses

    dropped = losses(corpus, get_format(to).keep(corpus))
    with system_faults(out), busy(f"Writing {out}"), staged(out, force) as staging:
        missing = write_corpus(corpus, staging.path, format=to, pictures=pictures)
        if pictures and not staging.path.is_dir():
            raise DeixisError(f"{out}: pictures can be written into a folder only, not with a single file")
    if json:
        lost = {name: {"lost": count, "of": whole} for name, (count, whole) in dropped.items()}
        report = {"out": str(out), "format": to, "images": len(corpus), "dropped": lost, "without_picture": missing}
        print_json({**report, **(counts or {})})
        return
    for name, count in (counts or {}).items():
        typer.echo(f"{count:>9,}  {name.replace('_', ' ')}")
    typer.echo(f"Wrote {len(corpus):,} images to {out} ({to})")
    print_replaced(staging.old)
    if missing:
        more = ", …" if len(missing) > 3 else ""
        typer.echo(f"  without a picture: {len(missing):,} of {len(corpus):,} images ({', '.join(missing[:3])}{more})")
    for name, (count, whole) in dropped.items():
        typer.echo(f"  dropped: {count:,} of {whole:,} {name}")


def _put_in_place(written: Path, out: Path, force: bool) -> Path | None:
    """Move a finished file or folder to `out`; return the new name of a folder that was there."""
    check_free(out, force)
    old = None
    if out.is_dir() and any(out.iterdir()):
        old = _unused(out.with_name(f"{out.name}.old"))
        out.rename(old)
    elif out.is_dir():
        out.rmdir()
    elif written.is_dir() and out.exists():
        out.unlink()
    os.replace(written, out)
    return old


def _unused(path: Path) -> Path:
    attempt = 1
    candidate = path
    while candidate.exists():
        attempt += 1
        candidate = path.with_name(f"{path.name}{attempt}")
    return candidate


@dataclass(frozen=True)
class Record:
    """A result file, if one was asked for; it names its input files with their SHA-256."""

    out: Path | None
    force: bool
    inputs: dict[str, Path]
    parameters: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
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
        box_supervision: BoxSupervision | None = None,
    ) -> None:
        if self.out is None:
            return
        from deixis.metrics.results import Protocol, make_result, save

        recorded: dict[str, str | float] = {**self.parameters, **parameters}
        for name, path in self.inputs.items():
            with path.open("rb") as stream:
                recorded |= {name: path.name, f"{name}_sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        result = make_result(
            Protocol(protocol, ties, {**recorded}),
            figures,
            duration=time.monotonic() - start,
            counts=counts,
            corpus=corpus,
            box_supervision=box_supervision,
        )
        with system_faults(self.out):
            save(result, self.out)
