"""How often search is right when it says that something is not there.

    python benchmarks/relevance.py INDEX CORPUS --elsewhere OTHER [--json results/search/relevance.json]

INDEX is an index of the test pictures of CORPUS (`benchmarks/search_quality.py` leaves one). Asked for is what their
captions mention (present), and what none of them does (absent), which are two kinds of queries:

words      single words that the model knows, mentioned by three pictures or more, or by none
phrases    noun phrases of the collection's own captions; and of the test captions of OTHER, those whose last word the
           collection's captions never mention in either number

Captions do not mention everything, so some of what counts as absent is there. Precision is that of "absent" with as
many absent as present queries: the chance that the answer is right.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from telling import tell

from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.search_model import Rows
from deixis.corpus import Image, open_corpus
from deixis.metrics.results import versions
from deixis.search.calibration import held_out_phrases, singular
from deixis.search.engine import SearchEngine
from deixis.search.queries import Query
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vocabulary import Vocabulary

#: A word is shown if captions of so many pictures have it; the model knows one that it has read so often and that is
#: among so many. Rarer ones have hardly a meaning to it, and nobody's pictures are told by them.
SHOWN, KNOWN, COMMON = 3, 20, 2500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", metavar="INDEX", type=Path)
    parser.add_argument("corpus", metavar="CORPUS")
    parser.add_argument("--elsewhere", metavar="OTHER", required=True)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    engine = SearchEngine(options.index)
    model = engine.model
    if not isinstance(model, OnnxModel):
        parser.error("the index' model must be a bundle")
    corpus, other = open_corpus(options.corpus), open_corpus(options.elsewhere)
    images, others = list(corpus.split("test")), list(other.split("test"))
    assert len(engine.collection) == len(images), "the index is not of the test pictures"
    queries = {
        "words": known_words(model.vocabulary, images),
        "phrases": held_out_phrases(model.vocabulary, images, others, np.random.default_rng(0)),
    }
    told: dict[str, Any] = {
        "model": str(model.identity),
        "relevance": model.relevance,
        "background": 0 if model.background is None else len(model.background),
        "pictures": len(images),
        "collection": f"{corpus.name}, test, {corpus.split_hash('test')}",
        **{kind: judged(engine, *own) for kind, own in queries.items()},
        "seconds": round(time.perf_counter() - start, 1),
        "command": f"python benchmarks/relevance.py INDEX {corpus.name} --elsewhere {other.name}",
        "versions": versions(),
    }
    tell(told, options.json)


def known_words(vocabulary: Vocabulary, images: Sequence[Image]) -> tuple[list[str], list[str]]:
    """Of the words that an model knows well, those that several pictures show, and those that none does."""
    words, numbers = Counter[str](), Counter[str]()
    for image in images:
        tokens = {token for caption in image.captions for token in tokens_of(caption)}
        words.update(tokens)
        numbers.update({singular(token) for token in tokens})
    known = [
        word
        for word, count in zip(vocabulary.words[:COMMON], vocabulary.counts[:COMMON], strict=True)
        if count >= KNOWN and has_content(word) and word.isalpha() and len(word) > 2
    ]
    return [word for word in known if words[word] >= SHOWN], [word for word in known if not numbers[singular(word)]]


def judged(engine: SearchEngine, present: list[str], absent: list[str]) -> dict[str, Any]:
    odds = [best_odds(engine, queries) for queries in (present, absent)]
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


def best_odds(engine: SearchEngine, queries: list[str]) -> Rows:
    """Log odds of the best picture, from the engine itself."""
    terms = engine.terms([Query(text, (text,), ()) for text in queries], [None] * len(queries))
    return np.array([ranking.odds[0] for ranking in engine.rank(terms, 1)], np.float32)


if __name__ == "__main__":
    main()
