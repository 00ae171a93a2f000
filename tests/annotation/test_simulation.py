"""Replays by simulated workers: perfect ones give back the truth, bad ones are caught, and the scores are right."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.annotation.charts import bar_chart, line_chart, nice_top
from deixis.annotation.simulation.agreement import Tally, add_b_cubed, add_pairs, matches, score_corpus
from deixis.annotation.simulation.causes import count_causes
from deixis.annotation.simulation.study import choose_images, run_study
from deixis.annotation.simulation.truth import uncovered
from deixis.annotation.workflow_records import Settings
from deixis.corpus import Box, Corpus, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from tests.annotation.worlds import made_up_corpus

QUICK = Settings(test_questions=1, test_attempts=1, first_items=1)
KNOWN = made_up_corpus(150, seed=99, first=1000)


def test_perfect_workers_give_back_the_truth(tmp_path: Path) -> None:
    study = run_study(tmp_path / "project.db", made_up_corpus(4), KNOWN, "error-0", 1, QUICK)
    assert study.finished
    for name in ("pairs", "b_cubed", "boxes", "mention_boxes"):
        assert study.figures[name]["f1"] == 100.0
    differences = {name: count for name, count in study.counts.items() if name.startswith("causes: ") and count}
    assert set(differences) == {"causes: boxes", "causes: chains"}
    assert set(study.figures["errors"].values()) == {0.0}
    assert study.figures["links"]["of_mentions_squared"] < 100


@pytest.mark.slow
def test_bad_workers_are_caught_and_good_ones_finish(tmp_path: Path) -> None:
    study = run_study(tmp_path / "project.db", made_up_corpus(25), KNOWN, "mixed", seed=1)
    assert study.finished
    assert study.figures["errors"]["chunking_errors"] == 0
    assert 0 < study.figures["errors"]["coreference_errors"] < study.figures["errors"]["images_with_errors"]
    workers = study.figures["workers"]
    assert workers["lazy"]["caught"] == workers["random"]["caught"] == 100.0
    assert study.figures["pairs"]["f1"] > 90


def test_images_for_work_and_for_verification_are_different_ones() -> None:
    chosen, known = choose_images(KNOWN, 20, 30, Random(0))
    assert len(chosen) == 20
    assert len(known) == 30
    assert not {image.id for image in chosen} & {image.id for image in known}
    with pytest.raises(DeixisError, match="are needed"):
        choose_images(KNOWN, 100, 100, Random(0))


partitions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


@given(partitions)
def test_pairs_and_b_cubed_agree_with_counting_by_hand(labels: list[tuple[int, int]]) -> None:
    spans = [(0, place, place + 1) for place in range(len(labels))]
    found = {span: label[0] for span, label in zip(spans, labels, strict=True)}
    truth = {span: label[1] for span, label in zip(spans, labels, strict=True)}
    pairs, b_cubed = Tally(), Tally()
    add_pairs(pairs, found, truth)
    add_b_cubed(b_cubed, found, truth)
    together = {pair for pair in combinations(spans, 2) if found[pair[0]] == found[pair[1]]}
    should_be = {pair for pair in combinations(spans, 2) if truth[pair[0]] == truth[pair[1]]}
    assert (pairs.right, pairs.found, pairs.truth) == (len(together & should_be), len(together), len(should_be))
    precision = 0.0
    for span in spans:
        own = {other for other in spans if found[other] == found[span]}
        due = {other for other in spans if truth[other] == truth[span]}
        precision += len(own & due) / len(own)
    assert b_cubed.right == pytest.approx(precision)


def test_a_corpus_scores_perfectly_against_itself_and_less_when_something_is_missing() -> None:
    corpus = made_up_corpus(5)
    assert all(part["f1"] == 100.0 for part in score_corpus(corpus, corpus).values())
    assert set(count_causes(corpus, corpus)) >= {"chains", "boxes"}
    first = corpus.images[0]
    fewer = make_image(
        first.id,
        captions=[
            make_caption(c.text, c.words, [Phrase(p.start, p.end, "1", p.types) for p in c.phrases])
            for c in first.captions
        ],
    )
    scores = score_corpus(Corpus([fewer]), corpus)
    assert scores["boxes"]["recall"] == 0.0
    assert scores["pairs"]["precision"] < 100
    assert scores["pairs"]["recall"] == 100.0


def test_boxes_match_one_to_one() -> None:
    box, near, far = Box(0, 0, 10, 10), Box(0, 0, 10, 9), Box(50, 50, 60, 60)
    assert matches((box, near), (box,)) == [1.0]
    assert matches((near, far), (box,)) == [pytest.approx(0.9)]
    assert uncovered((box, far), (near,)) == [far]
    assert uncovered((box, box), (near,)) == [box]


def test_charts_are_whole_svg_documents_that_show_their_figures() -> None:
    from defusedxml.ElementTree import fromstring

    bars = bar_chart("Title & more", ["people", "other"], {"chains": [3, 10], "boxes": [4, 0]})
    assert len([part for part in fromstring(bars).iter() if part.tag.endswith("title")]) == 4
    assert "Title &amp; more" in bars
    lines = line_chart("T", "x", [0, 5, 10], {"a": [90, 80, 70], "b": [99, 98, 97]}, 50)
    assert len([part for part in fromstring(lines).iter() if part.tag.endswith("circle")]) == 6
    assert nice_top(83) == 100
