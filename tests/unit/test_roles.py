"""Roles of a gang, also in a queue of Kueue: what is refused, what is rendered, and what the Jobs mean together."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_provider_gangjobs.gang.identity import (
    HOST_NAME_MAX,
    ROLE_NAME_MAX,
    Claim,
    GangRef,
    TaskKey,
    build_attempt,
    main_job_name_max,
)
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import task_result
from airflow_provider_gangjobs.gang.queues import queue_of_job
from airflow_provider_gangjobs.gang.render.job_manifest import render_job, render_job_set, render_role, render_service
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision, shape_of
from airflow_provider_gangjobs.gang.schedulers import DISCOVERED_DIALECTS, find_separate
from airflow_provider_gangjobs.gang.spec import GangSpec, Results, roles_of
from airflow_provider_gangjobs.gang.state.phase import Status, SubmissionState, judge, phase_of, state_of
from airflow_provider_gangjobs.gang.state.pods import name_rank, owner_uid, rank_of
from airflow_provider_gangjobs.gang.state.stopped import BY_SUCCESS, Stopped, format_stopped, stopped_by_user
from airflow_provider_gangjobs.gang.state.stored_gang import (
    StoredGang,
    jobs_to_end,
    must_delete_job_set,
    read_gang,
    read_gangs,
    read_job,
    ttl_patch,
)
from airflow_provider_gangjobs.gang.state.waiting import queued_uid
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.views import PodView, parse_indexes, view
from airflow_provider_gangjobs.tracking.harvest.ledger import decode, encode
from tests.annotations import LEADER_AND_WORKERS, recorded, submitted

if TYPE_CHECKING:
    from collections.abc import Callable

LEADER, WORKER = {"image": "lead:1"}, {"image": "work:1", "workers": 3}
ROLES = {"leader": LEADER, "worker": WORKER}
SPEC = GangSpec(roles=ROLES)


# -- what is refused --------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no mapping": ({"roles": ["leader"]}, "roles: is list"),
    "one role": ({"roles": {"leader": LEADER}}, "roles: has 1 role"),
    "nine roles": ({"roles": {f"r{number}": LEADER for number in range(9)}}, "roles: has 9 roles"),
    "capitals": ({"roles": {"Leader": LEADER, "worker": WORKER}}, "roles: has the role 'Leader'"),
    "long": ({"roles": {"x" * (ROLE_NAME_MAX + 1): LEADER, "worker": WORKER}}, "has 21 characters"),
    "role is no mapping": ({"roles": {"leader": "lead:1", "worker": WORKER}}, "roles.leader: is str"),
    "unknown key": ({"roles": {"leader": {**LEADER, "wokers": 1}, "worker": WORKER}}, "roles.leader.wokers"),
    "key of the gang": (
        {"roles": {"leader": {**LEADER, "namespace": "a"}, "worker": WORKER}},
        "roles.leader.namespace: belongs to the whole gang. Give namespace as a parameter of the gang.",
    ),
    "image beside roles": ({"roles": ROLES, "image": "i"}, "image: is given together with roles."),
    "workers beside roles": ({"roles": ROLES, "workers": 3}, "workers: is given together with roles."),
    "manifest": (
        {"roles": ROLES, "manifest": {}},
        "manifest: is given together with roles, and describes one Job only.",
    ),
    "labels are text": ({"roles": ROLES, "labels": "team=x"}, "labels: is str, not a mapping"),
    "min_workers is 0": ({"roles": ROLES, "min_workers": 0}, "min_workers: is given together with roles"),
    "min_workers": ({"roles": ROLES, "min_workers": 2}, "min_workers: is given together with roles"),
    "topology": (
        {"roles": ROLES, "queue_name": "team", "topology": "required:rack"},
        "topology: is given together with roles, and applies to each role separately.",
    ),
    "priority without a queue": ({"roles": ROLES, "queue_priority": "high"}, "queue_priority: is given without"),
    "volcano in a queue": (
        {"roles": ROLES, "queue_name": "team", "gang_scheduler": "volcano"},
        "gang_scheduler: is volcano, and the gang is in the queue team, where only Kueue places roles.",
    ),
    "yunikorn": ({"roles": ROLES, "gang_scheduler": "yunikorn"}, "Choose native, volcano or coscheduling"),
    "field of the Job": ({"roles": ROLES, "gang_scheduler": "job-scheduling"}, "each Job makes a group of its own"),
    "no image": ({"roles": {"leader": {}, "worker": WORKER}}, "roles.leader.image: is missing"),
    "zero workers": ({"roles": {"leader": LEADER, "worker": {**WORKER, "workers": 0}}}, "roles.worker.workers: is 0"),
    "wrong type": (
        {"roles": {"leader": {**LEADER, "command": "run"}, "worker": WORKER}},
        "roles.leader.command: is the text 'run', not a list",
    ),
    "another scheduler": (
        {"roles": {"leader": {**LEADER, "pod_overrides": {"spec": {"schedulerName": "x"}}}, "worker": WORKER}},
        "roles.leader.pod_overrides: sets schedulerName to x",
    ),
    "another priority": (
        {"roles": {"leader": {**LEADER, "pod_overrides": {"spec": {"priorityClassName": "x"}}}, "worker": WORKER}},
        "Give priority_class as a parameter of the gang",
    ),
    "too many ranks": ({"roles": {"a": {**LEADER, "workers": 60_000}, "b": {**LEADER, "workers": 60_000}}}, "120000"),
    "gang parameter": ({"roles": ROLES, "gang": "maybe"}, "gang: is 'maybe'"),
}


@pytest.mark.parametrize(("parameters", "problem"), REFUSED.values(), ids=REFUSED)
def test_wrong_roles_are_refused_by_name(parameters, problem):
    problems = [str(found) for found in validate(GangSpec(**parameters))]
    assert len(problems) == 1, problems
    assert problem in problems[0]


def test_sound_roles_are_accepted():
    spec = GangSpec(roles=ROLES, files={"a": "b\n"}, priority_class="high", gang_scheduler="volcano")
    assert validate(spec) == ()


# -- what is rendered --------------------------------------------------------------------------------


def render(spec: GangSpec = SPEC, scheduler: Any = DISCOVERED_DIALECTS[0]) -> list[dict[str, Any]]:
    attempt = attempt_of(spec)
    decision = PlacementDecision(Placement.GANG, scheduler.name)
    main_job = render_job(spec, attempt, decision, scheduler)
    others = roles_of(spec)[1:]
    return [main_job, *(render_role(spec, role, attempt, decision, scheduler, "uid-1") for role in others)]


def attempt_of(spec: GangSpec = SPEC, task_id: str = "train", *, has_job_set: bool = False):
    key, name_max = TaskKey("etl", "r", task_id), main_job_name_max(roles_of(spec), has_job_set=has_job_set)
    return build_attempt(key, Claim("c"), namespace="ns", number=0, name_max=name_max)


def env_of(job: dict[str, Any]) -> dict[str, Any]:
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    return {item["name"]: item.get("value", "from the pod") for item in env}


def test_each_role_has_its_own_variables_and_those_of_the_gang():
    leader, worker = map(env_of, render())
    address = f"{attempt_of().name}-0.{attempt_of().name}"
    shared = {"GANG_SIZE": "4", "WORLD_SIZE": "4", "NNODES": "4", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    assert shared.items() <= leader.items()
    assert shared.items() <= worker.items()
    names = ("GANG_ROLE", "GANG_ROLE_SIZE", "GANG_RANK_OFFSET", "GANG_ROLE_RANK")
    assert [leader[name] for name in names] == ["leader", "1", "0", "from the pod"]
    assert [worker[name] for name in names] == ["worker", "3", "1", "from the pod"]


RANK_NAMES = {"RANK", "NODE_RANK", "PET_NODE_RANK"}


def test_pods_of_the_first_role_know_their_rank_in_the_gang():
    leader, worker = map(env_of, render())
    assert leader.keys() >= RANK_NAMES
    assert not RANK_NAMES & worker.keys()


@pytest.mark.parametrize("index", [0, 2])
def test_shell_adds_the_rank_in_the_gang_for_later_roles(index):
    show = ["sh", "-c", "echo $RANK $NODE_RANK $PET_NODE_RANK"]
    _, worker = render(GangSpec(roles={"leader": LEADER, "worker": {**WORKER, "command": show}}))
    command = worker["spec"]["template"]["spec"]["containers"][0]["command"]
    environment = {**os.environ, **env_of(worker), "GANG_ROLE_RANK": str(index)}
    words = [word.replace("$$", "$") for word in command]  # as the kubelet does
    printed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(index + 1)] * 3


def test_role_of_one_rank_and_role_without_command_need_no_shell():
    roles = {
        "leader": {"image": "i"},
        "judge": {"image": "i", "command": ["judge"]},
        "worker": {"image": "i", "workers": 2},
    }
    _, judge, worker = render(GangSpec(roles=roles))
    assert {env_of(judge)[name] for name in RANK_NAMES} == {"1"}
    assert judge["spec"]["template"]["spec"]["containers"][0]["command"] == ["judge"]
    assert "command" not in worker["spec"]["template"]["spec"]["containers"][0]
    assert not RANK_NAMES & env_of(worker).keys()


def test_pods_of_all_roles_name_one_service_and_one_record():
    for job in render():
        template = job["spec"]["template"]
        assert template["metadata"]["labels"]["gangjobs.airflow/gang"] == attempt_of().name
        assert template["spec"]["subdomain"] == attempt_of().name
    service = render_service(SPEC, attempt_of(), "uid-1")
    assert service["spec"]["selector"] == {"gangjobs.airflow/gang": attempt_of().name}


@pytest.mark.parametrize(
    "scheduler", [*DISCOVERED_DIALECTS, find_separate("volcano"), find_separate("coscheduling")], ids=lambda s: s.name
)
def test_jobs_of_all_roles_are_linked_to_one_group_of_all_ranks(scheduler):
    from airflow_provider_gangjobs.gang.render.job_manifest import group_of
    from airflow_provider_gangjobs.gang.render.placement import shape_of

    jobs = render(scheduler=scheduler)
    groups = [group_of(job, shape_of(SPEC, {})) for job in jobs]
    assert {(group.name, group.min_count) for group in groups} == {(attempt_of().name, 4)}
    assert all(scheduler.has_link(job, groups[0]) for job in jobs)


def test_only_the_record_is_found_by_its_task_and_only_at_the_end_it_has_a_time_to_live():
    main_job, other = render(GangSpec(roles=ROLES, ttl_after_finished_s=60))
    assert "gangjobs.airflow/task" in main_job["metadata"]["labels"]
    assert "gangjobs.airflow/task" not in other["metadata"]["labels"]
    assert read_job(main_job).record.ttl_s == 60
    assert not any("ttlSecondsAfterFinished" in job["spec"] for job in (main_job, other))


@pytest.mark.parametrize("workers", [1, 10, 100_000])
@pytest.mark.parametrize("role", ["w", "x" * ROLE_NAME_MAX])
def test_host_names_are_valid_dns_labels(role, workers):
    spec = GangSpec(roles={"leader": LEADER, role: {**WORKER, "workers": workers}})
    name = attempt_of(spec, "a-long-name-of-a-task-that-has-to-be-cut").name
    assert len(f"{name}-{role}-{workers - 1}") <= 63
    assert len(name) >= 26


def test_order_of_roles_counts_and_order_of_their_parameters_does_not():
    swapped = {"worker": WORKER, "leader": LEADER}
    turned = {"leader": LEADER, "worker": dict(reversed(WORKER.items()))}
    assert GangSpec(roles=swapped).hash != SPEC.hash == GangSpec(roles=turned).hash


def test_roles_are_read_as_they_were_written():
    main_job, _ = render()
    assert read_job(main_job).record.roles == roles_of(SPEC) == LEADER_AND_WORKERS


def test_rank_of_a_pod_counts_the_ranks_of_the_roles_before():
    metadata = {
        "labels": {
            "gangjobs.airflow/job-uid": "record",
            "gangjobs.airflow/rank-offset": "4",
            "batch.kubernetes.io/controller-uid": "other",
        },
        "annotations": {"batch.kubernetes.io/job-completion-index": "2"},
    }
    pod = view(PodView, {"metadata": metadata})
    assert (rank_of(pod), owner_uid(pod)) == (6, "record")
    assert name_rank(6, "worker", 2, pod="gang-worker-2") == "rank 2 of role worker"


# -- what several Jobs mean together --------------------------------------------------------------------------------

REF = GangRef("ns", "g", "record")
SIZES = {"leader": 1, "worker": 3}
CONDITIONS = {
    "waits": ("Suspended", "JobSuspended"),
    "runs": None,
    "succeeds": ("SuccessCriteriaMet", "CompletionsReached"),
    "complete": ("Complete", "CompletionsReached"),
    "fails": ("FailureTarget", "BackoffLimitExceeded"),
    "failed": ("Failed", "BackoffLimitExceeded"),
    "limited": ("Failed", "DeadlineExceeded"),
}
T1, T2 = "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"


def status_of(role: str, state: str, at: str) -> dict[str, Any]:
    status = conditions(state, at)
    if state != "waits":
        status |= {"startTime": "2026-01-01T00:00:30Z", "active": SIZES[role], "ready": SIZES[role]}
    if state == "complete":
        status |= {"active": 0, "ready": 0, "succeeded": SIZES[role], "completionTime": at}
        status["completedIndexes"] = "0" if SIZES[role] == 1 else "0-2"
    return status


def conditions(state: str, at: str) -> dict[str, Any]:
    if (found := CONDITIONS[state]) is None:
        return {}
    kind, reason = found
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}]}


def job(role: str, state: str, at: str = T1, **spec: Any) -> dict[str, Any]:
    """A Job of a gang whose main Job is that of the leader."""
    is_main = role == "leader"
    metadata: dict[str, Any] = {"name": "g" if is_main else "g-worker", "namespace": "ns", "generation": 2}
    metadata |= {"uid": "record" if is_main else "g-worker"}
    metadata["labels"] = {"gangjobs.airflow/gang": "g", "gangjobs.airflow/gang-role": role}
    if is_main:
        metadata["annotations"] = recorded(roles=LEADER_AND_WORKERS)
        metadata["labels"]["gangjobs.airflow/task"] = "digest"
    else:
        metadata["ownerReferences"] = [{"kind": "Job", "name": "g", "uid": "record", "controller": True}]
    spec = {"parallelism": SIZES[role], "completions": SIZES[role], **spec}
    return {"metadata": metadata, "spec": spec, "status": status_of(role, state, at)}


def of_jobs(leader: str, worker: str) -> StoredGang:
    return read_gang(job("leader", leader), [job("leader", leader), job("worker", worker)])


def test_counters_and_indexes_are_those_of_all_jobs():
    gang = read_gang(job("leader", "complete", T1), [job("worker", "complete", T2)])
    assert (gang.ranks, gang.workers, gang.status.succeeded) == (4, 4, 4)
    assert gang.status.completed_indexes == "0,1-3"
    assert gang.ended_at == gang.complete_condition.last_transition_time
    assert gang.ended_at.minute == 2


def test_role_that_is_missing_fails_a_gang_that_was_started():
    gang = read_gang(job("leader", "runs"), [])
    assert (gang.failure_target_condition.reason, phase_of(gang)) == ("JobOfRoleDeleted", "finishing")
    assert "role worker" in gang.failure_target_condition.message
    assert [part.metadata.name for part in jobs_to_end(gang)] == ["g"]


def test_role_that_is_missing_fails_no_gang_whose_submission_is_not_complete():
    gang = read_gang(job("leader", "runs", suspend=True), [])
    assert gang.failure_target_condition is None
    assert not gang.is_ended


def test_jobs_that_have_ended_or_are_being_ended_are_not_ended_again():
    ending = job("worker", "runs", activeDeadlineSeconds=0)
    assert jobs_to_end(read_gang(job("leader", "failed"), [ending])) == []


def test_gangs_are_read_from_the_jobs_of_a_namespace():
    other = {"metadata": {"name": "plain", "namespace": "ns", "uid": "p", "labels": {"gangjobs.airflow/gang": "plain"}}}
    lost = job("worker", "runs")
    lost["metadata"] |= {"labels": {"gangjobs.airflow/gang": "x", "gangjobs.airflow/gang-role": "worker"}}
    gangs = read_gangs([job("worker", "runs"), other, job("leader", "complete"), lost])
    assert [(gang.ref.name, len(gang.jobs)) for gang in gangs] == [("plain", 0), ("g", 2)]


# -- what other releases wrote --------------------------------------------------------------------------------


def test_record_that_cannot_be_read_leaves_the_state_of_the_jobs_unknown():
    broken = job("leader", "complete")
    broken["metadata"]["annotations"]["gangjobs.airflow/record"] = "{}"
    (gang,) = read_gangs([broken, job("worker", "runs")])
    assert gang.lacks_jobs
    assert not gang.is_ended


def test_ledgers_and_events_without_roles_are_read_as_those_of_a_gang_of_one_job():
    outcome = decode("u", '{"uid":"u","pod":"p","outcome":"failed","rank":3,"exit_code":1}')
    assert (outcome.role, outcome.role_rank, outcome.name) == ("", None, "rank 3")
    end = {"pod": "p", "outcome": "failed", "rank": 3}
    payload = {
        "v": 1,
        "status": "failed",
        "name": "g",
        "namespace": "n",
        "uid": "u",
        "phase": "running",
        "ranks": [end],
    }
    assert GangEvent.from_payload(payload).ranks[0].name == "rank 3"


def test_entry_of_a_gang_of_one_job_has_no_fields_of_roles():
    assert "role" not in encode(Outcome(uid="u", pod="p", outcome=OutcomeKind.SUCCEEDED, rank=3))


@pytest.mark.parametrize("written", [1, None], ids=["a result", "nothing"])
def test_results_of_all_ranks_are_lists_by_role(written):
    ranks = [("leader", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
    outcomes = [
        Outcome(
            uid=f"u{rank}",
            pod=f"p{rank}",
            outcome=OutcomeKind.SUCCEEDED,
            rank=rank,
            role=role,
            role_rank=role_rank,
            message="" if written is None else str(written),
        )
        for role, role_rank, rank in ranks
    ]
    completed = parse_indexes("0,1-2")
    found = task_result(outcomes, completed, Results.ALL, GangRef("n", "g", "u"))
    assert found == {"leader": [written], "worker": [written] * 2}


# -- Roles of a gang in a queue of Kueue: the main Job without pods, and its JobSet ----------------------------------

QUEUED = GangSpec(roles=ROLES, queue_name="team", queue_priority="high", labels={"team": "a"})
IN_QUEUE = PlacementDecision(Placement.GANG, "kueue")
QUEUE_LABELS = {"kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"}


# -- what is rendered for a queue of Kueue ------------------------------------------------------------


def attempt_in_queue(spec: GangSpec = QUEUED, task_id: str = "train") -> Any:
    return attempt_of(spec, task_id, has_job_set=True)


def main_job(spec: GangSpec = QUEUED) -> dict[str, Any]:
    return render_job(spec, attempt_in_queue(spec), IN_QUEUE, None, shape_of(spec, {}))


def job_set(spec: GangSpec = QUEUED) -> dict[str, Any]:
    return render_job_set(spec, attempt_in_queue(spec), IN_QUEUE, shape_of(spec, {}), "record")


def test_roles_in_a_queue_are_accepted():
    assert validate(QUEUED) == ()
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
    replicated = job_set(replace(QUEUED, labels={"kueue.x-k8s.io/queue-name": "team"}))["spec"]
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
            assert labels["gangjobs.airflow/gang"] == attempt_in_queue().name
            assert (labels["gangjobs.airflow/job-uid"], labels["gangjobs.airflow/gang-role"]) == ("record", job["name"])
        assert template["finalizers"] == ["gangjobs.airflow/harvest"]


def test_address_of_rank_0_is_that_of_its_pod_in_the_service_of_the_gang():
    name = attempt_in_queue().name
    for job in job_set()["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
        assert (env["MASTER_ADDR"], pod["subdomain"]) == (f"{name}-leader-0-0.{name}", name)
    assert render_service(QUEUED, attempt_in_queue(), "record")["metadata"]["name"] == name
    assert job_set()["spec"]["network"] == {"enableDNSHostnames": False}


@given(
    role=st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True),
    workers=st.integers(1, 100_000),
    task_id=st.text("abc-", min_size=1, max_size=200),
)
def test_host_names_of_a_job_set_are_valid_dns_labels(role: str, workers: int, task_id: str) -> None:
    assert len(role) <= ROLE_NAME_MAX
    spec = GangSpec(roles={role: {"workers": workers}, "z": {}}, queue_name="team")
    name = attempt_in_queue(spec, task_id).name
    assert len(f"{name}-{role}-0-{workers - 1}") <= HOST_NAME_MAX


# -- what the Jobs of the JobSet mean --------------------------------------------------------------------------------

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


def role_job(role: str, state: str, at: str = T1, *, uid: str | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {
        "gangjobs.airflow/gang": "g",
        "gangjobs.airflow/gang-role": role,
        "gangjobs.airflow/job-uid": "record",
    }
    owner = {"kind": "JobSet", "name": "g", "uid": "job-set", "controller": True}
    metadata |= {"name": f"g-{role}-0", "namespace": "ns", "uid": uid or UIDS[role], "generation": 2}
    metadata |= {"labels": labels, "ownerReferences": [owner]}
    spec = {"parallelism": SIZES[role], "completions": SIZES[role], "suspend": state == "waits"}
    return {"metadata": metadata, "spec": spec, "status": status_of(role, state, at)}


def gang_of(leader: str | None, worker: str | None, **changes: Any) -> StoredGang:
    states = {"leader": leader, "worker": worker}
    return read_gang(
        stored_main_job(**changes), [role_job(role, state) for role, state in states.items() if state is not None]
    )


# the main Job is started, or suspended by Kueue, as it names no queue
MEANINGS = (of_jobs, gang_of, partial(gang_of, state="waits", suspend=True))
TOGETHER = {
    ("runs", "runs"): ("running", None),
    ("complete", "runs"): ("running", None),
    ("runs", "complete"): ("running", None),
    ("complete", "succeeds"): ("finishing", None),
    ("complete", "complete"): ("succeeded", "succeeded"),
    ("runs", "fails"): ("finishing", None),
    ("runs", "failed"): ("finishing", None),
    ("failed", "runs"): ("finishing", None),
    ("complete", "failed"): ("failed", "failed"),
    ("limited", "failed"): ("failed", "failed"),
    ("failed", "limited"): ("failed", "failed"),
}
OF_A_JOB_SET = {
    ("waits", "waits"): ("queued", None),
    ("runs", "waits"): ("queued", None),
    # the JobSet controller has deleted the other Job
    (None, "failed"): ("failed", "failed"),
    ("limited", None): ("failed", "failed"),
    # somebody has deleted a Job, or the JobSet
    (None, "runs"): ("finishing", None),
    (None, "complete"): ("finishing", None),
    (None, None): ("failed", "failed"),
}


@pytest.mark.parametrize(
    ("of", "states", "expected"),
    [
        *((of, states, expected) for of in MEANINGS for states, expected in TOGETHER.items()),
        *((of, states, expected) for of in MEANINGS[1:] for states, expected in OF_A_JOB_SET.items()),
    ],
)
def test_phase_and_verdict_of_the_jobs_together(
    of: Callable[..., StoredGang], states: tuple[str | None, str | None], expected: tuple[str, str | None]
) -> None:
    gang = of(*states)
    verdict = judge(gang, REF)
    assert (phase_of(gang), verdict and verdict.status) == expected


@pytest.mark.parametrize(
    ("of", "states"),
    [
        *((of, states) for of in (of_jobs, gang_of) for states in permutations(("limited", "failed"))),
        (gang_of, ("failed", None)),
        (gang_of, (None, "failed")),
    ],
)
def test_reason_is_that_of_the_job_that_failed_by_itself(
    of: Callable[..., StoredGang], states: tuple[str | None, str | None]
) -> None:
    """The Jobs that the follower ends have failed by a deadline. Those that the JobSet controller ends are deleted."""
    gang = of(*states)
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


def test_gang_of_which_a_role_may_run_counts_as_one_that_ran() -> None:
    """The submission starts the other roles first, and their Job controller may be about to create pods."""
    suspended, started = (job("worker", "waits", suspend=suspend) for suspend in (True, False))
    main = job("leader", "waits", suspend=True)
    assert read_gang(main, [main, suspended]).never_ran
    assert not read_gang(main, [main, started]).never_ran


def test_main_job_that_kueue_has_suspended_is_not_half_submitted() -> None:
    stored, unfinished = (stored_main_job("waits", suspend=True, noted=noted) for noted in (True, False))
    for main in (stored, unfinished):
        del main["status"]["startTime"]
    assert (read_job(stored).is_unstarted, read_job(unfinished).is_unstarted) == (False, True)


def test_missing_job_fails_no_gang_whose_submission_is_not_complete() -> None:
    gang = gang_of("waits", None, noted=False, suspend=True)
    assert (gang.failure_target_condition, gang.is_ended) == (None, False)


@pytest.mark.parametrize("main", [partial(job, "leader"), stored_main_job], ids=["Jobs", "JobSet"])
@pytest.mark.parametrize("state", CONDITIONS)
def test_main_job_alone_never_says_that_the_gang_has_ended(main: Callable[[str], dict[str, Any]], state: str) -> None:
    alone = read_job(main(state))
    assert (alone.is_ended, alone.never_ran, alone.has_pods_left) == (False, False, True)
    assert state_of(alone) is SubmissionState.IN_PROGRESS


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
