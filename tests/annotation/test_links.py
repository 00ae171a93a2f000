"""Links and chain verification: the right chains from right answers, few questions, splits by head noun."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.annotation.answers import Answers
from deixis.annotation.links import head_noun, likely_same, link_mentions, type_groups, verify_chain, wording_similarity
from deixis.annotation.workflow_records import AcceptFix, Judgment, Mention


def mention(caption: int, start: int, text: str, *types: str) -> Mention:
    return Mention(caption, start, start + len(text.split()), text, types or ("people",))


def link_all(
    mentions: list[Mention], entity: dict[str, int], together: bool = False
) -> tuple[set[frozenset[str]], int]:
    """Chains, as sets of mention ids, when every link is answered rightly; and how many were asked."""
    log: list[Judgment] = []
    while True:
        chains, questions = link_mentions(mentions, Answers(log), together=together)
        if not questions:
            return {frozenset(m.id for m in chain) for chain in chains}, len(log)
        for question in questions:
            answer = "same" if len({entity[name] for name in question.mentions}) == 1 else "different"
            log.append(Judgment(len(log) + 1, "link", question.key, 1, answer))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Mention], dict[str, int]]:
    """Captions that each name some of the entities once; an entity has one type and words of its own or shared."""
    entities = draw(st.lists(st.tuples(st.sampled_from(["people", "other"]), st.sampled_from("abc")), max_size=6))
    mentions, entity = [], {}
    for caption in range(draw(st.integers(1, 5))):
        for place, (type_, word) in enumerate(entities):
            if draw(st.booleans()):
                found = mention(caption, 3 * place, draw(st.sampled_from([word, f"the {word}", "x"])), type_)
                mentions.append(found)
                entity[found.id] = place
    return mentions, entity


@given(worlds())
def test_right_answers_give_the_right_chains_with_at_most_mentions_times_chains_questions(
    world: tuple[list[Mention], dict[str, int]],
) -> None:
    mentions, entity = world
    chains, asked = link_all(mentions, entity)
    truth: dict[int, set[str]] = {}
    for name, number in entity.items():
        truth.setdefault(number, set()).add(name)
    assert chains == {frozenset(own) for own in truth.values()}
    assert asked <= len(mentions) * max(len(chains), 1)
    groups = sum(len(likely_same(group)) for group in type_groups(mentions))
    chains_together, asked_together = link_all(mentions, entity, together=True)
    assert chains_together == chains
    assert asked_together <= asked + groups


def test_similar_wording_is_asked_first_so_equal_words_cost_one_question_each() -> None:
    names = ["a man", "a boy", "a girl", "a woman"]
    mentions = [mention(caption, 3 * place, name) for caption in range(5) for place, name in enumerate(names)]
    entity = {m.id: m.start for m in mentions}
    _, asked = link_all(mentions, entity)
    assert asked == 4 * len(names)


def test_phrases_that_are_likely_the_same_are_asked_in_one_question() -> None:
    names = ["a man", "a boy", "a girl", "a woman"]
    mentions = [mention(caption, 3 * place, name) for caption in range(5) for place, name in enumerate(names)]
    entity = {m.id: m.start for m in mentions}
    _, asked = link_all(mentions, entity, together=True)
    assert asked == len(names)
    # People whose captions name one each are likely the same by any name; things are only by the same name.
    people = [mention(caption, 0, name) for caption, name in enumerate(names)]
    assert likely_same(people) == [tuple(people)]
    things = [mention(caption, 0, name, "other") for caption, name in enumerate(["a ball", "a hat", "a ball"])]
    assert likely_same(things) == []
    # One that is somebody else: pairs are asked after all.
    chains, asked = link_all(people, {m.id: m.caption == 3 for m in people}, together=True)
    assert sorted(map(len, chains)) == [1, 3]
    assert asked == 1 + 3


def test_a_chain_linked_in_one_question_is_verified_by_somebody_else() -> None:
    chain = tuple(mention(caption, 0, "a man") for caption in range(3))
    (question,) = link_mentions(chain, Answers([]), together=True)[1]
    assert question.mentions == tuple(m.id for m in chain)
    log = [Judgment(1, "link", question.key, 7, "same")]
    assert link_mentions(chain, Answers(log), together=True) == ([chain], [])
    asked = verify_chain(chain, Answers(log))[1]
    assert asked is not None
    assert (asked.task, asked.barred) == ("chain", (7,))
    assert verify_chain(chain, Answers(log), one_opinion=True) == ([chain], None)


def test_mentions_of_one_caption_or_of_no_common_type_are_never_asked() -> None:
    same_caption = [mention(0, 0, "a man"), mention(0, 4, "a man")]
    assert link_mentions(same_caption, Answers([])) == ([(same_caption[0],), (same_caption[1],)], [])
    other_type = [mention(0, 0, "a man"), mention(1, 0, "a man", "other")]
    assert link_mentions(other_type, Answers([]))[1] == []
    two_types = [mention(0, 0, "a car", "vehicles"), mention(1, 0, "a car", "vehicles", "scene")]
    assert len(link_mentions(two_types, Answers([]))[1]) == 1


def test_types_are_joined_by_mentions_that_have_two() -> None:
    street, car, both = (
        mention(0, 0, "x", "scene"),
        mention(0, 2, "y", "vehicles"),
        mention(1, 0, "z", "vehicles", "scene"),
    )
    assert [len(group) for group in type_groups([street, car])] == [1, 1]
    assert [len(group) for group in type_groups([street, car, both])] == [3]


@pytest.mark.parametrize(
    ("first", "second", "least", "most"),
    [
        ("a man", "The man", 1, 1),
        ("two dogs", "a dog", 0.5, 0.9),
        ("a red ball", "a red car", 0.1, 0.4),
        ("a", "b", 0, 0),
    ],
)
def test_wording_similarity_orders_pairs(first: str, second: str, least: float, most: float) -> None:
    assert least <= wording_similarity(first, second) <= most
    assert wording_similarity(first, second) == wording_similarity(second, first)


def test_a_chain_that_fails_is_split_by_head_noun_and_one_that_cannot_be_goes_to_review() -> None:
    mixed = (mention(0, 0, "a tall man"), mention(1, 0, "the boy"), mention(2, 0, "Man"))
    question = verify_chain(mixed, Answers([]))[1]
    assert question is not None
    assert question.task == "chain"
    no = Judgment(1, "chain", question.key, 1, "different")
    parts, asked = verify_chain(mixed, Answers([no]))
    assert ([[m.text for m in part] for part in parts], asked) == ([["a tall man", "Man"], ["the boy"]], None)
    yes = Judgment(1, "chain", question.key, 1, "same")
    assert verify_chain(mixed, Answers([yes])) == ([mixed], None)

    alike = (mention(0, 0, "a man"), mention(1, 0, "the man"))
    question = verify_chain(alike, Answers([]))[1]
    assert question is not None
    no = Judgment(1, "chain", question.key, 1, "different")
    parts, review = verify_chain(alike, Answers([no]))
    assert parts == []
    assert review is not None
    assert review.task == "review"
    assert verify_chain(alike, Answers([no], [AcceptFix(review.key)])) == ([alike], None)
    assert verify_chain(alike[:1], Answers([])) == ([alike[:1]], None)


def test_the_head_noun_is_the_last_word() -> None:
    assert head_noun("A man's left Hand") == "hand"
