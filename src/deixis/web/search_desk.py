"""The engine behind the search pages: a thread for each processor answers queries that wait, several together.

Encoding eight sentences at once takes about as long as three one by one, and a row of vectors is read once for all of
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

from deixis.adapters.search_model import Rows, SearchModel
from deixis.errors import DeixisError
from deixis.search.engine import SearchEngine, Terms, example_terms, rounded_down
from deixis.search.queries import Query
from deixis.search.relevance import likelihoods

#: Queries that a thread takes at a time, and how many of them, of about the same length, it answers together: more at
#: once gain nothing, and all wait for the longest.
TAKEN, BATCH = 16, 8
#: Queries that may wait; more are refused at once.
WAITING = 1000
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
    """What was found, best first, and the engine whose pictures they are."""

    engine: SearchEngine
    found: list[Found]


Answering = Future[Answered]


class Question(NamedTuple):
    engine: SearchEngine
    query: Query | None
    #: The row of a picture that what is found should resemble.
    example: Rows | None
    #: How many pictures are wanted.
    most: int
    answer: Answering

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
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._closed = Event()
        answering = [Thread(target=self._answer_all, daemon=True) for _ in range(os.cpu_count() or 1)]
        self._threads = [*answering, Thread(target=self._keep_up, daemon=True)]
        for thread in self._threads:
            thread.start()

    def ask(self, engine: SearchEngine, query: Query | None, count: int, example: Rows | None = None) -> Answering:
        """The best pictures for a query, for what resembles a picture, or for both.

        Args:
            engine: the one that `example` comes from; `self.engine` is the newest.
        """
        if self.waiting >= WAITING:
            raise Busy("too many are asking; try again in a moment")
        answer: Answering = Future()
        self._questions.put(Question(engine, query, example, count, answer))
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
            asked = [each for each in asked if each.answer.set_running_or_notify_cancel()]
            for engine in {id(each.engine): each.engine for each in asked}.values():
                own = sorted((each for each in asked if each.engine is engine), key=Question.length)
                for start in range(0, len(own), BATCH):
                    self._answer(engine, own[start : start + BATCH])

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
            answers = _answers(engine, batch)
        except Exception as fault:
            if len(batch) > 1:
                # Whose fault it is tells itself one by one.
                for question in batch:
                    self._answer(engine, [question])
            else:
                batch[0].answer.set_exception(fault)
            return
        for question, answer in zip(batch, answers, strict=True):
            question.answer.set_result(answer)

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
        if before is not None:
            # Nobody has asked it anything since the last change.
            before.collection.close()


def _ready(engine: SearchEngine) -> SearchEngine:
    """The engine with everything loaded, so that the first question is answered as fast as others."""
    engine.model.embed_queries(["a"])
    assert engine.collection.nearest is not None
    return engine


def _answers(engine: SearchEngine, batch: Sequence[Question]) -> list[Answered]:
    words = [question for question in batch if question.query is not None]
    encoded = iter(engine.terms([each.query for each in words if each.query], [each.example for each in words]))
    terms: list[Terms] = []
    for question in batch:
        if question.query is not None:
            terms.append(next(encoded))
        else:
            assert question.example is not None
            terms.append(example_terms(question.example))
    rankings = engine.rank(terms, max(question.most for question in batch))
    answers = []
    for question, ranking in zip(batch, rankings, strict=True):
        ids, odds = ranking.ids[: question.most], ranking.odds[: question.most]
        scores = likelihoods(odds)
        found = zip(ids.tolist(), scores.tolist(), (odds >= 0).tolist(), strict=True)
        answers.append(Answered(engine, [Found(picture, rounded_down(score), own) for picture, score, own in found]))
    return answers
