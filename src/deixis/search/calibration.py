"""Fitting the curve of `relevance.py` on the validation pictures of a captioned corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from sklearn.linear_model import LogisticRegression

from deixis.corpus import Corpus, Image, training_set
from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write
from deixis.search.bundles import BACKGROUND, Manifest, Relevance, file_record, read_bundle, write_manifest
from deixis.search.encoders import Bytes, OnnxEncoder, Rows
from deixis.search.relevance import best_known
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vocabulary import Vocabulary
from deixis.vision.reading import read_picture

#: Validation pictures and background pictures at most, and how many are encoded at a time.
PICTURES, BACKGROUND_PICTURES, BATCH = 1000, 1500, 16
#: A word is shown if captions of so many pictures have it; the encoder knows one that it has read so often and that is
#: among so many. Rarer ones have hardly a meaning to it, and nobody's pictures are told by them.
SHOWN, KNOWN, COMMON = 3, 20, 2500
#: Of pairs of pictures, the share that is alike.
ALIKE = 0.01


def calibrate(folder: Path, corpus: Corpus) -> Manifest:
    """Fit and keep the relevance of a bundle; a corpus that has too few pictures or words is a `DeixisError`.

    The background is drawn from the corpus' training pictures, so it should be what the encoder was trained on.
    """
    encoder = OnnxEncoder(read_bundle(folder))
    images = [image for image in corpus.split("val") if image.captions][:PICTURES]
    rows = encoded(encoder, corpus, images)
    shown, absent = known_words(encoder.vocabulary, images)
    if len(rows) < 2 or len(shown) < 2 or len(absent) < 2:
        raise DeixisError(f"the validation split of {corpus.name} has too few pictures and words to calibrate on")
    there = corpus.pictures
    trained = [image for image in training_set(corpus).corpus if there is not None and there.has(image)]
    order = np.random.default_rng(0).permutation(len(trained))[:BACKGROUND_PICTURES]
    background = encoded(encoder, corpus, [trained[place] for place in order])
    relevance = fitted(rows, encoder.encode_texts(shown), encoder.encode_texts(absent), background)
    with atomic_write(folder / BACKGROUND) as stream:
        np.save(stream, background.astype(np.float16))
    manifest = encoder.bundle.manifest
    files = {**manifest.files, BACKGROUND: file_record(folder / BACKGROUND)}
    manifest = msgspec.structs.replace(manifest, relevance=relevance, files=files)
    write_manifest(folder, manifest)
    return manifest


def fitted(pictures: Rows, shown: Rows, absent: Rows, background: Rows) -> Relevance:
    """The curve between the best scores of words that pictures show and of words that none of them does."""
    words = np.concatenate([shown, absent])
    present = np.arange(len(words)) < len(shown)
    best, known = (words @ pictures.T).max(1), best_known(words, background)
    usual = 0.0 if known is None else float(known.mean())
    columns = best[:, None] if known is None else np.stack([best, known - usual], 1)
    model = LogisticRegression(C=1e6, class_weight="balanced", max_iter=1000).fit(columns, present)
    slope, *moves = model.coef_[0].tolist()
    if slope <= 0:
        raise DeixisError("the encoder's scores do not tell words that pictures show from words that they do not")
    pairs = (pictures @ pictures.T)[np.triu_indices(len(pictures), 1)]
    return Relevance(
        threshold=-float(model.intercept_[0]) / slope,
        slope=slope,
        usual=usual,
        # Words that are met well everywhere need more, and never less.
        share=max(0.0, -moves[0] / slope) if moves else 0.0,
        alike=float(np.quantile(pairs, 1 - ALIKE)),
    )


def encoded(encoder: OnnxEncoder, corpus: Corpus, images: Sequence[Image]) -> Rows:
    """Rows of the pictures that can be read."""
    return np.concatenate([np.empty((0, encoder.identity.dim), np.float32), *_encoded(encoder, corpus, images)])


def _encoded(encoder: OnnxEncoder, corpus: Corpus, images: Sequence[Image]) -> Iterator[Rows]:
    def prepared(image: Image) -> Bytes | None:
        try:
            return encoder.prepare(read_picture(corpus, image))
        except InputError:
            return None

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images), BATCH):
            read = [each for each in pool.map(prepared, images[start : start + BATCH]) if each is not None]
            if read:
                yield encoder.encode_pictures(np.stack(read))


def known_words(vocabulary: Vocabulary, images: Sequence[Image]) -> tuple[list[str], list[str]]:
    """Of the words that an encoder knows well, those that several pictures show, and those that none does."""
    words, numbers = Counter[str](), Counter[str]()
    for image in images:
        tokens = {token for caption in image.captions for token in tokens_of(caption)}
        words.update(tokens)
        numbers.update({singular(token) for token in tokens})
    known = [
        word
        for word, count in zip(vocabulary.words[:COMMON], vocabulary.counts[:COMMON], strict=True)
        if count >= KNOWN and has_content(word) and word.isalpha() and len(word) > 2
    ]
    return [word for word in known if words[word] >= SHOWN], [word for word in known if not numbers[singular(word)]]


def singular(word: str) -> str:
    return word.removesuffix("s")
