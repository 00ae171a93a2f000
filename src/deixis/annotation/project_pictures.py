"""The pictures of a project, from the corpora it was created from."""

from __future__ import annotations

from sqlalchemy import Engine

from deixis.annotation import schema
from deixis.corpus import Corpus, open_corpus
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError


def project_corpus(engine: Engine, *, known: bool = False) -> Corpus:
    """The corpus of the images to annotate, or with `known` the corpus of the verification questions."""
    with schema.reading(engine) as connection:
        corpus = schema.get_value(connection, "known_corpus" if known else "corpus")
        elsewhere = None if known else schema.get_value(connection, "pictures")
    if not corpus:
        raise DeixisError("the project does not record where its pictures are")
    return open_corpus(corpus, pictures=elsewhere or None)


def project_pictures(engine: Engine, *, known: bool = False) -> Pictures:
    """The pictures of `project_corpus`."""
    corpus = project_corpus(engine, known=known)
    if corpus.pictures is None:
        raise DeixisError(f"{corpus.name or 'the corpus'}: has no pictures")
    return corpus.pictures
