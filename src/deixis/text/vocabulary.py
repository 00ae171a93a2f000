"""The vocabulary of a model: word counts, a cut-off, four special tokens, and a readable file format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from deixis.errors import DeixisError, InputError
from deixis.files import read_utf8, write_text

#: The special tokens, in the order of their ids.
SPECIALS = ("<pad>", "<unknown>", "<start>", "<end>")
PAD, UNKNOWN, START, END = range(len(SPECIALS))
#: First line of a vocabulary file.
_HEADER = "token\tcount"


class Vocabulary:
    """Words and their ids: special tokens first, then words by decreasing count, ties in alphabetical order.

    Args:
        counts: count of each word. Ties are ordered by code point, so that equal counts always give equal ids.
        minimum_count: rarer words are left out.
        maximum_size: maximum number of words, not counting special tokens.

    >>> vocabulary = Vocabulary.of([("a", "dog"), ("a", "cat"), ("a", "dog", "runs")], minimum_count=2)
    >>> vocabulary.words
    ('a', 'dog')
    >>> vocabulary.encode(("a", "dog", "barks"), start=True, end=True)
    [2, 4, 5, 1, 3]
    >>> vocabulary.decode([2, 4, 5, 1, 3])
    ('a', 'dog', '<unknown>')
    """

    def __init__(self, counts: Mapping[str, int], *, minimum_count: int = 1, maximum_size: int | None = None) -> None:
        entries = [(word, count) for word, count in counts.items() if count >= minimum_count and word not in SPECIALS]
        entries.sort(key=lambda pair: (-pair[1], pair[0]))
        entries = entries[:maximum_size]
        #: The words by rank; the id of `words[i]` is `i + len(SPECIALS)`.
        self.words = tuple(word for word, _ in entries)
        self.counts = tuple(count for _, count in entries)
        #: Number of words of the counted text that are not in the vocabulary.
        self.unknown_count = sum(counts.values()) - sum(self.counts)
        self._ids = {word: token_id for token_id, word in enumerate(self.words, start=len(SPECIALS))}

    @classmethod
    def of(
        cls, token_lists: Iterable[Iterable[str]], *, minimum_count: int = 1, maximum_size: int | None = None
    ) -> Vocabulary:
        """Count the words of token lists."""
        counts = Counter(token for tokens in token_lists for token in tokens)
        return cls(counts, minimum_count=minimum_count, maximum_size=maximum_size)

    def __len__(self) -> int:
        """The number of ids, including special tokens."""
        return len(SPECIALS) + len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def count(self, word: str) -> int:
        """How often a word was seen; 0 for one that is not in the vocabulary."""
        token_id = self._ids.get(word)
        return 0 if token_id is None else self.counts[token_id - len(SPECIALS)]

    @property
    def total(self) -> int:
        """How many running words were counted."""
        return sum(self.counts) + self.unknown_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.words, self.counts, self.unknown_count) == (
            other.words,
            other.counts,
            other.unknown_count,
        )

    def __hash__(self) -> int:
        return hash((self.words, self.counts))

    def encode(self, tokens: Iterable[str], *, start: bool = False, end: bool = False) -> list[int]:
        """Ids of the tokens; text never yields a special id other than `UNKNOWN`, even where it says "<end>"."""
        ids = [self._ids.get(token, UNKNOWN) for token in tokens]
        return [START] * start + ids + [END] * end

    def decode(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The words of ids up to the first end, without pads and start."""
        words = []
        for token_id in ids:
            if token_id == END:
                break
            if token_id not in (PAD, START):
                words.append(self.token(token_id))
        return tuple(words)

    def token(self, token_id: int) -> str:
        """The token of one id."""
        if not 0 <= token_id < len(self):
            raise DeixisError(f"token id {token_id} is outside the vocabulary of {len(self)}")
        return SPECIALS[token_id] if token_id < len(SPECIALS) else self.words[token_id - len(SPECIALS)]

    def save(self, path: str | Path) -> None:
        """Write a text file with one `token<TAB>count` per line, line number (from 0, after the header) = id."""
        for word in self.words:
            if any(sign in word for sign in "\t\n\r") or not word:
                raise DeixisError(f"the word {word!r} cannot be kept in a vocabulary file: it is empty or has a break")
        special_counts = (0, self.unknown_count, 0, 0)
        pairs = [*zip(SPECIALS, special_counts, strict=True), *zip(self.words, self.counts, strict=True)]
        write_text(path, "\n".join([_HEADER, *(f"{word}\t{count}" for word, count in pairs), ""]))

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file written by `save`. Raises `InputError` that names the line."""
        lines = read_utf8(path).split("\n")
        if lines[0] != _HEADER:
            raise InputError(path, f"is not a vocabulary file (its first line is not {_HEADER!r})")
        counts: dict[str, int] = {}
        for line_number, line in enumerate(lines[1:], start=2):
            word, tab, count = line.partition("\t")
            if not line and line_number == len(lines):
                break
            if not tab or not word or word in counts or not (count.isascii() and count.isdigit()):
                raise InputError(path, "is not a new token, a tab and a count", f"line {line_number}")
            counts[word] = int(count)
        return cls._from_lines(path, counts)

    @classmethod
    def _from_lines(cls, path: str | Path, counts: dict[str, int]) -> Vocabulary:
        order: Sequence[str] = tuple(counts)
        if order[: len(SPECIALS)] != SPECIALS:
            raise InputError(path, f"does not begin with the special tokens {', '.join(SPECIALS)}")
        unknown = counts["<unknown>"]
        vocabulary = cls({word: counts[word] for word in order[len(SPECIALS) :]}, minimum_count=0)
        if vocabulary.words != order[len(SPECIALS) :]:
            raise InputError(path, "is not sorted by falling count, equal counts by text")
        vocabulary.unknown_count = unknown
        return vocabulary
