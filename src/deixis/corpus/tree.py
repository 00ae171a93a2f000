"""A folder, a zip or a single file, read alike and never unpacked.

Archives come from strangers: members that lead outside the tree are refused, sizes are checked before reading, and
every fault is an `InputError` that names the archive and the member.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from deixis.errors import InputError

#: No member larger than this is read whole; the largest public annotation file (COCO instances) has 470 MB.
MEMBER_LIMIT = 1 << 30
#: More members than this in one archive is taken for an attack (Flickr30k Entities has 63,571).
MEMBER_COUNT_LIMIT = 4_000_000


class FileTree(Protocol):
    """Files under one root, by POSIX path relative to it."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """All files, sorted; hidden files and operating-system litter left out."""

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        """The bytes of one file, at most `limit` of them or an `InputError`."""

    def stamp(self) -> Iterator[str]:
        """Lines that change when a file does: the key of a cache."""


class FolderTree:
    """Files of a folder on disk. Links are followed only where they stay inside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        if self._names is None:
            found = []
            for folder, subfolders, files in os.walk(self.path):
                subfolders[:] = sorted(name for name in subfolders if not _litter(name))
                base = Path(folder).relative_to(self.path)
                found += [(base / name).as_posix() for name in files if not _litter(name)]
            self._names = tuple(sorted(found))
        return self._names

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        target = self._inside(name)
        try:
            with target.open("rb") as stream:
                data = stream.read(limit + 1)
        except OSError as fault:
            raise InputError(self.path, fault.strerror or str(fault), name) from None
        if len(data) > limit:
            raise InputError(self.path, f"larger than {limit:,} bytes", name)
        return data

    def stamp(self) -> Iterator[str]:
        for name in self.names():
            try:
                status = (self.path / name).stat()
            except OSError:
                yield name
            else:
                yield f"{name} {status.st_size} {status.st_mtime_ns}"

    def _inside(self, name: str) -> Path:
        if not _safe(name):
            raise InputError(self.path, "leads outside the folder", name)
        target = self.path / name
        if not target.resolve().is_relative_to(self.path.resolve()):
            raise InputError(self.path, "is a link that leads outside the folder", name)
        return target


class ZipTree:
    """Members of a zip archive. One common top folder, which most tools add, is looked through."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
        except (zipfile.BadZipFile, zipfile.LargeZipFile, OSError, EOFError, ValueError, NotImplementedError) as fault:
            raise InputError(path, f"not a whole zip file ({fault})") from None
        if len(members) > MEMBER_COUNT_LIMIT:
            raise InputError(path, f"has more than {MEMBER_COUNT_LIMIT:,} members")
        files = {}
        for member in members:
            if member.is_dir():
                continue
            if not _safe(member.filename):
                raise InputError(path, "leads outside the archive", member.filename)
            if not any(map(_litter, member.filename.split("/"))):
                files[member.filename] = member
        top = _common_top(files)
        self._members = {name[len(top) :]: member for name, member in files.items()}
        self._names = tuple(sorted(self._members))

    def names(self) -> tuple[str, ...]:
        return self._names

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        member = self._members.get(name)
        if member is None:
            raise InputError(self.path, "no such file in the archive", name)
        if member.file_size > limit:
            raise InputError(self.path, f"larger than {limit:,} bytes", name)
        try:
            with self._zip.open(member) as stream:
                # A forged header may promise less than the stream holds: never read past the promise.
                data = stream.read(member.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError) as fault:
            raise InputError(self.path, f"cannot be unpacked ({fault})", name) from None
        if len(data) != member.file_size:
            raise InputError(self.path, "is not as long as the archive's directory says", name)
        return data

    def stamp(self) -> Iterator[str]:
        status = self.path.stat()
        yield f"{status.st_size} {status.st_mtime_ns}"


class SingleFileTree:
    """One file as a tree of one name, for formats that are a single JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = FolderTree(path.parent)

    def names(self) -> tuple[str, ...]:
        return (self.path.name,)

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        return self._folder.read(name, limit)

    def beside(self) -> tuple[str, ...]:
        """The text and JSON files in the same folder: lists of splits and the like that belong to the file."""
        with os.scandir(self.path.parent) as entries:
            found = [entry.name for entry in entries if entry.name.endswith((".txt", ".json")) and entry.is_file()]
        return tuple(sorted(name for name in found if not _litter(name)))

    def stamp(self) -> Iterator[str]:
        for name in dict.fromkeys((self.path.name, *self.beside())):
            status = (self.path.parent / name).stat()
            yield f"{name} {status.st_size} {status.st_mtime_ns}"


def open_tree(path: str | Path) -> FileTree:
    """Open a folder, a .zip or a single file; anything else is an `InputError`."""
    path = Path(path)
    if path.is_dir():
        return FolderTree(path)
    if not path.exists():
        raise InputError(path, "no such file or folder")
    if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        return ZipTree(path)
    return SingleFileTree(path)


def _safe(name: str) -> bool:
    # Plain strings: an archive may have hundreds of thousands of names, and path objects would cost seconds.
    parts = name.split("/")
    return bool(parts[0]) and ".." not in parts and "\\" not in name and ":" not in parts[0]


def _litter(name: str) -> bool:
    return (name.startswith(".") and name != ".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _common_top(names: dict[str, zipfile.ZipInfo]) -> str:
    tops = {name.split("/", 1)[0] if "/" in name else "" for name in names}
    return f"{tops.pop()}/" if len(tops) == 1 and "" not in tops else ""
