"""The dependency edges of a corpus, parsed once and cached, for DepTree and DeFrag of the DVSA paper.

A text is identified by its lower-case tokens (`tokens_of`) and parsed from them, like queries. Texts that are not
cached need spaCy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from deixis.corpus import Corpus
from deixis.errors import InputError
from deixis.files import TABLE_LIMIT, atomic_write, cache_folder, read_regular
from deixis.text.parsing import SPACY_PACKAGES, ParserMissing, SpacyParser, load_spacy, spacy_folder
from deixis.text.treebank import corpus_texts

Tokens = Sequence[str]
#: Part of every cache key: increase it when the same texts get other edges.
VERSION = 1


class Edge(NamedTuple):
    """The head of a word, by index (its own index for a root), and the relation to it."""

    head: int
    relation: str


Edges = tuple[Edge, ...]


class Dependencies:
    """Edges by tokens, one per word; other texts are parsed."""

    def __init__(self, edges: Mapping[tuple[str, ...], Edges]) -> None:
        self._edges = dict(edges)
        self._parser: SpacyParser | None = None

    def __len__(self) -> int:
        return len(self._edges)

    def edges(self, texts: Iterable[Tokens]) -> list[Edges]:
        keys = [tuple(text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._edges))
        parsed = dict(zip(new, self._new(new), strict=True)) if new else {}
        return [self._edges[key] if key in self._edges else parsed[key] for key in keys]

    def _new(self, texts: Sequence[tuple[str, ...]]) -> Iterable[Edges]:
        self._parser = self._parser or _parser()
        return _parsed(self._parser, texts)

    def save(self, path: str | Path) -> None:
        """A line of the file: the tokens, heads and relations of one text."""
        encoder = msgspec.json.Encoder()
        with atomic_write(path) as stream:
            for tokens, edges in self._edges.items():
                heads, relations = [edge.head for edge in edges], [edge.relation for edge in edges]
                stream.write(encoder.encode((tokens, heads, relations)) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Dependencies:
        decoder = msgspec.json.Decoder(tuple[tuple[str, ...], list[int], list[str]])
        edges = {}
        try:
            for line in read_regular(path, TABLE_LIMIT).splitlines():
                tokens, heads, relations = decoder.decode(line)
                edges[tokens] = tuple(map(Edge, heads, relations))
                if not len(tokens) == len(heads) == len(relations) or any(
                    not 0 <= head < len(tokens) for head in heads
                ):
                    raise InputError(path, f"the edges of {' '.join(tokens)!r} do not fit its words")
        except (msgspec.DecodeError, ValueError, RecursionError) as fault:
            raise InputError(path, f"is damaged ({fault})") from None
        return cls(edges)


def corpus_dependencies(corpus: Corpus) -> Dependencies:
    """The edges of all captions and phrases of a corpus, from the cache or parsed into it.

    Raises:
        ParserMissing: they are not cached, and spaCy is not installed.
    """
    texts = corpus_texts(corpus)
    digest = hashlib.sha256(b"%d" % VERSION)
    for text in texts:
        digest.update(b"\n" + "\t".join(text).encode(errors="surrogatepass"))
    path = cache_folder() / "dependencies" / f"{digest.hexdigest()[:32]}.jsonl"
    if not path.exists():
        Dependencies(dict(zip(texts, _parsed(_parser(), texts), strict=True))).save(path)
    return Dependencies.load(path)


def _parsed(parser: SpacyParser, texts: Sequence[tuple[str, ...]]) -> Iterable[Edges]:
    for sentence in parser.parse(texts):
        yield tuple(Edge(word.head, word.relation) for word in sentence.words)


def _parser() -> SpacyParser:
    for model in SPACY_PACKAGES:
        if spacy_folder(model) is not None:
            # Without a chunker: no trees are built, so no phrases need to stay whole.
            return SpacyParser(load_spacy(model))
    raise ParserMissing("dependency edges need spaCy and its English model: pip install 'deixis[text]'")
