"""Result records: the figures of a protocol, the data it ran on, and all that is needed to judge or repeat it.

One run with one seed is one JSON file; tables (`deixis.metrics.result_tables`) take the mean over seeds.
`result.schema.json` beside this module is the JSON schema for other programs.
"""

from __future__ import annotations

import inspect
import math
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from deixis import __version__
from deixis.corpus.records import Corpus
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, read_json
from deixis.metrics.former_names import current_name

#: The version of the record; increased by changes that old readers would misread.
SCHEMA: Final = 1
#: Metrics that need a statement of box supervision, by a part of their name.
BOX_METRICS = frozenset({"alignment", "correspondence", "localization", "region_to_phrase"})

#: Groups of figures that printing a result shows.
SHOWN_LINES = 12

Name = Annotated[str, msgspec.Meta(min_length=1)]
# A tree of figures, four levels deep at most (localization → by_type → people → r@1).
Metrics = dict[str, float | dict[str, float | dict[str, float | dict[str, float]]]]


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the protocol, its tie rule and its parameters."""

    name: Name
    ties: Name
    parameters: dict[str, str | int | float | bool] = {}


class CorpusReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The split that was evaluated; equal hashes mean the same images."""

    name: str
    fingerprint: Name
    split: str
    split_hash: Name


class BoxSupervision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether any part of the model was trained on annotated boxes, and the proposals' upper bound.

    `upper_bound` is the percentage of phrases that any of at most `regions` proposals per image hits; both are absent
    where the regions are the annotated boxes themselves.
    """

    backbone: bool
    proposals: bool
    statement: Name
    regions: int | None = None
    upper_bound: float | None = None


class FormerRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name and the hash that a recipe had when a result was made."""

    name: Name
    hash: Name


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The recipe of the model, and of the runs that it builds on, such as its concept network or its aligner.

    `hash` depends on the settings, not on the name. `formerly` is present where the recipe was renamed since.
    """

    name: Name
    hash: Name
    stands_on: tuple[Recipe, ...] = ()
    formerly: FormerRecipe | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one run. Build it with `make_result`.

    `rows` names what the run reproduces in the papers' tables: a row (`entities-cca/table5/sae`), or a whole table
    whose rows come from one run (`entities-cca/table2`). `readings` names the interpretations of the papers that were
    used.

    >>> result = make_result(Protocol("retrieval", "pessimistic"), {"text_to_image": {"r@1": 40.0}}, duration=1.0)
    >>> result.metrics["text_to_image"]
    {'r@1': 40.0}
    """

    schema: Literal[1]
    protocol: Protocol
    corpus: CorpusReference | None = None
    rows: tuple[Name, ...] = ()
    recipe: Recipe | None = None
    seed: int | None = None
    metrics: Metrics
    counts: dict[str, int] = {}
    box_supervision: BoxSupervision | None = None
    readings: tuple[Name, ...] = ()
    versions: dict[str, str]
    command: str
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    duration: Annotated[float, msgspec.Meta(ge=0, description="seconds")]

    @property
    def figures(self) -> dict[str, float]:
        """The metrics under dotted names: `figures["text_to_image.r@1"]`."""
        return dict(flatten(self.metrics))

    def __repr__(self) -> str:
        """What was measured on what, and the figures; long breakdowns are cut off."""
        corpus = f" on {self.corpus.name} {self.corpus.split}".rstrip() if self.corpus else ""
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        rows: dict[str, list[str]] = {}
        for name, value in self.figures.items():
            group, _, figure = name.rpartition(".")
            rows.setdefault(group, []).append(f"{figure} {value:.4g}")
        lines = ["  " + " ".join(filter(None, [group, *row])) for group, row in rows.items()]
        if len(lines) > SHOWN_LINES:
            lines = [*lines[:SHOWN_LINES], f"  … {len(lines) - SHOWN_LINES} more lines in `figures`"]
        return "\n".join([f"{self.protocol.name}{corpus}" + (f" ({counts})" if counts else ""), *lines])

    def __post_init__(self) -> None:
        _check_figures(self.metrics)
        owing = sorted({part for name, _ in flatten(self.metrics) for part in name.split(".")} & BOX_METRICS)
        if owing and self.box_supervision is None:
            raise DeixisError(
                f"box_supervision: missing; {owing[0]} figures must say whether boxes were seen in training"
            )


def command_line(arguments: Sequence[str]) -> str:
    """A command as results record it: absolute paths are cut to their last two names, since folders are private.

    >>> command_line(["evaluate", "run", "--corpus", "joined=/home/ann/data/flickr8k/joined"])
    'deixis evaluate run --corpus joined=flickr8k/joined'
    """
    words = []
    for argument in arguments:
        name, equals, path = argument.rpartition("=")
        words.append(name + equals + "/".join(Path(path).parts[1:][-2:]) if path.startswith("/") else argument)
    return shlex.join(["deixis", *words])


def make_result(
    protocol: Protocol,
    metrics: Mapping[str, Any],
    *,
    duration: float,
    corpus: CorpusReference | None = None,
    rows: Sequence[str] = (),
    recipe: Recipe | None = None,
    seed: int | None = None,
    counts: Mapping[str, int] | None = None,
    box_supervision: BoxSupervision | None = None,
    readings: Sequence[str] = (),
) -> Result:
    """A result with the versions, command line and time of the running program.

    Figures are numbers (NumPy's too) in nested mappings; NaN and infinity are refused, and the error names the figure.
    """
    return Result(
        schema=SCHEMA,
        protocol=protocol,
        corpus=corpus,
        rows=tuple(rows),
        recipe=recipe,
        seed=seed,
        metrics=_as_floats(metrics),
        counts=dict(counts or {}),
        box_supervision=box_supervision,
        readings=tuple(readings),
        versions=versions(),
        command=command_line(sys.argv[1:]),
        created=datetime.now(UTC).replace(microsecond=0),
        duration=round(duration, 3),
    )


def corpus_reference(corpus: Corpus, split: str | None = None) -> CorpusReference:
    """The reference of a result to a corpus and its split; None means all images."""
    return CorpusReference(corpus.name, corpus.fingerprint, split or "", corpus.split_hash(split))


def save(result: Result, path: str | Path) -> None:
    """Write a result as JSON; a crash never leaves half a file."""
    encoded = msgspec.json.encode(result)
    _parse(path, msgspec.json.decode(encoded))
    with atomic_write(path) as stream:
        stream.write(msgspec.json.format(encoded, indent=2) + b"\n")


def load(path: str | Path) -> Result:
    """Read a result; problems with the file raise an `InputError` that names the field."""
    return _parse(path, _decoded(path))


def load_folder(folder: str | Path) -> dict[str, Result]:
    """All results under a folder, by their path in it. Other JSON files are skipped."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(folder, "no such folder of results")
    results = {}
    for path in sorted(folder.rglob("*.json")):
        data = _decoded(path)
        if isinstance(data, dict) and {"protocol", "metrics"} <= data.keys():
            results[path.relative_to(folder).as_posix()] = _parse(path, data)
    return results


def _decoded(path: str | Path) -> Any:
    decoded: Any = read_json(path, object, "not JSON")
    return decoded


def _parse(path: str | Path, data: Any) -> Result:
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise InputError(path, "not a result record: it has no schema number", "schema")
    if data["schema"] != SCHEMA:
        raise InputError(path, f"schema {data['schema']}, but this Deixis reads {SCHEMA}", "schema")
    if isinstance(data.get("rows"), list):
        data["rows"] = [current_name(row) if isinstance(row, str) else row for row in data["rows"]]
    try:
        # msgspec does not name the keys of a mapping; our own check does, so it runs first.
        _check_figures(data.get("metrics"))
        return msgspec.convert(data, Result)
    except msgspec.ValidationError as fault:
        problem, _, location = str(fault).partition(" - at `$.")
        raise InputError(path, problem, location.rstrip("`")) from fault
    except DeixisError as fault:
        location, _, problem = str(fault).partition(": ")
        raise InputError(path, problem, location) from fault


def json_schema() -> bytes:
    """The JSON schema of a result: the text of `result.schema.json`."""
    schema = msgspec.json.schema(Result)
    for definition in schema["$defs"].values():
        # Docstrings; Python 3.13 and later already strip their indentation.
        definition["description"] = inspect.cleandoc(definition["description"])
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def flatten(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The figures of nested mappings under dotted names, in order: `image_to_text.r@1`."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def versions() -> dict[str, str]:
    """The versions of Deixis, Python, the platform, and the numerical libraries that are loaded."""
    versions_of = {"deixis": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for library in ("numpy", "scipy", "torch"):
        if library in sys.modules:
            versions_of[library] = str(sys.modules[library].__version__)
    return versions_of


def _as_floats(figures: Mapping[str, Any]) -> Metrics:
    converted: Any = {}
    for name, value in figures.items():
        if isinstance(value, Mapping):
            converted[str(name)] = _as_floats(value)
        else:
            # Text is left for the check, whose error names it; NumPy numbers become Python floats.
            converted[str(name)] = value if isinstance(value, str | bool) or value is None else float(value)
    return converted  # type: ignore[no-any-return]


def _check_figures(metrics: Any) -> None:
    if not isinstance(metrics, Mapping) or not metrics:
        raise DeixisError("metrics: no figures")
    for name, value in flatten(metrics):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DeixisError(f"metrics.{name}: {value!r} is not a finite number")
