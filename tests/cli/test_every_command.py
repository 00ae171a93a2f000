"""What all commands share: examples, --json, --force, exit codes, and options that mean the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from deixis.cli import app, main

#: Commands that run until Ctrl-C.
SERVERS = {"serve", "annotate serve"}
#: It prints nothing but JSON.
WITHOUT_JSON = {"results schema"}
#: Commands whose output folder is continued or added to, never replaced.
CONTINUES = {"train", "extract", "reproduce", "index"}
#: Options that name an output.
OUTPUTS = {"out", "png", "chart", "why"}


def _walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_walk(typer.main.get_command(app)))


def _options(command: str) -> dict[str, Any]:
    return {name: option for option in COMMANDS[command].params for name in option.opts if name.startswith("--")}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_an_example_that_names_the_command(command: str) -> None:
    text = COMMANDS[command].help
    assert "Example" in text
    named = f"deixis {command.removesuffix(' run')}" if command == "evaluate run" else f"deixis {command}"
    assert named in text.partition("Example")[2]


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - SERVERS - WITHOUT_JSON))
def test_results_are_printed_as_json_on_request(command: str) -> None:
    assert "--json" in _options(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_mean_the_same_everywhere(command: str) -> None:
    options = _options(command)
    if "--device" in options:
        assert options["--device"].default == "auto"
    if "--split" in options and not options["--split"].multiple and command != "annotate links":
        option = options["--split"]
        assert option.default == "test" or "test" in str(option.show_default)
    for name in {"--index", "--json", "--force", "--features", "--pictures-in"} & options.keys():
        assert options[name].help


class _Program:
    """The program as a person runs it: exit code, standard output and standard error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["deixis", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        return code if isinstance(code, int) else 0, *self.capsys.readouterr()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> _Program:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEIXIS_INDEX", str(tmp_path / "index"))
    return _Program(monkeypatch, capsys)


def _required(command: str) -> list[str]:
    """Arguments for everything that is required; whatever is a path does not exist."""
    given: list[str] = []
    for parameter in COMMANDS[command].params:
        if not parameter.required:
            continue
        value = {"out": "absent/out.html" if command == "figures map" else "absent/out", "tables": "absent/table1"}.get(
            parameter.name, "absent/input"
        )
        if parameter.name == "corpus" and command == "reproduce":
            value = "absent=absent/input"
        if parameter.name == "features":
            value = "image"
        given += [value] if parameter.param_type_name == "argument" else [parameter.opts[-1], value]
    return given


#: Commands that need no input.
NEEDS_NOTHING = {"demo", "recipes", "results schema", "results papers", "results table", "corpus formats"}
#: A sentence is never bad input.
TAKES_ANYTHING = {"text parse"}
#: Finds that there is no index, which is a problem found, not bad input.
FINDS_PROBLEMS = {"doctor"}
BAD = {
    "annotate settings": ["absent.db"],
    "demo": ["--out", str(Path(__file__) / "demo")],
    "recipes": ["absent/recipe"],
    "results schema": ["--absent"],
    "results papers": ["absent/table"],
    "results table": ["--results", "absent"],
    "corpus formats": ["--absent"],
    "search": ["a dog"],
}


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - TAKES_ANYTHING - FINDS_PROBLEMS))
def test_bad_input_is_one_line_and_exit_code_2(command: str, program: _Program) -> None:
    code, out, error = program(*command.split(), *BAD.get(command, _required(command)))
    assert (code, out) == (2, ""), error
    if error.startswith("Usage:"):
        return
    [line] = [line for line in error.splitlines() if line.startswith("deixis: ")]
    assert "Traceback" not in error
    assert len(line) < 500


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - CONTINUES))
def test_nothing_is_replaced_without_force(command: str, program: _Program, tmp_path: Path) -> None:
    outputs = [parameter for parameter in COMMANDS[command].params if parameter.name in OUTPUTS]
    for parameter in outputs:
        assert "--force" in _options(command), f"{command} writes {parameter.name} without --force"
        _check_not_replaced(command, parameter, program, tmp_path)


def _check_not_replaced(command: str, parameter: Any, program: _Program, folder: Path) -> None:
    ending = {"PNG": ".png", "HTML": ".html"}.get(parameter.metavar or "", ".safetensors")
    existing = folder / f"existing{ending}"
    existing.write_bytes(b"mine")
    given = _required(command)
    if parameter.required:
        given = [str(existing) if value.startswith("absent/out") else value for value in given]
    else:
        given += [parameter.opts[-1], str(existing)]
    code, out, error = program(*command.split(), *given)
    assert (code, out) == (2, ""), error
    assert f"{existing}: already exists; give --force to replace it" in error
    assert existing.read_bytes() == b"mine"
