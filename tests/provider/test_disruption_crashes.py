"""Each request of the worker that goes on after a disruption is, in turn, the last before it dies; then comes a retry.

Always: the work is one gang, and the disruption is counted once. Or it is the last before a kill, and nothing is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from airflow_provider_gangjobs.gang.labels import ANNOTATION_CLAIM, ANNOTATION_DISRUPTIONS
from airflow_provider_gangjobs.gang.state.job import read_job
from airflow_provider_gangjobs.hooks.airflow_exceptions import TaskDeferred
from airflow_provider_gangjobs.hooks.event_loop import run
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from airflow_provider_gangjobs.operators.gang_job import GangJobOperator
from airflow_provider_gangjobs.service import Gangs
from airflow_provider_gangjobs.submission.jobs import JobState, state_of
from gangjobs_sandbox.resources import JOBS
from tests.airflow.waiting import wait_for
from tests.patience import AIRFLOW_PATIENCE_S
from tests.provider.mortal import Crash, Died, Mortal
from tests.provider.tries import event_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from tests.provider.tries import Task, TaskMaker

T = TypeVar("T")
ENDLESS = "sleep 600"
pytestmark = pytest.mark.timeout(AIRFLOW_PATIENCE_S)


@dataclass
class Life:
    """Of one worker's process."""

    crash: Crash | None = None
    requests: list[str] = field(default_factory=list)


class MortalHook(GangJobHook):
    """Every call is by a client of the same process."""

    life: Life

    def call(self, action: Callable[[Gangs], Awaitable[T]], *, config: ClusterConfig | None = None) -> T:
        return run(self._mortally(action, config or self.config()))

    async def _mortally(self, action: Callable[[Gangs], Awaitable[T]], config: ClusterConfig) -> T:
        async with Mortal(config, self.life.crash) as client:
            client.requests = self.life.requests
            return await action(Gangs(client))


class MortalOperator(GangJobOperator):
    """In a process that dies."""

    life: Life

    def _take_custody(self, context: Any) -> Any:
        custody = super()._take_custody(context)
        hook = MortalHook(self.kubernetes_conn_id)
        hook.exists, hook.life = custody.hook.exists, self.life
        self._custody = replace(custody, hook=hook)
        return self._custody


def worker(train: Task, crash: Crash | None = None) -> MortalOperator:
    train.kind = MortalOperator
    operator = train.operator()
    train.kind = GangJobOperator
    assert isinstance(operator, MortalOperator)
    operator.life = Life(crash)
    return operator


def evict(train: Task) -> None:
    """As soon as a pod has a node."""

    def victim() -> str | None:
        return next((pod["metadata"]["name"] for pod in train.pods if pod["spec"].get("nodeName")), None)

    name = wait_for("a pod with a node", victim)
    train.cluster.call(lambda it: it.registry.evict(name, "default"))


def check_counted_once(train: Task, last: TaskDeferred) -> None:
    """One gang is live, the last try's own, with one disruption behind it."""
    (live,) = (job for job in train.jobs if state_of(read_job(job)) is JobState.LIVE)
    annotations = live["metadata"]["annotations"]
    assert live["metadata"]["uid"] == last.trigger.watch.uid
    assert annotations[ANNOTATION_DISRUPTIONS] == "1"
    assert annotations[ANNOTATION_CLAIM] == last.trigger.watch.claim
    assert last.trigger.watch.disruptions == 1
    assert live["spec"]["suspend"] is False


def disrupted(task: TaskMaker, **parameters: Any) -> tuple[Task, Any, dict[str, Any]]:
    """A task whose gang was evicted, the context of its try, and what the trigger told."""
    train = task(ENDLESS, deferrable=True, max_disruptions=3, **parameters)
    context = train.next_try()
    left = train.defer(context)
    evict(train)
    return train, context, event_of(left)


def crash_points(requests: list[str]) -> list[Crash]:
    return [Crash(number, applied) for number in range(len(requests)) for applied in (False, True)]


def remove(train: Task) -> None:
    for job in train.jobs:
        name = job["metadata"]["name"]
        train.cluster.call(lambda it, name=name: it.registry.delete(JOBS, name, "default", propagation="Background"))


@pytest.mark.parametrize("on_finish", ["delete_succeeded", "delete"])
def test_worker_that_dies_while_it_goes_on_leaves_one_gang_counted_once(task: TaskMaker, on_finish: str) -> None:
    train, context, event = disrupted(task, on_finish=on_finish)
    whole = worker(train)
    with pytest.raises(TaskDeferred) as left:
        whole.execute_complete(context, event)
    check_counted_once(train, left.value)
    remove(train)
    assert {"LIST jobs", "POST jobs", "PATCH jobs"} <= set(whole.life.requests)

    for crash in crash_points(whole.life.requests):
        train, context, event = disrupted(task, on_finish=on_finish)
        with pytest.raises(Died):
            worker(train, crash).execute_complete(context, event)

        last = train.defer()

        check_counted_once(train, last)
        remove(train)


def test_worker_that_dies_while_it_looks_at_what_nobody_saw_leaves_one_gang_counted_once(task: TaskMaker) -> None:
    train, _, _ = disrupted(task)
    whole = worker(train)
    with pytest.raises(TaskDeferred) as left:
        whole.execute(train.next_try())
    check_counted_once(train, left.value)
    remove(train)

    for crash in crash_points(whole.life.requests):
        train, _, _ = disrupted(task)
        with pytest.raises(Died):
            worker(train, crash).execute(train.next_try())

        last = train.defer()

        check_counted_once(train, last)
        remove(train)


def test_kill_at_any_request_while_it_goes_on_leaves_nothing_that_runs(task: TaskMaker) -> None:
    """The signal interrupts the worker between a request and its answer, or before it was sent."""
    train, context, event = disrupted(task)
    whole = worker(train)
    with pytest.raises(TaskDeferred):
        whole.execute_complete(context, event)
    remove(train)

    for kill in crash_points(whole.life.requests):
        train, context, event = disrupted(task)
        killed = worker(train, kill)
        with pytest.raises(Died):
            killed.execute_complete(context, event)
        killed.life.crash = None

        killed.on_kill()

        assert [job for job in train.jobs if state_of(read_job(job)) is JobState.LIVE] == [], kill
        remove(train)
