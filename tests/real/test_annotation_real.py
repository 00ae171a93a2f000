"""A replay of real images: perfect workers differ from the release only where the paper's assumptions force it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from deixis.annotation.simulation.study import choose_images, run_study
from deixis.annotation.workflow_records import Settings
from deixis.corpus import open_corpus

RELEASE = Path(os.environ.get("DEIXIS_DATA", "no data")) / "flickr30k_entities" / "annotations.zip"
pytestmark = pytest.mark.skipif(
    not RELEASE.exists(), reason="needs DEIXIS_DATA, a folder that holds flickr30k_entities/annotations.zip"
)


@pytest.mark.slow
def test_every_difference_of_a_perfect_replay_has_a_cause(tmp_path: Path) -> None:
    chosen, known = choose_images(open_corpus(RELEASE), 8, 60, Random(3))
    quick = Settings(test_questions=1, test_attempts=1, first_items=1)
    study = run_study(tmp_path / "project.db", chosen, known, "error-0", 3, quick)
    assert study.finished
    assert not [name for name, count in study.counts.items() if "unexplained" in name and count]
    assert study.figures["mention_boxes"]["f1"] == 100.0
    assert study.figures["links"]["of_mentions_times_chains"] < 30
