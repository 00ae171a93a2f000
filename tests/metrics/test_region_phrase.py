"""Region-phrase ranking against an obvious count over every mention and every string."""

from __future__ import annotations

import numpy as np
import pytest

from deixis.corpus.records import Box, Chain, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from deixis.metrics import region_phrase_ranking as region_phrase
from deixis.metrics.ranking import figures
from deixis.metrics.region_phrase_ranking import evaluate_region_phrases, region_phrases
from deixis.metrics.score_blocks import EmbeddingScores, FunctionScores, MatrixScores

WORDS = ["A man", "a man", "the dog", "two men", "grass", "a hat"]


def random_images(generator, count=4):
    images = []
    for number in range(count):
        boxes = [Box(float(x), 0.0, float(x + 2), 2.0) for x in generator.integers(0, 3, 3)]
        chains = [Chain("1", (0,)), Chain("2", (1,)), Chain("3", (0, 2)), Chain("4")]
        captions = []
        for _ in range(3):
            text = str(generator.choice(WORDS))
            captions.append(make_caption(text, phrases=[Phrase(0, len(text.split()), str(generator.integers(0, 5)))]))
        images.append(make_image(f"i{number}", captions=captions, boxes=boxes, chains=chains))
    return images


def worst_rank(scores, right):
    best = max(score for score, good in zip(scores, right, strict=True) if good)
    return 1 + sum(not good and score >= best for score, good in zip(scores, right, strict=True))


@pytest.mark.parametrize("block", [1, 40, 4_000_000])
def test_both_counts_and_both_directions_agree_with_the_obvious_one(block, monkeypatch):
    monkeypatch.setattr(region_phrase, "BLOCK", block)
    cases = 0
    for seed in range(150):
        generator = np.random.default_rng(seed)
        items = region_phrases(random_images(generator))
        if not len(items.regions):
            continue
        cases += 1
        scores = generator.integers(0, 4, (len(items.regions), len(items.strings))).astype(np.float32)
        found = evaluate_region_phrases(items, MatrixScores(scores))
        links = {(region, string) for string, region in items.mentions.tolist() if region >= 0}
        regions, strings = range(len(items.regions)), range(len(items.strings))

        to_string = [worst_rank(scores[r], [(r, s) in links for s in strings]) for r in regions]
        assert found.strings.region_to_phrase == figures(to_string, len(strings))
        named = [s for s in strings if any((r, s) in links for r in regions)]
        to_region = [worst_rank(scores[:, s], [(r, s) in links for r in regions]) for s in named]
        assert found.strings.phrase_to_region == figures(to_region, len(regions))

        mentions = items.mentions.tolist()
        to_mention = [
            worst_rank([scores[r, s] for s, _ in mentions], [own == r for _, own in mentions]) for r in regions
        ]
        assert found.instances.region_to_phrase == figures(to_mention, len(mentions))
        from_mention = [worst_rank(scores[:, s], [r == own for r in regions]) for s, own in mentions if own >= 0]
        expected = figures(from_mention, len(regions))
        assert found.instances.phrase_to_region.recall == expected.recall
        assert found.instances.phrase_to_region.mean_rank == pytest.approx(expected.mean_rank)
        assert found.instances.phrase_to_region.median_rank == expected.median_rank
    assert cases > 100


def test_what_is_a_region_and_what_is_a_string():
    caption = make_caption(
        "A man and a man and the sky and it",
        phrases=[Phrase(0, 2, "1"), Phrase(3, 5, "2"), Phrase(6, 8, "3"), Phrase(9, 10)],
    )
    boxes = [Box(0, 0, 2, 2), Box(4, 0, 6, 2), Box(0, 0, 6, 2)]
    chains = [Chain("1", (0, 1)), Chain("2", (2,)), Chain("3")]
    items = region_phrases([make_image("a", captions=[caption], boxes=boxes, chains=chains)])
    # Two chains with the same merged box are one region; case does not tell strings apart; "it" is not visual.
    assert items.regions == (("a", Box(0, 0, 6, 2)),)
    assert items.strings == ("a man", "the sky")
    assert items.mentions.tolist() == [[0, 0], [0, 0], [1, -1]]


def test_random_scores_come_out_at_random_s_row():
    generator = np.random.default_rng(3)
    items = region_phrases(random_images(generator, 40))
    ranks = []
    for _ in range(300):
        scores = generator.random((len(items.regions), len(items.strings)))
        ranks.append(evaluate_region_phrases(items, MatrixScores(scores)).strings)
    for direction in ("region_to_phrase", "phrase_to_region"):
        expected = getattr(ranks[0], f"random_{direction}")
        for k in (1, 5, 10):
            mean = np.mean([getattr(one, direction).recall[k] for one in ranks])
            assert mean == pytest.approx(expected.recall[k], abs=2.5)
        mean = np.mean([getattr(one, direction).mean_rank for one in ranks])
        assert mean == pytest.approx(expected.mean_rank, rel=0.03)


def test_embeddings_will_do_and_their_ties_count_against_us():
    items = region_phrases(random_images(np.random.default_rng(4), 10))
    same = np.random.default_rng(5).standard_normal(7).astype(np.float32)
    scores = EmbeddingScores(np.tile(same, (len(items.regions), 1)), np.tile(same, (len(items.strings), 1)))
    found = evaluate_region_phrases(items, scores)
    per_region = len({(region, string) for string, region in items.mentions.tolist() if region >= 0}) / len(
        items.regions
    )
    assert found.strings.region_to_phrase.mean_rank == pytest.approx(len(items.strings) - per_region + 1)
    assert found.instances.phrase_to_region.mean_rank == len(items.regions)


def test_scores_of_another_shape_are_refused():
    items = region_phrases(random_images(np.random.default_rng(4), 10))
    with pytest.raises(DeixisError, match="scores are 2 × 3, but there are"):
        evaluate_region_phrases(items, MatrixScores(np.zeros((2, 3))))
    with pytest.raises(DeixisError, match="no phrase of these images has a box"):
        evaluate_region_phrases(region_phrases([make_image("empty")]), MatrixScores(np.zeros((0, 0))))


def test_a_scorer_that_is_called_block_by_block_gives_the_same(monkeypatch):
    monkeypatch.setattr(region_phrase, "BLOCK", 7)
    items = region_phrases(random_images(np.random.default_rng(5), count=6))
    matrix = np.random.default_rng(6).integers(0, 4, (len(items.regions), len(items.strings))).astype(float)
    function = FunctionScores(lambda rows, columns: matrix[rows, columns], matrix.shape)
    assert evaluate_region_phrases(items, function) == evaluate_region_phrases(items, MatrixScores(matrix))
