"""Gangs that return to their queue of Kueue because not all ranks ran in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_provider_gangjobs.cluster.errors import Forbidden
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey, build_attempt
from airflow_provider_gangjobs.gang.render.job_manifest import render_job
from airflow_provider_gangjobs.gang.render.placement import Placement, PlacementDecision
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.job_annotations import (
    AssemblyBaseline,
    Requeues,
    parse_assembly_baseline,
    parse_requeues,
)
from airflow_provider_gangjobs.gang.state.queue_wait import (
    REQUEUES_MAX,
    RequeueStep,
    begin_requeue,
    earlier_assembly_s,
    next_assembly_baseline,
    next_step,
    pause_ends_at,
)
from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang, read_job
from airflow_provider_gangjobs.kube.views import KueueWorkloadView, view
from airflow_provider_gangjobs.kube.well_known import (
    ANNOTATION_ASSEMBLY_BASELINE,
    ANNOTATION_GANG,
    ANNOTATION_HALTED,
    ANNOTATION_REQUEUES,
    LABEL_KUEUE_QUEUE,
)
from airflow_provider_gangjobs.tracking.job_steps import Requeue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

START = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"
STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
RETURNING = f"1 {STARTED_AT.isoformat()}"


def job(
    requeues: str | None = RETURNING, *, queue: str | None = "team", gang: str = "basic:why", **more: Any
) -> StoredGang:
    """A Job that runs since `START`, unless `more` says otherwise."""
    annotations = {ANNOTATION_GANG: gang, ANNOTATION_REQUEUES: requeues, **more.pop("annotations", {})}
    labels = {LABEL_KUEUE_QUEUE: queue}
    metadata = {
        "namespace": "team-a",
        "name": "train",
        "uid": "u",
        "labels": {key: value for key, value in labels.items() if value},
        "annotations": {key: value for key, value in annotations.items() if value is not None},
    }
    spec = {"parallelism": 3, "completions": 3, "suspend": more.pop("suspend", False)}
    return read_job({"metadata": metadata, "spec": spec, "status": {"startTime": START, **more}})


def workload(*, active: bool, reserved: str = "False") -> KueueWorkloadView:
    conditions = [
        {"type": "QuotaReserved", "status": reserved, "lastTransitionTime": LATER},
        {"type": "Evicted", "status": "True", "reason": "Deactivated", "lastTransitionTime": LATER},
    ]
    return view(KueueWorkloadView, {"metadata": {}, "spec": {"active": active}, "status": {"conditions": conditions}})


SUSPENDED: dict[str, Any] = {"suspend": True, "startTime": None}
ACTIVE, INACTIVE = workload(active=True), workload(active=False)
STEPS = {
    "not marked": (job("1"), ACTIVE, RequeueStep.NOTHING),
    "gang of a scheduler": (job(gang="gang:v1beta1"), ACTIVE, RequeueStep.NOTHING),
    "halted": (job(annotations={ANNOTATION_HALTED: "why"}), ACTIVE, RequeueStep.NOTHING),
    "marked": (job(), ACTIVE, RequeueStep.DEACTIVATE),
    "marked, and Workloads cannot be read": (job(), None, RequeueStep.DEACTIVATE),
    "deactivated": (job(), INACTIVE, RequeueStep.WAIT),
    "suspended, and pods are left": (job(**SUSPENDED, terminating=1), INACTIVE, RequeueStep.WAIT),
    "suspended, and Kueue holds the quota": (
        job(**SUSPENDED),
        workload(active=False, reserved="True"),
        RequeueStep.WAIT,
    ),
    "suspended, and the Workload cannot be read": (job(**SUSPENDED), None, RequeueStep.WAIT),
    "nothing is held": (job(**SUSPENDED), INACTIVE, RequeueStep.ACTIVATE),
    "active again": (job(**SUSPENDED), ACTIVE, RequeueStep.FINISH),
    "let run again": (job(startTime=LATER), ACTIVE, RequeueStep.FINISH),
    "let run again, and not started yet": (job(startTime=None), ACTIVE, RequeueStep.FINISH),
}


@pytest.mark.parametrize(("seen", "kueue", "step"), STEPS.values(), ids=STEPS)
def test_each_state_has_one_next_step(seen: StoredGang, kueue: KueueWorkloadView | None, step: RequeueStep) -> None:
    assert next_step(seen, kueue) is step


BEGINS = {
    "first time": (job("0"), Requeues(1, STARTED_AT)),
    "last time": (job(str(REQUEUES_MAX - 1)), Requeues(REQUEUES_MAX, STARTED_AT)),
    "no time left": (job(str(REQUEUES_MAX)), None),
    "has begun": (job(), None),
    "required": (job(None), None),
    "no queue": (job("0", queue=None), None),
    "placed as a gang": (job("0", gang="gang:kueue"), None),
    "unreadable count": (job("many"), None),
}


@pytest.mark.parametrize(("seen", "mark"), BEGINS.values(), ids=BEGINS)
def test_gang_returns_to_its_queue_a_limited_number_of_times(seen: StoredGang, mark: Requeues | None) -> None:
    assert begin_requeue(seen) == mark


@pytest.mark.parametrize("mark", [Requeues(0), Requeues(2, STARTED_AT)])
def test_mark_is_read_as_it_was_written(mark: Requeues) -> None:
    assert parse_requeues(str(mark)) == mark


@pytest.mark.parametrize("text", [None, "", "many", "-1", "1 yesterday"])
def test_unreadable_mark_is_no_mark(text: str | None) -> None:
    assert parse_requeues(text) is None


@pytest.mark.parametrize(("count", "pause_s"), [(1, 10), (2, 20), (3, 40), (20, 300)])
def test_pause_doubles_with_each_time_up_to_a_limit(count: int, pause_s: int) -> None:
    seen = job(f"{count} {STARTED_AT.isoformat()}", **SUSPENDED)
    assert pause_ends_at(seen, INACTIVE) == STARTED_AT + timedelta(minutes=1, seconds=pause_s)


class KueueWithoutWorkloads:
    """The requests about a Job that runs, and the list of its Workloads: empty, or refused."""

    def __init__(self, error: Exception | None) -> None:
        self.client = self
        self._error = error

    async def read(self) -> StoredGang:
        return job()

    async def retry(self, request: Callable[[], Awaitable[Any]]) -> Any:
        return await request()

    async def list(self, *_: Any, **__: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        return []


REFUSALS = {
    "no permission": (
        Forbidden(403, request="list workloads"),
        "the permission to change Kueue's Workloads is missing",
    ),
    "no Workload": (None, "the Job has no Workload of Kueue"),
}


@pytest.mark.parametrize(("error", "why"), REFUSALS.values(), ids=REFUSALS)
async def test_gang_that_cannot_return_to_its_queue_says_why(error: Exception | None, why: str) -> None:
    requeue = Requeue(cast("Any", KueueWithoutWorkloads(error)))
    await requeue.advance(job(), None, STARTED_AT)
    assert requeue.summary(job()) == f"The gang was not returned to its queue: {why}"
    assert not await requeue.begin(job("0"))


ROLES = {"leader": {"workers": 1}, "worker": {"workers": 2}}
RENDERED: dict[str, Any] = {
    "preferred": ({"workers": 3, "gang": "preferred"}, "0"),
    "required": ({"workers": 3}, None),
    "off": ({"workers": 3, "gang": "off"}, None),
    "one pod": ({"workers": 1, "gang": "preferred"}, None),
    "roles": ({"roles": ROLES, "gang": "preferred"}, "0"),
    "required roles": ({"roles": ROLES}, None),
}


@pytest.mark.parametrize(("parameters", "value"), RENDERED.values(), ids=RENDERED)
def test_only_a_preferred_gang_returns_to_its_queue(parameters: Any, value: str | None) -> None:
    attempt = build_attempt(TaskKey("dag", "run", "task"), Claim("c"), namespace="ns", number=0)
    rendered = render_job(GangSpec(image="i", **parameters), attempt, PlacementDecision(Placement.BASIC, "why"))
    assert rendered["metadata"]["annotations"].get(ANNOTATION_REQUEUES) == value


def stopped(before_ready: int, after_ready: int, preempted: int, admitted_s: int, **state: str) -> KueueWorkloadView:
    """Kueue's Workload of a gang that Kueue has stopped so often, and that was admitted for so long until then.

    :param state: The status of the conditions QuotaReserved and Evicted.
    """
    counts = {
        ("PodsReadyTimeout", "WaitForStart"): before_ready,
        ("PodsReadyTimeout", "WaitForRecovery"): after_ready,
        ("Preempted", ""): preempted,
    }
    evictions = [
        {"reason": reason, "underlyingCause": cause, "count": count}
        for (reason, cause), count in counts.items()
        if count
    ]
    conditions = [
        {"type": kind, "status": status, "reason": "any", "lastTransitionTime": LATER} for kind, status in state.items()
    ]
    status: dict[str, Any] = {
        "conditions": conditions,
        "schedulingStats": {"evictions": evictions},
        "accumulatedPastExecutionTimeSeconds": admitted_s,
    }
    return view(KueueWorkloadView, {"metadata": {}, "spec": {}, "status": status})


def noted(baseline: str | None) -> StoredGang:
    return job(None, annotations={ANNOTATION_ASSEMBLY_BASELINE: baseline})


EARLIER = {
    "no Workload": (noted(None), None, 0),
    "never stopped": (noted(None), stopped(0, 0, 0, 0), 0),
    "twice not ready in time": (noted(None), stopped(2, 0, 0, 61), 61),
    "preempted, not noted": (noted(None), stopped(2, 0, 1, 90), 0),
    "preempted, noted": (noted("1 30"), stopped(2, 0, 1, 90), 60),
    "ran and was stopped, noted": (noted("1 3630"), stopped(1, 1, 0, 3660), 30),
    "preempted again, not noted": (noted("1 30"), stopped(2, 0, 2, 150), 0),
    "a new Workload": (noted("1 30"), stopped(1, 0, 0, 30), 0),
    "a note of an unknown form": (noted("later"), stopped(1, 0, 0, 30), 30),
}


@pytest.mark.parametrize(("seen", "workload", "seconds"), EARLIER.values(), ids=EARLIER)
def test_runs_that_kueue_has_stopped_before_all_pods_were_ready_add_up(
    seen: StoredGang, workload: KueueWorkloadView | None, seconds: float
) -> None:
    assert earlier_assembly_s(seen, workload) == seconds


def test_v1beta1_spells_the_time_of_earlier_runs_in_another_way() -> None:
    eviction = {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
    status = {"schedulingStats": {"evictions": [eviction]}, "accumulatedPastExexcutionTimeSeconds": 61}
    assert earlier_assembly_s(noted(None), view(KueueWorkloadView, {"status": status})) == 61


BASELINES = {
    "no Workload": (noted(None), None, None),
    "not ready in time": (noted(None), stopped(2, 0, 0, 61), None),
    "preempted": (noted(None), stopped(1, 0, 1, 90), AssemblyBaseline(1, 90)),
    "stopped while it ran": (noted(None), stopped(0, 1, 0, 3600), AssemblyBaseline(1, 3600)),
    "noted": (noted("1 90"), stopped(1, 0, 1, 90), None),
    "a new Workload": (noted("1 30"), stopped(0, 0, 0, 0), AssemblyBaseline()),
    "being stopped": (noted(None), stopped(0, 0, 1, 0, QuotaReserved="True", Evicted="True"), None),
    "stopped": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="False", Evicted="True"), AssemblyBaseline(1, 9)),
    "admitted again": (noted(None), stopped(0, 0, 1, 9, QuotaReserved="True", Evicted="False"), AssemblyBaseline(1, 9)),
    "halted": (job(None, annotations={ANNOTATION_HALTED: "why"}), stopped(0, 0, 1, 9), None),
}


@pytest.mark.parametrize(("seen", "workload", "baseline"), BASELINES.values(), ids=BASELINES)
def test_stop_for_another_reason_ends_the_sum(
    seen: StoredGang, workload: KueueWorkloadView | None, baseline: AssemblyBaseline | None
) -> None:
    assert next_assembly_baseline(seen, workload) == baseline
    if baseline is not None:
        assert parse_assembly_baseline(str(baseline)) == baseline
