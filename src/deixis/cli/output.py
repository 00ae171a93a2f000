"""How commands talk: results on standard output (a table for people, JSON for programs), progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

from deixis.errors import DeixisError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from deixis.corpus import Corpus
    from deixis.features.store import FeatureStore
    from deixis.training.recipe import FitRecipe

Item = TypeVar("Item")
#: Seconds between lines of progress where standard error is not a terminal.
EVERY_SECONDS = 30.0


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, and flush, so that a reader gets it at once."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def console() -> Console:
    """Standard output for people. Brackets in what strangers wrote are no markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: the first column is text, the others are numbers."""
    from rich.table import Table

    table = Table()
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    for row in rows:
        table.add_row(*("\n".join(map(printable, cell.split("\n"))) for cell in row))
    # A title of the table itself would be broken to the table's width, in the middle of paths.
    console().print(printable(title), style="bold", soft_wrap=True)
    console().print(table)


class Interrupted(BaseException):
    """Ctrl-C during work that can be continued later; `at_once`: exit without waiting for threads."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once


@contextmanager
def resumable(*, at_once: bool = False) -> Iterator[None]:
    """Mark work that continues where it was interrupted when it is started again.

    Python waits for all threads before it exits. `at_once` skips that, for threads that only decode pictures, each of
    which may take seconds.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(at_once) from None


@contextmanager
def progress_bar(description: str, unit: str = "images") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, with speed and time left; a line every half minute if it is not a terminal."""
    if not sys.stderr.isatty():
        yield _lines(description, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: RichTask) -> Text:
            return Text(f"{task.speed:.1f} {unit}/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(description: str, unit: str) -> Callable[[int, int], None]:
    """Progress as lines of a log: one every half minute, so none for short work."""
    start = last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            speed = done / (last - start)
            left = f", {speed:.1f} {unit}/s, {_duration((total - done) / speed)} left" if done else ""
            print(f"{description}: {done:,} of {total:,}{left}", file=sys.stderr, flush=True)

    return progress


def _duration(seconds: float) -> str:
    """
    >>> _duration(95), _duration(8000)
    ('1 min 35 s', '2 h 13 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def track(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Iterate over `total` items with a progress bar."""
    with progress_bar(description) as progress:
        for done, item in enumerate(items, start=1):
            yield item
            progress(done, total)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something long runs; a line after half a minute if it is not a terminal."""
    if not sys.stderr.isatty():
        late = Timer(EVERY_SECONDS, lambda: print(f"{what} …", file=sys.stderr, flush=True))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield


def scored_split(corpus: Corpus, given: str | None) -> str | None:
    """The split to score: the given one, else `test`, or None (all images) for a corpus without splits."""
    from deixis.cli.options import SCORED_SPLIT

    if given is not None:
        return given
    return None if set(corpus.splits) <= {""} else SCORED_SPLIT


def recipe_corpus(
    recipe: FitRecipe, given: str | None, pictures: str | Path | None = None, *, shown: bool = True
) -> Corpus:
    """Open the corpus at the given path or, without one, the recipe's own, if its name says where it is."""
    from deixis.corpus import open_corpus

    if given is None and recipe.corpus.partition(":")[0] != "scenes" and not Path(recipe.corpus).exists():
        raise DeixisError(f"{recipe.name} needs the corpus {recipe.corpus!r}; give its path with --corpus PATH")
    with busy(f"Reading {given or recipe.corpus}") if shown else nullcontext():
        return open_corpus(given or recipe.corpus, pictures=pictures)


def run_corpus(run: Path, recipe: FitRecipe, given: str | None, pictures: str | Path | None = None) -> Corpus:
    """Open the corpus at the given path or, without one, the run's own, if its recipe says where it is."""
    from deixis.training.runs import read_plan

    opened = recipe_corpus(recipe, given, pictures)
    trained = read_plan(run).corpus if given is None else None
    if trained is not None and trained.fingerprint != opened.fingerprint:
        raise DeixisError(
            f"{run} was trained on another corpus than its recipe's {recipe.corpus!r}; give the one to use with "
            "--corpus PATH"
        )
    return opened


def run_stores(
    run: Path, recipe: FitRecipe, corpus: Corpus, features: Sequence[Path] | None, device: str, split: str | None = None
) -> list[FeatureStore]:
    """Open the given feature stores or, without any, those that the run needs, extracting what is missing.

    An unfinished run is refused before anything is extracted.
    """
    from deixis.features.store import FeatureStore
    from deixis.training.running import stores_for
    from deixis.training.runs import read_model

    read_model(run)
    if features:
        return [FeatureStore(path) for path in features]
    with progress_bar("Extracting features") as extracting:
        return stores_for(recipe, corpus, run=run, split=split, device=device, progress=extracting)
