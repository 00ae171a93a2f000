"""Trees from dependencies: whatever the parse, a tree over all tokens; on plain captions the phrases one expects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.errors import DeixisError
from deixis.text.constituency import Word, constituency, projective_heads
from deixis.text.repair import with_phrases
from deixis.text.trees import DEPTH_LIMIT, check_tree

RELATIONS = (
    "nsubj nsubjpass dobj prep pobj acl relcl advcl ccomp xcomp conj cc det amod compound poss case aux auxpass prt "
    "advmod npadvmod attr acomp agent dative mark neg nummod quantmod appos expl punct pcomp predet dep intj"
)
TAGS = "NN NNS NNP DT JJ VB VBZ VBG VBN MD IN TO RB RP CD CC PRP PRP$ WDT WP WRB EX POS UH . , -LRB- XX"


@st.composite
def parses(draw: st.DrawFn, longest: int = 14) -> list[Word]:
    """Random dependency forests with crossing dependencies and several roots."""
    count = draw(st.integers(0, longest))
    order = draw(st.permutations(range(count)))
    parsed: dict[int, Word] = {}
    for place, number in enumerate(order):
        head = order[draw(st.integers(0, place))] if place else number
        relation = "ROOT" if head == number else draw(st.sampled_from(RELATIONS.split()))
        text = draw(st.sampled_from(["dog", "runs", ",", "a"]))
        parsed[number] = Word(text, head, relation, draw(st.sampled_from(TAGS.split())))
    return [parsed[number] for number in range(count)]


@settings(max_examples=150)
@given(parses())
def test_every_token_is_once_in_the_tree_in_order_and_every_node_is_a_span(words: list[Word]) -> None:
    tree = constituency(words)
    check_tree(tree, len(words))
    for node in tree.subtrees():
        start, end = node.span
        assert [leaf.token for leaf in node.leaves()] == list(range(start, end))


@settings(max_examples=100)
@given(st.data())
def test_a_given_phrase_hangs_from_one_word_and_is_a_noun_phrase(data: st.DataObject) -> None:
    words = data.draw(parses())
    edges = sorted(data.draw(st.sets(st.integers(0, len(words)), max_size=6)))
    spans = [span for span in zip(edges[::2], edges[1::2], strict=False) if span[0] < span[1]]
    changed = with_phrases(words, spans)
    for start, end in spans:
        inside = range(start, end)
        tops = [n for n in inside if changed[n].head not in inside or changed[n].head == n]
        assert len(tops) == 1
        assert all(word.head not in inside or word.head == tops[0] for n, word in enumerate(changed) if n not in inside)
    tree = constituency(changed)
    check_tree(tree, len(words))
    assert {*tree.spans("NP"), *tree.spans("WHNP")}.issuperset(spans)


@settings(max_examples=100)
@given(parses())
def test_heads_are_lifted_until_none_cross_and_only_upward(words: list[Word]) -> None:
    before = [-1 if word.head == number else word.head for number, word in enumerate(words)]
    after = projective_heads(before)

    def ancestors(heads: list[int], number: int) -> list[int]:
        found = []
        while heads[number] >= 0:
            number = heads[number]
            found.append(number)
        return found

    for number, head in enumerate(after):
        assert head == -1 or head in ancestors(before, number)
        if head >= 0:
            between = range(min(number, head) + 1, max(number, head))
            assert all(head in ancestors(after, inner) for inner in between)


def test_heads_without_sense_are_refused() -> None:
    with pytest.raises(DeixisError, match="circle"):
        projective_heads([1, 0])
    with pytest.raises(DeixisError, match="hangs from no word"):
        projective_heads([-1, 7])


@pytest.mark.parametrize("count", [60, 1500])
def test_deep_nesting_does_not_break(count: int) -> None:
    """`a of b of c …`: each noun hangs from the preposition before it."""
    words = [
        Word("of" if number % 2 else "dog", max(0, number - 1), *(("prep", "IN") if number % 2 else ("pobj", "NN")))
        for number in range(count)
    ]
    tree = constituency(words)
    check_tree(tree, count)
    assert tree.depth <= DEPTH_LIMIT
    if count == 60:
        assert len(tree.spans("NP")) == 60  # every noun alone and with what follows


def test_many_modifiers_do_not_break() -> None:
    words = [Word("dog", 0, "ROOT", "NN"), *(Word(f"x{n}", 0, "amod", "JJ") for n in range(2000))]
    check_tree(constituency(words), 2001)


def parsed(text: str) -> list[Word]:
    """Words written `text/tag/relation/head`, heads counted from 1 and 0 for the root."""
    rows = [piece.split("/") for piece in text.split()]
    return [
        Word(word, int(head) - 1 if int(head) else number, relation, tag)
        for number, (word, tag, relation, head) in enumerate(rows)
    ]


def brackets(text: str) -> str:
    words = parsed(text)
    return constituency(words).to_brackets([word.text for word in words])


def test_noun_phrases_nest_as_in_paper_2() -> None:
    assert brackets(
        "two/CD/nummod/2 people/NNS/ROOT/0 sitting/VBG/acl/2 on/IN/prep/3 rocking/VBG/amod/6 chairs/NNS/pobj/4"
    ) == ("(NP (NP (CD two) (NNS people)) (VP (VBG sitting) (PP (IN on) (NP (VBG rocking) (NNS chairs)))))")


def test_phrases_mend_the_parse() -> None:
    # As spaCy parses it: "rocking" a verb with the object "chairs".
    words = parsed(
        "two/CD/nummod/2 people/NNS/ROOT/0 sitting/VBG/acl/2 on/IN/prep/3 rocking/VBG/pcomp/4 chairs/NNS/dobj/5"
    )
    assert (4, 6) not in constituency(words).spans("NP")
    tree = constituency(with_phrases(words, [(0, 2), (4, 6)]))
    assert tree.spans("NP") == [(0, 6), (0, 2), (4, 6)]


def test_clauses_auxiliaries_and_coordination() -> None:
    assert brackets(
        "a/DT/det/2 dog/NN/nsubj/4 is/VBZ/aux/4 running/VBG/ROOT/0 and/CC/cc/4 barking/VBG/conj/4 ././punct/4"
    ) == ("(S (NP (DT a) (NN dog)) (VP (VBZ is) (VP (VP (VBG running)) (CC and) (VP (VBG barking)))) (. .))")
    assert brackets("red/JJ/amod/6 ,/,/punct/1 white/JJ/conj/1 and/CC/cc/3 blue/JJ/conj/3 flags/NNS/ROOT/0") == (
        "(NP (ADJP (JJ red) (, ,) (JJ white) (CC and) (JJ blue)) (NNS flags))"
    )
    assert brackets("men/NNS/nsubj/2 sing/VBP/ROOT/0 and/CC/cc/2 a/DT/det/5 girl/NN/nsubj/6 dances/VBZ/conj/2") == (
        "(S (S (NP (NNS men)) (VP (VBP sing))) (CC and) (S (NP (DT a) (NN girl)) (VP (VBZ dances))))"
    )


def test_subordinate_and_relative_clauses() -> None:
    assert brackets("a/DT/det/2 man/NN/ROOT/0 who/WP/nsubj/4 sings/VBZ/relcl/2") == (
        "(NP (NP (DT a) (NN man)) (SBAR (WHNP (WP who)) (S (VP (VBZ sings)))))"
    )
    assert brackets("dogs/NNS/nsubj/2 run/VBP/ROOT/0 while/IN/mark/5 it/PRP/nsubj/5 rains/VBZ/advcl/2") == (
        "(S (NP (NNS dogs)) (VP (VBP run) (SBAR (IN while) (S (NP (PRP it)) (VP (VBZ rains))))))"
    )


def test_small_captions() -> None:
    assert constituency([]).to_brackets([]) == "(S)"
    assert brackets("dog/NN/ROOT/0") == "(NP (NN dog))"
    assert brackets("run/VB/ROOT/0") == "(S (VP (VB run)))"
    assert brackets("././ROOT/0") == "(FRAG (. .))"
    assert brackets("In/IN/prep/5 snow/NN/pobj/1 ,/,/punct/5 a/DT/det/5 dog/NN/ROOT/0 ././punct/5") == (
        "(NP (PP (IN In) (NP (NN snow))) (, ,) (NP (DT a) (NN dog)) (. .))"
    )
