"""The tables of the five papers as data, to print our figures beside theirs.

Each paper's folder has a `tables.toml`; figures are kept as printed. A table over two corpora is given in two parts
(`concepts-order/table2-flickr30k`, `concepts-order/table2-mscoco`).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from deixis.errors import DeixisError

#: The five papers by the names of their folders below `deixis/papers`, in the order in which they are listed.
PAPERS = ("entities-cca", "two-branch", "hm-lstm", "concepts-order", "dvsa")
#: A cell without a figure.
NO_FIGURE = "-"


class PaperRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: its label and its figures as printed, and the settings that were switched on.

    Where all rows come from one run (one model by type, for example), `at` is the dotted path of the row's figures in
    that run's metrics. Elsewhere each row is a run of its own, and `at` is absent.
    """

    id: str
    label: str
    values: str
    group: str = ""
    settings: tuple[str, ...] = ()
    at: str | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures as printed, `-` where there is none."""
        return tuple(self.values.split())


class PaperTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table: `columns` are dotted names of metrics in a result, separated by spaces; `paper` and `id` name it."""

    title: str
    corpus: str
    columns: str
    rows: tuple[PaperRow, ...]
    note: str = ""
    paper: str = ""
    id: str = ""

    @property
    def name(self) -> str:
        """The table's name in results and commands: `entities-cca/table5`."""
        return f"{self.paper}/{self.id}"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.columns.split())

    @property
    def one_run(self) -> bool:
        """Whether all rows come from one run, so that a result names the table and not a row."""
        return bool(self.rows) and self.rows[0].at is not None

    def figures(self, row: PaperRow) -> dict[str, float]:
        """A row's figures by the column's name; cells without one are absent."""
        pairs = zip(self.keys, row.cells, strict=True)
        return {key: float(cell) for key, cell in pairs if cell != NO_FIGURE}


class _Paper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    tables: dict[str, PaperTable]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Every table of the papers by name (`entities-cca/table5`), read on first use."""
    tables = {}
    for name, paper in _papers().items():
        for table_id, table in paper.tables.items():
            named = msgspec.structs.replace(table, paper=name, id=table_id)
            tables[named.name] = named
    return tables


def paper_title(paper: str) -> str:
    """The paper's name, authors and year."""
    return _papers()[paper].title


def find_tables(paper: str | None = None, table: str | None = None) -> list[PaperTable]:
    """The tables of a paper, or those that `table` names: a number (all its parts) or the id of one (`2-mscoco`)."""
    wanted = None if table is None else table.removeprefix("table")
    tables = [
        candidate
        for candidate in paper_tables().values()
        if (paper is None or candidate.paper == paper)
        and (wanted is None or candidate.id == f"table{wanted}" or candidate.id.startswith(f"table{wanted}-"))
    ]
    if paper is not None and paper not in PAPERS:
        raise DeixisError(f"there is no paper {paper!r}; the papers are {', '.join(PAPERS)}")
    if not tables:
        whose = "" if paper is None else f"{paper} has "
        raise DeixisError(f"{whose}no table {wanted}; `deixis results papers` lists the tables")
    return tables


@cache
def _papers() -> dict[str, _Paper]:
    folder = files("deixis") / "papers"
    return {
        name: msgspec.toml.decode((folder / name.replace("-", "_") / "tables.toml").read_bytes(), type=_Paper)
        for name in PAPERS
    }
