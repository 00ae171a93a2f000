"""Rules of the tasks: complete, with examples that are true of the drawn pictures, and a project's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from deixis.annotation import schema
from deixis.annotation.task_rules import (
    EXAMPLE_PICTURES,
    default_rules,
    load_rules,
    read_rules,
    rule_files,
    store_rules,
)
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import ANSWERS, DRAWING, KEYS, TASKS
from deixis.corpus import Image, open_corpus
from deixis.errors import DeixisError, InputError
from deixis.web.shell import STATIC
from tests.annotation.conftest import MakeBench


@pytest.fixture(scope="module")
def scenes() -> dict[str, tuple[Image, bytes]]:
    corpus = open_corpus("scenes")
    assert corpus.pictures is not None
    wanted = {name.removesuffix(".png") for name in EXAMPLE_PICTURES}
    return {image.id: (image, corpus.pictures.read(image)) for image in corpus if image.id in wanted}


def test_every_task_has_texts_keys_reasons_and_a_good_and_a_bad_example() -> None:
    assert tuple(default_rules()) == TASKS
    for task, rules in default_rules().items():
        assert rules.rules
        keys = [KEYS[answer] for answer in ANSWERS[task]]
        assert len(set(keys)) == len(keys)
        assert set(rules.reasons) == ({"box"} if task == DRAWING else set(ANSWERS[task]))
        assert {example.good for example in rules.examples} == {True, False}
        for example in rules.examples:
            assert all(any(marked for _, marked in caption) for caption in example.pieces())


def test_examples_show_the_drawn_corpus_and_good_boxes_are_its_boxes(
    scenes: dict[str, tuple[Image, bytes]],
) -> None:
    for rules in default_rules().values():
        for example in rules.examples:
            image, picture = scenes[example.picture.removesuffix(".png")]
            assert (STATIC / "examples" / example.picture).read_bytes() == picture
            truth = {tuple(map(int, (b.x1, b.y1, b.x2, b.y2))) for b in image.boxes}
            boxes = [*example.boxes, *([example.box] if example.good and example.box is not None else [])]
            assert {(b.x1, b.y1, b.x2, b.y2) for b in boxes} <= truth
            phrases = {caption.phrase_text(p).lower() for caption in image.captions for p in caption.phrases}
            for caption in example.pieces():
                assert {text.lower() for text, marked in caption if marked} <= phrases


def test_a_project_has_its_own_rules_where_it_was_given_any(make_bench: MakeBench, place: str, tmp_path: Path) -> None:
    bench = make_bench(images=1)
    assert bench.task_rules == default_rules()
    for name, text in rule_files().items():
        (tmp_path / name).write_text(text)
    assert read_rules(tmp_path) == default_rules()
    for name in rule_files():
        if name != "link.toml":
            (tmp_path / name).unlink()
    text = rule_files()["link.toml"].replace('title = "Same thing?"', 'title = "Dasselbe?"')
    (tmp_path / "link.toml").write_text(text)
    with schema.writing(bench.engine) as connection:
        store_rules(connection, read_rules(tmp_path))
        rules = load_rules(connection)
    assert rules["link"].title == "Dasselbe?"
    assert rules["chain"] == default_rules()["chain"]
    with Workbench(place) as again:
        assert again.task_rules == rules


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("title =", "titel ="), "titel"),
        (('same = "Same"\n', ""), "answers: needs labels for exactly same, different"),
        (("[reasons]\n", '[reasons]\nmaybe = "?"\n'), "reasons: can only have different, same"),
        (("scene-000000.png", "../../secret.png"), "can only show scene-000000.png"),
        (("title", "[["), "is not a file of rules"),
    ],
)
def test_rules_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    (tmp_path / "link.toml").write_text(rule_files()["link.toml"].replace(*change, 1))
    with pytest.raises(InputError, match=problem) as refused:
        read_rules(tmp_path)
    assert "link.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_without_rules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"link\.toml"):
        read_rules(tmp_path)


EXAMPLE = '[[examples]]\npicture = "scene-000000.png"\ncaptions = ["a"]\ngood = true\ntext = "t"\n'


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        (EXAMPLE + "box = [inf, 0, 1, 1]", "has a box that is not inside a picture"),
        (EXAMPLE + "boxes = [[0, 0, 1e300, 1]]", "has a box that is not inside a picture"),
        (EXAMPLE + "box = [nan, 0, 1, 1]", "has a box that is not inside a picture"),
        (EXAMPLE * 60, "has 6. examples, more than 50"),
        ("#" * 200_000, "is larger than 200,000 bytes"),
        ("x = " + "[" * 3000, "is not a file of rules"),
    ],
)
def test_rules_that_would_harm_the_project_are_refused(tmp_path: Path, added: str, problem: str) -> None:
    for name, text in rule_files().items():
        (tmp_path / name).write_text(f"{text}\n{added}\n")
    with pytest.raises(InputError, match=problem):
        read_rules(tmp_path)


@pytest.mark.parametrize("change", ["alarm=inf", "first_items=99999999999999999999", "lease_seconds=nan"])
def test_settings_that_could_not_be_read_again_are_refused(make_bench: MakeBench, change: str) -> None:
    bench = make_bench()
    name, _, value = change.partition("=")
    with pytest.raises(DeixisError, match="the settings do not fit"):
        bench.change_settings({name: value})
    # The project is as it was.
    bench.change_settings({"first_items": "7"})
    assert bench.settings.first_items == 7


def test_a_setting_of_thousands_of_digits_is_refused(make_bench: MakeBench) -> None:
    with pytest.raises(DeixisError, match="Expected `int`"):
        make_bench().change_settings({"first_items": "9" * 5000})
