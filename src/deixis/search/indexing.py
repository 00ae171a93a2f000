"""Bringing an index up to date with folders: only what changed is read, only what is new is encoded.

Pictures are read, hashed, decoded and prepared in threads, encoded in batches, and committed every few seconds: rows
first, then the catalogue that names them. A kill loses what came after the last commit, and the next run does it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import ChainMap, Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from PIL.Image import Image as Picture

from deixis.adapters.search_model import Cells, Floats, Pictures, SearchModel
from deixis.errors import DeixisError, InputError
from deixis.files import LOCK, hold_folder
from deixis.search.catalogue import REMEDY, Catalogue, Details, FileRow
from deixis.search.generations import (
    CURRENT,
    current_generation,
    generation_of,
    index_option,
    new_generation,
    put_in_use,
)
from deixis.search.stores.vector_stores import (
    STORE,
    Follower,
    bring_store_up_to_date,
    check_store,
    choose_store,
)
from deixis.search.tidying import tidied
from deixis.search.vectors import append_pictures
from deixis.search.walking import Found, Walk, check_patterns, is_under
from deixis.vision.fingerprints import SIDE as FINGERPRINT_SIDE
from deixis.vision.fingerprints import fingerprint
from deixis.vision.picture_files import NEVER, Stamp, read_file, shown
from deixis.vision.reading import decode_picture, read_header

#: Pictures encoded at a time.
BATCH = 16
#: The setting of the catalogue with the patterns that are skipped, as JSON.
EXCLUDE = "exclude"
#: A commit comes after so many new files, or so many seconds.
COMMIT_FILES, COMMIT_SECONDS = 512, 5.0

#: Told (files done, files to do) after each commit: what is done is safe.
Progress = Callable[[int, int], None]


class Unreadable(msgspec.Struct, frozen=True):
    path: str
    reason: str


class IndexReport(msgspec.Struct, frozen=True):
    """What a run found and did. Files: `added` counts those at new places, `renamed` those that only moved."""

    index: str
    model: str
    #: Files that are pictures, and how many different pictures they are.
    files: int
    pictures: int
    added: int
    renamed: int
    changed: int
    removed: int
    #: Links, which are not followed.
    links: int
    #: Files that were skipped for their suffix (in lower case), the most frequent first.
    skipped: dict[str, int]
    unreadable: list[Unreadable]
    #: Folders that are not there or hold no picture any more; what was indexed of them is kept, unless it was pruned.
    absent: list[str]
    seconds: float


class Looked(NamedTuple):
    """What a thread made of a file; `pixels` only where its content is new, `details` where they were not known."""

    found: Found
    stamp: Stamp
    sha256: bytes | None
    pixels: Any
    problem: str | None
    details: Details | None = None


def index_folders(
    index: Path,
    folders: Sequence[str | Path],
    model: SearchModel,
    model_name: str,
    *,
    prune: bool = False,
    store: str | None = None,
    exclude: Sequence[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> IndexReport:
    """Bring an index up to date with folders, or, where none are given, with those it knows.

    Args:
        index: the index' own folder, made where it is not there.
        folders: what to look through; they are remembered.
        model: if the index was made with another one, a second index of all its folders is built beside the first,
            and takes its place when it is whole.
        model_name: what opens it again.
        prune: forget what was indexed of folders that are gone.
        store: where rows are searched (`deixis.search.stores.vector_stores`); None leaves it as it is.
        exclude: patterns of names or paths to skip; they are remembered. None leaves them as they are.

    Raises:
        InputError: a folder is none, or `index` is something else.
        DeixisError: another process is writing the index, there is nothing to look through, or no such store.
    """
    given_roots = _roots(folders)
    if store is not None:
        store = check_store(store)
    _refuse_strangers(index)
    lock = hold_folder(index, "index")
    try:
        generation, known_roots, known_store, known_exclude = _generation(index, model, model_name)
        catalogue = Catalogue.write(generation)
        follower: Follower | None = None
        try:
            choose_store(catalogue, known_store if store is None else store)
            building = generation != current_generation(index)
            roots = sorted({*given_roots, *known_roots}) if building else given_roots or known_roots
            if not roots:
                command = f"deixis index DIR{index_option(index)}"
                raise DeixisError(f"{index}: knows no folder yet; name the folders with pictures: {command}")
            follower = Follower(generation, catalogue)
            if exclude is None:
                exclude = excluded_patterns(catalogue, known_exclude)
            check_patterns(exclude)
            catalogue.set_meta(EXCLUDE, msgspec.json.encode([pattern for pattern in exclude if pattern]).decode())
            update = _Update(generation, catalogue, follower, model, roots, exclude, prune, progress)
            report = update.run(index, model_name)
        finally:
            if follower is not None:
                follower.close()
            catalogue.close()
        generation = tidied(index, generation)
        bring_store_up_to_date(generation)
        put_in_use(index, generation)
        return report
    except OSError as fault:
        raise InputError(index, f"cannot be written ({fault.strerror or fault})") from None
    finally:
        lock.release()


class _Update:
    """One run over the folders of one generation."""

    def __init__(
        self,
        generation: Path,
        catalogue: Catalogue,
        follower: Follower,
        model: SearchModel,
        roots: Sequence[bytes],
        exclude: Sequence[str],
        prune: bool,
        progress: Progress,
    ) -> None:
        self._generation, self._catalogue, self._model = generation, catalogue, model
        self._follower = follower
        self._roots, self._exclude, self._prune, self._progress = roots, exclude, prune, progress
        self._at_least = model.identity.at_least
        self._known = catalogue.known()
        #: Contents that an earlier version indexed, which did not keep sizes and dates.
        self._without_details = catalogue.without_details()
        self._places = catalogue.rows
        #: Prepared pictures whose rows are not made yet, and rows and files that are not committed yet.
        self._waiting: dict[bytes, Any] = {}
        self._rows: dict[bytes, tuple[Floats, Cells]] = {}
        self._files: list[Looked] = []
        self._before = {row.path: row for row in catalogue.files()}
        #: Contents that came to new places, and how many files at old places have another one now.
        self._arrived: Counter[int] = Counter()
        self._changed = 0
        self._done = 0

    def run(self, index: Path, model_name: str) -> IndexReport:
        start = time.monotonic()
        with self._catalogue.transaction():
            self._catalogue.add_roots(self._roots)
            self._catalogue.set_meta("encoder", model_name)
        walks, to_look_at, met, absent = self._walk()
        self._take_in(to_look_at)
        # Problems of a walk are recorded anew each time.
        noted = {path: reason for walk in walks for path, reason in walk.problems.items()}
        deleted = self._gone(met | noted.keys(), walks, absent)
        with self._catalogue.transaction():
            self._catalogue.put_files(FileRow(path, NEVER, None, reason) for path, reason in noted.items())
            self._catalogue.remove_files(row.path for row in deleted)
            self._catalogue.remove_orphans()
            if self._prune:
                for root in absent:
                    self._catalogue.remove_root(root)
        left = Counter(row.content for row in deleted if row.content is not None)
        renamed = (left & self._arrived).total()
        files, pictures = self._catalogue.counts()
        return IndexReport(
            index=shown(os.fsencode(index)),
            model=str(self._model.identity),
            files=files,
            pictures=pictures,
            added=self._arrived.total() - renamed,
            renamed=renamed,
            changed=self._changed,
            removed=left.total() - renamed,
            links=sum(walk.links for walk in walks),
            skipped={shown(suffix): count for suffix, count in _skipped(walks).most_common()},
            unreadable=[Unreadable(shown(path), reason) for path, reason in self._catalogue.problems().items()],
            absent=[shown(root) for root in absent],
            seconds=round(time.monotonic() - start, 3),
        )

    def _walk(self) -> tuple[list[Walk], list[Found], set[bytes], list[bytes]]:
        """The walks, files that are new or other than before, all that were met, and folders that are gone."""
        walks, to_look_at, met, absent = list[Walk](), list[Found](), set[bytes](), list[bytes]()
        without_details = {self._known[sha256] for sha256 in self._without_details}
        for root in self._roots:
            if any(is_under(root, other) for other in self._roots):
                continue
            walk, already = Walk(root, self._exclude), len(met)
            for file in walk if os.path.isdir(root) else ():
                met.add(file.path)
                before = self._before.get(file.path)
                if before is None or before.stamp != file.stamp or before.content in without_details:
                    to_look_at.append(file)
            # A drive that is not mounted looks like an empty folder.
            empty = len(met) == already and not walk.problems
            if not os.path.isdir(root) or (empty and any(is_under(path, root) for path in self._before)):
                absent.append(root)
            else:
                walks.append(walk)
        return walks, to_look_at, met, absent

    def _gone(self, met: set[bytes], walks: Sequence[Walk], absent: Sequence[bytes]) -> list[FileRow]:
        """Indexed files that a walk would have found, and did not."""
        walked = [walk.root for walk in walks] + (list(absent) if self._prune else [])
        closed = [folder for walk in walks for folder in walk.closed]
        return [
            row
            for path, row in self._before.items()
            if path not in met
            and any(is_under(path, root) for root in walked)
            and not any(is_under(path, folder) for folder in closed)
        ]

    def _take_in(self, changed: Sequence[Found]) -> None:
        last = time.monotonic()
        self._progress(0, len(changed))
        pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        try:
            for looked in _in_order(pool, self._look, changed):
                self._add(looked)
                if len(self._files) >= COMMIT_FILES or time.monotonic() - last > COMMIT_SECONDS:
                    self._commit(len(changed))
                    last = time.monotonic()
        finally:
            # After Ctrl-C, nobody needs the pictures that are being read ahead.
            pool.shutdown(wait=False, cancel_futures=True)
        self._commit(len(changed))

    def _look(self, file: Found) -> Looked:
        """In a thread: read and hash a file, and prepare its picture where that is new."""
        try:
            data, stamp = read_file(file.path)
        except InputError as fault:
            # The file may be readable the next time: it is read again.
            return Looked(file, NEVER, None, None, fault.problem)
        sha256 = hashlib.sha256(data).digest()
        if sha256 in self._known:
            details = details_of(data, file.path) if sha256 in self._without_details else None
            return Looked(file, stamp, sha256, None, None, details)
        try:
            picture = decode_picture(data, name=shown(file.path), at_least=self._at_least)
        except InputError as fault:
            return Looked(file, stamp, None, None, fault.problem)
        return Looked(file, stamp, sha256, self._model.prepare(picture), None, details_of(data, file.path, picture))

    def _add(self, looked: Looked) -> None:
        self._files.append(looked._replace(pixels=None))
        if looked.sha256 is None:
            return
        if looked.sha256 not in self._known and looked.pixels is not None and looked.sha256 not in self._rows:
            self._waiting[looked.sha256] = looked.pixels
            if len(self._waiting) >= BATCH:
                self._encode()

    def _encode(self) -> None:
        if self._waiting:
            seen = self._model.embed_prepared(list(self._waiting.values()))
            self._rows.update(zip(self._waiting, zip(*seen, strict=True), strict=True))
            self._waiting = {}

    def _commit(self, total: int) -> None:
        self._encode()
        seen = Pictures(*map(np.stack, zip(*self._rows.values(), strict=True))) if self._rows else None
        if seen is not None:
            append_pictures(self._generation, self._places, seen)
        places = {sha256: self._places + index for index, sha256 in enumerate(self._rows)}
        with self._catalogue.transaction():
            new = self._catalogue.add_contents(places)
            known = ChainMap(new, self._known)
            rows = [
                FileRow(
                    looked.found.path, looked.stamp, known[looked.sha256] if looked.sha256 else None, looked.problem
                )
                for looked in self._files
            ]
            self._catalogue.put_files(rows)
            self._catalogue.put_details(
                {known[looked.sha256]: looked.details for looked in self._files if looked.sha256 and looked.details}
            )
            self._catalogue.set_meta("rows", str(self._places + len(places)))
        if seen is not None:
            self._follower.add(np.array(list(new.values()), np.int64), seen.embeddings)
        for row in rows:
            old = self._before.get(row.path)
            if row.content is not None and (old is None or old.content is None):
                self._arrived[row.content] += 1
            elif old is not None and old.content != row.content:
                self._changed += 1
        self._known.update(new)
        self._places += len(places)
        self._done += len(self._files)
        self._rows, self._files = {}, []
        self._progress(self._done, total)


def details_of(data: bytes, path: bytes, picture: Picture | None = None) -> Details:
    """What is kept of a picture beside its embedding; `picture` is it decoded, where that was needed anyway."""
    name = shown(path)
    try:
        picture = picture or decode_picture(data, name=name, at_least=FINGERPRINT_SIDE)
        return Details(*read_header(data, name=name), fingerprint(picture))
    except InputError:
        return Details()


def _in_order(pool: ThreadPoolExecutor, look: Callable[[Found], Looked], files: Iterable[Found]) -> Iterator[Looked]:
    """What `look` makes of files, in order, a few of them ahead of the caller."""
    ahead: deque[Future[Looked]] = deque()
    for file in files:
        ahead.append(pool.submit(look, file))
        if len(ahead) > 2 * BATCH:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _skipped(walks: Sequence[Walk]) -> Counter[bytes]:
    return sum((walk.skipped for walk in walks), Counter[bytes]())


def excluded_patterns(catalogue: Catalogue, otherwise: str = "") -> list[str]:
    """The patterns that an index remembers; `otherwise` is used where its catalogue has none yet."""
    try:
        return msgspec.json.decode(catalogue.setting(EXCLUDE) or otherwise or "[]", type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(catalogue.path, f"is damaged (the excluded patterns are not a list); {REMEDY}") from None


def _roots(folders: Sequence[str | Path]) -> list[bytes]:
    roots = []
    for folder in folders:
        if not os.path.isdir(folder):
            raise InputError(folder, "is not a folder" if os.path.exists(folder) else "is not there")
        roots.append(os.fsencode(os.path.realpath(folder)))
    return sorted(set(roots))


def _refuse_strangers(index: Path) -> None:
    if not index.exists():
        return
    if not index.is_dir() or (any(index.iterdir()) and not any((index / name).exists() for name in (CURRENT, LOCK))):
        raise InputError(index, "is there and is no index; choose a folder of its own")


def _generation(index: Path, model: SearchModel, model_name: str) -> tuple[Path, list[bytes], str, str]:
    """The generation to write, the folders that the index knows, its store, and what it excludes."""
    roots: set[bytes] = set()
    store = exclude = ""
    current = current_generation(index)
    generation = generation_of(index, model.identity)
    for folder in {current, generation} - {None}:
        catalogue = Catalogue.read(folder)  # type: ignore[arg-type]
        roots.update(catalogue.roots())
        if folder == current:
            store, exclude = catalogue.setting(STORE), catalogue.setting(EXCLUDE)
        catalogue.close()
    if generation is None:
        generation = new_generation(index, model.identity)
        Catalogue.create(generation, model.identity, model_name)
        if current is None:
            # The first of all serves while it grows.
            put_in_use(index, generation)
    return generation, sorted(roots), store, exclude
