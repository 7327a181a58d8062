"""Gangs that the real Kueue stops because their pods are not ready in time (`waitForPodsReady`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.record import AssemblyBaseline, read_mark
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_ASSEMBLY_BASELINE
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.queues.conftest import READY_WITHIN_S
from tests.queues.following import following, pods_of, until, waiting_behind
from tests.queues.tenants import kueue_tenant
from tests.replies import accepted

if TYPE_CHECKING:
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

pytestmark = pytest.mark.clusters("impatient_kueue")
SLEEP = "import time; time.sleep(3000)"
WIDE = gang_spec(3, code=SLEEP, cpu="2600m", queue_name="team")
"""Fits the quota of 20 CPUs, and not two nodes of 4 CPUs."""
NARROW = gang_spec(3, code=SLEEP, queue_name="team")


@pytest.fixture
def wide_queue(kueue: Kueue, tenant: Tenant) -> str:
    """The ClusterQueue of the queue `team`, with more quota than the nodes have CPUs."""
    return kueue.create_queue(tenant.namespace, cpu="20")


def annotation_of(tenant: Tenant, submission: Submission) -> str | None:
    """Return the annotation of the Job that says from where on the runs of the gang count."""
    with tenant.plane.client() as admin:
        reply = admin.get(f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{submission.ref.name}")
    annotations: dict[str, str] = accepted(reply)["metadata"]["annotations"]
    return annotations.get(ANNOTATION_ASSEMBLY_BASELINE)


def make_not_ready(tenant: Tenant, pod: dict[str, Any]) -> None:
    """Let a pod fail its readiness probe."""
    conditions = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    with tenant.plane.client() as admin:
        path = f"/api/v1/namespaces/{tenant.namespace}/pods/{pod['metadata']['name']}/status"
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        accepted(admin.patch(path, json={"status": {"conditions": conditions}}, headers=headers))


async def test_assemble_timeout_adds_up_the_runs_that_kueue_has_stopped(tenant: Tenant, wide_queue: str) -> None:
    deadlines = Deadlines(assemble_s=2.5 * READY_WITHIN_S)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, WIDE)
        async with following(tenant, submission, deadlines) as gang:
            await gang.line("all ranks run again later: 1 time before all pods were ready")
        async with following(tenant, submission, deadlines) as gang:  # another triggerer continues
            event = await gang.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert "Insufficient cpu on 2 of 2 nodes" in event.message
    assert "Kueue has stopped the gang 2 times before all pods were ready" in event.message
    assert annotation_of(tenant, submission) is None
    assert tenant.forbidden_requests() == []


async def test_gang_whose_assemble_timeout_is_used_up_ends_in_its_queue(
    kueue: Kueue, tenant: Tenant, wide_queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, WIDE)
        async with following(tenant, submission) as gang:
            await gang.line("assembling: 3 pods, none placed")
            kueue.patch("clusterqueues", wide_queue, {"spec": {"stopPolicy": "Hold"}})
            await gang.line("cannot admit the gang")
        async with following(tenant, submission, Deadlines(assemble_s=READY_WITHIN_S / 2)) as gang:
            event = await gang.event()
    assert (event.status, event.phase) == (Status.TIMEOUT, "assembling")
    assert "Kueue has stopped the gang 1 time before all pods were ready" in event.message
    await until(lambda: not pods_of(tenant, submission) and kueue.used_cpu(wide_queue) == "0")


def is_ready(kueue: Kueue, submission: Submission) -> bool:
    """Whether Kueue has seen that all pods are ready."""
    workload = kueue.workload_of(submission.ref.namespace, submission.ref.uid)
    conditions = workload["status"]["conditions"] if workload else ()
    return any((one["type"], one["status"]) == ("PodsReady", "True") for one in conditions)


def noted_stops(tenant: Tenant, submission: Submission) -> int:
    """Return the number of stops after which the runs of the gang count anew, as the Job says it."""
    return read_mark(AssemblyBaseline, annotation_of(tenant, submission)).other_stops


def stops_after_ready(kueue: Kueue, submission: Submission) -> int:
    """Return how often Kueue says that it has stopped the gang because a rank did not become ready again."""
    workload = kueue.workload_of(submission.ref.namespace, submission.ref.uid)
    evictions = workload["status"]["schedulingStats"]["evictions"] if workload else ()
    return sum(int(one["count"]) for one in evictions if one.get("underlyingCause") == "WaitForRecovery")


async def test_running_gang_with_a_rank_that_is_not_ready_says_that_kueue_has_stopped_it(
    kueue: Kueue, tenant: Tenant, wide_queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, NARROW)
        key = submission.ref.namespace, submission.ref.uid
        async with following(tenant, submission, Deadlines(assemble_s=600)) as gang:
            await gang.line("running: 3/3")
            await until(lambda: is_ready(kueue, submission))
            first = pods_of(tenant, submission)
            make_not_ready(tenant, first[1])
            await gang.line("all ranks run again later: 1 time after all pods had been ready")
            await until(lambda: gang.lines[-1] == "running: 3/3 ranks", lambda: str(gang.lines))
            # Kueue counts a stop twice now and then, if its own update of the Workload meets another one.
            await until(
                lambda: noted_stops(tenant, submission) == stops_after_ready(kueue, submission) > 0,
                lambda: f"{annotation_of(tenant, submission)}, {kueue.workload_of(*key)}, {gang.lines}",
            )
    uids = {pod["metadata"]["uid"] for pod in first}
    assert uids.isdisjoint(pod["metadata"]["uid"] for pod in pods_of(tenant, submission))
    assert tenant.forbidden_requests() == []


async def test_gang_that_kueue_gives_up_after_its_tries_says_why_and_what_to_do(
    kueue: Kueue, tenant: Tenant, wide_queue: str
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, WIDE)
        async with following(tenant, submission) as gang:
            event = await gang.event()
    assert (event.status, event.reason) == (Status.FAILED, "DeactivatedByQueue")
    assert "RequeuingLimitExceeded" in event.message
    assert "Kueue has stopped the gang 3 times before all pods were ready" in event.message
    assert "Before, the gang was assembling: 3 pods, none placed. Insufficient cpu on 2 of 2 nodes" in event.message
    assert "backoffLimitCount of waitForPodsReady" in event.remedy
    await until(lambda: kueue.used_cpu(wide_queue) == "0")


async def test_events_of_kueue_say_why_a_gang_waits_where_workloads_cannot_be_read(kueue: Kueue) -> None:
    """With the feature gate UnadmittedWorkloadsObservability, the reasons of the Events are not `Pending`."""
    with kueue_tenant(kueue.plane, "cannot read workloads", role=False) as tenant:
        kueue.create_queue(tenant.namespace)
        async with (
            GangService.connect(tenant.config) as gangs,
            waiting_behind(tenant, gangs, NARROW, NARROW) as waiting,
        ):
            reasons = reasons_of_workloads(tenant)
            assert any("insufficient unused quota" in line for line in waiting.gang.lines)
    assert {"WaitingForQuota"} <= reasons
    assert "Pending" not in reasons


def reasons_of_workloads(tenant: Tenant) -> set[str]:
    """Return the reasons of all Events of Workloads in the namespace."""
    with tenant.plane.client() as admin:
        reply = admin.get(
            f"/api/v1/namespaces/{tenant.namespace}/events", params={"fieldSelector": "involvedObject.kind=Workload"}
        )
    return {event["reason"] for event in accepted(reply)["items"]}
