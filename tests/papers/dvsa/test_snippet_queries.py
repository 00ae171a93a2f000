"""Queries that differ by a colour, held against captions: by hand, on a matcher with given answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import Corpus, open_corpus
from deixis.metrics.protocols import Pictures
from deixis.papers.dvsa.snippet_queries import LEAST, colours_of_things, snippet_queries
from deixis.text.tokens import tokens_of
from tests.stores import make_store, random_boxes


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    whole = open_corpus("scenes")
    corpus: Corpus = whole.with_images(whole.split("val").images[:60])
    folder: Path = tmp_path_factory.mktemp("store")
    return Pictures(corpus, "val", make_store(folder / "store", corpus, random_boxes(3)), learned_from_boxes=False)


class Says:
    """A picture suits a text where a caption has it, if `sees`; else all suit alike."""

    def __init__(self, pictures: Pictures, sees: bool) -> None:
        self.pictures, self.sees = pictures, sees

    def best_regions(self, images: Any, snippets: Any) -> Any:
        captions = [[" ".join(tokens_of(each)) for each in image.captions] for image in self.pictures.images]
        assert len(list(images)) == len(captions)
        found = [[any(" ".join(text) in each for each in own) for text in snippets] for own in captions]
        return np.array(found, float) * self.sees


def test_things_are_asked_for_in_the_colours_that_enough_captions_give_them(pictures: Pictures) -> None:
    asked = colours_of_things(pictures.images)
    assert asked
    for thing, own in asked.items():
        assert len(own) > 1
        for colour, images in own.items():
            assert len(images) >= LEAST
            texts = [[" ".join(tokens_of(each)) for each in image.captions] for image in pictures.images]
            said = {number for number, own in enumerate(texts) if any(f"{colour} {thing}" in each for each in own)}
            assert images <= said


def test_a_matcher_that_sees_colours_is_right_and_a_blind_one_is_at_chance(pictures: Pictures) -> None:
    seeing, blind = (snippet_queries(Says(pictures, sees), pictures) for sees in (True, False))
    assert seeing is not None
    assert blind is not None
    metrics: Any = [each.metrics["snippet_queries"] for each in (seeing, blind)]
    assert metrics[0]["colour_and_thing"] == pytest.approx(100)
    # Every picture has the thing: without the colour all suit alike, and ties count against us.
    assert metrics[0]["thing_alone"] < 100
    assert metrics[1]["colour_and_thing"] == pytest.approx(metrics[1]["chance"])
    for each in (seeing, blind):
        report: Any = each.metrics
        queries = [own for colours in report["by_thing"].values() for own in colours.values()]
        assert len(queries) == each.counts["queries"]
        for name, value in report["snippet_queries"].items():
            assert value == pytest.approx(np.mean([own[name] for own in queries]))
    assert seeing.counts["queries"] >= 2 * seeing.counts["things"]
