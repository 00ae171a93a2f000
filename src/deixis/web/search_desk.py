"""The engine behind the search pages: one thread per CPU core answers waiting queries, several together.

Encoding eight sentences at once takes about as long as three one by one, and the embeddings are read once for all of
them; so a busy server answers in batches instead of falling behind. Another thread looks whether the index has changed
and opens it anew; queries go on over the old state until the new one is ready.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import NamedTuple

import numpy as np

from deixis.adapters.search_model import Floats, SearchModel
from deixis.errors import DeixisError
from deixis.search.engine import IgnoredExclusion, Ranking, SearchEngine, Terms, example_terms, rounded_down
from deixis.search.filters import Filter
from deixis.search.queries import Query
from deixis.search.relevance import likelihoods
from deixis.web.shelf import Shelf

#: Queries that a thread takes at a time, and how many of them, of about the same length, it answers together: more at
#: once gain nothing, and all wait for the longest.
TAKEN, BATCH = 16, 8
#: Queries that may wait; more are refused at once.
WAITING = 1000
#: Pictures that are ranked for a first page; further pages, and queries with many matches, rank more of them, each time
#: `DEEPER` times as many, up to `DEEPEST`.
FIRST, DEEPER, DEEPEST = 300, 4, 20_000
#: Bytes of rankings that are kept, since further pages of them may be asked for.
KEPT_BYTES = 32 << 20
#: Seconds between two looks at the index; one that takes long to open is opened anew less often.
LOOK, REST = 1.0, 5.0


class Busy(DeixisError):
    """More is asked than can be answered."""


class Found(NamedTuple):
    """A picture that was found: its number in `engine`'s collection, how surely it is what was asked for."""

    picture: int
    score: float
    relevant: bool


class Answered(NamedTuple):
    """A part of what was found, best first, and the engine whose pictures they are."""

    engine: SearchEngine
    found: list[Found]
    #: How many pictures match, those of other parts included.
    matches: int
    #: Whether more follow.
    more: bool
    ignored_exclusions: Sequence[IgnoredExclusion]


class Part(NamedTuple):
    """Which part of the pictures is wanted: so many from a place on, of those that pass a filter."""

    most: int
    start: int = 0
    only: Filter = Filter()
    #: A picture that is left out: the example itself.
    without: int | None = None


class _Ranked(NamedTuple):
    """A ranking as far as it was made; `depth` is the count that was asked of the engine."""

    ranking: Ranking
    depth: int

    @property
    def bytes(self) -> int:
        return self.ranking.ids.nbytes + self.ranking.odds.nbytes


_Key = tuple[int, str | None, bytes | None, Filter]
Answering = Future[Answered]


class Question(NamedTuple):
    engine: SearchEngine
    query: Query | None
    #: The embedding of a picture that results should resemble.
    example: Floats | None
    part: Part
    answer: Answering

    def key(self) -> _Key:
        """What the ranking depends on."""
        text = None if self.query is None else self.query.text
        return id(self.engine), text, None if self.example is None else self.example.tobytes(), self.part.only

    def length(self) -> int:
        """How much there is to encode."""
        return 0 if self.query is None else len(self.query.text.split())


class Desk:
    """Questions go in from any thread, answers come out as futures.

    Args:
        index: the index' folder.
        model: an open model; None opens the one that the index was made with, also when that becomes another.
    """

    def __init__(self, index: str | Path, model: SearchModel | None = None) -> None:
        self._given = model
        self.engine = _ready(SearchEngine(index, model))
        self._before: SearchEngine | None = None
        #: Why the newest state of the index is not served; empty where it is.
        self.problem = ""
        self._rankings: Shelf[_Key, _Ranked] = Shelf(KEPT_BYTES, lambda ranked: ranked.bytes)
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._closed = Event()
        answering = [Thread(target=self._answer_all, daemon=True) for _ in range(os.cpu_count() or 1)]
        self._threads = [*answering, Thread(target=self._keep_up, daemon=True)]
        for thread in self._threads:
            thread.start()

    def ask(self, engine: SearchEngine, query: Query | None, part: Part, example: Floats | None = None) -> Answering:
        """The best pictures for a query, for what resembles a picture, or for both.

        Args:
            engine: the one that `example` comes from; `self.engine` is the newest.
        """
        if self.waiting >= WAITING:
            raise Busy("too many are asking; try again in a moment")
        answer: Answering = Future()
        self._questions.put(Question(engine, query, example, part, answer))
        return answer

    @property
    def waiting(self) -> int:
        """How many questions wait."""
        return self._questions.qsize()

    def close(self) -> None:
        self._closed.set()
        for _ in self._threads:
            self._questions.put(None)
        for thread in self._threads:
            thread.join()
        self.engine.collection.close()
        if self._before is not None:
            self._before.collection.close()

    def _answer_all(self) -> None:
        while (question := self._questions.get()) is not None:
            asked = [question, *self._others()]
            asked = [waiting for waiting in asked if waiting.answer.set_running_or_notify_cancel()]
            for engine in {id(waiting.engine): waiting.engine for waiting in asked}.values():
                questions = sorted((waiting for waiting in asked if waiting.engine is engine), key=Question.length)
                for start in range(0, len(questions), BATCH):
                    self._answer(engine, questions[start : start + BATCH])

    def _others(self) -> Iterator[Question]:
        """What waits beside the first question."""
        for _ in range(TAKEN - 1):
            try:
                question = self._questions.get_nowait()
            except Empty:
                return
            if question is None:
                # Another thread's, too, to end on.
                self._questions.put(None)
                return
            yield question

    def _answer(self, engine: SearchEngine, batch: Sequence[Question]) -> None:
        try:
            answers = self._answers(engine, batch)
        except Exception as fault:
            if len(batch) > 1:
                # One by one, only the faulty question fails.
                for question in batch:
                    self._answer(engine, [question])
            else:
                batch[0].answer.set_exception(fault)
            return
        for question, answer in zip(batch, answers, strict=True):
            question.answer.set_result(answer)

    def _answers(self, engine: SearchEngine, batch: Sequence[Question]) -> list[Answered]:
        ranked_before = [self._rankings.find(question.key()) for question in batch]
        # One picture more says whether there are more.
        wanted = [part.start + part.most + 2 for part in (question.part for question in batch)]
        lacking = [
            position
            for position, (ranked, count) in enumerate(zip(ranked_before, wanted, strict=True))
            if ranked is None or len(ranked.ranking.ids) < count
        ]
        terms = dict(zip(lacking, _terms(engine, [batch[position] for position in lacking]), strict=True))
        new = [position for position in lacking if ranked_before[position] is None]
        within = [engine.passing(batch[position].part.only) for position in new]
        rankings = engine.rank([terms[position] for position in new], FIRST, within)
        for index, within_ids, ranking in zip(new, within, rankings, strict=True):
            # A filter leaves few enough pictures to rank them all.
            depth = DEEPEST if within_ids is not None else FIRST
            while _mostly_matches(ranking) and depth < min(DEEPEST, len(engine.collection)):
                depth *= DEEPER
                (ranking,) = engine.rank([terms[index]], depth)
            ranked_before[index] = _Ranked(ranking, depth)
        answers = []
        for index, question in enumerate(batch):
            ranked = ranked_before[index]
            assert ranked is not None
            if index in terms:
                ranked = _extended(engine, terms[index], ranked, wanted[index])
                self._rankings.put(question.key(), ranked)
            answers.append(_answered(question, ranked.ranking))
        return answers

    def _keep_up(self) -> None:
        wait = LOOK
        while not self._closed.wait(wait):
            began = time.monotonic()
            try:
                if self.engine.collection.is_stale():
                    self._renew()
                self.problem = ""
            except Exception as fault:  # A database that breaks raises other errors, too, and may be mended.
                if str(fault) != self.problem:
                    logging.getLogger(__name__).warning("the index has changed and cannot be opened: %s", fault)
                self.problem = str(fault)
            wait = max(LOOK, REST * (time.monotonic() - began))

    def _renew(self) -> None:
        index, model = self.engine.collection.index, self.engine.model
        try:
            engine = SearchEngine(index, model)
        except DeixisError:
            if self._given is not None:
                raise
            engine = SearchEngine(index)
        before, self._before, self.engine = self._before, self.engine, _ready(engine)
        # Another engine may come to have the id of one that is gone.
        self._rankings = Shelf(KEPT_BYTES, lambda ranked: ranked.bytes)
        if before is not None:
            # Nobody has asked it anything since the last change.
            before.collection.close()


def _ready(engine: SearchEngine) -> SearchEngine:
    """The engine with everything loaded, so that the first question is answered as fast as others."""
    engine.model.embed_queries(["a"])
    assert engine.collection.nearest is not None
    return engine


def _terms(engine: SearchEngine, batch: Sequence[Question]) -> list[Terms]:
    words = [question for question in batch if question.query is not None]
    encoded = iter(engine.terms([term.query for term in words if term.query], [term.example for term in words]))
    terms: list[Terms] = []
    for question in batch:
        if question.query is not None:
            terms.append(next(encoded))
        else:
            assert question.example is not None
            terms.append(example_terms(question.example))
    return terms


def _mostly_matches(ranking: Ranking) -> bool:
    return 2 * int((ranking.odds >= 0).sum()) > len(ranking.ids)


def _extended(engine: SearchEngine, terms: Terms, ranked: _Ranked, wanted: int) -> _Ranked:
    """A ranking of at least so many pictures, where there are as many; what it had stays where it was."""
    ranking, depth = ranked
    while len(ranking.ids) < wanted and depth < min(DEEPEST, len(engine.collection)):
        depth *= DEEPER
        (deeper,) = engine.rank([terms], depth)
        new = ~np.isin(deeper.ids, ranking.ids)
        ranking = Ranking(
            np.concatenate([ranking.ids, deeper.ids[new]]),
            np.concatenate([ranking.odds, deeper.odds[new]]),
            ranking.absent,
        )
    return _Ranked(ranking, depth)


def _answered(question: Question, ranking: Ranking) -> Answered:
    ids, odds, (most, start, _, without) = ranking.ids, ranking.odds, question.part
    if without is not None:
        others = ids != without
        ids, odds = ids[others], odds[others]
    part = slice(start, start + most)
    scores = likelihoods(odds[part]).tolist()
    rows = zip(ids[part].tolist(), scores, (odds[part] >= 0).tolist(), strict=True)
    hits = [Found(picture, rounded_down(score), matches) for picture, score, matches in rows]
    engine, query = question.engine, question.query
    ignored = [] if query is None else engine.ignored_exclusions(query, ranking)
    return Answered(engine, hits, int((odds >= 0).sum()), len(ids) > start + most, ignored)
