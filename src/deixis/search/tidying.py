"""Remove the embeddings of deleted pictures from an index."""

from __future__ import annotations

from pathlib import Path

from deixis.adapters.search_model import Pictures
from deixis.search.catalogue import CATALOGUE, Catalogue
from deixis.search.generations import new_generation
from deixis.search.vectors import BLOCK, StoredEmbeddings, append_pictures

#: An index is tidied when more than this many rows, and more than half of all rows, belong to deleted pictures.
UNUSED_ROWS = 4096


def tidied(index: Path, generation: Path) -> Path:
    """The generation itself or, if most of its rows belong to deleted pictures, a new complete one without them."""
    catalogue = Catalogue.write(generation)
    try:
        live, rows = catalogue.places(), catalogue.rows
        if rows - len(live) <= max(UNUSED_ROWS, rows // 2):
            return generation
        other = new_generation(index, catalogue.identity)
        embeddings = StoredEmbeddings(generation, live, rows, catalogue.identity)
        for start in range(0, len(live), BLOCK):
            ids = embeddings.ids[start : start + BLOCK]
            append_pictures(other, start, Pictures(embeddings.of(ids), embeddings.cells_of(ids)))
        staging = other / ".part"
        staging.mkdir()
        catalogue.copy_to(staging)
    finally:
        catalogue.close()
    copy = Catalogue.write(staging)
    with copy.transaction():
        copy.move({content: place for place, (content, _) in enumerate(live)}, len(live))
    copy.close()
    (staging / CATALOGUE).replace(other / CATALOGUE)
    staging.rmdir()
    return other
