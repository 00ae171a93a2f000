"""The bracket notation of Flickr30k Entities' Sentences files: `[/EN#<chain>/<type>/<type> <word> <word>] <word>`.

Phrases may be adjacent or nested. Brackets, backslashes and white space inside a word are escaped with a backslash. The
released files have no such words.
"""

from __future__ import annotations

import re

from deixis.corpus.records import Caption, Phrase, make_caption

_OPENING = "[/EN#"
#: A piece of a line: a closing bracket, an opening bracket with its header, a word, or a stray character.
_PIECE = re.compile(
    r"\]|\[?[^\s\\\[\]]+(?:\\.[^\s\\\[\]]*)*|\[?(?:\\.[^\s\\\[\]]*)+|[\[\\]", re.DOTALL
)  # fmt: skip
_HEADER_FIELD = re.compile(r"/((?:\\.|[^/\\])*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
#: The byte order mark is escaped because readers drop it at the start of a file.
_SPECIAL = re.compile(r"[\\\[\]\s\ufeff]")
#: Escapes that mean something else than the character after the backslash. `\e` is an empty word.
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "e": ""}
_ESCAPE_NAMES = {"\n": "\\n", "\r": "\\r"}


def parse_caption(line: str, *, unrelated: bool = False) -> Caption:
    """Parse one line. Raises `ValueError` that names the wrong bracket."""
    tokens: list[str] = []
    phrases: list[Phrase] = []
    opened: list[tuple[int, str]] = []  # first token and header of each phrase not yet closed
    for piece in _PIECE.findall(line):
        if piece == "]":
            if not opened:
                raise ValueError("a closing bracket has no opening one")
            start, header = opened.pop()
            if start == len(tokens):
                raise ValueError(f"phrase {header} has no words")
            phrases.append(Phrase(start, len(tokens), *_parse_header(header)))
        elif piece[0] == "[":
            if not piece.startswith(_OPENING):
                raise ValueError(f"bracket {piece} does not begin a phrase ([/EN#chain/type words])")
            opened.append((len(tokens), piece))
        else:
            tokens.append(_unescape(piece) if "\\" in piece else piece)
    if opened:
        raise ValueError(f"phrase {opened[-1][1]} is not closed")
    return make_caption(" ".join(tokens), tokens if "\\" in line else None, phrases, unrelated=unrelated)


def format_caption(caption: Caption) -> str:
    """Write a caption as one line. Raises `ValueError` if two phrases cross. Outer phrases come before inner ones."""
    opening: dict[int, list[str]] = {}
    closing: dict[int, int] = {}
    ends: list[int] = []  # of the phrases open at this point, outermost first
    for phrase in caption.phrases:
        while ends and ends[-1] <= phrase.start:
            ends.pop()
        if ends and phrase.end > ends[-1]:
            raise ValueError(f"phrase {caption.phrase_text(phrase)!r} crosses another, which brackets cannot show")
        ends.append(phrase.end)
        header = "/".join(_escape(field).replace("/", "\\/") for field in (phrase.chain, *phrase.types))
        opening.setdefault(phrase.start, []).append(f"{_OPENING}{header} ")
        closing[phrase.end - 1] = closing.get(phrase.end - 1, 0) + 1
    return " ".join(
        "".join(opening.get(index, ())) + (_escape(token) or "\\e") + "]" * closing.get(index, 0)
        for index, token in enumerate(caption.tokens)
    )


def _parse_header(header: str) -> tuple[str, tuple[str, ...]]:
    rest = header.removeprefix(_OPENING)
    fields = rest.split("/")
    if "\\" in rest:
        fields = [_unescape(field) for field in _HEADER_FIELD.findall("/" + rest)]
    if not fields[0]:
        raise ValueError(f"phrase {header} names no chain")
    return fields[0], tuple(fields[1:])


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: _ESCAPE_NAMES.get(match[0], "\\" + match[0]), text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: _NAMED_ESCAPES.get(match[1], match[1]), text)
