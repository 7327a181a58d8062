"""A task ends in the same way in worker and triggerer, and a gang in an unknown state is left as it is."""

from __future__ import annotations

import json
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time.timeout import timeout as airflow_alarm

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowFailException, TaskDeferred
from airflow_provider_gangjobs.attempt.deferral import (
    ALARM_MARGIN_S,
    DEFERRALS_MAX,
    RecoveryAction,
    recovery_action,
    worker_wait_limit_s,
)
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker
from airflow_provider_gangjobs.exceptions import DeadlineExceeded, GangFailed, OutcomesMissing, TrackingFailed
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.pods import Counts
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELIVERED
from airflow_provider_gangjobs.service.gangs import EventLoopThread
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS
from tests.airflow.polling import wait_for
from tests.guarantees.history import is_held
from tests.provider.task_runner import run_trigger
from tests.sandbox_faults import arm, disarm
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker


# -- A task ends in the same way in the worker and in the triggerer, and a gang in an unknown state is left
#    alone -----------------------------------------------------------------------------------------------------------

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
    elif way == "in the worker":
        train.operator().execute(context)
    else:
        threading.Thread(target=raise_alarm_in_the_wait, args=(train,), daemon=True).start()
        with airflow_alarm(TIMEOUT_S):
            train.operator().execute(context)


def raise_alarm_in_the_wait(train: Task) -> None:
    """Raise the alarm while the main thread waits for the gang, long before the operator itself stops waiting.

    At another moment, the main thread may just have acquired a lock, of a log handler or of an import. The exception of
    the alarm then leaves the lock acquired, and the event loop of the operator waits for it without end.
    """
    wait_for("the gang's pods", lambda: train.pods)
    wait_for("the wait of the main thread", is_main_thread_waiting)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def is_main_thread_waiting() -> bool:
    """Return whether the main thread waits for the result of the coroutine that follows the gang."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    callers = [each.f_code for each, _ in traceback.walk_stack(frame)]
    return callers[0] is EventLoopThread.run.__code__ and wait_for_event_in_worker.__code__ in callers


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


@pytest.mark.parametrize(
    "error", [{"errors": DEFERRALS_MAX}, {"reason": "ConnectionMissing"}], ids=["many errors", "no connection there"]
)
def test_gang_that_no_trigger_can_follow_is_followed_in_the_worker(task: TaskMaker, error: dict[str, Any]) -> None:
    train = task(SLOW_RESULT, deferrable=True)
    left = train.defer()
    assert train.operator().execute_complete(train.context, error_event(left, **error)) == {"rank": 0}


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


# -- A resumed task whose gang has outcomes that are not recorded, or that are lost ----------------------------------

WRITE_RANK = 'printf "$RANK" > "$GANG_RESULT_PATH"'


@contextmanager
def no_configmap_can_be_written(cluster: SandboxThread) -> Iterator[None]:
    """Refuse each new ConfigMap, as an exhausted quota does."""
    for method in ("POST", "PATCH"):
        arm(cluster, method=method, path="/configmaps", times=None, code=403, message="exceeded quota")
    try:
        yield
    finally:
        disarm(cluster)


class Resumed:
    """A deferred try, and the operator that resumes it after the gang has ended."""

    def __init__(self, train: Task) -> None:
        self.train = train
        self.context = train.next_try()
        self.left = train.defer(self.context)
        self.operator = train.operator()
        watch = self.left.trigger.args
        self.ref = GangRef(watch.namespace, watch.name, watch.uid)

    @property
    def job(self) -> dict[str, Any]:
        (job,) = self.train.jobs
        return job

    @property
    def held(self) -> int:
        return sum(map(is_held, self.train.pods))

    def recorded(self) -> dict[str, Any]:
        """Return the event of a trigger that has recorded all outcomes."""
        return run_trigger(self.left)

    def unrecorded(self, status: Status = Status.SUCCEEDED) -> dict[str, Any]:
        """Return the event of a trigger that could record no outcome before the Job ended."""
        condition = "Complete" if status is Status.SUCCEEDED else "Failed"
        wait_for(
            "the Job's end", lambda: condition in [one["type"] for one in self.job["status"].get("conditions", ())]
        )
        wait_for("both pods to end", lambda: {p["status"]["phase"] for p in self.train.pods} <= {"Succeeded", "Failed"})
        counts = Counts(ranks=2, succeeded=self.job["status"].get("succeeded", 0), held=self.held)
        completed = self.job["status"].get("completedIndexes", "")
        event = build_event(self.ref, status, Phase(status.value), counts=counts, completed_indexes=completed)
        return event.to_payload()

    def complete(self, event: dict[str, Any]) -> Any:
        return self.operator.resume_execution(self.left.method_name, {"event": event}, self.context)

    def note_success(self, value: Any) -> None:
        self.train.note_success(self.operator, self.context, value)

    def delete(self, resource: Any, name: str, **options: Any) -> None:
        self.train.cluster.call(lambda it: it.registry.delete(resource, name, self.ref.namespace, **options))

    def delete_job(self) -> None:
        self.delete(JOBS, self.ref.name, propagation="Background")

    def delete_evidence(self) -> None:
        """Delete the ledger and the pods of both ranks, but not the Job."""
        self.delete(CONFIGMAPS, f"{self.ref.name}-ledger-0")
        for pod in self.train.pods:
            self.delete(PODS, pod["metadata"]["name"], grace_period_s=0)


def test_results_that_cannot_be_recorded_come_from_the_held_pods(task: TaskMaker, embedded: SandboxThread) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="all"))
    with no_configmap_can_be_written(embedded):
        value = resumed.complete(resumed.unrecorded())
        assert (value, resumed.held) == ([0, 1], 2)

        resumed.note_success(value)

    assert resumed.train.jobs == []
    wait_for("the end of the pods, which nothing holds any more", lambda: not resumed.train.pods)


def test_kept_gang_has_no_held_pod_once_its_success_is_noted(task: TaskMaker, embedded: SandboxThread) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="none", on_finish="keep"))
    with no_configmap_can_be_written(embedded):
        value = resumed.complete(resumed.unrecorded())
        resumed.note_success(value)

    assert (value, resumed.held) == (None, 0)
    assert ANNOTATION_DELIVERED in resumed.job["metadata"]["annotations"]


def test_worker_records_outcomes_that_the_trigger_could_not_record(task: TaskMaker) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="all"))

    assert resumed.complete(resumed.unrecorded()) == [0, 1]
    assert resumed.held == 0


@pytest.mark.parametrize("results", ["rank0", "all"])
def test_job_deleted_after_its_end_is_no_success_without_results(task: TaskMaker, results: str) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results=results))
    event = resumed.recorded()
    resumed.delete_job()
    wait_for("the end of its pods", lambda: not resumed.train.pods)

    with pytest.raises(OutcomesMissing, match="The Job was deleted after its end") as raised:
        resumed.complete(event)

    assert (raised.value.ranks, raised.value.retryable) == ((0, 1), True)


def test_job_deleted_after_its_end_is_a_success_if_no_result_is_wanted(task: TaskMaker) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="none"))
    event = resumed.recorded()
    resumed.delete_job()

    assert resumed.complete(event) is None


@pytest.mark.parametrize("deferrable", [True, False], ids=["deferred", "in the worker"])
@pytest.mark.parametrize("results", ["all", "none"])
def test_job_that_lives_no_second_after_its_end_is_a_success_only_if_no_result_is_wanted(
    task: TaskMaker, results: str, deferrable: bool
) -> None:
    train = task(WRITE_RANK, deferrable=deferrable, results=results, ttl_after_finished=0)
    context = train.next_try()
    event = run_trigger(train.defer(context)) if deferrable else {}

    def complete() -> Any:
        return train.operator().execute_complete(context, event) if deferrable else train.execute(context)

    if results == "none":
        assert complete() is None
    else:
        with pytest.raises(OutcomesMissing, match="Set a longer ttl_after_finished"):
            complete()
    wait_for("the end of the pods, which nothing holds any more", lambda: not train.pods)


def test_job_deleted_while_its_pods_are_held_gives_its_results(task: TaskMaker) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="all"))
    event = resumed.unrecorded()
    resumed.delete_job()

    value = resumed.complete(event)
    resumed.note_success(value)

    assert value == [0, 1]
    wait_for("the end of the pods, which nothing holds any more", lambda: not resumed.train.pods)


def test_gang_whose_outcomes_are_lost_is_kept_and_not_delivered(task: TaskMaker) -> None:
    resumed = Resumed(task(WRITE_RANK, deferrable=True, results="all"))
    event = resumed.recorded()
    resumed.delete_evidence()

    with pytest.raises(AirflowFailException, match="2 outcomes of completed ranks cannot be read at rank 0, 1"):
        resumed.complete(event)
    resumed.operator.deliver(resumed.context["ti"])

    assert ANNOTATION_DELIVERED not in resumed.job["metadata"]["annotations"]


def test_failed_gang_that_is_deleted_leaves_no_held_pod(task: TaskMaker, embedded: SandboxThread) -> None:
    resumed = Resumed(task("exit 3", deferrable=True, on_finish="delete"))
    with no_configmap_can_be_written(embedded), pytest.raises(GangFailed):
        resumed.complete(resumed.unrecorded(Status.FAILED))

    assert resumed.train.jobs == []
    wait_for("the end of the pods, which nothing holds any more", lambda: not resumed.train.pods)
