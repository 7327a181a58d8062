"""A gang that was lost to a disruption is submitted again within the same try, without spending a retry."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferred
from airflow_provider_gangjobs.exceptions import AppFailed, Disrupted, InvalidGangSpec, SubmissionFailed, Unschedulable
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_DELIVERED, LABEL_GANG
from gangjobs_sandbox.resources import JOBS
from tests.airflow.polling import wait_for
from tests.guarantees.history import is_held
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.task_runner import Task, TaskMaker

WRITE_RANK = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
ENDLESS = "sleep 600"
FIRST_IS_ENDLESS = f'case "$MASTER_ADDR" in *-0-0.*) {ENDLESS};; esac; {WRITE_RANK}'
"""The name of a rank's pod starts with the name of the gang, which ends with the number of the attempt."""


def running(train: Task, attempt: int) -> list[str]:
    """Return the names of the attempt's pods once all of them run."""
    names = [
        pod["metadata"]["name"]
        for pod in train.pods
        if pod["status"]["phase"] == "Running" and pod["metadata"]["labels"][LABEL_GANG].endswith(f"-{attempt}")
    ]
    return names if len(names) == 2 else []


def held(train: Task, attempt: int) -> list[str]:
    """Return the names of the attempt's pods whose outcome is not recorded yet."""
    return [
        pod["metadata"]["name"]
        for pod in train.pods
        if pod["metadata"]["labels"][LABEL_GANG].endswith(f"-{attempt}") and is_held(pod)
    ]


def evict(train: Task, attempt: int) -> None:
    """Evict a rank as soon as the attempt runs."""
    victim, *_ = wait_for("the gang's pods", lambda: running(train, attempt))
    train.cluster.call(lambda it: it.registry.evict(victim, "default"))


def deferred_again(train: Task, left: TaskDeferred, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as again:
        train.resume(context, run_trigger(left))
    return again.value


def disruption_counts(train: Task) -> list[int]:
    """Return the count of disruptions on each attempt's Job, by attempt."""
    jobs = sorted(train.jobs, key=lambda job: str(job["metadata"]["name"]))
    return [read_job(job).record.disruptions for job in jobs]


def lost_once(train: Task) -> tuple[Any, TaskDeferred]:
    """Start a try whose gang is evicted while the task is deferred. Return the context and the deferral."""
    first = train.defer()
    evict(train, 0)
    return train.context, first


# -- within a try ---------------------------------------------------------------------------------------------


def test_gang_that_was_evicted_is_submitted_again_and_succeeds(task: TaskMaker) -> None:
    train = task(FIRST_IS_ENDLESS, deferrable=True, max_disruptions=1)
    context, first = lost_once(train)

    second = deferred_again(train, first, context)

    assert (second.trigger.args.attempt, second.trigger.args.disruptions) == (1, 1)
    assert train.xcoms["gang"]["uid"] == second.trigger.args.uid
    assert disruption_counts(train) == [0, 1]
    assert train.resume(context, run_trigger(second)) == {"rank": 0}
    assert train.tries == 1


def test_time_of_the_lost_attempt_counts_with_the_next_one(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    train = task(FIRST_IS_ENDLESS, deferrable=True, max_disruptions=1)
    context, first = lost_once(train)

    train.resume(context, run_trigger(deferred_again(train, first, context)))

    use = train.xcoms["gang_end"]["time_use"]
    assert use["lost_s"] > 0
    assert "Time used: " in capsys.readouterr().out


def test_task_that_waits_in_its_worker_submits_the_next_attempt_there(task: TaskMaker) -> None:
    train = task(FIRST_IS_ENDLESS, max_disruptions=1)
    drain = threading.Thread(target=evict, args=(train, 0), daemon=True)
    drain.start()

    assert train.execute() == {"rank": 0}

    drain.join()


def test_log_has_the_lost_attempt_and_the_next_one(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=3)
    context, first = lost_once(train)
    deferred_again(train, first, context)
    log = capsys.readouterr().out

    assert "was evicted (EvictionByEvictionAPI) on node-" in log
    assert "(disruption 1, 3 allowed). Another attempt follows" in log
    assert "rank  outcome" in log
    assert "(attempt 1): 2 workers, gang scheduling by Workload API" in log


def test_try_fails_after_more_disruptions_than_allowed_and_the_retry_counts_anew(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=1)
    context, first = lost_once(train)
    second = deferred_again(train, first, context)
    evict(train, 1)

    with pytest.raises(Disrupted, match=r"as did the attempt before it.*max_disruptions \(1\) are used up") as raised:
        train.resume(context, run_trigger(second))

    assert (raised.value.disruptions, raised.value.max_disruptions) == (2, 1)
    assert len(train.jobs) == 2
    retry = train.defer()
    assert (retry.trigger.args.attempt, retry.trigger.args.disruptions) == (2, 0)


def test_gang_is_not_submitted_again_by_default(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    left = train.defer()
    evict(train, 0)

    with pytest.raises(Disrupted, match="set max_disruptions or retries"):
        train.resume(train.context, run_trigger(left))

    (job,) = train.jobs
    assert ANNOTATION_DELIVERED not in job["metadata"]["annotations"]


@pytest.mark.parametrize(("on_finish", "kept"), [("keep", 2), ("delete_succeeded", 1), ("delete", 0)])
def test_lost_attempt_is_kept_or_deleted_as_a_failed_gang(task: TaskMaker, on_finish: str, kept: int) -> None:
    train = task(FIRST_IS_ENDLESS, deferrable=True, max_disruptions=1, on_finish=on_finish)
    context, first = lost_once(train)
    second = deferred_again(train, first, context)
    assert len(train.jobs) == (1 if on_finish == "delete" else 2)

    train.resume(context, run_trigger(second))

    assert len(train.jobs) == kept


def test_count_of_disruptions_survives_the_deletion_of_the_job(task: TaskMaker) -> None:
    """Its time to live or a user may delete the Job before the worker resumes."""
    train = task(ENDLESS, deferrable=True, max_disruptions=3)
    context, first = lost_once(train)
    event = run_trigger(first)
    train.cluster.call(lambda it: it.registry.delete(JOBS, event["name"], "default", propagation="Background"))

    with pytest.raises(TaskDeferred) as again:
        train.operator().execute_complete(context, event)

    watch = again.value.trigger.args
    assert (watch.attempt, watch.disruptions) == (1, 1)


def test_attempts_of_a_try_share_its_time_limit(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=1, execution_timeout=timedelta(hours=1))
    context, first = lost_once(train)
    limits = [first.trigger.args.deadline - train.server_ahead_s]
    second = deferred_again(train, first, context)
    limits.append(second.trigger.args.deadline - train.server_ahead_s)

    # Each attempt estimates the clock of the API server anew, from whole seconds. By the clock of the worker, the
    # deadline is the same to the microsecond.
    limit = (context["ti"].start_date + timedelta(hours=1)).timestamp()
    assert limits == pytest.approx([limit, limit], abs=1e-6)


def test_cleared_task_does_not_handle_the_lost_attempt_again(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Job of the attempt that succeeded is deleted, so the lost one is the newest."""
    train = task(FIRST_IS_ENDLESS, deferrable=True, max_disruptions=1)
    context, first = lost_once(train)
    train.resume(context, run_trigger(deferred_again(train, first, context)))
    capsys.readouterr()

    cleared = train.defer()

    assert (cleared.trigger.args.attempt, cleared.trigger.args.disruptions) == (1, 0)
    assert "Another attempt follows" not in capsys.readouterr().out


# -- another try, or a kill ----------------------------------------------------------------------------------


def test_late_worker_leaves_the_gang_of_the_next_try_alone(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=3)
    late = train.next_try()
    first = train.defer(late)
    evict(train, 0)
    event = run_trigger(first)
    second = train.defer()  # Airflow considers the worker of the first try dead

    with pytest.raises(SubmissionFailed, match="Another try of the task is responsible for the gang"):
        train.operator().execute_complete(late, event)

    assert disruption_counts(train) == [0, 1]
    assert second.trigger.args.disruptions == 1


def test_kill_during_the_next_submission_leaves_no_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=3)
    context, first = lost_once(train)
    operator, event = train.operator(), run_trigger(first)
    with pytest.raises(TaskDeferred):
        operator.execute_complete(context, event)

    operator.on_kill()

    wait_for("the end of the next gang's pods, which keep its Job", lambda: disruption_counts(train) == [0])


# -- without a running worker ---------------------------------------------------------------------------------


def fail_without_worker(train: Task, failed: Callable[[], object] = lambda: None) -> None:
    """Let the worker that waits for a gang die, and let the gang fail before the next try."""
    train.defer()
    failed()
    wait_for("the end of the gang", lambda: any(c["type"] == "Failed" for c in conditions(train.jobs[0])))


def conditions(job: dict[str, Any]) -> list[dict[str, Any]]:
    return list((job.get("status") or {}).get("conditions") or ())


def test_disruption_without_a_worker_is_counted(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    train = task(ENDLESS, deferrable=True, max_disruptions=3)
    fail_without_worker(train, lambda: evict(train, 0))

    second = train.defer()

    assert (second.trigger.args.attempt, second.trigger.args.disruptions) == (1, 1)
    assert "(disruption 1, 3 allowed). Another attempt follows" in capsys.readouterr().out
    assert held(train, 0) == []


def test_failure_without_a_worker_is_logged_and_followed_by_another_attempt(
    task: TaskMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    train = task("echo no luck; exit 3", deferrable=True, max_disruptions=3)
    fail_without_worker(train)

    second = train.defer()

    assert (second.trigger.args.attempt, second.trigger.args.disruptions) == (1, 0)
    assert "no luck" in capsys.readouterr().out


def test_reported_failure_is_not_reported_again(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    train = task("echo no luck; exit 3", deferrable=True, max_disruptions=3)
    context = train.next_try()
    left = train.defer(context)
    with pytest.raises(AppFailed):
        train.resume(context, run_trigger(left))
    capsys.readouterr()

    retry = train.defer()

    assert retry.trigger.args.attempt == 1
    assert "no luck" not in capsys.readouterr().out


def test_reported_timeout_is_not_reported_again(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    never_fits = {"resources": {"cpu": "1000"}, "assemble_timeout": 1}
    train = task(ENDLESS, deferrable=True, max_disruptions=3, **never_fits)
    context = train.next_try()
    left = train.defer(context)
    with pytest.raises(Unschedulable):
        train.resume(context, run_trigger(left))
    wait_for("the end of the gang", lambda: any(c["type"] == "Failed" for c in conditions(train.jobs[0])))
    capsys.readouterr()

    retry = train.defer()

    assert retry.trigger.args.attempt == 1
    assert "Another attempt follows" not in capsys.readouterr().out


# -- the parameter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [-1, 101, 2.5, True, "3", None])
def test_invalid_number_is_refused_when_the_dag_is_parsed(task: TaskMaker, given: Any) -> None:
    with pytest.raises(InvalidGangSpec, match=r"max_disruptions: is .*, not a whole number from 0 to 100"):
        task(ENDLESS, max_disruptions=given).operator()
