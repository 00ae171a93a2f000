"""Filters beside a query: only pictures of a folder, of a file name, or of a time."""

from __future__ import annotations

import os
import re
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from deixis.errors import DeixisError
from deixis.vision.picture_files import shown

#: Characters of a folder or a name; long patterns take seconds to prepare.
LONGEST = 500
#: A year, a month or a day.
DATE = r"^[0-9]{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?)?$"


class Filter(msgspec.Struct, frozen=True, dict=True):
    """What a picture must be; an empty text asks for nothing.

    Attributes:
        folder: a part of the path of the file's folder, in upper or lower case; folders end with a slash, so
            `2024/` is not a part of `2024-old/`.
        name: a part of the file's name, or a pattern with `*` and `?` for the whole of it, in upper or lower case.
        since: the first day, month or year: `2024-07-14`, `2024-07` or `2024`.
        until: the last day, month or year.
    """

    folder: str = ""
    name: str = ""
    since: str = ""
    until: str = ""

    def check(self) -> Filter:
        """The filter itself; a date that is none, or a text that no file could match, is a `DeixisError`."""
        if max(len(self.folder), len(self.name)) > LONGEST:
            raise DeixisError(f"folder and name have at most {LONGEST:,} characters")
        for option, date in (("since", self.since), ("until", self.until)):
            if date and not re.fullmatch(DATE, date):
                raise DeixisError(f"{option} {date!r} is no date; write 2024-07-14, 2024-07 or 2024")
        return self

    @property
    def is_empty(self) -> bool:
        return not (self.folder or self.name or self.since or self.until)

    def passes_date(self, taken: str) -> bool:
        """Whether a picture was taken at the right time, given as in 2024-07-14T15:20:31."""
        return not self.since > taken and not taken[: len(self.until)] > self.until

    def passes_path(self, path: bytes) -> bool:
        """Whether a file has the right folder and name."""
        if not (self.folder or self.name):
            return True
        folder, _, name = _slashed(shown(path)).rpartition("/")
        return self._folder in f"{folder}/" and self._has_name(name)

    @cached_property
    def _folder(self) -> str:
        return _slashed(self.folder)

    def _has_name(self, name: str) -> bool:
        wanted = self.name.lower()
        is_pattern = "*" in wanted or "?" in wanted
        return fnmatchcase(name, wanted.replace("[", "[[]")) if is_pattern else wanted in name


def _slashed(path: str) -> str:
    """A path in lower case, with the slashes of every system but Windows."""
    return path.lower() if os.sep == "/" else path.lower().replace(os.sep, "/")


def file_time(modified: int) -> str:
    """The time of a file, in nanoseconds since 1970, by this machine's clock."""
    try:
        return datetime.fromtimestamp(modified / 1e9).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00"
