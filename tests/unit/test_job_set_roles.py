"""Roles of a gang in a queue of Kueue: the main Job without pods, its JobSet, and what the Jobs of the JobSet mean."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import Claim, GangRef, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.queues import queue_of_job
from airflow_provider_gangjobs.gang.render.job_manifest import render_job, render_job_set, render_service
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision, shape_of
from airflow_provider_gangjobs.gang.roles import (
    HOST_NAME_MAX,
    ROLE_NAME_MAX,
    main_job_name_max,
    roles_of,
)
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end, must_delete_job_set, read_gang, ttl_patch
from airflow_provider_gangjobs.gang.state.phase import Status, judge, phase_of
from airflow_provider_gangjobs.gang.state.queue_wait import queued_uid
from airflow_provider_gangjobs.gang.state.stopped import BY_SUCCESS, Stopped, format_stopped, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.gang.validation.validate import validate
from tests.annotations import LEADER_AND_WORKERS, recorded, submitted

ROLES = {"leader": {"image": "lead:1"}, "worker": {"image": "work:1", "workers": 3}}
SPEC = GangSpec(roles=ROLES, queue_name="team", queue_priority="high", labels={"team": "a"})
DECISION = PlacementDecision(Placement.GANG, "kueue")
REF = GangRef("ns", "g", "record")
T1, T2 = "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"
QUEUE_LABELS = {"kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"}


# -- what is rendered --------------------------------------------------------------------------------


def attempt_of(spec: GangSpec = SPEC, task_id: str = "train") -> Any:
    name_max = main_job_name_max(roles_of(spec), has_job_set=True)
    return build_attempt(TaskKey("etl", "r", task_id), Claim("c"), namespace="ns", number=0, name_max=name_max)


def main_job(spec: GangSpec = SPEC) -> dict[str, Any]:
    return render_job(spec, attempt_of(spec), DECISION, None, shape_of(spec, {}))


def job_set(spec: GangSpec = SPEC) -> dict[str, Any]:
    return render_job_set(spec, attempt_of(spec), DECISION, shape_of(spec, {}), "record")


def test_roles_in_a_queue_are_accepted():
    assert validate(SPEC) == ()
    assert validate(GangSpec(roles=ROLES, labels={"kueue.x-k8s.io/queue-name": "team"})) == ()
    assert validate(GangSpec(roles=ROLES, queue_name="team", gang_scheduler="kueue")) == ()


def test_record_has_no_pods_no_time_limit_and_no_object_of_kueue():
    body = main_job(GangSpec(roles=ROLES, labels={"kueue.x-k8s.io/queue-name": "team"}, execution_timeout_s=60))
    assert (body["spec"]["suspend"], body["spec"]["parallelism"], body["spec"]["completions"]) == (True, 0, 1)
    assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished"} & body["spec"].keys()
    assert not QUEUE_LABELS & body["metadata"]["labels"].keys()
    assert "gangjobs.airflow/gang-role" not in body["metadata"]["labels"]
    stored = read_job(body)
    assert (stored.record.has_job_set, stored.record.queue, stored.queue) == (True, "team", None)
    assert queue_of_job(stored).start_patch(stored)["spec"] == {"suspend": False}


def test_job_set_is_suspended_and_has_the_priority_and_not_yet_the_queue():
    body = job_set()
    assert body["spec"]["suspend"] is True
    assert QUEUE_LABELS & body["metadata"]["labels"].keys() == {"kueue.x-k8s.io/priority-class"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("record", False, True)
    assert "failurePolicy" not in body["spec"]


def test_each_role_is_one_job_whose_pods_name_the_record():
    replicated = job_set(replace(SPEC, labels={"kueue.x-k8s.io/queue-name": "team"}))["spec"]
    jobs = replicated["replicatedJobs"]
    assert [(job["name"], job["replicas"], job["template"]["spec"]["completions"]) for job in jobs] == [
        ("leader", 1, 1),
        ("worker", 1, 3),
    ]
    for job in jobs:
        metadata, template = job["template"]["metadata"], job["template"]["spec"]["template"]["metadata"]
        assert not QUEUE_LABELS & metadata["labels"].keys()
        assert "gangjobs.airflow/task" not in metadata["labels"]
        for labels in (metadata["labels"], template["labels"]):
            assert labels["gangjobs.airflow/gang"] == attempt_of().name
            assert (labels["gangjobs.airflow/job-uid"], labels["gangjobs.airflow/gang-role"]) == ("record", job["name"])
        assert template["finalizers"] == ["gangjobs.airflow/harvest"]


def test_address_of_rank_0_is_that_of_its_pod_in_the_service_of_the_gang():
    name = attempt_of().name
    for job in job_set()["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
        assert (env["MASTER_ADDR"], pod["subdomain"]) == (f"{name}-leader-0-0.{name}", name)
    assert render_service(SPEC, attempt_of(), "record")["metadata"]["name"] == name
    assert job_set()["spec"]["network"] == {"enableDNSHostnames": False}


@given(
    role=st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True),
    workers=st.integers(1, 100_000),
    task_id=st.text("abc-", min_size=1, max_size=200),
)
def test_host_names_are_valid_dns_labels(role: str, workers: int, task_id: str) -> None:
    assert len(role) <= ROLE_NAME_MAX
    spec = GangSpec(roles={role: {"workers": workers}, "z": {}}, queue_name="team")
    name = attempt_of(spec, task_id).name
    assert len(f"{name}-{role}-0-{workers - 1}") <= HOST_NAME_MAX


# -- what the Jobs of the JobSet mean --------------------------------------------------------------------------------

CONDITIONS = {
    "waits": ("Suspended", "JobSuspended"),
    "runs": None,
    "succeeds": ("SuccessCriteriaMet", "CompletionsReached"),
    "complete": ("Complete", "CompletionsReached"),
    "fails": ("FailureTarget", "BackoffLimitExceeded"),
    "failed": ("Failed", "BackoffLimitExceeded"),
    "limited": ("Failed", "DeadlineExceeded"),
}
BY_USER = stopped_by_user("enough")
UIDS = {"leader": "uid-leader", "worker": "uid-worker"}


def stored_main_job(
    state: str = "runs",
    *,
    stopped: Stopped | None = None,
    noted: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    annotations = recorded(roles=LEADER_AND_WORKERS, queue="team", ttl_s=60)
    if noted:
        annotations |= submitted(is_queued=True, role_jobs=UIDS)
    if stopped is not None:
        annotations["gangjobs.airflow/stopped"] = format_stopped(stopped)
    metadata = {"name": "g", "namespace": "ns", "uid": "record", "generation": 2, "annotations": annotations}
    metadata["labels"] = {"gangjobs.airflow/gang": "g", "gangjobs.airflow/task": "digest"}
    status: dict[str, Any] = {"startTime": "2026-01-01T00:00:00Z", **conditions(state, T2)}
    return {"metadata": metadata, "spec": {"parallelism": 0, "completions": 1, **spec}, "status": status}


def conditions(state: str, at: str) -> dict[str, Any]:
    if (found := CONDITIONS[state]) is None:
        return {}
    kind, reason = found
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}]}


def role_job(role: str, state: str, at: str = T1, *, uid: str | None = None, **metadata: Any) -> dict[str, Any]:
    size = 1 if role == "leader" else 3
    labels = {
        "gangjobs.airflow/gang": "g",
        "gangjobs.airflow/gang-role": role,
        "gangjobs.airflow/job-uid": "record",
    }
    owner = {"kind": "JobSet", "name": "g", "uid": "job-set", "controller": True}
    metadata |= {"name": f"g-{role}-0", "namespace": "ns", "uid": uid or UIDS[role], "generation": 2}
    metadata |= {"labels": labels, "ownerReferences": [owner]}
    status = conditions(state, at)
    if state != "waits":
        status |= {"startTime": "2026-01-01T00:00:30Z", "active": size, "ready": size}
    if state == "complete":
        status |= {"active": 0, "ready": 0, "succeeded": size, "completionTime": at}
        status["completedIndexes"] = "0" if size == 1 else "0-2"
    spec = {"parallelism": size, "completions": size, "suspend": state == "waits"}
    return {"metadata": metadata, "spec": spec, "status": status}


def gang_of(leader: str | None, worker: str | None, **changes: Any) -> StoredGang:
    states = {"leader": leader, "worker": worker}
    return read_gang(
        stored_main_job(**changes), [role_job(role, state) for role, state in states.items() if state is not None]
    )


TOGETHER = {
    ("waits", "waits"): ("queued", None),
    ("runs", "waits"): ("queued", None),
    ("runs", "runs"): ("running", None),
    ("complete", "runs"): ("running", None),
    ("complete", "succeeds"): ("finishing", None),
    ("complete", "complete"): ("succeeded", "succeeded"),
    ("runs", "fails"): ("finishing", None),
    ("runs", "failed"): ("finishing", None),
    ("complete", "failed"): ("failed", "failed"),
    # the JobSet controller has deleted the other Job
    (None, "failed"): ("failed", "failed"),
    ("limited", None): ("failed", "failed"),
    # somebody has deleted a Job, or the JobSet
    (None, "runs"): ("finishing", None),
    (None, "complete"): ("finishing", None),
    (None, None): ("failed", "failed"),
}


@pytest.mark.parametrize(
    "main_job", [{}, {"suspend": True, "state": "waits"}], ids=["started", "suspended by Kueue, as it names no queue"]
)
@pytest.mark.parametrize(("states", "expected"), list(TOGETHER.items()), ids=lambda value: " ".join(map(str, value)))
def test_phase_and_verdict_of_the_jobs_together(
    states: tuple[str | None, str | None], expected: tuple[str, str | None], main_job: dict[str, Any]
) -> None:
    gang = gang_of(*states, **main_job)
    verdict = judge(gang, REF)
    assert (phase_of(gang), verdict and verdict.status) == expected


@pytest.mark.parametrize("states", [("failed", None), (None, "failed"), ("failed", "limited"), ("limited", "failed")])
def test_reason_is_that_of_the_job_that_failed_and_not_that_others_were_deleted(states: tuple[str | None, str | None]):
    gang = gang_of(*states)
    role = ("leader", "worker")[states.index("failed")]
    assert gang.failed_condition is not None
    assert gang.failed_condition.reason == "BackoffLimitExceeded"
    assert f"of role {role}" in gang.failed_condition.message


def test_counters_are_those_of_the_roles_and_not_of_the_record() -> None:
    gang = gang_of("complete", "complete")
    assert (gang.ranks, gang.workers, gang.status.succeeded, gang.status.completed_indexes) == (4, 4, 4, "0,1-3")
    assert (gang.status.start_time.second, gang.ref) == (30, REF)  # type: ignore[union-attr]


def test_job_with_another_uid_is_not_the_job_of_the_gang() -> None:
    jobs = [role_job("leader", "complete", uid="again"), role_job("worker", "complete")]
    gang = read_gang(stored_main_job(), jobs)
    target = gang.failure_target_condition
    assert (phase_of(gang), target and target.reason) == ("finishing", "JobOfRoleDeleted")
    assert must_delete_job_set(gang)


def test_gang_of_replaced_jobs_has_not_ended_before_they_are_gone() -> None:
    jobs = [role_job("leader", "runs", uid="again"), role_job("worker", "runs", uid="once more")]
    gang = read_gang(stored_main_job(), jobs)
    assert (judge(gang, REF), phase_of(gang)) == (None, "finishing")


def test_job_of_another_record_is_ignored() -> None:
    other = role_job("leader", "failed")
    other["metadata"]["labels"]["gangjobs.airflow/job-uid"] = "another"
    assert read_gang(stored_main_job(), [other]).jobs_with_pods == ()


def test_gang_is_in_its_queue_when_its_submission_is_complete() -> None:
    assert (gang_of("waits", "waits").queue, queued_uid(gang_of("waits", "waits"))) == ("team", "job-set")
    incomplete = gang_of("waits", "waits", noted=False, suspend=True)
    assert (incomplete.queue, incomplete.is_submission_complete, incomplete.never_ran) == (None, False, True)


def test_gang_that_ran_before_its_submission_was_complete_has_run() -> None:
    """Kueue may admit the JobSet before the last step."""
    assert not gang_of("runs", "runs", noted=False, suspend=True).never_ran


def test_main_job_that_kueue_has_suspended_is_not_half_submitted() -> None:
    stored, unfinished = (stored_main_job("waits", suspend=True, noted=noted) for noted in (True, False))
    for main in (stored, unfinished):
        del main["status"]["startTime"]
    assert (read_job(stored).is_unstarted, read_job(unfinished).is_unstarted) == (False, True)


def test_missing_job_fails_no_gang_whose_submission_is_not_complete() -> None:
    gang = gang_of("waits", None, noted=False, suspend=True)
    assert (gang.failure_target_condition, gang.is_ended) == (None, False)


@pytest.mark.parametrize("state", CONDITIONS)
def test_record_alone_never_says_that_the_gang_has_ended(state: str) -> None:
    alone = read_job(stored_main_job(state))
    assert (alone.is_ended, alone.never_ran, alone.has_pods_left) == (False, False, True)


def test_gang_whose_main_containers_have_succeeded_ends_when_its_job_set_is_gone() -> None:
    """The main Job has the mark, and fails by its deadline; the follower deletes the JobSet."""
    running = gang_of("runs", "complete", stopped=BY_SUCCESS)
    assert (phase_of(running), must_delete_job_set(running)) == ("finishing", True)
    deleting = read_gang(
        stored_main_job("failed", stopped=BY_SUCCESS), [role_job("leader", "runs", deletionTimestamp=T1)]
    )
    assert (phase_of(deleting), must_delete_job_set(deleting)) == ("finishing", False)
    gone = gang_of(None, None, state="failed", stopped=BY_SUCCESS)
    verdict = judge(gone, REF)
    assert verdict is not None
    assert (verdict.status, verdict.completed_indexes, gone.status.succeeded) == (Status.SUCCEEDED, "0-3", 4)


def test_gang_that_was_stopped_in_its_queue_has_failed_when_its_job_set_is_gone() -> None:
    assert must_delete_job_set(gang_of("waits", "waits", stopped=BY_USER))
    assert judge(gang_of("waits", "waits", state="limited", stopped=BY_USER), REF) is None
    gone = gang_of(None, None, state="limited", stopped=BY_USER)
    assert (gone.ends_by_stop, phase_of(gone)) == (True, "failed")


def test_gang_that_was_stopped_after_its_success_has_succeeded() -> None:
    gang = gang_of("complete", "complete", stopped=BY_USER, state="limited")
    assert (phase_of(gang), gang.ends_by_stop) == ("succeeded", False)


def test_success_stays_when_the_job_set_is_deleted_after_it() -> None:
    assert phase_of(gang_of(None, None, state="complete")) == "succeeded"


KEPT = [("runs", "runs"), ("complete", "runs"), ("runs", "failed"), (None, "failed"), ("fails", "waits")]


@pytest.mark.parametrize("states", KEPT, ids=lambda states: " ".join(map(str, states)))
def test_job_set_is_kept_if_the_end_of_one_job_ends_the_others(states: tuple[str | None, str | None]) -> None:
    assert not must_delete_job_set(gang_of(*states, stopped=BY_USER))


def test_jobs_of_a_job_set_that_lacks_a_job_end_with_their_job_set() -> None:
    gang = gang_of(None, "runs")
    assert [part.metadata.name for part in jobs_to_end(gang)] == ["g"]
    assert must_delete_job_set(gang)


@pytest.mark.parametrize(
    ("states", "state", "change"),
    [
        (("complete", "complete"), "runs", {"completions": 0}),
        (("runs", "failed"), "runs", {"activeDeadlineSeconds": 0}),
        ((None, "failed"), "limited", {}),
        (("complete", "complete"), "complete", {}),
    ],
)
def test_record_ends_as_the_gang_and_its_time_to_live_begins(
    states: tuple[str | None, str | None], state: str, change: dict[str, int]
) -> None:
    assert ttl_patch(gang_of(*states, state=state)) == {"spec": {"ttlSecondsAfterFinished": 60, **change}}


@pytest.mark.parametrize(
    ("leader", "worker", "stopped"), list(product([*CONDITIONS, None], [*CONDITIONS, None], [None, BY_USER]))
)
def test_gang_succeeds_only_if_both_jobs_are_complete_and_every_other_end_needs_no_job_that_runs(
    leader: str | None, worker: str | None, stopped: Stopped | None
) -> None:
    gang = gang_of(leader, worker, stopped=stopped, state="runs" if stopped is None else "limited")
    verdict = judge(gang, REF)
    assert (verdict is not None and verdict.status is Status.SUCCEEDED) == ((leader, worker) == ("complete",) * 2)
    if verdict is not None:
        assert not {leader, worker} & {"waits", "runs", "succeeds", "fails"}
