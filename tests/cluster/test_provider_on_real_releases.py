"""The provider on real control planes of each release, with only the permissions that its documentation lists."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.attempt.triggerer.sensor_wait import SelectionArgs, wait_for_selected
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.ending.sweep import NamespaceSweeper, Sweep
from airflow_provider_gangjobs.exceptions import SubmissionFailed
from airflow_provider_gangjobs.gang.awaited import GangSelection
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.ownership import TaskEnd
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.gang_watch import gang_of
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.releases import RELEASES
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    import pytest

    from airflow_provider_gangjobs.cluster.config import ClusterConfig
    from airflow_provider_gangjobs.gang.identity import GangRef
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
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.assembling")
    assert event.message.endswith("3 pods have scheduling gates: example.com/hold")


async def test_second_submission_of_a_task_adopts_its_gang(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        first, second = await submit_gang(gangs, gang_spec()), await submit_gang(gangs, gang_spec())
        assert (second.ref, second.adopted) == (first.ref, True)
        event = await follow_gang(tenant, second)
        assert event.status is Status.SUCCEEDED, [event.ranks, await gangs.outcomes(second.ref)]


async def test_gang_is_found_among_thousands_of_map_indexes(tenant: Tenant) -> None:
    """The API server answers 431 to a URL of more than 1 MiB."""
    keys = [TaskKey("dag", "run", "mapped", index, "prod") for index in range(20_000)]
    selection = GangSelection(namespace=tenant.namespace, digests=tuple(key.digest for key in keys))
    async with GangService.connect(tenant.config) as gangs:
        submission = await gangs.submit(gang_spec(2), key=keys[-1], claim="somebody")
        assert await gangs.list_gangs(selection) == [submission.ref]
        found = await gangs.find_gangs(selection)
    assert [key for key, gang in found.items() if gang.ref is not None] == [keys[-1].digest]


async def test_sensor_finds_a_gang_by_its_name_that_a_sweep_has_forgotten(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TENANT", json.dumps({"conn_type": "kubernetes", "extra": tenant.extras}))
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(2))
        sweeping = asyncio.create_task(sweeper(tenant).run())
        await follow_gang(tenant, submission)
        assert stored_objects() > 0
        async with asyncio.timeout(TIMEOUT_S):
            while stored_objects():  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.1)

            args = SelectionArgs(
                kubernetes_conn_id="tenant", namespace=tenant.namespace, names={submission.ref.name: ""}
            )
            payload = await wait_for_selected(args, logging.getLogger(__name__))
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await informers().aclose()
    assert (payload["status"], [gang["uid"] for gang in payload["gangs"]]) == ("met", [submission.ref.uid])


def sweeper(tenant: Tenant) -> NamespaceSweeper:
    """Return a sweeper that forgets gangs that have ended for a second."""

    async def read_config() -> ClusterConfig:
        return tenant.config

    async def ask(_: TaskKey) -> TaskEnd:
        return TaskEnd.NOT_ENDED

    async def follow(_: GangRef) -> None:
        raise AssertionError("the follower has released all pods")

    sweep = Sweep("prod", lambda _: False, ask, follow, grace=timedelta(seconds=1))
    return NamespaceSweeper(
        sweep=sweep, namespace=tenant.namespace, read_config=read_config, followed=list, index=gang_of
    )


def stored_objects() -> int:
    """Return how many Jobs and pods the informers of this process store."""
    return sum(one.objects for name, one in informers().statistics().items() if "podgroups" not in name)
