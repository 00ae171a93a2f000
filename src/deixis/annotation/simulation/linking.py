"""Evaluates how well a rule or a text model answers the link questions, without seeing the picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deixis.annotation.answers import Answers
from deixis.annotation.assistance import SURE, document_texts
from deixis.annotation.links import link_mentions, wording_similarity
from deixis.annotation.mentions import given_document
from deixis.annotation.simulation.agreement import Tally, add_b_cubed, add_pairs, chain_of_mentions
from deixis.annotation.workflow_records import DIFFERENT, LINK, SAME, Document, Judgment
from deixis.corpus import Corpus
from deixis.text.coreference import CoreferenceScorer, labelled_pairs

#: For a document, a function that decides whether two mentions, given by id, are the same.
Decide = Callable[[Document], Callable[[str, str], bool]]


def by_head(document: Document) -> Callable[[str, str], bool]:
    """Mentions with the same head noun are the same."""
    texts = {mention.id: mention.text for mention in document.mentions}
    return lambda first, second: wording_similarity(texts[first], texts[second]) >= 0.5


def by_model(scorer: CoreferenceScorer) -> Decide:
    """Mentions are the same if the scorer's probability is above 0.5."""

    def decide(document: Document) -> Callable[[str, str], bool]:
        texts = document_texts(document)
        return lambda first, second: scorer.probability(texts[first], texts[second]) > 0.5

    return decide


class _Answering(Answers):
    """Answers every link question with a decision function."""

    def __init__(self, decide: Callable[[str, str], bool]) -> None:
        super().__init__(())
        self._decide = decide
        self.asked = 0

    def first(self, key: str) -> Judgment:
        _, first, second = key.split()
        self.asked += 1
        return Judgment(self.asked, LINK, key, 0, SAME if self._decide(first, second) else DIFFERENT)


def score_proposals(corpus: Corpus, scorer: CoreferenceScorer) -> dict[str, float]:
    """Over all pairs that may be asked: percentage for which an answer is proposed (`made`), and how many of those are
    `right`."""
    pairs = [pair for image in corpus for pair in labelled_pairs(image)]
    same = scorer.probabilities([(first, second) for first, second, _ in pairs])
    sure = np.maximum(same, 1 - same) >= SURE
    right = (same > 0.5) == np.array([label for _, _, label in pairs])
    return {"made": 100 * float(sure.mean()), "right": 100 * float(right[sure].mean())}


def score_links(corpus: Corpus, decide: Decide) -> tuple[dict[str, dict[str, float]], int]:
    """Pairwise and B³ scores, in percent, of chains built from the corpus' mentions, and the number of questions."""
    pairs, b_cubed = Tally(), Tally()
    asked = 0
    for image in corpus:
        document = given_document(image, "mentions")
        answers = _Answering(decide(document))
        chains, _ = link_mentions(document.mentions, answers)
        asked += answers.asked
        predicted = {(m.caption, m.start, m.end): index for index, chain in enumerate(chains) for m in chain}
        truth = chain_of_mentions(image)
        add_pairs(pairs, predicted, truth)
        add_b_cubed(b_cubed, predicted, truth)
    return {"pairs": pairs.figures(), "b_cubed": b_cubed.figures()}, asked
