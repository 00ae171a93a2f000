"""The command line: one verb a command. Nothing heavy is imported before the command that needs it runs."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

from deixis.cli import align as align_command
from deixis.cli import annotate as annotate_commands
from deixis.cli import corpus as corpus_commands
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
from deixis.cli import search as search_commands
from deixis.cli import serve as serve_command
from deixis.cli import site as site_command
from deixis.cli import snippets_command as collection_commands
from deixis.cli import text as text_commands
from deixis.cli import train as train_commands
from deixis.cli.output import Interrupted
from deixis.errors import DeixisError

#: The exit code of a program that Ctrl-C ended.
INTERRUPTED = 130

app = typer.Typer(
    name="deixis",
    help="Match pictures and words: search, ground and describe pictures; train and score the models of five papers.",
    epilog="Start with: deixis demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help in frames would cost a third of the time that a start may take.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(align_command.align)
app.command()(gallery_commands.correspondences)
app.command()(demo_command.demo)
app.command()(describe_command.describe)
app.command()(search_commands.doctor)
app.command()(explain_commands.concepts)
app.command()(explain_commands.explain)
app.command()(extract_command.extract)
app.add_typer(annotate_commands.app, name="annotate")
app.add_typer(corpus_commands.app, name="corpus")
app.add_typer(evaluate_commands.app, name="evaluate")
app.add_typer(export_commands.app, name="export")
app.command()(finetune_command.finetune)
app.command()(gallery_commands.gallery)
app.command()(ground_command.ground)
app.command()(index_commands.index)
app.add_typer(localize_commands.app, name="localize")
app.command("map")(map_command.space_map)
app.add_typer(proposals_commands.app, name="proposals")
app.command()(reproduce_command.reproduce)
app.add_typer(results_commands.app, name="results")
app.command()(search_commands.search)
app.command()(serve_command.serve)
app.command()(search_commands.similar)
app.command()(site_command.site)
app.command()(collection_commands.snippets)
app.command()(index_commands.status)
app.add_typer(text_commands.app, name="text")
app.command()(train_commands.train)
app.add_typer(train_commands.runs_app, name="runs")
app.command()(train_commands.recipes)
app.add_typer(collection_commands.app, name="vocabulary")


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        from deixis import __version__

        typer.echo(f"deixis {__version__}")
        raise typer.Exit


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What is said to a person is a line; what is said to programmers tells its place."""
    place = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(f"deixis: {message}\n" if category is UserWarning else place)


def main() -> None:
    """Run the program. Errors that a person can mend are one line on standard error and exit code 2."""
    warnings.showwarning = _warn
    try:
        app()
    except DeixisError as fault:
        line = " ".join(str(fault).split())
        sys.stderr.write(f"deixis: {line}\n")
        sys.exit(2)
    except Interrupted as end:
        sys.stderr.write("deixis: interrupted; run the same again to go on\n")
        if end.at_once:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # What typer makes of Ctrl-C.
        if end.code == INTERRUPTED:
            sys.stderr.write("deixis: interrupted\n")
        raise
    except BrokenPipeError:
        # The reader of our output went away (`deixis … | head`): not an error, and nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
