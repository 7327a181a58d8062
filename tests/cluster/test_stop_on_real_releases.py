"""The Job of a gang that is stopped while it is suspended fails without a pod, on every release."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.kube.resources import JOBS, PODS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.manifests import SUSPENDED_MANIFEST
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.gang.identity import GangRef
    from tests.cluster.tenant import Tenant


async def conditions_of(gangs: GangService, ref: GangRef) -> dict[str, str]:
    """Return the reason of each condition of the Job that is true."""
    job: dict[str, Any] = await gangs.client.get(JOBS, ref.name, ref.namespace)
    conditions = job.get("status", {}).get("conditions") or ()
    return {one["type"]: one.get("reason", "") for one in conditions if one["status"] == "True"}


async def until(gangs: GangService, ref: GangRef, holds: Callable[[dict[str, str]], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not holds(await conditions_of(gangs, ref)):  # noqa: ASYNC110 - the server is another process
            await asyncio.sleep(0.1)


async def stop_suspended(tenant: Tenant, **spec: Any) -> None:
    async with GangService.connect(tenant.config) as gangs:
        ref = (await submit_gang(gangs, gang_spec(2, manifest=SUSPENDED_MANIFEST, **spec))).ref
        await until(gangs, ref, lambda conditions: "Suspended" in conditions)

        assert await gangs.stop(ref, reason="by hand")

        await until(gangs, ref, lambda conditions: conditions.get("Failed") == "DeadlineExceeded")
        assert await gangs.client.list(PODS, ref.namespace) == []


@pytest.mark.parametrize("gang", ["required", "off"])
async def test_suspended_gang_that_is_stopped_has_a_failed_job(tenant: Tenant, gang: str) -> None:
    await stop_suspended(tenant, gang=gang)


async def test_suspended_gang_of_the_job_controller_that_is_stopped_has_a_failed_job(native_tenant: Tenant) -> None:
    await stop_suspended(native_tenant, gang_scheduler="job-scheduling")
