"""Result files into tables: the papers' figures with ours under them, as Markdown or as plain data.

Results that differ only in their seed are one entry: the mean ± the standard deviation over the seeds (n − 1 in the
denominator). The same results give the same text, so a test can check a generated page.
"""

from __future__ import annotations

import difflib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deixis.errors import DeixisError
from deixis.metrics.paper_tables import PAPERS, PaperRow, PaperTable, paper_tables, paper_title
from deixis.metrics.results import Recipe, Result, flatten

#: Parts of a name that a column head leaves out because the table's title says them.
_UNSAID = {"overall", "strings"}
#: Breakdowns (`by_concept`) with more members are named but not printed.
LONGEST = 30
#: Column heads for people; other names are shown as they are.
_HEADS = {
    "image_to_text": "image→text", "text_to_image": "text→image", "sentence_to_sentence": "sentence→sentence",
    "region_to_phrase": "region→phrase", "phrase_to_region": "phrase→region",
    "mean_recall": "mR", "median_rank": "Med r", "ap_nms": "AP-NMS",
    "instances": "#instances", "chains": "#chains", "mentions_per_chain": "mentions/chain",
    "boxes_per_chain": "boxes/chain", "training_pairs": "training pairs",
    "processor_seconds_per_picture": "CPU seconds per picture",
    "captions_per_processor_second": "captions per CPU second",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Results that differ only in their seed, and their files in the same order."""

    files: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result.seed for result in self.results if result.seed is not None)

    def figures(self) -> dict[str, tuple[float, float | None]]:
        """Mean and spread (none for a single result) of every figure that all results have, by dotted name."""
        every = [dict(flatten({**result.counts, **result.metrics})) for result in self.results]
        return {
            name: (
                statistics.fmean(figures[name] for figures in every),
                statistics.stdev(figures[name] for figures in every) if len(every) > 1 else None,
            )
            for name in every[0]
            if all(name in figures for figures in every)
        }


@dataclass(frozen=True)
class Comparison:
    """Our entries by the row or table of a paper that they name, and those that name none."""

    by_row: Mapping[str, Sequence[Entry]]
    others: Sequence[Entry]

    def of_row(self, table: PaperTable, row: PaperRow) -> Sequence[Entry]:
        return self.by_row.get(table.name if table.one_run else f"{table.name}/{row.id}", ())

    def of_table(self, table: PaperTable) -> list[Entry]:
        """The entries of a table, each once, in the order of its rows."""
        entries: list[Entry] = []
        for row in table.rows:
            entries += [entry for entry in self.of_row(table, row) if entry not in entries]
        return entries


def compare(results: Mapping[str, Result]) -> Comparison:
    """Group results, given by file name, by the paper's row that they name."""
    groups: dict[bytes, list[str]] = {}
    for file in sorted(results):
        groups.setdefault(_identity(results[file]), []).append(file)
    by_row: dict[str, list[Entry]] = {}
    others = []
    for files in groups.values():
        files.sort(key=lambda file: (results[file].seed or 0, file))
        entry = Entry(tuple(files), tuple(results[file] for file in files))
        _check_seeds(entry)
        for name in entry.first.rows:
            _check_row(name, entry)
            by_row.setdefault(name, []).append(entry)
        if not entry.first.rows:
            others.append(entry)
    return Comparison(by_row, others)


def markdown(comparison: Comparison, tables: Sequence[PaperTable], *, with_others: bool = True) -> str:
    """The tables with their notes and, with `with_others`, the results that name no row."""
    parts = []
    for paper in PAPERS:
        of_paper = [table for table in tables if table.paper == paper]
        if of_paper:
            parts.append(f"## {paper}: {markdown_text(paper_title(paper))}")
            parts += [table_section(comparison, table) for table in of_paper]
    if with_others and comparison.others:
        parts.append("## Other results")
        parts += [_others(name, entries) for name, entries in by_protocol(comparison.others).items()]
    return "\n\n".join(parts) + "\n"


def by_protocol(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries by the name of their protocol, in the order of these names."""
    names = sorted({entry.first.protocol.name for entry in entries})
    return {name: [entry for entry in entries if entry.first.protocol.name == name] for name in names}


def as_data(comparison: Comparison, tables: Sequence[PaperTable], *, with_others: bool = True) -> dict[str, Any]:
    """The same as plain data: the papers' figures and ours under dotted names."""
    return {
        "tables": [
            {
                "table": table.name,
                "title": table.title,
                "corpus": table.corpus,
                "note": table.note,
                "rows": [
                    {
                        "row": row.id,
                        "label": row.label,
                        "settings": row.settings,
                        "paper": table.figures(row),
                        "ours": [
                            _entry_data(entry, {key: _place(row, key) for key in table.keys})
                            for entry in comparison.of_row(table, row)
                        ],
                    }
                    for row in table.rows
                ],
            }
            for table in tables
        ],
        "others": [_entry_data(entry, None) for entry in comparison.others] if with_others else [],
    }


def table_section(comparison: Comparison, table: PaperTable, files: str | None = None) -> str:
    """One paper's table: each row as printed, ours under it with links to `files`, or with notes below the table."""
    entries = comparison.of_table(table)
    grouped = any(row.group for row in table.rows)
    head = ["Part"] * grouped + ["Row"] + [column_head(key) for key in table.keys]
    decimals = [_decimals(cells) for cells in zip(*(row.cells for row in table.rows), strict=True)]
    lines = []
    for row in table.rows:
        settings = f" ({', '.join(row.settings)})" if row.settings else ""
        lines.append([markdown_text(row.group)] * grouped + [markdown_text(row.label + settings), *row.cells])
        for entry in comparison.of_row(table, row):
            figures = entry.figures()
            places = [_place(row, key) for key in table.keys]
            if any(path in figures for path in places):
                cells = [_ours(figures.get(path), digits) for path, digits in zip(places, decimals, strict=True)]
                label = f"[{entries.index(entry) + 1}]" if files is None else file_links(entry, files)
                lines.append([""] * grouped + [f"↳ Deixis {label}", *cells])
    parts = [
        f"### Table {table_number(table)}: {markdown_text(table.title)}",
        grid_text(head, lines, texts=1 + grouped),
    ]
    if table.corpus:
        corpora = list(dict.fromkeys(_corpus(entry) for entry in entries))
        corpora_text = "; ".join(corpora) if corpora else "no result in the folder that was read"
        parts.insert(1, f"Paper: {markdown_text(table.corpus)}. Deixis: {corpora_text}.")
    if table.note:
        parts.append(f"Note: {markdown_text(table.note)}")
    if files is None:
        parts += _notes(entries)
    return "\n\n".join(parts)


def table_number(table: PaperTable) -> str:
    return table.id.removeprefix("table").removeprefix("-")


def file_links(entry: Entry, folder: str) -> str:
    """A link to each result file, named by its seed."""
    names = [str(result.seed) if result.seed is not None else "file" for result in entry.results]
    return " ".join(f"[{name}]({folder}/{file})" for name, file in zip(names, entry.files, strict=True))


def _others(protocol: str, entries: Sequence[Entry]) -> str:
    """Results of one protocol that name no row, with notes below."""
    figures = [entry.figures() for entry in entries]
    members: dict[str, set[str]] = {}
    for name in (name for figure in figures for name in figure):
        whole, member = breakdown(name)
        members.setdefault(whole, set()).add(member)
    long = {whole: len(values) for whole, values in members.items() if whole and len(values) > LONGEST}
    names = list(dict.fromkeys(name for values in figures for name in values if breakdown(name)[0] not in long))
    grid = [["Metric", *(f"{_maker(entry)} [{position}]" for position, entry in enumerate(entries, 1))]]
    grid += [[_code(name), *(format_figure(values.get(name), None) for values in figures)] for name in names]
    # Entries or figures, whichever are fewer, are the columns.
    if len(entries) > len(names):
        grid = [list(column) for column in zip(*grid, strict=True)]
        grid[0][0] = "Result"
    parts = [f"### {markdown_text(protocol)}", grid_text(grid[0], grid[1:], texts=1)]
    if long:
        left = ", ".join(f"{_code(whole)} ({count:,})" for whole, count in long.items())
        parts.append(f"In the files alone: {left}.")
    return "\n\n".join([*parts, *_notes(entries)])


def breakdown(name: str) -> tuple[str, str]:
    """The breakdown that a figure is part of, and its member: `concepts.by_concept`, `dog`."""
    match = re.match(r"(.*?(?:\b|_)by_\w+|words)\.([^.]+)|(neighbours)\.(.+)", name)
    whole, member = [part for part in match.groups() if part] if match else ("", "")
    return whole, member


def _notes(entries: Sequence[Entry]) -> list[str]:
    return ["\n".join(f"{position}. {_note(entry)}" for position, entry in enumerate(entries, 1))] if entries else []


def _note(entry: Entry) -> str:
    """Recipe, data, protocol, supervision, readings, versions and files of an entry, in one line."""
    result = entry.first
    parts = []
    if result.recipe:
        parts.append(f"recipe {_recipe(result.recipe)}")
        parts += [f"on {_recipe(other)}" for other in result.recipe.stands_on]
    if result.corpus:
        parts.append(
            f"{_corpus(entry)} (corpus {result.corpus.fingerprint[:12]}, split hash {result.corpus.split_hash[:12]})"
        )
    parameters = ", ".join(f"{name} = {value}" for name, value in sorted(result.protocol.parameters.items()))
    parts.append(f"protocol {_code(result.protocol.name)}" + (f" ({markdown_text(parameters)})" if parameters else ""))
    parts.append(f"ties {markdown_text(result.protocol.ties)}")
    if entry.seeds:
        parts.append(f"{'seeds' if len(entry.seeds) > 1 else 'seed'} {', '.join(map(str, entry.seeds))}")
    if result.box_supervision:
        boxes = result.box_supervision
        seen = [name for name in ("backbone", "proposals") if getattr(boxes, name)]
        seen_by = " and ".join(seen) or "neither backbone nor proposals"
        parts.append(f"annotated boxes seen by {seen_by}: {markdown_text(boxes.statement)}")
        if boxes.upper_bound is not None:
            parts.append(f"upper bound {boxes.upper_bound:.2f} at {boxes.regions} regions")
    if result.readings:
        parts.append(f"readings: {markdown_text('; '.join(result.readings))}")
    deixis = sorted({result.versions.get("deixis", "?") for result in entry.results})
    return "; ".join([*parts, f"Deixis {', '.join(deixis)}", ", ".join(map(_code, entry.files))]) + "."


def _recipe(recipe: Recipe) -> str:
    return f"{_code(recipe.name)} ({recipe.hash[:12]})"


def _entry_data(entry: Entry, places: Mapping[str, str] | None) -> dict[str, Any]:
    figures = entry.figures()
    shown = {key: figures[path] for key, path in places.items() if path in figures} if places else figures
    return {
        "files": entry.files,
        "seeds": entry.seeds,
        "corpus": entry.first.corpus,
        "protocol": entry.first.protocol,
        "mean": {key: mean for key, (mean, _) in shown.items()},
        "spread": {key: spread for key, (_, spread) in shown.items() if spread is not None},
    }


def _identity(result: Result) -> bytes:
    """What results of the same run with other seeds have in common."""
    recipe = result.recipe and _without_former_names(result.recipe)
    parts = (result.rows, recipe, result.corpus, result.protocol, result.box_supervision, result.readings)
    return msgspec.json.encode(parts, order="deterministic")


def _without_former_names(recipe: Recipe) -> Recipe:
    below = tuple(_without_former_names(other) for other in recipe.stands_on)
    return Recipe(recipe.name, recipe.hash, below)


def _check_seeds(entry: Entry) -> None:
    seen: dict[int | None, str] = {}
    for file, result in zip(entry.files, entry.results, strict=True):
        if result.seed in seen:
            what = "no seed" if result.seed is None else f"seed {result.seed}"
            raise DeixisError(f"{seen[result.seed]} and {file} are the same run with {what}: keep one of them")
        seen[result.seed] = file


def _check_row(name: str, entry: Entry) -> None:
    """Check that the row (or table of one run) that a result names exists, and that the result has its figures."""
    known: dict[str, tuple[PaperTable, Sequence[PaperRow]]] = {}
    for table in paper_tables().values():
        if table.one_run:
            known[table.name] = (table, table.rows)
        else:
            known.update({f"{table.name}/{row.id}": (table, [row]) for row in table.rows})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        raise DeixisError(f"{entry.files[0]}: rows: no row {name!r} in the papers' tables; the nearest is {near!r}")
    table, rows = known[name]
    wanted = {_place(row, key) for row in rows for key in table.keys}
    if not wanted & entry.figures().keys():
        raise DeixisError(f"{entry.files[0]}: names {name} but has none of its figures, such as {sorted(wanted)[0]}")


def _place(row: PaperRow, key: str) -> str:
    """The dotted name, in a result, of the figure in a row and a column."""
    return f"{row.at}.{key}" if row.at else key


def format_figure(figure: tuple[float, float | None] | None, decimals: int | None) -> str:
    """Mean ± spread with `decimals` decimals, two by default; at least one unless all are whole numbers."""
    if figure is None:
        return "–"
    whole = all(part is None or part.is_integer() for part in figure)
    places = 0 if whole and not decimals else max(1, 2 if decimals is None else decimals)
    return " ± ".join(f"{part:.{places}f}" for part in figure if part is not None)


def _ours(figure: tuple[float, float | None] | None, decimals: int) -> str:
    return f"**{format_figure(figure, decimals)}**" if figure else format_figure(None, decimals)


def _decimals(cells: Iterable[str]) -> int:
    """The number of decimals of a column."""
    return max(len(cell.partition(".")[2]) for cell in cells)


def column_head(key: str) -> str:
    parts = [_HEADS.get(part, re.sub(r"^r@", "R@", part)) for part in key.split(".") if part not in _UNSAID]
    return markdown_text(" ".join(parts))


def entry_name(entry: Entry) -> str:
    """The recipe's name or, without a recipe, the name of the file."""
    recipe = entry.first.recipe
    return markdown_text(recipe.name if recipe else entry.files[0].rpartition("/")[2].removesuffix(".json"))


def _maker(entry: Entry) -> str:
    """The recipe's name or, without a recipe, the corpus."""
    recipe = entry.first.recipe
    return markdown_text(recipe.name) if recipe else _corpus(entry)


def _corpus(entry: Entry) -> str:
    corpus, images = entry.first.corpus, entry.first.counts.get("images")
    if corpus is None:
        return "no corpus"
    size = f" ({images:,} images)" if images else ""
    return markdown_text(f"{corpus.name or 'unnamed corpus'} {corpus.split}".strip() + size)


def grid_text(head: Sequence[str], lines: Sequence[Sequence[str]], *, texts: int) -> str:
    """A Markdown table: the first `texts` columns are text, the others are figures."""
    rule = [":--"] * texts + ["--:"] * (len(head) - texts)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def markdown_text(words: str) -> str:
    """Free text, escaped for Markdown."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(words.split()))


def _code(name: str) -> str:
    return "`" + " ".join(name.replace("`", "'").replace("|", "/").split()) + "`"
