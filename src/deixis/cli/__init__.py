"""The command line. A command imports what it needs when it runs, so that `deixis --help` is fast."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from io import TextIOWrapper
from typing import Annotated, TextIO

import typer
from typer.models import CommandInfo

from deixis.cli import align as align_command
from deixis.cli import annotate as annotate_commands
from deixis.cli import corpus_command as corpus_commands
from deixis.cli import demo as demo_command
from deixis.cli import describe as describe_command
from deixis.cli import evaluate as evaluate_commands
from deixis.cli import explain as explain_commands
from deixis.cli import export_command as export_commands
from deixis.cli import extract as extract_command
from deixis.cli import finetune as finetune_command
from deixis.cli import gallery as gallery_commands
from deixis.cli import ground as ground_command
from deixis.cli import index as index_commands
from deixis.cli import localize as localize_commands
from deixis.cli import map_command as map_command
from deixis.cli import proposals_command as proposals_commands
from deixis.cli import reproduce as reproduce_command
from deixis.cli import results_command as results_commands
from deixis.cli import search_command as search_commands
from deixis.cli import serve as serve_command
from deixis.cli import site as site_command
from deixis.cli import snippets_command as collection_commands
from deixis.cli import text_command as text_commands
from deixis.cli import train as train_commands
from deixis.cli.evaluate_run import RunOrCommand
from deixis.cli.grouped_help import ANNOTATION, DATA, PHOTOS, RESEARCH, GroupedHelp
from deixis.cli.output import Interrupted
from deixis.errors import DeixisError, printable

#: The exit code of a program that Ctrl-C ended.
INTERRUPTED = 130

app = typer.Typer(
    name="deixis",
    cls=GroupedHelp,
    help="Match pictures and words: search, ground and describe your photos; train and evaluate the models of five "
    "papers; annotate datasets.",
    epilog="Exit codes: 0 success; 1 nothing found, or a problem found; 2 bad input; 130 interrupted. "
    'Start with: deixis index ~/Pictures, then deixis search "two dogs playing in the snow".',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich help would take a third of the start-up time.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: By heading, the commands of the top level.
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    PHOTOS: (
        index_commands.index,
        search_commands.search,
        search_commands.similar,
        search_commands.duplicates,
        ground_command.ground,
        describe_command.describe,
        serve_command.serve,
        finetune_command.finetune,
        index_commands.status,
        search_commands.doctor,
        demo_command.demo,
    ),
    RESEARCH: (
        train_commands.train,
        train_commands.recipes,
        reproduce_command.reproduce,
        align_command.align,
        explain_commands.concepts,
        explain_commands.explain,
    ),
    DATA: (extract_command.extract,),
}
figures_app = typer.Typer(
    help="Write pages and pictures of what trained models find: galleries, alignment sites, maps.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
figures_app.command()(gallery_commands.gallery)
figures_app.command()(gallery_commands.correspondences)
figures_app.command()(site_command.site)
figures_app.command()(collection_commands.snippets)
figures_app.command("map")(map_command.space_map)
figures_app.add_typer(collection_commands.app, name="vocabulary", cls=GroupedHelp)

for heading, commands in COMMANDS.items():
    for command in commands:
        kind = search_commands.ExcludingCommand if command is search_commands.search else None
        app.command(rich_help_panel=heading, cls=kind)(command)
app.add_typer(evaluate_commands.app, name="evaluate", cls=RunOrCommand, rich_help_panel=RESEARCH)
for name, group in (
    ("runs", train_commands.runs_app),
    ("results", results_commands.app),
    ("localize", localize_commands.app),
    ("figures", figures_app),
    ("export", export_commands.app),
):
    app.add_typer(group, name=name, cls=GroupedHelp, rich_help_panel=RESEARCH)
app.add_typer(corpus_commands.app, name="corpus", cls=GroupedHelp, rich_help_panel=DATA)
app.add_typer(proposals_commands.app, name="proposals", cls=GroupedHelp, rich_help_panel=DATA)
app.add_typer(text_commands.app, name="text", cls=GroupedHelp, rich_help_panel=DATA)
app.add_typer(annotate_commands.app, name="annotate", cls=GroupedHelp, rich_help_panel=ANNOTATION)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from deixis import __version__

        typer.echo(f"deixis {__version__}")
        raise typer.Exit


#: Characters of an error message.
LONGEST_LINE = 1000
#: Packages that the photo commands do without, and the extras that they come with.
EXTRAS = {
    **dict.fromkeys(("onnx", "scipy", "sklearn", "torch"), "research"),
    "sqlalchemy": "annotation",
}


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a `UserWarning` as one line, and warnings for programmers with their place in the code."""
    whole = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(f"deixis: {printable(str(message))}\n" if category is UserWarning else whole)


def only_asked(program: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    """The program with the one command that is called: typer reads the options of every command that it has."""
    name = arguments[0] if arguments else ""
    commands = [command for command in program.registered_commands if _name(command) == name]
    groups = [group for group in program.registered_groups if group.name == name]
    if not commands and not groups:
        return program
    called = copy(program)
    called.registered_commands, called.registered_groups = commands, groups
    return called


def _name(command: CommandInfo) -> str:
    return command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")


def main() -> None:
    """Run the program. Errors that the user can fix are one line on standard error and exit code 2."""
    warnings.showwarning = _warn
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # Words of the command line may have bytes that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        only_asked(app, sys.argv[1:])()
    except DeixisError as fault:
        line = printable(" ".join(str(fault).split()))
        # Some quote what a stranger wrote.
        shown = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …"
        sys.stderr.write(f"deixis: {shown}\n")
        sys.exit(2)
    except ModuleNotFoundError as fault:
        package = (fault.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        hint = " (without a GPU: see docs/install.md)" if extra == "research" else ""
        sys.stderr.write(f"deixis: this needs {package}, which is not installed: pip install 'deixis[{extra}]'{hint}\n")
        sys.exit(2)
    except Interrupted as end:
        sys.stderr.write("deixis: interrupted; run the same command again to continue\n")
        if end.at_once:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # typer turns Ctrl-C into this.
        if end.code == INTERRUPTED:
            sys.stderr.write("deixis: interrupted\n")
        raise
    except BrokenPipeError:
        # The reader of our output is gone (`deixis … | head`): not an error worth a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
