"""How surely the phrases of sentences are found in a picture: what `Model.score_texts` adds to the score.

A sentence is read phrase by phrase: of "a man in a red shirt and a woman in a blue dress", each phrase should have one
region that it clearly means. If two roles are exchanged, the words stay the same, but their regions become doubtful.
(As in the weighted sentence distances of the Flickr30k Entities papers, phrases count beside the whole.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.spans import Span
from deixis.model import Mention, Text, Tokens, as_tokens
from deixis.text.phrase_finding import LONGEST, phrases_in, trimmed

#: Phrases that are looked for at a time.
TOGETHER = 64

#: The logits `(phrases, regions)` of phrases in one picture.
PhraseLogits = Callable[[Sequence[Tokens]], NDArray[np.float32]]


def certainty_of_places(logits_of: PhraseLogits, texts: Sequence[Text]) -> NDArray[np.float32]:
    """`(texts,)`: the log probability of the likeliest region, averaged over a text's phrases.

    Of a longer text than grounding reads, the first words count.
    """
    sentences = [as_tokens(text)[:LONGEST] for text in texts]
    phrases = [[Mention(tokens, *span) for span in _spans(tuple(tokens))] for tokens in sentences]
    means = [_certainty(logits_of, part) for part in _parts(phrases)]
    return np.concatenate([np.zeros(0, np.float32), *means])


def _certainty(logits_of: PhraseLogits, phrases: Sequence[Sequence[Mention]]) -> NDArray[np.float32]:
    logits = logits_of([mention for mentions in phrases for mention in mentions])
    certain = -np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))
    counts = np.array([len(mentions) for mentions in phrases])
    return np.asarray(np.add.reduceat(certain, np.cumsum(counts) - counts) / counts, np.float32)


def _parts(phrases: Sequence[Sequence[Mention]]) -> Iterator[list[Sequence[Mention]]]:
    """The phrases of some texts after one another, few enough to be looked for together."""
    part: list[Sequence[Mention]] = []
    for mentions in phrases:
        if part and sum(map(len, part)) + len(mentions) > TOGETHER:
            yield part
            part = []
        part.append(mentions)
    if part:
        yield part


@lru_cache(1 << 14)
def _spans(tokens: Tokens) -> list[Span]:
    """The phrases of a text; one without phrases is one phrase."""
    return phrases_in(tokens) or [trimmed(tokens, " ".join(tokens))]
