"""The demo: the whole job that exists so far, on the embedded corpus, with figures, a drawing and a page to look at.

Draw scenes → count them → extract features of their pictures → learn a first model on the split `train` → rank the
splits `test` and `unseen` → see what it finds, and what word order and counting cost it → train the embedding network
of the two-branch paper → point at phrases with CCA and with a network → align the words of a sentence with regions and
write a caption (the DVSA paper). Every figure also goes to a result file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from deixis.cli.demo_walk.aligner import show, train_aligner, train_captioner
from deixis.cli.demo_walk.first_model import Matrix, WordRegression
from deixis.cli.demo_walk.networks import (
    Trained,
    draw_localizations,
    region_stores,
    train_phrases,
    train_sentences,
    with_regions,
)
from deixis.corpus import TYPES, Corpus, Image
from deixis.corpus.scenes import Swap, count_swaps, order_swaps, scenes_corpus
from deixis.corpus.statistics import Statistics, corpus_statistics
from deixis.corpus.training import training_set
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from deixis.figures.page import annotated, drawing_of, hits, page, paragraph, table
from deixis.files import atomic_write, write_text
from deixis.metrics.ranking import RECALL_AT, TIES, Ranking, evaluate_ranking, random_figures
from deixis.metrics.results import Protocol, Result, corpus_reference, make_result, save
from deixis.metrics.score_blocks import EmbeddingScores
from deixis.vision.drawing import draw_annotations
from deixis.vision.typesetting import as_written

#: Splits that are ranked. `unseen` holds combinations of words that never meet in training.
RANKED = ("test", "unseen")
SHOWN_SCENES, SHOWN_QUERIES, SHOWN_HITS = 6, 4, 5

#: The smallest of the default backbones sees all of each picture.
FEATURES = FeatureRecipe(backbone="efficientnet-lite0", crops="squash")
MODEL = "features"

#: Shows how far the extraction is: images done, all images.
Progress = Callable[[int, int], None]
#: Shows a table to the person: its title, columns and rows.
Say = Callable[[str, Sequence[str], Sequence[Sequence[str]]], None]


@dataclass(frozen=True)
class Outcome:
    """What the demo leaves behind."""

    page: Path
    drawings: tuple[Path, ...]
    results: tuple[Path, ...]
    seconds: float


def run_demo(out: Path, say: Say, progress: Progress, scenes: int = 1600) -> Outcome:
    """Run the demo into the folder `out`; `say` gets each table as it is ready."""
    start = time.monotonic()
    corpus = scenes_corpus(scenes)
    statistics = corpus_statistics(corpus)
    drawn = f"{statistics.images:,} drawn scenes with {statistics.captions:,} captions"
    say(f"1. The corpus: {drawn}", *_statistics_table(statistics))

    drawing = out / "scene.png"
    shown = corpus.split("test").images[:SHOWN_SCENES]
    with atomic_write(drawing) as stream:
        draw_annotations(corpus, shown[0].id).save(stream, "PNG")

    extract(corpus, make_mapper(FEATURES), out / "features" / "image", progress=progress)
    store = FeatureStore(out / "features" / "image")

    def features_of(images: Iterable[Image]) -> Matrix:
        rows = store.image_vectors()[store.numbers(image.id for image in images)]
        return np.asarray(rows, dtype=np.float32)

    training = training_set(corpus)
    validation = corpus.split("val")
    model = WordRegression().fit(
        features_of(training),
        training,
        features_of(validation),
        [[caption.text for caption in image.captions] for image in validation],
    )

    results: list[Path] = []
    ranking_rows: list[Sequence[str]] = []
    twin_rows: list[Sequence[str]] = []
    for name in RANKED:
        split = corpus.split(name)
        vectors = model.embed_images(features_of(split))
        began = time.monotonic()
        ranking = rank(split, vectors, model)
        chance = Ranking(
            random_figures([len(image.captions) for image in split], ranking.image_to_text.candidates),
            random_figures([1] * ranking.text_to_image.queries, ranking.text_to_image.candidates),
        )
        ranking_rows += [*_ranking_rows(f"{name}: chance", chance), *_ranking_rows(f"{name}: {MODEL}", ranking)]
        twins = {kind: _twins_told(swaps(split), split, vectors, model) for kind, swaps in _TWINS.items()}
        twin_rows += [[f"{name}: {kind}", f"{told:.1f}", str(number)] for kind, (told, number) in twins.items()]
        path = out / "results" / f"{name}.json"
        save(_result(corpus, name, ranking, twins, time.monotonic() - began), path)
        results.append(path)
    say("2. A first model: features of the picture → words of its captions", RANKING_COLUMNS, ranking_rows)
    say("3. What it cannot know: order and number", TWIN_COLUMNS, twin_rows)

    # Networks this small learn in one thread: the one that takes longest does so beside the others.
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        beside = processes.submit(train_captioner, corpus, store, out)
        sentences = train_sentences(corpus, store, out)
        network_rows = _network_rows(sentences)
        say("4. An embedding network (the two-branch paper), on the split test", NETWORK_COLUMNS, network_rows)

        regional = with_regions(corpus)
        stores = region_stores(regional, out, progress)
        phrases = train_phrases(regional, stores, out)
        phrase_rows = _phrase_rows(phrases)
        say("5. Pointing at phrases (Entities, two-branch), on the split test", PHRASE_COLUMNS, phrase_rows)
        localizations = out / "localizations.png"
        with atomic_write(localizations) as stream:
            draw_localizations(regional, stores, phrases).save(stream, "PNG")

        aligner, captioner = train_aligner(regional, stores, out), beside.result()
    word_rows = _word_rows(aligner, captioner)
    say("6. Words for regions, and captions (the DVSA paper), on the split test", WORD_COLUMNS, word_rows)
    at_work = show(regional, stores, store, aligner, captioner)
    aligned = out / "aligned.png"
    with atomic_write(aligned) as stream:
        at_work.drawing.save(stream, "PNG")
    for each in (sentences, *phrases, aligner, captioner):
        for result in each.results:
            path = out / "results" / f"{each.name} {result.protocol.name}.json".replace(" ", "-").lower()
            save(result, path)
            results.append(path)

    test = corpus.split("test")
    vectors = model.embed_images(features_of(test))
    sections = [
        (
            "The corpus",
            paragraph(f"{drawn}, annotated as Flickr30k Entities is.") + table(*_statistics_table(statistics)),
        ),
        ("Captions, phrases and boxes", _scenes(shown, corpus, out)),
        ("A first model", paragraph(MODEL_TEXT) + table(RANKING_COLUMNS, ranking_rows)),
        ("What it finds", _queries(test, vectors, model, out)),
        ("What it cannot know", paragraph(TWIN_TEXT) + table(TWIN_COLUMNS, twin_rows)),
        ("An embedding network", paragraph(NETWORK_TEXT) + table(NETWORK_COLUMNS, network_rows)),
        (
            "Pointing at phrases",
            paragraph(PHRASE_TEXT)
            + table(PHRASE_COLUMNS, phrase_rows)
            + drawing_of(localizations.name, "The regions that both find for the phrases of some captions"),
        ),
        (
            "Words for regions, and captions",
            paragraph(WORD_TEXT)
            + table(WORD_COLUMNS, word_rows)
            + drawing_of(
                aligned.name, f"A caption laid over its scene. What the captioner says of it: “{at_work.caption}”"
            ),
        ),
    ]
    write_text(out / "index.html", page("Deixis demo", LEAD, sections))
    return Outcome(out / "index.html", (drawing, localizations, aligned), tuple(results), time.monotonic() - start)


LEAD = (
    "Scenes drawn by the package itself, captioned, with phrases, coreference chains and exact boxes; "
    "real features of their pictures, a first model learned on them, and the figures of the evaluation room."
)
MODEL_TEXT = (
    "Ridge regression from the ImageNet features of a picture (EfficientNet-Lite0) to the words of its captions. "
    "I→T: a picture asks for its captions; T→I: a caption asks for its picture. Recall@K is the percentage of queries "
    "with at least one right answer among the first K, mR the mean of the six. Ties count against the model."
)
TWIN_TEXT = (
    "Each caption here has a twin in nearly the same words that is false: roles exchanged, or one more or fewer. To a "
    "model without word order most exchanged twins are the same sentence, and a tie is not a right answer."
)
NETWORK_TEXT = (
    "Two branches that end in one space, learned by the ranking loss of the two-branch paper with neighbourhood "
    "sampling and constraints, on the same features; texts are tf-idf vectors. S→S: a caption asks for another of the "
    "same picture."
)
PHRASE_TEXT = (
    "The regions of a picture, proposed by a network that was trained on photos, are ranked for every phrase of its "
    "captions. A hit overlaps the drawn box by half (intersection over union). CCA is the method of the Entities "
    "paper, the embedding network that of the two-branch paper. No model can do better than the proposals allow."
)
WORD_TEXT = (
    "The aligner learned from pictures and whole sentences alone which region each word is about. Its figures are the "
    "shares of phrases whose region covers the drawn box by half, word by word and smoothed into snippets. The "
    "captioner learned to write sentences: BLEU and CIDEr-D compare them with people's; a novel one is no training "
    "caption."
)
WORD_COLUMNS = ("figure", "%")
NETWORK_COLUMNS = ("direction", "R@1", "R@5", "R@10", "median rank")
PHRASE_COLUMNS = ("model", "R@1", "R@5", "R@10", "upper bound", "phrases")
RANKING_COLUMNS = ("split: model", "R@1", "R@5", "R@10", "median rank", "mR")
TWIN_COLUMNS = ("split: twin", "true caption scores higher, %", "pairs")
_TWINS: dict[str, Callable[[Corpus], list[Swap]]] = {"order exchanged": order_swaps, "another count": count_swaps}


def rank(corpus: Corpus, images: Matrix, model: WordRegression) -> Ranking:
    """Both directions over all images of a corpus and their captions."""
    texts = [caption.text for image in corpus for caption in image.captions]
    owners = np.repeat(np.arange(len(corpus)), [len(image.captions) for image in corpus])
    return evaluate_ranking(EmbeddingScores(images, model.embed_texts(texts)), owners)


def _twins_told(swaps: list[Swap], corpus: Corpus, images: Matrix, model: WordRegression) -> tuple[float, int]:
    """Percent of captions that score higher than their false twin, and of how many."""
    rows = {image.id: row for row, image in enumerate(corpus)}
    mine = images[[rows[swap.image_id] for swap in swaps]]
    true = (mine * model.embed_texts([swap.true for swap in swaps])).sum(1)
    false = (mine * model.embed_texts([swap.false for swap in swaps])).sum(1)
    # Words in another order sum up in another order: a millionth is rounding, not knowledge.
    return 100 * float(np.mean(true > false + 1e-6)), len(swaps)


def _result(
    corpus: Corpus, split: str, ranking: Ranking, twins: dict[str, tuple[float, int]], duration: float
) -> Result:
    metrics = {
        **ranking.as_dict(),
        "true_caption_scores_higher": {kind: told for kind, (told, _) in twins.items()},
    }
    protocol = Protocol("image-text ranking", TIES, {"model": f"{FEATURES.backbone} to words by ridge regression"})
    return make_result(protocol, metrics, corpus=corpus_reference(corpus, split), seed=0, duration=duration)


def _ranking_rows(name: str, ranking: Ranking) -> list[list[str]]:
    """A row a direction; the mean of the six recalls stands in the first."""
    directions = (("I→T", ranking.image_to_text, f"{ranking.mean_recall:.1f}"), ("T→I", ranking.text_to_image, ""))
    return [
        [f"{name}, {direction}", *(f"{figures.recall[k]:.1f}" for k in RECALL_AT), f"{figures.median_rank:g}", mean]
        for direction, figures, mean in directions
    ]


def _network_rows(trained: Trained) -> list[list[str]]:
    figures: dict[str, Any] = {name: value for result in trained.results for name, value in result.metrics.items()}
    ways = (("I→T", "image_to_text"), ("T→I", "text_to_image"), ("S→S", "sentence_to_sentence"))
    return [
        [short, *(f"{figures[way][f'r@{k}']:.1f}" for k in RECALL_AT), f"{figures[way]['median_rank']:g}"]
        for short, way in ways
    ]


def _word_rows(aligner: Trained, captioner: Trained) -> list[list[str]]:
    found: Any = aligner.results[0].metrics
    said: Any = captioner.results[0].metrics
    rows = [
        ("aligner: phrases right, word by word", found["word_alignment"]["overall"]["r@1"]),
        ("aligner: phrases right, as snippets", found["alignment"]["overall"]["r@1"]),
        ("aligner: what its regions allow", found["alignment"]["overall"]["upper_bound"]),
        ("captioner: BLEU-1", said["captions"]["bleu_1"]),
        ("captioner: BLEU-4", said["captions"]["bleu_4"]),
        ("captioner: CIDEr-D", said["captions"]["cider_d"]),
        ("captioner: novel captions", said["novel"]),
    ]
    return [[name, f"{value:.1f}"] for name, value in rows]


def _phrase_rows(trained: Sequence[Trained]) -> list[list[str]]:
    rows = []
    for each in trained:
        metrics: Any = each.results[0].metrics
        row = metrics["localization"]["overall"]
        recalls = [f"{row[f'r@{k}']:.1f}" for k in RECALL_AT]
        rows.append([each.name, *recalls, f"{row['upper_bound']:.1f}", f"{row['instances']:,.0f}"])
    return rows


def _statistics_table(statistics: Statistics) -> tuple[Sequence[str], list[Sequence[str]]]:
    columns = ("type", "chains", "mentions / chain", "boxes / chain", "% of images")
    lines = [
        (
            name,
            f"{row.chains:,}",
            f"{row.mentions_per_chain:.2f}",
            f"{row.boxes_per_chain:.2f}",
            f"{row.images_mentioning:.1f}",
        )
        for name in TYPES
        if (row := statistics.by_type.get(name))
    ]
    total = (f"{statistics.mentions_per_chain:.2f}", f"{statistics.boxes_per_chain:.2f}", "")
    return columns, [*lines, ("all", f"{statistics.chains:,}", *total)]


def _picture_file(corpus: Corpus, image_id: str, out: Path) -> str:
    """Write a picture for the page and give its address there."""
    assert corpus.pictures is not None
    image = corpus[image_id]
    with atomic_write(out / "pictures" / image.file) as stream:
        stream.write(corpus.pictures.read(image))
    return f"pictures/{image.file}"


def _scenes(images: Sequence[Image], corpus: Corpus, out: Path) -> str:
    figures = [annotated(image, _picture_file(corpus, image.id, out)) for image in images]
    return f'<div class="scenes">{"".join(figures)}</div>'


def _queries(corpus: Corpus, vectors: Matrix, model: WordRegression, out: Path) -> str:
    """The first captions of evenly spaced images, each with the pictures that the model puts first."""
    parts = []
    for number in range(0, len(corpus), len(corpus) // SHOWN_QUERIES)[:SHOWN_QUERIES]:
        image = corpus.images[number]
        scores = vectors @ model.embed_texts([image.captions[0].text])[0]
        best = np.argsort(-scores, kind="stable")[:SHOWN_HITS]
        found = [corpus.images[row] for row in best]
        pictures = [
            (_picture_file(corpus, hit.id, out), float(scores[row]), hit.id == image.id)
            for row, hit in zip(best, found, strict=True)
        ]
        parts.append(hits(as_written(image.captions[0].tokens), pictures))
    return "\n".join(parts)
