"""Mentions of captions: noun chunks with types, without pronouns and non-visual terms (Entities, section 2.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from deixis.annotation.workflow_records import Document, GivenChain, Mention
from deixis.corpus import NOT_VISUAL, TYPES, Caption, Corpus, Image
from deixis.corpus.spans import Span
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes

#: How much of a corpus a project takes over: captions only, or also mentions, chains, boxes.
Start = Literal["captions", "mentions", "chains", "boxes"]
# fmt: off
PRONOUNS = frozenset({
    "he", "him", "she", "her", "it", "they", "them", "i", "we", "us", "you", "me", "his", "hers", "its", "their",
    "himself", "herself", "itself", "themselves", "each other", "one another", "who", "whom", "which", "what", "that",
    "this", "these", "those", "there", "someone", "something", "everyone", "everything", "nothing",
})
#: Chunks, without determiner, that refer to nothing visible in the picture.
NON_VISUAL_TERMS = frozenset({
    "background", "foreground", "air", "midair", "mid-air", "distance", "front", "back", "side", "top", "bottom",
    "middle", "center", "centre", "view", "picture", "photo", "photograph", "image", "camera", "way", "day", "time",
    "action", "fun", "place", "direction", "order", "preparation",
})
# fmt: on
_DETERMINERS = ("a ", "an ", "the ", "this ", "that ", "his ", "her ", "their ", "its ")
#: Images whose captions are chunked at once.
BLOCK_IMAGES = 2000


def documents(corpus: Corpus, start: Start, chunker: Chunker, types: EntityTypes) -> Iterator[Document]:
    """The images of a corpus as documents for the workflow."""
    images = corpus.images
    for first in range(0, len(images), BLOCK_IMAGES):
        block = images[first : first + BLOCK_IMAGES]
        if start != "captions":
            yield from (given_document(image, start) for image in block)
            continue
        spans = iter(chunker.phrases_of(caption for image in block for caption in image.captions))
        for image in block:
            yield _chunked_document(image, [next(spans) for _ in image.captions], types)


def is_pronoun_or_nonvisual(text: str) -> bool:
    """Whether a chunk is a pronoun or a term that refers to nothing visible.

    >>> is_pronoun_or_nonvisual("the background"), is_pronoun_or_nonvisual("the background dancers")
    (True, False)
    """
    text = text.lower()
    bare = next((text.removeprefix(word) for word in _DETERMINERS if text.startswith(word)), text)
    return text in PRONOUNS or bare in NON_VISUAL_TERMS


def bare_image(image: Image) -> Image:
    """The image without phrases, chains and boxes."""
    captions = tuple(_bare_caption(caption) for caption in image.captions)
    return msgspec.structs.replace(image, captions=captions, boxes=(), chains=())


def _bare_caption(caption: Caption) -> Caption:
    return msgspec.structs.replace(caption, phrases=())


def _chunked_document(image: Image, spans: Sequence[Sequence[Span]], types: EntityTypes) -> Document:
    mentions = []
    nonvisual = []
    for caption_index, (caption, caption_spans) in enumerate(zip(image.captions, spans, strict=True)):
        tokens = caption.tokens
        for (start, end), kinds in zip(caption_spans, types.types_in(tokens, caption_spans), strict=True):
            text = " ".join(tokens[start:end])
            if caption.unrelated or NOT_VISUAL in kinds or is_pronoun_or_nonvisual(text):
                nonvisual.append((caption_index, start, end))
            else:
                mentions.append(Mention(caption_index, start, end, text, kinds))
    return Document(bare_image(image), tuple(mentions), tuple(nonvisual))


def given_document(image: Image, start: Start) -> Document:
    """The mentions of an annotated image, with its chains and boxes if `start` includes them."""
    mentions: list[Mention] = []
    nonvisual = []
    members: dict[str, list[str]] = {}
    for caption_index, caption in enumerate(image.captions):
        for phrase in caption.phrases:
            if not phrase.visual:
                nonvisual.append((caption_index, phrase.start, phrase.end))
                continue
            mention = Mention(
                caption_index, phrase.start, phrase.end, caption.phrase_text(phrase), _types(phrase.types)
            )
            if mention.id not in {known.id for known in mentions}:
                mentions.append(mention)
                members.setdefault(phrase.chain, []).append(mention.id)
    given: Iterable[GivenChain] = ()
    if start != "mentions":
        given = (
            GivenChain(chain, tuple(ids), image.chain_boxes(chain) if start == "boxes" else ())
            for chain, ids in members.items()
        )
    return Document(bare_image(image), tuple(mentions), tuple(nonvisual), tuple(given))


def _types(types: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(type_ for type_ in types if type_ in TYPES) or ("other",)
