"""The pictures of a project, from the corpora it was made of."""

from __future__ import annotations

from sqlalchemy import Engine

from deixis.annotation import schema
from deixis.corpus import open_corpus
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError


def project_pictures(engine: Engine, *, known: bool = False) -> Pictures:
    """The pictures of the images to annotate, or with `known` those of the verification questions."""
    with schema.reading(engine) as connection:
        corpus = schema.get_value(connection, "known_corpus" if known else "corpus")
        elsewhere = None if known else schema.get_value(connection, "pictures")
    if not corpus:
        raise DeixisError("the project does not say where its pictures are")
    pictures = open_corpus(corpus, pictures=elsewhere or None).pictures
    if pictures is None:
        raise DeixisError(f"{corpus}: has no pictures")
    return pictures
