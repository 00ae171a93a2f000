"""Whether search is right about what matches and what is absent.

    python benchmarks/relevance.py FLICKR8K COCO_MINI --boxes FILE --classes FILE --work FOLDER [--split test]
        [--json results/search/relevance.json]

Pictures of both corpora are written into FOLDER and indexed; every query goes through the search engine.

Matches. Asked for are COCO's 80 classes, over those pictures of COCO_MINI whose boxes are in FILE (complete truth), and
the nouns that captions of at least ten pictures have (incomplete: captions leave things out). The F1 of what is called
a match is compared with that of the best cut of the same ranking, which knows the truth.

Absence. Collections of 200, 1,000 and 3,000 pictures are asked for what their captions mention and what they do not:

phrases    noun phrases of the collection's own captions; and of the other corpus' captions, those whose last word the
           collection's captions do not have in either number
words      frequent words that at least three pictures' captions have, and those that none has

With as many absent as present queries, `precision_of_absent` is how often "absent" is right, `right` how often either
answer is; `right_equally_common` weights the queries so that absent ones are as common words as present ones. Where a
split has too few pictures, the rest are training pictures, and `training_pictures` counts them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from reporting import write_report

from deixis.adapters.bundles import open_bundle
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.phrasing import phrasing
from deixis.adapters.search_model import Bytes, Pictures, Rows
from deixis.corpus import Corpus, Image, open_corpus, training_set
from deixis.metrics.results import versions
from deixis.search.calibration import alike_weights, caption_matches, frequent_words, noun_phrases
from deixis.search.engine import Ranking, SearchEngine
from deixis.search.indexing import index_folders
from deixis.search.queries import Query
from deixis.text.plurals import singular
from deixis.text.tokens import tokens_of

#: Pictures of the collections that are asked for what is absent, and how many of the smallest are drawn.
SIZES, DRAWS = (200, 1000, 3000), 3
#: Pictures that a noun needs to be asked for, and phrases of either kind at most.
MATCHES, PHRASES = 10, 2000
#: A noun is an everyday one if it is among so many of the most frequent words.
EVERYDAY = 1000
#: Queries by how many pictures match.
FREQUENCIES = ((1, 9), (10, 29), (30, 99), (100, 10**6))
#: Queries asked together.
TOGETHER = 16

Bools = NDArray[np.bool_]


class Remembering(OnnxModel):
    """Encodes each picture once, in however many collections it is."""

    def __init__(self, name: str) -> None:
        bundle = open_bundle(name)
        assert bundle is not None, f"{name} is no bundle"
        super().__init__(bundle)
        self._seen: dict[bytes, tuple[Any, Any]] = {}

    def embed_prepared(self, batch: Sequence[Bytes]) -> Pictures:
        keys = [hashlib.sha256(picture.tobytes()).digest() for picture in batch]
        new = [number for number, key in enumerate(keys) if key not in self._seen]
        if new:
            found = super().embed_prepared([batch[number] for number in new])
            self._seen.update((keys[number], own) for number, own in zip(new, zip(*found, strict=True), strict=True))
        return Pictures(*map(np.stack, zip(*(self._seen[key] for key in keys), strict=True)))


class Collection(NamedTuple):
    """Some pictures of a corpus, indexed; columns of what is asked are its images."""

    corpus: Corpus
    images: list[Image]
    training: int
    engine: SearchEngine
    #: The column of each picture in the engine's collection.
    columns: dict[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flickr8k", metavar="FLICKR8K")
    parser.add_argument("coco_mini", metavar="COCO_MINI")
    parser.add_argument("--boxes", type=Path, required=True, help="image_ids, offsets and classes of boxes (.npz)")
    parser.add_argument("--classes", type=Path, required=True, help="the classes' names, one a line")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--model", default="deixis-base")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    start = time.perf_counter()
    model = Remembering(options.model)
    corpora = [open_corpus(options.flickr8k), open_corpus(options.coco_mini)]
    splits = [[image for image in corpus.split(options.split) if image.captions] for corpus in corpora]
    record: dict[str, Any] = {"model": str(model.identity), "split": options.split, "relevance": model.relevance}
    record["corpora"] = {corpus.name: corpus.split_hash(options.split) for corpus in corpora}
    names = options.classes.read_text().split("\n")[:-1]
    shown, boxed = box_classes(options.boxes, splits[1], len(names))
    with_boxes = collection(model, corpora[1], [splits[1][place] for place in boxed], 0, options.work / "boxes")
    record["classes"] = judge_matches(all_odds(with_boxes, [(name,) for name in names]), shown, names)
    print(record["classes"], flush=True)
    absence: list[dict[str, Any]] = []
    for corpus, own, other in zip(corpora, splits, splits[::-1], strict=True):
        whole = collection(model, corpus, own, 0, options.work / corpus.name)
        nouns = caption_nouns(model, own)
        record[f"nouns, {corpus.name}"] = judge_matches(
            all_odds(whole, nouns), caption_matches(own, nouns), [noun for (noun,) in nouns], everyday(model)
        )
        print(record[f"nouns, {corpus.name}"], flush=True)
        for size in SIZES:
            for draw in range(DRAWS if size == min(SIZES) else 1):
                random = np.random.default_rng(draw)
                images, training = drawn(corpus, own, size, random)
                some = collection(model, corpus, images, training, options.work / f"{corpus.name}-{size}-{draw}")
                absence += [{**each, "draw": draw} for each in judge_absence(some, model, other)]
                print(absence[-2:], flush=True)
    record["absence"] = absence
    record["seconds"] = round(time.perf_counter() - start, 1)
    record["command"] = (
        f"python benchmarks/relevance.py FLICKR8K COCO_MINI --boxes coco_mini/boxes_val_test.npz "
        f"--classes coco_train2017/classes.txt --work FOLDER --split {options.split}"
    )
    record["versions"] = versions()
    write_report(record, options.json)


def collection(model: OnnxModel, corpus: Corpus, images: Sequence[Image], training: int, work: Path) -> Collection:
    """Index the pictures of images; an index that is there is brought up to date."""
    assert corpus.pictures is not None, f"{corpus.name} has no pictures"
    (work / "pictures").mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        file = work / "pictures" / f"{number:06}.jpg"
        if not file.exists():
            file.write_bytes(corpus.pictures.read(image))
    report = index_folders(work / "index", [work / "pictures"], model, "deixis-base")
    assert report.files == len(images), report.unreadable
    engine = SearchEngine(work / "index", model)
    columns = {
        number: int(Path(os.fsdecode(path)).stem)
        for number in engine.collection.ids.tolist()
        for path in engine.collection.paths(number)
    }
    return Collection(corpus, list(images), training, engine, columns)


def rankings(asked: Collection, queries: Sequence[tuple[str, ...]], count: int) -> Iterator[Ranking]:
    """What the engine answers."""
    for start in range(0, len(queries), TOGETHER):
        texts = [" ".join(query) for query in queries[start : start + TOGETHER]]
        terms = asked.engine.terms([Query(text, (text,), ()) for text in texts], [None] * len(texts))
        yield from asked.engine.rank(terms, count)


def said_absent(asked: Collection, queries: Sequence[tuple[str, ...]]) -> Bools:
    return np.array([ranking.odds[0] < 0 for ranking in rankings(asked, queries, 1)], bool)


def all_odds(asked: Collection, queries: Sequence[tuple[str, ...]]) -> Rows:
    """The log odds of every picture for every query, `(queries, images)`."""
    odds = np.empty((len(queries), len(asked.images)), np.float32)
    for row, ranking in zip(odds, rankings(asked, queries, len(asked.images)), strict=True):
        row[[asked.columns[number] for number in ranking.ids.tolist()]] = ranking.odds
    return odds


def judge_matches(
    odds: Rows, truth: Bools, names: Sequence[str], common: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """F1, precision and recall of what is called a match, and the F1 of the best cut of each ranking.

    Args:
        odds: log odds of a match `(queries, pictures)`.
        truth: what matches, of the same shape.
        common: the queries that are everyday ones.
    """
    counts = truth.sum(1)
    right = ((odds >= 0) & truth).sum(1)
    called = (odds >= 0).sum(1)
    precision, recall = right / np.maximum(called, 1), right / np.maximum(counts, 1)
    f1 = 2 * right / np.maximum(called + counts, 1)
    order = np.argsort(-odds, 1, kind="stable")
    hits = np.cumsum(np.take_along_axis(truth, order, 1), 1)
    best = (2 * hits / (np.arange(1, truth.shape[1] + 1) + counts[:, None])).max(1)
    absent = (called == 0) & (counts >= MATCHES)

    def mean(chosen: Bools) -> dict[str, Any]:
        figures = {"f1": f1, "best_f1": best, "precision": precision, "recall": recall}
        record: dict[str, Any] = {name: round(float(values[chosen].mean()), 4) for name, values in figures.items()}
        return {"queries": int(chosen.sum()), **record, "share_of_best": round(record["f1"] / record["best_f1"], 4)}

    there = counts > 0
    by_frequency = {
        f"{low}–{high}" if high < 10**6 else f"{low} or more": mean(chosen)
        for low, high in FREQUENCIES
        if (chosen := (counts >= low) & (counts <= high)).any()
    }
    return {
        "pictures": truth.shape[1],
        **mean(there),
        "by_matching_pictures": by_frequency,
        "said_absent_with_10_or_more": [name for name, bad in zip(names, absent, strict=True) if bad],
        **({"everyday": mean(there & np.array([name in common for name in names]))} if common else {}),
    }


def judge_absence(asked: Collection, model: OnnxModel, other: Sequence[Image]) -> list[dict[str, Any]]:
    vocabulary, random = model.vocabulary, np.random.default_rng(0)
    mentioned = {
        singular(token) for image in asked.images for caption in image.captions for token in tokens_of(caption)
    }
    own, others = (noun_phrases(vocabulary, images) for images in (asked.images, other))
    words: list[tuple[str, ...]] = [(word,) for word in frequent_words(vocabulary)]
    matching = dict(zip(words, caption_matches(asked.images, words).sum(1).tolist(), strict=True))
    kinds: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {
        "phrases": (own, [phrase for phrase in others if singular(phrase[-1]) not in mentioned]),
        "words": (
            [word for word in words if matching[word] >= 3],
            [word for word in words if singular(word[0]) not in mentioned],
        ),
    }
    record = []
    for kind, queries in kinds.items():
        present, absent = ([some[place] for place in random.permutation(len(some))[:PHRASES]] for some in queries)
        missed, right = (said_absent(asked, some) for some in (present, absent))
        common = [
            np.array([phrasing(" ".join(query), model).commonness for query in some], np.float32)
            for some in (present, absent)
        ]
        weights = alike_weights(common[0], common[1]), alike_weights(common[1], common[0])
        said, wrong = float(right.mean()), float(missed.mean())
        record.append(
            {
                "collection": asked.corpus.name,
                "pictures": len(asked.images),
                "training_pictures": asked.training,
                "kind": kind,
                "present": len(present),
                "absent": len(absent),
                "precision_of_absent": round(said / max(1e-9, said + wrong), 4),
                "recall_of_absent": round(said, 4),
                "present_said_absent": round(wrong, 4),
                "right": round((said + 1 - wrong) / 2, 4),
                "right_equally_common": round(float(weights[1] @ right + weights[0] @ ~missed) / 2, 4),
                "examples": {"absent": [" ".join(query) for query in absent[:5]]},
            }
        )
    return record


def drawn(corpus: Corpus, own: Sequence[Image], size: int, random: np.random.Generator) -> tuple[list[Image], int]:
    """So many pictures of a split, and if that has too few, training pictures besides."""
    images = [own[place] for place in random.permutation(len(own))[:size]]
    training = [image for image in training_set(corpus).corpus if image.captions]
    more = [training[place] for place in random.permutation(len(training))[: size - len(images)]]
    return [*images, *more], len(more)


def caption_nouns(model: OnnxModel, images: Sequence[Image]) -> list[tuple[str, ...]]:
    """The nouns of captions, in the singular, that enough pictures match."""
    heads = {singular(phrase[-1]) for phrase in noun_phrases(model.vocabulary, images)}
    nouns = [(head,) for head in sorted(heads) if head in model.vocabulary]
    counts = caption_matches(images, nouns).sum(1)
    return [noun for noun, count in zip(nouns, counts, strict=True) if count >= MATCHES]


def everyday(model: OnnxModel) -> frozenset[str]:
    return frozenset(singular(word) for word in model.vocabulary.words[:EVERYDAY])


def box_classes(file: Path, images: Sequence[Image], count: int) -> tuple[Bools, list[int]]:
    """Which classes have a box in which images `(classes, images with boxes)`, and the places of those images."""
    boxes = dict(np.load(file))
    places = {str(number): place for place, number in enumerate(boxes["image_ids"].tolist())}
    having = [number for number, image in enumerate(images) if image.id in places]
    shown = np.zeros((count, len(having)), bool)
    for column, number in enumerate(having):
        place = places[images[number].id]
        shown[boxes["classes"][boxes["offsets"][place] : boxes["offsets"][place + 1]], column] = True
    return shown, having


if __name__ == "__main__":
    main()
