"""`deixis annotate invite`, `suspend`, `reinstate`, `settings`, `rules`, `backup`: running a project with a team."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.options import Force, Json
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from deixis.annotation.workbench import Workbench

ProjectPath = Annotated[
    str, typer.Argument(metavar="PROJECT", help="A project's file, or a database URL.", show_default=False)
]
TaskName = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK", help="link, chain, requirement, drawing, quality or coverage.", show_default="all tasks"
    ),
]
WorkerName = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name.")]
Reason = Annotated[str, typer.Option(help="Why; it is stored with the decision.")]
#: Where a project is served unless `annotate serve` gets another host or port.
LOCAL_ADDRESS = "http://127.0.0.1:8765"


def invite(
    project: ProjectPath,
    role: Annotated[str, typer.Option(help="worker, reviewer or administrator.")] = "worker",
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of invitations.")] = 1,
    worker: Annotated[
        str | None, typer.Option(help="Print a sign-in link for this worker instead.", show_default=False)
    ] = None,
    earlier: Annotated[
        str | None,
        typer.Option("--from", metavar="PROJECT", help="Invite the workers of an earlier project.", show_default=False),
    ] = None,
    answers: Annotated[
        int | None, typer.Option(min=0, help="Earlier answers of the worker, if the project asks for them.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of them that was right.", show_default=False)
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where the project is served.", show_default="the project's address, or where it was last served"
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: name, role, link, last day.")] = False,
    json: Json = False,
) -> None:
    """Print links that each let one new person in, once, within two weeks.

    A worker's sign-in link (--worker) works until another one is made.

    Example: deixis annotate invite project.db --count 20 --csv > links.csv
    """
    from deixis.annotation.accounts import INVITATION_SECONDS, LINK_SECONDS, Accounts
    from deixis.annotation.schema import shown
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        accounts = Accounts(workbench.engine)
        base = (address or workbench.settings.address or workbench.last_served or LOCAL_ADDRESS).rstrip("/")
        if worker is not None:
            worker_number = workbench.worker_number(worker)
            role, seconds = workbench.role_of(worker_number), LINK_SECONDS
            rows = [(worker, role, f"{base}/back#{accounts.sign_in_link(worker_number)}")]
        else:
            seconds = INVITATION_SECONDS
            names = _invited(workbench, role, count, earlier, answers, accuracy)
            rows = [(name, role, f"{base}/join#{accounts.invite(role)}") for name in names]
        if not address and not workbench.settings.address:
            typer.echo(
                f"The project has no public address, so the links begin with {base}. To store one: "
                f"deixis annotate settings {shown(project)} address=https://work.example.org",
                err=True,
            )
    if not as_csv and not json:
        for name, _, link in rows:
            typer.echo(f"{name}: {link}" if earlier else link)
        return
    last_day = datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC).date().isoformat()
    if json:
        print_json([dict(zip(("name", "role", "link", "last_day"), (*row, last_day), strict=True)) for row in rows])
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["name", "role", "link", "last day"])
    writer.writerows([_as_text(name), *row, last_day] for name, *row in rows)


def _as_text(name: str) -> str:
    """A name for a table: workers choose their names, and spreadsheets run what begins like a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name


def _invited(
    workbench: Workbench, role: str, count: int, earlier: str | None, answers: int | None, accuracy: float | None
) -> list[str]:
    """The names of those to invite: of an earlier project, or empty ones. Checks their records."""
    from deixis.annotation import schema
    from deixis.annotation.workers import WorkRecord, check_screen, passes_screen, work_records

    if earlier is None:
        record = None if answers is None or accuracy is None else WorkRecord("", answers, accuracy)
        check_screen(workbench.settings, role, record)
        return [""] * count
    with open_project(earlier) as former, schema.reading(former.engine) as connection:
        records = work_records(connection)
    passed = [record for record in records if passes_screen(workbench.settings, record)]
    for record in records:
        if record not in passed:
            typer.echo(
                f"not invited: {record.name} ({record.answers:,} answers, {record.accuracy:.0%} right)", err=True
            )
    if not passed:
        raise DeixisError(f"{earlier}: has no worker to invite")
    return [record.name for record in passed]


def suspend(
    project: ProjectPath, worker: WorkerName, task: TaskName = None, reason: Reason = "by hand", json: Json = False
) -> None:
    """Suspend a worker from a task, or from all. The worker's answers are discarded and asked again.

    Example: deixis annotate suspend project.db ann drawing --reason "boxes far too large"
    """
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        workbench.suspend(workbench.worker_number(worker), _task(task), reason)
        images = workbench.refresh()
    if json:
        print_json({"worker": worker, "task": task, "images_asked_again": images})
    else:
        typer.echo(f"Images with questions to be asked again: {images:,}")


def reinstate(
    project: ProjectPath, worker: WorkerName, task: TaskName = None, reason: Reason = "by hand", json: Json = False
) -> None:
    """Let a suspended worker begin again in a task, or in all, with a clean record.

    Example: deixis annotate reinstate project.db ann drawing
    """
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        tasks = workbench.reinstate(workbench.worker_number(worker), _task(task), reason)
    if json:
        print_json({"worker": worker, "task": task})
    else:
        typer.echo(f"{worker} may work again: {', '.join(tasks)}" if tasks else f"{worker} is not suspended")


def settings(
    project: Annotated[
        str | None, typer.Argument(metavar="PROJECT", help="A project, to show or change its values.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings to change.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the settings of a project and what they mean, or change some and show these.

    Restart the project's server after a change.

    Example: deixis annotate settings project.db first_items=10 address=https://work.example.org
    """
    from deixis.annotation.project import describe_settings
    from deixis.cli.output import console, print_json

    pairs = []
    if project is None:
        rows = describe_settings()
    else:
        pairs = [change.partition("=") for change in changes or ()]
        if wrong := [name for name, sign, _ in pairs if not sign]:
            raise DeixisError(f"{wrong[0]!r} is not of the form NAME=VALUE")
        with open_project(project) as workbench:
            if pairs:
                workbench.change_settings({name: value for name, _, value in pairs})
            rows = describe_settings(workbench.settings)
    if json:
        print_json([row._asdict() for row in rows])
        return
    from rich.table import Table

    table = Table("setting", "value" if project else "default", "meaning")
    names = {name for name, _, _ in pairs} or {row.name for row in rows}
    for row in (row for row in rows if row.name in names):
        changed = "" if row.value == row.default else f"\n(default: {_shown(row.default) or 'none'})"
        table.add_row(row.name, _shown(row.value) + changed, row.meaning)
    console().print(table)
    if pairs:
        typer.echo("Restart the server of the project")


def rules(
    project: Annotated[
        str | None, typer.Argument(metavar="PROJECT", help="The project that gets the rules.", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="A folder with a file per task.", show_default=False)
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the rules of Deixis here, to be changed.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Give a project its own rules, examples and button labels, in its own language: a text file per task.

    Example: deixis annotate rules --write rules/ && deixis annotate rules project.db rules/
    """
    from deixis.annotation.task_rules import read_rules, rule_files
    from deixis.cli.output import print_json
    from deixis.cli.output_files import check_free, system_faults
    from deixis.files import write_text

    if write is not None:
        for name in rule_files():
            check_free(write / name, force)
        for name, text in rule_files().items():
            with system_faults(write):
                write_text(write / name, text)
        written = [str(write / name) for name in rule_files()]
        if json:
            print_json({"written": written})
        else:
            typer.echo("\n".join(written))
        return
    if project is None or folder is None:
        raise DeixisError("name a project and the folder with its rules, or --write FOLDER")
    new_rules = read_rules(folder)
    with open_project(project) as workbench:
        workbench.use_rules(new_rules)
    if json:
        print_json({"own_rules": list(new_rules)})
    else:
        typer.echo(f"Own rules for {', '.join(new_rules)}; restart the server of the project")


def backup(
    project: ProjectPath,
    copy: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    json: Json = False,
) -> None:
    """Copy a project to a new file, also while it is served. The copy is a project itself.

    Example: deixis annotate backup project.db backup.db
    """
    from deixis.annotation.schema import back_up
    from deixis.cli.output import print_json

    with open_project(project) as workbench:
        back_up(workbench.engine, project, copy)
    if json:
        print_json({"copy": str(copy), "bytes": copy.stat().st_size})


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def open_project(project: str) -> Iterator[Workbench]:
    """An open project. Errors caused by damaged data name it."""
    from deixis.annotation.schema import damage
    from deixis.annotation.workbench import Workbench

    with damage(project), Workbench(project) as workbench:
        yield workbench


def _task(name: str | None) -> str | None:
    from deixis.annotation.workflow_records import TASKS

    if name is not None and name not in TASKS:
        raise DeixisError(f"{name!r} is not a task; choose from {', '.join(TASKS)}")
    return name
