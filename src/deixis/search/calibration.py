"""Fitting the curve of `relevance.py` on the validation pictures of a captioned corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
from sklearn.linear_model import LogisticRegression

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError, InputError
from deixis.search.bundles import Manifest, Relevance, read_bundle, write_manifest
from deixis.search.encoders import Bytes, OnnxEncoder, Rows
from deixis.text.tokens import has_content, tokens_of
from deixis.text.vocabulary import Vocabulary
from deixis.vision.reading import read_picture

#: Pictures at most, and how many are encoded at a time.
PICTURES, BATCH = 1000, 16
#: A word is shown if captions of so many pictures have it; the encoder knows one that it has read so often.
SHOWN, KNOWN = 3, 20
#: Of pairs of pictures, the share that is alike.
ALIKE = 0.01


def calibrate(bundle: Path, corpus: Corpus) -> Manifest:
    """Fit and keep the relevance of a bundle; a corpus that has too few pictures or words is a `DeixisError`."""
    encoder = OnnxEncoder(read_bundle(bundle))
    manifest = encoder.bundle.manifest
    images = [image for image in corpus.split("val") if image.captions][:PICTURES]
    mentioned = [{token for caption in image.captions for token in tokens_of(caption)} for image in images]
    rows = np.concatenate([np.empty((0, manifest.dim), np.float32), *_encoded(encoder, corpus, images)])
    shown, absent = _words(encoder.vocabulary, mentioned)
    if len(rows) < 2 or len(shown) < 2 or len(absent) < 2:
        raise DeixisError(f"the validation split of {corpus.name} has too few pictures and words to calibrate on")
    relevance = fitted(rows, encoder.encode_texts(shown), encoder.encode_texts(absent))
    manifest = msgspec.structs.replace(manifest, relevance=relevance)
    write_manifest(bundle, manifest)
    return manifest


def fitted(pictures: Rows, shown: Rows, absent: Rows) -> Relevance:
    """The curve between the best scores of words that pictures show and of words that none of them does."""
    best = np.concatenate([(words @ pictures.T).max(1) for words in (shown, absent)])
    present = np.arange(len(best)) < len(shown)
    model = LogisticRegression(C=1e6, class_weight="balanced", max_iter=1000).fit(best[:, None], present)
    slope = float(model.coef_[0, 0])
    if slope <= 0:
        raise DeixisError("the encoder's scores do not tell words that pictures show from words that they do not")
    pairs = (pictures @ pictures.T)[np.triu_indices(len(pictures), 1)]
    return Relevance(float(-model.intercept_[0] / slope), slope, float(np.quantile(pairs, 1 - ALIKE)))


def _encoded(encoder: OnnxEncoder, corpus: Corpus, images: list[Image]) -> Iterator[Rows]:
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


def _words(vocabulary: Vocabulary, mentioned: list[set[str]]) -> tuple[list[str], list[str]]:
    """Words that several pictures show, and words that none does in any number."""
    words, numbers = Counter[str](), Counter[str]()
    for tokens in mentioned:
        words.update(tokens)
        numbers.update({_singular(token) for token in tokens})
    known = [
        word
        for word, count in zip(vocabulary.words, vocabulary.counts, strict=True)
        if count >= KNOWN and has_content(word) and word.isalpha() and len(word) > 2
    ]
    return [word for word in known if words[word] >= SHOWN], [word for word in known if not numbers[_singular(word)]]


def _singular(word: str) -> str:
    return word.removesuffix("s")
