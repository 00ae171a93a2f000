"""The grounding network and its matcher: padding and company change nothing, files come back, ranks are the best."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from deixis.base.grounding_boxes import FIRST_SHARPNESS, by_coverage, moved, offsets_to
from deixis.base.grounding_model import GroundingModel, empty_network, mirrored
from deixis.base.grounding_network import Captions, GroundingRecipe, Regions
from deixis.corpus.boxes import iou_matrix
from deixis.errors import InputError
from deixis.model import Mention
from deixis.text.tokens import tokenize
from deixis.text.vocabulary import PAD, Vocabulary
from deixis.training.augmentation import mirrored_words
from deixis.vision.box_tensors import pairwise_iou

SMALL = GroundingRecipe(
    backbone="efficientnet-lite0",
    side=64,
    regions=12,
    map_width=16,
    bins=3,
    width=32,
    hidden=16,
    caption_layers=2,
    compare=True,
    colours=8,
)
WORDS = tokenize("a man in the red shirt left right leftmost rightmost of dog chases ball")


def grounder(recipe: GroundingRecipe = SMALL) -> GroundingModel:
    torch.manual_seed(0)
    vocabulary = Vocabulary(dict.fromkeys(WORDS, 1))
    network = empty_network(recipe, len(vocabulary), proposer_width=32).eval()
    # Weights that begin at zero would hide what depends on them.
    assert network.comparison is not None
    assert network.colours is not None
    network.colours.set_words(vocabulary)
    nn.init.normal_(network.colours.word.weight)
    for part in (network.pair, network.comparison.weigh, network.comparison.scale):
        nn.init.normal_(part.weight, std=0.2)
    return GroundingModel(network, vocabulary)


def photo(seed: int = 0) -> Pillow.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    return Pillow.fromarray(pixels).resize((90, 60), Pillow.Resampling.BICUBIC)


SENTENCE = tokenize("a man in the red shirt chases a dog")
MENTIONS = [Mention(SENTENCE, 0, 2), Mention(SENTENCE, 3, 6), Mention(SENTENCE, 7, 9)]


def test_the_grounder_is_a_matcher_whose_boxes_lie_in_the_picture() -> None:
    matcher = grounder()
    assert matcher.abilities == {"localize", "ground"}
    boxes, scores = matcher.localize(photo(), MENTIONS)
    assert boxes.shape == (3, scores.shape[1], 4)
    assert 0 < scores.shape[1] <= 12
    assert boxes.min() >= 0
    assert (boxes[..., [0, 2]] <= 90).all()
    assert (boxes[..., [1, 3]] <= 60).all()
    assert np.isfinite(scores).all()
    assert matcher.localize(photo(), []).scores.shape == (0, 0)


@pytest.mark.parametrize("reads", ["caption", "phrase"])
def test_other_sentences_and_longer_ones_change_nothing(reads: str) -> None:
    """What is asked along with a sentence is padding to it; what stands in it is context."""
    recipe = GroundingRecipe(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__} | {"reads": reads})
    matcher = grounder(recipe)
    alone = matcher.localize(photo(), MENTIONS)
    longer = (*SENTENCE, "left", "of", "the", "ball")
    company = matcher.localize(photo(), [Mention(longer, 9, 10), *MENTIONS, Mention(("ball",), 0, 1)])
    np.testing.assert_allclose(company.boxes[1:4], alone.boxes, atol=1e-3)
    np.testing.assert_allclose(company.scores[1:4], alone.scores, atol=1e-4)
    in_longer = matcher.localize(photo(), [Mention(longer, one.start, one.end) for one in MENTIONS])
    same = np.allclose(in_longer.boxes, alone.boxes, atol=1e-3)
    assert same == (reads == "phrase")


def test_regions_that_are_padding_change_nothing() -> None:
    network = grounder().network
    torch.manual_seed(1)
    pyramid = [
        torch.rand(1, channels, 64 // stride, 64 // stride)
        for channels, stride in zip((40, 112, 320), (8, 16, 32), strict=True)
    ]
    boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.6], [0.3, 0.2, 0.9, 0.9], [0.0, 0.0, 1.0, 0.4]]])
    types = torch.randn(1, 3, 8)
    red = grounder().vocabulary.encode(["red"])[0]
    captions = Captions(torch.tensor([[[4, red, 6, PAD]]]), *(torch.tensor([[value]]) for value in (0, 0, 2)))
    thumbnails = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        alone = network(pyramid, Regions(boxes, types, torch.ones(1, 3, dtype=torch.bool)), captions, thumbnails)
        padded = Regions(
            torch.cat([boxes, torch.rand(1, 2, 4)], 1),
            torch.cat([types, torch.randn(1, 2, 8)], 1),
            torch.tensor([[True] * 3 + [False] * 2]),
        )
        more = network(pyramid, padded, captions, thumbnails)
    torch.testing.assert_close(more.scores[..., :3], alone.scores)
    torch.testing.assert_close(more.boxes[..., :3, :], alone.boxes)
    assert (more.scores[..., 3:] == -torch.inf).all()


def test_it_reads_as_a_bidirectional_gru_over_packed_sequences() -> None:
    network = grounder().network
    both = nn.GRU(300, 16, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for suffix, one in (("", network.forwards), ("_reverse", network.backwards)):
            for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                getattr(both, name + suffix).copy_(getattr(one, name))
    lengths = torch.tensor([5, 1, 3])
    real = torch.arange(5) < lengths[:, None]
    vectors = torch.randn(3, 5, 300)
    packed, _ = both(pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    torch.testing.assert_close(network._read(vectors, real)[real], expected[real])


def test_offsets_bring_a_box_to_another() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(2, 50, 2, 2, generator=generator).sort(2).values
    boxes, wanted = (corners.flatten(2) + torch.tensor([0.0, 0.0, 0.2, 0.2])).unbind(0)
    torch.testing.assert_close(moved(boxes, offsets_to(boxes, wanted)), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(moved(boxes, torch.zeros(50, 4)), boxes)


def test_the_most_expected_box_comes_first_and_then_what_covers_most() -> None:
    """The first box given, k more by greed have at least 1 − 1/e of what the best k add (Nemhauser et al. 1978)."""
    generator = np.random.default_rng(0)
    passed = 0
    for _ in range(30):
        low = generator.uniform(0, 0.5, (9, 2))
        boxes = np.concatenate([low, low + generator.uniform(0.2, 0.5, (9, 2))], 1).astype(np.float32)
        logits = generator.normal(0, 1.5, 9).astype(np.float32)
        chance = np.exp(logits) / np.exp(logits).sum()
        hit = iou_matrix(boxes, boxes) >= 0.5
        ranked = by_coverage(torch.from_numpy(boxes), torch.from_numpy(logits), 1.0, count=3).numpy()
        order = np.argsort(-ranked)

        def covered(chosen, chance=chance, hit=hit) -> float:
            return float(chance[hit[list(chosen)].any(0)].sum())

        first = int(order[0])
        powers = np.exp(FIRST_SHARPNESS * logits)
        assert first == (iou_matrix(boxes, boxes) @ powers).argmax()
        assert ranked[first] == pytest.approx(covered([first]), abs=1e-3)
        gains = [covered((first, other)) - covered([first]) for other in range(9)]
        assert gains[order[1]] == pytest.approx(max(gains), abs=1e-3)
        passed += max(gains) > ranked[first]
        best = max(covered((first, *two)) for two in combinations(range(9), 2)) - covered([first])
        assert covered(order[:3]) - covered([first]) >= (1 - 1 / np.e) * best - 1e-6
        # No two of the first are tied, even where a later box covers more than the first.
        assert ranked[order[0]] > ranked[order[1]] > ranked[order[2]] >= 0
        assert (np.sort(ranked)[:-3] < 0).all()
        # The rest in the order of their own chance.
        assert np.array_equal(order[3:], [number for number in np.argsort(-chance) if number not in order[:3]])
    assert passed, "some second box should cover more than the first, or nothing holds the order"


def test_whatever_the_sharpness_the_first_is_the_most_expected() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(20, 9, 2, 2, generator=generator).sort(2).values.flatten(2)
    scores = torch.randn(20, 9, generator=generator)
    expected = (pairwise_iou(boxes, boxes) @ (FIRST_SHARPNESS * scores).softmax(-1)[..., None]).squeeze(-1)
    for sharpness in (0.01, 1.0, 1e4):
        assert torch.equal(by_coverage(boxes, scores, sharpness).argmax(-1), expected.argmax(-1))


def test_several_boxes_on_one_thing_count_for_more_than_a_lone_one() -> None:
    boxes = torch.tensor([[0.0, 0.0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.9, 0.88]])
    assert by_coverage(boxes, torch.tensor([1.1, 1.0, 1.0]), 2.0).argmax() != 0


def test_absent_regions_are_never_ranked() -> None:
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.2, 0.2]])
    ranked = by_coverage(boxes, torch.tensor([1.0, -torch.inf, 0.0]), 2.0)
    assert ranked[1] == -torch.inf
    assert ranked[0] > ranked[2] > 0


def test_the_mirror_swaps_sides_and_is_its_own_undoing() -> None:
    vocabulary = Vocabulary(dict.fromkeys(WORDS, 1))
    swap = mirrored_words(vocabulary)
    sentence = torch.tensor(vocabulary.encode(tokenize("the man left of the rightmost dog")))
    assert vocabulary.decode(swap[sentence].tolist()) == tokenize("the man right of the leftmost dog")
    assert torch.equal(swap[swap], torch.arange(len(vocabulary)))
    assert torch.equal(mirrored_words(Vocabulary({"left": 1})), torch.arange(5))
    boxes = torch.rand(7, 4)
    torch.testing.assert_close(mirrored(mirrored(boxes)), boxes)
    torch.testing.assert_close(mirrored(torch.tensor([0.1, 0.2, 0.4, 0.9])), torch.tensor([0.6, 0.2, 0.9, 0.9]))


def test_looking_twice_sees_the_same_in_a_picture_and_its_mirror_image(monkeypatch) -> None:
    matcher = grounder()
    boxes = torch.tensor([[[0.1, 0.1, 0.5, 0.6], [0.3, 0.2, 0.9, 0.9], [0.0, 0.0, 1.0, 0.4]]])
    regions = Regions(boxes, torch.zeros(1, 3, 8), torch.ones(1, 3, dtype=torch.bool))
    pixels = torch.randint(0, 255, (1, 3, 64, 64), dtype=torch.uint8)
    captions = matcher.captions([Mention(tokenize("the man left of the dog"), 0, 2)])
    turned = captions._replace(tokens=mirrored_words(matcher.vocabulary)[captions.tokens])

    def look(pixels: Tensor, captions: Captions, regions: Regions, mirror: bool) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(matcher.network, "propose", lambda output: regions)
        answer, _ = matcher.answer(pixels, captions, mirror=mirror)
        return answer.scores.log_softmax(-1), answer.boxes

    there, back = (regions, regions._replace(boxes=mirrored(boxes)))
    once, twice = look(pixels, captions, there, False), look(pixels, captions, there, True)
    other = look(pixels.flip(-1), turned, back, True)
    torch.testing.assert_close(twice[0], other[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(twice[1], mirrored(other[1]), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(once[1], twice[1])


def test_a_file_brings_the_grounder_back(tmp_path) -> None:
    matcher = grounder()
    path = tmp_path / "grounder.safetensors"
    matcher.save(path)
    again = GroundingModel.load(path)
    assert again.vocabulary.words == matcher.vocabulary.words
    assert again.network.recipe == SMALL
    captions = matcher.captions(MENTIONS)
    pixels = torch.randint(0, 255, (1, 3, 64, 64), dtype=torch.uint8)

    def answers(one: GroundingModel) -> tuple[Tensor, Tensor]:
        answer, regions = one.answer(pixels, captions, mirror=False)
        return answer.scores, regions.boxes

    # Half precision and folded normalizations: nearly the same proposals, and scores of the same regions.
    expected, found = answers(matcher), answers(again)
    torch.testing.assert_close(found[1], expected[1], atol=0.02, rtol=0)
    torch.testing.assert_close(found[0], expected[0], atol=0.1, rtol=0)
    with safe_open(path, "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} <= {torch.float16, torch.int64}  # noqa: SIM118


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda tensors, metadata: metadata.update(kind="else"), "is not the file of a trained grounder"),
        (lambda tensors, metadata: metadata.pop("words"), "its description is damaged"),
        (lambda tensors, metadata: metadata.update(recipe='{"side": 3}'), "its description is damaged"),
        (lambda tensors, metadata: tensors.pop("query.bias"), "query.bias: holds other weights"),
        (lambda tensors, metadata: tensors["query.bias"].fill_(torch.nan), "query.bias: holds numbers that are not"),
        (lambda tensors, metadata: metadata.update(words=json.dumps(["dog"])), "holds other weights"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path, damage, problem) -> None:
    path = tmp_path / "grounder.safetensors"
    grounder().save(path)
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    damage(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match=problem):
        GroundingModel.load(path)
    path.write_bytes(b"no weights")
    with pytest.raises(InputError, match="is no file of a trained grounder"):
        GroundingModel.load(path)
