"""What is suggested for a word that the model does not know."""

from __future__ import annotations

import pytest

from deixis.search.spelling import suggestion
from deixis.text.vocabulary import Vocabulary

COUNTS = {
    "mountain": 900,
    "climber": 300,
    "elephant": 700,
    "elegant": 12,
    "skate": 90,
    "girl": 800,
    "giraffe": 7,
    "elephent": 3,
    "person": 900,
    "cake": 60,
    "man": 2000,
    "many": 200,
    "horse": 900,
    "hose": 300,
}
WORDS = Vocabulary(COUNTS)


@pytest.mark.parametrize(
    ("query", "unknown", "meant"),
    [
        ("a Mountian climer", ["mountian", "climer"], "a mountain climber"),
        # A frequent word rather than one that is a little more alike.
        ("elefant", ["elefant"], "elephant"),
        # Swapped letters rather than one too many.
        ("hosre", ["hosre"], "horse"),
        ("gril -mountian", ["gril", "mountian"], "girl -mountain"),
        ("a mann", ["mann"], "a man"),
        ("mountaincake", ["mountaincake"], "mountain cake"),
        # A word that is like none is left out, with its minus or quotes; not more words than are replaced.
        ("climer zorblax", ["climer", "zorblax"], "climber"),
        ('a climer -zorblax "zorblax"', ["climer", "zorblax"], "a climber"),
        ('a climer -"Zorblax cake"', ["climer", "zorblax"], 'a climber -" cake"'),
        ("zorblax climer flurbles", ["zorblax", "climer", "flurbles"], ""),
        ("mountain zorblax", ["zorblax"], ""),
        # An unknown short word is one of another language.
        ("der mountian", ["der", "mountian"], ""),
        # A word that was hardly ever read may be misspelled itself.
        ("giraf", ["giraf"], ""),
        # Short words and other first letters are like too many.
        ("gil", ["gil"], ""),
        ("katze", ["katze"], ""),
        ("climer", [], ""),
        # Two errors are too many in a short word of another language.
        ("perro", ["perro"], ""),
        # Captions have errors, too: a word that was hardly ever read, and is like a frequent one.
        ("an elephent", [], "an elephant"),
        ("an elephent climer", ["climer"], "an elephant climber"),
        ("a giraffe", [], ""),
    ],
)
def test_known_words_take_the_place_of_unknown_ones_they_are_like(query: str, unknown: list[str], meant: str) -> None:
    assert suggestion(query, unknown, WORDS) == meant
    assert suggestion(query, unknown, None) == ""


def test_a_word_of_a_strangers_vocabulary_is_taken_as_it_is() -> None:
    assert suggestion("mountan", ["mountan"], Vocabulary({r"mount\1an": 900})) == r"mount\1an"
