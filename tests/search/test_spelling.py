"""What is suggested for a word that the model does not know."""

from __future__ import annotations

import pytest

from deixis.adapters.bundles import VOCABULARY, packaged_folder
from deixis.search.spelling import MISREAD, suggestion
from deixis.text.vocabulary import Vocabulary

COUNTS = {
    "mountain": 900,
    "climber": 300,
    "elephant": 700,
    "elegant": 12,
    "skate": 900,
    "girl": 800,
    "giraffe": 7,
    "elephent": 3,
    "person": 900,
    "cake": 600,
    "man": 2000,
    "many": 200,
    "horse": 900,
    "hose": 300,
    "contact": 28,
    "union": 23,
    "while": 900,
    "whale": 8,
    "toilet": 900,
    "toliet": 9,
    # The others are rare or frequent among so many words.
    "a": 3_000_000,
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
        # In a short word, another one is as likely.
        ("a whale", [], ""),
        ("a toliet", [], "a toilet"),
        # A rare word must be very like what was typed, and a last letter is hardly wrong or too many.
        ("contract", ["contract"], ""),
        ("unicorn", ["unicorn"], ""),
        ("cakez", ["cakez"], ""),
    ],
)
def test_known_words_take_the_place_of_unknown_ones_they_are_like(query: str, unknown: list[str], meant: str) -> None:
    assert suggestion(query, unknown, WORDS) == meant
    assert suggestion(query, unknown, None) == ""


def test_a_word_of_a_strangers_vocabulary_is_taken_as_it_is() -> None:
    assert suggestion("mou1ain", ["mou1ain"], Vocabulary({r"mou\1ain": 900})) == r"mou\1ain"


#: Written before anything was tried on them: how people misspell, and words that captions hardly have.
MISSPELLED = """
hosre horse, mountian mountain, elefant elephant, giraff giraffe, umbrela umbrella, bycicle bicycle, motorcyle
motorcycle, skatboard skateboard, kichen kitchen, kitchin kitchen, bathrom bathroom, toliet toilet, refridgerator
refrigerator, banna banana, sandwhich sandwich, brocoli broccoli, vegtables vegetables, restarant restaurant, buidling
building, trafic traffic, climer climber, trian train, airplne airplane, baech beach, gril girl, chidren children,
poeple people, wman woman, catt cat, shep sheep, brid bird, keybord keyboard, labtop laptop, telefone telephone,
baloon balloon, flowrs flowers, windw window, glases glasses, jumpping jumping, siting sitting, tenis tennis, basball
baseball, soccor soccer, yelow yellow, purpel purple, wite white, beutiful beautiful, suitcas suitcase, luggege
luggage, strret street, tabel table, accordian accordion, buterfly butterfly, pinapple pineapple, cofee coffee,
sissors scissors, matress mattress, parashute parachute, icecream ice cream, jackt jacket
"""
REAL = """
unicorn narwhal hedgehog platypus walrus lemur armadillo goblin invoice contract diploma parliament synagogue tornado
avalanche eclipse aurora nebula galaxy comet asteroid bassoon hourglass abacus scalpel bitcoin quinoa hummus falafel
baguette risotto orchid thistle hydrangea peony begonia magnolia funeral christening anniversary honeymoon opera whale
dawn velociraptor wombat weasel badger otter hyena piranha jellyfish ladybug gargoyle obelisk fortress bunker fjord
mangrove pilates fern barley
"""


def test_what_is_suggested_is_plausible() -> None:
    known = Vocabulary.load(packaged_folder() / VOCABULARY)
    pairs = [pair.split(maxsplit=1) for pair in MISSPELLED.split(",")]
    wrong = [typed for typed, meant in pairs if asked(typed, known) != meant]
    assert len(wrong) <= len(pairs) / 20, wrong
    # The model may come to know some of them.
    words = [word for word in REAL.split() if known.count(word) < MISREAD]
    suggested = {word: other for word in words if (other := asked(word, known))}
    assert len(suggested) <= len(words) / 20, suggested


def asked(word: str, known: Vocabulary) -> str:
    return suggestion(word, [] if word in known else [word], known)
