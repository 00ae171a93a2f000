"""A whole project from the first question to the last, answered by simulated workers through the workbench.

A pool of workers takes tasks in random order. A worker suspended from half of the tasks is replaced. When no worker
gets a task, a reviewer who knows the ground truth settles the review queue. The replay ends when every image is
finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from deixis.annotation.reviews import Review
from deixis.annotation.simulation.simulated_workers import Behaviour, SimulatedWorker, careful
from deixis.annotation.simulation.truth import Truth
from deixis.annotation.trust import Standing
from deixis.annotation.workbench import StaleTask, Workbench
from deixis.annotation.workflow_records import CHAIN, TASKS, AcceptFix, BoxesFix, ChainsFix, Fix

#: Kind → number of workers in the initial pool, and a function that creates the behaviour of one.
Population = Mapping[str, tuple[int, Callable[[], Behaviour]]]


@dataclass
class Replay:
    """Result of a replay: the kind of each worker, counts, and the reviewer's fixes by cause."""

    kinds: dict[int, str] = field(default_factory=dict)
    judgments: int = 0
    stale: int = 0
    fixes: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    finished: bool = False


def replay(
    workbench: Workbench,
    truths: Mapping[str, Truth],
    population: Population,
    replacement_error: float,
    chance: Random,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Run a project until it is finished, or until neither workers nor reviewer can continue."""
    outcome = Replay()
    pool: dict[int, SimulatedWorker] = {}

    def hire(kind: str, behaviour: Behaviour) -> None:
        worker_id = workbench.add_worker(f"{kind} {len(outcome.kinds) + 1}")
        outcome.kinds[worker_id] = kind
        pool[worker_id] = SimulatedWorker(kind, behaviour, truths, Random(chance.getrandbits(64)))

    for kind, (count, make) in population.items():
        for _ in range(count):
            hire(kind, make())
    reviewer = workbench.add_worker("reviewer", "reviewer")
    while True:
        worked = _work(workbench, pool, outcome, chance)
        for worker in _shut_out(workbench, pool):
            del pool[worker]
            outcome.replaced += 1
            hire("replacement", careful(replacement_error))
            worked = True
        if progress is not None:
            now = workbench.progress()
            progress(now.finished, now.images)
        if worked:
            continue
        waiting = workbench.review_queue(limit=1000)
        if not waiting:
            now = workbench.progress()
            outcome.finished = now.finished == now.images
            return outcome
        for review in waiting:
            _settle(workbench, reviewer, review, truths[review.image], outcome)


def _work(workbench: Workbench, pool: Mapping[int, SimulatedWorker], outcome: Replay, chance: Random) -> bool:
    """Let workers answer in random order until none of them gets a task. Returns whether any task was answered."""
    idle: set[int] = set()
    numbers = list(pool)
    worked = 0
    while len(idle) < len(numbers) and worked < 2000:
        worker = chance.choice([n for n in numbers if n not in idle] if len(idle) > len(numbers) // 2 else numbers)
        view = workbench.next_task(worker)
        if view is None:
            idle.add(worker)
            continue
        idle.clear()
        worked += 1
        try:
            workbench.submit(worker, view.token, pool[worker].answer(view))
            outcome.judgments += 1
        except StaleTask:
            outcome.stale += 1
    return worked > 0


def _shut_out(workbench: Workbench, pool: Mapping[int, SimulatedWorker]) -> list[int]:
    """Workers suspended from at least half of the tasks; new ones replace them."""
    barred = (Standing.FAILED, Standing.SUSPENDED)
    return [
        report.id
        for report in workbench.workers()
        if report.id in pool and sum(report.standings[task] in barred for task in TASKS) >= len(TASKS) // 2
    ]


def _settle(workbench: Workbench, reviewer: int, review: Review, truth: Truth, outcome: Replay) -> None:
    """Settle one review from the ground truth, unless an earlier fix of the image has already settled it."""
    view = workbench.inspect_image(review.image)
    spans = {m.id: (m.caption, m.start, m.end) for m in view.document.mentions}
    open_keys = {entry.key for entry in view.reviews}
    if review.task == "review" and review.key not in open_keys:
        return
    if f" {CHAIN} " in review.key:
        parts: dict[str | None, list[str]] = {}
        for mention in review.mentions:
            parts.setdefault(truth.chain_of(*spans[mention]), []).append(mention)
        same = len(parts) == 1
        fix: Fix = AcceptFix(review.key) if same else ChainsFix(tuple(tuple(part) for part in parts.values()))
        cause = "chain, right as it was" if same else "chain"
    else:
        mention = review.mentions[0]
        chain = truth.chain_of(*spans[mention])
        fix = BoxesFix(mention, truth.boxes(chain), truth.verdict(chain))  # type: ignore[arg-type]
        cause = review.reason if review.task != "review" else "boxes"
    workbench.fix(reviewer, review.image, fix, view.version)
    outcome.fixes[cause] = outcome.fixes.get(cause, 0) + 1
