"""Roles of a gang: what is refused, what is rendered, and what several Jobs mean together."""

from __future__ import annotations

import os
import subprocess
from itertools import permutations
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.identity import Claim, GangRef, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.outcome.task_result import CompletedRanks, task_result
from airflow_provider_gangjobs.gang.render.job_manifest import render_job, render_role, render_service
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.roles import ROLE_NAME_MAX, main_job_name_max, roles_of
from airflow_provider_gangjobs.gang.schedulers.external import find_separate
from airflow_provider_gangjobs.gang.schedulers.workload_api import DISCOVERED_DIALECTS
from airflow_provider_gangjobs.gang.spec import GangSpec, Results
from airflow_provider_gangjobs.gang.state.gang_jobs import jobs_to_end, read_gang, read_gangs
from airflow_provider_gangjobs.gang.state.phase import SubmissionState, judge, phase_of, state_of
from airflow_provider_gangjobs.gang.state.pods import name_rank, owner_uid, rank_of
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.kube.views import PodView, view
from airflow_provider_gangjobs.tracking.harvest.ledger import decode, encode
from tests.annotations import LEADER_AND_WORKERS, recorded

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


def attempt_of(spec: GangSpec = SPEC, task_id: str = "train"):
    key = TaskKey("etl", "r", task_id)
    return build_attempt(key, Claim("c"), namespace="ns", number=0, name_max=main_job_name_max(roles_of(spec)))


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
    assert {(group.name, group.size, group.min_count) for group in groups} == {(attempt_of().name, 4, 4)}
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

NAMES = {"leader": "g", "worker": "g-worker"}
CONDITIONS = {
    "runs": None,
    "succeeds": ("SuccessCriteriaMet", "CompletionsReached"),
    "complete": ("Complete", "CompletionsReached"),
    "fails": ("FailureTarget", "BackoffLimitExceeded"),
    "failed": ("Failed", "BackoffLimitExceeded"),
    "ended": ("Failed", "DeadlineExceeded"),
}
T1, T2 = "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"


def job(role: str, state: str, at: str = T1, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": NAMES[role], "namespace": "ns", "uid": NAMES[role], "generation": 2}
    metadata["labels"] = {"gangjobs.airflow/gang": "g", "gangjobs.airflow/gang-role": role}
    size = 1 if role == "leader" else 3
    if role == "leader":
        metadata["annotations"] = recorded(roles=LEADER_AND_WORKERS)
        metadata["labels"]["gangjobs.airflow/task"] = "digest"
    else:
        metadata["ownerReferences"] = [{"kind": "Job", "name": "g", "uid": "g", "controller": True}]
    status: dict[str, Any] = {"startTime": "2026-01-01T00:00:00Z", "active": size, "ready": size}
    if found := CONDITIONS[state]:
        kind, reason = found
        status["conditions"] = [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}]
    if state == "complete":
        status |= {"succeeded": size, "active": 0, "ready": 0, "completionTime": at}
        status["completedIndexes"] = "0" if size == 1 else "0-2"
    return {"metadata": metadata, "spec": {"parallelism": size, "completions": size, **spec}, "status": status}


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
    ("ended", "failed"): ("failed", "failed"),
    ("failed", "ended"): ("failed", "failed"),
}


@pytest.mark.parametrize(("states", "expected"), list(TOGETHER.items()), ids=lambda value: " ".join(map(str, value)))
def test_phase_and_verdict_of_the_jobs_together(states, expected):
    leader, worker = job("leader", states[0]), job("worker", states[1])
    gang = read_gang(leader, [leader, worker])
    verdict = judge(gang, GangRef("ns", "g", "g"))
    assert (phase_of(gang), verdict and verdict.status) == expected


@pytest.mark.parametrize(("first", "second"), list(permutations(("ended", "failed"))))
def test_reason_is_that_of_the_job_that_failed_by_itself(first, second):
    """The Jobs that the follower ends have failed by a deadline, in the same second or later."""
    gang = read_gang(job("leader", first), [job("worker", second)])
    role = ("leader", "worker")[(first, second).index("failed")]
    assert gang.failed_condition.reason == "BackoffLimitExceeded"
    assert f"of role {role}" in gang.failed_condition.message


def test_counters_and_indexes_are_those_of_all_jobs():
    gang = read_gang(job("leader", "complete", T1), [job("worker", "complete", T2)])
    assert (gang.ranks, gang.workers, gang.status.succeeded) == (4, 4, 4)
    assert gang.status.completed_indexes == "0,1-3"
    assert gang.ended_at == gang.complete_condition.last_transition_time
    assert gang.ended_at.minute == 2


@pytest.mark.parametrize("state", CONDITIONS)
def test_record_alone_never_says_that_the_gang_has_ended(state):
    main_job = read_job(job("leader", state))
    assert (main_job.is_ended, main_job.never_ran, main_job.has_pods_left) == (False, False, True)
    assert state_of(main_job) is SubmissionState.IN_PROGRESS


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
    completed = CompletedRanks.of_indexes("0,1-2")
    found = task_result(outcomes, completed, Results.ALL, GangRef("n", "g", "u"))
    assert found == {"leader": [written], "worker": [written] * 2}
