"""Phrase localization against slow, obvious counts, and average precision against examples worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.corpus.records import Box, Chain, Phrase, make_caption, make_image
from deixis.errors import DeixisError
from deixis.metrics import phrase_detection as ap
from deixis.metrics.box_recall import proposal_ranks
from deixis.metrics.localization import (
    Localization,
    LocalizationRow,
    Localized,
    evaluate_localization,
    gold_queries,
    phrase_key,
)
from deixis.metrics.paper_tables import paper_tables
from deixis.metrics.phrase_detection import evaluate_average_precision
from deixis.metrics.precision import precision_of_counts

NAMES = ["A man", "a man", "the dog", "two men", "dog", "one man", "a red car"]
TYPES_OF = {"man": ("people",), "men": ("people",), "dog": ("animals",), "car": ("vehicles", "scene")}


def random_box(generator):
    x, y = generator.integers(0, 8, 2)
    width, height = generator.integers(2, 9, 2)
    return Box(float(x), float(y), float(x + width), float(y + height))


def random_image(generator, number):
    boxes = [random_box(generator) for _ in range(generator.integers(1, 5))]
    chains = [
        Chain(str(chain + 1), tuple(generator.choice(len(boxes), generator.integers(0, len(boxes) + 1), replace=False)))
        for chain in range(3)
    ]
    captions = []
    for _ in range(2):
        tokens: list[str] = []
        phrases = []
        for _ in range(generator.integers(1, 4)):
            name = str(generator.choice(NAMES)).split()
            chain = str(generator.integers(0, 4))
            types = TYPES_OF[name[-1]] if chain != "0" else ("notvisual",)
            phrases.append(Phrase(len(tokens), len(tokens) + len(name), chain, types))
            tokens += [*name, "and"]
        captions.append(make_caption(" ".join(tokens), phrases=phrases))
    return make_image(f"image{number}", captions=captions, boxes=boxes, chains=chains)


def random_localizer(seed):
    """Whole scores from few values, so that there are ties; equal strings score equally in an image."""

    def localize(image, queries):
        generator = np.random.default_rng([seed, *image.id.encode()])
        proposals = box_array([*image.boxes, *(random_box(generator) for _ in range(6))])
        rows = [np.random.default_rng([seed, *image.id.encode(), *phrase_key(q.text).encode()]) for q in queries]
        scores = [row.integers(0, 8, len(proposals)) for row in rows]
        return Localized(proposals, np.array(scores, np.float32).reshape(len(queries), len(proposals)))

    return localize


def right_proposals(proposals, boxes, rule):
    wanted = merge(boxes)[None] if rule == "merged" else boxes
    return [any(iou_matrix(proposal[None], box[None])[0, 0] >= 0.5 for box in wanted) for proposal in proposals]


@pytest.mark.parametrize("rule", ["merged", "any"])
def test_recalls_by_type_and_phrase_agree_with_the_obvious_count(rule):
    for seed in range(25):
        generator = np.random.default_rng(seed)
        images = [random_image(generator, number) for number in range(6)]
        localize = random_localizer(seed)
        hits: dict[str, list[tuple[int | None, bool]]] = {}
        without_box = 0
        for image in images:
            for caption in image.captions:
                for phrase in caption.phrases:
                    if phrase.chain == "0":
                        continue
                    boxes = box_array(image.chain_boxes(phrase.chain))
                    if not len(boxes):
                        without_box += 1
                        continue
                    text = caption.phrase_text(phrase)
                    proposals, scores = localize(image, gold_queries(image)[0])
                    row = [query.text for query in gold_queries(image)[0]].index(text)
                    right = right_proposals(proposals, boxes, rule)
                    order = sorted(range(len(proposals)), key=lambda p: (-scores[row, p], right[p]))
                    rank = next((place for place, p in enumerate(order, 1) if right[p]), None)
                    for name in (*("overall" for _ in phrase.types), *phrase.types, "phrase " + phrase_key(text)):
                        hits.setdefault(name, []).append((rank, any(right)))
        found = evaluate_localization(images, localize, rule=rule)
        assert found.without_box == without_box
        rows = {"overall": found.overall, **found.by_type}
        rows |= {"phrase " + text: row for text, row in found.by_phrase.items()}
        assert rows.keys() == hits.keys()
        for name, row in rows.items():
            ranks = [rank for rank, _ in hits[name]]
            assert row.instances == len(ranks)
            for k in (1, 5, 10):
                expected = 100 * sum(rank is not None and rank <= k for rank in ranks) / len(ranks)
                assert row.recall[k] == pytest.approx(expected)
            assert row.upper_bound == pytest.approx(100 * sum(any_right for _, any_right in hits[name]) / len(ranks))
        assert found.overall.instances == sum(row.instances for row in found.by_type.values())
        counts = [row.instances for row in found.by_phrase.values()]
        assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("rule", ["merged", "any"])
def test_boxes_of_each_phrase_are_held_to_that_phrase_alone(rule):
    """The same proposals, given to each phrase in an order of its own, change nothing."""
    for seed in range(10):
        generator = np.random.default_rng(seed)
        images = [random_image(generator, number) for number in range(6)]
        shared = random_localizer(seed)

        def own(image, queries, shared=shared, generator=generator):
            boxes, scores = shared(image, queries)
            orders = np.argsort(generator.random(scores.shape), axis=1)
            return Localized(boxes[orders], np.take_along_axis(scores, orders, axis=1))

        def repeated(image, queries, shared=shared):
            boxes, scores = shared(image, queries)
            return Localized(np.repeat(boxes[None], len(queries), axis=0), scores)

        assert evaluate_localization(images, own, rule=rule) == evaluate_localization(images, shared, rule=rule)
        # Suppression takes equal scores in the order of the boxes, which must therefore stay.
        first, second = (evaluate_average_precision(images, one, rule=rule) for one in (repeated, shared))
        assert first == second


def test_a_plural_phrase_is_held_to_its_merged_box_or_to_any():
    gold = [np.array([[0, 0, 10, 10], [10, 0, 20, 10]], float)]
    proposals = np.array([[0, 0, 10, 10], [0, 0, 20, 10], [50, 50, 60, 60]], float)
    scores = np.array([[3.0, 2.0, 1.0]])
    # Half of the merged box is an overlap of exactly 0.5, which is enough.
    assert proposal_ranks(proposals, scores, gold).tolist() == [1]
    assert proposal_ranks(proposals, scores, gold, threshold=0.6).tolist() == [2]
    assert proposal_ranks(proposals, scores, gold, rule="any", threshold=0.6).tolist() == [1]
    assert proposal_ranks(proposals[2:], scores[:, 2:], gold).tolist() == [0]
    assert proposal_ranks(np.zeros((0, 4)), np.zeros((1, 0)), gold).tolist() == [0]


def test_a_right_proposal_ranks_behind_wrong_ones_with_its_score():
    gold = [np.array([[0, 0, 10, 10]], float)]
    proposals = np.array([[0, 0, 10, 10], [50, 50, 60, 60], [70, 70, 80, 80]], float)
    assert proposal_ranks(proposals, np.zeros((1, 3)), gold).tolist() == [3]


def two_men_image(image_id="a", text="a man sees a man"):
    boxes = [Box(0, 0, 10, 10), Box(20, 0, 30, 10)]
    caption = make_caption(text, phrases=[Phrase(0, 2, "1", ("people",)), Phrase(3, 5, "2", ("people",))])
    return make_image(image_id, captions=[caption], boxes=boxes, chains=[Chain("1", (0,)), Chain("2", (1,))])


def test_a_phrase_that_the_parser_does_not_find_counts_as_missed():
    image = two_men_image()

    def localize(image, queries):
        return Localized(box_array(image.boxes), np.eye(2)[[int(query.phrase.start > 0) for query in queries]])

    assert evaluate_localization([image], localize).overall.recall[1] == 100
    # A span that is one token too long is no exact match.
    found = evaluate_localization([image], localize, find_phrases=lambda caption: {(0, 2), (2, 5)})
    assert found.overall.recall == {1: 50, 5: 50, 10: 50}
    assert (found.not_found, found.overall.upper_bound) == (1, 100)


@pytest.mark.parametrize(
    ("text", "key"),
    [("A man", "man"), ("Two men", "two men"), ("one", "one"), ("the other dog", "dog"), ("his hat", "hat"), ("", "")],
)
def test_phrases_are_counted_without_case_and_determiner(text, key):
    assert phrase_key(text) == key


def test_answers_that_do_not_fit_are_refused_with_the_image_named():
    image = two_men_image()
    with pytest.raises(DeixisError, match=r"image a: .* scores of shape \(1, 2\) for 2 phrases"):
        evaluate_localization([image], lambda image, queries: Localized(box_array(image.boxes), np.zeros((1, 2))))
    bad = np.array([[0, 1], [np.nan, 0]])
    with pytest.raises(DeixisError, match="image a: the score of 'a man' at proposal 0 is nan"):
        evaluate_localization([image], lambda image, queries: Localized(box_array(image.boxes), bad))
    endless = np.array([[0, 1], [0, np.inf]])
    with pytest.raises(DeixisError, match="image a: the score of 'a man' at proposal 1 is inf"):
        evaluate_localization([image], lambda image, queries: Localized(box_array(image.boxes), endless))
    broken = np.array([[0, 0, 10, 10], [0, np.nan, 5, 5]])
    with pytest.raises(DeixisError, match="image a: proposal 1 is not a box"):
        evaluate_localization([image], lambda image, queries: Localized(broken, np.zeros((2, 2))))
    with pytest.raises(DeixisError, match="no phrase"):
        evaluate_localization(
            [make_image("empty")], lambda image, queries: Localized(np.zeros((0, 4)), np.zeros((0, 0)))
        )


def test_average_precision_by_hand():
    # right, wrong, right of two gold boxes: precision 1 at recall ½, ⅔ at recall 1.
    assert precision_of_counts(np.array([0, 1]), 2) == pytest.approx((1 + 2 / 3) / 2)
    # wrong, right, right of four: precision ½ then ⅔; interpolated, the first counts ⅔ too.
    assert precision_of_counts(np.array([1, 1]), 4) == pytest.approx((2 / 3 + 2 / 3) / 4)
    assert precision_of_counts(np.array([], int), 3) == 0


def test_average_precision_of_two_images_by_hand():
    """ "man" is named twice in the first image and never in the second, where it is found all the same."""
    first = two_men_image()
    dog = make_caption("a dog", phrases=[Phrase(0, 2, "1", ("animals",))])
    second = make_image("b", captions=[dog], boxes=[Box(0, 0, 10, 10)], chains=[Chain("1", (0,))])
    proposals = np.array([[0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10]], float)
    answers = {
        # The second box is suppressed by the first; both men are found.
        ("a", "a man"): [0.9, 0.85, 0.5],
        # Two wrong boxes in the other image: one ranks between the two men, one behind both.
        ("b", "a man"): [0.7, 0.6, 0.4],
        ("a", "a dog"): [0.3, 0.2, 0.1],
        ("b", "a dog"): [0.3, 0.2, 0.1],
    }

    def localize(image, queries):
        return Localized(proposals, np.array([answers[image.id, query.text] for query in queries]))

    found = evaluate_average_precision([first, second], localize, unit="phrase")
    assert found.by_phrase["man"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    # The dog's one right box ties with a wrong one in the other image, which ranks first.
    assert found.by_phrase["dog"] == pytest.approx(50)
    assert found.by_type == pytest.approx({"people": 100 * (1 + 2 / 3) / 2, "animals": 50})
    assert found.mean == pytest.approx((100 * (1 + 2 / 3) / 2 + 50) / 2)


def test_a_box_named_by_several_captions_asks_to_be_found_once():
    caption = make_caption("a man", phrases=[Phrase(0, 2, "1", ("people",))])
    other = make_caption("The man", phrases=[Phrase(0, 2, "1", ("people",))])
    image = make_image("a", captions=[caption, other], boxes=[Box(0, 0, 5, 5)], chains=[Chain("1", (0,))])
    localize = lambda image, queries: Localized(box_array(image.boxes), np.ones((len(queries), 1)))  # noqa: E731
    assert evaluate_average_precision([image], localize, unit="phrase").by_phrase == {"man": 100}
    assert evaluate_average_precision([image], localize).by_phrase == {"a man": 100, "the man": 100}


def test_the_phrases_of_table_3_are_kept_however_rare():
    """Flickr8k's 24 most frequent phrases are not those of Flickr30k, which the table prints."""
    row = LocalizationRow(1, {1: 50.0}, 100.0)
    own = [f"own phrase {number}" for number in range(40)]
    printed = [row.label for row in paper_tables()["entities-cca/table3"].rows]
    found = Localization(row, {}, dict.fromkeys([*own, *reversed(printed)], row), 64, 0, 0, {})
    kept = list(found.as_dict()["by_phrase"])
    assert (kept[:24], set(kept[24:])) == (own[:24], set(printed))
    assert list(replace(found, by_phrase={"man": row}).as_dict()["by_phrase"]) == ["man"]


def test_perfect_phrases_are_counted_however_rare():
    row = LocalizationRow(1, {1: 50.0}, 100.0)
    rows = {"man": replace(row, instances=9, ap_nms=99.0), "cow": replace(row, instances=7, ap_nms=100.0)}
    found = Localization(row, {}, {**rows, "goalie": replace(row, ap_nms=100.0)}, 17, 0, 0, {})
    assert found.as_dict(frequent=0)["perfect_phrases"] == {"count": 2, "most_instances": 7}
    assert "perfect_phrases" not in replace(found, by_phrase={"man": row}).as_dict()


def test_phrases_that_are_never_found_have_an_average_precision_of_0():
    far = np.array([[90, 90, 99, 99]], float)
    localize = lambda image, queries: Localized(far, np.stack([np.ones(1) for _ in queries]))  # noqa: E731
    assert evaluate_average_precision([two_men_image()], localize).by_phrase == {"a man": 0}
    with pytest.raises(DeixisError, match="no phrase"):
        evaluate_average_precision([make_image("empty")], localize)


@pytest.mark.parametrize("gathered", [1, 4_000_000])
@pytest.mark.parametrize("rule", ["merged", "any"])
@pytest.mark.parametrize(("unit", "key_of"), [("string", str.lower), ("phrase", phrase_key)])
def test_average_precision_agrees_with_one_long_ranking(unit, key_of, rule, gathered, monkeypatch):
    monkeypatch.setattr(ap, "GATHERED", gathered)
    for seed in range(8):
        generator = np.random.default_rng(seed)
        images = [random_image(generator, number) for number in range(5)]
        localize = random_localizer(seed)
        keys = {key_of(query.text): query for image in images for query in gold_queries(image)[0]}
        found = evaluate_average_precision(images, localize, rule=rule, unit=unit)
        assert found.by_phrase.keys() == keys.keys()
        table = found.beside(evaluate_localization(images, localize, rule=rule)).as_dict(frequent=100)
        if unit == "phrase":
            assert {text: row["ap_nms"] for text, row in table["by_phrase"].items()} == found.by_phrase
        assert {name: row["ap_nms"] for name, row in table["by_type"].items()} == found.by_type
        assert table["overall"]["ap_nms"] == found.mean
        for key, query in keys.items():
            assert found.by_phrase[key] == pytest.approx(
                100 * slow_average_precision(images, localize, key, key_of, query, rule)
            )


def slow_average_precision(images, localize, key, key_of, query, rule):
    """One list of all that suppression keeps, walked from the top, as PASCAL VOC's own evaluation does."""
    pool, gold = [], {}
    for image in images:
        wanted = set()
        for own, boxes in zip(*gold_queries(image), strict=True):
            if key_of(own.text) == key:
                wanted |= set(map(tuple, merge(boxes)[None] if rule == "merged" else boxes))
        gold[image.id] = sorted(wanted)
        proposals, scores = localize(image, [query])
        kept: list[int] = []
        for box in sorted(range(len(proposals)), key=lambda box: (-scores[0, box], box)):
            if all(iou_matrix(proposals[box][None], proposals[better][None])[0, 0] <= 0.5 for better in kept):
                kept.append(box)
        taken = set()
        for box in kept:
            overlaps = [iou_matrix(proposals[box][None], np.array(target)[None])[0, 0] for target in gold[image.id]]
            right = bool(overlaps) and max(overlaps) >= 0.5 and int(np.argmax(overlaps)) not in taken
            if right:
                taken.add(int(np.argmax(overlaps)))
            pool.append((-float(scores[0, box]), right))
    pool.sort()  # wrong before right at the same score
    total = sum(map(len, gold.values()))
    curve, hits = [], 0
    for place, (_, right) in enumerate(pool, 1):
        hits += right
        curve.append((hits / total, hits / place))
    area, last = 0.0, 0.0
    for place, (recall, _) in enumerate(curve):
        area += (recall - last) * max(precision for _, precision in curve[place:])
        last = recall
    return area


def test_wrong_first_boxes_are_sorted_by_their_reason() -> None:
    chains = [Chain(str(number + 1), (number,)) for number in range(2)]
    boxes = [Box(0, 0, 20, 20), Box(50, 50, 90, 90)]
    phrases = [Phrase(0, 2, "1", ("people",)), Phrase(3, 5, "2", ("animals",))]
    caption = make_caption("a man sees a dog", phrases=phrases)
    image = make_image("a", width=100, height=100, captions=[caption], boxes=boxes, chains=chains)
    answers = {
        "other_phrase": [50, 50, 90, 88],
        "encloses": [0, 0, 60, 60],
        "enclosed": [2, 2, 8, 8],
        "overlap_0.3_to_0.5": [8, 0, 28, 20],
        "overlap_0.1_to_0.3": [14, 0, 34, 20],
        "overlap_below_0.1": [95, 0, 100, 5],
    }
    for reason, box in answers.items():

        def localize(image, queries, first=box):
            each = np.array([[first], [[50, 50, 90, 90]]], float)
            return Localized(each, np.zeros((2, 1)))

        found = evaluate_localization([image], localize)
        assert found.overall.recall[1] == 50
        assert {name for name, share in found.failures.items() if share} == {reason}
        assert found.failures[reason] == 100
