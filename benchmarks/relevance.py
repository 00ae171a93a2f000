"""How often search is right when it says that something is not there.

    python benchmarks/relevance.py CORPUS --elsewhere OTHER [--encoder NAME] [--json results/search/relevance.json]

The collection is the test split of CORPUS. Asked for is what its captions mention (present), and what none of them does
(absent), which are two kinds of queries:

words      single words that the encoder knows, mentioned by three pictures or more, or by none
phrases    noun phrases of the collection's own captions; and of the test captions of OTHER, those whose last word the
           collection's captions never mention in either number

Captions do not mention everything, so some of what counts as absent is there. Precision is that of "absent" with as
many absent as present queries: the chance that the answer is right.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.metrics import roc_auc_score

from deixis.corpus import Corpus, Image, open_corpus
from deixis.evaluation.results import versions
from deixis.files import write_text
from deixis.search.calibration import encoded, known_words, singular
from deixis.search.encoders import OnnxEncoder, Rows, load_encoder
from deixis.search.relevance import log_odds, thresholds
from deixis.text.chunker import Chunker
from deixis.text.tokens import tokens_of

#: Phrases of either kind at most.
PHRASES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--pictures-in", type=Path, default=None)
    parser.add_argument("--elsewhere", metavar="OTHER", required=True)
    parser.add_argument("--encoder", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    encoder = load_encoder(options.encoder)
    if not isinstance(encoder, OnnxEncoder):
        parser.error("the encoder must be a bundle")
    corpus, other = open_corpus(options.corpus, pictures=options.pictures_in), open_corpus(options.elsewhere)
    images = list(corpus.split("test"))
    rows = encoded(encoder, corpus, images)
    shown, absent = known_words(encoder.vocabulary, images)
    queries = {"words": (shown, absent), "phrases": held_out_phrases(encoder, images, other)}
    told: dict[str, Any] = {
        "encoder": str(encoder.identity),
        "relevance": encoder.relevance,
        "background": 0 if encoder.background is None else len(encoder.background),
        "pictures": len(rows),
        "collection": f"{corpus.name}, test, {corpus.split_hash('test')}",
        **{kind: judged(encoder, rows, *own) for kind, own in queries.items()},
        "seconds": round(time.perf_counter() - start, 1),
        "command": f"python benchmarks/relevance.py {corpus.name} --elsewhere {other.name} --encoder BUNDLE",
        "versions": versions(),
    }
    text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
    print(text)
    if options.json is not None:
        write_text(options.json, text + "\n")


def held_out_phrases(encoder: OnnxEncoder, images: Sequence[Image], other: Corpus) -> tuple[list[str], list[str]]:
    """Phrases of the collection's captions, and of others that name what these never do."""
    own = [tokens_of(caption) for image in images for caption in image.captions]
    elsewhere = [tokens_of(caption) for image in other.split("test") for caption in image.captions]
    mentioned = {singular(token) for tokens in own for token in tokens}
    found = []
    for lists in (own, elsewhere):
        spans = Chunker.load().phrases_of(lists)
        phrases = {
            tokens[start:end]
            for tokens, all_of in zip(lists, spans, strict=True)
            for start, end in all_of
            if end > start
        }
        found.append(sorted(phrase for phrase in phrases if all(token in encoder.vocabulary for token in phrase)))
    present, absent = found
    absent = [phrase for phrase in absent if singular(phrase[-1]) not in mentioned and phrase[-1].isalpha()]
    random = np.random.default_rng(0)
    first, second = (
        [" ".join(phrases[place]) for place in random.permutation(len(phrases))[:PHRASES]]
        for phrases in (present, absent)
    )
    return first, second


def judged(encoder: OnnxEncoder, rows: Rows, present: list[str], absent: list[str]) -> dict[str, Any]:
    odds = [best_odds(encoder, rows, queries) for queries in (present, absent)]
    said_of_present, said_of_absent = (float((own <= 0).mean()) for own in odds)
    labels = np.repeat([1, 0], [len(present), len(absent)])
    return {
        "present": len(present),
        "absent": len(absent),
        "precision_of_absent": said_of_absent / max(1e-9, said_of_absent + said_of_present),
        "recall_of_absent": said_of_absent,
        "present_said_absent": said_of_present,
        "area_under_curve": float(roc_auc_score(labels, np.concatenate(odds))),
        "examples": {"absent": absent[:8], "present": present[:8]},
    }


def best_odds(encoder: OnnxEncoder, rows: Rows, queries: list[str]) -> Rows:
    """Log odds of the best picture, as the engine has them."""
    terms = encoder.encode_texts(queries)
    least = thresholds(terms, np.zeros(len(terms), bool), encoder)
    best = (terms @ rows.T).max(1)
    return np.concatenate(
        [
            log_odds(score.reshape(1, 1), threshold.reshape(1), np.array([False]), encoder.relevance)
            for score, threshold in zip(best, least, strict=True)
        ]
    )


if __name__ == "__main__":
    main()
