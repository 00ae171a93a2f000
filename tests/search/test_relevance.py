"""Which pictures match: thresholds that move with the query, and how they are fitted on captioned pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from deixis.adapters.bundles import Relevance, Threshold, read_bundle
from deixis.adapters.phrasing import phrasing
from deixis.adapters.search_model import (
    Floats,
    Identity,
    Pictures,
    SearchModel,
    Texts,
    whole_pictures,
    whole_texts,
)
from deixis.corpus import Box, Chain, Corpus, Image, make_caption, make_image
from deixis.errors import DeixisError
from deixis.search import bundle_calibration, calibration, caption_queries, list_end_calibration
from deixis.search.asked_collections import Asked, Labelled, ask_collections
from deixis.search.calibration import LOWER_MARGIN, alike_weights, fit_lower, fitted, usual_scores
from deixis.search.caption_queries import caption_matches, known_queries, rare_words
from deixis.search.relevance import (
    Best,
    Known,
    WordsInBest,
    list_ends,
    log_odds,
    mean_of_best,
    ranked,
    threshold,
    words_in_best,
)
from deixis.text.vocabulary import Vocabulary

ONE_WORD = np.zeros(1, bool)
NONE = Best(np.zeros(1, np.float32), np.zeros(1, np.float32))


def known(terms: int = 1, **fields: object) -> Known:
    """Single words of which nothing else is known."""
    none = np.zeros(terms, np.float32)
    plain = Known(none, np.zeros(terms, bool), none, none, none)
    return plain._replace(**{name: np.array(values, getattr(plain, name).dtype) for name, values in fields.items()})


def best_of(few: Floats, many: Floats | None = None) -> Best:
    """Best pictures of these mean scores; without `many`, so many as five score alike."""
    return Best(few, few if many is None else many)


def test_the_means_are_those_of_5_and_20_pictures_and_of_fewer_in_a_small_collection() -> None:
    scores = np.arange(300, dtype=np.float32)[None] / 300
    for some, size, few, many in ((scores, 5000, 5, 20), (scores[:, :50], 50, 1, 5), (scores[:, :1], 1, 1, 1)):
        best = mean_of_best(some, size)
        assert best.few == pytest.approx(some[0, -few:].mean())
        assert best.many == pytest.approx(some[0, -many:].mean())


def test_what_many_pictures_show_is_there_though_the_best_score_no_more() -> None:
    scores = np.full((1, 400), 0.1, np.float32)
    scores[0, :5] = 0.5
    relevance = Relevance(Threshold(0.4, fall=1.0), Threshold(0.4), slope=10.0)

    def is_there(asked: Known) -> bool:
        return bool((scores >= list_ends(scores, mean_of_best(scores, 400), asked, relevance)).any())

    assert not is_there(known())
    # A rare word is there without many.
    assert is_there(known(rarity=[1.0]))
    scores[0, :20] = 0.5
    assert is_there(known())


def test_a_threshold_moves_with_the_best_and_the_words() -> None:
    moved = Threshold(1.0, best=0.5, commonness=-0.1, several=0.2)
    best, common = np.array([2.0, 2.0], np.float32), np.array([0.0, 3.0], np.float32)
    found = threshold(moved, best_of(best), known(2, commonness=common, several=[False, True]))
    assert found == pytest.approx([2.0, 2.0 - 0.3 + 0.2])
    # A rare word must score more where it scores much everywhere.
    rare = threshold(
        Threshold(1.0, rarity=-0.8, rarity_times_usual=1.0),
        best_of(best),
        known(2, rarity=[0.5, 0.0], rarity_times_usual=[0.45, 0.0]),
    )
    assert rare == pytest.approx([1.05, 1.0])


def test_if_a_term_is_present_its_best_picture_matches_and_if_it_is_absent_none_does() -> None:
    scores = np.array([[0.2, 0.9, 0.5]], np.float32)
    for present, end, matching in ((0.5, 0.4, 2), (0.5, 2.0, 1), (1.0, 0.4, 0), (1.0, 2.0, 0)):
        relevance = Relevance(Threshold(present), Threshold(end), slope=10.0)
        ends = list_ends(scores, best_of(scores.max(1)), known(), relevance)
        odds = log_odds(scores, ends, ONE_WORD, relevance.slope)
        assert (odds >= 0).sum() == matching
        assert np.argsort(-odds).tolist() == [1, 2, 0]


def test_what_must_not_be_there_must_stay_clearly_below_the_end() -> None:
    scores = np.array([[0.9, 0.6, 0.4]], np.float32)
    relevance = Relevance(Threshold(0.5), Threshold(0.5), slope=10.0, without=0.2)
    ends = list_ends(scores, best_of(scores.max(1)), known(), relevance, ~ONE_WORD)
    assert ends == pytest.approx([0.3])
    # What is not in the collection excludes nothing.
    absent = Relevance(Threshold(1.0), Threshold(0.5), slope=10.0, without=0.2)
    ends = list_ends(scores, best_of(scores.max(1)), known(), absent, ~ONE_WORD)
    assert (log_odds(scores, ends, ~ONE_WORD, 10.0) > 0).all()


def test_half_of_the_distance_is_enough_for_a_match_but_all_of_it_ranks_higher() -> None:
    relevance, denied = Relevance(Threshold(0.0), Threshold(0.5), slope=10.0, without=0.4), np.array([False, True])
    # What is wanted, and what is not: far below its end, a little below, and above it.
    scores = np.array([[0.7, 0.9, 0.9], [0.0, 0.25, 0.8]], np.float32)
    ends = list_ends(scores, best_of(scores.max(1)), known(2), relevance, denied)
    order, odds = ranked(scores, ends, denied, relevance)
    assert order.tolist() == [0, 1, 2]
    assert (odds >= 0).tolist() == [True, True, False]
    assert (np.diff(odds) <= 0).all()


def test_a_phrase_is_absent_if_its_best_pictures_do_not_show_one_of_its_words() -> None:
    scores, several = np.array([[0.9, 0.8]], np.float32), np.ones(1, bool)
    relevance = Relevance(
        Threshold(0.5), Threshold(0.4), 10.0, present_of_phrase=Threshold(0.7, worst_word=-1.0), without=0.0
    )
    needed = np.array([0.5, 0.5], np.float32)
    # The phrase's best picture is the first; the second shows the noun better.
    both, one = (
        WordsInBest(
            *np.array(words_in_best(scores[0], np.array(word_scores, np.float32), needed, 100), np.float32)[:, None]
        )
        for word_scores in ([[0.6, 0.1], [0.7, 0.8]], [[0.9, 0.1], [0.1, 0.3]])
    )
    assert [*both, *one] == [pytest.approx([number]) for number in (0.1, 0.3, -0.4, -0.2)]
    for words, is_there in ((both, True), (one, False)):
        ends = list_ends(scores, best_of(scores.max(1)), known(several=several), relevance, words=words)
        assert (scores >= ends).any() == is_there
    # A single word has its own threshold.
    ends = list_ends(scores, best_of(scores.max(1)), known(), relevance, words=one)
    assert (scores >= ends).all()
    # A common noun is rather there, and one that its own best pictures show.
    by_noun = Threshold(1.0, noun=-0.5, noun_commonness=-0.1)
    common = known(several=several, noun_commonness=[2.0])
    needed_scores = threshold(by_noun, NONE, common, WordsInBest(0.0, np.array([0.4], np.float32)))
    assert needed_scores == pytest.approx([1.0 - 0.2 - 0.2])


def test_pairs_are_of_words_that_phrases_have_but_not_together() -> None:
    queries = [(colour, noun) for colour in ("red", "blue") for noun in ("car", "bus", "hat", "cup")]
    queries += [("a", "purple", "flower"), ("an", "elephant")]
    pairs = calibration.modified_pairs(queries, np.random.default_rng(0))
    assert pairs
    # "purple" modifies too few nouns, and an elephant has no modifier.
    assert set(pairs) <= {("red", "flower"), ("blue", "flower")}
    assert calibration.modified_pairs([("elephant",)], np.random.default_rng(0)) == []


def test_the_end_of_a_noun_is_moved_to_where_its_own_list_ends_best() -> None:
    random = np.random.default_rng(0)
    # The pictures of the first noun score 0.2 lower than those of the other nouns.
    nouns, size = [("bench",), *((f"thing{chr(97 + number)}",) for number in range(20))], 400
    matches = random.random((len(nouns), size)) < 0.1
    scores = (random.normal(0.3, 0.05, matches.shape) + 0.4 * matches).astype(np.float32)
    scores[0] -= 0.2
    asked = Asked(scores, matches, matches, matches.sum(1), best_of(scores.max(1)), known(len(nouns)))
    labels = [noun for (noun,) in nouns]
    for moved in (
        list_end_calibration.fit_end_for([asked], nouns, Threshold(0.5)),
        list_end_calibration.fit_end_for_labels(asked, labels, Threshold(0.5)),
    ):
        assert -0.3 <= moved.pop("bench") <= -0.1
        assert all(abs(distance) < 0.1 for distance in moved.values())


def image(number: int, *captions: str) -> Image:
    return Image(id=str(number), captions=tuple(map(make_caption, captions)))


def test_a_picture_matches_if_one_caption_has_all_words_in_either_number() -> None:
    images = [image(0, "A red car.", "Two dogs run."), image(1, "A dog in a car.", "Red shoes."), image(2, "Red dogs.")]
    queries = [("dog",), ("the", "red", "cars"), ("a", "red", "dog"), ("a", "giraffe")]
    assert caption_matches(images, queries).tolist() == [
        [True, True, True],
        [True, False, False],
        [False, False, True],
        [False, False, False],
    ]


def test_a_rare_word_needs_two_captions_and_must_be_a_noun(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [image(0, "A zorb rolls.", "A big zorb."), image(1, "A zorb in the sun."), image(2, "Two men zorbing.")]
    assert caption_matches(images, [("zorb",)], captions=2).tolist() == [[True, False, False]]
    vocabulary = Vocabulary({"a": 100, "men": 90, "zorb": 3, "zorbing": 2, "in": 80, "sun": 9})
    monkeypatch.setattr(caption_queries, "WORDS", 3)
    assert ("zorb",) in rare_words(vocabulary, images)
    assert ("zorbing",) not in rare_words(vocabulary, images)


def test_what_a_word_usually_scores_is_known_for_rare_words() -> None:
    random, model = np.random.default_rng(0), WordModel()
    model.known_words = Vocabulary({word: 30 if number < 60 else 9000 for number, word in enumerate(WORDS)})
    rows = np.repeat(random.random((200, 1)).astype(np.float32), len(WORDS), 1)
    usual = np.frombuffer(usual_scores(model, [whole_pictures(rows)], [200], random), np.int8)
    of_word = dict(zip(model.known_words.words, usual.tolist(), strict=True))
    assert {of_word[word] for word in WORDS[:60]} == {round(100 * np.quantile(rows[:, 0], 0.9))}
    assert {of_word[word] for word in WORDS[60:]} == {0}
    model.relevance = structs.replace(model.relevance, usual=usual.tobytes())
    asked = phrasing(WORDS[3], model)
    assert asked.usual_score == pytest.approx(of_word[WORDS[3]] / 100)
    assert asked.rarity > 0.5 > phrasing(WORDS[70], model).rarity


def test_queries_are_nouns_and_phrases_whose_words_are_known_and_each_is_asked_once() -> None:
    images = [image(1, "A man rides a horse.", "Two dogs run."), image(2, "A dog beside a quagga.")]
    model = WordModel()
    model.known_words = Vocabulary(dict.fromkeys(("a", "man", "men", "horse", "horses", "dog", "dogs", "two"), 30))
    queries = known_queries(model, model.known_words, [images], np.random.default_rng(0))
    assert sorted(" ".join(query) for query in queries) == ["dog", "horse", "man", "two", "two dogs"]


def test_groups_are_weighted_to_be_equally_common() -> None:
    random = np.random.default_rng(0)
    common, rare = (random.normal(mean, 1, 4000).astype(np.float32) for mean in (1.0, 0.0))
    weights, others = alike_weights(common, rare), alike_weights(rare, common)
    assert weights.sum() == pytest.approx(1)
    assert common.mean() - rare.mean() > 0.9
    assert abs(weights @ common - others @ rare) < 0.1


WORDS = [f"thing{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(120)]


class WordModel(SearchModel):
    """Words are axes, and a picture is what it shows: each thing at half strength, and noise."""

    known_words: Vocabulary = Vocabulary(dict.fromkeys(["a", *WORDS], 1000))
    identity = Identity("words", "0" * 64, len(WORDS), {})

    def embed_queries(self, texts: list[str]) -> Texts:  # type: ignore[override]
        rows = np.zeros((len(texts), len(WORDS)), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[[WORDS.index(word) for word in text.split() if word in WORDS]] = 1
        return whole_texts(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1))


def collection(random: np.random.Generator, strength: float) -> tuple[list[Image], Floats]:
    """Pictures of two of the first 80 things each, by their captions; the other 40 are in none."""
    images, rows = [], random.normal(0, 0.05, (600, len(WORDS))).astype(np.float32)
    for number, row in enumerate(rows):
        things = random.choice(80, 2, replace=False)
        images.append(image(number, " and ".join(f"a {WORDS[thing]}" for thing in things)))
        row[things] += strength
    return images, rows


def test_a_frequent_noun_that_scores_low_has_a_lower_threshold() -> None:
    asked = Asked(
        np.full((3, 40), 0.1, np.float32),
        np.ones((3, 40), bool),
        np.ones((3, 40), bool),
        np.array([40, 40, 3]),
        best_of(np.array([0.9, 0.3, 0.3], np.float32)),
        known(3),
    )
    queries = [("dogs",), ("frisbees",), ("top",)]
    lower = fit_lower([asked], queries, Threshold(0.5))
    # Dogs score so high that their threshold could be higher; few captions name a top.
    assert lower == {"dog": pytest.approx(-0.4 + LOWER_MARGIN), "frisbee": pytest.approx(0.2 + LOWER_MARGIN)}
    relevance = Relevance(Threshold(0.5), Threshold(0.2), 10.0, lower_for=lower)
    scores = np.full((1, 9), 0.3, np.float32)
    for noun, is_there in (("frisbee", True), ("top", False)):
        lowered = np.array([relevance.lower_for.get(noun, 0.0)], np.float32)
        ends = list_ends(scores, best_of(scores.max(1)), known(), relevance, lower=lowered)
        assert (scores >= ends).all() == is_there


def test_thresholds_lie_between_what_is_shown_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    random, model = np.random.default_rng(0), WordModel()
    images, rows = collection(random, 0.5)
    queries = [(word,) for word in WORDS]
    relevance = fitted(model, [whole_pictures(rows)], [images], queries, random)
    asked = ask_collections(model, [whole_pictures(rows)], [images], queries, [])[0].asked
    least = threshold(relevance.present, asked.best, asked.known)
    assert ((asked.best.few >= least) == asked.matches.any(1)).all()
    ends = threshold(relevance.end, asked.best, asked.known)
    shown = asked.matches.any(1)
    assert ((asked.scores >= ends[:, None]) == asked.matches)[shown].mean() > 0.99
    assert relevance.slope > 1
    pairs = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    assert relevance.alike == pytest.approx(np.quantile(pairs, 0.99), abs=1e-6)


def test_labels_decide_about_their_names() -> None:
    """The first thing scores lower than the others: captions are the same, but the labels know."""
    random, model = np.random.default_rng(0), WordModel()
    images, rows = collection(random, 0.5)
    shown = np.array([[word in str(own.captions) for own in images] for word in WORDS[:80]])
    weak = rows.copy()
    weak[:, 0] *= 0.5
    labelled = Labelled(whole_pictures(weak), WORDS[:80], shown)
    relevance = fitted(model, [whole_pictures(rows)], [images], [(word,) for word in WORDS], random, labelled=labelled)
    name, *others = WORDS[:80]
    assert relevance.lower_for[name] > 0.05 + max(relevance.lower_for.get(other, 0.0) for other in others)
    assert relevance.end_for[name] < min(relevance.end_for.get(other, 0.0) for other in others)


def test_pictures_with_labels_are_chosen_so_that_rare_labels_have_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_calibration, "LABELLED", 12)
    monkeypatch.setattr(bundle_calibration, "LABEL_PICTURES", 3)
    names = [WORDS[1], WORDS[0], "zorblax"]
    # The second label is in the last four pictures only; nobody knows the third.
    images = [
        make_image(
            str(number),
            split="val" if number == 39 else "train",
            width=9,
            height=9,
            boxes=[Box(0, 0, 5, 5)],
            chains=[Chain("1", (0,), label=names[1] if number >= 36 else names[2 * (number % 2)])],
        )
        for number in range(40)
    ]
    asked: list[str] = []

    def embed(_: Corpus, chosen: Sequence[Image]) -> Pictures:
        asked.extend(image.id for image in chosen)
        return whole_pictures(np.ones((len(chosen), 2), np.float32))

    labelled = bundle_calibration.labelled_pictures(
        WordModel(),  # type: ignore[arg-type]
        Corpus(images, name="labelled"),
        embed,
    )
    assert labelled.labels == sorted(names[:2])
    assert {"36", "37", "38"} <= set(asked)
    # Validation pictures are not for fitting labels.
    assert "39" not in asked
    assert len(asked) == len(set(asked)) <= 15
    rows = dict(zip(labelled.labels, labelled.shown, strict=True))
    assert [image for image, shown in zip(asked, rows[names[1]], strict=True) if shown] == [
        image for image in asked if int(image) >= 36
    ]


def test_the_distance_of_what_must_not_be_there_costs_few_right_pictures() -> None:
    """Pictures that show the denied thing score a little less than its end, and some right ones far less than that."""
    scores = np.zeros((2, 60), np.float32)
    scores[0, :40], scores[1, 20:40] = 1.0, 0.9
    # Where it is not, the denied thing scores 0.4 or less.
    scores[1, :20] = 0.4
    matches = np.zeros((2, 60), bool)
    matches[0, :40], matches[1, 20:40] = True, True
    asked = Asked(scores, matches, matches, np.array([40, 20]), best_of(scores.max(1)), known(2))
    distance = list_end_calibration.fit_without([asked], Threshold(0.95))
    assert distance >= 0.05
    assert list_end_calibration.fit_without([asked.of(np.array([True, False]))], Threshold(0.95)) == 0


def test_scores_that_say_nothing_cannot_be_calibrated() -> None:
    random, model = np.random.default_rng(0), WordModel()
    images, rows = collection(random, -0.5)
    with pytest.raises(DeixisError, match="do not separate"):
        fitted(model, [whole_pictures(rows)], [images], [(word,) for word in WORDS], random)
    with pytest.raises(DeixisError, match="too few"):
        fitted(model, [whole_pictures(rows[:0])], [[]], [(word,) for word in WORDS], random)


def test_an_old_bundle_is_read_with_the_relevance_of_a_similar_model(bundle: Path, tmp_path: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["relevance"] = {"threshold": 1.88, "growth": 0.06, "slope": 10.0, "usual": 0.5, "share": 0.2, "alike": 0.5}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_bundle(tmp_path).manifest.thresholds is None


def test_where_the_list_ends_counts_what_captions_leave_out() -> None:
    random, model = np.random.default_rng(0), WordModel()
    images, rows = collection(random, 0.5)
    # Half of the captions leave everything out.
    silent = [image(number, "a") if number % 2 else own for number, own in enumerate(images)]
    (asked, _), *_ = ask_collections(model, [whole_pictures(rows)], [silent], [(word,) for word in WORDS[:80]], [])
    called = {share: list_end_calibration.cut_table(asked, share).argmax(1).mean() for share in (1.0, 0.5)}
    assert called[0.5] > called[1.0]
