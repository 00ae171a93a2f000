"""Groups of files that show the same: copies, other sizes and formats, and slightly edited versions of a picture.

Two pictures show the same if few bits of their fingerprints differ (`deixis.vision.fingerprints`) and their embeddings
do not contradict it: fingerprints know no colours. The largest picture of a group leads it, and every
other one must be like the leader: a chain of small differences makes no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from deixis.search.collection import Collection
from deixis.search.stores.exact import Ids
from deixis.vision.fingerprints import BYTES, signs

#: The share of a fingerprint's bits that may differ, and the cosine that embeddings must have.
DIFFERENT, ALIKE = 0.2, 0.3
#: Pictures that are compared with all others at a time.
BLOCK = 1024

#: Told how many pictures were compared, and how many there are.
Progress = Callable[[int, int], None]


class Copy(NamedTuple):
    """A file of a group. `date` is when the picture was taken; the size is 0 × 0 where it is not known."""

    picture: int
    path: bytes
    bytes: int
    date: str
    width: int
    height: int


def find_duplicates(collection: Collection, progress: Progress = lambda done, total: None) -> list[list[Copy]]:
    """Groups of two files or more, the largest picture first; the group of the picture taken last comes first.

    Every picture is compared with every other. Those without a fingerprint (plain surfaces, or all pictures of an index
    that was not brought up to date since version 1 of catalogues) are only found as copies to the byte.
    """
    files, fingerprints = _files(collection)
    # The leader of a group comes before its members.
    order = sorted(files, key=lambda picture: min(map(_rank, files[picture])))
    near = dict(_near(collection, [picture for picture in order if picture in fingerprints], fingerprints, progress))
    taken: set[int] = set()
    groups = []
    for leader in order:
        if leader in taken:
            continue
        members = [leader, *(picture for picture in near.get(leader, ()) if picture not in taken)]
        copies = sorted((copy for picture in members for copy in files[picture]), key=_rank)
        if len(copies) > 1:
            taken.update(members)
            groups.append(copies)
    return sorted(groups, key=lambda copies: copies[0].date, reverse=True)


def _files(collection: Collection) -> tuple[dict[int, list[Copy]], dict[int, bytes]]:
    """The files of every picture of a collection, and the fingerprints that are known."""
    there = set(collection.ids.tolist())
    files: dict[int, list[Copy]] = {}
    fingerprints: dict[int, bytes] = {}
    for content, path, size, _, date in collection.files():
        if content in there:
            width, height, _, fingerprint = collection.details(content)
            files.setdefault(content, []).append(Copy(content, path, size, date, width, height))
            if fingerprint:
                fingerprints[content] = fingerprint
    return files, fingerprints


def _rank(copy: Copy) -> tuple[int, int, bytes]:
    """More pixels first, then more bytes."""
    return -copy.width * copy.height, -copy.bytes, copy.path


def _near(
    collection: Collection, order: list[int], fingerprints: dict[int, bytes], progress: Progress
) -> Iterator[tuple[int, list[int]]]:
    """Those pictures that others after them are like, and these."""
    least = 8 * BYTES * (1 - 2 * DIFFERENT)
    blocks = [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]
    for index, block in enumerate(blocks):
        block_signs = signs([fingerprints[picture] for picture in block])
        near: dict[int, list[int]] = {}
        for others in blocks[index:]:
            equal = block_signs @ signs([fingerprints[picture] for picture in others]).T
            if others is block:
                equal = np.triu(equal, 1)
            for first, second in np.argwhere(equal >= least).tolist():
                near.setdefault(block[first], []).append(others[second])
        for leader, members in near.items():
            cosines = collection.embeddings_of(_ids(members)) @ collection.embeddings_of(_ids([leader]))[0]
            yield (
                leader,
                [picture for picture, cosine in zip(members, cosines.tolist(), strict=True) if cosine >= ALIKE],
            )
        progress(min(len(order), (index + 1) * BLOCK), len(order))


def _ids(pictures: list[int]) -> Ids:
    return np.array(pictures, np.int64)
