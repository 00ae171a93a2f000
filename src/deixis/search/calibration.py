"""Fitting the curve of `relevance.py` on the validation pictures of a captioned corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from deixis.adapters.bundles import BACKGROUND, Manifest, Relevance, file_record, read_bundle, write_manifest
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.scoring import scores
from deixis.adapters.search_model import Bytes, Pictures, Rows, Texts
from deixis.corpus import Corpus, Image, training_set
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write
from deixis.search.relevance import USUAL_SIZE, best_known
from deixis.text.chunker import Chunker
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import Vocabulary
from deixis.vision.reading import read_picture

Tokens = tuple[str, ...]

#: Validation pictures and background pictures at most, and how many are encoded at a time.
PICTURES, BACKGROUND_PICTURES, BATCH = 1000, 1500, 16
#: Training images whose phrases are looked through, and phrases of either kind at most.
IMAGES, PHRASES = 6000, 2000
#: Pictures of the collections that phrases are looked for in.
SIZES = (50, 200, 1000)
#: Of pairs of pictures, the share that is alike.
ALIKE = 0.01


def calibrate(folder: Path, corpus: Corpus) -> Manifest:
    """Fit and keep the relevance of a bundle; a corpus that has too few pictures or words is a `DeixisError`.

    The background, and phrases that validation pictures do not show, are drawn from the corpus' training images, so it
    should be what the model was trained on.
    """
    model, random = OnnxModel(read_bundle(folder)), np.random.default_rng(0)
    images = [image for image in corpus.split("val") if image.captions][:PICTURES]
    training = list(training_set(corpus).corpus)
    there = corpus.pictures
    trained = [image for image in training if there is not None and there.has(image)]
    background = [trained[place] for place in random.permutation(len(trained))[:BACKGROUND_PICTURES]]
    others = [training[place] for place in random.permutation(len(training))[:IMAGES]]
    shown, absent = held_out_phrases(model.vocabulary, images, others, random)
    if len(shown) < 2 or len(absent) < 2:
        raise DeixisError(f"the validation split of {corpus.name} has too few pictures and phrases to calibrate on")
    rows, pictures = embedded(model, corpus, background).rows, embedded(model, corpus, images)
    if len(pictures.rows) != len(images):
        raise DeixisError(f"of {len(images)} validation pictures of {corpus.name} {len(pictures.rows)} can be read")
    own = showing(images, shown, random)
    relevance = fitted(pictures, model.embed_queries(shown), own, model.embed_queries(absent), rows, random)
    with atomic_write(folder / BACKGROUND) as stream:
        np.save(stream, rows.astype(np.float16))
    manifest = model.bundle.manifest
    files = {**manifest.files, BACKGROUND: file_record(folder / BACKGROUND)}
    manifest = msgspec.structs.replace(manifest, relevance=relevance, files=files)
    write_manifest(folder, manifest)
    return manifest


def fitted(
    pictures: Pictures,
    shown: Texts,
    own: NDArray[np.int64],
    absent: Texts,
    background: Rows,
    random: np.random.Generator,
) -> Relevance:
    """The curve between the best scores of phrases that pictures show and of phrases that none of them does, in
    collections of several sizes.

    Args:
        own: `(shown,)`, a picture that shows each phrase and so is in its collections.
    """
    count = len(pictures.rows)
    if count < 2:
        raise DeixisError("there are too few pictures to calibrate on")
    found, missed = scores(shown, pictures), scores(absent, pictures)
    hits = found[np.arange(len(own)), own]
    known = best_known(np.concatenate([shown.rows, absent.rows]), background)
    usual = 0.0 if known is None else float(known.mean())
    moved = np.zeros(len(shown.rows) + len(absent.rows)) if known is None else known - usual
    columns = []
    for size in sorted({min(size, count) for size in SIZES}):
        some = random.permutation(count)[:size]
        best = np.concatenate([np.maximum(hits, found[:, some].max(1)), missed[:, some].max(1)])
        columns.append(np.stack([best, moved, np.full(len(best), np.log(size / USUAL_SIZE))], 1))
    present = np.tile(np.arange(len(moved)) < len(shown.rows), len(columns))
    curve = LogisticRegression(C=1e6, class_weight="balanced", max_iter=1000).fit(np.concatenate(columns), present)
    slope, move, growth = curve.coef_[0].tolist()
    if slope <= 0:
        raise DeixisError("the model's scores do not tell phrases that pictures show from phrases that they do not")
    pairs = (pictures.rows @ pictures.rows.T)[np.triu_indices(len(pictures.rows), 1)]
    return Relevance(
        threshold=-float(curve.intercept_[0]) / slope,
        slope=slope,
        usual=usual,
        share=-move / slope,
        growth=max(0.0, -growth / slope),
        alike=float(np.quantile(pairs, 1 - ALIKE)),
    )


def embedded(model: OnnxModel, corpus: Corpus, images: Sequence[Image]) -> Pictures:
    """The pictures that can be read."""
    identity = model.identity
    none = Pictures(np.empty((0, identity.dim), np.float32), np.empty((0, identity.cells, identity.cell_dim), np.int8))
    parts = [none, *_embedded(model, corpus, images)]
    return Pictures(*map(np.concatenate, zip(*parts, strict=True)))


def _embedded(model: OnnxModel, corpus: Corpus, images: Sequence[Image]) -> Iterator[Pictures]:
    def prepared(image: Image) -> Bytes | None:
        try:
            return model.prepare(read_picture(corpus, image))
        except InputError:
            return None

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images), BATCH):
            read = [each for each in pool.map(prepared, images[start : start + BATCH]) if each is not None]
            if read:
                yield model.embed_prepared(read)


def held_out_phrases(
    vocabulary: Vocabulary, images: Sequence[Image], others: Sequence[Image], random: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Noun phrases of images' captions, and of others those whose last word the images' captions never mention.

    All their words are known. Captions do not mention everything, so some of what counts as absent is there.
    """
    own, elsewhere = ([tokens_of(caption) for each in part for caption in each.captions] for part in (images, others))
    mentioned = {singular(token) for tokens in own for token in tokens}
    absent = [phrase for phrase in _phrases(vocabulary, elsewhere) if singular(phrase[-1]) not in mentioned]
    first, second = (
        [" ".join(phrases[place]) for place in random.permutation(len(phrases))[:PHRASES]]
        for phrases in (_phrases(vocabulary, own), absent)
    )
    return first, second


def showing(images: Sequence[Image], phrases: Sequence[str], random: np.random.Generator) -> NDArray[np.int64]:
    """For every phrase one of the images whose captions have it."""
    told = [" | ".join(" ".join(tokens_of(caption)) for caption in image.captions) for image in images]
    told = [f" {text} " for text in told]
    chosen = []
    for phrase in phrases:
        having = [place for place, text in enumerate(told) if f" {phrase} " in text]
        chosen.append(having[int(random.integers(len(having)))])
    return np.array(chosen, np.int64)


def _phrases(vocabulary: Vocabulary, sentences: Sequence[Tokens]) -> list[Tokens]:
    spans = Chunker.load().phrases_of(sentences)
    found = {
        tokens[start:end] for tokens, own in zip(sentences, spans, strict=True) for start, end in own if end > start
    }
    return sorted(phrase for phrase in found if phrase[-1].isalpha() and all(token in vocabulary for token in phrase))


def singular(word: str) -> str:
    return word.removesuffix("s")
