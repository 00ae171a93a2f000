"""The captioner of DVSA against its equations, written out word by word, and its search against all sentences."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from deixis.errors import DeixisError
from deixis.model import ImageFeatures
from deixis.papers.dvsa.captioner import Captioner, CaptionerRecipe, DecodingRecipe, text_ids
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.papers.dvsa.reference import caption_log_likelihood
from deixis.text.vocabulary import END, PAD, Vocabulary

VOCABULARY = Vocabulary({"a": 3, "dog": 2, "runs": 1})
CELLS = pytest.mark.parametrize("cell", ["rnn", "lstm"])


def a_captioner(cell: Any, channels: int = 5) -> Captioner:
    torch.manual_seed(0)
    network = Captioner(channels, len(VOCABULARY), CaptionerRecipe(cell=cell, word=4, hidden=6)).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    return network


@CELLS
@pytest.mark.parametrize("block", [1, 200, 1 << 25])
def test_likelihoods_of_all_pairs_are_those_of_the_equations(cell: str, block: int) -> None:
    network = a_captioner(cell)
    pictures = torch.randn(3, 5, dtype=torch.double)
    texts = [("a", "dog", "runs"), (), ("dog",), ("dog", "unheard-of")]
    ids = torch.from_numpy(text_ids(VOCABULARY, texts))
    scores = network.score_all(pictures, ids, block)
    for row, picture in zip(scores, pictures, strict=True):
        expected = [caption_log_likelihood(network, picture, VOCABULARY.encode(text, end=True)) for text in texts]
        assert row.tolist() == pytest.approx(expected, rel=1e-5)


@CELLS
def test_a_wide_beam_says_the_most_likely_of_all_sentences(cell: str) -> None:
    network = a_captioner(cell)
    pictures = torch.randn(4, 5, dtype=torch.double)
    every = range(END + 1, len(VOCABULARY))
    # To say nothing is no sentence.
    sentences = [list(words) for length in range(1, 4) for words in product(every, repeat=length)]
    for power in (0.0, 1.0):
        decoding = DecodingRecipe(beam=60, longest=3, length_power=power)
        for picture, found in zip(pictures, network.speak(pictures, decoding, 5), strict=True):
            rated = [
                caption_log_likelihood(network, picture, [*own, END]) / (len(own) + 1) ** power for own in sentences
            ]
            best = sorted(zip(rated, sentences, strict=True), reverse=True)[:5]
            assert [each.words for each in found] == [own for _, own in best]
            assert [each.score for each in found] == pytest.approx([score for score, _ in best], rel=1e-4)


def test_a_sentence_ends_only_where_the_end_is_likely_or_at_its_greatest_length() -> None:
    network = a_captioner("rnn")
    pictures = torch.randn(6, 5, dtype=torch.double)
    with torch.no_grad():
        network.output.bias[END] = 0.5
    lengths = set()
    for picture, own in zip(pictures, network.speak(pictures, DecodingRecipe(beam=2, longest=5), 2), strict=True):
        assert own
        for words, _ in own:
            lengths.add(len(words))
            report = network.logits(picture[None], torch.tensor([[*words, END]]))[0, -1, END:]
            assert len(words) == 5 or (report[1:] > report[0]).sum() < 2
    assert len(lengths) > 1, "some end early, some at the greatest length"


def test_no_run_of_words_is_said_twice_where_that_is_asked_for() -> None:
    network = a_captioner("rnn")
    with torch.no_grad():
        network.output.bias[END] = -50
        # It would say one word for ever.
        network.output.bias[END + 1] = 50
    pictures = torch.randn(2, 5, dtype=torch.double)
    for size in (1, 2, 3):
        for own in network.speak(pictures, DecodingRecipe(beam=3, longest=8, distinct_runs=size), 3):
            for words, _ in own:
                runs = [tuple(words[k : k + size]) for k in range(len(words) - size + 1)]
                assert len(set(runs)) == len(runs)
    free = network.speak(pictures, DecodingRecipe(beam=1, longest=8))[0][0].words
    assert free == [END + 1] * 8


def test_biases_begin_as_log_frequencies() -> None:
    counts = torch.tensor([0, 2, 0, 10, 20, 5, 3])
    network = Captioner(5, 7, CaptionerRecipe(word=4, hidden=6), frequencies=counts)
    with torch.no_grad():
        network.output.weight.zero_()
    report = network.logits(torch.randn(1, 5), torch.tensor([[END]])).softmax(-1)[0, 0]
    assert report[1:2].item() == pytest.approx(2 / 41)
    assert report[4].item() == pytest.approx(20 / 41)


def test_an_rnn_that_begins_as_the_identity_keeps_the_picture_through_a_sentence() -> None:
    """How much the last state of ten words depends on the picture, at first."""
    found = []
    for recurrent in ("uniform", "identity"):
        torch.manual_seed(0)
        network = Captioner(5, 7, CaptionerRecipe(word=16, hidden=128, recurrent=recurrent)).eval()  # type: ignore[arg-type]
        picture = torch.randn(1, 5, requires_grad=True)
        hidden = network.read(torch.full((1, 10), 4), network.begin(picture))[0][0, -1]
        (slope,) = torch.autograd.grad(hidden.sum(), picture)
        found.append(float(slope.norm()))
    assert found[1] > 100 * found[0]


def test_what_is_described_may_be_read_by_how_directions_differ_from_the_mean_ones() -> None:
    """Each of the vectors side by side by its own mean direction, so that no length tells anything."""
    centre, inputs = 0.3 * torch.randn(2, 3, dtype=torch.double), torch.randn(4, 2, 3, dtype=torch.double)
    torch.manual_seed(0)
    network = Captioner(6, len(VOCABULARY), CaptionerRecipe(word=4, hidden=6, centred=True), centre=centre).double()
    plain = Captioner(6, len(VOCABULARY), CaptionerRecipe(word=4, hidden=6)).double().eval()
    plain.load_state_dict({name: own for name, own in network.eval().state_dict().items() if name != "centre"})
    directions = inputs / inputs.norm(dim=2, keepdim=True) - centre
    expected = (directions / directions.norm(dim=2, keepdim=True) * 3**0.5).flatten(1)
    assert float(expected.square().mean()) == pytest.approx(1)
    ids = torch.tensor([[4, 5, END]]).expand(4, 3)
    lengths = torch.rand(4, 2, 1, dtype=torch.double) + 0.5
    found = network.log_likelihood((inputs * lengths).flatten(1), ids)
    torch.testing.assert_close(found, plain.log_likelihood(expected, ids))


def test_padding_changes_nothing() -> None:
    network = a_captioner("lstm")
    picture, ids = torch.randn(1, 5, dtype=torch.double), torch.tensor([[4, 5, END]])
    padded = torch.tensor([[4, 5, END, PAD, PAD]])
    torch.testing.assert_close(network.log_likelihood(picture, ids), network.log_likelihood(picture, padded))


def an_image(channels: int = 5) -> ImageFeatures:
    random = np.random.default_rng(0)
    return ImageFeatures(random.normal(size=channels), random.normal(size=(3, channels)), np.zeros((3, 4)), (9.0, 9.0))


@pytest.mark.parametrize("context", [False, True])
def test_a_matcher_describes_pictures_and_regions_and_scores_what_it_says_as_it_says_it(context: bool) -> None:
    network = a_captioner("rnn", 10 if context else 5).float()
    cpu, background = torch.device("cpu"), torch.randn(4, 10 if context else 5)
    matcher = CaptionerModel(network, VOCABULARY, DecodingRecipe(longest=4), background, cpu, context=context)
    assert matcher.abilities == {"score", "describe", "describe_regions", "log_likelihood"}
    image = an_image()
    said = matcher.describe(image, 3)
    assert [each.score for each in said] == sorted((each.score for each in said), reverse=True)
    texts = [each.tokens for each in said]
    likely = matcher.log_likelihood([image], texts)[0]
    assert likely == pytest.approx([each.score for each in said], rel=1e-3)
    # By how much likelier the picture makes a text than other pictures do on average.
    ids = torch.from_numpy(text_ids(VOCABULARY, texts))
    each = torch.stack([network.log_likelihood(row.expand(len(texts), -1), ids) for row in background])
    expected = likely - each.detach().exp().mean(0).log().numpy()
    assert matcher.score([image], texts)[0] == pytest.approx(expected, abs=1e-4)
    regions = matcher.describe_regions(image, 2)
    assert [len(own) for own in regions] == [2, 2, 2]
    assert image.regions is not None
    wanted = ImageFeatures(image.regions[1], image.regions, image.boxes, image.size)
    if not context:
        assert [(each.text, each.score) for each in regions[1]] == [
            (each.text, each.score) for each in matcher.describe(wanted, 2)
        ]
        own = [said[0].tokens for said in regions]
        alone = [
            matcher.score([ImageFeatures(row, None, None, image.size)], [text])[0, 0]
            for row, text in zip(image.regions, own, strict=True)
        ]
        assert matcher.fit_of_regions(image, own) == pytest.approx(alone, abs=1e-4)


def test_neighbours_are_by_the_cosine_of_word_vectors() -> None:
    matcher = CaptionerModel(a_captioner("rnn"), VOCABULARY, DecodingRecipe(), torch.zeros(1, 5), torch.device("cpu"))
    vectors = matcher.network.words.weight.detach().numpy()[END + 1 :]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = dict(zip(VOCABULARY.words, (vectors @ vectors[1]).tolist(), strict=True))
    del cosines["dog"]
    best = sorted(cosines.items(), key=lambda pair: -pair[1])
    found = matcher.neighbours("dog", 5)
    assert [word for word, _ in found] == [word for word, _ in best]
    assert [value for _, value in found] == pytest.approx([value for _, value in best])
    with pytest.raises(DeixisError, match="zebra"):
        matcher.neighbours("zebra", 1)


class Speaks(CaptionerModel):
    """Says of four regions what is written here."""

    def __init__(self) -> None:
        super().__init__(a_captioner("rnn"), VOCABULARY, DecodingRecipe(), torch.zeros(1, 5), torch.device("cpu"))

    def _spoken(self, rows: Any, count: int) -> Any:
        cat = [(("a", "cat"), -0.5), (("cats",), -2.0)][:count]
        return [cat, [], [(("a", "dog"), -1.0)], [(("a", "cat"), -0.1)]]

    def fit_of_regions(self, image: ImageFeatures, texts: Any) -> Any:
        assert texts == [("a", "cat"), (), ("a", "dog"), ("a", "cat")]
        return np.array([0.1, 9.0, 0.3, 0.05])


def test_a_sentence_is_given_to_the_region_that_it_fits_best() -> None:
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [60, 0, 69, 9]], np.float32)
    image = ImageFeatures(np.zeros(5), np.zeros((4, 5)), boxes, (100, 100))
    found = [each for own in Speaks().describe_regions(image, 2, most=5) for each in own]
    assert [(each.box and each.box[0], each.text, each.score, each.by) for each in found] == [
        (40.0, "a dog", -1.0, "generation"),
        (0.0, "a cat", -0.5, "generation"),
        (0.0, "cats", -2.0, "generation"),
    ]
    assert len(Speaks().describe_regions(image, 2)) == 4
