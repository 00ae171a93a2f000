"""Mentions: chunks of captions with types, pronouns and non-visual terms left out but kept for the export."""

from __future__ import annotations

from deixis.annotation.mentions import documents, given_document, is_pronoun_or_nonvisual
from deixis.annotation.workflow_records import representative
from deixis.corpus import Corpus, make_caption, make_image
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes
from tests.annotation.worlds import made_up_corpus


def test_captions_give_mentions_with_types_and_spans() -> None:
    text = "a man in a red shirt throws a ball to his dog in the background while he laughs"
    image = make_image("one", captions=[make_caption(text)])
    (document,) = documents(Corpus([image]), "captions", Chunker.load(), EntityTypes.load())
    tokens = text.split()
    found = {mention.text: mention.types for mention in document.mentions}
    assert found["a man"] == ("people",)
    assert found["a red shirt"] == ("clothing",)
    assert "animals" in found["his dog"]
    assert "the background" not in found
    assert "he" not in found
    assert all(" ".join(tokens[m.start : m.end]) == m.text for m in document.mentions)
    left_out = {" ".join(tokens[start:end]) for _, start, end in document.nonvisual}
    assert {"the background", "he"} <= left_out


def test_unrelated_captions_give_no_mentions() -> None:
    image = make_image("one", captions=[make_caption("a man rides a horse", unrelated=True)])
    (document,) = documents(Corpus([image]), "captions", Chunker.load(), EntityTypes.load())
    assert document.mentions == ()


def test_given_phrases_are_mentions_and_what_was_annotated_is_gone_from_the_image() -> None:
    image = made_up_corpus(1).images[0]
    document = given_document(image, "mentions")
    assert len(document.mentions) == sum(len(caption.phrases) for caption in image.captions)
    assert document.given == ()
    assert document.image.boxes == document.image.chains == ()
    assert all(caption.phrases == () for caption in document.image.captions)
    with_boxes = given_document(image, "boxes")
    assert {chain.id: chain.boxes for chain in with_boxes.given} == {
        c.id: image.chain_boxes(c.id) for c in image.chains
    }


def test_pronouns_and_terms_are_known_with_and_without_determiner() -> None:
    assert all(map(is_pronoun_or_nonvisual, ["He", "them", "each other", "the air", "Background", "a picture"]))
    assert not any(map(is_pronoun_or_nonvisual, ["the air balloon", "a man", "background singers"]))


def test_the_longest_mention_represents_its_chain() -> None:
    mentions = given_document(made_up_corpus(1).images[0], "mentions").mentions
    longest = representative(mentions)
    assert longest.end - longest.start == max(m.end - m.start for m in mentions)
