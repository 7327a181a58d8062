"""Versions of the Workload API that are newer than the provider: what dry runs on real API servers show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.schedulers import PodGroupDialect
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.capabilities import why_unusable

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant


async def why(tenant: Tenant, version: str) -> str:
    async with GangService.connect(tenant.config) as gangs:
        reason = await why_unusable(gangs.client, PodGroupDialect(version), tenant.namespace)
        assert await gangs.client.list(JOBS, tenant.namespace) == []
    return reason


@pytest.mark.parametrize("plane", ["1.37"], indirect=True)
@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
async def test_a_version_with_the_fields_of_the_newest_known_one_is_accepted(tenant: Tenant, version: str) -> None:
    assert await why(tenant, version) == ""


@pytest.mark.parametrize("plane", ["1.36"], indirect=True)
async def test_a_version_with_other_fields_is_refused(tenant: Tenant) -> None:
    assert "PodGroup" in await why(tenant, "v1alpha2")


@pytest.mark.parametrize("plane", ["1.37"], indirect=True)
async def test_a_version_that_is_not_served_is_refused(tenant: Tenant) -> None:
    assert "refuses a dry run" in await why(tenant, "v2")
