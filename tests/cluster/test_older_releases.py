"""Endings, stops and disruptions on releases without the Workload API, which most clusters run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import disruption_of
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import NextAttemptRule, SubmissionRequest
from tests.cluster.controlplane.build import OLDER_RELEASES
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.test_disruptions_on_real_releases import FIRST_ATTEMPT_IS_ENDLESS, runs
from tests.cluster.test_endings_on_real_releases import chosen, play_all
from tests.cluster.test_stop_on_real_releases import stop_suspended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

pytestmark = pytest.mark.parametrize("bare_plane", OLDER_RELEASES, indirect=True, scope="session")
KEY = TaskKey("dag", "run", "task", -1)


@pytest.fixture(scope="module")
def played(bare_plane: ControlPlane) -> Mapping[str, BaseException | None]:
    """The error of each scenario, or None."""
    return asyncio.run(play_all(bare_plane, chosen(bare_plane.release), gang="preferred"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", chosen(OLDER_RELEASES[0]))
def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(
    name: str, bare_plane: ControlPlane, played: Mapping[str, BaseException | None]
) -> None:
    if error := played[name]:
        raise error


async def test_suspended_job_that_is_stopped_fails(bare_plane: ControlPlane, bare_tenant: Tenant) -> None:
    await stop_suspended(bare_tenant, gang="preferred")


async def test_evicted_attempt_is_submitted_again(bare_plane: ControlPlane, bare_tenant: Tenant) -> None:
    spec = gang_spec(2, code=FIRST_ATTEMPT_IS_ENDLESS, gang="preferred")
    async with GangService.connect(bare_tenant.config) as gangs:
        first = await submit_gang(gangs, spec)
        await runs(bare_tenant, first)
        evict(bare_tenant, f"{first.ref.name}-1")
        event = await follow_gang(bare_tenant, first)
        lost = disruption_of(event, allowed=1)
        assert lost is not None, event
        assert (event.reason, lost.is_allowed) == ("Evicted", True)
        rule = NextAttemptRule.after(event, max_disruptions=1)
        second = await gangs.submit(spec, SubmissionRequest(key=KEY, claim=Claim("somebody"), rule=rule))
        end = await follow_gang(bare_tenant, second)
    assert (second.attempt, end.status) == (1, Status.SUCCEEDED), end
    assert bare_tenant.forbidden_requests() == []


def evict(tenant: Tenant, name_begins: str) -> None:
    """Evict the pod of a rank, as `kubectl drain` does."""
    path = f"/api/v1/namespaces/{tenant.namespace}/pods"
    with tenant.plane.client() as admin:
        names = [pod["metadata"]["name"] for pod in admin.get(path).json()["items"]]
        (name,) = (name for name in names if name.startswith(name_begins))
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        admin.post(f"{path}/{name}/eviction", json=eviction).raise_for_status()
