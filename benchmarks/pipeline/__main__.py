"""The cost of a pipeline of gangs in a real Airflow: mapped gangs of two in three ways, plain Jobs of
the peer, and tasks without work.

One Airflow with LocalExecutor on PostgreSQL and one real control plane serve all variants, which run in turns. Each
variant has a DAG file of its own. Before the first round, each variant runs once with two gangs, so that bytecode and
caches are the same for all. Every figure is the median of the rounds; the ratios are medians of the ratios within a
round. CPU seconds are complete also for processes that end (`processes.py`), and include all processes except for the
hollow nodes and the benchmark itself.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.api_server import clear
from benchmarks.harness import Report, arguments, log_progress, median
from benchmarks.pipeline.deployment import running
from benchmarks.pipeline.run import measure
from benchmarks.pipeline.sizes import (
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

if TYPE_CHECKING:
    from benchmarks.pipeline.deployment import Deployment

TITLES: Final = {
    WITH_WORKERS: "GangJobOperator",
    ENDED_IN_TRIGGERER: "ended in the triggerer",
    WITHOUT_WORKER: "without a worker",
    PEER: "KubernetesJobOperator",
    EMPTY: "empty tasks",
}
VARIANTS: Final = tuple(TITLES)
GOALS: Final = {WITH_WORKERS: (0.40, 0.45), ENDED_IN_TRIGGERER: (0.30, 0.35), WITHOUT_WORKER: (0.20, 0.20)}
"""CPU and wall time, as fractions of those of the peer at most."""


@dataclass
class _Measured:
    """The runs so far: for each round, the runs by variant."""

    rounds: list[dict[str, dict[str, float]]] = field(default_factory=list)

    def of(self, variant: str) -> list[dict[str, float]]:
        return [runs[variant] for runs in self.rounds if variant in runs]

    def ratio(self, variant: str, other: str, figure: str) -> float | None:
        """Return the median of the ratios of two variants within a round; `None` if no round has both."""
        pairs = (runs for runs in self.rounds if variant in runs and other in runs)
        ratios = [runs[variant][figure] / runs[other][figure] for runs in pairs]
        return round(median(ratios), 3) if ratios else None


def main() -> None:
    options = arguments(
        __doc__,
        choices={"variants": VARIANTS},
        switches={"no-preload": "the scheduler does not import the modules of task processes"},
        gangs=200,
        rounds=3,
        parallelism=8,
    )
    gangs = options.gangs or (20 if options.quick else 200)
    rounds = options.rounds or (1 if options.quick else 3)
    report = Report("pipeline", "the row `empty tasks`: as many task processes, without work")
    measured = _Measured()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running(gangs, options.parallelism or 8, preload=not options.no_preload) as deployment:
        try:
            _measure(deployment, measured, options.variants, gangs, rounds)
        except (Exception, KeyboardInterrupt) as exc:
            log_progress(f"stopped: {exc!r}")
            report.notes.append(f"Stopped early ({type(exc).__name__}). The figures are those measured until then.")
        _summarize(report, measured, gangs)
        report.publish(options.out)


def _measure(deployment: Deployment, measured: _Measured, variants: list[str], gangs: int, rounds: int) -> None:
    for variant in variants:
        log_progress(f"warm up: {TITLES[variant]}")
        measure(deployment, f"{variant}_{WARM_UP}", WARM_UP_GANGS)
    clear(deployment.tenant)
    for number in range(rounds):
        measured.rounds.append({})
        first = number % len(variants)
        for variant in variants[first:] + variants[:first]:
            log_progress(f"round {number + 1} of {rounds}: {gangs} gangs, {TITLES[variant]}")
            run = measured.rounds[-1][variant] = measure(deployment, variant, gangs)
            print(number + 1, variant, json.dumps(_rounded(run)), file=sys.stderr, flush=True)
            clear(deployment.tenant)


def _summarize(report: Report, measured: _Measured, gangs: int) -> None:
    for variant in VARIANTS:
        runs = measured.of(variant)
        if not runs:
            continue
        row: dict[str, Any] = _rounded(_medians(runs))
        for other, name in ((PEER, "peer"), (EMPTY, "empty")):
            if variant != other:
                row |= {
                    f"{figure}_times_{name}": measured.ratio(variant, other, figure) for figure in ("cpu_s", "wall_s")
                }
        report.add(who=TITLES[variant], gangs=gangs, rounds=len(runs), **row)
    for variant in GOALS:
        report.notes += _goals(measured, variant)
    report.notes += _conditions(gangs)


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, value in run.items():
            values[name].append(value)
    return {name: median(seen) for name, seen in values.items()}


def _goals(measured: _Measured, variant: str) -> list[str]:
    notes = []
    for figure, goal in zip(("cpu_s", "wall_s"), GOALS[variant], strict=True):
        ratio = measured.ratio(variant, PEER, figure)
        if ratio is not None:
            verdict = "met" if ratio <= goal else "missed"
            notes.append(f"Goal: {TITLES[variant]}, {figure} <= {goal:.2f} times the peer: {verdict}, {ratio:.2f}")
    return notes


def _conditions(gangs: int) -> list[str]:
    return [
        f"There are {gangs * TASK_PROCESSES_PER_GANG} empty tasks, as many as a run of gangs starts task processes.",
        f"Pods run for {PODS_RUN_S:g} s. Both providers read the logs of both pods.",
    ]


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}


if __name__ == "__main__":
    main()
