"""Taking the rows of pictures that are gone out of an index."""

from __future__ import annotations

from pathlib import Path

from deixis.adapters.search_model import Pictures
from deixis.search.catalogue import CATALOGUE, Catalogue
from deixis.search.generations import new_generation
from deixis.search.vectors import BLOCK, PictureRows, append_pictures

#: An index is tidied when more than this many rows, and more than half of them, are of no use.
ROWS_OF_NO_USE = 4096


def tidied(index: Path, generation: Path) -> Path:
    """The generation itself, or, where most of its rows are of no use, another one without them, made whole."""
    catalogue = Catalogue.write(generation)
    try:
        live, rows = catalogue.places(), catalogue.rows
        if rows - len(live) <= max(ROWS_OF_NO_USE, rows // 2):
            return generation
        other = new_generation(index, catalogue.identity)
        kept = PictureRows(generation, live, rows, catalogue.identity)
        for start in range(0, len(live), BLOCK):
            ids = kept.ids[start : start + BLOCK]
            append_pictures(other, start, Pictures(kept.of(ids), kept.cells_of(ids)))
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
