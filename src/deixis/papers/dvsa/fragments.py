"""Fragments of texts, as the aligner reads them: ids of words, or of the edges of dependency trees.

Either way a text has one fragment per token, in order: an edge stands for its dependent. The root's head is the start
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.errors import InputError
from deixis.files import read_json, write_text
from deixis.model import Tokens
from deixis.text.dependencies import Dependencies
from deixis.text.featurizers import TokenIds, load_text_features
from deixis.text.vocabulary import START

RELATIONS, DEPENDENCIES = "relations.json", "dependencies.jsonl"


class WordFragments:
    """`(texts, longest, 1)`: the id of each word."""

    relations: tuple[str, ...] = ()

    def __init__(self, text: TokenIds) -> None:
        self.text = text

    def ids(self, texts: Sequence[Tokens]) -> NDArray[np.int64]:
        """One column at least, 0 = padding."""
        return _padded([np.array(self.text.vocabulary.encode(text), np.int64)[:, None] for text in texts], 1)

    def save(self, folder: Path) -> None:
        self.text.save(folder)


class EdgeFragments:
    """`(texts, longest, 3)`: head, dependent and relation of each edge; 0 is any relation unseen in training."""

    def __init__(self, text: TokenIds, relations: Iterable[str], dependencies: Dependencies) -> None:
        self.text, self.relations, self.dependencies = text, tuple(relations), dependencies
        self._relation_ids = {relation: index for index, relation in enumerate(self.relations, start=1)}

    @classmethod
    def of(cls, text: TokenIds, captions: Sequence[Tokens], dependencies: Dependencies) -> EdgeFragments:
        """With the relations of the training captions."""
        relations = {edge.relation for edges in dependencies.edges(captions) for edge in edges}
        return cls(text, sorted(relations), dependencies)

    def ids(self, texts: Sequence[Tokens]) -> NDArray[np.int64]:
        rows = []
        for text, edges in zip(texts, self.dependencies.edges(texts), strict=True):
            words = self.text.vocabulary.encode(text)
            ids = [
                (START if edge.head == index else words[edge.head], word, self._relation_ids.get(edge.relation, 0))
                for index, (word, edge) in enumerate(zip(words, edges, strict=True))
            ]
            rows.append(np.array(ids, np.int64).reshape(-1, 3))
        return _padded(rows, 3)

    def save(self, folder: Path) -> None:
        self.text.save(folder)
        self.dependencies.save(folder / DEPENDENCIES)
        write_text(folder / RELATIONS, msgspec.json.encode(self.relations).decode())


Fragments = WordFragments | EdgeFragments


def load_fragments(folder: Path) -> Fragments:
    """Read what `save` wrote."""
    text = load_text_features(folder)
    if not isinstance(text, TokenIds):
        raise InputError(folder, "has no vocabulary of word ids")
    path = folder / RELATIONS
    if not path.exists():
        return WordFragments(text)
    return EdgeFragments(text, read_json(path, list[str]), Dependencies.load(folder / DEPENDENCIES))


def _padded(rows: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    out = np.zeros((len(rows), max([1, *map(len, rows)]), width), np.int64)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out
