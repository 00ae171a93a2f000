"""How surely the phrases of sentences are found in a picture: what `Model.score_texts` adds to the score.

A sentence is read phrase by phrase: of "a man in a red shirt and a woman in a blue dress", each phrase should have one
region that it clearly means. If two roles are exchanged, the words stay the same, but their regions become doubtful.
(As in the weighted sentence distances of the Flickr30k Entities papers, phrases count beside the whole.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from deixis.model import Mention, Text, Tokens, as_tokens
from deixis.text.phrase_finding import phrases_in

#: Sentences whose phrases are looked for at a time.
SENTENCES = 32

#: The logits `(phrases, regions)` of phrases in one picture.
PhraseLogits = Callable[[Sequence[Tokens]], NDArray[np.float32]]


def certainty_of_places(logits_of: PhraseLogits, texts: Sequence[Text]) -> NDArray[np.float32]:
    """`(texts,)`: the log probability of the likeliest region, averaged over a text's phrases."""
    parts = [_certainty(logits_of, texts[start : start + SENTENCES]) for start in range(0, len(texts), SENTENCES)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _certainty(logits_of: PhraseLogits, texts: Sequence[Text]) -> NDArray[np.float32]:
    mentions, counts = list[Tokens](), []
    for text in texts:
        tokens = as_tokens(text)
        # A text without phrases is one phrase.
        spans = phrases_in(tokens) or [(0, len(tokens))]
        mentions += [Mention(tokens, start, end) for start, end in spans]
        counts.append(len(spans))
    logits = logits_of(mentions)
    best = logits.max(1)
    certain = -np.log(np.exp(logits - best[:, None]).sum(1))
    firsts = np.cumsum([0, *counts[:-1]])
    return np.asarray(np.add.reduceat(certain, firsts) / counts, np.float32)
