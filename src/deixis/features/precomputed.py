"""Put features from a file into a store, instead of computing them from pictures.

The file is `.npy` (also `*_ims.npy` of VSE++), `.npz` or `.safetensors`. Its rows follow the corpus' images, or a list
of ids. The files of VSE++ repeat an image's row for each of its five captions; the first copy is used.

One row per image becomes `image`. Several rows per image (such as 36 regions whose boxes are not known) become
`regions`, and `image` is their mean. `size` comes from the corpus, 0 × 0 if it is not known.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError, InputError
from deixis.features.feature_recipe import FeatureRecipe, FileRecipe
from deixis.features.layout import ArraySpec
from deixis.features.store_writing import Features
from deixis.files import read_utf8, require_regular
from deixis.vision.weights import file_sha256

#: An .npz file may unpack to this many bytes, and to so many times its size. Sparse features shrink to a tenth.
UNPACKED_SMALL, UNPACKED_TIMES = 64 << 20, 100


class PrecomputedFeatures:
    """One row `(channels,)` or several `(regions, channels)` per image. An `.npy` file is memory-mapped.

    Extraction reads an image's values as bytes, like the pictures of a corpus.

    Args:
        path: the file.
        corpus: rows follow its images if no ids are given.
        ids: a text file with the image id or file name of each row, one per line; or `ids` inside an `.npz`.
        array: the array of an `.npz` or `.safetensors` file that has several.
    """

    def __init__(
        self, path: str | Path, corpus: Corpus, *, ids: str | Path | None = None, array: str | None = None
    ) -> None:
        self.path = Path(path)
        self.name = f"precomputed:{self.path.name}"
        self.weights_sha256 = file_sha256(self.path)
        self._rows, inside, self.array = _read(self.path, array)
        if self._rows.ndim not in (2, 3) or self._rows.dtype.kind != "f":
            raise InputError(
                self.path, f"holds {self._rows.dtype} of shape {self._rows.shape}, not floats (images, …, channels)"
            )
        self.row_shape: tuple[int, ...] = self._rows.shape[1:]
        self.dtype: np.dtype[Any] = self._rows.dtype
        self.channels = int(self.row_shape[-1])
        listed = _read_ids(Path(ids)) if ids is not None else inside
        self._row_of = self._by_id(listed, corpus) if listed is not None else self._by_order(corpus)

    def has(self, image: Image) -> bool:
        return image.id in self._row_of

    def read(self, image: Image) -> bytes:
        """The values of one image, of type `dtype` and shape `row_shape`."""
        return bytes(self.vectors([image])[0].tobytes())

    def vectors(self, images: Iterable[Image]) -> NDArray[Any]:
        """The rows of these images, `(images, channels)` or `(images, regions, channels)`."""
        rows = []
        for image in images:
            if image.id not in self._row_of:
                raise InputError(self.path, "has no row for this image", f"image {image.id}")
            rows.append(self._row_of[image.id])
        values = np.asarray(self._rows[rows])
        if not np.isfinite(values).all():
            bad = rows[int(np.argwhere(~np.isfinite(values))[0][0])]
            raise InputError(self.path, "holds a value that is not a number", f"row {bad}")
        return values

    def _by_order(self, corpus: Corpus) -> dict[str, int]:
        copies, rest = divmod(len(self._rows), len(corpus) or 1)
        if rest or not copies:
            raise InputError(
                self.path,
                f"has {len(self._rows)} rows for {len(corpus)} images: neither one row per image nor the same number "
                "of copies for each; give the ids",
            )
        if copies > 1:
            # Check some rows: enough to distinguish copies from other layouts (five crops, another order).
            for first in range(0, len(self._rows), max(copies, len(self._rows) // 64 // copies * copies)):
                block = self._rows[first : first + copies]
                if not np.array_equal(block, np.broadcast_to(block[:1], block.shape), equal_nan=True):
                    raise InputError(self.path, f"has {copies} different rows per image; give the ids", f"row {first}")
        return {image.id: index * copies for index, image in enumerate(corpus)}

    def _by_id(self, listed: list[str], corpus: Corpus) -> dict[str, int]:
        if len(listed) != len(self._rows):
            raise InputError(self.path, f"has {len(self._rows)} rows, but {len(listed)} ids are listed")
        by_name = {image.file: image.id for image in corpus if image.file} | {image.id: image.id for image in corpus}
        row_of: dict[str, int] = {}
        for row, name in enumerate(listed):
            if name in by_name:
                # A later row with the same id is a copy (VSE++).
                row_of.setdefault(by_name[name], row)
        if not row_of:
            raise InputError(self.path, f"lists no image of the corpus; its first id is {listed[0]!r}")
        return row_of


def _read(path: Path, array: str | None) -> tuple[Any, list[str] | None, str]:
    """The rows (memory-mapped if the format allows), the ids stored with them, and the array's name."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False), None, ""
        if path.suffix == ".npz":
            _check_unpacked(path)
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                name = _choose(path, [name for name in archive.files if name != "ids"], array)
                return archive[name], [str(id) for id in archive["ids"]] if "ids" in archive.files else None, name
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            arrays = load_file(path)
            name = _choose(path, sorted(arrays), array)
            return arrays[name], None, name
    except DeixisError:
        raise
    # Damaged files raise ValueError, OSError, BadZipFile, SafetensorError and more.
    except Exception as fault:
        raise InputError(path, f"cannot be read as features ({str(fault)[:200]})") from None
    raise InputError(path, "is neither .npy nor .npz nor .safetensors")


def _check_unpacked(path: Path) -> None:
    """Refuse an archive that unpacks to far more than features do."""
    with zipfile.ZipFile(require_regular(path)) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > UNPACKED_SMALL + UNPACKED_TIMES * path.stat().st_size:
        raise InputError(path, f"unpacks to {unpacked:,} bytes, more than features of its size do")


def _choose(path: Path, names: list[str], wanted: str | None) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        problem = "name the array to take" if wanted is None else f"has no array {wanted!r}"
        raise InputError(path, f"{problem}; it has {', '.join(names) or 'none'}")
    return wanted


def _read_ids(path: Path) -> list[str]:
    return [line.strip() for line in read_utf8(path).split("\n") if line.strip()]


#: Increase it when a change gives other features for the same file.
VERSION = 1


@dataclass(frozen=True)
class PreparedRow:
    """`values` are `(channels,)` or `(regions, channels)`."""

    values: NDArray[Any]
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


class PrecomputedMapper:
    """Build it with `precomputed`."""

    batch_size, threads, read_apart = 64, 1, False

    def __init__(self, recipe: FeatureRecipe, rows: PrecomputedFeatures) -> None:
        self._rows = rows
        self.arrays = {"image": ArraySpec((rows.channels,), recipe.dtype), "size": ArraySpec((2,), "float32")}
        if len(rows.row_shape) == 2:
            self.arrays["regions"] = ArraySpec((rows.channels,), recipe.dtype, ragged=True)
        self.provenance: dict[str, Any] = {
            "backbone": rows.name,
            "array": rows.array,
            "dtype": recipe.dtype,
            "version": VERSION,
            "weights_sha256": rows.weights_sha256,
        }

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_thread(self) -> None:
        """Threads need no set-up."""

    def prepare(self, image: Image, data: bytes) -> PreparedRow:
        values = np.frombuffer(data, self._rows.dtype).reshape(self._rows.row_shape)
        return PreparedRow(values, (image.width or 0, image.height or 0))

    def __call__(self, batch: Sequence[PreparedRow]) -> list[Features]:
        return [self._features(row) for row in batch]

    def _features(self, row: PreparedRow) -> Features:
        size = np.array(row.size, np.float32)
        if row.values.ndim == 1:
            return {"image": row.values, "size": size}
        return {"image": row.values.mean(0, dtype=np.float32), "regions": row.values, "size": size}


def precomputed(recipe: FeatureRecipe, corpus: Corpus) -> tuple[PrecomputedMapper, Corpus]:
    """The mapper for a recipe whose backbone is a file of features, and the corpus with rows instead of pictures."""
    how = recipe.file or FileRecipe()
    rows = PrecomputedFeatures(recipe.backbone, corpus, ids=how.ids or None, array=how.array or None)
    return PrecomputedMapper(recipe, rows), Corpus(corpus, name=corpus.name, pictures=rows)
