"""The figures of Table 1 and section 2.4, held to a plain recount; the cache that remembers them; what formats drop."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from deixis.corpus import Box, Chain, Corpus, Phrase, make_caption, make_image, statistics, write_corpus
from deixis.corpus.formats import get_format
from deixis.corpus.opening import losses
from deixis.corpus.statistics import corpus_statistics, is_flickr30k_entities, read_statistics

from .strategies import corpora


def small() -> Corpus:
    """Two clowns who share a box with their pair, a park, an unseen moment, a chain nobody mentions."""
    captions = [
        make_caption("The pair waves", None, [Phrase(0, 2, "1", ("people",))]),
        make_caption(
            "A Clown in a park for a moment",
            None,
            [Phrase(0, 2, "2", ("people",)), Phrase(3, 5, "3", ("scene",)), Phrase(6, 8)],
        ),
        make_caption("a clown mask", None, [Phrase(0, 3, "2", ("clothing",))], unrelated=True),
    ]
    chains = [Chain("1", (0, 1)), Chain("2", (0,)), Chain("3", scene=True), Chain("4", no_box=True)]
    boxes = [Box(0, 0, 5, 5), Box(5, 0, 9, 9)]
    first = make_image("a", width=9, height=9, split="train", captions=captions, boxes=boxes, chains=chains)
    return Corpus([first, make_image("b", split="test")], name="small")


def test_each_counting_rule_on_a_corpus_one_can_count_by_hand() -> None:
    counts = corpus_statistics(small())
    assert (counts.images, counts.captions, counts.chains, counts.boxes) == (2, 3, 4, 2)
    assert (counts.mentions, counts.nonvisual_phrases, counts.linked_boxes) == (4, 1, 3)
    assert (counts.tokens, counts.vocabulary, counts.unrelated_captions) == (14, 10, 1)
    assert (counts.mentions_per_chain, counts.boxes_per_chain, counts.linked_boxes_per_chain) == (1.0, 0.5, 0.75)
    assert (counts.words_per_mention, counts.splits) == (2.25, {"train": 1, "test": 1})
    assert (counts.chains_with_several_mentions, counts.chains_without_mention) == (25.0, 25.0)
    assert (counts.chains_with_one_box, counts.chains_with_several_boxes, counts.chains_without_box) == (25, 25, 50)
    assert (counts.scene_chains, counts.no_box_chains) == (1, 1)
    assert list(counts.by_type) == ["people", "clothing", "scene"]
    people, clothing = counts.by_type["people"], counts.by_type["clothing"]
    # The clown is people and clothing: under both it counts with both of its mentions and with the box it shares.
    assert (people.chains, people.mentions, people.linked_boxes, people.images_mentioning) == (2, 3, 3, 50.0)
    assert (people.mentions_per_chain, people.boxes_per_chain) == (1.5, 1.5)
    assert (clothing.chains, clothing.mentions, clothing.linked_boxes) == (1, 2, 1)
    assert not is_flickr30k_entities(counts)


@settings(max_examples=50)
@given(corpora())
def test_every_figure_agrees_with_a_plain_recount(corpus: Corpus) -> None:
    counts = corpus_statistics(corpus)
    mentions = [
        (image, caption, phrase)
        for image in corpus
        for caption in image.captions
        for phrase in caption.phrases
        if phrase.visual
    ]
    chains = [(image, chain) for image in corpus for chain in image.chains]

    def mentioned(image_id: str, chain_id: str) -> int:
        return sum(image.id == image_id and phrase.chain == chain_id for image, _, phrase in mentions)

    assert counts.mentions == len(mentions)
    assert counts.chains == len(chains)
    assert counts.linked_boxes == sum(len(image.chain_boxes(chain.id)) for image, chain in chains)
    several = sum(mentioned(image.id, chain.id) > 1 for image, chain in chains)
    assert counts.chains_with_several_mentions == pytest.approx(100 * several / max(1, len(chains)), abs=0.006)
    types = {type_ for _, _, phrase in mentions for type_ in phrase.types}
    assert set(counts.by_type) == types
    for type_ in types:
        mine = [(image, chain) for image, chain in chains if type_ in image.chain_types()[chain.id]]
        row = counts.by_type[type_]
        assert row.chains == len(mine)
        assert row.mentions == sum(mentioned(image.id, chain.id) for image, chain in mine)
        assert row.linked_boxes == sum(len(chain.boxes) for _, chain in mine)
        assert row.images == len({image.id for image, _ in mine})
        assert row.boxes_per_chain == pytest.approx(row.linked_boxes / row.chains, abs=1e-4)


def test_labels_replace_types_where_nobody_described_the_chain() -> None:
    image = make_image("a", boxes=[Box(0, 0, 1, 1)], chains=[Chain("1", (0,), label="zebra")])
    assert list(corpus_statistics(Corpus([image])).by_type) == ["zebra"]


def test_figures_are_remembered_until_the_corpus_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(statistics, "SLOW_SECONDS", -1.0)
    out = tmp_path / "corpus"
    write_corpus(small(), out)
    counts = read_statistics(out)
    assert counts == corpus_statistics(small())
    with monkeypatch.context() as context:
        context.setattr(statistics, "open_corpus", lambda *_, **__: pytest.fail("counted again"))
        assert read_statistics(out) == counts
    write_corpus(small().split("train"), out)
    assert read_statistics(out).images == 1
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_bytes(b'{"images": "many"')
    assert read_statistics(out).images == 1


def test_a_conversion_reports_exactly_what_it_drops() -> None:
    corpus = small()
    assert losses(corpus, corpus) == {}
    assert losses(corpus, get_format("grounding").keep(corpus)) == {}
    lost = losses(corpus, get_format("karpathy").keep(corpus))
    assert lost["phrases"] == (5, 5)
    assert (lost["boxes"], lost["chains"], lost["scene flags"]) == ((2, 2), (4, 4), (1, 1))
    assert "captions" not in lost
    reworded = corpus.with_images([make_image("b"), make_image("a", captions=[make_caption("the pair waves")])])
    lost = losses(corpus, reworded)
    assert lost["captions"] == (2, 3)
    assert lost["spellings of captions"] == (1, 3)
    assert lost["positions in the list of images"] == (2, 2)
