"""`deixis search`, `similar`, `duplicates`, `doctor`: pictures of an index, found by words or by another picture."""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from deixis.cli.options import Force, Index, Json, ModelName
from deixis.errors import DeixisError, InputError, printable

if TYPE_CHECKING:
    from deixis.model import Grounding
    from deixis.search.engine import Answer, SearchEngine
    from deixis.search.filters import Filter

#: Pictures that `--open` opens at most, that are listed where nothing matches, and by default.
OPENED, CLOSEST, SHOWN = 10, 5, 20
#: A minus and a word or a quoted phrase; not an option of one letter, its value behind it (-n5).
_EXCLUDED = re.compile(r"""-(?:[^\W\d_](?:[^\W\d]| )|")""")

NullOption = Annotated[bool, typer.Option("--null", "-0", help="End each path with a zero byte, for `xargs -0`.")]


@dataclass(frozen=True)
class ListOptions:
    """The options of commands that list pictures of an index."""

    count: Annotated[int, typer.Option("-n", "--count", min=1, max=100_000, help="Pictures at most.")] = SHOWN
    folder: Annotated[
        str,
        typer.Option(metavar="DIR", help="Only pictures below a folder, or a part of its path.", show_default=False),
    ] = ""
    name: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only files with this in their name, or like IMG_*.jpg.", show_default=False),
    ] = ""
    since: Annotated[
        str,
        typer.Option(
            metavar="DATE",
            help="Only pictures taken on or after a date: 2024-07-14, 2024-07 or 2024.",
            show_default=False,
        ),
    ] = ""
    until: Annotated[
        str, typer.Option(metavar="DATE", help="Only pictures taken on or before a date.", show_default=False)
    ] = ""
    index: Index = None
    model: ModelName = None
    paths_only: Annotated[bool, typer.Option("--paths-only", help="Print the paths of matches and nothing else.")] = (
        False
    )
    null: NullOption = False
    as_json: Json = False

    def engine(self) -> SearchEngine:
        from deixis.loading import load_search_model
        from deixis.search.engine import SearchEngine
        from deixis.search.generations import default_index

        return SearchEngine(self.index or default_index(), load_search_model(self.model) if self.model else None)

    def filter(self) -> Filter:
        """Which pictures are listed. An existing folder is meant as a whole; its links are resolved as in an index."""
        from deixis.search.filters import Filter
        from deixis.vision.picture_files import shown

        folder = self.folder
        if folder and os.path.isdir(folder):
            folder = os.path.join(shown(os.fsencode(os.path.realpath(folder))), "")
        return Filter(folder, self.name, self.since, self.until).check()


def _lists_pictures(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of its function and `ListOptions`, which the function takes as `options`."""

    def command(**given: Any) -> None:
        options = ListOptions(**{name: given.pop(name) for name in shared})
        function(**given, options=options)

    parameters, shared = (
        dict(inspect.signature(signed, eval_str=True).parameters) for signed in (function, ListOptions)
    )
    del parameters["options"]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [option.replace(kind=option.KEYWORD_ONLY) for option in (parameters | shared).values()]
    )
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


class ExcludingCommand(typer.core.TyperCommand):
    """Reads `-dog` as a query that excludes a word, not as the options -d, -o and -g."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for option in self.params
            if option.param_type_name == "option" and not getattr(option, "is_flag", False)
            for name in option.opts
        }
        previous = ["", *args]
        # A space makes an argument of it; the query's grammar ignores spaces.
        args = [
            f" {arg}" if _EXCLUDED.match(arg) and before not in with_value else arg
            for before, arg in zip(previous, args, strict=False)
        ]
        return super().parse_args(ctx, args)


@_lists_pictures
def search(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False)
    ] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="A picture that it should resemble.", show_default=False)
    ] = None,
    queries: Annotated[
        str, typer.Option(metavar="FILE", help="Many queries, one per line; `-` reads standard input.")
    ] = "",
    why: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Draw the phrases of the query as boxes on the matches, into a new folder; --force replaces it.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    open_found: Annotated[
        bool,
        typer.Option("--open", help=f"Open the first {OPENED} matches, or their drawings."),
    ] = False,
    *,
    options: ListOptions,
) -> None:
    """Find pictures by words, by an example picture, or by both.

    Quoted phrases must all be there ("a red car" "snow"). A minus before a word or a quoted phrase, "without", "no" and
    "but not" say what must not be there. Scores run from 0 to 1; pictures from 0.5 on are matches. If what you look for
    does not seem to be there at all, nothing is a match, the closest pictures are listed, and the exit code is 1.
    "a dog or a cat" finds pictures of either. With --queries each answer is one line of JSON.

    Example: deixis search 'two dogs playing in the snow -"people"' -n 5 --why boxes --open
    """
    query = joined_query(words or [])
    if why is not None:
        from deixis.cli.output_files import check_free

        check_free(why, force)
    if bool(query or like) == bool(queries):
        raise DeixisError("say what to look for: a QUERY, --like IMAGE, or --queries FILE, which stands alone")
    if (why is not None and not query) or (open_found and queries):
        raise DeixisError("--why needs a QUERY, and --open one question")
    only, engine = options.filter(), options.engine()
    if queries:
        if not _answer_lines(engine, queries, options.count, only):
            raise typer.Exit(1)
        return
    what = f"{query or 'a picture'} like {like}" if like else query
    answer = engine.search(query, options.count, like=like, only=only)
    drawn = _explain(engine, answer, why) if why is not None else None
    _print(answer, what, options, drawn)
    if drawn and not (options.paths_only or options.as_json):
        typer.echo(f"Drawn to {why}")
    if open_found:
        shown = (
            [hit.path for hit in answer.hits if hit.relevant]
            if drawn is None
            else [explained_hit.drawing for explained_hit in drawn]
        )
        _open(shown[:OPENED])
    if answer.absent:
        raise typer.Exit(1)


def joined_query(words: Sequence[str]) -> str:
    """The query of a command line's arguments; the shell removed the quotes around those with spaces.

    >>> joined_query(["a", "dog", "-people"])
    'a dog -people'
    >>> joined_query(["a red car", "snow", " -a blue boat"])
    '"a red car" snow -"a blue boat"'
    >>> joined_query(['a street without cars'])
    'a street without cars'
    """
    words = [word.strip() for word in words if word.strip()]
    return " ".join(_quoted(word) if len(words) > 1 and " " in word and '"' not in word else word for word in words)


def _quoted(phrase: str) -> str:
    return f'-"{phrase[1:].strip()}"' if phrase.startswith("-") else f'"{phrase}"'


@_lists_pictures
def similar(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture file, indexed or not.")],
    *,
    options: ListOptions,
) -> None:
    """Find the indexed pictures that resemble a picture. Exit code 1 if none does.

    Example: deixis similar holiday.jpg -n 10
    """
    only = options.filter()
    answer = options.engine().similar(image, options.count, only=only)
    _print(answer, f"a picture like {image}", options)
    if answer.absent:
        raise typer.Exit(1)


def duplicates(
    index: Index = None,
    paths_only: Annotated[
        bool, typer.Option("--paths-only", help="Print the paths of all but the largest picture of each group.")
    ] = False,
    null: NullOption = False,
    as_json: Json = False,
) -> None:
    """Find files that show the same picture: copies, other sizes and formats, slightly edited versions.

    The largest picture of each group comes first. Nothing is deleted.

    Example: deixis duplicates --paths-only
    """
    from deixis.cli.output import print_json, progress_bar
    from deixis.search.collection import Collection
    from deixis.search.duplicates import find_duplicates
    from deixis.search.generations import default_index
    from deixis.vision.picture_files import shown

    collection = Collection(index or default_index())
    try:
        with progress_bar("Comparing", "pictures") as progress:
            groups = find_duplicates(collection, progress)
    finally:
        collection.close()
    if paths_only:
        _print_paths((copy.path for group in groups for copy in group[1:]), null)
    elif as_json:
        print_json({"groups": [[{**copy._asdict(), "path": shown(copy.path)} for copy in group] for group in groups]})
    else:
        for group in groups:
            for copy in group:
                size = f"{copy.width} × {copy.height}" if copy.width else "?"
                typer.echo(f"{size:>13}  {copy.bytes:>12,}  {printable(shown(copy.path))}")
            typer.echo()
        more = sum(len(group) - 1 for group in groups)
        noun = "group" if len(groups) == 1 else "groups"
        typer.echo(
            f"{len(groups):,} {noun}; files besides the largest of each: {more:,}" if groups else "No duplicates."
        )


def doctor(index: Index = None, model: ModelName = None, as_json: Json = False) -> None:
    """Check the installation and an index, and say how to fix what is wrong. Exit code 1 if there is a problem.

    Example: deixis doctor --index my-index
    """
    from deixis.cli.output import busy, print_json
    from deixis.search.doctor import examine
    from deixis.search.generations import default_index

    with busy("Checking"):
        findings = examine(index or default_index(), model)
    if as_json:
        print_json({"healthy": all(finding.ok for finding in findings), "findings": findings})
    else:
        for finding in findings:
            remedy = f"\n           {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{'ok' if finding.ok else 'PROBLEM':>9}  {finding.check}: {printable(finding.message)}{remedy}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _answer_lines(engine: SearchEngine, file: str, count: int, only: Filter) -> bool:
    """Answer each line of a file; whether any of them has a match."""
    import msgspec

    any_match = False
    for line in _lines(file):
        if text := line.strip():
            try:
                answer = engine.search(text, count, only=only)
                record, any_match = answer.as_data(), any_match or not answer.absent
            except DeixisError as fault:
                # One bad line does not end the others.
                record = {"query": text, "error": str(fault)}
            sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
            sys.stdout.flush()
    return any_match


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


class Drawn(NamedTuple):
    """Of one hit, in the order of the hits."""

    drawing: bytes
    why: list[Grounding]
    fits_better: list[str]


def _explain(engine: SearchEngine, answer: Answer, folder: Path) -> list[Drawn]:
    """Draw the relevant hits, those first that rank first."""
    from deixis.cli.output import busy, track
    from deixis.cli.output_files import system_faults, write_drawing
    from deixis.figures.grounding_drawing import explained, grounding_model
    from deixis.search.queries import parse_query

    with system_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    hits = [hit for hit in answer.hits if hit.relevant]
    if not hits:
        return []
    with busy("Loading what points at phrases"):
        grounder = grounding_model(engine.model)
    query, drawn = parse_query(answer.query), []
    for number, hit in enumerate(track(hits, "Drawing", len(hits)), start=1):
        reasons, better, page = explained(grounder, query, hit.path)
        stem = os.path.splitext(os.path.basename(hit.path))[0].decode(errors="replace")
        target = folder / f"{number:03}-{''.join(sign if sign.isalnum() else '_' for sign in stem)[:60]}.png"
        write_drawing(page, target)
        drawn.append(Drawn(os.fsencode(target), reasons, better))
    return drawn


def _open(paths: Sequence[bytes]) -> None:
    for path in paths:
        if typer.launch(os.fsdecode(path)):
            raise DeixisError("no program opens pictures here; give --paths-only to another one")


def _print(answer: Answer, what: str, options: ListOptions, drawn: Sequence[Drawn] | None = None) -> None:
    from deixis.cli.output import print_json
    from deixis.vision.picture_files import shown

    if options.paths_only:
        _print_paths((hit.path for hit in answer.hits if hit.relevant), options.null)
        if answer.absent:
            typer.echo(f"no match for {printable(what)}", err=True)
        _print_unknown(answer)
        _print_more(answer)
        return
    if options.as_json:
        record = answer.as_data()
        for hit, drawing in zip((hit for hit in record["hits"] if hit["relevant"]), drawn or (), strict=False):
            hit.update(why=drawing.why, fits_better=drawing.fits_better, drawing=shown(drawing.drawing))
        print_json(record)
        return
    _print_unknown(answer)
    if answer.absent:
        none_passes = not (answer.hits or options.filter().is_empty)
        follows = ". Closest pictures:" if answer.hits else ": no picture passes the filters." if none_passes else "."
        # With a word that the model does not know, there may well be matches.
        verdict = "Not sure what matches" if answer.unknown else "No match for"
        typer.echo(f"{verdict} {printable(what)}{follows}")
    separated = answer.absent
    # Where nothing matches, a few are enough, unless more were asked for.
    few = answer.absent and options.count == SHOWN
    matches = (hit for hit in answer.hits if hit.relevant)
    better = {hit.path: drawing.fits_better for hit, drawing in zip(matches, drawn or (), strict=False)}
    for hit in answer.hits[:CLOSEST] if few else answer.hits:
        if not hit.relevant and not separated:
            typer.echo("Less likely:")
            separated = True
        # Rounded down: what is no match is not shown as 0.50.
        typer.echo(f"{math.floor(100 * hit.score) / 100:6.2f}  {printable(shown(hit.path))}")
        if better.get(hit.path):
            typer.echo(f"        fits better: {', '.join(better[hit.path])}")
    _print_more(answer)


def _print_more(answer: Answer) -> None:
    if answer.more_matches:
        typer.echo("There are more matches: raise --count (-n).", err=True)


def _print_unknown(answer: Answer) -> None:
    """Say which words the model does not know, or hardly, which exclusions left out nothing, and what may be meant."""
    excluded = {
        reason: [phrase for phrase, own_reason in answer.ignored_exclusions if own_reason == reason]
        for reason in ("unknown", "absent")
    }
    notes = []
    if answer.unknown:
        # With matches, unknown words are excluded, or on another side of "or".
        ignored = "" if answer.absent else f", and ignores {_it_or_them(answer.unknown)}"
        notes.append(f"The model does not know {_quoted_list(answer.unknown)}{ignored}.")
    if phrases := excluded["unknown"]:
        notes.append(f"Excluding {_quoted_list(phrases)} has no effect.")
    if answer.rare:
        wrong = f"is often wrong about {_it_or_them(answer.rare)}; look at the pictures yourself"
        notes.append(f"The model hardly knows {_quoted_list(answer.rare)} and {wrong}.")
    if absent := excluded["absent"]:
        notes.append(f"Excluding {_quoted_list(absent)} leaves no picture out: none matches.")
    notes += ["Queries are in English."] if answer.seems_foreign else []
    notes += [f'Did you mean "{answer.suggestion}"?'] if answer.suggestion else []
    if notes:
        typer.echo(printable(" ".join(notes)), err=True)


def _quoted_list(texts: Sequence[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts)


def _it_or_them(texts: Sequence[str]) -> str:
    return "it" if len(texts) == 1 else "them"


def _print_paths(paths: Iterable[bytes], null: bool) -> None:
    """Names as the system has them, byte for byte."""
    for path in paths:
        sys.stdout.buffer.write(path + (b"\0" if null else b"\n"))
    sys.stdout.buffer.flush()
