"""The tries of one task by the operator, on the embedded cluster and without the processes of Airflow."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from airflow.sdk import DAG

from airflow_provider_gangjobs.airflow_api.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)
from airflow_provider_gangjobs.airflow_api.task_state import with_task_instance
from airflow_provider_gangjobs.cluster.errors import InvalidConnection
from airflow_provider_gangjobs.exceptions import AppFailed, DeadlineExceeded, Unschedulable
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import build_event
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.sensors.gang_job import GangJobSensor
from airflow_provider_gangjobs.triggers import gang_job, sensor
from gangjobs_sandbox.registry import PatchKind
from gangjobs_sandbox.resources import JOBS
from tests.airflow.polling import wait_for
from tests.annotations import recorded
from tests.documented_links import documented_links
from tests.provider.task_runner import run_trigger

if TYPE_CHECKING:
    from pathlib import Path

    from gangjobs_sandbox.thread import SandboxThread
    from tests.provider.task_runner import Task, TaskMaker


# -- The tries of one task by the operator, on the embedded cluster and without the processes of Airflow -------------

WRITE_RANK = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'
FAIL = "test $RANK = 0 || exit 3; sleep 600"
FAIL_ALL = "echo no luck; exit 3"
ENDLESS = "sleep 600"


# -- one try ----------------------------------------------------------------------------------------------


def test_gang_is_delivered_only_after_its_success_is_noted(task: TaskMaker) -> None:
    train = task(WRITE_RANK, results="all")
    operator, context = train.operator(), train.next_try()

    value = operator.execute(context)

    assert value == [{"rank": 0}, {"rank": 1}]
    assert len(train.jobs) == 1

    train.note_success(operator, context, value)

    assert train.jobs == []


NOT_ACCEPTED: dict[str, Any] = {
    "refused": "running",
    "given up before": "up_for_retry",
    "unknown": ConnectionError("no API server"),
}


@pytest.mark.parametrize("state", NOT_ACCEPTED.values(), ids=NOT_ACCEPTED)
def test_gang_of_a_success_that_airflow_has_not_accepted_is_delivered_by_the_next_try(
    task: TaskMaker, state: Any
) -> None:
    train = task(WRITE_RANK)
    train.state = state
    train.execute()
    (kept,) = train.jobs

    train.state = "success"
    assert train.execute() == {"rank": 0}

    assert ("gangjobs.airflow/delivered" in kept["metadata"]["annotations"], train.jobs) == (False, [])


def test_late_try_does_not_deliver_a_gang_that_the_next_try_has_adopted(task: TaskMaker) -> None:
    train = task(WRITE_RANK)
    late, of_late = train.operator(), train.next_try()
    value = late.execute(of_late)
    train.operator().execute(train.next_try())
    before = train.jobs

    train.note_success(late, of_late, value)

    assert (len(before), train.jobs) == (1, before)


@pytest.mark.parametrize("given", [None, print, [print]], ids=["none", "one", "list"])
def test_success_callbacks_of_users_and_cluster_policies_run_after_that_of_the_provider(
    task: TaskMaker, given: Any
) -> None:
    train = task(WRITE_RANK)
    by_parameter = task(WRITE_RANK, on_success_callback=given).operator()
    by_policy = train.operator()
    by_policy.on_success_callback = given
    of_user = [] if given is None else [print]

    for operator in (by_parameter, by_policy):
        assert operator.on_success_callback == of_user, "other processes have nothing to deliver"
        operator.execute(train.next_try())
        ours, *theirs = operator.on_success_callback
        assert theirs == of_user
        assert ours is not print


def test_submission_is_an_xcom(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    train.defer()
    (job,) = train.jobs

    assert train.xcoms["gang"] == {key: job["metadata"][key] for key in ("namespace", "name", "uid")}


def test_deferral_holds_no_secret(task: TaskMaker, embedded: SandboxThread) -> None:
    left = task(ENDLESS, deferrable=True).defer()
    _, stored = left.trigger.serialize()

    assert embedded.token not in json.dumps(stored)
    assert left.timeout is None


def test_execution_timeout_becomes_the_deadline_of_the_trigger(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, execution_timeout=timedelta(minutes=5))
    left = train.defer()

    deadline = train.context["ti"].start_date.timestamp() + 300
    assert (
        deadline - 1.1 <= left.trigger.args.deadline <= deadline + 0.1
    )  # the clock of the API server has whole seconds
    assert left.timeout is not None
    assert left.timeout > timedelta(minutes=6)


def test_manifest_file_of_a_mapped_task_is_read_when_it_runs(task: TaskMaker, tmp_path: Path) -> None:
    metadata = {"namespace": "kube-public", "labels": {"try": "{{ ti.try_number }}"}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    (tmp_path / "job.json").write_text(json.dumps(manifest))
    train = task(ENDLESS, deferrable=True, manifest=str(tmp_path / "job.json"))
    train.defer()
    (job,) = train.jobs

    assert (job["metadata"]["namespace"], job["metadata"]["labels"]["try"]) == ("kube-public", "1")


@pytest.mark.parametrize("manifest", ["kind: [", "kind: CronJob\nspec: {}\n", "- a\n- b\n"])
def test_manifest_that_is_not_a_job_fails_without_a_retry(task: TaskMaker, manifest: str) -> None:
    train = task(WRITE_RANK)
    operator = train.operator()
    operator.manifest = manifest

    with pytest.raises(AirflowFailException, match="manifest"):
        operator.execute(train.next_try())


# -- another try ----------------------------------------------------------------------------------------------


def test_next_try_adopts_the_gang_that_runs(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    first, second = train.defer(), train.defer()

    assert first.trigger.args.uid == second.trigger.args.uid
    assert first.trigger.args.claim != second.trigger.args.claim


def test_result_that_airflow_did_not_store_is_returned_again(task: TaskMaker) -> None:
    """A fault of the worker or of the API server after the success of a gang causes no second run of the gang."""
    train = task(WRITE_RANK)
    context = train.next_try()
    pushed: list[str] = []

    def refuse(key: str, value: Any) -> None:
        pushed.append(key)
        if key == "return_value":
            raise ConnectionError("the API server is away")

    context["ti"].xcom_push = refuse
    with pytest.raises(ConnectionError):
        train.execute(context)
    (job,) = train.jobs

    assert train.execute() == {"rank": 0}
    assert pushed == ["gang", "gang_end", "return_value"]
    assert train.xcoms["gang"]["uid"] == job["metadata"]["uid"]


def test_cleared_task_runs_a_new_gang(task: TaskMaker) -> None:
    train = task(WRITE_RANK, on_finish="keep")
    train.execute()
    train.execute()

    assert sorted(job["metadata"]["name"][-2:] for job in train.jobs) == ["-0", "-1"]


# -- failures -------------------------------------------------------------------------------------------------


def test_failed_rank_is_an_error_with_its_fields(task: TaskMaker) -> None:
    train = task(FAIL)

    with pytest.raises(AppFailed, match="exited with code 3") as raised:
        train.execute()

    assert (raised.value.rank, raised.value.exit_code) == (1, 3)
    assert raised.value.category == train.xcoms["gang_end"]["category"] == "ApplicationFailed"


def test_error_links_to_the_gang_and_to_the_rank_that_failed(task: TaskMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__LINKS", documented_links())
    with pytest.raises(AppFailed) as raised:
        task(FAIL).execute()
    links = raised.value.links
    assert list(links) == ["Run", "Metrics of rank 1"]
    assert all(f"{name}: {url}" in raised.value.log_message for name, url in links.items())
    assert re.fullmatch(
        r"https://grafana\.example\.com/d/pods\?var-pod=[a-z0-9-]+-1-\w+&from=\d{13}&to=\d{13}",
        links["Metrics of rank 1"],
    )


def test_unknown_field_of_a_link_is_refused_before_anything_is_created(
    task: TaskMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__GANGJOBS__LINKS", "Logs: https://logs.example.com/{pods}")
    train = task(FAIL)
    with pytest.raises(InvalidConnection, match=r"\[gangjobs\] links link 'Logs' has the unknown field \{pods\}"):
        train.execute()
    assert train.jobs == []


@pytest.mark.parametrize("copied", [(), ("proxy",)], ids=["log of the sidecar is not copied", "it is copied"])
def test_last_lines_in_the_error_are_those_of_the_container_that_failed(
    task: TaskMaker, copied: tuple[str, ...]
) -> None:
    proxy = {"name": "proxy", "image": "i", "command": ["bash", "-c", "echo no route; exit 3"]}
    overrides = {"spec": {"containers": [proxy]}}
    train = task("echo all is well", workers=1, log_containers=copied, pod_overrides=overrides)
    with pytest.raises(AppFailed, match="of rank 0 proxy:") as failed:
        train.execute()
    assert ("all is well" in str(failed.value), "no route" in str(failed.value)) == (False, True)


@pytest.mark.parametrize(("on_finish", "left"), [("keep", 1), ("delete_succeeded", 1), ("delete", 0)])
def test_failed_gang_is_kept_unless_on_finish_is_delete(task: TaskMaker, on_finish: str, left: int) -> None:
    train = task(FAIL_ALL, on_finish=on_finish)
    with pytest.raises(AppFailed):
        train.execute()

    assert len(train.jobs) == left


def test_gang_that_fits_nowhere_ends_at_its_deadline(task: TaskMaker, capsys: pytest.CaptureFixture[str]) -> None:
    train = task(ENDLESS, assemble_timeout=2, pod_overrides={"spec": {"nodeSelector": {"no": "where"}}})

    with pytest.raises((Unschedulable, DeadlineExceeded), match="assembling for longer than 2 s") as raised:
        train.execute()

    assert raised.value.category == train.xcoms["gang_end"]["category"] == "NodesNotMatching"
    assert capsys.readouterr().out.count("[NodesNotMatching]") == 1
    assert train.stopped


def test_invalid_parameter_fails_without_a_retry(task: TaskMaker) -> None:
    train = task(WRITE_RANK)
    operator = train.operator()
    operator.workers = "many"

    with pytest.raises(AirflowFailException, match="workers"):
        operator.execute(train.next_try())

    assert train.jobs == []
    assert train.xcoms["gang_refused"]["error"] == "InvalidGangSpec"
    assert "workers" in train.xcoms["gang_refused"]["message"], "the tab shows why"


# -- Airflow ends the deferral -------------------------------------------------------------------------------


def test_time_limit_of_a_deferral_without_a_gang_says_so(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, execution_timeout=timedelta(hours=1))

    with pytest.raises(DeadlineExceeded, match="was not submitted, or had ended, when the execution_timeout of 3600 s"):
        train.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, train.next_try())


def test_task_that_is_resumed_without_an_event_begins_anew(task: TaskMaker) -> None:
    """`airflow tasks test` resumes a task that the scheduler would defer without a worker."""
    train = task(WRITE_RANK, results="all")
    context = train.next_try()

    value = train.operator().resume_execution("execute_complete", {}, context)

    assert value == [{"rank": 0}, {"rank": 1}]


def test_time_limit_of_the_deferral_ends_the_gang(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True, execution_timeout=timedelta(hours=1))
    train.defer()

    with pytest.raises(DeadlineExceeded, match="execution_timeout of 3600 s"):
        train.operator().resume_execution("__fail__", {"error": "Trigger timeout"}, train.context)

    assert train.stopped
    wait_for("the end of its pods, whose outcomes are not recorded", lambda: not train.pods)


@pytest.mark.parametrize("retries_left", [True, False])
def test_gang_of_a_broken_trigger_is_followed_in_the_worker(task: TaskMaker, retries_left: bool) -> None:
    train = task(f"sleep 2; {WRITE_RANK}", deferrable=True)
    context = train.next_try(retries_left=retries_left)
    train.defer(context)

    resumed = train.operator().resume_execution("__fail__", {"error": "Trigger failure"}, context)

    assert resumed == {"rank": 0}


def test_gang_that_the_worker_follows_keeps_its_count_of_disruptions(
    task: TaskMaker, embedded: SandboxThread, caplog: pytest.LogCaptureFixture
) -> None:
    train = task("sleep 2; exit 1", deferrable=True)
    context = train.next_try(retries_left=False)
    train.defer(context)
    (job,) = train.jobs
    lost = {"metadata": {"annotations": recorded(disruptions=3, task=read_job(job).record.task)}}
    embedded.call(lambda it: it.registry.patch(JOBS, job["metadata"]["name"], "default", lost, PatchKind.MERGE))

    with pytest.raises(AppFailed):
        train.operator().resume_execution("__fail__", {"error": "Trigger failure"}, context)

    assert (train.xcoms["gang_end"]["disruptions"], train.xcoms["gang_end"]["attempt"]) == (3, 0)


def test_gang_is_not_left_without_a_trigger_if_its_xcom_cannot_be_pushed(task: TaskMaker) -> None:
    train = task(WRITE_RANK, deferrable=True)
    context = train.next_try()

    def refuse(key: str, value: Any) -> None:
        raise RuntimeError("the XCom backend is down")

    context["ti"].xcom_push = refuse

    left = train.defer(context)

    assert left.trigger.args.name == train.jobs[0]["metadata"]["name"]
    assert train.operator().execute_complete(context, run_trigger(left)) == {"rank": 0}


def test_task_that_ends_with_the_submission_does_not_wait_after_a_broken_trigger(task: TaskMaker) -> None:
    train = task(ENDLESS, wait_until="submitted", deferrable=True)
    context = train.next_try()
    gang = train.operator().execute(context)

    assert train.operator().resume_execution("__fail__", {"error": "Trigger failure"}, context) == gang


@pytest.mark.parametrize("wait_until", ["submitted", "ended"])
def test_gang_whose_submission_has_stopped_half_way_is_left_to_the_next_try(
    task: TaskMaker, embedded: SandboxThread, wait_until: str
) -> None:
    train = task(ENDLESS, deferrable=True, wait_until=wait_until)
    context = train.next_try()
    if wait_until == "submitted":
        train.operator().execute(context)
    else:
        train.defer(context)
    (job,) = train.jobs
    suspended = {"spec": {"suspend": True}}
    embedded.call(lambda it: it.registry.patch(JOBS, job["metadata"]["name"], "default", suspended, PatchKind.MERGE))

    with pytest.raises(TaskDeferralError):
        train.operator().resume_execution("__fail__", {"error": "Trigger failure"}, context)


def test_broken_trigger_fails_the_try_if_its_gang_cannot_be_found(task: TaskMaker) -> None:
    train = task(ENDLESS, deferrable=True)
    train.defer()
    another_try = train.next_try(retries_left=False)

    with pytest.raises(TaskDeferralError):
        train.operator().resume_execution("__fail__", {"error": "Trigger failure"}, another_try)

    assert not train.stopped


# -- A task whose gang has failed with an exit code that means "nothing to do" is skipped ----------------------------


def test_exit_code_of_all_failed_ranks_skips_the_task(task: TaskMaker) -> None:
    with pytest.raises(AirflowSkipException, match="because of skip_on_exit_code: Gang"):
        task("exit 99", skip_on_exit_code=99).execute()


# -- A try that Airflow resumes with the event of an earlier try begins anew: a user has cleared the task in
#    between ---------------------------------------------------------------------------------------------------------

SUCCEEDED = 'printf "{\\"rank\\": $RANK}" > "$GANG_RESULT_PATH"'


def cleared_while_it_completes(train: Task) -> tuple[Any, TaskDeferred]:
    """Clear the task between the event and its completion. Return the context and the deferral of the second try."""
    first = train.next_try()
    event = with_task_instance(run_trigger(train.defer(first)), first["ti"])
    second = train.next_try()
    with pytest.raises(TaskDeferred) as left:
        train.operator().execute_complete(second, event)
    return second, left.value


def test_the_second_try_claims_the_gang_of_the_first_one_and_delivers_its_results(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True, results="all")
    second, left = cleared_while_it_completes(train)
    (job,) = train.jobs
    assert read_job(job).claim.id == str(second["ti"].id)

    event = with_task_instance(run_trigger(left), second["ti"])
    assert train.resume(second, event) == [{"rank": 0}, {"rank": 1}]
    assert train.jobs == [], "delivered, and deleted as on_finish says"


def test_the_second_try_submits_another_gang_if_it_may_not_adopt_one(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True, results="all", durable=False, on_finish="keep")
    second, left = cleared_while_it_completes(train)
    event = with_task_instance(run_trigger(left), second["ti"])

    assert train.resume(second, event) == [{"rank": 0}, {"rank": 1}]
    attempts = {job["metadata"]["name"][-2:] for job in train.jobs}
    assert attempts == {"-0", "-1"}


def test_an_earlier_wait_that_was_too_long_does_not_fail_the_second_try(task: TaskMaker) -> None:
    train = task(SUCCEEDED, deferrable=True)
    first, second = train.next_try(), train.next_try()
    event = with_task_instance({"v": 1, "status": "timeout"}, first["ti"])
    with pytest.raises(TaskDeferred):
        train.operator().execute_after_previous(second, event)
    assert len(train.jobs) == 1


def test_a_sensor_looks_again(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DAG("d", schedule=None):
        waiting = GangJobSensor(task_id="wait", gangs="a", kubernetes_conn_id=connection)
    looks: list[Any] = []
    monkeypatch.setattr(type(waiting), "execute", lambda self, context: looks.append(context))
    gang = build_event(GangRef("default", "a", "u"), Status.SUCCEEDED, Phase.SUCCEEDED).to_payload()
    payload = {"v": 1, "status": "met", "message": "", "gangs": [gang]}
    first, second = (SimpleNamespace(id=uuid4()) for _ in range(2))

    waiting.execute_complete({"ti": second}, with_task_instance(payload, first))
    assert [context["ti"] for context in looks] == [second]


TRIGGERS: dict[str, tuple[str, str, Any]] = {
    "gang": ("attempt.triggerer.gang_wait.wait_for_event", "gang", gang_job.GangJobTrigger),
    "earlier gang": (
        "attempt.triggerer.previous_attempt_wait.wait_for_previous_pods",
        "previous",
        gang_job.PreviousGangTrigger,
    ),
    "selected gangs": ("triggers.sensor.wait_for_selected", "selection", sensor.GangSelectionTrigger),
}


@pytest.mark.parametrize(("wait", "payload", "kind"), TRIGGERS.values(), ids=TRIGGERS)
def test_every_event_names_the_task_instance_that_waited(
    monkeypatch: pytest.MonkeyPatch, wait: str, payload: str, kind: Any
) -> None:
    gang = build_event(GangRef("default", "a", "u"), Status.SUCCEEDED, Phase.SUCCEEDED)
    results: dict[str, Any] = {"gang": gang, "previous": {"status": "ended"}, "selection": {"status": "met"}}

    async def waited(*args: Any, **kwargs: Any) -> Any:
        return results[payload]

    monkeypatch.setattr(f"airflow_provider_gangjobs.{wait}", waited)
    target = {} if payload == "selection" else {"name": "a", "uid": "u"}
    trigger = kind(kubernetes_conn_id="c", namespace="default", **target)
    trigger.task_instance = SimpleNamespace(id=uuid4(), dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(run())
    assert event["task_instance"] == str(trigger.task_instance.id)
