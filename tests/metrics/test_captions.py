"""BLEU, ROUGE-L and CIDEr-D equal pycocoevalcap's, on captions written for this test (`caption_reference.json`)."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.errors import DeixisError
from deixis.metrics.caption_metrics import bleu, caption_scores, cider_d, rouge_l, tokenize_caption

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "caption_reference.json").read_text(encoding="utf-8"))
IMAGES = REFERENCE["images"]
CANDIDATES = [image["candidate_tokens"].split() for image in IMAGES]
REFERENCES = [[caption.split() for caption in image["reference_tokens"]] for image in IMAGES]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["id"])
def test_tokens_are_those_of_cocos_tokenizer(image: dict[str, Any]) -> None:
    assert tokenize_caption(image["candidate"]) == image["candidate_tokens"].split()
    assert [tokenize_caption(text) for text in image["references"]] == [t.split() for t in image["reference_tokens"]]


def test_bleu_equals_the_reference() -> None:
    corpus, of_images = bleu(CANDIDATES, REFERENCES)
    assert corpus == pytest.approx([REFERENCE["corpus"][f"bleu_{order}"] for order in range(1, 5)], rel=1e-12)
    np.testing.assert_allclose(of_images, [image["bleu"] for image in IMAGES], rtol=1e-12, atol=0)


def test_rouge_l_equals_the_reference() -> None:
    scores = rouge_l(CANDIDATES, REFERENCES)
    assert scores == pytest.approx([image["rouge_l"] for image in IMAGES], rel=1e-12)
    assert np.mean(scores) == pytest.approx(REFERENCE["corpus"]["rouge_l"], rel=1e-12)


def test_cider_d_equals_the_reference() -> None:
    scores = cider_d(CANDIDATES, REFERENCES)
    assert scores == pytest.approx([image["cider_d"] for image in IMAGES], rel=1e-11, abs=1e-14)
    assert np.mean(scores) == pytest.approx(REFERENCE["corpus"]["cider_d"], rel=1e-11)


def test_plain_captions_give_the_reference_in_percent() -> None:
    scores = caption_scores(
        {image["id"]: image["candidate"] for image in IMAGES}, {image["id"]: image["references"] for image in IMAGES}
    )
    assert scores == pytest.approx({name: 100 * score for name, score in REFERENCE["corpus"].items()}, rel=1e-11)
    assert list(scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider_d"]


words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(words, words)
def test_longest_common_subsequence_equals_the_usual_table(candidate: list[str], reference: list[str]) -> None:
    table = np.zeros((len(candidate) + 1, len(reference) + 1))
    for i, left in enumerate(candidate):
        for j, right in enumerate(reference):
            table[i + 1, j + 1] = table[i, j] + 1 if left == right else max(table[i, j + 1], table[i + 1, j])
    precision, recall = table[-1, -1] / len(candidate), table[-1, -1] / len(reference)
    expected = 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0
    assert rouge_l([candidate], [[reference]]) == pytest.approx([expected])


@given(st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=2, max_size=5), st.randoms())
def test_scores_do_not_depend_on_the_order_of_images(pairs: list[Any], random: Any) -> None:
    candidates, references = {}, {}
    for image, (candidate, wanted) in enumerate(pairs):
        candidates[str(image)] = " ".join(candidate)
        references[str(image)] = [" ".join(reference) for reference in wanted]
    order = list(candidates)
    random.shuffle(order)
    shuffled = caption_scores({image: candidates[image] for image in order}, references)
    assert shuffled == pytest.approx(caption_scores(candidates, references), abs=1e-9)


def test_a_perfect_candidate_scores_full_marks() -> None:
    captions = {"1": "a dog runs over the grass", "2": "two men shake hands in the street"}
    scores = caption_scores(captions, {image: [text] for image, text in captions.items()})
    # Words in every image weigh nothing, so CIDEr-D is full only because each n-gram order keeps some rare ones.
    assert scores["cider_d"] == pytest.approx(1000)
    assert [scores[name] for name in ("bleu_1", "bleu_4", "rouge_l")] == pytest.approx([100, 100, 100], abs=1e-6)


def test_one_image_alone_has_no_cider_d() -> None:
    """With one document every n-gram is in all of them: pycocoevalcap gives 0 as well."""
    assert cider_d([["a", "dog"]], [[["a", "dog"]]]) == [0.0]


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        ({}, {}, "no candidate captions"),
        ({"7": "a dog"}, {}, "'7' has no references"),
        ({"7": "a dog"}, {"7": []}, "'7' has an empty list"),
        ({"7": "a dog"}, {"7": "a dog"}, "must be a list"),
        ({"7": "a dog"}, {"7": ["a dog"], "8": ["a cat"]}, "no candidate, the first is '8'"),
    ],
)
def test_unpaired_captions_are_refused(candidates: Any, references: Any, message: str) -> None:
    with pytest.raises(DeixisError, match=message):
        caption_scores(candidates, references)


@pytest.mark.slow
def test_five_thousand_images_take_seconds() -> None:
    generator = np.random.default_rng(0)
    vocabulary = [f"word{number}" for number in range(3000)]

    def sentence() -> str:
        # Word frequencies fall off as in a language.
        return " ".join(vocabulary[math.floor(3000 ** generator.random()) - 1] for _ in range(11)) + "."

    candidates = {str(image): sentence() for image in range(5000)}
    references = {image: [sentence() for _ in range(5)] for image in candidates}
    started = time.process_time()
    caption_scores(candidates, references)
    assert time.process_time() - started < 30
