"""Train the lexicon of entity types (`deixis.text.entity_types`) on the typed phrases of a corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from deixis.corpus.leak_guard import TrainingSet
from deixis.text.entity_types import SEPARATOR, EntityTypes, Lexicon, features

#: The model of unknown heads is trained on phrases whose head occurs at most this often.
RARE_HEAD = 4
#: Rarer features are left out.
FEATURE_COUNT = 4
#: Inverse strength of the ridge penalty.
REGULARIZATION = 0.3


def learn_entity_types(training: TrainingSet) -> EntityTypes:
    """Count heads and phrases by type, and fit the linear model for unknown heads on the phrases with rare heads."""
    heads: dict[str, Counter[str]] = defaultdict(Counter)
    phrases: dict[str, Counter[str]] = defaultdict(Counter)
    seen: list[tuple[str, str, tuple[str, ...]]] = []
    for image in training:
        for caption in image.captions:
            words = [token.lower() for token in caption.tokens]
            for phrase in caption.phrases:
                if phrase.types:
                    types, head = SEPARATOR.join(phrase.types), words[phrase.end - 1]
                    heads[head][types] += 1
                    phrases[" ".join(words[phrase.start : phrase.end])][types] += 1
                    seen.append((head, types, tuple(features(words, phrase.start, phrase.end))))
    usual = {head: _most(counts) for head, counts in heads.items()}
    # A single phrase is not enough evidence against its head.
    unusual = {
        phrase: _most(counts)
        for phrase, counts in phrases.items()
        if counts.total() > 1 and _most(counts) != usual[phrase.rsplit(" ", 1)[-1]]
    }
    rare = [(types, names) for head, types, names in seen if heads[head].total() <= RARE_HEAD]
    classes, weights = _fit([types for types, _ in rare], [names for _, names in rare])
    return EntityTypes(Lexicon(_by_type(usual.items()), _by_type(unusual.items()), classes, weights))


def _fit(types: list[str], features_of_phrases: list[tuple[str, ...]]) -> tuple[list[str], dict[str, list[int]]]:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    counts = Counter(feature for row in features_of_phrases for feature in row)
    names = sorted(feature for feature, count in counts.items() if count >= FEATURE_COUNT)
    columns = {name: index for index, name in enumerate(names)}
    cells = [
        (row, columns[name])
        for row, row_names in enumerate(features_of_phrases)
        for name in row_names
        if name in columns
    ]
    rows, hits = np.array(cells).reshape(-1, 2).T
    table = csr_matrix((np.ones(len(cells)), (rows, hits)), shape=(len(features_of_phrases), len(names)))
    model = LogisticRegression(C=REGULARIZATION, max_iter=1000).fit(table, types)
    weights = {name: column.tolist() for name, column in zip(names, _hundredths(model.coef_.T), strict=True)}
    weights[""] = _hundredths(model.intercept_).tolist()
    return [str(name) for name in model.classes_], weights


def _hundredths(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(100 * weights).astype(np.int64)


def _most(counts: Counter[str]) -> str:
    """The most frequent types; of equally frequent ones the first by name."""
    return min(counts, key=lambda types: (-counts[types], types))


def _by_type(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for text, types in sorted(pairs):
        grouped[types].append(text)
    return dict(grouped)
