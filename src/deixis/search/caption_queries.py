"""Queries for calibration and measurement, and what captions say about them.

Queries are nouns and noun phrases of captions. A picture matches a query if one of its captions has all the query's
words, in either number. Captions leave things out, so some of what counts as no match is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deixis.adapters.phrasing import FUNCTION_WORDS, KINDS, NUMBERS, phrasing, telling_words
from deixis.adapters.search_model import SearchModel
from deixis.corpus import Image
from deixis.text.chunker import Chunker
from deixis.text.plurals import singular
from deixis.text.tokens import has_content, tokens_of, tokens_of_captions
from deixis.text.variants import variant
from deixis.text.vocabulary import Vocabulary

Tokens = tuple[str, ...]
Bools = NDArray[np.bool_]

#: Phrases of one origin at most.
PHRASES = 1000
#: Words asked by themselves: among so many of the most frequent, read so often.
WORDS, WORD_COUNT = 2500, 20
#: Captions that are looked at to see whether a rarer word is a noun.
READ = 15


def caption_matches(images: Sequence[Image], queries: Sequence[Tokens], captions: int = 1) -> Bools:
    """`(queries, images)`: whether so many captions of an image have all words of a query that say what is meant.

    A caption that has a kind of a general word ("man" for "people") has that word, and so does one that spells it
    otherwise ("tyre", "tire").
    """
    having = defaultdict[str, set[tuple[int, int]]](set)
    for image_index, image in enumerate(images):
        for caption_index, caption in enumerate(image.captions):
            for name in names_in(tokens_of(caption)):
                having[name].add((image_index, caption_index))
    matches = np.zeros((len(queries), len(images)), bool)
    for row, query in zip(matches, queries, strict=True):
        names = [(name, *KINDS.get(name, "").split()) for name in names_in(telling_words(query))]
        words = [set[tuple[int, int]]().union(*(having.get(name, ()) for name in name_set)) for name_set in names]
        counts = Counter(index for index, _ in set.intersection(*words)) if words else Counter[int]()
        row[[index for index, count in counts.items() if count >= captions]] = True
    return matches


def names_in(tokens: Sequence[str]) -> list[str]:
    """The words, variants as captions mostly write them, in the singular.

    >>> names_in(("two", "tyres"))
    ['two', 'tire']
    """
    return [singular(word) for token in tokens for word in variant(token) or (token,)]


def head_counts(images: Sequence[Image], queries: Sequence[Tokens]) -> NDArray[np.int64]:
    """For each query the images that have a noun phrase ending in its last word, which is then used as a noun."""
    sentences = [(index, tokens_of(caption)) for index, image in enumerate(images) for caption in image.captions]
    spans = Chunker.load().phrases_of([tokens for _, tokens in sentences])
    having = defaultdict[str, set[int]](set)
    for (image_index, tokens), phrase_spans in zip(sentences, spans, strict=True):
        for start, end in phrase_spans:
            if end > start and is_name(tokens[end - 1]) and tokens[end - 1] not in FUNCTION_WORDS | NUMBERS:
                having[singular(tokens[end - 1])].add(image_index)
    return np.array([len(having[singular(query[-1])]) for query in queries], np.int64)


def known_queries(
    model: SearchModel, vocabulary: Vocabulary, groups: Sequence[Sequence[Image]], random: np.random.Generator
) -> list[Tokens]:
    """Noun phrases of the captions of each group, their nouns, and frequent words; all their words are known.

    Of those that are asked for alike ("a man", "the man", "men"), one.
    """
    queries: list[Tokens] = []
    for images in groups:
        phrases = noun_phrases(vocabulary, images)
        heads = {singular(phrase[-1]) for phrase in phrases}
        queries += [(head,) for head in sorted(heads) if vocabulary.count(head) >= WORD_COUNT]
        queries += [phrases[index] for index in random.permutation(len(phrases))[:PHRASES]]
    queries += [(word,) for word in frequent_words(vocabulary)]
    return list({phrasing(" ".join(query), model).forms: query for query in reversed(queries)}.values())


def frequent_words(vocabulary: Vocabulary) -> list[str]:
    """Words that the model has read often: rarer ones have hardly a meaning to it."""
    words = zip(vocabulary.words[:WORDS], vocabulary.counts[:WORDS], strict=True)
    return [word for word, count in words if count >= WORD_COUNT and is_name(word)]


def rare_words(vocabulary: Vocabulary, images: Sequence[Image]) -> list[Tokens]:
    """Rarer words that are nouns in most captions of these images that have them."""
    rare = {word for word in vocabulary.words[WORDS:] if is_name(word)}
    read = Counter[str]()
    sentences = []
    for tokens in tokens_of_captions(images):
        new = [word for word in rare.intersection(tokens) if read[word] < READ]
        read.update(new)
        sentences += [tokens] if new else []
    spans = Chunker.load().phrases_of(sentences)
    nouns, seen = Counter[str](), Counter[str]()
    for tokens, phrase_spans in zip(sentences, spans, strict=True):
        seen.update(rare.intersection(tokens))
        nouns.update({tokens[end - 1] for start, end in phrase_spans if end > start} & rare)
    return [(word,) for word in sorted(rare) if 2 * nouns[word] > seen[word]]


def noun_phrases(vocabulary: Vocabulary, images: Sequence[Image]) -> list[Tokens]:
    """The noun phrases of images' captions whose words are all known, each once."""
    sentences = tokens_of_captions(images)
    spans = Chunker.load().phrases_of(sentences)
    phrases = {
        tokens[start:end]
        for tokens, phrase_spans in zip(sentences, spans, strict=True)
        for start, end in phrase_spans
        if end > start
    }
    return sorted(phrase for phrase in phrases if is_name(phrase[-1]) and all(token in vocabulary for token in phrase))


def is_name(word: str) -> bool:
    """Whether a word may name something."""
    return word.isalpha() and len(word) > 2 and has_content(word)
