"""CPU seconds by kind of process, as Linux counts them in /proc.

A process that has ended is counted by its parent, because every parent here waits for its children: the LocalExecutor's
workers for task processes, the DAG processor for its parsers, PostgreSQL for its sessions. So the CPU of a kind is the
CPU of its live processes and of their children that ended, and no short-lived process is missed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TASKS: Final = "tasks"
"""Task processes: the children of the LocalExecutor's workers."""
SUPERVISORS: Final = "supervisors"
"""The LocalExecutor's workers themselves, which supervise one task process each."""
SCHEDULER: Final = "scheduler"
BENCHMARK: Final = "benchmark"
WORKER_TITLE: Final = "airflow worker"


class ProcessStat(NamedTuple):
    """What the benchmark uses of a process."""

    parent: int
    session: int
    own_s: float
    children_s: float
    """CPU seconds of children that have ended and that the process has waited for."""


def process_stats() -> dict[int, ProcessStat]:
    """Return all processes of the machine, by process id."""
    found = {}
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            used = process.cpu_times()
            own_s, children_s = used.user + used.system, used.children_user + used.children_system
            found[process.pid] = ProcessStat(process.ppid(), os.getsid(process.pid), own_s, children_s)
    return found


@dataclass(frozen=True)
class Processes:
    """The processes that are measured."""

    leaders: Mapping[int, str]
    """Kind by the id of a process whose session and descendants are of that kind."""
    single: Mapping[int, str]
    """Kind by the id of a process that shares the session of the benchmark."""
    workers: frozenset[int]
    """The LocalExecutor's workers."""

    @classmethod
    def of(cls, leaders: Mapping[int, str], single: Mapping[int, str]) -> Self:
        """Find the LocalExecutor's workers among the children of the scheduler."""
        (scheduler,) = (leader for leader, kind in leaders.items() if kind == SCHEDULER)
        children = (pid for pid, stat in process_stats().items() if stat.parent == scheduler)
        workers = frozenset(pid for pid in children if _title(pid).startswith(WORKER_TITLE))
        assert workers, "the scheduler has no workers of the LocalExecutor"
        return cls(leaders, {**single, os.getpid(): BENCHMARK}, workers)

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds that each kind of process has used so far."""
        seconds: dict[str, float] = defaultdict(float)
        stats = process_stats()
        for pid, stat in stats.items():
            if pid in self.workers:
                seconds[SUPERVISORS] += stat.own_s
                seconds[TASKS] += stat.children_s
            elif kind := self._kind(pid, stats):
                # The children of the benchmark itself have kinds of their own.
                seconds[kind] += stat.own_s + (0.0 if kind == BENCHMARK else stat.children_s)
        return dict(seconds)

    def _kind(self, pid: int, stats: Mapping[int, ProcessStat]) -> str | None:
        ancestors = tuple(_ancestors(pid, stats))
        if not self.workers.isdisjoint(ancestors):
            return TASKS
        # A daemon of Airflow may have lost its parent, and a process of PostgreSQL has a session of its own.
        leaders = (pid, stats[pid].session, *ancestors)
        return self.single.get(pid) or next((self.leaders[each] for each in leaders if each in self.leaders), None)


def _ancestors(pid: int, stats: Mapping[int, ProcessStat]) -> Iterator[int]:
    while (stat := stats.get(pid)) is not None:
        pid = stat.parent
        yield pid


def _title(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
