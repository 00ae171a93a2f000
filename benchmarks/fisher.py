"""Encode 100,000 captions as 18,000-dimensional Fisher vectors, streamed to disk as float16, before PCA.

    python benchmarks/fisher.py [--out results/benchmarks/fisher.json] [--folder FOLDER_FOR_THE_VECTORS]

The captions are those of the Flickr30k Entities training split without pictures of Flickr8k's dev and test splits, from
DEIXIS_DATA; without it, random sentences. Fitting on the same captions is timed separately. The lower bound is writing
the same bytes to the same disk, and the additions of the sum over words.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from reporting import write_report

from deixis.corpus import open_corpus
from deixis.corpus.leak_guard import training_set
from deixis.text.fisher import FisherVectors
from deixis.text.tokens import tokens_of_captions
from deixis.text.word_vectors import WordVectors, spacy_vectors

CAPTIONS = 100_000
#: What encoding is held to: seconds on 2 cores, bytes at the peak of the whole process.
TIME_LIMIT, MEMORY_LIMIT = 120, 4 * 10**9


def captions() -> tuple[WordVectors, list[tuple[str, ...]], str]:
    """The vectors, token lists and what they are."""
    vectors = spacy_vectors()
    data = os.environ.get("DEIXIS_DATA")
    if data:
        corpus = open_corpus(Path(data) / "flickr30k_entities" / "annotations.zip")
        lists = tokens_of_captions(training_set(corpus))
        return vectors, lists[:CAPTIONS], "Flickr30k Entities, train without Flickr8k dev and test"
    # Zipf's law over as many words as the real captions have, 13.5 words per caption.
    generator = np.random.default_rng(0)
    share = 1 / np.arange(1, 19_001)
    words = np.array([f"word{number}" for number in range(19_000)])
    lengths = generator.poisson(13.5, CAPTIONS)
    drawn = words[generator.choice(len(words), size=lengths.sum(), p=share / share.sum())]
    rows = {str(word): row for row, word in enumerate(words)}
    made = WordVectors(vectors.table[:19_000], rows.get, source="generated")
    return made, [tuple(map(str, part)) for part in np.split(drawn, lengths.cumsum()[:-1])], "generated"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/fisher.json"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    stages: dict[str, float] = {}
    start = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal start
        now = time.perf_counter()
        stages[stage] = round(now - start, 2)
        start = now

    vectors, lists, source = captions()
    lap("read captions and vectors")
    fisher = FisherVectors(vectors, random_state=0, n_jobs=2).fit(lists)
    lap("fit ICA and mixture")

    encoding = writing = 0.0
    size = 0
    with tempfile.TemporaryFile(dir=arguments.folder) as file:
        processor = time.process_time()
        before = time.perf_counter()
        for block in fisher.stream(lists):
            after = time.perf_counter()
            encoding += after - before
            size += file.write(block.data)
            before = time.perf_counter()
            writing += before - after
        os.fsync(file.fileno())
        writing += time.perf_counter() - before
        processor = time.process_time() - processor
        # Before the floor is measured: its buffers are no part of the encoder.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    stages |= {"encode": round(encoding, 2), "wait for the disk": round(writing, 2)}
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=arguments.folder) as file:
        for _ in range(size // block.nbytes):
            file.write(block.data)
        os.fsync(file.fileno())
    lap("floor: the same bytes written")

    width = size // (2 * len(lists))
    running_words = sum(map(len, lists))
    record = {
        "benchmark": "fisher",
        "captions": len(lists),
        "source": source,
        "vectors": vectors.source,
        "running_words": running_words,
        "vocabulary": len({token for tokens in lists for token in tokens}),
        "words_without_vector": sum(vectors.missing(lists).values()),
        "dimensions": width,
        "bytes": size,
        "additions_if_dense": running_words * width,
        "stages_s": stages,
        "encode_and_write_s": round(encoding + writing, 2),
        "processor_s": round(processor, 2),
        "load_average": os.getloadavg()[0],
        "captions_per_s": round(len(lists) / (encoding + writing)),
        "peak_bytes": peak,
        "mixture": {
            "steps": fisher.mixture_.n_iter_,
            "log_likelihood": round(fisher.mixture_.log_likelihoods_[-1], 3),
            "gaussian_share": round(float(fisher.mixture_.gaussian_.mean()), 3),
        },
        "limits": {"encode_and_write_s": TIME_LIMIT, "peak_bytes": MEMORY_LIMIT},
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    write_report(record, arguments.out)
    return 0 if encoding + writing <= TIME_LIMIT and peak <= MEMORY_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
