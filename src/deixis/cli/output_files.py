"""How commands write: never over what is there unless told to, and whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deixis.cli.output import busy, print_json
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.corpus import Corpus


def check_free(out: Path, force: bool) -> None:
    """Refuse to touch what is there already and not empty; called before the long work and again before the end."""
    with system_faults(out):
        occupied = any(out.iterdir()) if out.is_dir() else out.exists() and out.stat().st_size > 0
    if occupied and not force:
        raise DeixisError(f"{out}: is there already and not empty; give --force to replace it")


def drawing_targets(images: list[Path], out: Path | None, force: bool) -> list[Path | None]:
    """Where the drawing of each picture goes."""
    if out is None:
        return [None] * len(images)
    if len(images) == 1:
        if out.suffix.lower() != ".png":
            raise DeixisError(f"{out}: drawings are PNG files; choose a name that ends in .png")
        targets = [out]
    elif out.suffix.lower() == ".png":
        raise DeixisError(f"{out}: drawings of several pictures go into a folder; give it another name")
    else:
        targets = [out / f"{image.stem}.png" for image in images]
        if len(set(targets)) < len(targets):
            raise DeixisError("two of the pictures have the same name, and so would their drawings")
    for target in targets:
        check_free(target, force)
    return [*targets]


@contextmanager
def system_faults(path: Path) -> Iterator[None]:
    """What the system refuses (no permission, no space) is told in one line, like a fault in the input."""
    try:
        yield
    except OSError as fault:
        raise DeixisError(f"{path}: cannot be written: {fault.strerror or fault}") from None


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
    """Write a corpus and tell what the format drops; `counts` are printed first, or stand in the JSON.

    All is written beside OUT and moved into place when it is whole, so that a fault leaves OUT as it was.
    """
    from deixis.corpus import write_corpus
    from deixis.corpus.conversion_losses import losses
    from deixis.corpus.formats import get_format

    dropped = losses(corpus, get_format(to).keep(corpus))
    with system_faults(out), busy(f"Writing {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name[:40]}.", suffix=".part", dir=out.parent))
        try:
            missing = write_corpus(corpus, staging / out.name, format=to, pictures=pictures)
            if pictures and not (staging / out.name).is_dir():
                raise DeixisError(f"{out}: pictures can be written into a folder only, not with a single file")
            old = put_in_place(staging / out.name, out, force)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    if json:
        lost = {name: {"lost": count, "of": whole} for name, (count, whole) in dropped.items()}
        told = {"out": str(out), "format": to, "images": len(corpus), "dropped": lost, "without_picture": missing}
        print_json({**told, **(counts or {})})
        return
    for name, count in (counts or {}).items():
        typer.echo(f"{count:>9,}  {name.replace('_', ' ')}")
    typer.echo(f"Wrote {len(corpus):,} images to {out} ({to})")
    if old is not None:
        typer.echo(f"What was there is now {old}")
    if missing:
        more = ", …" if len(missing) > 3 else ""
        typer.echo(f"  without a picture: {len(missing):,} of {len(corpus):,} images ({', '.join(missing[:3])}{more})")
    for name, (count, whole) in dropped.items():
        typer.echo(f"  dropped: {count:,} of {whole:,} {name}")


def put_in_place(written: Path, out: Path, force: bool) -> Path | None:
    """Put a finished file or folder in its place; a folder that was there is renamed, and its new name returned."""
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
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}{number}")
    return candidate
