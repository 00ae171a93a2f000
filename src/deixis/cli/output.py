"""How commands talk: results on standard output (a table for people, JSON for programs), progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

from deixis.errors import DeixisError

if TYPE_CHECKING:
    from rich.console import Console

    from deixis.corpus import Corpus
    from deixis.features import FeatureStore
    from deixis.training.recipe import FitRecipe

Item = TypeVar("Item")
#: Between lines of progress in a log.
EVERY_SECONDS = 30.0


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_json_line(value: Any) -> None:
    """One JSON document on one line of standard output, which a reader has at once."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def console() -> Console:
    """Standard output for people."""
    from rich.console import Console

    return Console(highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people: the first column is text, the others are figures."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console().print(table)


class Interrupted(BaseException):
    """A person pressed Ctrl-C in work that goes on where it was; `at_once`: without waiting for its threads."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once


@contextmanager
def resumable(*, at_once: bool = False) -> Iterator[None]:
    """Around work that, started again, goes on where it was interrupted.

    Python waits for all threads before it ends. With `at_once` it does not: for threads that only decode pictures, each
    of which may take seconds.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(at_once) from None


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error: images a second, time left; a line now and then where that is no terminal."""
    if not sys.stderr.isatty():
        yield _lines(description)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: RichTask) -> Text:
            return Text(f"{task.speed:.1f} images/s" if task.speed else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(description: str) -> Callable[[int, int], None]:
    """What is told of progress where nobody looks on: nothing of what is done soon, else a line every half minute."""
    told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= EVERY_SECONDS:
            told = time.monotonic()
            print(f"{description}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return progress


def track(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Iterate over `total` items with a progress bar."""
    with progress_bar(description) as progress:
        for number, item in enumerate(items, start=1):
            yield item
            progress(number, total)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something long runs; where that is no terminal, a line after half a minute."""
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


def recipe_corpus(
    recipe: FitRecipe, given: str | None, pictures: str | Path | None = None, *, shown: bool = True
) -> Corpus:
    """The corpus at a path that is given or, where none is, the recipe's own, if its name tells where it is."""
    from deixis.corpus import open_corpus

    if given is None and recipe.corpus.partition(":")[0] != "scenes" and not Path(recipe.corpus).exists():
        raise DeixisError(f"{recipe.name} is for the corpus {recipe.corpus!r}; say where it is with --corpus PATH")
    with busy(f"Reading {given or recipe.corpus}") if shown else nullcontext():
        return open_corpus(given or recipe.corpus, pictures=pictures)


def run_corpus(run: Path, recipe: FitRecipe, given: str | None, pictures: str | Path | None = None) -> Corpus:
    """The corpus that is given or, where none is, the run's own, if its recipe tells where that is."""
    from deixis.training.runs import read_plan

    opened = recipe_corpus(recipe, given, pictures)
    trained = read_plan(run).corpus if given is None else None
    if trained is not None and trained.fingerprint != opened.fingerprint:
        raise DeixisError(
            f"{run} was trained on another corpus than its recipe's {recipe.corpus!r}; say which to look at with "
            "--corpus PATH"
        )
    return opened


def run_stores(
    run: Path, recipe: FitRecipe, corpus: Corpus, features: Sequence[Path] | None, device: str, split: str | None = None
) -> list[FeatureStore]:
    """The stores that are named, or those that a finished run is used with, extracted with a progress bar if need be.

    A run that is not finished is refused before anything is extracted for it.
    """
    from deixis.features import FeatureStore
    from deixis.training.running import stores_for
    from deixis.training.runs import read_model

    read_model(run)
    if features:
        return [FeatureStore(path) for path in features]
    with progress_bar("Extracting features") as extracting:
        return stores_for(recipe, corpus, run=run, split=split, device=device, progress=extracting)
