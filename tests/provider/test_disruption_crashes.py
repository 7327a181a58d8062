"""The worker that continues after a disruption dies or is killed at each of its requests.

After a crash the next try has one gang, and the disruption is counted once. After a kill no gang runs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, state_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.service import GangService
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.resources import JOBS
from tests.airflow.polling import wait_for
from tests.crashes import Crash, CrashingClient, ProcessDied, crash_points
from tests.provider.task_runner import OperatorWithTime, run_trigger
from tests.provider.virtual_control_plane import loop_clock
from tests.timeouts import AIRFLOW_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from tests.provider.task_runner import Task, TaskMaker

ENDLESS = "sleep 600"
TASKS_AT_A_TIME = 4
pytestmark = pytest.mark.timeout(AIRFLOW_TIMEOUT_S)


@dataclass
class WorkerProcess:
    """Where the process of a worker dies, and the requests that it sends."""

    crash: Crash | None = None
    requests: list[str] = field(default_factory=list)


class CrashingOperator(OperatorWithTime):
    """An operator in a process that dies at a chosen request."""

    process: WorkerProcess

    def _open_gangs(self, context: Any, **options: Any) -> Any:
        gangs = super()._open_gangs(context, **options)
        gangs.connect = self._crashing
        return gangs

    @asynccontextmanager
    async def _crashing(self, config: ClusterConfig) -> AsyncIterator[GangService]:
        async with Client(config, clock=loop_clock()) as connected:
            client = CrashingClient(connected, self.process.crash)
            client.requests = self.process.requests
            yield GangService(client)


def worker(train: Task, crash: Crash | None = None) -> CrashingOperator:
    train.kind, kind = CrashingOperator, train.kind
    operator = train.operator()
    train.kind = kind
    assert isinstance(operator, CrashingOperator)
    operator.process = WorkerProcess(crash)
    return operator


def evict(train: Task) -> None:
    """Evict a pod as soon as it has a node."""

    def victim() -> str | None:
        return next((pod["metadata"]["name"] for pod in train.pods if pod["spec"].get("nodeName")), None)

    name = wait_for("a pod with a node", victim)
    train.cluster.call(lambda it: it.registry.evict(name, "default"))


def check_counted_once(train: Task, last: TaskDeferred) -> None:
    """Check that the only live gang is that of the last try, and that it has one disruption in its count."""
    (live,) = (job for job in train.jobs if state_of(read_job(job)) is SubmissionState.IN_PROGRESS)
    assert live["metadata"]["uid"] == last.trigger.args.uid
    assert (read_job(live).record.disruptions, read_job(live).claim.id) == (1, last.trigger.args.claim)
    assert last.trigger.args.disruptions == 1
    assert live["spec"]["suspend"] is False


def disrupted(task: TaskMaker, **parameters: Any) -> tuple[Task, Any, dict[str, Any]]:
    """Return a task whose gang was evicted, the context of its try, and the event of the trigger."""
    train = task(ENDLESS, deferrable=True, max_disruptions=3, **parameters)
    left = train.defer()
    evict(train)
    return train, train.context, run_trigger(left)


def remove(train: Task) -> None:
    """Delete the Jobs of the task. A Job that is being deleted already may vanish meanwhile."""
    for job in train.jobs:
        name = job["metadata"]["name"]
        with suppress(StatusError):
            train.cluster.call(
                lambda it, name=name: it.registry.delete(JOBS, name, "default", propagation="Background")
            )


AT_WRITES_OR_READS = pytest.mark.parametrize(
    "verbs",
    [("POST", "PATCH", "DELETE"), pytest.param(("GET", "LIST"), marks=pytest.mark.slow)],
    ids=["writes", "reads"],
)
"""Crashes at each write and at each read, which together are all requests."""


def crashes_at(verbs: tuple[str, ...], requests: list[str]) -> list[Crash]:
    found = [crash for crash in crash_points(requests) if requests[crash.at].startswith(verbs)]
    assert found, f"none of {verbs} in {requests}"
    return found


def check_each(crashes: list[Crash], check: Callable[[Crash], None]) -> None:
    """Check each crash with a task of its own. Several tasks run at a time: a task mostly waits for its gang."""
    with ThreadPoolExecutor(TASKS_AT_A_TIME) as threads:
        list(threads.map(check, crashes))


@pytest.mark.slow
@AT_WRITES_OR_READS
@pytest.mark.parametrize("on_finish", ["delete_succeeded", "delete"])
def test_worker_that_dies_while_it_submits_the_next_attempt_leaves_one_gang_counted_once(
    task: TaskMaker, on_finish: str, verbs: tuple[str, ...]
) -> None:
    train, context, event = disrupted(task, on_finish=on_finish)
    whole = worker(train)
    with pytest.raises(TaskDeferred) as left:
        whole.execute_complete(context, event)
    check_counted_once(train, left.value)
    remove(train)
    assert {request.partition(" ")[0] for request in whole.process.requests} <= {
        "GET",
        "LIST",
        "POST",
        "PATCH",
        "DELETE",
    }

    def check(crash: Crash) -> None:
        train, context, event = disrupted(task, on_finish=on_finish)
        with pytest.raises(ProcessDied):
            worker(train, crash).execute_complete(context, event)

        last = train.defer()

        check_counted_once(train, last)
        remove(train)

    check_each(crashes_at(verbs, whole.process.requests), check)


@pytest.mark.slow
@AT_WRITES_OR_READS
def test_worker_that_dies_after_an_end_that_nobody_observed_leaves_one_gang_counted_once(
    task: TaskMaker, verbs: tuple[str, ...]
) -> None:
    train, _, _ = disrupted(task)
    whole = worker(train)
    with pytest.raises(TaskDeferred) as left:
        whole.execute(train.next_try())
    check_counted_once(train, left.value)
    remove(train)

    def check(crash: Crash) -> None:
        train, _, _ = disrupted(task)
        with pytest.raises(ProcessDied):
            worker(train, crash).execute(train.next_try())

        last = train.defer()

        check_counted_once(train, last)
        remove(train)

    check_each(crashes_at(verbs, whole.process.requests), check)


@AT_WRITES_OR_READS
def test_kill_at_any_request_of_the_next_submission_leaves_nothing_that_runs(
    task: TaskMaker, verbs: tuple[str, ...]
) -> None:
    """The signal interrupts the worker between a request and its answer, or before it was sent."""
    train, context, event = disrupted(task)
    whole = worker(train)
    with pytest.raises(TaskDeferred):
        whole.execute_complete(context, event)
    remove(train)

    def check(kill: Crash) -> None:
        train, context, event = disrupted(task)
        killed = worker(train, kill)
        with pytest.raises(ProcessDied):
            killed.execute_complete(context, event)
        killed.process.crash = None

        killed.on_kill()

        assert [job for job in train.jobs if state_of(read_job(job)) is SubmissionState.IN_PROGRESS] == [], kill
        remove(train)

    check_each(crashes_at(verbs, whole.process.requests), check)
