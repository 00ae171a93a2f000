"""Griffe extension for the site: show doctest examples in docstrings as code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A block of lines that begins with a prompt, up to the next empty line.
EXAMPLE = re.compile(r"(?m)^>>> (?:.*\n?)+?(?=\n|\Z)")


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put fences around the examples of a docstring."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
