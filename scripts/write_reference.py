"""Write the generated pages of the reference: commands, recipes, recipe settings, equations, the Python API.

    python scripts/write_reference.py    # writes docs/reference/

`make docs` runs it before it builds the site; `.ci/run` fails if a committed page is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer

import deixis
from deixis.cli import app
from deixis.features.feature_recipe import FeatureRecipe
from deixis.metrics.paper_tables import PAPERS, paper_title
from deixis.training.kinds import KINDS, kind_of
from deixis.training.recipe import FitRecipe, package_recipes
from deixis.training.schedule import Schedule

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTICE = "Written by `python scripts/write_reference.py`; do not edit."


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {
        **{name: _commands_page(title, commands) for name, (title, commands) in _commands_pages().items()},
        "recipes.md": _recipes_page("Recipes", MORE, other=f" [Concepts and order, DVSA]({MORE_PAGE})."),
        MORE_PAGE: _recipes_page(MORE_TITLE, {*PAPERS, "base"} - MORE, other=" [Other recipes](recipes.md)."),
        "settings.md": _settings_page(),
        **{name: _kinds_page(title, kinds) for name, (title, kinds) in _kinds_pages().items()},
        "annotation-settings.md": _annotation_settings_page(),
        "equations.md": _equations_page(),
        "api.md": _api_page(),
        **{name: _api_details_page(title, names) for name, (title, names) in _api_pages().items()},
    }


def _commands_pages() -> dict[str, tuple[str, list[str]]]:
    """Title and top commands of every page of commands, by file name; what no page names is on the first one."""
    named = {
        "commands-training.md": (
            "training and trained models",
            ["train", "recipes", "reproduce", "align", "concepts", "explain", "localize", "runs", "export"],
        ),
        "commands-evaluation.md": ("evaluation", ["evaluate"]),
        "commands-results.md": ("results and figures", ["results", "figures"]),
        "commands-data.md": ("corpora and features", ["corpus", "extract"]),
        "commands-text.md": ("text and proposals", ["text", "proposals"]),
        "commands-annotation.md": ("annotation", ["annotate"]),
    }
    elsewhere = {command for _, commands in named.values() for command in commands}
    rest = [name for name in typer.main.get_command(app).commands if name not in elsewhere]  # type: ignore[attr-defined]
    return {"commands-photos.md": ("your photos", rest), **named}


def _commands_page(title: str, commands: Collection[str]) -> str:
    program = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = [
        _command_section(f"{name}{f' {below}' if below else ''}", command)
        for name in commands
        for below, command in _walk(program[name])
    ]
    intro = "Every command also has `-h`. [Exit codes and environment variables](environment.md)."
    return "\n\n".join([f"# Commands: {title}", f"{NOTICE} {intro}", *sections]) + "\n"


def _walk(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from _walk(below, f"{path} {name}".strip())


def _command_section(name: str, command: Any) -> str:
    """A command's usage, help and options."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    required = [f"{option.opts[-1]} {_metavar(option)}" for option in options if option.required]
    usage = " ".join(["deixis", name, *map(_metavar, arguments), *required, "[OPTIONS]"])
    context = command.context_class(command, info_name=name)
    text = re.sub(r"\n\n(Examples?:.*)\Z", "", inspect.cleandoc(command.help), flags=re.DOTALL)
    examples = re.findall(r"deixis [^;\n]+", inspect.cleandoc(command.help).partition("Example")[2])
    rows = [f"| `{_metavar(each)}` | {_help(each, context)} |" for each in arguments]
    rows += [f"| `{', '.join(each.opts)}`{_value(each)} | {_help(each, context)} |" for each in options]
    parts = [f"## deixis {name}", f"```text\n{usage}\n```", text.replace("\n        ", "\n    ")]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    if examples:
        parts.append("```bash\n" + "\n".join(example.strip() for example in examples) + "\n```")
    return "\n\n".join(parts)


def _metavar(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    if parameter.param_type_name == "argument":
        name += "…" if parameter.nargs == -1 else ""
        return name if parameter.required else f"[{name}]"
    return name


def _value(option: Any) -> str:
    return "" if option.is_flag else f" {option.metavar}" if option.metavar else ""


def _help(parameter: Any, context: Any) -> str:
    record = parameter.get_help_record(context)
    text = (record[1] if record else parameter.help) or ""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _api_pages() -> dict[str, tuple[str, list[str]]]:
    """Title and dotted names of every page with docstrings, by file name."""
    names = [f"{home}.{name}" for home, below in deixis._HOMES.items() for name in below]
    names.sort(key=lambda dotted: dotted.rpartition(".")[2].lower())
    corpus = [name for name in names if name.startswith("deixis.corpus.")]
    papers = [name for name in names if name.startswith("deixis.papers.")]
    metrics = sorted(deixis.metrics.__all__, key=str.lower)
    return {
        "api-models.md": ("models, search, training, errors", [n for n in names if n not in (*corpus, *papers)]),
        "api-corpus.md": ("corpora", corpus),
        "api-papers.md": ("networks of the papers", papers),
        "api-metrics.md": ("metrics", [f"{getattr(deixis.metrics, name).__module__}.{name}" for name in metrics]),
    }


def _api_page() -> str:
    """Every public name with its summary, and a link to its docstring."""
    parts = ["# Python API", f"{NOTICE} Examples: [Python](../python.md), [for researchers](../research.md)."]
    for page, (title, names) in _api_pages().items():
        package = "deixis.metrics" if page == "api-metrics.md" else "deixis"
        rows = [
            f"| [`{package}.{name}`]({page}) | {_summary(getattr(sys.modules[package], name))} |"
            for name in (dotted.rpartition(".")[2] for dotted in names)
        ]
        parts += [f"## {title.capitalize()}", "\n".join(["| name | what it is |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _api_details_page(title: str, names: Collection[str]) -> str:
    """Names of which mkdocstrings shows signatures and docstrings."""
    intro = f"{NOTICE} The site shows the docstrings here. [All names](api.md)."
    return "\n\n".join([f"# Python API: {title}", intro, *(f"::: {name}" for name in names)]) + "\n"


def _summary(value: Any) -> str:
    lines = inspect.getdoc(value)
    return " ".join((lines or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _equations_page() -> str:
    """From equations to functions: the tables in the READMEs of the papers' folders."""
    intro = f"{NOTICE} The tables are those of the READMEs in `src/deixis/papers/`; a test checks them."
    parts = ["# Equations", intro]
    for paper in PAPERS:
        folder = paper.replace("-", "_")
        readme = (ROOT / "src" / "deixis" / "papers" / folder / "README.md").read_text("utf-8")
        table = readme.partition("## Where the equations are\n\n")[2].partition("\n\n")[0]
        table = re.sub(r"(?<!\[)`((?:fast/)?\w+\.py)`", rf"[`\1`](../../src/deixis/papers/{folder}/\1)", table)
        table = table.replace("](../../annotation", "](../../src/deixis/annotation")
        table = re.sub(r"\]\(\.\./\.\./(?!src/)", "](../../src/deixis/", table)
        parts += [f"## {paper}", f"[{paper_title(paper)}](../papers/{paper}.md)", table]
    return "\n\n".join(parts) + "\n"


#: Two papers have so many recipes that they get a page of their own.
MORE, MORE_PAGE = {"concepts-order", "dvsa"}, "recipes-concepts-dvsa.md"
MORE_TITLE = "Recipes: concepts and order, DVSA"


def _recipes_page(title: str, without: set[str], *, other: str) -> str:
    """The recipes of the package by folder, without some folders."""
    intro = f"{NOTICE} `deixis recipes NAME` prints one in full; [how to use them](../training.md).{other}"
    parts = [f"# {title}", intro]
    folder = ""
    rows: list[str] = []
    for name, recipe in package_recipes().items():
        if name.partition("/")[0] in without:
            continue
        if name.partition("/")[0] != folder:
            folder = name.partition("/")[0]
            rows = [f"## {folder}\n", "| recipe | kind | corpus | about | rows |", "|---|---|---|---|---|"]
            parts.append("")
        cells = [f"`{name}`", recipe.kind, recipe.corpus, recipe.about, ", ".join(recipe.rows)]
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        parts[-1] = "\n".join(rows)
    return "\n\n".join(parts) + "\n"


PAIRS, JOINT, BASE = ("sentences", "phrases"), ("cca", "joint"), ("base", "grounding", "pictures")
SEQUENCES = ("hm-lstm", "alignment", "captioner")
TOML = "Settings are TOML; `a.b` is `b` in the table `[a]`, or `--set a.b=VALUE` on the command line."


def _settings_page() -> str:
    """The settings that all recipes have, with types and defaults."""
    links = ", ".join(f"[{title.partition(': ')[2]}]({name})" for name, (title, _) in _kinds_pages().items())
    intro = f"{NOTICE} {TOML} Each kind of recipe has more: {links}."
    parts = ["# Settings of every recipe", intro, _settings_table(FitRecipe)]
    parts += ["## Features", _settings_table(FeatureRecipe, "features.")]
    parts += ["## Schedule", _settings_table(Schedule, "schedule.")]
    return "\n\n".join(parts) + "\n"


def _kinds_pages() -> dict[str, tuple[str, Collection[str]]]:
    others = [kind for kind in KINDS if kind not in (*PAIRS, *JOINT, *SEQUENCES, *BASE)]
    return {
        "settings-two-branch.md": ("Settings: two-branch networks", PAIRS),
        "settings-cca.md": ("Settings: CCA, joint training", JOINT),
        "settings-sequences.md": ("Settings: HM-LSTM, alignments, captions", SEQUENCES),
        "settings-concepts.md": ("Settings: concepts and order", others),
        "settings-base.md": ("Settings: deixis-base", BASE[:1]),
        "settings-base-parts.md": ("Settings: grounding, image and text networks", BASE[1:]),
    }


def _kinds_page(title: str, kinds: Collection[str]) -> str:
    """The settings of some kinds of recipes."""
    intro = f"{NOTICE} {TOML} All recipes share [these](settings.md); features and schedule are described there."
    parts = [f"# {title}", intro]
    common = {field.name for field in msgspec.structs.fields(FitRecipe)}
    for kind in kinds:
        parts += [f'## kind = "{kind}"', _settings_table(kind_of(kind).recipe_type, without=common)]
    return "\n\n".join(parts) + "\n"


#: Sections that all kinds share; they have tables of their own.
SHARED = {FeatureRecipe, Schedule}


def _annotation_settings_page() -> str:
    from deixis.annotation.project import describe_settings

    rows = [f"| `{row.name}` | `{_toml(row.default)}` | {row.meaning} |" for row in describe_settings()]
    usage = (
        "Give them in a TOML file (`deixis annotate init --settings`), "
        "or change them later (`deixis annotate settings`)."
    )
    table = ["| setting | default | meaning |", "|---|---|---|", *rows]
    return "\n\n".join(["# Settings of an annotation project", f"{NOTICE} {usage}", "\n".join(table)]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _settings_table(struct: type, prefix: str = "", without: Collection[str] = ()) -> str:
    rows = [f"| {' | '.join(row)} |" for row in _settings(struct, prefix, (), without)]
    return "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows])


def _settings(struct: type, prefix: str, seen: tuple[type, ...], without: Collection[str] = ()) -> Iterator[list[str]]:
    comments = _comments(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in without:
            continue
        name = f"{prefix}{field.name}"
        structs = [part for part in _parts(field.type) if isinstance(part, type) and issubclass(part, msgspec.Struct)]
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        default = "required" if required else "" if structs or field.default == "" else f"`{_shown(field.default)}`"
        yield [f"`{name}`", _type_name(field.type), default, comments.get(field.name, "")]
        for part in structs:
            if part not in SHARED and part not in seen:
                tag = msgspec.inspect.type_info(part).tag  # type: ignore[union-attr]
                inner = f"{name}({tag})." if tag is not None and len(structs) > 1 else f"{name}."
                yield from _settings(part, inner, (*seen, part))


def _parts(annotation: Any) -> list[Any]:
    """The classes in an annotation: those of unions, tuples and `Annotated`."""
    arguments = get_args(annotation)
    return [part for each in arguments for part in _parts(each)] if arguments else [annotation]


def _shown(value: Any) -> str:
    return str(value).replace("|", "/") if isinstance(value, str | int | float | bool | tuple) or value is None else "…"


def _type_name(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"typing\.Optional\[(.+)\]$", r"\1 or none", text)
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", lambda match: match[1].replace("'", "").replace(", ", " or "), text)
    text = re.sub(r"typing\.|Annotated\[([^,\]]+)(?:, msgspec\.Meta\([^)]*\))+\]", r"\1", text)
    return re.sub(r"[\w.]*\.(\w+)", r"\1", text).replace("|", "or")


def _comments(struct: type) -> dict[str, str]:
    """Descriptions of fields: `#:` comments above them, or comments of the example in the module docstring."""
    comments: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("deixis"):
            example = sys.modules[base.__module__].__doc__ or ""
            for name, first, more in re.findall(r"(?m)^ *(\w+) = [^#\n]*# ([^\n]*)\n((?: +# [^\n]*\n)*)", example):
                comments.setdefault(name, " ".join([first, *re.findall(r"# ([^\n]*)", more)]).replace("|", "\\|"))
            for block, name in re.findall(r"((?: +#: [^\n]*\n)+) +(\w+):", inspect.getsource(base)):
                comments[name] = " ".join(re.findall(r"#: ([^\n]*)", block)).replace("|", "\\|")
    return comments


def main() -> None:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
