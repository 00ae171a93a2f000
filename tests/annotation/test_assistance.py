"""Proposals: of words where they are sure, of a localizer where a box is missing; and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from deixis.annotation.assistance import ModelAssistant
from deixis.annotation.mentions import given_document
from deixis.annotation.simulation.linking import by_head, by_model, score_links
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import CHAIN, COVERAGE, DRAWING, LINK, Document, Question
from deixis.corpus import Box, Corpus, Image, TrainingSet, open_corpus
from deixis.errors import InputError
from deixis.metrics.localization import PhraseQuery
from deixis.model import Localized
from deixis.text.coreference import CoreferenceScorer, MentionText, labelled_pairs, mention_texts, pair_features
from deixis.training.tools.coreference_training import CoreferenceTask, coreference_recipe, pairs_f1
from deixis.training.tools.tool_runs import train_tool
from tests.annotation.conftest import MakeBench
from tests.annotation.worlds import made_up_corpus


@pytest.fixture(scope="module")
def scenes() -> Corpus:
    return open_corpus("scenes")


@pytest.fixture(scope="module")
def trained(scenes: Corpus, tmp_path_factory: pytest.TempPathFactory) -> CoreferenceScorer:
    training = TrainingSet(scenes.with_images(scenes.split("train").images[:120]))
    recipe = msgspec.structs.replace(coreference_recipe(6), minimum_count=3, batch_size=256)
    task = CoreferenceTask(training, scenes.split("val").images[:10], recipe)
    train_tool(task, recipe, training.corpus, tmp_path_factory.mktemp("coreference") / "run", torch.device("cpu"))
    return task.export()


def test_training_gives_a_scorer_that_beats_the_head_noun(scenes: Corpus, trained: CoreferenceScorer) -> None:
    held_back = scenes.with_images(scenes.split("val").images[:60])
    learned, _ = score_links(held_back, by_model(trained))
    plain, _ = score_links(held_back, by_head)
    assert learned["pairs"]["f1"] > plain["pairs"]["f1"] + 2
    assert learned["b_cubed"]["f1"] > plain["b_cubed"]["f1"]
    assert pairs_f1(trained, held_back) > 0.8


def test_a_perfect_rule_links_all_that_the_workflow_can_link() -> None:
    corpus = made_up_corpus(20)

    def truth(document: Document):  # type: ignore[no-untyped-def]
        image = corpus[document.image.id]
        chains = {
            f"{number}:{phrase.start}-{phrase.end}": phrase.chain
            for number, caption in enumerate(image.captions)
            for phrase in caption.phrases
        }
        return lambda first, second: chains[first] == chains[second]

    figures, asked = score_links(corpus, truth)
    assert figures["pairs"]["f1"] == figures["b_cubed"]["f1"] == 100
    assert asked > 0


def test_the_order_of_a_pair_does_not_matter_and_files_keep_the_scorer(
    scenes: Corpus, trained: CoreferenceScorer, tmp_path: Path
) -> None:
    pairs = [(first, second) for image in scenes.images[:20] for first, second, _ in labelled_pairs(image)]
    forth = trained.probabilities(pairs)
    np.testing.assert_allclose(forth, trained.probabilities([(b, a) for a, b in pairs]), atol=1e-6)
    assert pair_features(*pairs[0]) == pair_features(*pairs[0][::-1])
    trained.save(tmp_path / "scorer.safetensors")
    np.testing.assert_allclose(
        CoreferenceScorer.load(tmp_path / "scorer.safetensors").probabilities(pairs), forth, atol=0.02
    )
    (tmp_path / "broken").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a coreference scorer"):
        CoreferenceScorer.load(tmp_path / "broken")


def test_mentions_know_their_rivals() -> None:
    texts = mention_texts(
        [(0, ["A", "man"], ("people",)), (0, ["a", "dog"], ("animals",)), (0, ["a", "boy"], ("people",))]
    )
    assert texts[2] == MentionText(("a", "boy"), ("people",), 1, 2)
    assert texts[1] == MentionText(("a", "dog"), ("animals",), 0, 1)


class Sure(CoreferenceScorer):
    """A scorer with a fixed opinion."""

    def __init__(self, opinion: float) -> None:
        self.opinion = opinion

    def probabilities(self, pairs: Sequence[tuple[MentionText, MentionText]]):  # type: ignore[no-untyped-def]
        return np.full(len(pairs), self.opinion, np.float32)


def document() -> Document:
    return given_document(made_up_corpus(1).images[0], "mentions")


@pytest.mark.parametrize(("opinion", "proposed"), [(0.95, "same"), (0.5, None), (0.05, "different")])
def test_words_propose_only_what_they_are_sure_of(opinion: float, proposed: str | None) -> None:
    shown = document()
    ids = tuple(mention.id for mention in shown.mentions)
    assistant = ModelAssistant(Sure(opinion))
    for task, mentions in ((LINK, ids[:2]), (CHAIN, ids[:4])):
        assert assistant.propose(Question(task, task, mentions), shown) == proposed
    assert assistant.propose(Question(COVERAGE, "coverage", ids[:1]), shown) is None
    assert assistant.propose(Question(DRAWING, "drawing", ids[:1]), shown) is None


def test_a_localizer_proposes_the_best_box_that_is_not_drawn_yet() -> None:
    boxes = np.array([[10, 10, 50, 50], [100, 100, 180, 160], [300, 300, 301, 400]], float)
    asked: list[str] = []

    def localize(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        asked.append(queries[0].text)
        return Localized(boxes, np.array([[0.9, 0.5, 2.0]]))

    shown = document()
    mention = shown.mentions[0]
    assistant = ModelAssistant(localizer=localize)

    def propose(*drawn: Box) -> object:
        return assistant.propose(Question(DRAWING, "drawing", (mention.id,), drawn), shown)

    assert propose() == Box(10, 10, 50, 50)
    assert asked == [mention.text]
    assert propose(Box(12, 12, 50, 50)) == Box(100, 100, 180, 160)
    assert propose(Box(12, 12, 50, 50), Box(100, 100, 180, 160)) is None

    def broken(image: Image, queries: Sequence[PhraseQuery]) -> Localized:
        raise InputError("store", "has no such image")

    assert ModelAssistant(localizer=broken).propose(Question(DRAWING, "drawing", (mention.id,)), shown) is None


def test_a_proposal_is_made_once_and_stays_with_its_task(make_bench: MakeBench, place: str) -> None:
    make_bench(images=2)
    made = []

    class Counting(ModelAssistant):
        def propose(self, question: Question, document: Document) -> str | None:
            made.append(question.key)
            return "same" if question.task == LINK else None

    with Workbench(place, assistant=Counting(), durable=False) as bench:
        worker = bench.add_worker("w")
        first = bench.next_task(worker, LINK)
        assert bench.next_task(worker, LINK) == first
        assert first is not None
        assert first.proposal == "same"
        assert len(made) == 1
        bench.submit(worker, first.token, "different")
        assert (bench.progress().tasks[LINK].proposed, bench.progress().tasks[LINK].accepted) == (1, 0)
