"""Result records: saved and read again they are equal, and nothing unfit gets in or out unnamed."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus.records import Corpus, make_image
from deixis.errors import DeixisError, InputError
from deixis.metrics.results import (
    BoxSupervision,
    CorpusReference,
    Protocol,
    Recipe,
    Result,
    corpus_reference,
    flatten,
    json_schema,
    load,
    load_folder,
    make_result,
    save,
)

PROTOCOL = Protocol("retrieval", "pessimistic", {"captions_per_image": 5})
CORPUS = CorpusReference("scenes", "f" * 64, "test", "a" * 64)
METRICS = {"image_to_text": {"r@1": 38.3}, "mean_recall": 50.0}


def result(**changes: Any) -> Result:
    return make_result(PROTOCOL, changes.pop("metrics", METRICS), **{"duration": 1.5, "corpus": CORPUS, **changes})


def test_a_result_is_equal_after_saving_and_loading(tmp_path: Path) -> None:
    given_result = result(
        rows=["entities-cca/table5/sae"],
        recipe=Recipe("entities-cca/sae", "b" * 64),
        seed=3,
        counts={"images": 1000},
        metrics={"localization": {"by_type": {"people": {"r@1": 29.58}}}},
        box_supervision=BoxSupervision(False, True, "learned proposals", 100, 76.91),
        readings=["AP-NMS threshold 0.5"],
    )
    save(given_result, tmp_path / "deep" / "result.json")
    assert load(tmp_path / "deep" / "result.json") == given_result


def test_rows_with_the_former_names_of_papers_are_read_as_those_of_now(tmp_path: Path) -> None:
    save(result(rows=["entities-cca/table5/sae"]), tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    (tmp_path / "old.json").write_text(text.replace("entities-cca/", "paper0/"), encoding="utf-8")
    assert load(tmp_path / "old.json") == load(tmp_path / "result.json")


@given(st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_figures_keep_every_bit(tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float]) -> None:
    path = tmp_path_factory.getbasetemp() / "bits.json"
    save(result(metrics=metrics, box_supervision=BoxSupervision(False, False, "no boxes seen")), path)
    assert load(path).metrics == metrics


def test_the_environment_is_recorded() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    made = result()
    assert made.versions["numpy"] == np.__version__
    assert {"deixis", "python", "platform"} <= made.versions.keys()
    assert made.command.startswith("deixis")
    assert made.created >= before
    assert made.created.utcoffset() is not None
    assert made.duration == 1.5


def test_numpy_figures_become_plain_numbers() -> None:
    metrics = {"r@1": np.float32(0.5), "queries": np.int64(7)}
    assert result(metrics=metrics).metrics == {"r@1": 0.5, "queries": 7.0}


def test_the_corpus_reference_names_the_split() -> None:
    corpus = Corpus([make_image("1", split="test"), make_image("2", split="train")], name="tiny")
    reference = corpus_reference(corpus, "test")
    assert reference == CorpusReference("tiny", corpus.fingerprint, "test", corpus.split_hash("test"))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, "high", None, True])
def test_what_is_no_finite_number_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(DeixisError, match=r"metrics\.image_to_text\.r@1: .* not a finite number"):
        result(metrics={"image_to_text": {"r@1": wrong}})


@pytest.mark.parametrize("name", ["localization", "region_to_phrase", "alignment"])
def test_figures_about_regions_owe_a_statement_of_box_supervision(name: str) -> None:
    metrics = {"strings": {name: {"r@1": 25.3}}}
    with pytest.raises(DeixisError, match=f"box_supervision: missing; {name}"):
        result(metrics=metrics)
    assert result(metrics=metrics, box_supervision=BoxSupervision(False, False, "no boxes seen")).metrics == metrics


def test_a_tree_too_deep_to_be_read_is_not_saved(tmp_path: Path) -> None:
    deep = result(metrics={"a": {"b": {"c": {"d": {"e": 1.0}}}}})
    with pytest.raises(InputError):
        save(deep, tmp_path / "deep.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"seed": "three"}, "seed"),
        ({"schema": 99}, "schema"),
        ({"schema": None}, "schema"),
        ({"duration": -1}, "duration"),
        ({"created": "yesterday"}, "created"),
        ({"created": "2026-01-01T00:00:00"}, "created"),
        ({"protocol": {"name": "retrieval"}}, "protocol"),
        ({"protocol": None}, "protocol"),
        ({"corpus": {"name": "x"}}, "corpus"),
        ({"metrics": {"image_to_text": {"r@1": None}}}, "metrics.image_to_text.r@1"),
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"localization": {"r@1": 3}}}, "box_supervision"),
        ({"sed": 3}, "sed"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    path = tmp_path / "result.json"
    save(result(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as fault:
        load(path)
    assert str(path) in str(fault.value)
    assert place in str(fault.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"7", b'"\xff"', b'{"schema": 1'])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"result\.json"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: No such file"):
        load(tmp_path / "absent.json")


def test_a_folder_gives_its_results_and_passes_over_other_json(tmp_path: Path) -> None:
    save(result(seed=1), tmp_path / "b" / "one.json")
    save(result(seed=2), tmp_path / "a.json")
    (tmp_path / "manifest.json").write_text('{"parts": []}')
    assert {name: found.seed for name, found in load_folder(tmp_path).items()} == {"a.json": 2, "b/one.json": 1}
    (tmp_path / "half.json").write_text('{"schema": 1, "pro')
    with pytest.raises(InputError, match=r"half\.json"):
        load_folder(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        load_folder(tmp_path / "nowhere")


def test_the_schema_in_the_package_is_that_of_the_record() -> None:
    """After a change: `deixis results schema > src/deixis/evaluation/result.schema.json`."""
    assert (files("deixis.metrics") / "result.schema.json").read_bytes() == json_schema()


def test_the_schema_asks_for_what_loading_asks_for() -> None:
    definition = json.loads(json_schema())["$defs"]["Result"]
    assert set(definition["required"]) == {field.name for field in msgspec.structs.fields(Result) if field.required}
    assert definition["additionalProperties"] is False


def test_flatten_names_figures_by_their_path() -> None:
    assert list(flatten({"a": {"b": 1.0, "c": {"d": 2.0}}, "e": 3.0})) == [("a.b", 1.0), ("a.c.d", 2.0), ("e", 3.0)]


def test_printing_a_result_shows_what_was_measured_and_the_figures() -> None:
    figures = {"image_to_text": {"r@1": 12.5, "median_rank": 3.0}, "mean_recall": 20.0}
    shown = make_result(Protocol("image-text ranking", "none"), figures, duration=1, counts={"images": 1000})
    assert repr(shown) == (
        "image-text ranking (1,000 images)\n  image_to_text r@1 12.5 median_rank 3\n  mean_recall 20"
    )
    assert shown.figures == {"image_to_text.r@1": 12.5, "image_to_text.median_rank": 3.0, "mean_recall": 20.0}
    many = make_result(Protocol("p", "none"), {f"g{n}": {"r@1": 1.0} for n in range(40)}, duration=1)
    assert repr(many).splitlines()[-1] == "  … 28 more lines in `figures`"
    assert len(repr(many).splitlines()) == 14
