"""Captions beside their twins with roles exchanged, as a file that people can read and any machine can score.

In drawn scenes, the scenes say what is false. For any other corpus, `deixis.text.exchange` makes the twins with a
parser, once: they are kept in the cache, so that a machine without one can score them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deixis.corpus import Corpus
from deixis.corpus.scenes import order_swaps
from deixis.corpus.scenes.build import ScenePictures
from deixis.errors import InputError
from deixis.files import TABLE_LIMIT, cache_folder, read_regular, write_text
from deixis.text.entity_types import EntityTypes
from deixis.text.exchange import exchanged_captions
from deixis.text.parsing import load_parser
from deixis.text.tokens import tokens_of

Tokens = tuple[str, ...]

#: Types of phrases (`deixis.text.entity_types`) that can do to each other what is done to them.
ANIMATE = frozenset({"people", "animals"})
#: The parser that reads captions and their twins.
PARSER = "spacy-md"
#: Part of every cache key. Increase it when the same captions get other twins.
_VERSION = 1


class Twins(msgspec.Struct, frozen=True):
    """A line of the file: a caption that is true of an image, and one in the same words that is false of it.

    Captions are lower-case tokens with blanks between them.
    """

    image: str
    relation: str
    true: str
    false: str


def corpus_twins(corpus: Corpus) -> list[Twins]:
    """The twins of all captions of a corpus, or of a split of one, that have them.

    Raises:
        ParserMissing: they are not in the cache, and no parser is installed to make them with.
    """
    if isinstance(corpus.pictures, ScenePictures):
        return [
            Twins(swap.image_id, swap.relation, " ".join(tokens_of(swap.true)), " ".join(tokens_of(swap.false)))
            for swap in order_swaps(corpus)
        ]
    path = cached_twins(corpus)
    if not path.exists():
        captions = [(image.id, tokens_of(caption)) for image in corpus for caption in image.captions]
        exchanged = exchanged_captions([tokens for _, tokens in captions], load_parser(PARSER))
        twins = [
            Twins(name, other.relation, " ".join(caption_tokens), " ".join(other.tokens))
            for (name, caption_tokens), other in zip(captions, exchanged, strict=True)
            if other
        ]
        write_twins(path, twins)
    return read_twins(path)


def parties(twins: Twins) -> tuple[Tokens, Tokens] | None:
    """The two parts of the true caption that change places in the false one, the longest; None where nothing else does.

    >>> parties(Twins("1", "chase", "the dog chases a cat", "a cat chases the dog"))
    (('the', 'dog'), ('a', 'cat'))
    """
    true, false = tuple(twins.true.split(" ")), tuple(twins.false.split(" "))
    length = len(true)
    if length != len(false) or true == false:
        return None
    first = next(index for index in range(length) if true[index] != false[index])
    last = next(index for index in range(length, 0, -1) if true[index - 1] != false[index - 1])
    longest: tuple[Tokens, Tokens] | None = None
    for start in range(first + 1):
        for end in range(last, length + 1):
            for stop in range(start + 1, end - 1):
                for onset in range(stop + 1, end):
                    one, two = true[start:stop], true[onset:end]
                    longer = longest is None or len(one) + len(two) > len(longest[0]) + len(longest[1])
                    if longer and false[start:end] == two + true[stop:onset] + one:
                        longest = one, two
    return longest


def reversible(twins: Twins, types: EntityTypes) -> bool:
    """Whether both parties are people or animals, so that the exchanged caption may well be true of another picture."""
    exchanged = parties(twins)
    return exchanged is not None and all(ANIMATE.intersection(types.types(party)) for party in exchanged)


def cached_twins(corpus: Corpus) -> Path:
    """Their file in the cache."""
    digest = hashlib.sha256(f"{_VERSION} {PARSER}".encode())
    for image in corpus:
        for caption in image.captions:
            digest.update(f"\n{image.id}\t{' '.join(tokens_of(caption))}".encode(errors="surrogatepass"))
    return cache_folder() / "twins" / f"{digest.hexdigest()[:32]}.jsonl"


def write_twins(path: str | Path, twins: Sequence[Twins]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(msgspec.json.encode(twin).decode() + "\n" for twin in twins))


def read_twins(path: str | Path) -> list[Twins]:
    """Read a file written by `write_twins`. Raises `InputError` that names the line."""
    twins = []
    for line_number, line in enumerate(read_regular(path, TABLE_LIMIT).splitlines(), start=1):
        try:
            twins.append(msgspec.json.decode(line, type=Twins))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise InputError(path, f"is no pair of captions ({fault})", f"line {line_number}") from None
    return twins
