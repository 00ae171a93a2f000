"""The packaged chunker and types on validation captions of Flickr30k Entities, without Flickr8k's training images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deixis.cli.text_command import leave_out
from deixis.corpus import Caption, open_corpus
from deixis.metrics.phrase_chunking import score_chunking, score_types
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes

DATA = Path(os.environ.get("DEIXIS_DATA", "no data"))
ENTITIES = DATA / "flickr30k_entities" / "annotations.zip"
pytestmark = pytest.mark.skipif(
    not ENTITIES.exists(), reason="needs DEIXIS_DATA, a folder that holds flickr30k_entities/annotations.zip"
)


@pytest.fixture(scope="module")
def captions() -> list[Caption]:
    corpus = leave_out(open_corpus(ENTITIES).split("val"), DATA / "flickr8k" / "Flickr_8k.trainImages.txt")
    assert len(corpus) == 801
    return [caption for image in corpus for caption in image.captions]


def test_the_chunker_finds_more_than_94_of_100_phrases(captions: list[Caption]) -> None:
    assert len(captions) == 4005
    types = EntityTypes.load()
    found = Chunker.load().phrases_of(captions)
    names = [types.types_in(caption.tokens, spans) for caption, spans in zip(captions, found, strict=True)]
    score = score_chunking(zip(captions, found, names, strict=True))
    assert score.overall.gold == 14637
    assert score.overall.f1 > 0.97
    assert score.visual.f1 > 0.965


def test_types_are_right(captions: list[Caption]) -> None:
    types = EntityTypes.load()
    pairs = []
    for caption in captions:
        given = types.types_in(caption.tokens, [(phrase.start, phrase.end) for phrase in caption.phrases])
        pairs += [(phrase.types, names) for phrase, names in zip(caption.phrases, given, strict=True)]
    figures = score_types(pairs)
    assert figures["exact"] > 0.995
    assert min(figures["by_type"].values()) > 0.97
