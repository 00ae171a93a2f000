"""The help lists every command once, under a heading, with its whole summary."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from deixis.cli import app, only_asked
from deixis.cli.grouped_help import GROUPS, MOVED, OTHERS


def help_of(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "120"}).output


def test_commands_are_listed_under_their_headings() -> None:
    text = help_of()
    headings = [text.index(f"{group}:\n") for group in GROUPS if group != OTHERS]
    assert headings == sorted(headings)
    assert f"{OTHERS}:\n" not in text, "a command of the top level has no heading"
    photos, research = text.index("Your photos:"), text.index("Research:")
    assert photos < text.index("\n  search ") < research < text.index("\n  train ")


def test_photo_commands_that_need_the_research_extra_say_so() -> None:
    photos = help_of().partition("Your photos:")[2].partition("Research:")[0]
    entries = [" ".join(entry.split()) for entry in re.split(r"\n  (?=\w)", photos) if entry.strip()]
    summaries = dict(entry.split(" ", 1) for entry in entries)
    # `concepts` and `explain` are research.
    assert {"concepts", "explain"}.isdisjoint(summaries)
    said = {name for name, summary in summaries.items() if summary.endswith("(needs the research extra).")}
    assert said == {"finetune", "demo"}


@pytest.mark.parametrize("group", ["", "figures", "corpus", "evaluate", "annotate"])
def test_summaries_are_whole(group: str) -> None:
    text = help_of(*group.split())
    assert "..." not in text.partition("[ARGS]...")[2]


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_command_that_moved_says_where_to(name: str) -> None:
    done = CliRunner().invoke(app, [name, "x"])
    assert done.exit_code == 2
    assert f"deixis {MOVED[name]}" in done.output
    assert CliRunner().invoke(app, [*MOVED[name].split(), "--help"]).exit_code == 0


def test_a_command_that_is_called_is_read_alone_and_has_the_same_help() -> None:
    whole = typer.main.get_command(app)
    names = whole.list_commands(None)  # type: ignore[attr-defined]
    assert "search" in names
    assert "corpus" in names
    for name in names:
        alone = only_asked(app, [name, "--help"])
        assert typer.main.get_command(alone).list_commands(None) == [name]  # type: ignore[attr-defined]
        assert CliRunner().invoke(alone, [name, "--help"]).output == CliRunner().invoke(app, [name, "--help"]).output
    for arguments in ([], ["--help"], ["serach"]):
        assert only_asked(app, arguments) is app


@pytest.mark.parametrize("command", ["train", "evaluate run", "figures site", "localize compare"])
def test_the_corpus_of_a_recipe_is_the_default_if_it_can_be_opened(command: str) -> None:
    """A recipe that names `flickr8k-entities` does not say where that is, nor does its run."""
    assert "the recipe's, if it is `scenes` or a path" in " ".join(help_of(*command.split()).split())
