"""Fitting how likely a picture shows a phrase (`deixis.adapters.phrase_presence`).

Phrases that a picture shows are noun phrases of its captions. Phrases that it does not show are those of other pictures
whose last word none of its captions has: as many drawn from all phrases as from those of the same entity type as a
phrase that it shows ("a dog" for "a cat"), which are harder. Both kinds together weigh as much as the shown ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import Presence
from deixis.adapters.phrasing import phrasing
from deixis.adapters.search_model import Pictures, SearchModel
from deixis.corpus import Image
from deixis.corpus.records import NOT_VISUAL
from deixis.search.asked_collections import query_scores
from deixis.search.caption_queries import Tokens, is_name, names_in
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary

#: Shown phrases of a picture.
PHRASES = 3
#: Phrases scored at a time.
BATCH = 256

Kind = Literal["shown", "any", "same type"]


class PhraseQuestion(NamedTuple):
    """Whether an image shows a phrase; `kind` says how the phrase was chosen."""

    image: int
    phrase: str
    kind: Kind


def fit_presence(
    model: SearchModel,
    vocabulary: Vocabulary,
    pictures: Sequence[Pictures],
    images: Sequence[Sequence[Image]],
    random: np.random.Generator,
) -> Presence | None:
    """What says how likely a picture shows a phrase; None where the scores or the phrases are too poor for it."""
    from sklearn.linear_model import LogisticRegression

    features, shown = [], []
    for own_pictures, own_images in zip(pictures, images, strict=True):
        questions = phrase_questions(vocabulary, own_images, random)
        features.append(question_features(model, own_pictures, questions))
        shown.append(np.array([question.kind == "shown" for question in questions], bool))
    labels = np.concatenate(shown)
    if not labels.any() or labels.all():
        return None
    weights = np.where(labels, 1 / labels.sum(), 1 / (~labels).sum()) * len(labels)
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(np.concatenate(features), labels, sample_weight=weights)
    score, commonness, several = fitted.coef_[0].tolist()
    return Presence(float(fitted.intercept_[0]), score, commonness, several) if score > 0 else None


def question_features(
    model: SearchModel, pictures: Pictures, questions: Sequence[PhraseQuestion]
) -> NDArray[np.float64]:
    """`(questions, 3)`: the score, the commonness of the rarest word, whether there are several words."""
    phrases = sorted({question.phrase for question in questions})
    asked = [phrasing(phrase, model) for phrase in phrases]
    rows = np.array([phrases.index(question.phrase) for question in questions], int)
    columns = np.array([question.image for question in questions], int)
    scores = np.empty(len(questions))
    for start in range(0, len(phrases), BATCH):
        in_part = (rows >= start) & (rows < start + BATCH)
        part = query_scores(model, asked[start : start + BATCH], pictures)
        scores[in_part] = part[rows[in_part] - start, columns[in_part]]
    known = np.array([(asked_phrasing.commonness, asked_phrasing.several) for asked_phrasing in asked], float).reshape(
        -1, 2
    )
    return np.column_stack([scores, known[rows]])


def phrase_questions(
    vocabulary: Vocabulary, images: Sequence[Image], random: np.random.Generator
) -> list[PhraseQuestion]:
    """Phrases that images show and phrases that they do not."""
    shown, words = _phrases(vocabulary, images)
    everything = [phrase for phrases in shown for phrase, _ in phrases]
    by_type = defaultdict[str, list[Tokens]](list)
    for phrases in shown:
        for phrase, entity_type in phrases:
            by_type[entity_type].append(phrase)
    questions: list[PhraseQuestion] = []
    for image_index, phrases in enumerate(shown):
        for index in random.permutation(len(phrases))[:PHRASES].tolist():
            phrase, entity_type = phrases[index]
            questions.append(PhraseQuestion(image_index, " ".join(phrase), "shown"))
            others: tuple[tuple[Kind, list[Tokens]], ...] = (("any", everything), ("same type", by_type[entity_type]))
            for kind, pool in others:
                other = pool[random.integers(len(pool))]
                if words[image_index].isdisjoint(names_in(other[-1:])):
                    questions.append(PhraseQuestion(image_index, " ".join(other), kind))
    return questions


def _phrases(vocabulary: Vocabulary, images: Sequence[Image]) -> tuple[list[list[tuple[Tokens, str]]], list[set[str]]]:
    """For each image the noun phrases of its captions with their entity types, and all words (`names_in`)."""
    sentences = [(index, tokens_of(caption)) for index, image in enumerate(images) for caption in image.captions]
    spans = Chunker.load().phrases_of([tokens for _, tokens in sentences])
    entity_types = EntityTypes.load()
    phrases: list[list[tuple[Tokens, str]]] = [[] for _ in images]
    words: list[set[str]] = [set() for _ in images]
    for (image_index, tokens), phrase_spans in zip(sentences, spans, strict=True):
        words[image_index].update(names_in(tokens))
        for (start, end), types in zip(phrase_spans, entity_types.types_in(tokens, phrase_spans), strict=True):
            phrase = tokens[start:end]
            if phrase and is_name(phrase[-1]) and NOT_VISUAL not in types and all(map(vocabulary.__contains__, phrase)):
                phrases[image_index].append((phrase, min(types, default="")))
    return phrases, words
