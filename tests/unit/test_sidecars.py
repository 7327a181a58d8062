"""The end of a gang whose main containers have ended while other containers keep its pods running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.outcome.outcome_diagnosis import diagnose_end
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind, outcome_of
from airflow_provider_gangjobs.gang.state.phase import Phase, VerdictKind, judge, phase_of
from airflow_provider_gangjobs.gang.state.pod_index import (
    SIDECAR_GRACE,
    PodIndex,
    decide_end,
    end_due,
    may_end_by_main,
    read_rules,
)
from airflow_provider_gangjobs.gang.state.stopped import BY_FAILURE, BY_SUCCESS, Stopped
from tests.unit.builders import REF, at, job, pod

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.pod_index import JobRules
    from tests.unit.builders import JobBuilder, PodBuilder


def rules(*containers: str, **spec: Any) -> JobRules:
    template = {"spec": {"containers": [{"name": name} for name in containers or ("main",)]}}
    return read_rules([{"spec": {"completionMode": "Indexed", "backoffLimit": 0, "template": template, **spec}}])


def rank(number: int) -> PodBuilder:
    return pod(f"p{number}").rank(number).on("n")


def ended(number: int, when: float = 40, exit_code: int = 0, **fields: Any) -> PodBuilder:
    return rank(number).main_ended(when, exit_code, **fields)


ALWAYS = {"restartPolicy": "Always"}
RULES = {"restartPolicyRules": [{"action": "Restart"}]}
COUNTED = job(2).resumed(3).counts(succeeded=1, completedIndexes="0")
PLAIN = {"backoffLimit": 1}
POLICY = {"podFailurePolicy": {"rules": []}}

ENDS: dict[str, tuple[JobBuilder, list[PodBuilder], JobRules, tuple[str, float] | None]] = {
    "all have succeeded": (job(2).resumed(3), [ended(0), ended(1, 50)], rules(), ("succeeded", 50)),
    "one pod has succeeded": (job(2).resumed(3), [rank(0).succeeded(), ended(1)], rules(), ("succeeded", 40)),
    "one rank was counted": (COUNTED, [ended(1)], rules(), ("succeeded", 40)),
    "one runs": (job(2).resumed(3), [ended(0), rank(1).running()], rules(), None),
    "one is missing": (job(2).resumed(3), [ended(0)], rules(), None),
    "no sidecar": (job(2).resumed(3), [rank(0).succeeded(), rank(1).running()], rules(), None),
    "one has failed": (job(2).resumed(3), [ended(0, 60), ended(1, 50, 3)], rules(), ("failed", 50)),
    "one has failed, one runs": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(), ("failed", 50)),
    "one has failed, with retries": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(**PLAIN), None),
    "one has failed, with a policy": (job(2).resumed(3), [rank(0).running(), ended(1, 50, 3)], rules(**POLICY), None),
    "succeeded with retries": (job(1).resumed(3), [ended(0)], rules(**PLAIN), ("succeeded", 40)),
    "a container of the template runs": (
        job(1).resumed(3),
        [ended(0, kept_by="upload")],
        rules("main", "upload"),
        None,
    ),
    "one of two runs on because of the template": (
        job(2).resumed(3),
        [ended(0), ended(1, kept_by="upload")],
        rules("main", "upload"),
        None,
    ),
    "the kubelet restarts the main container": (job(1).resumed(3), [ended(0, 40, 3, **ALWAYS)], rules(), None),
    "a rule may restart the main container": (job(1).resumed(3), [ended(0, **RULES)], rules(), None),
    "a pod is being deleted": (job(1).resumed(3), [ended(0).deleted(60)], rules(), None),
    "no ranks": (job(1).resumed(3), [ended(0)], rules(completionMode="NonIndexed"), None),
}


@pytest.mark.parametrize(("built", "pods", "of_jobs", "end"), ENDS.values(), ids=ENDS)
def test_gang_ends_by_its_main_containers(built, pods, of_jobs, end):
    views = [one.view() for one in pods]
    found = decide_end(built.read(), views, of_jobs)
    assert (found and (found.has_succeeded, found.due)) == (end and (end[0] == "succeeded", at(end[1]) + SIDECAR_GRACE))
    assert end_due(built.read(), PodIndex(REF, views), of_jobs) == (found and found.due)


@pytest.mark.parametrize(
    "decided",
    [
        job(1).resumed(3).suspended(50),
        job(1).resumed(3).decided("FailureTarget", 50),
        job(1).resumed(3).complete(50),
        job(1).resumed(3).deleted(50),
        job(1).resumed(3).stopped(),
        job(1).resumed(3).stopped(BY_SUCCESS),
        job(1),
    ],
    ids=["suspended", "going to fail", "complete", "being deleted", "stopped", "marked", "not started"],
)
def test_only_a_running_job_is_ended(decided):
    assert may_end_by_main(job(1).resumed(3).read())
    assert not may_end_by_main(decided.read())


def marked(end: Stopped) -> JobBuilder:
    return job(2).resumed(3).stopped(end)


def test_success_of_the_main_containers_is_announced_until_the_job_has_failed():
    running = marked(BY_SUCCESS).read()
    assert (phase_of(running), judge(running, REF), running.is_over) == (Phase.FINISHING, None, False)
    failed = marked(BY_SUCCESS).counts(failed=2).failed(80, "DeadlineExceeded").read()
    verdict = judge(failed, REF)
    assert verdict is not None
    assert (verdict.kind, verdict.completed_indexes, verdict.at) == (VerdictKind.SUCCEEDED, "0-1", at(80))
    assert (failed.status.succeeded, failed.status.failed, failed.failed_condition) == (2, 0, None)


def test_failure_of_a_main_container_is_no_failure_by_a_deadline():
    assert phase_of(marked(BY_FAILURE).read()) is Phase.FINISHING
    verdict = judge(marked(BY_FAILURE).counts(failed=2).failed(80, "DeadlineExceeded").read(), REF)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (VerdictKind.FAILED, "MainContainerFailed")


OUTCOMES = {
    "runs on": (ended(0), OutcomeKind.SUCCEEDED, 0, ""),
    "runs on after a failure": (ended(0, 40, 3), OutcomeKind.FAILED, 3, ""),
    "was deleted": (ended(0).deleted(60), OutcomeKind.SUCCEEDED, 0, ""),
    "was deleted before its end": (ended(0, 70).deleted(60), OutcomeKind.DELETED, 0, ""),
    "was evicted": (ended(0).disrupted("EvictionByEvictionAPI", 60).deleted(60), OutcomeKind.EVICTED, 0, ""),
}


@pytest.mark.parametrize(("seen", "kind", "exit_code", "container"), OUTCOMES.values(), ids=OUTCOMES)
def test_main_container_that_ended_first_decides_the_outcome(seen, kind, exit_code, container):
    outcome = outcome_of(seen.view())
    assert (outcome.outcome, outcome.exit_code, outcome.container) == (kind, exit_code, container)
    assert outcome.finished == at(70 if kind is OutcomeKind.DELETED else 40)


def test_sidecar_that_fails_by_itself_fails_the_rank():
    seen = rank(0).succeeded(40).sidecar("istio-proxy", 1, when=50).phase("Failed")
    seen.obj["spec"]["restartPolicy"] = "Never"
    outcome = outcome_of(seen.view())
    assert (outcome.outcome, outcome.exit_code, outcome.container) == (OutcomeKind.FAILED, 1, "istio-proxy")


def test_deletion_of_a_pod_after_its_rank_had_succeeded_is_the_cause_of_the_failure():
    deleted = rank(1).succeeded(40).sidecar("istio-proxy", 143, when=61).phase("Failed").deleted(60)
    deleted.obj["spec"]["restartPolicy"] = "Never"
    peer = rank(0).failed(143, when=62).deleted(61)
    verdict = judge(job(2).resumed(3).failed(60).read(), REF)
    assert verdict is not None
    found = diagnose_end(verdict, [outcome_of(deleted.view()), outcome_of(peer.view())])
    assert found.code == "PodDeleted"
    assert found.summary == (
        "rank 1 had its pod deleted after its main container had succeeded, before its other containers had "
        "ended on n; 1 other rank ended after it"
    )
