"""What a matcher says of pictures, held against what people said: BLEU, ROUGE-L, CIDEr-D, and how much of it is new.

`best_sentences` is the baseline of Fig. 5 of paper 4's supplement: for each picture the sentences of the training set
that a matcher scores highest.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Unpack

import numpy as np

from deixis.evaluation.captions import caption_scores
from deixis.evaluation.matching import Pictures, Told
from deixis.evaluation.results import Protocol, Result, make_result
from deixis.matcher import Describes, ImageFeatures, Scores, Tokens

#: Sentences scored together.
BLOCK = 4096


def captioning(matcher: Describes, pictures: Pictures, known: Collection[Tokens], **told: Unpack[Told]) -> Result:
    """The best description of every picture of a split, against its captions: `captions` and `novel`, in percent.

    Args:
        known: the captions that the matcher learned from; a description that is none of them is novel.
    """
    start = time.monotonic()
    said = [tuple(matcher.describe(features, 1)[0][0]) for features in pictures.all_features()]
    return _judged(said, pictures, known, start, told)


def sentence_baseline(matcher: Scores, pictures: Pictures, known: Sequence[Tokens], **told: Unpack[Told]) -> Result:
    """The same for the training sentence that the matcher scores highest."""
    start = time.monotonic()
    said = [known[own[0]] for own in best_sentences(matcher, pictures.all_features(), known, 1)]
    return _judged(said, pictures, known, start, told)


def best_sentences(
    matcher: Scores, images: Sequence[ImageFeatures], sentences: Sequence[Tokens], count: int
) -> list[list[int]]:
    """The numbers of the `count` sentences that fit each image best, best first."""
    best = np.empty((len(images), 0))
    numbers = np.empty((len(images), 0), np.int64)
    for start in range(0, len(sentences), BLOCK):
        scores = matcher.score(images, sentences[start : start + BLOCK])
        best = np.concatenate([best, scores], 1)
        own = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        numbers = np.concatenate([numbers, own], 1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, numbers = np.take_along_axis(best, order, 1), np.take_along_axis(numbers, order, 1)
    return [[int(number) for number in row] for row in numbers]


def _judged(said: Sequence[Tokens], pictures: Pictures, known: Collection[Tokens], start: float, told: Told) -> Result:
    ids = [image.id for image in pictures.images]
    candidates = {image: " ".join(tokens) for image, tokens in zip(ids, said, strict=True)}
    references = {image.id: [caption.text for caption in image.captions] for image in pictures.images}
    seen = {tuple(text) for text in known}
    novel = 100 * float(np.mean([tuple(tokens) not in seen for tokens in said]))
    return make_result(
        Protocol("captioning", "none", {**pictures.parameters}),
        {"captions": caption_scores(candidates, references), "novel": novel},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(ids), "different": len({tuple(tokens) for tokens in said})},
        box_supervision=pictures.box_supervision(),
        **told,
    )
