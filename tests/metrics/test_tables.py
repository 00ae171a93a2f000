"""Our results beside the papers' figures: right rows, right means, the same text every time."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from deixis.errors import DeixisError
from deixis.metrics.paper_tables import find_tables, paper_tables
from deixis.metrics.result_pages import pages
from deixis.metrics.result_tables import as_data, compare, markdown
from deixis.metrics.results import BoxSupervision, CorpusReference, FormerRecipe, Protocol, Recipe, Result, make_result

PROTOCOL = Protocol("retrieval", "pessimistic", {"captions_per_image": 5})
CORPUS = CorpusReference("flickr8k", "c0ffee" * 8, "test", "decade" * 8)
TABLE5 = find_tables("entities-cca", "5")


def recalls(first: float) -> dict[str, Any]:
    return {
        "image_to_text": {"r@1": first, "r@5": first + 20, "r@10": first + 30, "median_rank": 4.0},
        "text_to_image": {"r@1": first - 9, "r@5": first + 10, "r@10": first + 20, "median_rank": 6.0},
    }


def result(first: float = 30.0, **changes: Any) -> Result:
    settings = {"corpus": CORPUS, "rows": ["entities-cca/table5/sae"], "seed": 0, "duration": 1.0, **changes}
    return make_result(settings.pop("protocol", PROTOCOL), settings.pop("metrics", recalls(first)), **settings)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_our_figures_are_under_the_row_they_name() -> None:
    lines = markdown(compare({"sae.json": result()}), TABLE5).splitlines()
    printed = next(number for number, line in enumerate(lines) if "| SAE |" in line)
    assert cells(lines[printed])[2:] == ["38.3", "63.7", "75.5", "25.4", "54.2", "67.4"]
    assert cells(lines[printed + 1])[1] == "↳ Deixis [1]"
    assert cells(lines[printed + 1])[2:] == ["**30.0**", "**50.0**", "**60.0**", "**21.0**", "**40.0**", "**50.0**"]
    assert sum("Deixis [1]" in line for line in lines) == 1


def test_rows_without_a_result_of_ours_are_printed_all_the_same() -> None:
    text = markdown(compare({}), TABLE5)
    assert "Deixis: no result in the folder that was read." in text
    for row in TABLE5[0].rows:
        assert f"| {row.label} | " + " | ".join(row.cells) + " |" in text


def test_several_seeds_are_one_entry_with_mean_and_spread() -> None:
    values = [30.0, 30.9, 31.2]
    comparison = compare({f"sae-{seed}.json": result(value, seed=seed) for seed, value in enumerate(values)})
    text = markdown(comparison, TABLE5)
    assert f"**{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}**" in text
    assert "seeds 0, 1, 2" in text
    ours = next(row for row in as_data(comparison, TABLE5)["tables"][0]["rows"] if row["row"] == "sae")["ours"]
    assert len(ours) == 1
    assert ours[0]["mean"]["image_to_text.r@1"] == pytest.approx(statistics.mean(values))
    assert ours[0]["spread"]["image_to_text.r@1"] == pytest.approx(statistics.stdev(values))


def test_a_seed_from_before_its_recipe_was_renamed_is_one_of_the_entry() -> None:
    below = Recipe("concepts-order/concepts", "c" * 64)
    renamed = Recipe(
        "two-branch/sentences-bi",
        "a" * 64,
        (msgspec.structs.replace(below, formerly=FormerRecipe("paper3/concepts", "d" * 64)),),
        FormerRecipe("paper1/sentences-bi", "b" * 64),
    )
    current = Recipe("two-branch/sentences-bi", "a" * 64, (below,))
    [entry] = compare({"0.json": result(recipe=renamed), "1.json": result(recipe=current, seed=1)}).of_table(TABLE5[0])
    assert entry.seeds == (0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": Recipe("another", "1" * 64)},
        {"corpus": msgspec.structs.replace(CORPUS, split_hash="1" * 48)},
        {"protocol": msgspec.structs.replace(PROTOCOL, parameters={"captions_per_image": 1})},
        {"readings": ["another reading"]},
    ],
)
def test_runs_of_different_things_are_not_averaged(change: dict[str, Any]) -> None:
    text = markdown(compare({"a.json": result(), "b.json": result(40.0, seed=1, **change)}), TABLE5)
    assert "Deixis [1]" in text
    assert "Deixis [2]" in text
    assert "±" not in text


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(DeixisError, match=r"a\.json and b\.json are the same run with seed 0"):
        compare({"a.json": result(), "b.json": result(31.0)})


def test_the_notes_say_how_a_figure_was_made() -> None:
    supervision = BoxSupervision(False, True, "proposals learned on drawn boxes", 100, 72.5)
    metrics = {"localization": {"overall": {"r@1": 25.0, "instances": 12}, "by_type": {"people": {"r@1": 30.0}}}}
    run = result(
        metrics=metrics,
        rows=["entities-cca/table2"],
        box_supervision=supervision,
        readings=["suppression at 0.5"],
        recipe=Recipe("entities-cca/cca", "ab" * 32, stands_on=(Recipe("entities-cca/features", "cd" * 32),)),
    )
    text = markdown(compare({"loc.json": run}), find_tables("entities-cca", "2"))
    note = next(line for line in text.splitlines() if line.startswith("1. "))
    for fact in (
        "recipe `entities-cca/cca` (abababababab); on `entities-cca/features` (cdcdcdcdcdcd); flickr8k",
        "flickr8k test (corpus c0ffeec0ffee, split hash decadedecade)",
        "protocol `retrieval` (captions\\_per\\_image = 5)",
        "ties pessimistic",
        "annotated boxes seen by proposals: proposals learned on drawn boxes",
        "upper bound 72.50 at 100 regions",
        "readings: suppression at 0.5",
        "`loc.json`",
    ):
        assert fact in note
    assert "Paper: Flickr30k Entities, test. Deixis: flickr8k test." in text


def test_one_run_fills_the_rows_that_are_its_parts() -> None:
    metrics = {"localization": {"overall": {"r@1": 25.0, "instances": 12}, "by_type": {"people": {"r@1": 30.0}}}}
    run = result(
        metrics=metrics, rows=["entities-cca/table2"], box_supervision=BoxSupervision(False, False, "no boxes seen")
    )
    lines = markdown(compare({"loc.json": run}), find_tables("entities-cca", "2")).splitlines()
    ours = {cells(before)[0]: cells(line)[1:] for before, line in pairwise(lines) if "↳" in line}
    assert ours == {
        "people": ["–", "–", "**30.00**", "–", "–"],
        "mAP/overall": ["**12**", "–", "**25.00**", "–", "–"],
    }


def test_a_result_may_be_in_several_tables() -> None:
    comparison = compare({"a.json": result(rows=["entities-cca/table5/hglmm", "two-branch/table2/cca-hglmm-plummer"])})
    assert [table.name for table in paper_tables().values() if comparison.of_table(table)] == [
        "entities-cca/table5",
        "two-branch/table2",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["entities-cca/table5/sea"], "nearest is 'entities-cca/table5/sae'"),
        (["entities-cca/table2/people"], "nearest is 'entities-cca/table2'"),
        (["nonsense"], "no row 'nonsense'"),
        (["hm-lstm/table4/hm-lstm"], "has none of its figures, such as strings.region_to_phrase"),
    ],
)
def test_a_row_that_cannot_be_filled_is_named_with_the_file(rows: list[str], message: str) -> None:
    with pytest.raises(DeixisError, match=message) as fault:
        compare({"wrong.json": result(rows=rows)})
    assert str(fault.value).startswith("wrong.json: ")


def test_results_that_name_no_row_have_a_table_of_their_own() -> None:
    comparison = compare({"a.json": result(rows=[]), "b.json": result(41.25, rows=[], corpus=None)})
    text = markdown(comparison, [])
    assert "| Metric | flickr8k test [1] | no corpus [2] |" in text
    assert "| `image_to_text.r@1` | 30 | 41.25 |" in text
    assert "Other results" not in markdown(comparison, TABLE5, with_others=False)
    assert [entry["files"] for entry in as_data(comparison, [])["others"]] == [("a.json",), ("b.json",)]


def test_a_long_breakdown_is_named_and_not_printed() -> None:
    by_word = {f"word{number}": {"ap": 1.0 * number} for number in range(40)}
    by_type = {"people": {"ap": 3.5}, "animals": {"ap": 4.5}}
    own = result(rows=[], metrics={"found": {"by_word": by_word, "by_type": by_type}})
    text = markdown(compare({"a.json": own}), [])
    assert "| `found.by_type.people.ap` | 3.50 |" in text
    assert "word7" not in text
    assert "In the files alone: `found.by_word` (40)." in text


def test_the_text_does_not_depend_on_the_order_of_files() -> None:
    results = {f"{name}.json": result(seed=seed, rows=[]) for seed, name in enumerate("abc")}
    results |= {f"{name}.json": result(seed=seed) for seed, name in enumerate("xyz")}
    backwards = dict(reversed(results.items()))
    tables = list(paper_tables().values())
    assert markdown(compare(results), tables) == markdown(compare(backwards), tables)


def test_every_line_of_a_table_has_as_many_cells_as_its_head() -> None:
    odd = CorpusReference("pipes | and\nlines *here*", "f" * 64, "te|st", "f" * 64)
    runs = {"a.json": result(corpus=odd), "b`|.json": result(rows=[], corpus=odd)}
    text = markdown(compare(runs), list(paper_tables().values()))
    for block in text.split("\n\n"):
        if block.startswith("|"):
            widths = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(widths) == 1, block


def test_a_page_shows_main_figures_and_leaves_counts_and_breakdowns_to_the_files() -> None:
    metrics = {"order": {"accuracy": 66.0, "pairs": 2304, "by_type": {"people": 70.0}}, "random": {"accuracy": 50.0}}
    results = {f"base/{name}.json": result(rows=[], seed=None, metrics=metrics) for name in ("a",)}
    text = pages(compare(results), "deixis results pages", "../../results")["base.md"]
    assert cells(text.splitlines()[-1]) == ["order accuracy", "66.0"]
    assert "[file](../../results/base/a.json)" in text


def test_many_results_show_the_first_figure_of_every_group() -> None:
    group = dict.fromkeys(("accuracy", "other_pictures", "likelihood", "ratio"), 50.0)
    results = {
        f"base/{seed}.json": result(rows=[], corpus=msgspec.structs.replace(CORPUS, name=str(seed)), metrics={
            "colour": group, "number": group, "role": group
        })
        for seed in range(8)
    }  # fmt: skip
    text = pages(compare(results), "deixis results pages", "../../results")["base.md"]
    head = cells(next(line for line in text.splitlines() if line.startswith("| Result")))
    assert len(head) == 8
    assert {"colour accuracy", "number accuracy", "role accuracy", "role other pictures"} <= {*head}
