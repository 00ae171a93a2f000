"""Generated descriptions compared with people's captions: BLEU, ROUGE-L, CIDEr-D, and whether they say what is seen.

A captioner that hardly looks at its pictures can still score well by BLEU, with a few sentences that suit most of them.
So results also have how many descriptions are different, how many are in no training caption, and how often a
description finds the picture that it was made of among all others.

`best_sentences` is the baseline of Fig. 5 of the DVSA supplement: for each picture the training sentences that a model
scores highest. `word_neighbours` checks what section 5 says about word vectors: in pretrained ones colours are
neighbours, since they occur in the same contexts although they look different.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Unpack

import numpy as np

from deixis.errors import DeixisError
from deixis.metrics.caption_metrics import caption_scores
from deixis.metrics.protocols import Pictures, ResultFields
from deixis.metrics.ranking import TIES, recall_at_k
from deixis.metrics.results import Protocol as ResultProtocol
from deixis.metrics.results import Result, make_result
from deixis.model import ImageFeatures, Model, Tokens, abilities_of

#: Sentences scored together.
BLOCK = 4096
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "gray", "grey")
#: Neighbours of a colour that are counted.
NEIGHBOURS = 5
#: The colours of the paper's examples, of which the result has the first few neighbours.
SHOWN_COLOURS, SHOWN_NEIGHBOURS = ("red", "blue", "green"), 3


class HasNeighbours(Protocol):
    """A model that has word vectors."""

    def neighbours(self, word: str, count: int) -> list[tuple[str, float]]:
        """The words nearest to a word, and their cosines; an unknown word raises a `DeixisError`."""


def captioning(model: Model, pictures: Pictures, known: Collection[Tokens], **fields: Unpack[ResultFields]) -> Result:
    """The best description of every picture compared with its captions.

    `captions` are the scores of `caption_scores`. In percent: `different` descriptions, of all pictures; `novel` ones,
    which are no training caption; `picture_by_description`, recalls of a picture searched by its description with the
    model's own scores, if it has any.

    Args:
        known: the training captions.
    """
    start = time.monotonic()
    features = pictures.all_features()
    captions = [descriptions[0].tokens for descriptions in model.describe_all(features)]
    return _judged("captioning", model, features, captions, pictures, known, start, fields)


def sentence_baseline(
    model: Model, pictures: Pictures, known: Sequence[Tokens], **fields: Unpack[ResultFields]
) -> Result:
    """The same for the training sentence that the model scores highest."""
    start = time.monotonic()
    features = pictures.all_features()
    captions = [known[ranked[0]] for ranked in best_sentences(model, features, known, 1)]
    return _judged("best training sentence", model, features, captions, pictures, known, start, fields)


def region_captioning(model: Model, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result:
    """The best description of the merged box of every chain, compared with the chain's phrases: `region_captions`.

    Args:
        pictures: with the regions of the feature recipe `chains`, one for each chain of an image that has boxes.
    """
    start = time.monotonic()
    candidates: dict[str, str] = {}
    references: dict[str, list[str]] = {}
    for image in pictures.images:
        features = pictures.features(image)
        annotated = [chain for chain in image.chains if chain.boxes]
        if features.regions is None or len(features.regions) != len(annotated):
            raise DeixisError("region captions need features of annotated regions (the feature recipe `chains`)")
        phrases: dict[str, list[str]] = {}
        for caption in image.captions:
            for phrase in caption.phrases:
                phrases.setdefault(phrase.chain, []).append(caption.phrase_text(phrase))
        captions_of_chains = model.describe_regions(features, 1) if annotated else []
        for chain, captions in zip(annotated, captions_of_chains, strict=True):
            # In a joined corpus, a chain may have no phrase in these captions.
            if chain.id in phrases:
                candidates[f"{image.id} {chain.id}"] = captions[0].text
                references[f"{image.id} {chain.id}"] = phrases[chain.id]
    if not candidates:
        raise DeixisError("no chain of this split has both boxes and phrases")
    return make_result(
        ResultProtocol("region captioning", "none", {**pictures.parameters, "boxes": "merged"}),
        {"region_captions": caption_scores(candidates, references)},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"regions": len(candidates), "different": len(set(candidates.values()))},
        box_supervision=pictures.box_supervision(),
        **fields,
    )


def word_neighbours(model: HasNeighbours, pictures: Pictures, **fields: Unpack[ResultFields]) -> Result | None:
    """The nearest words of colours by the cosine of word vectors, and the share of them that are colours, in percent.

    None where the model knows no colour.
    """
    start = time.monotonic()
    neighbours: dict[str, Mapping[str, float]] = {}
    for colour in COLOURS:
        try:
            near = model.neighbours(colour, 4 * NEIGHBOURS)
        except DeixisError:
            continue
        # Figures are named after words, so other tokens are left out.
        neighbours[colour] = dict([neighbour for neighbour in near if neighbour[0].isalpha()][:NEIGHBOURS])
    if not neighbours:
        return None
    among: Any = [word in COLOURS for words in neighbours.values() for word in words]
    shown = {
        colour: dict([*neighbours[colour].items()][:SHOWN_NEIGHBOURS])
        for colour in SHOWN_COLOURS
        if colour in neighbours
    }
    return make_result(
        ResultProtocol("word neighbours", "none", {**pictures.parameters, "neighbours": NEIGHBOURS}),
        {"colours_among_neighbours": 100 * float(np.mean(among)), "neighbours": shown},
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"colours": len(neighbours)},
        **fields,
    )


def best_sentences(
    model: Model, images: Sequence[ImageFeatures], sentences: Sequence[Tokens], count: int
) -> list[list[int]]:
    """The indices of the `count` sentences that fit each image best, best first."""
    best = np.empty((len(images), 0))
    numbers = np.empty((len(images), 0), np.int64)
    for start in range(0, len(sentences), BLOCK):
        scores = model.score(images, sentences[start : start + BLOCK])
        best = np.concatenate([best, scores], 1)
        block = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        numbers = np.concatenate([numbers, block], 1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, numbers = np.take_along_axis(best, order, 1), np.take_along_axis(numbers, order, 1)
    return [[int(sentence) for sentence in row] for row in numbers]


def _judged(
    protocol: str,
    model: Model,
    features: Sequence[ImageFeatures],
    captions: Sequence[Tokens],
    pictures: Pictures,
    known: Collection[Tokens],
    start: float,
    fields: ResultFields,
) -> Result:
    ids = [image.id for image in pictures.images]
    candidates = {image: " ".join(tokens) for image, tokens in zip(ids, captions, strict=True)}
    references = {image.id: [caption.text for caption in image.captions] for image in pictures.images}
    seen = {tuple(text) for text in known}
    different = len({tuple(tokens) for tokens in captions})
    metrics: dict[str, Any] = {
        "captions": caption_scores(candidates, references),
        "different": 100 * different / len(captions),
        "novel": 100 * float(np.mean([tuple(tokens) not in seen for tokens in captions])),
    }
    if "score" in abilities_of(model):
        ranked = recall_at_k(model.score(features, captions), captions_per_image=1)
        metrics["picture_by_description"] = ranked["text_to_image"]
    return make_result(
        ResultProtocol(protocol, TIES, {**pictures.parameters}),
        metrics,
        duration=time.monotonic() - start,
        corpus=pictures.reference,
        counts={"images": len(ids), "different": different},
        box_supervision=pictures.box_supervision(),
        **fields,
    )
