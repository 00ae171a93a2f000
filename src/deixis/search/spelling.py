"""What a person may have meant by a word that the model has never read, or only misspelled."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary

#: Shorter words are near too many others.
SHORTEST = 4
#: How alike two words must be (`difflib`'s ratio), and by how many letters their lengths may differ.
ALIKE, LENGTHS = 0.7, 2
#: How many letters may be wrong, missing, added or swapped: one, and two from this length on. More would make a word of
#: many words of other languages ("perro", "person").
TWO_ERRORS = 7
#: How much a word that was read ten times as often gains: who writes "elefant" means no "elegant".
FREQUENT = 0.05
#: How often a word must have been read to be suggested: rare ones may be misspelled themselves.
READ = 10
#: A word that was read less often than `READ` is taken for misspelled if one like it was read so many times as often.
TIMES = 50


def suggestion(query: str, unknown: Sequence[str], vocabulary: Vocabulary | None) -> str:
    """The query with known words in place of unknown and misspelled ones, without unknown words that are like none.

    It is empty where nothing is to be replaced, where more words would be left out than replaced, and where a short
    word is unknown: such words are articles and prepositions of other languages.

    >>> words = Vocabulary({"mountain": 90, "climber": 60, "climbed": 20, "climb": 50, "the": 800})
    >>> suggestion('the "Mountian" climer', ["mountian", "climer"], words)
    'the "mountain" climber'
    >>> suggestion("mountainclimber", ["mountainclimber"], words)
    'mountain climber'
    >>> suggestion("mountain zorblax", ["zorblax"], words)
    ''
    >>> suggestion("mountain climer zorblax", ["climer", "zorblax"], words)
    'mountain climber'
    >>> suggestion("the mountian", [], Vocabulary({"mountain": 90, "mountian": 1, "the": 800}))
    'the mountain'
    """
    if vocabulary is None:
        return ""
    asked = query
    for word in tokens_of(query):
        if word not in unknown and (meant := _misspelled(word, vocabulary)):
            query = _replaced(query, word, meant)
    meant_by = {word: _two_words(word, vocabulary) or _nearest(word, vocabulary) for word in unknown}
    unlike = [word for word, meant in meant_by.items() if not meant]
    if any(len(word) < SHORTEST for word in unlike):
        return ""
    for word, meant in meant_by.items():
        query = _replaced(query, word, meant) if meant else query
    if query == asked or 2 * len(unlike) > len(unknown):
        return ""
    for word in unlike:
        query = _left_out(query, word)
    return query


def _left_out(query: str, word: str) -> str:
    """The query without a word, its minus, and quotes that would be empty."""
    query = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "", query, flags=re.IGNORECASE)
    return " ".join(re.sub(r'(?<!\S)-?"\s*"|(?<!\S)-(?!\S)', "", query).split())


def _replaced(query: str, word: str, meant: str) -> str:
    # A function: a word of a stranger's vocabulary may look like a reference to a group.
    return re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _: meant, query, flags=re.IGNORECASE)


def _misspelled(word: str, vocabulary: Vocabulary) -> str:
    """What a rare word stands for that some captions misspelled, too; empty for all others."""
    count = vocabulary.count(word)
    if not 0 < count < READ:
        return ""
    meant = _nearest(word, vocabulary)
    return meant if vocabulary.count(meant) >= TIMES * count and singular(meant) != singular(word) else ""


def _nearest(word: str, vocabulary: Vocabulary) -> str:
    """The known word that is most alike, a frequent one rather than a rare one."""
    if len(word) < SHORTEST:
        return ""
    near = [
        known
        for known, count in zip(vocabulary.words, vocabulary.counts, strict=True)
        # Hardly anybody gets the first letter wrong, and words of other languages are like many.
        if known[0] == word[0]
        and count >= READ
        and len(known) >= SHORTEST - 1
        and abs(len(known) - len(word)) <= LENGTHS
    ]
    most = 1 if len(word) < TWO_ERRORS else 2
    alike = [known for known in difflib.get_close_matches(word, near, 10, ALIKE) if _errors(word, known) <= most]
    matcher = difflib.SequenceMatcher(b=word)

    def fitness(known: str) -> float:
        matcher.set_seq1(known)
        # To the matcher, swapped letters are two errors; to a person, one.
        swapped = sorted(known) == sorted(word) and _errors(word, known) == 1
        alike = 1 - 1 / (2 * len(word)) if swapped else matcher.ratio()
        return alike + FREQUENT * math.log10(vocabulary.count(known))

    return max(alike, key=fitness, default="")


def _errors(word: str, known: str) -> int:
    """Letters to replace, add, remove or swap with their neighbour (the optimal string alignment distance)."""
    rows = [list(range(len(known) + 1))]
    for line, letter in enumerate(word, start=1):
        above, row = rows[-1], [line]
        for column, other in enumerate(known, start=1):
            least = min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != other))
            if line > 1 and column > 1 and (letter, word[line - 2]) == (known[column - 2], other):
                least = min(least, rows[-2][column - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def _two_words(word: str, vocabulary: Vocabulary) -> str:
    """The two known words that it was put together of, the rarer of them as frequent as possible."""
    parts = [(word[:cut], word[cut:]) for cut in range(3, len(word) - 2)]
    counts = [min(map(vocabulary.count, pair)) for pair in parts]
    best = max(range(len(parts)), key=counts.__getitem__, default=0)
    return " ".join(parts[best]) if parts and counts[best] >= READ else ""
