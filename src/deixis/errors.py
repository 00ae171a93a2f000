"""The exceptions that Deixis raises. The command line prints them as one line and exits with code 2."""

from __future__ import annotations

from pathlib import PurePath


class DeixisError(Exception):
    """An error that the user can fix; the message names the place and the problem.

    >>> import deixis
    >>> try:
    ...     deixis.load_model("onnx:nowhere")
    ... except deixis.DeixisError as fault:
    ...     print(type(fault).__name__)
    InputError
    """


class InputError(DeixisError):
    """A file that cannot be read as what it should be.

    Args:
        path: the file, as the user named it.
        problem: what is wrong, in one clause. The middle of a very long one, which quotes a long value, is left out.
        place: where in the file: a member of the zip, a line, a field, an image id; shortened likewise.

    >>> print(InputError("captions.csv", "has no column 'caption'", "line 1"))
    captions.csv: line 1: has no column 'caption'
    """

    def __init__(self, path: str | PurePath, problem: str, place: str = "") -> None:
        self.path, self.problem, self.place = str(path), _shortened(problem, 1000), _shortened(place, 300)
        super().__init__(": ".join(part for part in (self.path, self.place, self.problem) if part))

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        """Lets worker processes send it to the main process."""
        return type(self), (self.path, self.problem, self.place)


def printable(text: str) -> str:
    r"""Untrusted text for a terminal: control characters are escaped.

    >>> print(printable("a\x1b[2J.jpg"))
    a\x1b[2J.jpg
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 3 + 3 :]}"


class LeakError(DeixisError):
    """A held-out picture was about to enter a training set.

    >>> from deixis.corpus.leak_guard import assert_trainable
    >>> try:
    ...     assert_trainable(["1056338697_4f7d7ce270"])  # a picture of the Flickr8k test split
    ... except LeakError as fault:
    ...     print(str(fault)[:19])
    1 held-out pictures
    """


class CannotError(DeixisError):
    """A model was asked for something that it cannot do; `model.abilities` lists what it can.

    >>> import deixis
    >>> try:
    ...     deixis.Model().describe("a.jpg")
    ... except CannotError as fault:
    ...     print("cannot describe")
    cannot describe
    """
