"""Every way in which pods can end, on real control planes, under the documented Role.

The scenarios of a release are played all at once, each in a namespace and on nodes of its own, since some wait a minute
for a controller. Then each has its test.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.connection import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import informers
from tests.cluster.tenant import Tenant
from tests.endings.kubelets import Kubelets
from tests.endings.running import play
from tests.endings.scenarios import SCENARIOS
from tests.endings.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.plane import ControlPlane

ALL_ON = "1.36"
"""On the other releases those that take a minute are left out."""


def chosen(release: str) -> list[str]:
    return [name for name, scenario in SCENARIOS.items() if release == ALL_ON or not scenario.is_slow]


@pytest.fixture(scope="module")
def played(plane: ControlPlane) -> Mapping[str, BaseException | None]:
    """By scenario, what went wrong with it."""
    return asyncio.run(play_all(plane, chosen(plane.release)))


async def play_all(plane: ControlPlane, names: list[str]) -> dict[str, BaseException | None]:
    admin_config = ClusterConfig.from_extras("admin", {"kube_config_path": str(plane.folder / "admin.kubeconfig")})
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(admin_config))
        stack.push_async_callback(informers().aclose)
        kubelets = Kubelets(admin)
        await stack.enter_async_context(kubelets.playing())
        tenants = {name: stack.enter_context(Tenant.admitted(plane, name)) for name in names}

        async def one(name: str) -> None:
            scenario, tenant = SCENARIOS[name], tenants[name]
            trial = Trial.begun(admin, tenant.config, tenant.namespace, kubelets, nodes=scenario.nodes, **scenario.spec)
            async with trial as begun:
                await play(begun, scenario)
            assert tenant.refused() == []

        ends = await asyncio.gather(*map(one, names), return_exceptions=True)
    return dict(zip(names, ends, strict=True))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(
    name: str, plane: ControlPlane, played: Mapping[str, BaseException | None]
) -> None:
    if name not in played:
        pytest.skip(f"takes a minute, and is played on {ALL_ON}")
    if error := played[name]:
        raise error
