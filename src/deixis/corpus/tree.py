"""One interface to read a folder, a zip archive or a single file, without unpacking.

Archives are not trusted: members with paths outside the tree are refused, sizes are checked before reading, and every
error is an `InputError` that names the archive and the member. Only regular files are read, because a pipe could block
forever. `:` and `\\` are ordinary characters in names, except in folders on Windows, where they could lead elsewhere.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from deixis.errors import InputError
from deixis.files import open_regular

#: Largest size of a member in bytes; the largest public annotation file (COCO instances) has 470 MB.
MEMBER_LIMIT = 1 << 30
#: Members larger than `FREE_BYTES` may have at most this compression ratio (annotations: 5 to 20).
FREE_BYTES, MAX_RATIO = 16 << 20, 200
#: Allowed compression methods: those that decompress only what is requested. bzip2 and LZMA decompress whole blocks.
BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Largest number of members in an archive (Flickr30k Entities has 63,571); more are taken for an attack.
MEMBER_COUNT_LIMIT = 4_000_000


class FileTree(Protocol):
    """Files under one root, by POSIX path relative to it."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """All files, sorted, without hidden files and system files such as `Thumbs.db`."""

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        """The bytes of one file. Raises `InputError` if it is larger than `limit`."""

    def start(self, name: str, length: int) -> bytes:
        """The first bytes of one file."""

    def stored_bytes(self, name: str) -> int:
        """The size of one file on disk; in an archive, its compressed size."""

    def stamp(self) -> Iterator[str]:
        """Lines that change if a file changes, used as cache key."""


class FolderTree:
    """Files of a folder on disk. Links are followed only if they stay inside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(sorted(_regular_files(self.path)))
        return self._names

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        data = self.start(name, limit + 1)
        if len(data) > limit:
            raise InputError(self.path, f"larger than {limit:,} bytes", name)
        return data

    def start(self, name: str, length: int) -> bytes:
        target = self._inside(name)
        try:
            with open_regular(target) as stream:
                return stream.read(length)
        except InputError as fault:
            raise InputError(self.path, fault.problem, name) from None
        except OSError as fault:
            raise InputError(self.path, fault.strerror or str(fault), name) from None

    def stored_bytes(self, name: str) -> int:
        try:
            return self._inside(name).stat().st_size
        except OSError as fault:
            raise InputError(self.path, fault.strerror or str(fault), name) from None

    def stamp(self) -> Iterator[str]:
        for name in self.names():
            try:
                status = (self.path / name).stat()
            except OSError:
                yield name
            else:
                yield f"{name} {status.st_size} {status.st_mtime_ns}"

    def _inside(self, name: str) -> Path:
        if not _is_safe(name) or (os.name == "nt" and (":" in name or "\\" in name)):
            raise InputError(self.path, "leads outside the folder", name)
        target = self.path / name
        if not target.resolve().is_relative_to(self.path.resolve()):
            raise InputError(self.path, "is a link that leads outside the folder", name)
        return target


class ZipTree:
    """Members of a zip archive. A single top folder, as many tools add it, is left out of the names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
        except Exception as fault:  # Damaged headers make zipfile fail in a dozen ways.
            raise InputError(path, f"not a whole zip file ({fault})") from None
        if len(members) > MEMBER_COUNT_LIMIT:
            raise InputError(path, f"has more than {MEMBER_COUNT_LIMIT:,} members")
        files: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            if member.is_dir():
                continue
            if not _is_safe(member.filename):
                raise InputError(path, "leads outside the archive", member.filename)
            if not any(map(_is_ignored, member.filename.split("/"))):
                if member.filename in files:
                    raise InputError(path, "is in the archive twice", member.filename)
                files[member.filename] = member
        top = _common_top(files)
        self._members = {name[len(top) :]: member for name, member in files.items()}
        self._names = tuple(sorted(self._members))

    def __reduce__(self) -> tuple[type[ZipTree], tuple[Path]]:
        # A copy in another process opens the archive again.
        return ZipTree, (self.path.absolute(),)

    def names(self) -> tuple[str, ...]:
        return self._names

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        size = self._member(name).file_size
        if size > limit:
            raise InputError(self.path, f"larger than {limit:,} bytes", name)
        if size > FREE_BYTES + MAX_RATIO * self.stored_bytes(name):
            raise InputError(self.path, f"unpacks to {size:,} bytes, over {MAX_RATIO} times its packed size", name)
        # A forged header may state a smaller size than the stream has: never read past it.
        data = self.start(name, size + 1)
        if len(data) != size:
            raise InputError(self.path, "is not as long as the archive's directory says", name)
        return data

    def start(self, name: str, length: int) -> bytes:
        member = self._member(name)
        if member.compress_type not in BOUNDED_METHODS:
            raise InputError(self.path, "is packed by a method other than deflate; pack the archive again", name)
        try:
            with self._zip.open(member) as stream:
                return stream.read(length)
        except Exception as fault:  # Every decompressor fails differently on damaged bytes.
            raise InputError(self.path, f"cannot be unpacked ({fault})", name) from None

    def stored_bytes(self, name: str) -> int:
        # A forged directory may state a larger compressed size than the archive has.
        return min(self._member(name).compress_size, self.path.stat().st_size)

    def stamp(self) -> Iterator[str]:
        status = self.path.stat()
        yield f"{status.st_size} {status.st_mtime_ns}"

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise InputError(self.path, "no such file in the archive", name)
        return self._members[name]


class SingleFileTree:
    """A tree with one file, for formats that consist of a single JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = FolderTree(path.parent)

    def names(self) -> tuple[str, ...]:
        return (self.path.name,)

    def read(self, name: str, limit: int = MEMBER_LIMIT) -> bytes:
        with self._naming_the_file():
            return self._folder.read(name, limit)

    def start(self, name: str, length: int) -> bytes:
        with self._naming_the_file():
            return self._folder.start(name, length)

    def stored_bytes(self, name: str) -> int:
        with self._naming_the_file():
            return self._folder.stored_bytes(name)

    def beside(self) -> tuple[str, ...]:
        """The text and JSON files in the same folder, such as split lists, that may belong to the file."""
        with os.scandir(self.path.parent) as entries:
            names = [entry.name for entry in entries if entry.name.endswith((".txt", ".json")) and entry.is_file()]
        return tuple(sorted(name for name in names if not _is_ignored(name)))

    def stamp(self) -> Iterator[str]:
        for name in dict.fromkeys((self.path.name, *self.beside())):
            status = (self.path.parent / name).stat()
            yield f"{name} {status.st_size} {status.st_mtime_ns}"

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Make errors name the file itself instead of a place in its folder."""
        try:
            yield
        except InputError as fault:
            raise InputError(self.path.parent / fault.place, fault.problem) from None


def open_tree(path: str | Path) -> FileTree:
    """Open a folder, a .zip or a single file. Raises `InputError` for anything else."""
    path = Path(path)
    if path.is_dir():
        return FolderTree(path)
    if not path.exists():
        raise InputError(path, "no such file or folder")
    if not path.is_file():
        raise InputError(path, "is neither a folder nor a regular file")
    if path.suffix.lower() == ".zip" or zipfile.is_zipfile(path):
        return ZipTree(path)
    return SingleFileTree(path)


def _is_safe(name: str) -> bool:
    # Strings instead of path objects, which would take seconds for hundreds of thousands of names.
    parts = name.split("/")
    return bool(parts[0]) and ".." not in parts


def _regular_files(root: Path) -> Iterator[str]:
    """Names relative to `root`. Unreadable folders count as empty, and links to folders are not followed."""
    folders = [""]
    while folders:
        prefix = folders.pop()
        with suppress(PermissionError), os.scandir(root / prefix) as entries:
            for entry in entries:
                if _is_ignored(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                elif _is_file(entry):
                    yield prefix + entry.name


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # A link that leads to itself.
        return False


def _is_ignored(name: str) -> bool:
    return (name.startswith(".") and name != ".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _common_top(names: dict[str, zipfile.ZipInfo]) -> str:
    tops = {name.split("/", 1)[0] if "/" in name else "" for name in names}
    return f"{tops.pop()}/" if len(tops) == 1 and "" not in tops else ""
