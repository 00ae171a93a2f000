"""`deixis search`, `deixis similar`, `deixis doctor`: pictures of an index, found by words or by another picture."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deixis.cli.index import EncoderOption, IndexOption, JsonOption
from deixis.errors import DeixisError, InputError

if TYPE_CHECKING:
    from deixis.search.engine import Answer, SearchEngine

CountOption = Annotated[int, typer.Option("-n", "--count", min=1, max=100_000, help="Pictures at most.")]
PathsOption = Annotated[
    bool, typer.Option("--paths-only", help="Print nothing but the paths of what seems to be there.")
]
NullOption = Annotated[bool, typer.Option("--null", "-0", help="End each path with a zero byte, for `xargs -0`.")]


def search(
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="What to look for.", show_default=False)] = "",
    count: CountOption = 20,
    like: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="A picture that it should resemble.", show_default=False)
    ] = None,
    queries: Annotated[
        str, typer.Option(metavar="FILE", help="Many queries, one a line; `-` reads standard input.")
    ] = "",
    index: IndexOption = None,
    encoder: EncoderOption = None,
    paths_only: PathsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find pictures of an index by words, by an example, or by both.

    Quoted phrases must all be there ("a red car" "snow"); a minus before a word or a quoted phrase, or "and not", says
    what must not be there. Scores run from 0 to 1; from 0.5 on a picture counts as what was asked for, and a query that
    no picture reaches it with is said to be absent. With --queries each answer is one line of JSON.

    Example: deixis search 'two dogs playing in the snow -"people"' -n 5
    """
    if bool(query or like) == bool(queries):
        raise DeixisError("say what to look for: a QUERY, --like IMAGE, or --queries FILE, which stands alone")
    engine = _engine(index, encoder)
    if queries:
        _answer_lines(engine, queries, count)
        return
    what = " ".join(([query] if query else []) + ([f"like {like}"] if like else []))
    _print(engine.search(query, count, like=like), what, paths_only, null, as_json)


def similar(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture file, indexed or not.")],
    count: CountOption = 20,
    index: IndexOption = None,
    encoder: EncoderOption = None,
    paths_only: PathsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the pictures of an index that resemble a picture.

    Example: deixis similar holiday.jpg -n 10
    """
    _print(_engine(index, encoder).similar(image, count), f"like {image}", paths_only, null, as_json)


def doctor(index: IndexOption = None, encoder: EncoderOption = None, as_json: JsonOption = False) -> None:
    """Look for what keeps search from working, and say what mends it; the exit code is 1 where something does.

    Example: deixis doctor --index my-index
    """
    from deixis.cli.output import busy, print_json
    from deixis.search.doctor import examine
    from deixis.search.generations import default_index
    from deixis.search.walking import printable

    with busy("Looking"):
        findings = examine(index or default_index(), encoder)
    if as_json:
        print_json({"healthy": all(each.well for each in findings), "findings": findings})
    else:
        for each in findings:
            remedy = f"\n         {each.remedy}" if each.remedy else ""
            typer.echo(f"{'well' if each.well else 'NOT':>6}  {each.what}: {printable(each.told)}{remedy}")
    if not all(each.well for each in findings):
        raise typer.Exit(1)


def _engine(index: Path | None, encoder: str | None) -> SearchEngine:
    from deixis.search.encoders import load_encoder
    from deixis.search.engine import SearchEngine
    from deixis.search.generations import default_index

    return SearchEngine(index or default_index(), load_encoder(encoder) if encoder else None)


def _answer_lines(engine: SearchEngine, file: str, count: int) -> None:
    import msgspec

    for line in _lines(file):
        if text := line.strip():
            try:
                told = engine.search(text, count).as_data()
            except DeixisError as fault:
                # One bad line does not end the others.
                told = {"query": text, "error": str(fault)}
            sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
            sys.stdout.flush()


def _lines(file: str) -> Iterator[str]:
    if file == "-":
        yield from sys.stdin
        return
    try:
        with open(file, encoding="utf-8") as stream:
            yield from stream
    except OSError as fault:
        raise InputError(file, fault.strerror or str(fault)) from None
    except UnicodeDecodeError:
        raise InputError(file, "is not UTF-8 text") from None


def _print(answer: Answer, what: str, paths_only: bool, null: bool, as_json: bool) -> None:
    from deixis.cli.output import print_json
    from deixis.search.walking import printable, shown

    if paths_only:
        _print_paths((hit.path for hit in answer.hits if hit.relevant), null)
        return
    if as_json:
        print_json(answer.as_data())
        return
    if answer.unknown:
        typer.echo(f"words that the encoder has never seen: {printable(', '.join(answer.unknown))}", err=True)
    if answer.absent:
        typer.echo(f"Nothing seems to be {printable(what)}" + ("; the nearest:" if answer.hits else ""))
    told_rest = answer.absent
    for hit in answer.hits:
        if not hit.relevant and not told_rest:
            typer.echo("and rather not:")
            told_rest = True
        typer.echo(f"{hit.score:6.2f}  {printable(shown(hit.path))}")


def _print_paths(paths: Iterable[bytes], null: bool) -> None:
    """Names as the system has them, byte for byte."""
    for path in paths:
        sys.stdout.buffer.write(path + (b"\0" if null else b"\n"))
    sys.stdout.buffer.flush()
