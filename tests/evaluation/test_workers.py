"""Ranking by several processes promises the ranks of one, and a process' memory that does not grow with the matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deixis.errors import DeixisError
from deixis.evaluation.ranking import evaluate_ranking
from deixis.evaluation.ranks import best_ranks
from deixis.evaluation.scores import EmbeddingScores, FunctionScores, MatrixScores, ScoreError
from deixis.evaluation.workers import mapped


def test_any_number_of_workers_gives_the_ranks_of_the_whole_matrix(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    owners = np.sort(random.integers(0, 40, 300))
    images = random.normal(size=(40, 12)).astype(np.float32)
    captions = (images[owners] + random.normal(size=(300, 12))).astype(np.float32)
    captions[7] = captions[3]  # a tie
    np.save(tmp_path / "captions.npy", captions)
    stored = np.load(tmp_path / "captions.npy", mmap_mode="r")
    # Tiles of a few images: many for each process.
    scores = EmbeddingScores(images, stored, memory=20_000)
    whole = evaluate_ranking(scores, owners)
    assert evaluate_ranking(scores, owners, workers=2) == whole
    exact = np.round((images @ captions.T) * 8) / 8
    matrix = MatrixScores(exact, block_size=900)
    ranks = best_ranks(matrix, np.arange(40), owners, workers=3)
    for side, table, own in (
        (0, exact, np.arange(40)[:, None] == owners),
        (1, exact.T, owners[:, None] == np.arange(40)),
    ):
        best = np.where(own, table, -np.inf).max(1)
        right = 1 + ((table >= best[:, None]) & ~own).sum(1)
        np.testing.assert_array_equal(ranks[side], np.where(own.any(1), right, 0))


def test_a_score_that_cannot_be_ranked_is_named_also_by_a_worker() -> None:
    table = np.zeros((6, 30))
    table[1, 29] = np.nan
    with pytest.raises(ScoreError, match="row 1, column 29"):
        best_ranks(MatrixScores(table, block_size=10), np.arange(6), np.repeat(np.arange(6), 5), workers=2)


def test_a_function_is_ranked_by_one_process() -> None:
    scores = FunctionScores(
        lambda rows, columns: np.zeros((rows.stop - rows.start, columns.stop - columns.start)), (4, 4)
    )
    with pytest.raises(DeixisError, match="one process"):
        best_ranks(scores, np.arange(4), np.arange(4), workers=2)


def test_what_lies_in_a_file_is_not_copied_and_a_part_of_it_is(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(6, 2)
    np.save(tmp_path / "all.npy", array)
    stored, copies = np.load(tmp_path / "all.npy", mmap_mode="r"), tmp_path / "copies"
    copies.mkdir()
    assert mapped(stored, copies).path == str(tmp_path / "all.npy")
    assert not any(copies.iterdir())
    for given in (stored, stored[2:5], array, array.T):
        np.testing.assert_array_equal(mapped(given, copies).opened(), given)
    assert len(list(copies.iterdir())) == 3
