"""The trees of a corpus, parsed once and kept: `deixis text trees` makes the file, what learns from trees reads it.

A text is known by its lower-case tokens (`tokens_of`) and parsed from them, as queries are. A text that is in no file
is parsed where a parser is installed; where none is, its tree is what the caption chunker finds: noun phrases side by
side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deixis.corpus import Corpus
from deixis.corpus.spans import Span
from deixis.errors import DeixisError, InputError
from deixis.files import cache_folder
from deixis.text.chunker import Chunker
from deixis.text.parsing import PARSERS, Parser, ParserMissing, load_parser
from deixis.text.tokens import tokens_of
from deixis.text.trees import TokensAndTree, Tree, read_trees, write_trees

Tokens = Sequence[str]
#: Part of every file's name in the cache: raise it when a parser of the same name comes to give other trees.
VERSION = 1


class Treebank:
    """Trees by tokens.

    Args:
        trees: those that are known.
        parser: the name of the parser for all others.
    """

    def __init__(self, trees: Mapping[tuple[str, ...], Tree], parser: str) -> None:
        self.parser = parser
        self._trees = dict(trees)
        self._loaded: Parser | None = None

    def __len__(self) -> int:
        return len(self._trees)

    def trees(self, texts: Iterable[Tokens]) -> list[Tree]:
        keys = [tuple(text) for text in texts]
        new = list(dict.fromkeys(key for key in keys if key not in self._trees))
        parsed = dict(zip(new, self._new(new), strict=True)) if new else {}
        return [self._trees.get(key) or parsed[key] for key in keys]

    def _new(self, texts: Sequence[tuple[str, ...]]) -> list[Tree]:
        try:
            self._loaded = self._loaded or load_parser(self.parser)
            return [sentence.tree for sentence in self._loaded.parse(texts)]
        except ParserMissing:
            spans = Chunker.load().phrases_of(texts)
            return [chunk_tree(len(text), phrases) for text, phrases in zip(texts, spans, strict=True)]

    def add(self, trees: Iterable[TokensAndTree]) -> None:
        """Add trees. Texts that already have a tree keep it."""
        for tokens, tree in trees:
            self._trees.setdefault(tokens, tree)

    def save(self, path: str | Path) -> None:
        write_trees(path, self._trees.items())


def corpus_treebank(corpus: Corpus, source: str) -> Treebank:
    """The trees of all captions and phrases of a corpus.

    Args:
        source: a parser's name: trees come from the cache, or are parsed and left there. Or a file of trees, which must
            have one for each caption; phrases that it lacks are parsed when they are asked for.

    Raises:
        ParserMissing: no file, and nothing to make one with.
    """
    if source not in PARSERS:
        if "." not in source:
            raise DeixisError(f"no parser {source!r}; there are {', '.join(PARSERS)}; or give a file of trees")
        bank = Treebank({tuple(map(str.lower, tokens)): tree for tokens, tree in read_trees(source)}, "auto")
        for image in corpus:
            for caption in image.captions:
                if tokens_of(caption) not in bank._trees:
                    missing = " ".join(tokens_of(caption))
                    raise InputError(source, f"has no tree of a caption of image {image.id}: {missing!r}")
        return bank
    path = cached_path(corpus, source)
    if not path.exists():
        texts = corpus_texts(corpus)
        parsed = load_parser(source).parse(texts)
        write_trees(path, zip(texts, (sentence.tree for sentence in parsed), strict=True))
    return Treebank(dict(read_trees(path)), source)


def corpus_texts(corpus: Corpus) -> list[tuple[str, ...]]:
    """The tokens of all captions and phrases, each once, in order."""
    texts: dict[tuple[str, ...], None] = {}
    for image in corpus:
        for caption in image.captions:
            tokens = tokens_of(caption)
            texts[tokens] = None
            for phrase in caption.phrases:
                texts[tokens[phrase.start : phrase.end]] = None
    return list(texts)


def cached_path(corpus: Corpus, parser: str) -> Path:
    """The file of a corpus' trees in the cache."""
    digest = hashlib.sha256(b"%d" % VERSION)
    for text in corpus_texts(corpus):
        digest.update(b"\n" + "\t".join(text).encode(errors="surrogatepass"))
    return cache_folder() / "trees" / f"{parser}-{digest.hexdigest()[:32]}.jsonl"


def chunk_tree(tokens: int, spans: Sequence[Span]) -> Tree:
    """Noun phrases at these spans, in order, and the words between them, all at one height.

    >>> chunk_tree(3, [(0, 2)]).to_brackets(("a", "dog", "runs"))
    '(S (NP (X a) (X dog)) (X runs))'
    >>> chunk_tree(2, [(0, 2)]).to_brackets(("a", "dog"))
    '(NP (X a) (X dog))'
    """
    children: list[Tree] = []
    position = 0
    for start, end in [*spans, (tokens, tokens)]:
        children += [Tree("X", token=token_index) for token_index in range(position, start)]
        if end > start:
            children.append(Tree("NP", tuple(Tree("X", token=token_index) for token_index in range(start, end))))
        position = end
    return children[0] if len(children) == 1 and not children[0].is_leaf else Tree("S", tuple(children))
