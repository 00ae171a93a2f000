"""Tokenizes text in the way the captions of Flickr30k are split (Penn Treebank: `man 's`, `do n't`, `t-shirt`).

Free text (a query, a COCO caption) and captions with tokens can therefore share a vocabulary.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

from deixis.corpus.records import Caption, Image

#: Abbreviations that always keep their full stop.
ABBREVIATIONS = ("mr", "mrs", "ms", "dr", "st", "jr", "sr", "vs")
#: What is split off the end of a word; `n't` takes its `n` along.
CLITICS = ("s", "m", "d", "re", "ve", "ll")
#: Words without a vector in GoogleNews word2vec, which the papers' text features are based on.
FUNCTION_WORDS = frozenset({"a", "and", "of", "to"})


def tokenize(text: str) -> tuple[str, ...]:
    """Split free text into tokens, keeping letter case.

    Words keep their hyphens and inner apostrophes, contractions are split in two, numbers keep their inner marks,
    every other sign is a token, as is a run of full stops or hyphens. Text is normalized to Unicode's composed form
    (NFC), and typographic apostrophes become plain ones. Scripts without spaces give one token per run.

    >>> tokenize("The man’s T-shirt doesn't cost $3.50 in the U.S., Mr. O'Neill!")
    ('The', 'man', "'s", 'T-shirt', 'does', "n't", 'cost', '$', '3.50', 'in', 'the', 'U.S.', ',', 'Mr.', "O'Neill", '!')
    >>> tokenize("The man 's T-shirt does n't")
    ('The', 'man', "'s", 'T-shirt', 'does', "n't")
    """
    text = unicodedata.normalize("NFC", text).replace("\u2019", "'")
    return tuple(_pattern().findall(text))


def tokens_of(text: str | Caption) -> tuple[str, ...]:
    """The lower-case tokens of a caption or of free text: what vocabularies and text features are built from.

    A caption's tokens are used if its source has them or its phrases refer to them; other captions are tokenized.

    >>> tokens_of("Two dogs run.")
    ('two', 'dogs', 'run', '.')
    """
    if isinstance(text, Caption):
        if text.words is not None or text.phrases:
            return tuple(token.lower() for token in text.tokens)
        text = text.text
    return tuple(token.lower() for token in tokenize(text))


def tokens_of_captions(images: Iterable[Image]) -> list[tuple[str, ...]]:
    """The tokens of all captions of images, in order."""
    return [tokens_of(caption) for image in images for caption in image.captions]


def tokens_of_phrases(images: Iterable[Image]) -> list[tuple[str, ...]]:
    """The tokens of the different phrases of images, in order of appearance."""
    phrases: dict[tuple[str, ...], None] = {}
    for image in images:
        for caption in image.captions:
            tokens = tokens_of(caption)
            phrases |= {tokens[phrase.start : phrase.end]: None for phrase in caption.phrases}
    return list(phrases)


def has_content(token: str) -> bool:
    """Whether a lower-case token counts in sums over word vectors: punctuation and the `FUNCTION_WORDS` do not.

    >>> [has_content(token) for token in ("t-shirt", "...", "3rd", "of")]
    [True, False, True, False]
    """
    return token not in FUNCTION_WORDS and any(character.isalnum() for character in token)


@cache
def _pattern() -> re.Pattern[str]:
    # Vowel signs of Indic scripts and accents without a composed form are no "word characters" to `re`.
    marks = "".join(
        character for character in map(chr, range(0x300, 0x10000)) if unicodedata.category(character)[0] == "M"
    )
    letter = f"(?:[^\\W_][{marks}]*)"
    clitic = f"(?:'(?:{'|'.join(CLITICS)})(?!{letter}))"
    alternatives = (
        # Letters with full stops between them: U.S., a.m. (counts are bounded, or hostile text takes quadratic time)
        rf"(?:[^\W\d_]\.){{2,9}}(?!{letter})",
        rf"(?:{'|'.join(ABBREVIATIONS)})\.(?=\s*\S)",
        rf"n't(?!{letter})",
        clitic,
        # 1,000.50  2/3  10:30
        rf"\d+(?:[.,:/]\d+){{1,9}}(?!{letter})",
        # A word ends before n't or another clitic; hyphens and apostrophes inside it stay.
        rf"(?:(?!n't(?!{letter})){letter})+(?:(?!{clitic})[-'&](?:(?!n't(?!{letter})){letter})+)*",
        r"\.{2,}",
        r"-{2,}",
        rf"\S(?:[{marks}]|\u200d\S)*",
    )
    return re.compile("|".join(alternatives), re.IGNORECASE)
