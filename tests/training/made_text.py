"""Trees and word vectors of a corpus' captions, made without a parser."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deixis.corpus import Corpus
from deixis.text.chunker import Chunker
from deixis.text.treebank import chunk_tree, corpus_texts
from deixis.text.trees import Tree, write_trees


def made_text(folder: Path, corpus: Corpus) -> dict[str, str]:
    """A file of trees in which every other sentence is a noun phrase as a whole, and a file of word vectors."""
    texts = corpus_texts(corpus)
    trees = []
    for number, (tokens, spans) in enumerate(zip(texts, Chunker.load().phrases_of(texts), strict=True)):
        tree = chunk_tree(len(tokens), spans)
        trees.append((tokens, Tree("NP", (tree,)) if number % 2 else tree))
    write_trees(folder / "trees.jsonl", trees)
    words = sorted({word for tokens in texts for word in tokens})
    random = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{value:.3f}' for value in random.normal(size=6))}" for word in words]
    (folder / "words.vec").write_text("\n".join([f"{len(words)} 6", *lines, ""]))
    return {"trees": str(folder / "trees.jsonl"), "vectors": str(folder / "words.vec")}
