"""The papers' tables: what can be known of printed figures without the paper at hand."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from deixis.errors import DeixisError
from deixis.metrics.paper_tables import PAPERS, PaperTable, find_tables, paper_tables, paper_title

TABLES = list(paper_tables().values())
by_name = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)

#: Rows a table has in print; a table over two corpora leaves out the rows that have no figure for one of them.
ROWS = {
    "entities-cca": {"table1": 9, "table2": 9, "table3": 24, "table4": 3, "table5": 7},
    "two-branch": {"table1": 15, "table2": 16, "table3": 14, "table4-flickr30k": 3, "table4-mscoco": 3, "table5": 2},
    "hm-lstm": {"table1": 9, "table2": 11, "table3": 5, "table4": 4},
    "concepts-order": {"table1": 11, "table2-flickr30k": 11, "table2-mscoco": 11, "table3-flickr30k": 4}
    | {"table3-mscoco": 4, "table4-flickr30k": 18, "table4-mscoco": 16, "table5": 8},
    "dvsa": {"table1": 80, "table2": 8, "table-captions": 3},
}
#: Printed mR that are not the mean of the printed recalls; the tables' notes say so.
WRONG_MEAN_RECALL = {
    "concepts-order/table2-mscoco/ctx-1-crop",
    "concepts-order/table2-mscoco/ctx-gen-s",
    "concepts-order/table2-mscoco/cnp-ctx-gen",
    "concepts-order/table4-mscoco/vsepp",
    "concepts-order/table4-mscoco/rrf-res",
}


def test_every_table_is_there_with_all_its_rows() -> None:
    found = {paper: {t.id: len(t.rows) for t in TABLES if t.paper == paper} for paper in PAPERS}
    assert found == ROWS


@by_name
def test_rows_have_a_cell_for_each_column_and_an_id_of_their_own(table: PaperTable) -> None:
    assert all(len(row.cells) == len(table.keys) for row in table.rows)
    assert len({row.id for row in table.rows}) == len(table.rows)
    assert all(re.fullmatch(r"[a-z0-9.-]+", row.id) for row in table.rows)
    assert {row.at is None for row in table.rows} == {not table.one_run}


@by_name
def test_recalls_rise_with_k(table: PaperTable) -> None:
    for row in table.rows:
        figures = table.figures(row)
        recalls = [key for key in table.keys if "r@" in key and key in figures]
        for _, keys in groupby(recalls, key=lambda key: key.rpartition("r@")[0]):
            values = [figures[key] for key in keys]
            assert values == sorted(values), row.id
            assert all(0 <= value <= 100 for value in values)


@by_name
def test_printed_mean_recall_is_the_mean_of_the_six_recalls(table: PaperTable) -> None:
    wrong = set()
    for row in table.rows:
        figures = table.figures(row)
        printed = figures.pop("mean_recall", None)
        # Recalls and mR are each rounded to a tenth.
        if printed is not None and abs(sum(figures.values()) / 6 - printed) > 0.0501:
            wrong.add(f"{table.name}/{row.id}")
    assert wrong == {name for name in WRONG_MEAN_RECALL if name.startswith(f"{table.name}/")}


def column(name: str, key: str) -> dict[str, float]:
    table = paper_tables()[name]
    return {row.id: table.figures(row)[key] for row in table.rows}


def test_localization_by_type_adds_up_to_the_overall_row() -> None:
    """Flickr30k Entities, Table 2: recalls overall are over instances, AP is the mean over the types."""
    instances = column("entities-cca/table2", "instances")
    overall = instances.pop("overall")
    assert sum(instances.values()) == overall == 14558
    for key in ("r@1", "r@10", "r@100"):
        recall = column("entities-cca/table2", key)
        mean = sum(recall[name] * count for name, count in instances.items()) / overall
        assert mean == pytest.approx(recall["overall"], abs=0.006)
    precision = column("entities-cca/table2", "ap_nms")
    mean = sum(precision[name] for name in instances) / len(instances)
    assert mean == pytest.approx(precision["overall"], abs=0.006)


def test_frequent_phrases_are_in_order_of_frequency() -> None:
    instances = list(column("entities-cca/table3", "instances").values())
    assert instances == sorted(instances, reverse=True)


def test_word_magnitudes_run_from_the_ends_inwards() -> None:
    magnitudes = list(column("dvsa/table1", "magnitude").values())
    assert magnitudes[:40] == sorted(magnitudes[:40])
    assert magnitudes[40:] == sorted(magnitudes[40:], reverse=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("two-branch/table2/embedding-constraints", "two-branch/table5/image-sentence"),
        ("entities-cca/table5/hglmm", "two-branch/table2/cca-hglmm-plummer"),
        ("concepts-order/table2-flickr30k/cnp-ctx-gen", "concepts-order/table4-flickr30k/ours"),
        ("concepts-order/table3-mscoco/lambda-1", "concepts-order/table4-mscoco/ours"),
        ("concepts-order/table2-mscoco/cnp-ctx", "concepts-order/table3-mscoco/lambda-0"),
        ("entities-cca/table5/brnn", "concepts-order/table4-flickr30k/dvsa"),
        ("dvsa/table2/brnn", "hm-lstm/table1/deepvs"),
    ],
)
def test_the_same_model_has_the_same_figures_in_two_tables(one: str, other: str) -> None:
    figures = []
    for name in (one, other):
        table = paper_tables()[name.rpartition("/")[0]]
        figures.append(table.figures(next(row for row in table.rows if row.id == name.rpartition("/")[2])))
    shared = figures[0].keys() & figures[1].keys()
    assert len(shared) >= 6
    assert {key: figures[0][key] for key in shared} == {key: figures[1][key] for key in shared}


def test_figures_keep_their_print() -> None:
    table = paper_tables()["hm-lstm/table1"]
    nic = next(row for row in table.rows if row.id == "nic")
    assert nic.cells == ("20", "61", "6", "19", "64", "5")
    assert table.figures(nic)["image_to_text.r@1"] == 20.0


def test_a_cell_without_a_figure_is_absent() -> None:
    table = paper_tables()["hm-lstm/table2"]
    deepsp = next(row for row in table.rows if row.id == "deepsp")
    assert "image_to_text.median_rank" not in table.figures(deepsp)
    assert table.figures(deepsp)["text_to_image.r@10"] == 66.5


def test_tables_are_found_by_number_part_and_paper() -> None:
    assert [table.name for table in find_tables("concepts-order", "2")] == [
        "concepts-order/table2-flickr30k",
        "concepts-order/table2-mscoco",
    ]
    assert [table.name for table in find_tables("concepts-order", "table2-mscoco")] == ["concepts-order/table2-mscoco"]
    assert len(find_tables("entities-cca")) == 5
    assert len(find_tables()) == len(TABLES)
    assert "ICCV 2015" in paper_title("entities-cca")


@pytest.mark.parametrize(
    ("paper", "table", "problem"),
    [
        ("clip", None, "no paper 'clip'; the papers are entities-cca, .*dvsa"),
        ("paper0", "1", "no paper 'paper0'"),
        ("entities-cca", "9", "entities-cca has no table 9; .*results papers"),
    ],
)
def test_a_table_that_no_paper_has_is_named(paper: str, table: str | None, problem: str) -> None:
    with pytest.raises(DeixisError, match=problem):
        find_tables(paper, table)
