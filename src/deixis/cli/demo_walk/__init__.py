"""The demo: from pictures to results on drawn scenes, with tables, drawings and a page.

Draw scenes → count them → extract features → train the two-branch embedding network → localize phrases with CCA and
with the network → align words with regions and generate a caption (DVSA). Every number is also in a result file.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from deixis.cli.demo_walk.aligner import image_store, show, train_aligner, train_captioner
from deixis.cli.demo_walk.networks import (
    Trained,
    draw_localizations,
    region_stores,
    train_phrases,
    train_sentences,
    with_regions,
)
from deixis.corpus import TYPES, Corpus, Image, write_corpus
from deixis.corpus.scenes import scenes_corpus
from deixis.corpus.statistics import Statistics, corpus_statistics
from deixis.features.extraction import extract
from deixis.features.feature_recipe import FeatureRecipe
from deixis.features.mapper import make_mapper
from deixis.features.store import FeatureStore
from deixis.figures.page import annotated, drawing_of, hits, page, paragraph, table
from deixis.files import atomic_write, write_text
from deixis.metrics.ranking import RECALL_AT
from deixis.metrics.results import save
from deixis.model import Model, store_images
from deixis.vision.drawing.pages import draw_annotations
from deixis.vision.drawing.typesetting import as_written

SHOWN_SCENES, SHOWN_QUERIES, SHOWN_HITS = 6, 4, 5

#: The smallest default backbone, on the whole picture.
FEATURES = FeatureRecipe(backbone="efficientnet-lite0", crops="squash")

#: Called with the number of images done, and of all images.
Progress = Callable[[int, int], None]
#: Prints a table: its title, columns and rows.
Say = Callable[[str, Sequence[str], Sequence[Sequence[str]]], None]


@dataclass(frozen=True)
class Outcome:
    """The files that the demo wrote."""

    page: Path
    drawings: tuple[Path, ...]
    results: tuple[Path, ...]
    #: Commands that show more of its runs.
    commands: tuple[str, ...]
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

    extract(corpus, make_mapper(FEATURES), image_store(out), progress=progress)
    store = FeatureStore(image_store(out))

    # Networks this small train in one thread: the slowest one runs in another process beside the others.
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        beside = processes.submit(train_captioner, scenes, out)
        sentences = train_sentences(corpus, store, out)
        network_rows = _network_rows(sentences)
        say("2. An embedding network (two-branch networks), test split", NETWORK_COLUMNS, network_rows)

        regional = with_regions(corpus)
        # The runs with regions know these scenes alone: commands that open them need this corpus.
        write_corpus(regional, out / "scenes", pictures=True)
        stores = region_stores(regional, out, progress)
        phrases = train_phrases(regional, stores, out)
        phrase_rows = _phrase_rows(phrases)
        say("3. Phrase localization (Flickr30k Entities, two-branch networks), test split", PHRASE_COLUMNS, phrase_rows)
        localizations = out / "localizations.png"
        with atomic_write(localizations) as stream:
            draw_localizations(regional, stores, phrases).save(stream, "PNG")

        aligner, captioner = train_aligner(regional, stores, out), beside.result()
    word_rows = _word_rows(aligner, captioner)
    say("4. Aligned words, and captions (DVSA), test split", WORD_COLUMNS, word_rows)
    at_work = show(regional, stores, store, aligner, captioner)
    aligned = out / "aligned.png"
    with atomic_write(aligned) as stream:
        at_work.drawing.save(stream, "PNG")
    results: list[Path] = []
    for trained in (sentences, *phrases, aligner, captioner):
        for result in trained.results:
            path = out / "results" / f"{trained.name} {result.protocol.name}.json".replace(" ", "-").lower()
            save(result, path)
            results.append(path)

    sections = [
        (
            "The corpus",
            paragraph(f"{drawn}, annotated as Flickr30k Entities is.") + table(*_statistics_table(statistics)),
        ),
        ("Captions, phrases and boxes", _scenes(shown, corpus, out)),
        ("An embedding network", paragraph(NETWORK_TEXT) + table(NETWORK_COLUMNS, network_rows)),
        ("What it finds", _queries(corpus.split("test"), sentences.model, store, out)),
        (
            "Phrase localization",
            paragraph(PHRASE_TEXT)
            + table(PHRASE_COLUMNS, phrase_rows)
            + drawing_of(localizations.name, "The regions that both models choose for the phrases of some captions"),
        ),
        (
            "Aligned words, and captions",
            paragraph(WORD_TEXT)
            + table(WORD_COLUMNS, word_rows)
            + drawing_of(aligned.name, f"A caption aligned with its scene. Generated caption: “{at_work.caption}”"),
        ),
    ]
    write_text(out / "index.html", page("Deixis demo", LEAD, sections))
    return Outcome(
        out / "index.html",
        (drawing, localizations, aligned),
        tuple(results),
        commands(out, scenes),
        time.monotonic() - start,
    )


def commands(out: Path, scenes: int = 1600) -> tuple[str, ...]:
    """Commands that draw more from the runs of the demo of so many scenes in `out`."""
    runs, features = out / "runs", out / "features"
    regional: list[str | Path] = ["--corpus", out / "scenes", "--features", features / "proposals"]
    whole: list[str | Path] = ["--corpus", f"scenes:{scenes}", "--features", features / "image"]
    sentences: list[str | Path] = [runs / "two-branch" / "demo-sentences", *whole]
    phrases = [runs / name / "demo-phrases" for name in ("entities-cca", "two-branch")]
    chains: list[str | Path] = ["--features", features / "chains"]
    words: list[list[str | Path]] = [
        ["figures", "site", runs / "dvsa" / "demo-alignment", *regional, "--out", out / "site"],
        ["figures", "map", *sentences, "--out", out / "map.html"],
        ["figures", "gallery", *sentences, "--out", out / "gallery"],
        ["localize", "compare", *phrases, *regional, *chains, "--out", out / "comparison.png"],
    ]
    return tuple(shlex.join(["deixis", *map(str, command)]) for command in words)


LEAD = (
    "Deixis draws scenes with captions, phrases, coreference chains and exact boxes, extracts features, trains several "
    "models, and evaluates them."
)
NETWORK_TEXT = (
    "Two branches that embed pictures (ImageNet features of EfficientNet-Lite0) and texts (tf-idf vectors) into one "
    "space, trained with the ranking loss, neighbourhood sampling and neighbourhood constraints of two-branch "
    "networks. I→T: a picture asks for its captions; T→I: a caption asks for its picture; S→S: a caption asks for "
    "another caption of the same picture. Recall@K is the percentage of queries with at least one correct answer "
    "among the first K. Ties count against the model."
)
PHRASE_TEXT = (
    "The region proposals of a picture are ranked for every phrase of its captions. A hit has an intersection over "
    "union of at least 0.5 with the ground-truth box. CCA is the method of Flickr30k Entities, the embedding network "
    "that of two-branch networks. The upper bound is the recall of all proposals together."
)
WORD_TEXT = (
    "The aligner learned which region each word describes from pictures and whole sentences only. A phrase is correct "
    "if its region has an intersection over union of at least 0.5 with the ground-truth box, word by word or smoothed "
    "into snippets. The captioner generates sentences: BLEU and CIDEr-D compare them with the captions; novel ones do "
    "not occur in training."
)
WORD_COLUMNS = ("metric", "%")
NETWORK_COLUMNS = ("direction", "R@1", "R@5", "R@10", "median rank")
PHRASE_COLUMNS = ("model", "R@1", "R@5", "R@10", "upper bound", "phrases")


def _network_rows(trained: Trained) -> list[list[str]]:
    figures: dict[str, Any] = {name: value for result in trained.results for name, value in result.metrics.items()}
    ways = (("I→T", "image_to_text"), ("T→I", "text_to_image"), ("S→S", "sentence_to_sentence"))
    return [
        [short, *(f"{figures[way][f'r@{k}']:.1f}" for k in RECALL_AT), f"{figures[way]['median_rank']:g}"]
        for short, way in ways
    ]


def _word_rows(aligner: Trained, captioner: Trained) -> list[list[str]]:
    alignment: Any = next(result.metrics for result in aligner.results if "alignment" in result.metrics)
    captions: Any = captioner.results[0].metrics
    rows = [
        ("aligner: correct phrases, word by word", alignment["word_alignment"]["overall"]["r@1"]),
        ("aligner: correct phrases, as snippets", alignment["alignment"]["overall"]["r@1"]),
        ("aligner: upper bound of its regions", alignment["alignment"]["overall"]["upper_bound"]),
        ("captioner: BLEU-1", captions["captions"]["bleu_1"]),
        ("captioner: BLEU-4", captions["captions"]["bleu_4"]),
        ("captioner: CIDEr-D", captions["captions"]["cider_d"]),
        ("captioner: novel captions", captions["novel"]),
    ]
    return [[name, f"{value:.1f}"] for name, value in rows]


def _phrase_rows(trained: Sequence[Trained]) -> list[list[str]]:
    rows = []
    for model in trained:
        metrics: Any = model.results[0].metrics
        row = metrics["localization"]["overall"]
        recalls = [f"{row[f'r@{k}']:.1f}" for k in RECALL_AT]
        rows.append([model.name, *recalls, f"{row['upper_bound']:.1f}", f"{row['instances']:,.0f}"])
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
    """Write a picture for the page; returns its relative path."""
    assert corpus.pictures is not None
    image = corpus[image_id]
    with atomic_write(out / "pictures" / image.file) as stream:
        stream.write(corpus.pictures.read(image))
    return f"pictures/{image.file}"


def _scenes(images: Sequence[Image], corpus: Corpus, out: Path) -> str:
    figures = [annotated(image, _picture_file(corpus, image.id, out)) for image in images]
    return f'<div class="scenes">{"".join(figures)}</div>'


def _queries(corpus: Corpus, model: Model, store: FeatureStore, out: Path) -> str:
    """The first captions of evenly spaced images, each with the pictures that the model ranks first."""
    features = list(store_images(store, [image.id for image in corpus]))
    parts = []
    for position in range(0, len(corpus), len(corpus) // SHOWN_QUERIES)[:SHOWN_QUERIES]:
        image = corpus.images[position]
        scores = model.score(features, [image.captions[0].text])[:, 0]
        best = np.argsort(-scores, kind="stable")[:SHOWN_HITS].tolist()
        pictures = [
            (_picture_file(corpus, corpus.images[row].id, out), float(scores[row]), row == position) for row in best
        ]
        parts.append(hits(as_written(image.captions[0].tokens), pictures))
    return "\n".join(parts)
