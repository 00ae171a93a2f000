"""What lies in an encoder bundle: two ONNX graphs, a vocabulary, and their manifest.

manifest.json     name, weights' hash, sizes, how pictures are prepared, size and SHA-256 of every other file
pictures.onnx     bytes (batch, 3, side, side) → unit rows
texts.onnx        token ids (batch, longest), lengths (batch,) → unit rows
vocabulary.tsv    `deixis.text.vocabulary`
background.npy    unit rows of pictures that stand for "any picture", float16
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from deixis.errors import InputError
from deixis.files import atomic_write

MANIFEST, PICTURES, TEXTS = "manifest.json", "pictures.onnx", "texts.onnx"
VOCABULARY = "vocabulary.tsv"
#: How weights are kept; `mixed` has float16 for pictures and int8 for texts, which lose nothing to speak of by it.
Weights = Literal["float32", "float16", "mixed"]


class FileRecord(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a picture counts as what was asked for (`relevance.py`); as fitted for a run of `beyond/pictures-both`."""

    #: The cosine of words and picture at which it is as likely relevant as not.
    threshold: float = 0.43
    #: How fast the log odds grow with the cosine.
    slope: Annotated[float, Meta(gt=0)] = 9.6
    #: The cosine from which on two pictures count as alike.
    alike: float = 0.53


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    #: Of the trained weights, so that an index serves every form of them that gives the same embeddings.
    weights_sha256: str
    weights: Weights
    dim: Annotated[int, Meta(ge=1, le=65536)]
    side: Annotated[int, Meta(ge=1, le=4096)]
    files: dict[str, FileRecord]
    relevance: Relevance = Relevance()
    deixis: Literal["encoder"] = "encoder"
    version: Literal[1] = 1


def preprocessing(side: int) -> dict[str, Any]:
    """How the pictures of a tower are prepared, as an index remembers it."""
    return {"resize": "squash", "side": side, "resampling": "bicubic", "at_least": 2 * side}


def file_record(path: Path) -> FileRecord:
    with path.open("rb") as stream:
        return FileRecord(path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    with atomic_write(folder / MANIFEST) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle; a folder that is none is an `InputError`."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(folder, "is no encoder bundle; `deixis export onnx RUN --out FOLDER` writes one") from None
    except OSError as fault:
        raise InputError(path, fault.strerror or str(fault)) from None
    except msgspec.DecodeError as fault:
        raise InputError(path, f"is damaged ({fault})") from None
    if missing := {PICTURES, TEXTS, VOCABULARY} - manifest.files.keys():
        raise InputError(path, f"names no {', '.join(sorted(missing))}")
    return manifest


def checked_file(folder: Path, manifest: Manifest, name: str) -> Path:
    """The path of one file of a bundle, whose bytes are those that were written."""
    path = folder / name
    try:
        if file_record(path) != manifest.files[name]:
            raise InputError(path, "is not the file that was exported; export the bundle again")
    except OSError as fault:
        raise InputError(path, fault.strerror or str(fault)) from None
    return path
