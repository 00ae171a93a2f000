"""Collections of a corpus' pictures that benchmarks search, embedded once and kept in a folder.

They are searched by the program's own engine. Only the index on disk is replaced: its numbers are in memory, rounded as
an index rounds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from deixis.adapters.bundles import open_bundle
from deixis.adapters.onnx_model import OnnxModel
from deixis.adapters.search_model import Cells, Floats, Pictures
from deixis.corpus import Corpus, Image, open_corpus
from deixis.search.bundle_calibration import embedded
from deixis.search.engine import SearchEngine, Terms
from deixis.search.queries import Query
from deixis.search.stores.exact import ExactIndex, Ids

Bools = NDArray[np.bool_]
#: Pictures embedded before they are written to the folder, and queries embedded together.
PART, TOGETHER = 500, 32


class Embeddings:
    """The embeddings of pictures by one model: made when they are first asked for, then read from a folder."""

    def __init__(self, model: OnnxModel, folder: Path) -> None:
        self.model = model
        name = hashlib.sha256(msgspec.json.encode(model.identity)).hexdigest()[:16]
        self._folder = folder / f"embeddings-{name}"
        self._known: dict[tuple[str, str], tuple[Floats, Cells]] = {}
        for file in sorted(self._folder.glob("*.npz")):
            with np.load(file) as part:
                self._add(str(part["corpus"]), part["ids"].tolist(), Pictures(part["rows"], part["cells"]))

    def of(self, corpus: Corpus, images: Sequence[Image]) -> Pictures:
        missing = [image for image in images if (corpus.name, image.id) not in self._known]
        for start in range(0, len(missing), PART):
            part = missing[start : start + PART]
            pictures, ids = embedded(self.model, corpus, part), [image.id for image in part]
            assert len(pictures.embeddings) == len(part), f"pictures of {corpus.name} cannot be read"
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / "part.tmp"
            with temporary.open("wb") as stream:
                np.savez(stream, corpus=corpus.name, ids=np.array(ids), rows=pictures.embeddings, cells=pictures.cells)
            temporary.rename(self._folder / f"{len(list(self._folder.glob('*.npz'))):05}.npz")
            self._add(corpus.name, ids, pictures)
        found = [self._known[corpus.name, image.id] for image in images]
        return Pictures(*map(np.stack, zip(*found, strict=True)))

    def _add(self, corpus: str, ids: Sequence[str], pictures: Pictures) -> None:
        for image, *numbers in zip(ids, *pictures, strict=True):
            self._known[corpus, image] = (numbers[0], numbers[1])


class PicturesInMemory:
    """What `SearchEngine` asks of a `deixis.search.collection.Collection`; ids are places among the pictures."""

    def __init__(self, pictures: Pictures) -> None:
        rows = pictures.embeddings.astype(np.float16).astype(np.float32)
        self._rows: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._cells = pictures.cells
        self.ids: Ids = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def nearest(self) -> ExactIndex:
        index = ExactIndex(self._rows.shape[1])
        index.add(self.ids, self._rows)
        return index

    def embeddings_of(self, ids: Ids) -> Floats:
        rows: Floats = self._rows[ids]
        return rows

    def cells_of(self, ids: Ids) -> Cells:
        cells: Cells = self._cells[ids]
        return cells


class Engine(SearchEngine):
    """The search engine over pictures in memory.

    Args:
        known: embedded queries by their text; collections share them, since they do not depend on the pictures.
    """

    def __init__(self, pictures: Pictures, model: OnnxModel, known: dict[str, Terms] | None = None) -> None:
        self.model, self.collection = model, PicturesInMemory(pictures)  # type: ignore[assignment]
        self._known_terms = {} if known is None else known

    def terms_of(self, texts: Sequence[str]) -> list[Terms]:
        """Each text as one phrase."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known_terms]
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            terms = self.terms([Query(text, (text,), ()) for text in part], [None] * len(part))
            self._known_terms.update(zip(part, terms, strict=True))
        return [self._known_terms[text] for text in texts]


class Collection(NamedTuple):
    """Some pictures of a corpus; `training` of them are training pictures."""

    corpus: Corpus
    images: list[Image]
    training: int
    pictures: Pictures
    engine: Engine


class Trial:
    """A model, the pictures of a split of both corpora, and what COCO's boxes say.

    Args:
        boxes: image_ids, offsets, classes and boxes (.npz).
        classes: the classes' names, one per line.
        work: the folder of the embeddings; another one for other pictures.
        pictures: a folder with the pictures of both corpora, if they are not in the corpora.
    """

    def __init__(
        self,
        model: str,
        corpora: Sequence[str],
        split: str,
        boxes: Path,
        classes: Path,
        work: Path,
        pictures: Path | None = None,
    ) -> None:
        bundle = open_bundle(model)
        assert bundle is not None, f"{model} is no bundle"
        self.model, self.split = OnnxModel(bundle), split
        self.embeddings = Embeddings(self.model, work)
        self._known_terms: dict[str, Terms] = {}
        self.corpora = [open_corpus(name, pictures=pictures) for name in corpora]
        self.splits = [[image for image in corpus.split(split) if image.captions] for corpus in self.corpora]
        self.classes = classes.read_text("utf-8").split("\n")[:-1]
        self.boxes = dict(np.load(boxes))

    def collection(self, corpus: Corpus, images: Sequence[Image], training: int = 0) -> Collection:
        pictures = self.embeddings.of(corpus, images)
        return Collection(corpus, list(images), training, pictures, Engine(pictures, self.model, self._known_terms))

    @cached_property
    def whole(self) -> list[Collection]:
        """All pictures of the split, by corpus."""
        return [self.collection(corpus, images) for corpus, images in zip(self.corpora, self.splits, strict=True)]

    @cached_property
    def boxed(self) -> dict[int, slice]:
        """COCO's pictures with boxes: the number of the image, and the places of its boxes."""
        places = {str(number): place for place, number in enumerate(self.boxes["image_ids"].tolist())}
        offsets = self.boxes["offsets"].tolist()
        return {
            number: slice(offsets[place], offsets[place + 1])
            for number, image in enumerate(self.splits[1])
            if (place := places.get(image.id)) is not None
        }

    @cached_property
    def shown(self) -> Bools:
        """Which classes have a box in which of COCO's pictures `(classes, images)`."""
        shown = np.zeros((len(self.classes), len(self.splits[1])), bool)
        for number, own in self.boxed.items():
            shown[self.boxes["classes"][own], number] = True
        return shown
