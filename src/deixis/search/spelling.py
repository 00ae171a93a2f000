"""What a person may have meant by a word that the model has never read."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence

from deixis.text.vocabulary import Vocabulary

#: Shorter words are near too many others.
SHORTEST = 4
#: How alike two words must be (`difflib`'s ratio), and by how many letters their lengths may differ.
ALIKE, LENGTHS = 0.7, 2
#: How much a word that was read ten times as often gains: who writes "elefant" means no "elegant".
FREQUENT = 0.05
#: How often a word must have been read to be suggested: rare ones may be misspelled themselves.
READ = 10


def suggestion(query: str, unknown: Sequence[str], vocabulary: Vocabulary | None) -> str:
    """The query with known words in place of unknown ones; empty where one of them is like no word.

    >>> words = Vocabulary({"mountain": 90, "climber": 60, "climbed": 20, "climb": 50, "the": 800})
    >>> suggestion('the "Mountian" climer', ["mountian", "climer"], words)
    'the "mountain" climber'
    >>> suggestion("mountainclimber", ["mountainclimber"], words)
    'mountain climber'
    >>> suggestion("mountain zorblax", ["zorblax"], words)
    ''
    """
    if vocabulary is None or not unknown:
        return ""
    for word in unknown:
        meant = _two_words(word, vocabulary) or _nearest(word, vocabulary)
        if not meant:
            return ""
        query = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", meant, query, flags=re.IGNORECASE)
    return query


def _nearest(word: str, vocabulary: Vocabulary) -> str:
    """The known word that is most alike, a frequent one rather than a rare one."""
    if len(word) < SHORTEST:
        return ""
    near = [
        known
        for known, count in zip(vocabulary.words, vocabulary.counts, strict=True)
        # Hardly anybody gets the first letter wrong, and words of other languages are like many.
        if known[0] == word[0] and count >= READ and len(known) >= SHORTEST and abs(len(known) - len(word)) <= LENGTHS
    ]
    alike = difflib.get_close_matches(word, near, 10, ALIKE)
    matcher = difflib.SequenceMatcher(b=word)

    def fitness(known: str) -> float:
        matcher.set_seq1(known)
        return matcher.ratio() + FREQUENT * math.log10(vocabulary.count(known))

    return max(alike, key=fitness, default="")


def _two_words(word: str, vocabulary: Vocabulary) -> str:
    """The two known words that it was put together of, the rarer of them as frequent as possible."""
    parts = [(word[:place], word[place:]) for place in range(3, len(word) - 2)]
    counts = [min(map(vocabulary.count, pair)) for pair in parts]
    best = max(range(len(parts)), key=counts.__getitem__, default=0)
    return " ".join(parts[best]) if parts and counts[best] >= READ else ""
