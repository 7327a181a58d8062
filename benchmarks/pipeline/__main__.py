"""The cost of a pipeline of gangs in a real Airflow: mapped gangs of two in three ways, plain Jobs of
the peer, and tasks without work, of which some only run, and others defer and end in the triggerer.

One Airflow with LocalExecutor on PostgreSQL and one real control plane serve all variants, which run in turns. Each
variant has a DAG file of its own. Before the first round, each variant runs once with two gangs, so that bytecode and
caches are the same for all. Every figure is the median of the rounds; the ratios are medians of the ratios within a
round. CPU seconds are complete also for processes that end (`processes.py`), and include all processes except for the
hollow nodes and the benchmark itself.
"""

from __future__ import annotations

import signal
from typing import Any, Final

from benchmarks.api_server import clear
from benchmarks.harness import Report, Rounds, arguments, log_progress
from benchmarks.pipeline.deployment import running
from benchmarks.pipeline.run import measure
from benchmarks.pipeline.sizes import (
    DEFERRED,
    EMPTY,
    ENDED_IN_TRIGGERER,
    PEER,
    PODS_RUN_S,
    TASK_PROCESSES_PER_GANG,
    WARM_UP,
    WARM_UP_GANGS,
    WITH_WORKERS,
    WITHOUT_WORKER,
)

TITLES: Final = {
    WITH_WORKERS: "GangJobOperator",
    ENDED_IN_TRIGGERER: "ended in the triggerer",
    WITHOUT_WORKER: "without a worker",
    PEER: "KubernetesJobOperator",
    EMPTY: "empty tasks",
    DEFERRED: "empty tasks that defer",
}
VARIANTS: Final = tuple(TITLES)
FIGURES: Final = ("cpu_s", "wall_s")
GOALS: Final = {WITH_WORKERS: (0.45, 0.45), ENDED_IN_TRIGGERER: (0.30, 0.35), WITHOUT_WORKER: (0.20, 0.20)}
"""`FIGURES`, as fractions of those of the peer at most."""


PEER_FAILURES_MAX: Final = 0.02
"""Which part of the tasks of the peer may fail. On a busy machine one of 200 does in some runs."""


def main() -> None:
    options = arguments(
        __doc__,
        choices={"variants": VARIANTS},
        gangs=(200, 20),
        rounds=(3, 1),
        parallelism=(8, 8),
    )
    gangs, rounds = options.gangs, Rounds()
    report = Report("pipeline", "the row `empty tasks`: as many task processes, without work")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running(gangs, options.parallelism) as deployment:

        def run(variant: str) -> dict[str, float]:
            failures_max = int(gangs * PEER_FAILURES_MAX) if variant == PEER else 0
            figures = measure(deployment, variant, gangs, failures_max=failures_max)
            clear(deployment.tenant)
            return figures

        try:
            for variant in options.variants:
                log_progress(f"warm up: {TITLES[variant]}")
                measure(deployment, f"{variant}_{WARM_UP}", WARM_UP_GANGS)
            clear(deployment.tenant)
            rounds.measure(options.rounds, options.variants, run)
        except (Exception, KeyboardInterrupt) as exc:
            log_progress(f"stopped: {exc!r}")
            report.notes.append(f"Stopped early ({type(exc).__name__}). The figures are those measured until then.")
        _summarize(report, rounds, gangs)
        report.publish(options.out)


def _summarize(report: Report, rounds: Rounds, gangs: int) -> None:
    for variant in filter(rounds.of, VARIANTS):
        row: dict[str, Any] = rounds.medians(variant)
        for other, name in ((PEER, "peer"), (EMPTY, "empty")):
            if variant != other:
                row |= {f"{figure}_times_{name}": rounds.ratio(variant, figure, other) for figure in FIGURES}
        report.add(who=TITLES[variant], gangs=gangs, rounds=len(rounds.of(variant)), **row)
    for variant, goals in GOALS.items():
        for figure, goal in zip(FIGURES, goals, strict=True):
            report.notes += rounds.goal(variant, figure, PEER, goal)
    report.notes += _conditions(gangs)


def _conditions(gangs: int) -> list[str]:
    return [
        f"There are {gangs * TASK_PROCESSES_PER_GANG} empty tasks, as many as a run of gangs starts task processes.",
        f"Pods run for {PODS_RUN_S:g} s. Both providers read the logs of both pods.",
    ]


if __name__ == "__main__":
    main()
