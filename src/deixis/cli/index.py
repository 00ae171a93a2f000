"""`deixis index` and `deixis status`: index folders of pictures, and show what an index holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Index, Json, ModelDevice, ModelName
from deixis.errors import printable

if TYPE_CHECKING:
    from deixis.search.indexing import IndexReport

#: Kinds of skipped files that are listed by their suffix.
SKIPPED_SHOWN = 8


def index(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Folders with pictures.", show_default="the indexed ones"),
    ] = None,
    index_folder: Index = None,
    model: ModelName = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove pictures of folders that are missing or empty.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="How vectors are searched: exact, approximate, milvus://HOST:PORT, or FILE.db (milvus-lite).",
            show_default="unchanged; for a new index exact up to a million pictures, else approximate",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Skip files and folders, such as '*.gif', thumbnails or 'Trash/*'; may be repeated; '' skips nothing.",
            show_default="unchanged",
        ),
    ] = None,
    device: ModelDevice = "auto",
    as_json: Json = False,
) -> None:
    """Index the pictures in folders. Run it again to pick up new, changed and deleted files.

    Pictures are identified by the SHA-256 of their contents, so renamed or copied files are not encoded again. Links
    are not followed; hidden files and folders are skipped. Folders and patterns are remembered. An interrupted run
    continues where it stopped. With another --model a second index is built; the first one serves until the second is
    complete.

    Example: deixis index ~/Pictures /media/camera --model onnx:my-model
    """
    from deixis.adapters.bundles import DEFAULT
    from deixis.cli.output import busy, print_json, progress_bar, resumable
    from deixis.loading import absolute_name, load_search_model
    from deixis.search.generations import default_index, model_name_of
    from deixis.search.indexing import index_folders

    where = index_folder or default_index()
    name = absolute_name(model or model_name_of(where) or DEFAULT)
    with busy("Loading the model"):
        opened = load_search_model(name, device)
    with resumable(at_once=True), progress_bar("Indexing", "pictures") as progress:
        report = index_folders(
            where, folders or [], opened, name, prune=prune, store=store, exclude=exclude, progress=progress
        )
    if as_json:
        print_json(report)
    else:
        _print(report, prune)


def _print(report: IndexReport, pruned: bool) -> None:
    from deixis.search.status import counted

    names = ("added", "renamed", "changed", "removed")
    done = ", ".join(f"{count:,} {name}" for name in names if (count := getattr(report, name))) or "nothing new"
    held = f"{counted(report.pictures, 'picture')} in {counted(report.files, 'file')}"
    typer.echo(f"{held}; {done}; {report.seconds:.1f} s")
    if not report.pictures:
        typer.echo("No pictures were found, so there is nothing to search yet.")
    if report.skipped:
        typer.echo(f"Skipped for their type: {printable(_skipped(report.skipped))}")
    if report.links:
        typer.echo(f"{counted(report.links, 'link')} not followed")
    for folder in report.absent:
        outcome = "removed from the index" if pruned else "its pictures stay in the index (--prune removes them)"
        typer.echo(f"{printable(folder)}: is missing or empty; {outcome}")
    if report.unreadable:
        typer.echo(f"{counted(len(report.unreadable), 'file')} cannot be read:")
        for unreadable in report.unreadable:
            typer.echo(f"  {printable(unreadable.path)}: {printable(unreadable.reason)}")


def _skipped(counts: dict[str, int]) -> str:
    """Files by suffix: first those that an extra would read, then the most frequent others."""
    from deixis.vision.picture_formats import RAW_REMEDY, RAW_SUFFIXES

    raw = {suffix: count for suffix, count in counts.items() if suffix in RAW_SUFFIXES}
    others = {suffix: count for suffix, count in counts.items() if suffix not in RAW_SUFFIXES}
    parts = [f"{count:,} {suffix} ({RAW_REMEDY})" for suffix, count in raw.items()]
    parts += [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in list(others.items())[:SKIPPED_SHOWN]]
    rest = sum(list(others.values())[SKIPPED_SHOWN:])
    return ", ".join(parts + ([f"{rest:,} others"] if rest else []))


def status(index: Index = None, as_json: Json = False) -> None:
    """Show what an index holds: its folders, pictures and model.

    Example: deixis status --json
    """
    from deixis.cli.output import print_json
    from deixis.search.generations import default_index
    from deixis.search.status import index_status

    current = index_status(index or default_index())
    if as_json:
        print_json(current)
        return
    lines = [
        ("pictures", f"{current.pictures:,}"),
        ("files", f"{current.files:,}"),
        ("cannot be read", f"{current.unreadable:,}"),
        ("model", f"{current.model}, {current.weights_sha256[:12]}"),
        ("per picture", f"{current.dim} numbers" + (f" and {current.cells} cells" if current.cells else "")),
        ("opened as", current.model_name),
        ("on disk", f"{current.bytes / 1e6:.1f} MB"),
        ("searched in", current.store or "this process"),
        *(("folder", printable(root)) for root in current.folders),
        *(("skipped", printable(pattern)) for pattern in current.exclude),
    ]
    if current.building:
        lines.append(("being built", current.building))
    typer.echo(current.index)
    for name, value in lines:
        typer.echo(f"{name:>15}  {value}")
