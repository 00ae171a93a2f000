"""`deixis results`: show result files, the papers' tables, and both side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deixis.cli.options import Force, Json
from deixis.cli.output_files import check_free, system_faults
from deixis.errors import DeixisError

app = typer.Typer(no_args_is_help=True, help="Show result files, and our results beside the papers' tables.")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A result file.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show a result file: what was scored, how, and every metric.

    Example: deixis results show results/two-branch/coco-bi-seed0.image-text-ranking.json
    """
    from deixis.cli.output import console, print_json, print_table
    from deixis.metrics.results import flatten, load

    result = load(file)
    if as_json:
        print_json(result)
        return
    out = console()
    for name, value in _facts(result):
        out.print(f"{name}: {value}", soft_wrap=True)
    figures = [(name, f"{value:.6g}") for name, value in flatten({**result.counts, **result.metrics})]
    print_table(str(file), ["metric", "value"], figures)


@app.command()
def schema() -> None:
    """Print the JSON schema of result files.

    Example: deixis results schema > result.schema.json
    """
    from deixis.metrics.results import json_schema

    sys.stdout.write(json_schema().decode())


@app.command()
def papers(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="List this table's rows: entities-cca/table5.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """List the papers' tables, or the rows of one table. Recipes and result files name rows like this.

    Example: deixis results papers entities-cca/table5
    """
    from deixis.cli.output import print_json
    from deixis.metrics.paper_tables import paper_tables, paper_title

    tables = paper_tables()
    if table and table not in tables:
        raise DeixisError(f"unknown table {table!r}; `deixis results papers` lists them")
    if as_json:
        print_json(tables[table] if table else {name: one.title for name, one in tables.items()})
    elif table:
        for row in tables[table].rows:
            settings = f" ({', '.join(row.settings)})" if row.settings else ""
            typer.echo(f"{table}/{row.id:<30} {row.label}{settings}")
    else:
        paper = ""
        for name, paper_table in tables.items():
            if paper_table.paper != paper:
                paper = paper_table.paper
                typer.echo(f"{paper}: {paper_title(paper)}")
            corpus = f" ({paper_table.corpus})" if paper_table.corpus else ""
            typer.echo(f"  {name:<25} {len(paper_table.rows):>2} rows  {paper_table.title}{corpus}")


@app.command()
def table(
    paper: Annotated[
        str | None, typer.Option(help="Only this paper's tables: entities-cca, two-branch, …", show_default=False)
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Only this table of the paper: 5, or a part such as 2-mscoco.", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All tables of all papers, also those without a result of ours.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of result files.", show_default="results, if it exists"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file, not to the terminal.", show_default=False)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Print our results beside the papers' tables, as Markdown.

    Without --paper or --all: the tables with a result of ours, and the results that belong to no table.

    Example: deixis results table --paper entities-cca --table 5
    """
    import msgspec

    from deixis.files import write_text
    from deixis.metrics.paper_tables import find_tables
    from deixis.metrics.result_tables import as_data, compare, markdown
    from deixis.metrics.results import load_folder

    check_free(out, force)
    if everything and (paper is not None or table is not None):
        raise DeixisError("--all excludes --paper and --table")
    if table is not None and paper is None:
        raise DeixisError("--table needs --paper: tables are numbered within a paper")
    folder = results or Path("results")
    comparison = compare(load_folder(folder) if results or folder.is_dir() else {})
    tables = find_tables(paper, table)
    chosen = everything or paper is not None
    if not chosen:
        tables = [candidate for candidate in tables if comparison.of_table(candidate)]
        if not tables and not comparison.others:
            raise DeixisError(f"no results in {folder}; --all prints the papers' tables without ours")
    others = paper is None
    if as_json:
        data = msgspec.json.encode(as_data(comparison, tables, with_others=others))
        text = msgspec.json.format(data, indent=2).decode() + "\n"
    else:
        text = markdown(comparison, tables, with_others=others)
    if out is None:
        sys.stdout.write(text)
    else:
        with system_faults(out):
            write_text(out, text)


@app.command("pages")
def write_pages(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of the pages.")],
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of result files.")] = Path("results"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write our results beside the papers' tables as Markdown pages, one per paper, with links to the result files.

    Example: deixis results pages --out docs/results --force
    """
    from deixis.cli.output import print_json
    from deixis.files import write_text
    from deixis.metrics.result_pages import pages
    from deixis.metrics.result_tables import compare
    from deixis.metrics.results import load_folder

    check_free(out, force)
    command = f"deixis results pages --out {out.as_posix()}"
    written = pages(compare(load_folder(results)), command, Path(os.path.relpath(results, out)).as_posix())
    with system_faults(out):
        for name, text in written.items():
            write_text(out / name, text)
    if as_json:
        print_json({"out": str(out), "pages": list(written)})
    else:
        typer.echo(f"Wrote {len(written)} pages to {out}")


def _facts(result: Any) -> list[tuple[str, str]]:
    """What a result says about itself besides its metrics."""
    protocol, corpus, boxes = result.protocol, result.corpus, result.box_supervision
    former = result.recipe.formerly if result.recipe else None
    parameters = ", ".join(f"{name} = {value}" for name, value in protocol.parameters.items())
    facts = [
        ("protocol", f"{protocol.name}; {parameters}" if parameters else protocol.name),
        ("ties", protocol.ties),
        ("corpus", f"{corpus.name} {corpus.fingerprint}" if corpus else ""),
        ("split", f"{corpus.split} {corpus.split_hash}" if corpus else ""),
        ("reproduces", ", ".join(result.rows)),
        ("recipe", f"{result.recipe.name} {result.recipe.hash}" if result.recipe else ""),
        ("formerly", f"{former.name} {former.hash}" if former else ""),
        ("seed", "" if result.seed is None else str(result.seed)),
        ("box supervision", boxes.statement if boxes else ""),
        ("upper bound", f"{boxes.upper_bound} at {boxes.regions} regions" if boxes and boxes.regions else ""),
        ("readings", "; ".join(result.readings)),
        ("versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())),
        ("command", result.command),
        ("created", f"{result.created.isoformat()}, after {result.duration:g} s"),
    ]
    return [(name, value) for name, value in facts if value]
