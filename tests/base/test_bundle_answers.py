"""The graphs of a bundle answer as its networks do in PyTorch; NumPy ranks and searches as PyTorch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from deixis.adapters.bundles import BACKBONE, MANIFEST, OLD_VERSION, WEIGHTS, packaged_folder, read_bundle
from deixis.adapters.onnx_captioner import beam_search as numpy_beam_search
from deixis.adapters.onnx_grounding import most_expected, rank_by_coverage
from deixis.base.bundle_export import _with_settings, export_bundle
from deixis.base.bundle_model import BundleModel, bundle_settings
from deixis.base.bundle_networks import BundleCaptioner, bundle_grounder
from deixis.base.grounding_boxes import by_coverage
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingRecipe
from deixis.base.text_tower import TowerRecipe
from deixis.corpus.scenes import scenes_corpus
from deixis.errors import DeixisError, InputError
from deixis.model import Mention, as_tokens
from deixis.text.beam_search import State, beam_search
from deixis.text.phrase_finding import phrases_in
from deixis.vision.reading import read_picture

PHRASES = [
    "a man",
    "the large brown dog that runs beside the red car",
    "zyxwv",
    "two people on a very green lawn",
    "sky",
]


@pytest.fixture(scope="module")
def pictures() -> list[Pillow.Image]:
    corpus = scenes_corpus(4)
    return [read_picture(corpus, image) for image in corpus]


@pytest.fixture(scope="module")
def model() -> BundleModel:
    return BundleModel(read_bundle(packaged_folder()), "deixis-base")


@pytest.fixture(scope="module")
def grounder(model: BundleModel) -> GroundingModel:
    return bundle_grounder(model.bundle)


def test_it_grounds_as_pytorch_does(model: BundleModel, grounder: GroundingModel, pictures: list[Pillow.Image]) -> None:
    """Phrases of one sentence, and phrases of unequal length, which are padded together."""
    for picture in pictures[:2]:
        ours_seen, theirs_seen = model.look(picture), grounder.look(picture)
        for asked in ("A man in a red shirt throws a ball to a brown dog.", PHRASES, ["dog"], "Two people near trees."):
            ours, theirs = model.ground(ours_seen, asked), grounder.ground(theirs_seen, asked)
            assert [each.phrase for each in ours] == [each.phrase for each in theirs]
            for own, other in zip(ours, theirs, strict=True):
                # Boxes are rounded to a tenth of a pixel.
                assert own.box == pytest.approx(other.box, abs=0.101)
                assert np.array(own.boxes) == pytest.approx(np.array(other.boxes), abs=0.101)
                assert own.score == pytest.approx(other.score, abs=1e-3)
    assert model.ground(pictures[0], []) == []


def test_grounding_and_presence_share_one_pass_of_the_backbone(
    model: BundleModel, pictures: list[Pillow.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, run, graphs = pictures[0], model._run, []

    def counted(name: str, *inputs: Any, **settings: Any) -> Any:
        graphs.append(name)
        return run(name, *inputs, **settings)

    regions, embedded = model._grounder.look(picture), model.embed_prepared([model.prepare(picture)])
    monkeypatch.setattr(model, "_run", counted)
    monkeypatch.setattr(model._grounder, "_run", counted)
    seen = model.look(picture)
    assert graphs.count(BACKBONE) == 1
    assert all(np.array_equal(own, other) for own, other in zip(seen.regions, regions, strict=True))
    assert all(np.array_equal(own, other) for own, other in zip(seen.embedded, embedded, strict=True))
    graphs.clear()
    assert model.ground(picture, "a man") == model.ground(seen, "a man")
    assert graphs.count(BACKBONE) == 1


def test_it_localizes_as_pytorch_does(
    model: BundleModel, grounder: GroundingModel, pictures: list[Pillow.Image]
) -> None:
    sentence = ("a", "dog", "beside", "a", "red", "car")
    phrases = [
        Mention(sentence, 0, 2),
        Mention(sentence, 3, 6),
        ("a", "tree"),
        ("a", "dog", "nearest", "to", "a", "tree"),
    ]
    for picture in pictures[2:]:
        ours, theirs = model.localize(picture, phrases), grounder.localize(picture, phrases)
        assert np.allclose(ours.boxes, theirs.boxes, atol=1e-3 * max(picture.size))
        assert np.allclose(ours.scores, theirs.scores, atol=1e-3)
        proposals = model.proposals(picture)
        assert proposals is not None
        assert proposals.shape == ours.boxes.shape[1:]
        assert np.allclose(proposals, grounder.proposals(picture), atol=1e-3 * max(picture.size))
    assert model.localize(pictures[0], []).scores.shape == (0, 0)


def test_it_describes_as_pytorch_does(model: BundleModel, pictures: list[Pillow.Image]) -> None:
    """And says each sentence once: the beam has sentences with and without a full stop."""
    plain, captioner = matching(model, 0.0), BundleCaptioner(model.bundle)
    repeated = 0
    for picture, count in zip(pictures, (1, 3, 5, 8), strict=True):
        ours, beam = plain.describe(picture, count), captioner.describe(captioner.prepare(picture), max(count, 5))
        sentences = [each.sentence for each in beam]
        theirs = [each for index, each in enumerate(beam) if each.sentence not in sentences[:index]][:count]
        repeated += len(beam) - len(set(sentences))
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-3)
    assert repeated


def test_sentences_of_the_beam_are_ranked_by_how_well_they_match_too(
    model: BundleModel, pictures: list[Pillow.Image]
) -> None:
    plain, matched = matching(model, 0.0), matching(model, 40.0)
    changed = 0
    for picture in pictures:
        beam = plain.describe(picture, 5)
        fits = model.score([picture], [each.tokens for each in beam])[0]
        best = sorted(zip(beam, fits.tolist(), strict=True), key=lambda pair: -(pair[0].score + 40 * pair[1]))[:2]
        for seen in (picture, matched.look(picture)):
            ours = matched.describe(seen, 2)
            assert [each.text for each in ours] == [each.text for each, _ in best]
            assert [each.score for each in ours] == pytest.approx(
                [each.score + 40 * fit for each, fit in best], abs=1e-3
            )
        changed += ours[0].text != beam[0].text
    assert changed


def matching(model: BundleModel, weight: float) -> BundleModel:
    """The same bundle with another weight of how well sentences match."""
    manifest = model.bundle.manifest
    settings = {**(manifest.captioner or {}), "match": weight}
    manifest = msgspec.structs.replace(manifest, captioner=settings)
    return BundleModel(msgspec.structs.replace(model.bundle, manifest=manifest), "deixis-base")


def test_sentences_about_one_picture_are_told_apart_by_their_phrases_too(
    model: BundleModel, grounder: GroundingModel, pictures: list[Pillow.Image]
) -> None:
    """As PyTorch finds them, sentence by sentence or many together; a picture that was seen gives the same."""
    places = weighing_places(model, 0.5)
    texts = [
        "a man in a red shirt and a woman in a blue dress",
        "a man in a blue dress and a woman in a red shirt",
        "running.",
        *[f"a dog and {count} trees" for count in ("two", "three", "four")] * 11,
    ]
    for picture in pictures[:2]:
        own = places.score_texts(picture, texts)
        certain = (own - model.score([picture], texts)[0]) / 0.5
        assert (certain < 0).all()
        for text, certainty in zip(texts[:3], certain.tolist(), strict=False):
            words = as_tokens(text)
            mentions = [Mention(words, *span) for span in phrases_in(words) or [(0, 1)]]
            logits = torch.from_numpy(grounder.phrase_logits(grounder.look(picture), mentions))
            assert certainty == pytest.approx(float(logits.log_softmax(1).amax(1).mean()), abs=2e-3)
        assert own == pytest.approx([places.score_texts(picture, [text])[0] for text in texts], abs=1e-4)
        assert np.array_equal(places.score_texts(places.look(picture), texts), own)
    # Search does not weigh places.
    assert np.array_equal(places.score(pictures, texts), model.score(pictures, texts))
    assert places.score_texts(pictures[0], []).shape == (0,)
    for empty in ("", " ", ()):
        with pytest.raises(DeixisError, match="has no words"):
            places.score_texts(pictures[0], [empty])
    # Of a very long text the first words are looked for.
    long = " and ".join(["a dog"] * 90)
    assert np.isfinite(places.score_texts(pictures[0], [long, f"{long} and a cat"])).all()


def weighing_places(model: BundleModel, weight: float) -> BundleModel:
    """The same bundle with another weight of the phrases' places."""
    manifest = model.bundle.manifest
    settings = {**(manifest.grounding or {}), "sentence_weight": weight}
    manifest = msgspec.structs.replace(manifest, grounding=settings)
    return BundleModel(msgspec.structs.replace(model.bundle, manifest=manifest), "deixis-base")


def test_a_bundle_gets_another_captioner_while_it_searches_as_before(model: BundleModel, tmp_path: Path) -> None:
    """Exported on itself, with all weights stored as they were, to the byte."""
    old = model.bundle
    manifest = export_bundle("deixis-base", tmp_path / "new", caption_match=3.0)
    assert manifest.captioner is not None
    assert manifest.captioner["match"] == 3.0
    assert (manifest.weights_sha256, manifest.thresholds) == (old.manifest.weights_sha256, old.manifest.thresholds)
    assert manifest.files[WEIGHTS] == old.manifest.files[WEIGHTS]
    assert manifest.files.keys() == old.manifest.files.keys()
    with pytest.raises(DeixisError, match="stay as they are"):
        export_bundle("deixis-base", tmp_path / "other", side=256)


def test_a_bundle_that_sees_other_jpeg_files_has_indexes_of_its_own(model: BundleModel, tmp_path: Path) -> None:
    export_bundle("deixis-base", tmp_path / "other", jpeg=20)
    other = BundleModel(read_bundle(tmp_path / "other"))
    assert other.identity != model.identity
    noise = Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (400, 500, 3), dtype=np.uint8))
    grounder = bundle_grounder(other.bundle)
    phrases = [("a", "dog")]
    np.testing.assert_allclose(other.localize(noise, phrases).boxes, grounder.localize(noise, phrases).boxes, atol=0.5)
    for own, usual in ((other, model), (other._captioner, model._captioner)):
        assert np.abs(own.prepare(noise).astype(int) - usual.prepare(noise)).mean() > 5
    # Small pictures are files of their size already.
    small = noise.resize((300, 200))
    assert np.array_equal(other.prepare(small), model.prepare(small))


def test_a_picture_is_seen_once_for_all_questions(model: BundleModel, pictures: list[Pillow.Image]) -> None:
    seen = model.look(pictures[0])
    assert model.ground(seen, "a man") == model.ground(pictures[0], "a man")
    assert model.describe(seen, 2) == model.describe(pictures[0], 2)
    assert np.array_equal(model.score([seen], ["a man"]), model.score([pictures[0]], ["a man"]))


def test_boxes_are_ranked_by_coverage_as_in_pytorch() -> None:
    random = np.random.default_rng(0)
    for regions in (1, 3, 40):
        corners = np.sort(random.random((5, regions, 2, 2)), axis=2).reshape(5, regions, 4).astype(np.float32)
        logits = random.normal(0, 3, (5, regions)).astype(np.float32)
        for sharpness in (1.0, 2.0):
            ours = rank_by_coverage(corners, logits, sharpness)
            theirs = by_coverage(torch.from_numpy(corners), torch.from_numpy(logits), sharpness).numpy()
            assert np.array_equal(ours.argsort(1), theirs.argsort(1))
            assert np.allclose(ours, theirs, atol=1e-5)
            # What `ground` answers with is the first of them.
            assert np.array_equal(most_expected(corners, logits), theirs.argmax(1))


@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize("seed", range(4))
def test_sentences_are_searched_as_in_pytorch(width: int, seed: int) -> None:
    """A model whose next word depends on the last one and on how many there were."""
    words, end, start, longest = 6, 0, 1, 5
    table = torch.randn(words, words, generator=torch.Generator().manual_seed(seed)).mul(2).log_softmax(-1)
    table[:, start] = -torch.inf

    def theirs(last: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return table[last] - 0.1 * state[0], (state[0] + 1,)

    def ours(last: Any, states: tuple[Any, ...], so_far: Any) -> tuple[Any, tuple[Any, ...]]:
        assert np.array_equal(so_far[:, -1], last)
        return table.numpy()[last] - np.float32(0.1) * states[0], (states[0] + 1,)

    options = {"end": end, "width": width, "longest": longest}
    (expected,) = beam_search(theirs, (torch.zeros(1, 1),), start=start, **options)
    got = numpy_beam_search(ours, table.numpy()[[start]], (np.ones((1, 1), np.float32),), **options)
    assert [sentence for sentence, _ in got] == [each.words for each in expected]
    assert [score for _, score in got] == pytest.approx([each.score for each in expected], abs=1e-4)


def test_a_bundle_of_the_version_before_says_how_to_convert_it(tmp_path: Path) -> None:
    manifest = (packaged_folder() / MANIFEST).read_text().replace('"version": 4', f'"version": {OLD_VERSION}')
    (tmp_path / MANIFEST).write_text(manifest)
    with pytest.raises(InputError, match=rf"convert it with `deixis export upgrade {tmp_path}`"):
        read_bundle(tmp_path)


def test_settings_of_grounding_without_weights_can_be_changed() -> None:
    recipe = GroundingRecipe(regions=100)
    changed = _with_settings(recipe, ["regions=200", "overlap=0.55"])
    assert (changed.regions, changed.overlap, changed.width) == (200, 0.55, recipe.width)
    assert _with_settings(recipe, []) == recipe
    for setting, message in (("width=9", "known: regions"), ("regions=many", "not a number"), ("regions=0", "regions")):
        with pytest.raises(DeixisError, match=message):
            _with_settings(recipe, [setting])


def test_settings_that_are_gone_are_passed_over_where_they_were_off(model: BundleModel) -> None:
    """Bundles of the earlier version name them; on, they would need a network that no longer exists."""
    settings = dict(model.bundle.manifest.towers)
    now = bundle_settings(model.bundle, settings, TowerRecipe)
    assert bundle_settings(model.bundle, {**settings, "few_cells": False}, TowerRecipe) == now
    with pytest.raises(InputError, match="few_cells"):
        bundle_settings(model.bundle, {**settings, "few_cells": True}, TowerRecipe)
