"""Texts as what the aligner of paper 4 reads: the ids of their words, or of the edges of their dependency trees.

Either way a text has one fragment a token, in order: an edge stands for the word that hangs from it. The word that
hangs from nothing has the start token for a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.errors import DeixisError, InputError
from deixis.files import write_text
from deixis.matcher import Tokens
from deixis.text.features import TokenIds, load_text_features
from deixis.text.parsing import SpacyParser, load_parser
from deixis.text.vocabulary import START

RELATIONS = "relations.json"


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
    """`(texts, longest, 3)`: head, dependent and relation of each edge; relation 0 is any that training had not."""

    def __init__(self, text: TokenIds, relations: Iterable[str]) -> None:
        self.text, self.relations = text, tuple(relations)
        self._relation_ids = {relation: number for number, relation in enumerate(self.relations, start=1)}

    @classmethod
    def of(cls, text: TokenIds, captions: Sequence[Tokens]) -> EdgeFragments:
        """With the relations that training captions have."""
        found = {word.relation for sentence in _parser().parse(captions) for word in sentence.words}
        return cls(text, sorted(found))

    def ids(self, texts: Sequence[Tokens]) -> NDArray[np.int64]:
        rows = []
        for text, sentence in zip(texts, _parser().parse(texts), strict=True):
            own = self.text.vocabulary.encode(text)
            edges = [
                (START if word.head == place else own[word.head], own[place], self._relation_ids.get(word.relation, 0))
                for place, word in enumerate(sentence.words)
            ]
            rows.append(np.array(edges, np.int64).reshape(-1, 3))
        return _padded(rows, 3)

    def save(self, folder: Path) -> None:
        self.text.save(folder)
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
    try:
        return EdgeFragments(text, msgspec.json.decode(path.read_bytes(), type=list[str]))
    except (OSError, msgspec.DecodeError) as fault:
        raise InputError(path, f"is damaged ({fault})") from None


@cache
def _parser() -> SpacyParser:
    parser = load_parser()
    if not isinstance(parser, SpacyParser):
        raise DeixisError("dependency edges need spaCy and its English model: pip install 'deixis[text]'")
    # Its trees are not used, so there are no phrases to keep whole.
    return SpacyParser(parser.pipeline)


def _padded(rows: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    out = np.zeros((len(rows), max([1, *map(len, rows)]), width), np.int64)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out
