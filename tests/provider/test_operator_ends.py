"""A task ends in the same way in the worker and in the triggerer, and a gang in an unknown state is left alone."""

from __future__ import annotations

import json
import signal
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time.timeout import timeout as airflow_alarm

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.attempt.deferral import (
    ALARM_MARGIN_S,
    DEFERRALS_MAX,
    RecoveryAction,
    recovery_action,
    worker_wait_limit_s,
)
from airflow_provider_gangjobs.exceptions import DeadlineExceeded, TrackingFailed
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import Status, build_event
from airflow_provider_gangjobs.gang.state.phase import Phase
from tests.airflow.polling import wait_for
from tests.provider.task_runner import run_trigger
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provider.task_runner import Task, TaskMaker

ENDLESS = "sleep 600"
SLOW_RESULT = 'sleep 2; printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
LIMIT_S = 8.0

END_STATES = {
    ("delete", "keep"): "stopped",
    ("keep", "keep"): "stopped",
    ("keep", "delete"): "deleted",
}


def run_to_the_limit(train: Task, way: str) -> None:
    """Run one try until its time limit, as Airflow's task runner does."""
    context = train.next_try()
    if way == "deferred":
        train.operator().execute_complete(context, run_trigger(train.defer(context)))
    if way == "by the alarm":
        threading.Thread(target=raise_alarm_when_the_gang_runs, args=(train,), daemon=True).start()
    with airflow_alarm(TIMEOUT_S if way == "by the alarm" else LIMIT_S):
        train.operator().execute(context)


def raise_alarm_when_the_gang_runs(train: Task) -> None:
    """Raise the alarm long before the operator itself stops waiting."""
    wait_for("the gang's pods", lambda: train.pods)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def end_state(train: Task) -> str:
    if all("deletionTimestamp" in job["metadata"] for job in train.jobs):  # the Job stays until its pods have ended
        return "deleted"
    return "stopped" if train.stopped else "running"


def time_limit_cases() -> Iterator[Any]:
    """Yield each policy with each way to the limit. Of the ways that wait for the limit, one policy each is quick."""
    quick = {("deferred", ("delete", "keep")), ("in the worker", ("keep", "delete"))}
    for way in ("deferred", "in the worker", "by the alarm"):
        for policies, expected in END_STATES.items():
            is_quick = way == "by the alarm" or (way, policies) in quick
            name = f"{way}-on_kill {policies[0]}, on_finish {policies[1]}"
            yield pytest.param(way, policies, expected, id=name, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("way", "policies", "expected"), [*time_limit_cases()])
def test_time_limit_ends_the_gang_by_its_policy(
    task: TaskMaker, policies: tuple[str, str], expected: str, way: str
) -> None:
    on_kill, on_finish = policies
    limit = timedelta(seconds=3600 if way == "by the alarm" else LIMIT_S)
    options = {"on_kill": on_kill, "on_finish": on_finish, "execution_timeout": limit}
    train = task(ENDLESS, deferrable=way == "deferred", **options)

    with pytest.raises(DeadlineExceeded, match="Raise execution_timeout"):
        run_to_the_limit(train, way)

    assert end_state(train) == expected


@pytest.mark.parametrize(
    ("limit_s", "before_s", "running_s", "expected"),
    [(100, 0, 0, 95), (100, 30, 10, 65), (100, 0, 60, 35), (10, 0, 0, 9), (100, 300, 0, 0)],
    ids=["all of it", "after a deferral", "after an attempt", "short", "passed"],
)
def test_worker_stops_waiting_before_the_alarm(
    limit_s: float, before_s: float, running_s: float, expected: float
) -> None:
    started = datetime.now(UTC) - timedelta(seconds=before_s)
    left_s = worker_wait_limit_s(timedelta(seconds=limit_s), started, running_s)
    assert left_s == pytest.approx(expected, abs=1)
    assert worker_wait_limit_s(None, started, running_s) is None
    assert ALARM_MARGIN_S == 5


# -- a trigger that cannot follow its gang-------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("live", "errors", "retried", "expected"),
    [
        (True, 0, False, RecoveryAction.DEFER),
        (True, DEFERRALS_MAX - 1, True, RecoveryAction.DEFER),
        (True, DEFERRALS_MAX, True, RecoveryAction.FOLLOW_IN_WORKER),
        (False, 0, False, RecoveryAction.FOLLOW_IN_WORKER),
        (None, 0, True, RecoveryAction.FAIL),
        (None, 0, False, RecoveryAction.DEFER),
        (None, DEFERRALS_MAX, False, RecoveryAction.FAIL),
    ],
)
def test_recovery_action_after_an_error(
    live: bool | None, errors: int, retried: bool, expected: RecoveryAction
) -> None:
    assert recovery_action(live=live, errors=errors, has_retries_left=retried) is expected


def error_event(left: TaskDeferred, errors: int = 0, reason: str = "Forbidden") -> dict[str, Any]:
    """Return the event of a trigger that could not follow its gang."""
    watch = left.trigger.args
    event = build_event(GangRef(watch.namespace, watch.name, watch.uid), Status.ERROR, Phase.RUNNING, reason=reason)
    return {**event.to_payload(), "attempt": watch.attempt, "tracking_errors": errors}


@pytest.mark.parametrize("retries_left", [True, False])
def test_live_gang_is_deferred_again_after_an_error(task: TaskMaker, retries_left: bool) -> None:
    train = task(ENDLESS, deferrable=True)
    context = train.next_try(retries_left=retries_left)
    left = train.defer(context)

    with pytest.raises(TaskDeferred) as again:
        train.operator().execute_complete(context, error_event(left, errors=1))

    first, second = left.trigger.serialize(), again.value.trigger.serialize()
    assert second == (first[0], {**first[1], "tracking_errors": 2})
    assert end_state(train) == "running"


def test_gang_that_no_trigger_can_follow_is_followed_in_the_worker(task: TaskMaker) -> None:
    train = task(SLOW_RESULT, deferrable=True)
    context = train.next_try()
    left = train.defer(context)

    assert train.operator().execute_complete(context, error_event(left, DEFERRALS_MAX)) == {"rank": 0}


def test_worker_follows_at_once_if_triggerers_do_not_have_the_connection(task: TaskMaker) -> None:
    train = task(SLOW_RESULT, deferrable=True)
    context = train.next_try()
    left = train.defer(context)

    assert train.operator().execute_complete(context, error_event(left, reason="ConnectionMissing")) == {"rank": 0}


@pytest.mark.parametrize(("retries_left", "errors"), [(True, 0), (False, DEFERRALS_MAX)])
def test_gang_that_neither_trigger_nor_worker_can_read_is_left_alone(
    task: TaskMaker, monkeypatch: pytest.MonkeyPatch, retries_left: bool, errors: int
) -> None:
    train = task(ENDLESS, deferrable=True)
    context = train.next_try(retries_left=retries_left)
    left = train.defer(context)
    unusable = {"conn_type": "kubernetes", "extra": {"kube_config_path": "/nowhere"}}
    monkeypatch.setenv("AIRFLOW_CONN_EMBEDDED", json.dumps(unusable))

    with pytest.raises(TrackingFailed, match="The gang was not changed"):
        train.operator().execute_complete(context, error_event(left, errors))

    assert end_state(train) == "running"
