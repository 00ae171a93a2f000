"""What lies in a bundle: a model for search, grounding and describing that needs nothing but its folder.

manifest.json         name, weights' hash, settings of the networks, size and SHA-256 of every other file
weights.safetensors   all weights, each once, under PyTorch's names; normalizations folded into their convolutions
pictures.onnx         bytes (batch, 3, side, side) → unit rows and cells; its weights are places in weights.safetensors
texts.onnx            token ids (batch, longest), lengths (batch,) → unit rows and weighted words; likewise
vocabulary.tsv        the words of the text branch; grounding.tsv and captioner.tsv where theirs are others
README.md             the model card, where there is one
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from deixis.errors import DeixisError, InputError
from deixis.files import atomic_write, open_regular, read_json

MANIFEST, WEIGHTS, PICTURES, TEXTS, CARD = (
    "manifest.json",
    "weights.safetensors",
    "pictures.onnx",
    "texts.onnx",
    "README.md",
)
VOCABULARY, GROUNDING_VOCABULARY, CAPTIONER_VOCABULARY = "vocabulary.tsv", "grounding.tsv", "captioner.tsv"
#: The bundle that comes with the package, and the prefix of any other's name.
DEFAULT, ONNX = "deixis-base", "onnx:"
#: How weights are kept; `mixed` has float16 for convolutions and vectors, and int8 for all other matrices.
Weights = Literal["float32", "float16", "mixed"]


class FileRecord(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A score that moves with a query (`deixis.search.relevance`): what is added to `base`."""

    base: float
    #: For each unit of the best pictures' mean score, and of the commonness of the query's rarest word.
    best: float = 0.0
    commonness: float = 0.0
    #: For a phrase of several words.
    several: float = 0.0


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pictures match a query (`deixis.search.relevance`)."""

    #: What the mean score of the best pictures must reach for a thing to be there at all.
    present: Threshold
    #: What the score of the last match must reach.
    end: Threshold
    #: How fast the log odds of a match grow with the score.
    slope: Annotated[float, Meta(gt=0)]
    #: The cosine from which on two pictures count as alike.
    alike: float = 0.53
    #: How far below the end of a list a picture must score to be free of what it must not show.
    without: Annotated[float, Meta(ge=0)] = 0.25


def usual_relevance(cells: int) -> Relevance:
    """For a model that was not calibrated: roughly what was fitted for models like it, with cells or without."""
    if cells:
        return Relevance(Threshold(1.1, commonness=-0.1), Threshold(0.5, best=0.5, commonness=-0.05), 12.0)
    present, end = Threshold(0.4, commonness=-0.04), Threshold(0.18, best=0.5, commonness=-0.02)
    return Relevance(present, end, 30.0, without=0.05)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    #: Of the trained weights, so that an index serves every form of them that gives the same embeddings.
    weights_sha256: str
    weights: Weights
    dim: Annotated[int, Meta(ge=1, le=65536)]
    side: Annotated[int, Meta(ge=1, le=4096)]
    #: Cells of a picture, which words are compared with, and the numbers of each; none where the towers have none.
    cells: Annotated[int, Meta(ge=0, le=65536)]
    cell_dim: Annotated[int, Meta(ge=0, le=65536)]
    files: dict[str, FileRecord]
    #: Settings of the networks, as their recipes have them: both towers, and where they are there the other two.
    towers: dict[str, Any]
    grounding: dict[str, Any] | None = None
    captioner: dict[str, Any] | None = None
    #: What calibration fitted; None for a bundle that was not calibrated.
    thresholds: Relevance | None = None
    #: What earlier versions fitted, which is not used.
    relevance: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    deixis: Literal["bundle"] = "bundle"
    version: Literal[3] = 3


class Bundle(msgspec.Struct, frozen=True):
    """An open bundle."""

    folder: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """The path of one of its files, whose bytes are those that were written."""
        path = self.folder / name
        if file_record(path) != self.manifest.files[name]:
            raise InputError(path, "is not the file that was exported; export the bundle again")
        return path


def packaged_folder() -> Path:
    """Where the default bundle lies in the package, if it does."""
    return Path(__file__).parents[1] / "base" / "bundle"


def open_bundle(name: str) -> Bundle | None:
    """A bundle by name, `deixis-base` or `onnx:FOLDER`; None if the name is that of something else."""
    if name == DEFAULT:
        if not (packaged_folder() / MANIFEST).is_file():
            raise DeixisError(
                f"this build has no {DEFAULT} inside; train one (`deixis train base/base`), "
                f"export it (`deixis export onnx RUN --out FOLDER`) and name it: {ONNX}FOLDER"
            )
        return read_bundle(packaged_folder())
    return read_bundle(Path(name.removeprefix(ONNX))) if name.startswith(ONNX) else None


def preprocessing(side: int) -> dict[str, Any]:
    """How the pictures of a tower are prepared, as an index remembers it."""
    return {"resize": "squash", "side": side, "resampling": "bilinear", "at_least": 2 * side}


def file_record(path: Path) -> FileRecord:
    with open_regular(path) as stream:
        return FileRecord(os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    with atomic_write(folder / MANIFEST) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def read_bundle(folder: Path) -> Bundle:
    """Open a folder; one that is no bundle is an `InputError`."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise InputError(folder, "is no bundle; `deixis export onnx RUN --out FOLDER` writes one")
    manifest = read_json(path, Manifest, "is damaged, or of another version of Deixis; export it again")
    if missing := {WEIGHTS, PICTURES, TEXTS, VOCABULARY} - manifest.files.keys():
        raise InputError(path, f"names no {', '.join(sorted(missing))}")
    return Bundle(folder, manifest)
