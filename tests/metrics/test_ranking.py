"""Retrieval figures against a slow, obvious count; ties, uneven captions, folds and tiles of every size."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.errors import DeixisError
from deixis.metrics import ranks
from deixis.metrics.ranking import captions_evenly, evaluate_ranking, evaluate_sentences, figures, random_figures
from deixis.metrics.ranks import best_ranks
from deixis.metrics.score_blocks import EmbeddingScores, FunctionScores, MatrixScores, ScoreError


def oracle_rank(scores, right):
    """1 + how many wrong answers score at least as much as the best right one."""
    best = max(score for score, good in zip(scores, right, strict=True) if good)
    return 1 + sum(1 for score, good in zip(scores, right, strict=True) if not good and score >= best)


def oracle_ranks(scores, owners):
    images = {
        image: oracle_rank(scores[image], owners == image) for image in range(len(scores)) if (owners == image).any()
    }
    captions = [
        oracle_rank(scores[:, caption], np.arange(len(scores)) == owner) for caption, owner in enumerate(owners)
    ]
    return images, captions


def random_case(generator):
    images = int(generator.integers(1, 9))
    captions = int(generator.integers(1, 25))
    owners = generator.integers(0, images, captions)
    scores = generator.integers(-2, generator.integers(-1, 6), (images, captions)).astype(np.float32)
    scores[generator.random(scores.shape) < generator.choice([0, 0.1])] = -np.inf
    return scores, owners


def test_thousands_of_random_cases_with_ties_agree_with_the_oracle():
    generator = np.random.default_rng(7)
    for _ in range(2500):
        scores, owners = random_case(generator)
        size = int(generator.integers(1, 250))
        image_ranks, caption_ranks = best_ranks(MatrixScores(scores, size), np.arange(len(scores)), owners)
        expected_images, expected_captions = oracle_ranks(scores, owners)
        assert {image: rank for image, rank in enumerate(image_ranks.tolist()) if rank} == expected_images
        assert caption_ranks.tolist() == expected_captions


def test_figures_are_those_of_the_oracle_s_ranks():
    generator = np.random.default_rng(11)
    for _ in range(300):
        scores, owners = random_case(generator)
        ranking = evaluate_ranking(MatrixScores(scores), owners)
        images, captions = oracle_ranks(scores, owners)
        sides = ((ranking.image_to_text, list(images.values())), (ranking.text_to_image, captions))
        for side, expected in sides:
            ordered = sorted(expected)
            half = len(ordered) // 2
            median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
            assert side.median_rank == median
            assert side.mean_rank == pytest.approx(sum(expected) / len(expected))
            assert side.queries == len(expected)
            for k in (1, 5, 10):
                assert side.recall[k] == pytest.approx(100 * sum(rank <= k for rank in expected) / len(expected))
        six = [100 * sum(rank <= k for rank in found) / len(found) for _, found in sides for k in (1, 5, 10)]
        assert ranking.mean_recall == pytest.approx(sum(six) / 6)
        assert (ranking.image_to_text.candidates, ranking.text_to_image.candidates) == (len(owners), len(scores))


@pytest.mark.parametrize("folds", [2, 3])
def test_folds_are_the_mean_of_each_part_ranked_alone(folds):
    generator = np.random.default_rng(folds)
    for _ in range(60):
        images = folds * int(generator.integers(1, 4))
        owners = generator.permutation(np.concatenate([np.arange(images), generator.integers(0, images, 9)]))
        scores = generator.integers(0, 4, (images, len(owners))).astype(float)
        whole = evaluate_ranking(MatrixScores(scores, 10), owners, folds=folds).as_dict()
        size = images // folds
        parts = []
        for fold in range(folds):
            inside = (owners >= fold * size) & (owners < (fold + 1) * size)
            part = scores[fold * size : (fold + 1) * size][:, inside]
            parts.append(evaluate_ranking(MatrixScores(part), owners[inside] - fold * size).as_dict())
        for direction in ("image_to_text", "text_to_image"):
            for name in ("r@1", "r@5", "r@10", "median_rank", "mean_rank"):
                assert whole[direction][name] == pytest.approx(np.mean([part[direction][name] for part in parts]))
        assert whole["mean_recall"] == pytest.approx(np.mean([part["mean_recall"] for part in parts]))


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(1, 900), st.sampled_from([np.float16, np.float32, np.float64, np.int32]))
def test_matrix_embeddings_and_scorer_agree(seed, size, dtype):
    """Embeddings of small whole numbers have exact products, so all three must give the same ranks."""
    generator = np.random.default_rng(seed)
    images, captions = int(generator.integers(1, 20)), int(generator.integers(1, 40))
    left = generator.integers(-2, 3, (images, 3))
    right = generator.integers(-2, 3, (captions, 3))
    owners = np.sort(generator.integers(0, images, captions))
    floats = np.float32 if dtype is np.int32 else dtype
    product = (left @ right.T).astype(dtype)
    sources = (
        MatrixScores(product, size),
        MatrixScores(np.asfortranarray(product), 2 * size),
        FunctionScores(lambda rows, columns: product[rows, columns], product.shape, size),
        EmbeddingScores(left.astype(floats), right.astype(floats), normalize=False, memory=size * 20),
    )
    found = [best_ranks(source, np.arange(images), owners) for source in sources]
    for image_ranks, caption_ranks in found[1:]:
        assert image_ranks.tolist() == found[0][0].tolist()
        assert caption_ranks.tolist() == found[0][1].tolist()


def test_counting_in_strips_changes_nothing(monkeypatch):
    generator = np.random.default_rng(13)
    for _ in range(100):
        scores, owners = random_case(generator)
        whole = best_ranks(MatrixScores(scores), np.arange(len(scores)), owners)
        monkeypatch.setattr(ranks, "STRIP", int(generator.integers(1, 60)))
        strips = best_ranks(MatrixScores(scores), np.arange(len(scores)), owners)
        monkeypatch.undo()
        assert [side.tolist() for side in whole] == [side.tolist() for side in strips]


def test_transposing_swaps_the_directions():
    generator = np.random.default_rng(3)
    for _ in range(200):
        scores, owners = random_case(generator)
        straight = best_ranks(MatrixScores(scores, 6), np.arange(len(scores)), owners)
        turned = best_ranks(MatrixScores(scores.T, 6), owners, np.arange(len(scores)))
        assert straight[0].tolist() == turned[1].tolist()
        assert straight[1].tolist() == turned[0].tolist()


def test_all_equal_scores_give_the_worst_figures():
    ranking = evaluate_ranking(MatrixScores(np.zeros((20, 100))), captions_evenly(20, 5))
    assert ranking.image_to_text.median_rank == 96
    assert ranking.text_to_image.median_rank == 20
    assert ranking.mean_recall == 0


def test_equal_embeddings_tie_wherever_they_stand():
    """Every caption of every image has the same embedding as all the others: nobody may profit from rounding."""
    generator = np.random.default_rng(5)
    for dimensions in (3, 64, 511):
        image, caption = (generator.standard_normal(dimensions).astype(np.float32) for _ in range(2))
        for images in (7, 100):
            left = np.tile(image, (images, 1)) * generator.uniform(0.5, 2, (images, 1)).astype(np.float32)
            right = np.tile(caption, (5 * images, 1))
            for memory in (100_000, 1 << 28):
                ranking = evaluate_ranking(EmbeddingScores(left, right, memory=memory), captions_evenly(images, 5))
                assert ranking.image_to_text.mean_rank == 5 * images - 4
                assert ranking.text_to_image.mean_rank == images


def test_cosines_rank_as_in_double_precision():
    generator = np.random.default_rng(6)
    left = generator.standard_normal((60, 32)).astype(np.float32)
    right = (np.repeat(left, 5, axis=0) + 2 * generator.standard_normal((300, 32))).astype(np.float32)
    left[3] = 0  # an image of zeros has a cosine of 0 with every caption
    exact = np.linalg.norm(left.astype(float), axis=1, keepdims=True)
    unit = left / np.where(exact > 0, exact, 1)
    cosines = unit @ (right / np.linalg.norm(right.astype(float), axis=1, keepdims=True)).T
    expected = best_ranks(MatrixScores(cosines), np.arange(60), captions_evenly(60, 5))
    found = best_ranks(EmbeddingScores(left, right, memory=50_000), np.arange(60), captions_evenly(60, 5))
    assert found[0].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()


def test_embeddings_stay_within_their_memory():
    import tracemalloc

    left = np.ones((600, 64), np.float32)
    right = np.ones((3000, 64), np.float32)
    for memory in (1 << 20, 8 << 20):
        tracemalloc.start()
        evaluate_ranking(EmbeddingScores(left, right, memory=memory), captions_evenly(600, 5))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The vectors of a rank, a limit and a norm for each image and caption come on top.
        assert peak < memory + 200 * 3600


def test_a_memory_mapped_matrix_is_never_read_whole(tmp_path: Path):
    import tracemalloc

    generator = np.random.default_rng(8)
    scores = generator.standard_normal((400, 2000)).astype(np.float16)
    np.save(tmp_path / "scores.npy", scores)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    expected = evaluate_ranking(MatrixScores(scores.astype(np.float64)), captions_evenly(400, 5))
    tracemalloc.start()
    found = evaluate_ranking(MatrixScores(mapped, 5000), captions_evenly(400, 5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == expected
    assert peak < scores.nbytes


def test_each_score_is_asked_for_once():
    asked = np.zeros((12, 30), int)

    def scorer(rows, columns):
        asked[rows, columns] += 1
        return np.zeros((rows.stop - rows.start, columns.stop - columns.start))

    owners = np.sort(np.random.default_rng(0).integers(0, 12, 30))
    evaluate_ranking(FunctionScores(scorer, (12, 30), 28), owners)
    # Images without a caption at the end of a tile have no column there, but are asked for with all the others.
    assert (asked == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("size", [1, 12, 2500])
def test_a_score_that_cannot_be_ranked_is_refused_with_its_place(bad, size):
    generator = np.random.default_rng(1)
    for _ in range(20):
        owners = generator.integers(0, 6, 20)
        scores = generator.random((6, 20))
        row, column = generator.integers(0, 6), generator.integers(0, 20)
        scores[row, column] = bad
        with pytest.raises(ScoreError, match=f"^row {row}, column {column}: the score is {bad}, which cannot"):
            evaluate_ranking(MatrixScores(scores, size), owners)


def test_embeddings_that_are_not_finite_are_refused_with_their_place():
    left, right = np.ones((4, 3), np.float32), np.ones((8, 3), np.float32)
    right[5, 1] = np.nan
    with pytest.raises(ScoreError, match="second embeddings, row 5"):
        EmbeddingScores(left, right)


def test_shapes_types_and_owners_that_do_not_fit_are_refused():
    good = MatrixScores(np.zeros((4, 8)))
    with pytest.raises(DeixisError, match="4 images cannot be cut into 3 equal folds"):
        evaluate_ranking(good, captions_evenly(4, 2), folds=3)
    with pytest.raises(DeixisError, match="8 whole numbers"):
        evaluate_ranking(good, captions_evenly(4, 3))
    with pytest.raises(DeixisError, match="caption 7 belongs to image 4, but images are 0 to 3"):
        evaluate_ranking(good, [0, 0, 1, 1, 2, 2, 3, 4])
    with pytest.raises(DeixisError, match="square"):
        evaluate_sentences(good, captions_evenly(4, 2))
    with pytest.raises(DeixisError, match="complex128"):
        MatrixScores(np.zeros((2, 2), complex))
    with pytest.raises(DeixisError, match="image by image"):
        evaluate_ranking(FunctionScores(lambda rows, columns: np.zeros((2, 2)), (2, 4)), [0, 1, 0, 1])
    with pytest.raises(DeixisError, match=r"gave an array of shape \(3, 3\), not \(2, 4\)"):
        evaluate_ranking(FunctionScores(lambda rows, columns: np.zeros((3, 3)), (2, 4)), [0, 0, 1, 1])
    with pytest.raises(DeixisError, match="3 and of 4 dimensions"):
        EmbeddingScores(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(DeixisError, match="nothing to rank"):
        evaluate_ranking(MatrixScores(np.zeros((4, 0))), np.zeros(0, int))


def test_sentences_never_answer_themselves():
    generator = np.random.default_rng(9)
    for _ in range(600):
        captions = int(generator.integers(2, 20))
        owners = generator.integers(0, 6, captions)
        scores = generator.integers(0, 5, (captions, captions)).astype(np.float32)
        np.fill_diagonal(scores, 9)
        expected = []
        for query in range(captions):
            others = [other for other in range(captions) if other != query]
            right = [bool(owners[other] == owners[query]) for other in others]
            if any(right):
                expected.append(oracle_rank([scores[query, other] for other in others], right))
        if not expected:
            continue
        size = int(generator.integers(1, 500))
        found = evaluate_sentences(MatrixScores(scores, size), owners)
        assert found.queries == len(expected)
        assert found.candidates == captions - 1
        assert found.mean_rank == pytest.approx(np.mean(expected))
        assert found.recall[1] == pytest.approx(100 * np.mean(np.array(expected) == 1))


def test_random_s_row_is_what_shuffling_gives():
    generator = np.random.default_rng(10)
    candidates, right = 40, [1, 1, 1, 2, 5, 5, 0]
    draws = np.array(
        [[1 + generator.permutation(candidates)[:count].min() for count in right if count] for _ in range(20_000)]
    )
    expected = figures(draws.ravel(), candidates)
    row = random_figures(right, candidates)
    for k in (1, 5, 10):
        assert row.recall[k] == pytest.approx(expected.recall[k], abs=0.5)
    assert row.mean_rank == pytest.approx(expected.mean_rank, rel=0.01)
    assert row.median_rank == expected.median_rank
    assert row.queries == 6


def test_random_s_row_by_hand():
    """1,000 images with 5 captions each: 1 in 1,000 by chance; the median image of a caption is the 500th."""
    to_image = random_figures([1] * 5000, 1000)
    assert to_image.recall == pytest.approx({1: 0.1, 5: 0.5, 10: 1.0})
    assert (to_image.median_rank, to_image.mean_rank) == (500, 500.5)
    to_text = random_figures([5] * 1000, 5000)
    assert to_text.recall[1] == pytest.approx(0.1)
    assert to_text.mean_rank == pytest.approx(5001 / 6)
    all_right = random_figures([3], 3)
    assert all_right.recall[1] == 100
    assert all_right.median_rank == 1
    with pytest.raises(DeixisError):
        random_figures([4], 3)


def test_memory_grows_by_a_few_numbers_per_caption():
    """An owner, a score to reach, a count; then an order, or the ranks for their median. Norms come before."""
    random = np.random.default_rng(0)
    peaks = []
    for captions in (50_000, 250_000):
        sides = (random.normal(size=(count, 4)).astype(np.float32) for count in (50, captions))
        scores, owners = EmbeddingScores(*sides, memory=1 << 20), captions_evenly(50, captions // 50)
        tracemalloc.start()
        evaluate_ranking(scores, owners)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 200_000 < 40
