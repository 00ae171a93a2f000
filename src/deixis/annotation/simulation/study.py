"""Study of the workflow: one replay per population of workers, with figures for a result file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from deixis.annotation.project import create_project
from deixis.annotation.simulation.agreement import score_corpus
from deixis.annotation.simulation.causes import count_causes
from deixis.annotation.simulation.replay import Population, Replay, replay
from deixis.annotation.simulation.simulated_workers import careful, lazy, malicious, random_clicker
from deixis.annotation.simulation.truth import truths
from deixis.annotation.workbench import Workbench
from deixis.annotation.workflow_records import Settings
from deixis.corpus import Corpus
from deixis.errors import DeixisError
from deixis.metrics.annotation_errors import annotation_errors

POOL = 24
#: Error rate of careful workers and of replacements in the pool with bad workers.
MIXED_ERROR = 0.05


def _uniform(error: float) -> tuple[float, Population]:
    jitter = {"jitter": 0.0} if error == 0 else {}
    return error, {"careful": (POOL, lambda: careful(error, **jitter))}


#: Name → error rate of replacements, and the initial pool.
POPULATIONS: Mapping[str, tuple[float, Population]] = {
    "error-0": _uniform(0.0),
    "error-2": _uniform(0.02),
    "error-5": _uniform(0.05),
    "error-10": _uniform(0.10),
    "mixed": (
        MIXED_ERROR,
        {
            "careful": (12, lambda: careful(MIXED_ERROR)),
            "lazy": (4, lazy),
            "random": (4, random_clicker),
            "malicious": (4, malicious),
        },
    ),
}
BAD_KINDS = ("lazy", "random", "malicious")


@dataclass(frozen=True)
class Study:
    """Figures and counts of one population's replay, and whether the project was finished."""

    figures: dict[str, dict[str, float] | dict[str, dict[str, float]]]
    counts: dict[str, int]
    finished: bool


def choose_images(corpus: Corpus, images: int, known: int, chance: Random) -> tuple[Corpus, Corpus]:
    """Choose images to annotate, and others to make verification questions from."""
    usable = [image for image in corpus if any(phrase.visual for c in image.captions for phrase in c.phrases)]
    if len(usable) < images + known:
        raise DeixisError(f"the corpus has {len(usable)} images with phrases; {images + known} are needed")
    chosen = chance.sample(usable, images + known)
    return corpus.with_images(chosen[:images]), corpus.with_images(chosen[images:])


def run_study(
    where: Path,
    corpus: Corpus,
    known: Corpus,
    population: str,
    seed: int,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Annotate `corpus` from its mentions, in a new project at `where`, and compare the result with `corpus`."""
    error, people = POPULATIONS[population]
    create_project(where, corpus, start="mentions", known=known, settings=settings, chance=Random(seed), durable=False)
    with Workbench(where, chance=Random(seed + 1), durable=False) as workbench:
        outcome = replay(workbench, truths(corpus, known), people, error, Random(seed + 2), progress)
        differences = workbench.check()
        if differences:
            raise DeixisError(f"the tables disagree with the log: {differences[0]}")
        annotated = workbench.export().corpus
        figures: dict[str, dict[str, float] | dict[str, dict[str, float]]] = {**score_corpus(annotated, corpus)}
        figures["errors"] = {
            name: round(share, 3) for name, share in annotation_errors(annotated, corpus).shares().items()
        }
        figures |= _costs(workbench, outcome, len(corpus))
        figures["workers"] = _workers(workbench, outcome)
        finished = workbench.progress().finished
    counts = {"images": len(corpus), "finished": finished, "stale": outcome.stale, "replaced": outcome.replaced}
    counts |= {f"fixes: {cause}": count for cause, count in sorted(outcome.fixes.items())}
    if error == 0:
        counts |= {f"causes: {cause}": count for cause, count in sorted(count_causes(annotated, corpus).items())}
    return Study(figures, counts, outcome.finished)


def _costs(workbench: Workbench, outcome: Replay, images: int) -> dict[str, dict[str, float]]:
    """Number of link questions and of judgments, per image and per chain."""
    now = workbench.progress()
    judged = sum(task.judgments for task in now.tasks.values())
    voided = sum(task.voided for task in now.tasks.values())
    verified = sum(task.verification for task in now.tasks.values())
    link = {
        "asked_per_image": now.links_asked / images,
        "mentions_squared_per_image": now.mentions_squared / images,
        "mentions_times_chains_per_image": now.mentions_times_chains / images,
        "of_mentions_squared": 100 * now.links_asked / max(now.mentions_squared, 1),
        "of_mentions_times_chains": 100 * now.links_asked / max(now.mentions_times_chains, 1),
    }
    cost = {
        "judgments_per_image": judged / images,
        "judgments_per_chain": judged / max(now.chains, 1),
        "verification_per_image": verified / images,
        "voided": 100 * voided / max(judged, 1),
        "fixes_per_image": sum(outcome.fixes.values()) / images,
    }
    by_task = {name: task.judgments / images for name, task in now.tasks.items()}
    rounded = {"links": link, "cost": cost, "judgments_per_image": by_task}
    return {name: {key: round(value, 4) for key, value in part.items()} for name, part in rounded.items()}


def _workers(workbench: Workbench, outcome: Replay) -> dict[str, dict[str, float]]:
    """By kind: number of workers, percentage suspended, and the median number of items before suspension."""
    worked: dict[str, set[tuple[int, str]]] = {}
    for report in workbench.workers():
        if report.id in outcome.kinds:
            pairs = {(report.id, task) for task, count in report.judgments.items() if count}
            worked.setdefault(outcome.kinds[report.id], set()).update(pairs)
    caught: dict[str, list[tuple[int, str, int]]] = {}
    for decision in workbench.decisions():
        entry = (decision.worker, decision.task, decision.answered)
        caught.setdefault(outcome.kinds[decision.worker], []).append(entry)
    figures = {}
    for kind, pairs in sorted(worked.items()):
        hits = caught.get(kind, [])
        people = {worker for worker, _ in pairs}
        figures[kind] = {
            "workers": float(len(people)),
            "caught": round(100 * len({worker for worker, _, _ in hits}) / len(people), 2),
            "tasks_caught": round(100 * len({hit[:2] for hit in hits}) / len(pairs), 2),
        }
        if hits:
            figures[kind]["median_items_before"] = float(median(answered for _, _, answered in hits))
    return figures
