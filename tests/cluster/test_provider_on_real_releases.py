"""The provider on real control planes of each release, with only the permissions that its documentation lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.resources import JOBS, PODS
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.outcome.event import Status
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.releases import RELEASES

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant


async def test_ranks_connect_and_their_results_are_returned(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec())
        assert submission.decision == f"gang:{RELEASES[tenant.plane.release].dialect}"
        event = await follow_gang(tenant, submission)
        outcomes = await gangs.outcomes(submission.ref)
    assert event.status is Status.SUCCEEDED, event
    assert [outcome.message for outcome in outcomes] == ["[1, 2]", "[0]", "[0]"]


async def test_no_pod_stays_held_after_the_end(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        await follow_gang(tenant, await submit_gang(gangs, gang_spec()))
        pods = await gangs.client.list(PODS, tenant.namespace)
    assert [pod["metadata"].get("finalizers") for pod in pods] == [None] * 3


async def test_failed_rank_is_distinguished_from_the_ranks_that_ended_after_it(tenant: Tenant) -> None:
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(3000)"
    async with GangService.connect(tenant.config) as gangs:
        event = await follow_gang(tenant, await submit_gang(gangs, gang_spec(code=code)))
    assert (event.status, event.ranks[0].rank, event.ranks[0].exit_code) == (Status.FAILED, 1, 3)


async def test_a_gang_that_cannot_fit_places_nothing_and_times_out(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, cpu="3"))
        event = await follow_gang(tenant, submission, Deadlines(assemble_s=4))
        job = await gangs.client.get(JOBS, submission.ref.name, tenant.namespace)
    assert (event.status, event.phase, event.counts["placed"]) == (Status.TIMEOUT, "assembling", 0)
    assert job["spec"]["activeDeadlineSeconds"] == 0


async def test_priority_class_that_does_not_exist_is_named_with_its_remedy(tenant: Tenant) -> None:
    """Release 1.37 refuses the PodGroup, which has a priority there. Earlier releases refuse the pods."""
    async with GangService.connect(tenant.config) as gangs:
        try:
            submission = await submit_gang(gangs, gang_spec(priority_class="nosuch"))
            event = await follow_gang(tenant, submission, Deadlines(assemble_s=25))
            found = event.message, event.remedy
        except SubmissionFailed as error:
            found = error.evidence, error.remedy
    assert "no PriorityClass with name nosuch was found" in found[0]
    assert "Create the PriorityClass, or correct priority_class" in found[1]


async def test_scheduling_gates_that_nobody_removes_are_named(tenant: Tenant) -> None:
    pod = {"spec": {"schedulingGates": [{"name": "example.com/hold"}]}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(manifest=manifest))
        event = await follow_gang(tenant, submission, Deadlines(assemble_s=6))
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling.gated")
    assert event.message.endswith("3 pods have scheduling gates: example.com/hold")


async def test_second_submission_of_a_task_adopts_its_gang(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        first, second = await submit_gang(gangs, gang_spec()), await submit_gang(gangs, gang_spec())
        assert (second.ref, second.adopted) == (first.ref, True)
        event = await follow_gang(tenant, second)
        assert event.status is Status.SUCCEEDED, [event.ranks, await gangs.outcomes(second.ref)]
