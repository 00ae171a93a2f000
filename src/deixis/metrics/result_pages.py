"""Result files into the pages of docs/results: a paper's tables with ours, and the results that belong to no table.

Every row of ours links to its result files, so pages show the main figures only and leave the rest to the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from deixis.metrics.paper_tables import PAPERS, PaperTable, paper_tables, paper_title
from deixis.metrics.result_tables import (
    Comparison,
    Entry,
    breakdown,
    by_protocol,
    column_head,
    entry_name,
    file_links,
    format_figure,
    grid_text,
    markdown_text,
    table_number,
    table_section,
)

#: The most figures per result in a table of so many results or more.
_MAIN_FIGURES = 7
#: Left to the result files, by a part of the name: chance, statistics of training, ways to fail.
_MINOR = {"batch", "failures", "random", "training"}
#: Left to the result files, by the end of the name.
_MINOR_END = re.compile(r"(bleu_[23]|instances|mean_rank|median_rank|pairs|ties)$")


def pages(comparison: Comparison, command: str, files: str) -> dict[str, str]:
    """Markdown pages by file name: two per paper (its tables, and other results), one per other folder, and an index.

    Args:
        command: the command that writes the pages, which each page names.
        files: the path from a page to the folder of result files; every row of ours links to its files.
    """
    intro = f"Written by `{command}`; do not edit. {_PAGE_INTRO}"
    intro_of_others = f"Written by `{command}`; do not edit. {_OTHERS_INTRO}"
    folders = {_folder(entry) for entry in comparison.others}
    written, listed = {}, []
    for name in [*PAPERS, *sorted(folders - {*PAPERS})]:
        title = paper_title(name) if name in PAPERS else f"Other results: {name}"
        others = [entry for entry in comparison.others if _folder(entry) == name]
        tables = [table for table in paper_tables().values() if table.paper == name]
        if tables:
            filled = [table for table in tables if any(comparison.of_row(table, row) for row in table.rows)]
            sections = [table_section(comparison, table, files) for table in filled]
            written[f"{name}.md"] = _page(title, intro, [*sections, *_not_run(name, tables, filled)])
            listed.append(f"- [{markdown_text(title)}]({name}.md): {len(filled)} of {len(tables)} tables")
        if others:
            page, more = (f"{name}-other.md", f"{title}: other results") if tables else (f"{name}.md", title)
            sections = [_main_figures(protocol, entries, files) for protocol, entries in by_protocol(others).items()]
            written[page] = _page(more, intro_of_others, sections)
            listed.append(f"- [{markdown_text(more)}]({page}): {len(others)} results")
    written["index.md"] = "\n\n".join(["# Results", intro, "\n".join(listed)]) + "\n"
    return written


def _not_run(paper: str, tables: Sequence[PaperTable], filled: Sequence[PaperTable]) -> list[str]:
    """The paper's tables for which we have no result, by name."""
    missing = [f"{table_number(table)} ({markdown_text(table.title)})" for table in tables if table not in filled]
    command = f"`deixis results table --paper {paper}` prints them as published."
    return [f"Tables without a result of ours: {'; '.join(missing)}. {command}"] if missing else []


def _page(title: str, intro: str, sections: Sequence[str]) -> str:
    text = "\n\n".join([f"# {markdown_text(title)}", intro, *sections])
    return text.replace("\n### ", "\n## ") + "\n"


_PAGE_INTRO = (
    "Rows of the papers are as printed. Ours are below them in bold: a single run, or the mean ± the standard "
    "deviation over seeds, with a link to the result file of each seed. The file has every figure and says how it was "
    "made: recipe, corpus, protocol, versions. Recalls are percentages; ties count against the model."
)
_OTHERS_INTRO = (
    "Results that belong to no table of the paper, with their main figures: a single run, or the mean ± the standard "
    "deviation over seeds, with a link to the result file of each seed, which has every figure."
)


def _folder(entry: Entry) -> str:
    return entry.files[0].partition("/")[0]


def _main_figures(protocol: str, entries: Sequence[Entry], files: str) -> str:
    """The main figures of results, which link to `files`; results or figures, whichever are fewer, are the columns."""
    figures = [
        {name: value for name, value in entry.figures().items() if _is_main(name) and name not in entry.first.counts}
        for entry in entries
    ]
    names = list(dict.fromkeys(name for values in figures for name in values))
    if len(entries) >= _MAIN_FIGURES:
        names = _first_of_groups(names)
    grid = [["Result", *(f"{entry_name(entry)} {file_links(entry, files)}" for entry in entries)]]
    for name in names:
        column = [values.get(name) for values in figures]
        decimals = _main_decimals([value for value in column if value])
        cells = [format_figure(value, decimals).replace(" ± ", "±") for value in column]
        grid.append([column_head(name).replace("\\_", " "), *cells])
    if len(entries) > len(names):
        grid = [list(column) for column in zip(*grid, strict=True)]
    return "\n\n".join([f"### {markdown_text(protocol)}", grid_text(grid[0], grid[1:], texts=1)])


def _first_of_groups(names: Sequence[str]) -> list[str]:
    """At most `_MAIN_FIGURES` names: the first of every group (`order.reversible`), then the second ones, and so on."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    chosen = sorted(names, key=lambda name: groups[name.rpartition(".")[0]].index(name))[:_MAIN_FIGURES]
    return [name for name in names if name in chosen]


def _main_decimals(figures: Sequence[tuple[float, float | None]]) -> int:
    """No decimals for counts, two for fractions, one for percentages."""
    means = [mean for mean, _ in figures]
    if max(map(abs, means)) <= 1:
        return 2
    return 0 if max(means) > 100 and all(mean.is_integer() for mean in means) else 1


def _is_main(name: str) -> bool:
    """Whether a figure is shown: breakdowns and minor figures are only in the files."""
    minor = _MINOR.intersection(name.split(".")) or _MINOR_END.search(name)
    return not breakdown(name)[0] and not minor
