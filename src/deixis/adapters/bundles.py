"""The files of a bundle: a model for search, grounding and describing that needs nothing but its folder.

manifest.json         name, hash of the weights, settings of the networks, size and SHA-256 of every other file
weights.safetensors   all weights, each once, under PyTorch's names; batch norm folded into the convolutions
backbone.onnx         bytes (batch, 3, height, width) → maps of strides 8, 16 and 32, and that of the last convolution
pictures.onnx         that last map, of pictures of the manifest's side → unit embeddings and cells
texts.onnx            token ids (batch, longest) → unit embeddings and weighted words
proposals.onnx        the maps of one picture → the boxes that compete to be its regions, types and scores
regions.onnx          the maps, the chosen boxes and the bytes, where colours are compared → encoded regions
phrases.onnx          encoded regions and the phrases of sentences → logits and boxes of each phrase
caption_start.onnx    the last map → logits of the first word, states
caption_step.onnx     words and states → logits of the next word, states
vocabulary.tsv        the words of the text branch; grounding.tsv and captioner.tsv where theirs are others
README.md             the model card, where there is one

The weights of a graph are places in weights.safetensors. A bundle that does not ground or describe lacks those graphs;
one whose grounding network has another backbone has that in grounding_backbone.onnx.
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

MANIFEST, WEIGHTS, CARD = "manifest.json", "weights.safetensors", "README.md"
BACKBONE, PICTURES, TEXTS = "backbone.onnx", "pictures.onnx", "texts.onnx"
PROPOSALS, REGIONS, PHRASES = "proposals.onnx", "regions.onnx", "phrases.onnx"
GROUNDING_BACKBONE = "grounding_backbone.onnx"
CAPTION_START, CAPTION_STEP = "caption_start.onnx", "caption_step.onnx"
VOCABULARY, GROUNDING_VOCABULARY, CAPTIONER_VOCABULARY = "vocabulary.tsv", "grounding.tsv", "captioner.tsv"
#: The bundle that comes with the package, and the prefix of any other's name.
DEFAULT, ONNX = "deixis-base", "onnx:"
#: The version before this one, which had no graphs for grounding and describing.
OLD_VERSION = 3
DAMAGED = "is damaged, or of another version of Deixis; export it again"
#: How weights are stored. `mixed`: int8 for matrices and large kernels of convolutions, float16 for the rest.
Weights = Literal["float32", "float16", "mixed"]


class FileRecord(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A threshold of the score, `base` plus terms that depend on the query (`deixis.search.relevance`)."""

    base: float
    #: Times the best pictures' mean score, and times the commonness of the query's rarest word.
    best: float = 0.0
    commonness: float = 0.0
    #: Added for a phrase of several words.
    several: float = 0.0
    #: Times how far the worst word of a phrase is above what a single word needs, in the phrase's best pictures.
    worst_word: float = 0.0
    #: Times how far its noun's own best pictures are above that, and times the commonness of the noun.
    noun: float = 0.0
    noun_commonness: float = 0.0
    #: Times the rarity of the rarest word, and times that rarity and what the word usually scores (`Relevance.usual`).
    rarity: float = 0.0
    #: In files, this is `usual`.
    rarity_times_usual: float = msgspec.field(default=0.0, name="usual")
    #: Times how far the 20 best pictures fall below the five best; less for a rare word (`relevance.fall`).
    fall: float = 0.0


class Presence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log odds that a picture shows a phrase (`deixis.adapters.phrase_presence`): what is added to `base`."""

    base: float
    #: For each unit of the score, and of the commonness of the phrase's rarest word.
    score: Annotated[float, Meta(gt=0)]
    commonness: float = 0.0
    #: For a phrase of several words.
    several: float = 0.0


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pictures match a query (`deixis.search.relevance`)."""

    #: Something is in the collection at all if the mean score of the best pictures reaches this.
    present: Threshold
    #: A picture is a match if its score reaches this.
    end: Threshold
    #: How fast the log odds of a match grow with the score.
    slope: Annotated[float, Meta(gt=0)]
    #: Two pictures with at least this cosine count as similar.
    alike: float = 0.53
    #: What the last match must reach if an example picture is given beside words; its cosine is added to the score.
    end_with_example: Threshold | None = None
    #: How far below the end of a list a picture must score to be free of what it must not show.
    without: Annotated[float, Meta(ge=0)] = 0.25
    #: Whether a picture shows a phrase; None where that was not fitted.
    presence: Presence | None = None
    #: By how much `present` is lower for these words and phrases: pictures that show them score low.
    lower_for: dict[str, float] = {}
    #: The same as `present` for phrases of several words; None: `present` is for these, too.
    present_of_phrase: Threshold | None = None
    #: What each word of such a phrase is compared with, without `lower_for`; None: `present`, with it.
    present_in_phrase: Threshold | None = None
    #: What is added to `end` for these phrases: pictures that show them score higher or lower than those of others.
    end_for: dict[str, float] = {}
    #: What each word of the vocabulary usually scores, in hundredths (8-bit integers): nine of ten pictures score less.
    usual: bytes = b""


def default_relevance(cells: int) -> Relevance:
    """Default thresholds for a model that was not calibrated: close to those fitted for similar models."""
    if cells:
        present, end = Threshold(1.1, commonness=-0.1), Threshold(0.5, best=0.5, commonness=-0.05)
        return Relevance(present, end, 12.0, end_with_example=Threshold(0.2, best=0.83))
    present, end = Threshold(0.4, commonness=-0.04), Threshold(0.18, best=0.5, commonness=-0.02)
    return Relevance(present, end, 30.0, end_with_example=Threshold(0.1, best=0.83), without=0.05)


def thresholds_hash(thresholds: Relevance) -> str:
    """A short name for thresholds, so that a measurement can say which ones it was made with.

    Fields at their defaults do not count: a version with another field gives old thresholds the same name.
    """
    return hashlib.sha256(msgspec.json.encode(_changed(thresholds), order="sorted")).hexdigest()[:12]


def _changed(record: msgspec.Struct) -> dict[str, Any]:
    """The fields that differ from their defaults, by their names in files."""
    changed = {}
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        factory = field.default_factory
        if value != (field.default if factory is msgspec.NODEFAULT else factory()):
            changed[field.encode_name] = _changed(value) if isinstance(value, msgspec.Struct) else value
    return changed


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    #: Hash of the trained weights: all bundles of one run have the same, so they share indexes.
    weights_sha256: str
    weights: Weights
    dim: Annotated[int, Meta(ge=1, le=65536)]
    side: Annotated[int, Meta(ge=1, le=4096)]
    #: Number of cells per picture, which words are compared with, and their dimension; 0 if the model has no cells.
    cells: Annotated[int, Meta(ge=0, le=65536)]
    cell_dim: Annotated[int, Meta(ge=0, le=65536)]
    files: dict[str, FileRecord]
    #: Settings of the networks, as in their recipes: both towers, and the grounding network and captioner if present.
    towers: dict[str, Any]
    #: The quality of the JPEG files that larger pictures are turned into first (`deixis.vision.crops.squash`); 0: none.
    jpeg: Annotated[int, Meta(ge=0, le=100)] = 0
    grounding: dict[str, Any] | None = None
    captioner: dict[str, Any] | None = None
    #: Fitted by calibration; None if the bundle was not calibrated.
    thresholds: Relevance | None = None
    #: Fitted by earlier versions, and ignored.
    relevance: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    deixis: Literal["bundle"] = "bundle"
    version: Literal[4] = 4


class Bundle(msgspec.Struct, frozen=True):
    """An open bundle."""

    folder: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """The path of one of its files, after comparing its hash with the manifest."""
        path = self.folder / name
        if file_record(path) != self.manifest.files[name]:
            raise InputError(path, "is not the file that was exported; export the bundle again")
        return path


def packaged_folder() -> Path:
    """The folder of the default bundle in the package; a build may lack it."""
    return Path(__file__).parents[1] / "base" / "bundle"


def open_bundle(name: str) -> Bundle | None:
    """A bundle by name, `deixis-base` or `onnx:FOLDER`; None for any other name."""
    if name == DEFAULT:
        if not (packaged_folder() / MANIFEST).is_file():
            raise DeixisError(
                f"this build has no {DEFAULT} inside; train one (`deixis train base/base`), "
                f"export it (`deixis export onnx RUN --out FOLDER`) and name it: {ONNX}FOLDER"
            )
        return read_bundle(packaged_folder())
    return read_bundle(Path(name.removeprefix(ONNX))) if name.startswith(ONNX) else None


def preprocessing(side: int, jpeg: int = 0) -> dict[str, Any]:
    """How pictures are prepared for a tower, as an index records it."""
    how: dict[str, Any] = {"resize": "squash", "side": side, "resampling": "bilinear", "at_least": 2 * side}
    return {**how, "jpeg": jpeg} if jpeg else how


def file_record(path: Path) -> FileRecord:
    with open_regular(path) as stream:
        return FileRecord(os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    with atomic_write(folder / MANIFEST) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


class _Version(msgspec.Struct):
    version: int = 0


def required_files(manifest: Manifest) -> set[str]:
    """The files that a bundle with this manifest must have."""
    names = {WEIGHTS, BACKBONE, PICTURES, TEXTS, VOCABULARY}
    if manifest.grounding is not None:
        names |= {PROPOSALS, REGIONS, PHRASES}
    if manifest.captioner is not None:
        names |= {CAPTION_START, CAPTION_STEP}
    return names


def read_bundle(folder: Path) -> Bundle:
    """Open a bundle; anything else is an `InputError`."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise InputError(folder, "is not a bundle; `deixis export onnx RUN --out FOLDER` writes one")
    if read_json(path, _Version, DAMAGED).version == OLD_VERSION:
        raise InputError(folder, f"is a bundle of an earlier Deixis; convert it with `deixis export upgrade {folder}`")
    manifest = read_json(path, Manifest, DAMAGED)
    if missing := required_files(manifest) - manifest.files.keys():
        raise InputError(path, f"names no {', '.join(sorted(missing))}")
    return Bundle(folder, manifest)


def read_old_bundle(folder: Path) -> Bundle:
    """Open a bundle of this or the earlier version, to write its graphs anew: only weights and words are of use."""
    fields = read_json(folder / MANIFEST, dict[str, Any], DAMAGED)
    if fields.get("version") == OLD_VERSION:
        fields["version"] = OLD_VERSION + 1
    try:
        return Bundle(folder, msgspec.convert(fields, Manifest))
    except msgspec.ValidationError as fault:
        raise InputError(folder / MANIFEST, f"{DAMAGED} ({fault})") from None
