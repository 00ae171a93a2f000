"""Training of the chunker and the types: the loss is the likelihood it says, and what is learned carries over."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deixis.corpus import Corpus  # noqa: E402
from deixis.corpus.leak_guard import training_set  # noqa: E402
from deixis.corpus.scenes import scenes_corpus  # noqa: E402
from deixis.metrics.phrase_chunking import score_types  # noqa: E402
from deixis.text.chunker import SHAPES, row_maps, view_rows  # noqa: E402
from deixis.training.tools.chunker_training import (  # noqa: E402
    ChunkerNetwork,
    ChunkerRecipe,
    ChunkerTask,
    chunker_recipe,
    export,
    sequence_loss,
)
from deixis.training.tools.entity_types_training import learn_entity_types  # noqa: E402
from deixis.training.tools.tool_runs import train_tool  # noqa: E402
from deixis.training.trainer import Progress  # noqa: E402

VOCABULARIES = {"word": ["a", "dog", "red"], "ending2": ["og", "ed"], "ending3": ["dog"], "beginning": ["dog", "red"]}


def network(depth: int = 3) -> ChunkerNetwork:
    torch.manual_seed(1)
    rows = {view: len(strings) + 2 for view, strings in VOCABULARIES.items()} | {"shape": SHAPES}
    made = ChunkerNetwork(rows, msgspec.structs.replace(chunker_recipe(), hidden=8, depth=depth)).eval()
    for parameter in (made.pairs, made.first, made.last):
        torch.nn.init.normal_(parameter)
    return made.requires_grad_(False)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_exported_chunker_scores_as_the_network_does(depth: int) -> None:
    learned = network(depth)
    captions = [["A", "red", "dog"], ["a", "cat", ",", "a", "DOG", "3rd"], ["dog"]]
    scores, starts = export(learned, VOCABULARIES).scores(captions)
    for tokens, start in zip(captions, starts, strict=True):
        rows = torch.tensor([[view_rows(token, row_maps(VOCABULARIES)) for token in tokens]])
        expected = learned(rows)[0].numpy()
        np.testing.assert_allclose(scores[start : start + len(tokens)], expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_negative_log_likelihood_over_all_sequences() -> None:
    learned = network()
    scores = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    labels, lengths = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]), (4, 2)
    real = torch.tensor([[1.0] * length + [0.0] * (4 - length) for length in lengths])

    def value(row: int, sequence: tuple[int, ...]) -> torch.Tensor:
        own = sum(scores[row, place, label] for place, label in enumerate(sequence))
        pairs = sum(learned.pairs[a, b] for a, b in itertools.pairwise(sequence))
        return own + pairs + learned.first[sequence[0]] + learned.last[sequence[-1]]

    expected = 0.0
    for row, length in enumerate(lengths):
        total = torch.logsumexp(
            torch.stack([value(row, sequence) for sequence in itertools.product(range(3), repeat=length)]), 0
        )
        expected += float(total - value(row, tuple(labels[row, :length].tolist())))
    assert float(sequence_loss(scores, labels, real, learned)) == pytest.approx(expected / sum(lengths), rel=1e-5)


@pytest.fixture(scope="module")
def scenes() -> Corpus:
    return scenes_corpus(120)


def chunker_task(corpus: Corpus) -> tuple[ChunkerTask, ChunkerRecipe]:
    recipe = msgspec.structs.replace(chunker_recipe(4), batch_size=8, hidden=16, depth=2, minimum_word_count=2)
    recipe = msgspec.structs.replace(
        recipe, schedule=msgspec.structs.replace(recipe.schedule, learning_rate=1e-2, validate_every=4)
    )
    return ChunkerTask(training_set(corpus), corpus.split("val"), recipe), recipe


def test_learns_the_phrases_of_the_drawn_scenes(scenes: Corpus, tmp_path: Path) -> None:
    task, recipe = chunker_task(scenes)
    report = train_tool(task, recipe, scenes, tmp_path / "run", torch.device("cpu"))
    assert report.epoch == 4
    assert report.figures["f1"] > 0.95
    assert task.validate() == pytest.approx(report.figures)


def test_an_interrupted_training_ends_with_the_same_chunker(tmp_path: Path) -> None:
    small = scenes_corpus(40)

    def trained(folder: str, progress: Callable[[Progress], None] | None = None) -> dict[str, np.ndarray]:
        task, recipe = chunker_task(small)
        train_tool(task, recipe, small, tmp_path / folder, torch.device("cpu"), progress=progress)
        return task.export().arrays

    def interrupt(at: Progress) -> None:
        if at.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained("interrupted", interrupt)
    continued, whole = trained("interrupted"), trained("whole")
    assert all(np.array_equal(array, continued[name]) for name, array in whole.items())


def test_learns_the_types_of_the_drawn_scenes(scenes: Corpus) -> None:
    pytest.importorskip("sklearn")
    types = learn_entity_types(training_set(scenes))
    captions = [caption for image in scenes.split("val") for caption in image.captions]
    pairs = [
        (phrase.types, names)
        for caption in captions
        for phrase, names in zip(
            caption.phrases, types.types_in(caption.tokens, [(p.start, p.end) for p in caption.phrases]), strict=True
        )
    ]
    figures = score_types(pairs)
    assert figures["exact"] > 0.98
