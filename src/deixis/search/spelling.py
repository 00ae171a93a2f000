"""What a person may have meant by a word that the model has never read, or only misspelled."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from deixis.adapters.phrasing import COMMON
from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary

#: Shorter words are near too many others.
SHORTEST = 4
#: By how many letters two words may differ in length.
LENGTHS = 2
#: What a wrong letter costs, and a slip: letters that are swapped, a letter that is doubled or not, a vowel that is
#: wrong, missing or too many. People make slips in words that they know; a word with other errors is often another
#: word.
ERROR, SLIP = 1.0, 0.7
VOWELS = frozenset("aeiouy")
#: What the errors of a word may cost: one error of any kind, and two slips in a word of so many letters. With more,
#: words of other languages would be like some English word ("perro", "person").
MOST, MOST_OF_LONG, LONG = ERROR, 2 * SLIP, 7
#: A word that was read less often than this share of `COMMON` is hardly ever what people look for. For it, errors may
#: cost only so much per letter: "mariage" is meant for "marriage", but "unicorn" not for "union".
FREQUENT, MOST_OF_RARE = 1 / 12, 1 / 9
#: How much errors may cost more for a word that was read ten times as often.
TENFOLD = 0.25
#: How often a word must have been read to be suggested: rare ones may be misspelled themselves.
READ = 10
#: Captions misspell words, too: a word that was read less often than `MISREAD` is taken for misspelled if one like it
#: was read so many times as often, and if only letters are swapped or the word is long: "whale" is not meant for
#: "while".
MISREAD, TIMES, LONG_ENOUGH = 15, 50, 8


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
    meant_by = {word: _nearest(word, vocabulary) or _two_words(word, vocabulary) for word in unknown}
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
    if not 0 < count < MISREAD:
        return ""
    meant = _nearest(word, vocabulary)
    is_likely = len(word) >= LONG_ENOUGH or sorted(word) == sorted(meant)
    frequent = vocabulary.count(meant) >= TIMES * count
    return meant if is_likely and frequent and singular(meant) != singular(word) else ""


def _nearest(word: str, vocabulary: Vocabulary) -> str:
    """The known word that was most likely meant, a frequent one rather than a rare one; empty where none is likely."""
    if len(word) < SHORTEST:
        return ""
    frequent, spelled = _frequent(vocabulary), _spelled(word)
    letters = set(spelled)
    nearest, least = "", math.inf
    for known, count in zip(vocabulary.words, vocabulary.counts, strict=True):
        if count < READ:
            break  # Words are sorted by their counts.
        # Hardly anybody gets the first letter wrong.
        if known[0] != word[0] or known == word or abs(len(known) - len(word)) > LENGTHS:
            continue
        others = set(spelled_known := _spelled(known))
        # Of words this short, only letters may have been doubled.
        if len(known) < SHORTEST and (len(known) < SHORTEST - 1 or others != letters):
            continue
        most = MOST_OF_LONG if len(word) >= LONG else MOST
        most = most if count >= frequent else min(most, MOST_OF_RARE * len(word))
        # Each letter that only one of them has is an error; comparing these first saves time.
        if SLIP * max(len(letters - others), len(others - letters)) > most:
            continue
        cost = _cost(spelled, spelled_known)
        if cost <= most and (penalty := cost - TENFOLD * math.log10(count)) < least:
            nearest, least = known, penalty
    return nearest


def _frequent(vocabulary: Vocabulary) -> float:
    """How often a word must have been read to be frequent in queries, too."""
    return max(READ, FREQUENT * COMMON * vocabulary.total)


def _spelled(word: str) -> str:
    """A word as it is compared: "ph" is as good as "f"."""
    return word.replace("ph", "f")


def _cost(word: str, known: str) -> float:
    """What the errors cost with which `known` becomes `word`.

    >>> _cost("hosre", "horse"), _cost("bycicle", "bicycle"), _cost("climer", "climber"), _cost("cakez", "cake")
    (0.7, 1.4, 1.0, 2.0)
    """
    above: list[float] = []
    row = [0.0]
    for column in range(len(known)):
        row.append(row[-1] + _cost_of_one(known, column))
    for line, letter in enumerate(word):
        is_last = line == len(word) - 1
        before, above, row = above, row, [row[0] + _cost_of_one(word, line, ends=is_last)]
        for column, other in enumerate(known):
            vowels = letter in VOWELS and other in VOWELS
            ends = is_last and column == len(known) - 1
            wrong = 0.0 if letter == other else 2 * ERROR if ends else SLIP if vowels else ERROR
            least = min(
                above[column] + wrong,
                row[column] + _cost_of_one(known, column),
                above[column + 1] + _cost_of_one(word, line, ends=is_last),
            )
            if line and column and (letter, word[line - 1]) == (known[column - 1], other):
                least = min(least, before[column - 1] + SLIP)
            row.append(least)
    return row[-1]


def _cost_of_one(word: str, index: int, *, ends: bool = False) -> float:
    """What it costs that only `word` has a letter; with `ends`, a last letter that was typed and is no double."""
    letter = word[index]
    if letter in (word[index - 1 : index], word[index + 1 : index + 2]):
        return SLIP
    return 2 * ERROR if ends else SLIP if letter in VOWELS else ERROR


def _two_words(word: str, vocabulary: Vocabulary) -> str:
    """The two known words that it was put together of, the rarer of them as frequent as possible."""
    parts = [(word[:cut], word[cut:]) for cut in range(3, len(word) - 2)]
    counts = [min(map(vocabulary.count, pair)) for pair in parts]
    best = max(range(len(parts)), key=counts.__getitem__, default=0)
    return " ".join(parts[best]) if parts and counts[best] >= _frequent(vocabulary) else ""
