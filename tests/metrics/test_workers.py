"""Ranking by several processes promises the ranks of one, and a process' memory that does not grow with the matrix."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.errors import DeixisError
from deixis.metrics import rank_workers as workers
from deixis.metrics.rank_workers import mapped
from deixis.metrics.ranking import captions_evenly, evaluate_ranking
from deixis.metrics.ranks import best_ranks
from deixis.metrics.score_blocks import EmbeddingScores, FunctionScores, MatrixScores, ScoreError


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


def embeddings(captions: int) -> EmbeddingScores:
    random = np.random.default_rng(0)
    sides = (random.normal(size=(count, 4)).astype(np.float32) for count in (50, captions))
    return EmbeddingScores(*sides, memory=1 << 20)


def test_the_first_process_keeps_a_few_numbers_a_caption() -> None:
    """An owner, a score to reach, a count; then an order, or the ranks for their median. Norms come before."""
    peaks = []
    for captions in (50_000, 250_000):
        scores, owners = embeddings(captions), captions_evenly(50, captions // 50)
        tracemalloc.start()
        evaluate_ranking(scores, owners)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 200_000 < 40


class Here:
    """Stands for a pool of processes, and weighs what would go to one and come back."""

    sent: int
    returned: int

    def __init__(self, count: int, context: Any, begin: Callable[..., None], given: tuple[Any, ...]) -> None:
        Here.sent, Here.returned = len(pickle.dumps(given)), 0
        begin(*given)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *fault: object) -> None: ...

    def map(self, work: Callable[[Any], Any], things: Iterable[Any]) -> Iterator[Any]:
        for thing in things:
            answer = work(thing)
            Here.returned += len(pickle.dumps(answer))
            yield answer


def test_a_worker_is_sent_no_arrays_and_returns_each_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Here)
    weights = []
    for captions in (50_000, 250_000):
        scores, owners = embeddings(captions), captions_evenly(50, captions // 50)
        assert evaluate_ranking(scores, owners, workers=2) == evaluate_ranking(scores, owners)
        weights.append((Here.sent, Here.returned))
    assert weights[1][0] < 20_000
    assert (weights[1][1] - weights[0][1]) / 200_000 < 9
