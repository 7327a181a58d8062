"""The benchmark of pipelines counts the CPU time of processes that start and end between two samples."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from benchmarks.pipeline.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")

BURNED_S = 0.3
CHILD = f"""
import time
until = time.process_time() + {BURNED_S}
while time.process_time() < until:
    pass
"""
# The parent uses more than one clock tick (10 ms) of its own, because /proc counts in clock ticks.
PARENT = f"""
import subprocess, sys, time
for line in sys.stdin:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    subprocess.run([sys.executable, "-c", {CHILD!r}], start_new_session={{own_session}}, check=True)
    print("done", flush=True)
"""


@contextmanager
def parent(*, own_session: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a child to its end for each line that it reads."""
    command = [sys.executable, "-c", PARENT.format(own_session=own_session)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run_child(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("own_session", [False, True])
def test_child_that_has_ended_counts_for_the_kind_of_its_parent(own_session: bool) -> None:
    with parent(own_session=own_session) as process:
        processes = Processes({process.pid: "database"}, {}, frozenset())
        before = processes.cpu_s()["database"]
        run_child(process)
        assert processes.cpu_s()["database"] - before >= BURNED_S - 0.02


def test_child_of_a_worker_is_a_task_and_the_worker_is_a_supervisor() -> None:
    with parent() as process:
        processes = Processes({process.pid: "scheduler"}, {}, frozenset({process.pid}))
        run_child(process)
        seconds = processes.cpu_s()
        assert seconds["tasks"] >= BURNED_S - 0.02
        assert 0 < seconds["supervisors"] < seconds["tasks"]
