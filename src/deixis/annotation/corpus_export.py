"""Exports the answers of a project as a corpus: phrases, chains, merged boxes (Entities, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from sqlalchemy import Connection, select

from deixis.annotation import schema
from deixis.annotation.image_store import decode_document
from deixis.annotation.merging import merge_chains
from deixis.annotation.reviews import image_states
from deixis.annotation.workflow import ImageState
from deixis.annotation.workflow_records import SCENE, Document, Settings
from deixis.corpus import NOT_VISUAL, Box, Chain, Corpus, Image, Phrase, make_caption, make_image

#: Chain ids of image n start at n × 1000 + 1, so that they are unique in the corpus and stable between exports.
CHAINS_PER_IMAGE = 1000


@dataclass(frozen=True)
class Export:
    """The corpus, and the number of images in the project that have open questions."""

    corpus: Corpus
    unfinished: int


def export_corpus(connection: Connection, settings: Settings, *, name: str, finished_only: bool) -> Export:
    """All images as annotated so far, or only those without an open question."""
    images = []
    unfinished = 0
    imported = _imported_names(connection)
    for image_id, document, state, _ in image_states(connection, settings):
        unfinished += not state.finished
        if state.finished or not finished_only:
            images.append(annotated_image(image_id, document, state, imported))
    return Export(Corpus(images, name=name), unfinished)


def _imported_names(connection: Connection) -> frozenset[str]:
    """The chain ids of a corpus that was imported for correction. New chains must not reuse them."""
    if schema.get_value(connection, "start") not in ("chains", "boxes"):
        return frozenset()
    documents = connection.execute(select(schema.images.c.document), execution_options={"yield_per": 1000}).scalars()
    return frozenset(given.id for document in documents for given in decode_document(document).given)


def annotated_image(
    image_id: int, document: Document, state: ImageState, imported: frozenset[str] = frozenset()
) -> Image:
    """One image with its chains merged. A mention whose links are not settled gets a chain to itself.

    Chains without an imported id get a new one that is not in `imported`.
    """
    settled = {mention for chain in state.chains for mention in chain.mentions}
    members = [chain.mentions for chain in state.chains] + [(m,) for m in state.mentions if m not in settled]
    boxes: list[tuple[Box, ...]] = [chain.boxes for chain in state.chains]
    boxes += [()] * (len(members) - len(boxes))
    types = [frozenset(type_ for mention in mentions for type_ in mention.types) for mentions in members]
    merged = merge_chains(boxes, types)
    chains = []
    phrases: dict[int, list[Phrase]] = {}
    numbers = map(str, count(image_id * CHAINS_PER_IMAGE + 1))
    new_names = (name for name in numbers if name not in imported)
    for parts, box_indexes in merged.chains:
        states = [state.chains[part] for part in parts if part < len(state.chains)]
        given = next((chain.given for chain in states if chain.given), "")
        name = given or next(new_names)
        verdict = next((chain.verdict for chain in states), None)
        boxless = verdict is not None and not box_indexes
        chains.append(Chain(name, box_indexes, scene=boxless and verdict == SCENE, no_box=boxless and verdict != SCENE))
        for part in parts:
            for mention in members[part]:
                phrases.setdefault(mention.caption, []).append(Phrase(mention.start, mention.end, name, mention.types))
    for caption, start, end in document.nonvisual:
        phrases.setdefault(caption, []).append(Phrase(start, end, types=(NOT_VISUAL,)))
    image = document.image
    captions = [
        make_caption(c.text, c.words, phrases.get(index, ()), id=c.id, unrelated=c.unrelated)
        for index, c in enumerate(image.captions)
    ]
    fields = {name: getattr(image, name) for name in ("file", "width", "height", "split", "source_id")}
    return make_image(image.id, captions=captions, boxes=merged.boxes, chains=chains, **fields)
