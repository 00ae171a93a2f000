"""The few exceptions Deixis raises on purpose. The command line prints them as one line and exits with 2."""

from __future__ import annotations

from pathlib import PurePath


class DeixisError(Exception):
    """Something the person at the keyboard can mend; the message says where and what."""


class InputError(DeixisError):
    """A file that cannot be read as what it should be.

    Args:
        path: the file, as the user named it.
        problem: what is wrong, in one clause.
        place: where in the file: a member of the zip, a line, a field, an image id.
    """

    def __init__(self, path: str | PurePath, problem: str, place: str = "") -> None:
        self.path, self.problem, self.place = str(path), problem, place
        super().__init__(": ".join(part for part in (self.path, place, problem) if part))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Workers send it to who asked them."""
        return type(self), (self.path, self.problem, self.place)


class LeakError(DeixisError):
    """A picture that must stay unseen was about to enter a training set."""


class CannotError(DeixisError):
    """A model was asked for something that it cannot do; `model.abilities` names what it can."""
