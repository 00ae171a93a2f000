"""`deixis annotate`: make a project, watch it, review and export it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.annotate_serve import serve
from deixis.cli.annotate_simulate import SettingsOption, links, read_settings, simulate
from deixis.cli.annotate_team import ProjectPath, backup, invite, open_project, reinstate, rules, settings, suspend
from deixis.cli.options import NO_CAPTIONS, Force, Json, Limit, PicturesIn, Seed, Splits
from deixis.errors import DeixisError, InputError, printable

if TYPE_CHECKING:
    from deixis.annotation.progress import Progress
    from deixis.annotation.workbench import Workbench
    from deixis.corpus import Corpus, Image

app = typer.Typer(
    no_args_is_help=True, help="Annotate captions with chains and boxes: the Flickr30k Entities workflow."
)


@app.callback()
def _needs() -> None:
    from importlib.util import find_spec

    if find_spec("sqlalchemy") is None:
        raise DeixisError("annotation projects need SQLAlchemy: pip install 'deixis[annotation]'")


class StartFrom(StrEnum):
    CAPTIONS = "captions"
    MENTIONS = "mentions"
    CHAINS = "chains"
    BOXES = "boxes"


@app.command()
def init(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="A corpus with captions.", show_default=False)],
    project: ProjectPath,
    start: Annotated[
        StartFrom, typer.Option(help="What to take from the corpus; workers verify chains and boxes it has.")
    ] = StartFrom.CAPTIONS,
    known: Annotated[
        str | None,
        typer.Option(help="An annotated corpus, whose answers test and check workers.", show_default=False),
    ] = None,
    known_each: Annotated[int, typer.Option(min=1, help="Questions with known answers, per task.")] = 400,
    split: Splits = None,
    limit: Limit = None,
    solo: Annotated[bool, typer.Option(help="One person does it all: one opinion settles every question.")] = False,
    settings_file: SettingsOption = None,
    rules_in: Annotated[
        Path | None,
        typer.Option("--rules", metavar="FOLDER", help="Your own rules: see `annotate rules`.", show_default=False),
    ] = None,
    address: Annotated[str | None, typer.Option(help="The public address of the pages.", show_default=False)] = None,
    pictures_in: PicturesIn = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make a project from a corpus with captions: find its mentions and open the first questions.

    Example: deixis annotate init pictures/ project.db
    """
    from random import Random

    from msgspec.structs import replace

    from deixis.annotation.project import changed_settings, create_project
    from deixis.annotation.schema import shown
    from deixis.annotation.task_rules import read_rules
    from deixis.annotation.workbench import Workbench
    from deixis.cli.output import print_json, progress_bar
    from deixis.corpus import open_corpus
    from deixis.corpus.combine import cut

    chosen = read_settings(settings_file)
    if solo:
        chosen = replace(chosen, solo=True)
    if address is not None:
        chosen = changed_settings(chosen, {"address": address})
    own_rules = None if rules_in is None else read_rules(rules_in)
    images = cut(open_corpus(corpus, pictures=pictures_in), split or (), None, limit, None)
    if len(images) and not any(image.captions for image in images):
        raise InputError(corpus, NO_CAPTIONS)
    known_corpus = None if known is None else open_corpus(known)
    if known_corpus is not None:
        images = _without_known(images, known_corpus, corpus, str(known))
    places = {"corpus": _lasting(corpus), "pictures": _lasting(pictures_in), "known_corpus": _lasting(known)}
    with progress_bar("Finding mentions") as progress:
        questions = create_project(
            project,
            images,
            start=start.value,
            known=known_corpus,
            known_each=known_each,
            settings=chosen,
            chance=Random(seed),
            places=places,
            progress=progress,
        )
    with Workbench(project) as workbench:
        if own_rules is not None:
            workbench.use_rules(own_rules)
        progress_made = workbench.progress()
    if json:
        print_json(progress_made)
        return
    _print_progress(progress_made)
    if questions:
        counts = ", ".join(f"{task} {count:,}" for task, count in questions.items())
        typer.echo(f"Questions with known answers, at most {known_each:,} per task: {counts}")
    typer.echo(f"Now open it to its workers: deixis annotate serve {shown(project)}")


@app.command()
def status(project: ProjectPath, json: Json = False) -> None:
    """Show how far a project is and what it took.

    Example: deixis annotate status project.db
    """
    from msgspec.structs import asdict

    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        progress, agreement = workbench.progress(), workbench.agreement()
    if json:
        print_json({**asdict(progress), "agreement": agreement})
        return
    _print_progress(progress)
    for task, share in agreement.items():
        typer.echo(f"workers agree on {share:.1f} % of the questions of box {task} that several were asked")


app.command()(serve)
app.command()(invite)


@app.command()
def workers(project: ProjectPath, json: Json = False) -> None:
    """List the workers: what they answered, how well, and their standing in each task.

    Example: deixis annotate workers project.db
    """
    from deixis.annotation.workflow_records import TASKS
    from deixis.cli.output import print_json, print_table

    with open_project(project) as workbench:
        reports, decisions = workbench.workers(), workbench.decisions()
    if json:
        print_json({"workers": reports, "decisions": decisions})
        return
    rows = []
    for report in reports:
        cells = [
            f"{report.standings[task]} ({report.judgments.get(task, 0)}"
            + (f", {100 * report.accuracy[task]:.0f} %)" if task in report.accuracy else ")")
            for task in TASKS
        ]
        rows.append([report.name, report.role, *cells])
    print_table("Standing (answers, share right where known)", ["worker", "role", *TASKS], rows)


for command in (suspend, reinstate, settings, rules, backup):
    app.command()(command)


@app.command()
def review(
    project: ProjectPath,
    limit: Annotated[int, typer.Option(min=1, help="Entries at most.")] = 50,
    json: Json = False,
) -> None:
    """List what waits for a reviewer: chains without agreement, comments, questions that no worker is left to answer.

    Example: deixis annotate review project.db
    """
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        waiting = workbench.review_queue(limit)
    if json:
        print_json(waiting)
        return
    for entry in waiting:
        typer.echo(printable(f"{entry.image}  {entry.summary}"))
    if not waiting:
        typer.echo("Nothing waits for a reviewer.")


@app.command()
def export(
    project: ProjectPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where it goes: a folder, or a file.", show_default=False)],
    to: Annotated[str, typer.Option(help="The format; `deixis corpus formats` lists them.")] = "flickr30k-entities",
    finished_only: Annotated[bool, typer.Option(help="Leave out images with open questions.")] = False,
    pictures: Annotated[bool, typer.Option(help="Copy the pictures too.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the annotations as a corpus. Overlapping boxes are merged, then chains with equal boxes.

    Example: deixis annotate export project.db annotated/
    """
    from deixis.cli.output_files import check_free, write_out

    check_free(out, force)
    with open_project(project) as workbench:
        exported = workbench.export(finished_only=finished_only)
        if finished_only and not len(exported.corpus):
            raise DeixisError("no image is finished yet; `deixis annotate status` shows what is open")
        corpus = _with_pictures(workbench, exported.corpus) if pictures else exported.corpus
    counts = {"images_with_open_questions": exported.unfinished}
    write_out(corpus, out, to=to, pictures=pictures, force=force, json=json, counts=counts)


@app.command()
def stats(
    project: ProjectPath,
    chart: Annotated[Path | None, typer.Option(help="Also draw Fig. 2 here (.svg).", show_default=False)] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Show the counts of Table 1 of the Entities paper, for what was annotated so far.

    Example: deixis annotate stats project.db --chart figure2.svg
    """
    from deixis.annotation.charts import bar_chart
    from deixis.cli.output import print_json, print_table
    from deixis.cli.output_files import check_free, system_faults
    from deixis.corpus.statistics import corpus_statistics
    from deixis.files import write_text

    check_free(chart, force)
    with open_project(project) as workbench:
        counts = corpus_statistics(workbench.export().corpus)
    if chart is not None:
        rows = counts.by_type.values()
        series = {
            "chains": [float(row.chains) for row in rows],
            "mentions": [float(row.mentions) for row in rows],
            "boxes": [float(row.linked_boxes) for row in rows],
        }
        with system_faults(chart):
            write_text(chart, bar_chart("Chains, mentions and boxes by type", list(counts.by_type), series))
    if json:
        print_json(counts)
        return
    cells = [
        [name, f"{row.chains:,}", f"{row.mentions_per_chain:.2f}", f"{row.boxes_per_chain:.2f}"]
        for name, row in counts.by_type.items()
    ]
    cells.append(["total", f"{counts.chains:,}", f"{counts.mentions_per_chain:.2f}", f"{counts.boxes_per_chain:.2f}"])
    print_table("Chains, with mentions and boxes per chain", ["type", "chains", "mentions", "boxes"], cells)


@app.command()
def check(project: ProjectPath, json: Json = False) -> None:
    """Rebuild every state from the log of answers and compare it with the tables.

    Example: deixis annotate check project.db
    """
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        differences = workbench.check()
    if json:
        print_json({"differences": differences})
    else:
        typer.echo("\n".join(differences) or "the tables agree with the log")
    if differences:
        raise typer.Exit(1)


app.command()(simulate)
app.command()(links)


def _without_known(images: Corpus, known: Corpus, corpus: str, known_name: str) -> Corpus:
    """The images that the known corpus does not have: workers are not tested with what they annotate."""

    def captions(image: Image) -> list[str]:
        return ["".join(caption.tokens).lower() for caption in image.captions]

    known_captions = {image.id: captions(image) for image in known}
    new = images.where(lambda image: captions(image) != known_captions.get(image.id))
    if len(images) and not len(new):
        raise DeixisError(f"{known_name} has all images of {corpus}; known answers must be of other images")
    if len(new) < len(images):
        typer.echo(f"Left out {len(images) - len(new):,} images that {known_name} has, too", err=True)
    return new


def _lasting(path: str | Path | None) -> str:
    """A path that leads to the same place from any folder; a name that is no path (`scenes`) stays."""
    if path is None:
        return ""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


def _with_pictures(workbench: Workbench, corpus: Corpus) -> Corpus:
    from deixis.annotation.project import project_pictures
    from deixis.corpus import Corpus as CorpusRecord

    return CorpusRecord(corpus, name=corpus.name, pictures=project_pictures(workbench.engine))


def _print_progress(progress: Progress) -> None:
    from deixis.cli.output import print_table

    rows = [
        [name, f"{task.open:,}", f"{task.judgments:,}", f"{task.voided:,}", f"{task.verification:,}"]
        for name, task in progress.tasks.items()
    ]
    print_table("Questions", ["task", "open", "answered", "discarded", "verification"], rows)
    typer.echo(f"{progress.finished:,} of {progress.images:,} images are finished; {progress.reviews:,} reviews wait")
    if not progress.links_asked:
        return
    typer.echo(
        f"{progress.links_asked:,} link questions answered for {progress.mentions:,} mentions: all pairs would be "
        f"{progress.mentions_squared:,} (|M|²), every mention with every chain {progress.mentions_times_chains:,}"
    )
