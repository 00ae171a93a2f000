"""The documents are true: links lead to files, commands exist, and Python snippets run."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import deixis
from deixis.cli import app
from deixis.metrics.paper_tables import PAPERS, paper_tables
from deixis.training.recipe import load_recipe, package_recipes

ROOT = Path(deixis.__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: The program; building it anew for every example took most of the time of these tests.
COMMAND: Any = typer.main.get_command(app)

pytestmark = pytest.mark.skipif(not DOCUMENTS, reason="the documents are in the checkout")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text) + re.findall(r'<img src="([^"]+)"', text)
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_heading_leads_to_one(document: Path) -> None:
    missing = []
    for link, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text(encoding="utf-8")):
        target = document.parent / link if link else document
        if target.suffix == ".md" and heading not in _anchors(target.read_text(encoding="utf-8")):
            missing.append(f"{link}#{heading}")
    assert missing == []


def _anchors(text: str) -> set[str]:
    """The names of a page's headings in addresses, on the site and in the repository."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_the_site_is_built_so_that_dead_links_fail() -> None:
    """MkDocs counts the warnings of --strict only without --quiet."""
    [command] = re.findall(r"(?m)^\t.*mkdocs build.*$", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert "--strict" in command
    assert "--quiet" not in command
    assert "make docs" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", [*DOCUMENTS, *ROOT.glob("src/**/*.md")], ids=lambda path: path.name)
def test_a_page_has_at_most_2500_words(document: Path) -> None:
    """Words as a reader sees them: code and figures count; targets of links, bars and rules of tables do not.

    Of a page of the API, the docstrings count that the site shows on it.
    """
    text = document.read_text(encoding="utf-8")
    docstrings = [_docstrings(name) for name in re.findall(r"(?m)^::: (\S+)$", text)]
    seen = re.sub(r"\]\([^)]*\)", "]", " ".join([text, *docstrings]))
    assert sum(bool(re.search(r"\w", word)) for word in seen.split()) <= 2500


def _docstrings(name: str) -> str:
    """The docstrings of a public name and of its public members."""
    module, _, last = name.rpartition(".")
    value = getattr(import_module(module), last)
    members = [member for key, member in vars(value).items() if key[0] != "_"] if isinstance(value, type) else []
    return " ".join(inspect.getdoc(member) or "" for member in (value, *members))


#: Words of a private dialect, and what to write instead.
DIALECT = {
    r"\btold\b": "reported",
    r"\btells?\b": "say, show, distinguish",
    r"\bprocessors?\b": "CPU",
    r"of before\b": "former",
}


def test_pages_help_and_docstrings_use_plain_words() -> None:
    texts = {path.name: path.read_text("utf-8") for path in DOCUMENTS}
    for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.js"), *ROOT.glob("src/**/*.html")):
        texts[str(path.relative_to(ROOT))] = re.sub(r"\.tell\(\)|\bprocessors?\b", "", path.read_text("utf-8"))
    odd = [
        f"{name}: {match[0]!r}, write {better}"
        for name, text in texts.items()
        for word, better in DIALECT.items()
        for match in re.finditer(word, text)
    ]
    assert odd == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    listed = set(re.findall(r"- (?:\w+: )?([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert pages - listed == set()


def _commands(group: typer.main.TyperGroup, prefix: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for name, command in group.commands.items():
        found.add((*prefix, name))
        if hasattr(command, "commands"):
            found |= _commands(command, (*prefix, name))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_that_is_named_exists(document: Path) -> None:
    known = _commands(COMMAND)
    groups = {command[0] for command in known if len(command) > 1}
    text = document.read_text(encoding="utf-8")
    for line in re.findall(r"(?:^|`)deixis ([a-z][^`\n]*)", text, flags=re.MULTILINE):
        words = tuple(line.split())
        named = (
            words[:2]
            if words[0] in groups and len(words) > 1 and words[1].isalpha() and words[1].islower()
            else words[:1]
        )
        assert named in known, f"{document.name}: deixis {line}"


def _examples() -> list[tuple[str, str]]:
    """Every command line in a block of a page or in a command's own help, with the name of where it is."""
    found = []
    for document in DOCUMENTS:
        for block in re.findall(r"```(?:bash|text)\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(document.name, line.removeprefix("$ ")) for line in lines]
    # Usage lines of the reference, and several commands in one line, are no examples.
    return [(name, line) for name, line in found if line.startswith("deixis ") and "[OPTIONS]" not in line]


@pytest.mark.parametrize(("document", "line"), _examples())
def test_the_options_and_arguments_of_every_example_exist(document: str, line: str) -> None:
    """The line is parsed, not run: files need not exist."""
    line = re.sub(r"\$\([^)]*\)", "X", line).partition(" > ")[0].partition(" && ")[0]
    words = shlex.split(line, comments=True)[1:]
    command = COMMAND
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):  # `deixis evaluate RUN` is short for `deixis evaluate run RUN`
        assert command.name == "evaluate", line
        command = command.commands["run"]
    context = command.context_class(command, info_name=document)
    values, left, _ = command.make_parser(context).parse_args(list(words))
    missing = [each.name for each in command.params if each.required and each.name not in values]
    assert (left, missing) == ([], []), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_recipe_and_table_that_is_named_exists(document: Path) -> None:
    rows = [f"{name}/{row.id}" for name, table in paper_tables().items() for row in table.rows]
    known = [*package_recipes(), *rows]
    named = rf"(?:`|deixis (?:train|reproduce|recipes) )((?:{'|'.join(PAPERS)}|base)/[\w.-]+)(?=[`\s])"
    for name in re.findall(named, document.read_text(encoding="utf-8")):
        if name.endswith(".json"):
            assert (ROOT / "results" / name).exists(), f"{document.name}: {name}"
            continue
        if name.endswith(".py"):
            assert (ROOT / "src" / "deixis" / name).exists(), f"{document.name}: {name}"
            continue
        assert any(other == name or other.startswith(f"{name}/") for other in known), f"{document.name}: {name}"


def test_the_recipe_and_the_python_of_the_training_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    [recipe] = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    Path("my.toml").write_text(recipe, encoding="utf-8")
    mine: Any = load_recipe("my.toml").recipe
    assert (mine.name, mine.loss.margin, mine.loss.hardest, mine.schedule.patience) == ("my", 0.1, 10, None)
    [snippet] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(snippet, "training.md", "exec"), {})  # noqa: S102
    out, err = capsys.readouterr()
    epochs, recall = out.split()
    assert (int(epochs), 0 < float(recall) <= 100, err) == (2, True, "")
    assert (tmp_path / "runs" / "demo" / "model.json").exists()


def test_the_python_of_the_datasets_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(snippet, "datasets.md", "exec"), {})  # noqa: S102
    assert "people" in capsys.readouterr().out


def test_the_readme_has_the_figures_of_the_result_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quality = json.loads((ROOT / "results" / "search" / "quality.json").read_text(encoding="utf-8"))
    assert f"`deixis-base` has R@1 {quality['text_to_image']['r@1']:.1f} on Flickr8k" in text
    megabytes = sum(file.stat().st_size for file in (ROOT / "src" / "deixis" / "base" / "bundle").iterdir()) / 1e6
    [said] = re.findall(r"a model of (\d+) MB", text)
    assert abs(megabytes - float(said)) < 2


def test_the_pages_of_the_reference_are_as_the_script_writes_them() -> None:
    pages = runpy.run_path(str(ROOT / "scripts" / "write_reference.py"))["pages"]()
    reference = ROOT / "docs" / "reference"
    stale = [name for name, text in pages.items() if (reference / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/write_reference.py"
    assert {path.name for path in reference.iterdir()} - {*pages} == {"environment.md", "glossary.md"}
