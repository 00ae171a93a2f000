"""What Algorithm 1 and section 5.1 of paper 1 promise of a batch, on generated data of many shapes."""

from __future__ import annotations

import doctest
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deixis.errors import DeixisError
from deixis.papers.two_branch.phrase_sampling import PhraseSampler, PhraseSamplerRecipe
from deixis.papers.two_branch.reference import (
    Entity,
    Pair,
    phrase_triplets,
    phrases_with_one_region,
    region_triplets,
    regions_with_one_phrase,
)
from deixis.training import sampling
from deixis.training.sampling import PairBatch, RankingBatch, shuffled
from deixis.training.sentence_pairs import SentenceSampler, SentenceSamplerRecipe
from tests.training.generated_pairs import (
    GeneratedPhrases,
    GeneratedSentences,
    generated_phrases,
    generated_sentences,
)

NEIGHBOURHOODS = ["none", "sampling", "random"]
phrases = st.builds(generated_phrases, st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 12))
sentences = st.builds(generated_sentences, st.integers(0, 10**6), st.integers(2, 12), st.integers(3, 60))
phrase_recipes = st.builds(
    PhraseSamplerRecipe,
    batch=st.integers(2, 20),
    positives=st.sampled_from(["single", "augmented"]),
    neighbourhood=st.sampled_from(NEIGHBOURHOODS),
    negatives=st.sampled_from(["picture", "batch"]),
    candidates=st.sampled_from([None, 3]),
)
sentence_recipes = st.builds(
    SentenceSamplerRecipe, batch=st.integers(2, 20), neighbourhood=st.sampled_from(NEIGHBOURHOODS)
)
few = settings(max_examples=25)


class Direction(NamedTuple):
    """The matching pairs of one direction: rows of the batch, and the negatives of each."""

    anchor: list[int]
    positive: list[int]
    negatives: list[list[int]]


def directions(batch: RankingBatch) -> tuple[Direction, Direction]:
    """Image to text, by text, and text to image, by target; each text and each target is in one pair at most."""
    contrast = batch.contrast
    targets = torch.arange(len(batch.images)) if batch.targets is None else batch.targets
    candidates = torch.arange(len(batch.images)) if batch.candidates is None else batch.candidates
    found = []
    for match, negative, rows, others, wrong in (
        (contrast.match_texts, contrast.negative_texts, targets, torch.arange(len(batch.texts)), None),
        (contrast.match_images, contrast.negative_images, torch.arange(len(batch.texts)), targets, candidates),
    ):
        assert (match.sum(0) <= 1).all()
        positive, anchor = match.T.nonzero(as_tuple=True)
        chosen = [negative[place].nonzero()[:, 0] for place in anchor]
        found.append(
            Direction(
                rows[anchor].tolist(),
                others[positive].tolist(),
                [(places if wrong is None else wrong[places]).tolist() for places in chosen],
            )
        )
    return found[0], found[1]


def matches(direction: Direction) -> set[tuple[int, int]]:
    return set(zip(direction.anchor, direction.positive, strict=True))


class Truth:
    """The generated phrases as plain sets."""

    def __init__(self, data: GeneratedPhrases, recipe: PhraseSamplerRecipe) -> None:
        self.chain_strings: dict[int, set[int]] = defaultdict(set)
        self.drawn: dict[int, tuple[float, ...]] = {}
        self.positive: dict[int, set[int]] = {}
        self.negative: dict[int, set[int]] = {}
        self.string_chains: dict[int, set[int]] = defaultdict(set)
        self.string_images: dict[int, set[int]] = defaultdict(set)
        self.image = data.pair_image.tolist()
        self.string, self.chain = data.pair_string.tolist(), data.pair_chain.tolist()
        self.region_image = data.region_image.tolist()
        for pair, (string, chain) in enumerate(zip(self.string, self.chain, strict=True)):
            self.chain_strings[chain].add(string)
            self.string_chains[string].add(chain)
            self.string_images[string].add(self.image[pair])
            box = data.region_boxes[data.pair_region[pair]].tolist()
            self.drawn[chain] = (self.image[pair], *box)
            one = {int(data.pair_region[pair])}
            self.positive[chain] = (
                one if recipe.positives == "single" else row(data.positive_rows, data.positive_offsets, pair)
            )
            self.negative[chain] = row(data.negative_rows, data.negative_offsets, pair)

    def entity(self, chain: int) -> Entity:
        return Entity(
            self.drawn[chain],
            frozenset(self.chain_strings[chain]),
            frozenset(self.positive[chain]),
            frozenset(self.negative[chain]),
        )


def row(values: Tensor, offsets: Tensor, number: int) -> set[int]:
    return set(values[offsets[number] : offsets[number + 1]].tolist())


@few
@given(phrases, phrase_recipes, st.integers(0, 99), st.integers(1, 5))
def test_every_phrase_pair_is_seen_once_an_epoch_and_batches_depend_on_seed_and_epoch_alone(
    data: GeneratedPhrases, recipe: PhraseSamplerRecipe, seed: int, epoch: int
) -> None:
    sampler = PhraseSampler(data, recipe, seed)
    batches = sampler.triplets(epoch)
    made = list(batches)
    assert len(made) == len(batches)
    assert sorted(np.concatenate([batch.pairs for batch in made])) == list(range(len(data.pair_string)))
    assert all(len(batch.pairs) == recipe.batch for batch in made[:-1]) or len(made[-1].pairs) == recipe.batch + 1
    list(sampler.triplets(epoch + 1))
    again = PhraseSampler(data, recipe, seed).triplets(epoch)
    assert all(equal(one, other) for one, other in zip(made, again, strict=True))
    paired = list(sampler.pairs(epoch))
    assert sorted(np.concatenate([batch.pairs for batch in paired])) == list(range(len(data.pair_string)))
    assert all(equal(one, other) for one, other in zip(paired, sampler.pairs(epoch), strict=True))


def test_epochs_and_seeds_differ() -> None:
    data = generated_phrases(0, 9, 9)
    recipe = PhraseSamplerRecipe(batch=10)
    first = next(iter(PhraseSampler(data, recipe, 0).triplets(1)))
    assert not equal(first, next(iter(PhraseSampler(data, recipe, 0).triplets(2))))
    assert not equal(first, next(iter(PhraseSampler(data, recipe, 1).triplets(1))))


@few
@given(phrases, phrase_recipes, st.integers(0, 99))
def test_triplets_of_phrases_keep_algorithm_1(data: GeneratedPhrases, recipe: PhraseSamplerRecipe, seed: int) -> None:
    truth = Truth(data, recipe)
    for batch in PhraseSampler(data, recipe, seed).triplets(1):
        regions, texts = batch.images.tolist(), batch.texts.tolist()
        assert len(set(regions)) == len(regions)
        forward, backward = directions(batch)
        for number, (anchor, positive) in enumerate(zip(forward.anchor, forward.positive, strict=True)):
            # 2, 3.a: x is a positive region of a chain that goes by the string y; y′ names neither that chain nor
            # another with the same drawn box.
            chains = [
                chain for chain in truth.string_chains[texts[positive]] if regions[anchor] in truth.positive[chain]
            ]
            assert chains
            wrong = {texts[place] for place in forward.negatives[number]}
            assert any(not wrong & truth.chain_strings[chain] for chain in chains)
            if recipe.neighbourhood == "none":
                chain = truth.chain[batch.pairs[number]]
                box, known = truth.drawn[chain], truth.chain_strings[chain]
                allowed = [
                    truth.string[pair]
                    for pair in batch.pairs
                    if truth.drawn[truth.chain[pair]] != box and truth.string[pair] not in known
                ]
                assert sorted(texts[place] for place in forward.negatives[number]) == sorted(allowed)
        for number, (anchor, positive) in enumerate(zip(backward.anchor, backward.positive, strict=True)):
            # 3.b: x′ is of the same picture with IoU < 0.3, all of them.
            region = regions[positive]
            chains = [chain for chain in truth.string_chains[texts[anchor]] if region in truth.positive[chain]]
            assert chains
            found = [regions[place] for place in backward.negatives[number]]
            own = {place for place in found if truth.region_image[place] == truth.region_image[region]}
            if recipe.candidates is None:
                assert any(own == truth.negative[chain] for chain in chains)
            else:
                assert any(
                    own <= truth.negative[chain] and len(own) == min(3, len(truth.negative[chain])) for chain in chains
                )
            elsewhere = set(found) - own
            assert not elsewhere or recipe.negatives == "batch"
            for place in elsewhere:
                assert truth.region_image[place] not in truth.string_images[texts[anchor]]
            if recipe.negatives == "batch":
                report = [regions[place] for place in forward.anchor[: len(batch.pairs)]]
                assert elsewhere >= {
                    place for place in report if truth.region_image[place] not in truth.string_images[texts[anchor]]
                }


@few
@given(phrases, st.integers(2, 20), st.sampled_from(["single", "augmented"]), st.integers(0, 99))
def test_batches_have_the_triplets_of_algorithm_1(data: GeneratedPhrases, size: int, positives: Any, seed: int) -> None:
    """Steps 3.a and 3.b triplet by triplet, and the targets of step 3.c."""
    plain = PhraseSamplerRecipe(batch=size, positives=positives)
    extended = PhraseSamplerRecipe(batch=size, positives=positives, neighbourhood="sampling")
    truth = Truth(data, plain)
    samplers = (PhraseSampler(data, recipe, seed).triplets(1) for recipe in (plain, extended))
    for batch, neighbours in zip(*samplers, strict=True):
        regions, texts = batch.images.tolist(), batch.texts.tolist()
        forward, backward = directions(batch)
        pairs = [
            Pair(truth.entity(truth.chain[number]), regions[x], texts[y])
            for number, x, y in zip(batch.pairs, forward.anchor, forward.positive, strict=True)
        ]
        found = [
            (regions[x], texts[y], texts[other]) for x, y, others in zip(*forward, strict=True) for other in others
        ]
        assert Counter(found) == Counter(region_triplets(pairs))
        found = [
            (texts[y], regions[x], regions[other]) for y, x, others in zip(*backward, strict=True) for other in others
        ]
        assert Counter(found) == Counter(phrase_triplets(pairs))
        added = len(neighbours.texts) - len(texts)
        assert added == len(regions_with_one_phrase(pairs))
        assert neighbours.targets is not None
        assert len(neighbours.targets) - len(pairs) == len(phrases_with_one_region(pairs))


@few
@given(phrases, st.integers(2, 20), st.sampled_from(["single", "augmented"]), st.integers(0, 99))
def test_neighbourhood_sampling_gives_two_matches_whenever_a_second_exists(
    data: GeneratedPhrases, size: int, positives: Any, seed: int
) -> None:
    recipe = PhraseSamplerRecipe(batch=size, positives=positives, neighbourhood="sampling")
    plain = PhraseSamplerRecipe(batch=size, positives=positives)
    truth = Truth(data, recipe)
    sampler = PhraseSampler(data, recipe, seed)
    for batch, without in zip(sampler.triplets(1), PhraseSampler(data, plain, seed).triplets(1), strict=True):
        regions, texts = batch.images.tolist(), batch.texts.tolist()
        forward, backward = directions(batch)
        of_region, of_phrase = defaultdict(set), defaultdict(set)
        for anchor, positive in matches(forward):
            of_region[regions[anchor]].add(texts[positive])
        for anchor, positive in matches(backward):
            of_phrase[texts[anchor]].add(regions[positive])
        count = len(batch.pairs)
        target_regions = [regions[place] for place in forward.anchor[:count]]
        alone = lone = 0
        for region in set(target_regions):
            chains = {truth.chain[p] for p, own in zip(batch.pairs, target_regions, strict=True) if own == region}
            assert (len(of_region[region]) > 1) == (len(set().union(*(truth.chain_strings[c] for c in chains))) > 1)
            alone += len(of_region[region]) == 1
        for string in {truth.string[pair] for pair in batch.pairs}:
            chains = {truth.chain[pair] for pair in batch.pairs if truth.string[pair] == string}
            assert (len(of_phrase[string]) > 1) == (len(set().union(*(truth.positive[c] for c in chains))) > 1)
            lone += len(of_phrase[string]) == 1
        assert batch.statistics["regions_without_second"] == alone
        assert batch.statistics["phrases_without_second"] == lone
        assert batch.statistics["regions"] == len(set(target_regions))
        # What is there without neighbourhood sampling stays.
        assert texts[:count] == without.texts.tolist()
        assert [without.images[place] for place in directions(without)[0].anchor] == target_regions


@few
@given(phrases, st.integers(2, 20), st.integers(0, 99))
def test_the_control_adds_as_many_pairs_at_random(data: GeneratedPhrases, size: int, seed: int) -> None:
    made = [
        list(PhraseSampler(data, PhraseSamplerRecipe(batch=size, neighbourhood=how), seed).triplets(1))
        for how in ("sampling", "random")
    ]
    for sampled, control in zip(*made, strict=True):
        for own, other in zip(directions(sampled), directions(control), strict=True):
            assert len(own.anchor) == len(other.anchor)
        assert sampled.statistics["regions_without_second"] == control.statistics["regions_without_second"]
        assert control.contrast.same_images is None
        assert control.contrast.same_texts is None


@few
@given(phrases, st.integers(2, 20), st.integers(0, 99))
def test_neighbours_of_phrases_are_those_of_equations_4_and_5(data: GeneratedPhrases, size: int, seed: int) -> None:
    recipe = PhraseSamplerRecipe(batch=size, neighbourhood="sampling")
    truth = Truth(data, recipe)
    for batch in PhraseSampler(data, recipe, seed).triplets(1):
        alike, different = batch.contrast.same_images, batch.contrast.different_images
        named_alike, named_apart = batch.contrast.same_texts, batch.contrast.different_texts
        assert alike is not None
        assert different is not None
        assert named_alike is not None
        assert named_apart is not None
        assert batch.targets is not None
        rows = batch.images[batch.targets]
        assert not (alike & (rows[:, None] == rows)).any()
        assert not (alike & different).any()
        assert not (different & (rows[:, None] == rows)).any()
        assert torch.equal(alike, alike.T)
        strings = batch.texts
        assert not (named_alike & (strings[:, None] == strings)).any()
        assert not (named_apart & (strings[:, None] == strings)).any()
        assert not (named_alike & named_apart).any()
        own = [truth.chain[pair] for pair in batch.pairs]
        for i, one in enumerate(own):
            for j, other in enumerate(own):
                together = truth.drawn[one] == truth.drawn[other]
                assert bool(named_alike[i, j]) == (together and strings[i] != strings[j])
                named = truth.string[batch.pairs[j]] in truth.chain_strings[one]
                named |= truth.string[batch.pairs[i]] in truth.chain_strings[other]
                assert bool(named_apart[i, j]) == (not together and not named)
                assert bool(different[i, j]) == (not together and not named and bool(rows[i] != rows[j]))


@few
@given(phrases, phrase_recipes, st.integers(0, 99))
def test_pairs_of_phrases_are_balanced_within_the_picture(
    data: GeneratedPhrases, recipe: PhraseSamplerRecipe, seed: int
) -> None:
    truth = Truth(data, recipe)
    for batch in PhraseSampler(data, recipe, seed).pairs(1):
        half = len(batch.labels) // 2
        assert batch.labels.tolist() == [1.0] * half + [-1.0] * half
        assert batch.text[:half].tolist() == batch.text[half:].tolist()
        regions = batch.images[batch.image].tolist()
        found = defaultdict(set)
        for place, positive, negative in zip(batch.text[:half].tolist(), regions[:half], regions[half:], strict=True):
            chain = truth.chain[batch.pairs[place]]
            assert negative in truth.negative[chain]
            found[place].add(positive)
        for place, pair in enumerate(batch.pairs):
            chain = truth.chain[pair]
            assert int(batch.texts[place]) == truth.string[pair]
            assert found[place] == (truth.positive[chain] if truth.negative[chain] else set())
        assert batch.statistics["pairs"] == 2 * half


@few
@given(sentences, sentence_recipes, st.integers(0, 99))
def test_triplets_of_sentences(data: GeneratedSentences, recipe: SentenceSamplerRecipe, seed: int) -> None:
    image_of, captions = data.image_of.tolist(), data.captions
    batches = list(SentenceSampler(data, recipe, seed).triplets(1))
    assert sorted(np.concatenate([batch.pairs for batch in batches])) == list(range(len(captions)))
    for batch in batches:
        images, texts = batch.images.tolist(), batch.texts.tolist()
        forward, backward = directions(batch)
        of_image = defaultdict(set)
        for number, (anchor, positive) in enumerate(zip(forward.anchor, forward.positive, strict=True)):
            image, text = images[anchor], texts[positive]
            assert image_of[text] == image
            of_image[image].add(captions[text])
            wrong = {texts[place] for place in forward.negatives[number]}
            report = captions[texts[anchor]]
            assert wrong == {other for other in texts if image_of[other] != image and captions[other] != report}
        for number, (anchor, positive) in enumerate(zip(backward.anchor, backward.positive, strict=True)):
            text, image = texts[anchor], images[positive]
            assert image_of[text] == image
            wrong = {images[place] for place in backward.negatives[number]}
            equal_texts = {image_of[other] for other in texts[: len(images)] if captions[other] == captions[text]}
            assert wrong >= set(images) - {image} - equal_texts
            assert image not in wrong
        assert len(backward.anchor) == len(batch.pairs)
        if recipe.neighbourhood == "sampling":
            single = 0
            for image in {image_of[pair] for pair in batch.pairs}:
                known = {captions[row] for row in range(len(captions)) if image_of[row] == image}
                assert len(of_image[image]) >= min(2, len(known))
                single += len(known) == 1
            assert batch.statistics["images_without_second"] == single
            alike_images, different = batch.contrast.same_texts, batch.contrast.different_texts
            assert alike_images is not None
            assert different is not None
            for i, one in enumerate(texts):
                for j, other in enumerate(texts):
                    together, alike = image_of[one] == image_of[other], captions[one] == captions[other]
                    assert bool(alike_images[i, j]) == (together and not alike)
                    assert bool(different[i, j]) == (not together and not alike)


@few
@given(sentences, st.integers(2, 20), st.integers(0, 99))
def test_the_control_for_sentences_adds_as_many_pairs(data: GeneratedSentences, size: int, seed: int) -> None:
    made = [
        list(SentenceSampler(data, SentenceSamplerRecipe(size, how), seed).triplets(1))
        for how in ("sampling", "random")
    ]
    for sampled, control in zip(*made, strict=True):
        for own, other in zip(directions(sampled), directions(control), strict=True):
            assert len(own.anchor) == len(other.anchor)


@few
@given(sentences, st.integers(2, 20), st.integers(0, 99))
def test_pairs_of_sentences(data: GeneratedSentences, size: int, seed: int) -> None:
    image_of = data.image_of
    for batch in SentenceSampler(data, SentenceSamplerRecipe(size), seed).pairs(1):
        image, text = batch.images[batch.image], image_of[batch.texts[batch.text]]
        assert torch.equal(image == text, batch.labels > 0)
        assert (batch.labels > 0).sum() == (batch.labels < 0).sum() == len(batch.pairs)


def test_pairs_of_one_image_are_refused() -> None:
    data = generated_sentences(0, 1, 60)
    sampler = SentenceSampler(data, SentenceSamplerRecipe(), 0)
    assert len(sampler.triplets(1)) == 1
    with pytest.raises(DeixisError, match="two images or more"):
        sampler.pairs(1)


def test_a_last_pair_alone_joins_the_batch_before_it() -> None:
    data = generated_sentences(0, 12, 60)
    count = len(data.captions)
    sizes = [len(batch.pairs) for batch in SentenceSampler(data, SentenceSamplerRecipe(count - 1), 0).triplets(1)]
    assert sizes == [count]


def test_random_choices_reach_everything() -> None:
    """A second match and a negative are drawn from all there are, each about as often."""
    data = generated_sentences(3, 4, 10**6)
    sampler = SentenceSampler(data, SentenceSamplerRecipe(2), 0)
    random = np.random.default_rng(0)
    pair = np.zeros(4000, np.int64)
    own = data.image_of.numpy() == data.image_of.numpy()[0]
    seconds = np.bincount(sampler.choices.another(pair, random), minlength=len(own))
    others = np.bincount(sampler.choices.elsewhere(pair, random), minlength=len(own))
    wanted = own & (np.arange(len(own)) != 0)
    assert own.sum() > 2
    assert ((seconds > 0) == wanted).all()
    assert ((others > 0) == ~own).all()
    for counts, among in ((seconds, wanted), (others, ~own)):
        np.testing.assert_allclose(counts[among], 4000 / among.sum(), rtol=0.25)


def equal(one: RankingBatch | PairBatch, other: RankingBatch | PairBatch) -> bool:
    """Whether all tensors of two batches are equal."""

    def flat(part: Any) -> list[Any]:
        return [leaf for item in part for leaf in flat(item)] if isinstance(part, tuple) else [part]

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor | np.ndarray):
            return a.shape == b.shape and bool((a == b).all())
        return bool(a == b)

    left, right = flat(one), flat(other)
    return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("neighbourhood", NEIGHBOURHOODS)
def test_a_picture_without_negative_regions_still_makes_batches(neighbourhood: Any) -> None:
    data = generated_phrases(1, 4, 6)
    data.negative_rows, data.negative_offsets = data.negative_rows[:0], torch.zeros_like(data.negative_offsets)
    sampler = PhraseSampler(data, PhraseSamplerRecipe(batch=5, neighbourhood=neighbourhood), 0)
    for batch in sampler.triplets(1):
        assert not batch.contrast.negative_images.any()
    assert sum(batch.statistics["phrases_without_negative"] for batch in sampler.pairs(1)) == len(data.pair_string)


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(sampling) == (0, 2)


def test_an_epoch_of_given_steps_takes_several_passes() -> None:
    def make(epoch: int, base: np.ndarray, following: np.ndarray, random: np.random.Generator) -> list[int]:
        return base.tolist()

    batches = shuffled(10, 4, 0, 1, make, steps=6)
    assert len(batches) == 6
    sets = list(batches)
    assert [len(each) for each in sets] == [4] * 6
    drawn = [pair for each in sets for pair in each]
    # Two whole passes, in which every pair occurs once, and a part of a third.
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10))
    assert drawn[:10] != drawn[10:20]
    assert list(shuffled(10, 4, 0, 1, make, steps=6)) == sets


def test_batches_of_exemplars_are_made_of_the_kept_pairs() -> None:
    data = generated_phrases(3, 6, 9)
    kept = np.arange(0, len(data.pair_string), 2)
    sampler = PhraseSampler(data, PhraseSamplerRecipe(batch=5, neighbourhood="random"), 0, rows=kept)
    drawn = [pair for batch in sampler.triplets(1) for pair in batch.pairs.tolist()]
    assert sorted(drawn) == kept.tolist()
