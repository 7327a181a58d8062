"""The ways in which pods can end (docs/clusters.md), for gangs in queues of the real Kueue, with the same results.

The scenarios are played all at once, each in a namespace, in a queue and on nodes of its own. Those that take a minute
are left out. Then each has its test.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_endings_on_real_releases import hollow_nodes
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import play
from tests.endings.scenarios import SCENARIOS
from tests.queues.tenants import kueue_tenant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.queues.kueue.manager import Kueue

CHOSEN = [name for name, scenario in SCENARIOS.items() if not scenario.is_slow]


@pytest.fixture(scope="module")
def played(kueue: Kueue) -> Mapping[str, BaseException | None]:
    """What went wrong with each scenario."""
    return asyncio.run(play_all(kueue))


async def play_all(kueue: Kueue) -> dict[str, BaseException | None]:
    async with AsyncExitStack() as stack:
        kubelets = await stack.enter_async_context(hollow_nodes(kueue.plane))
        tenants = {name: stack.enter_context(kueue_tenant(kueue.plane, name)) for name in CHOSEN}

        async def one(name: str) -> None:
            scenario, tenant = SCENARIOS[name], tenants[name]
            await asyncio.to_thread(kueue.create_queue, tenant.namespace, cpu="20")
            spec = {**scenario.spec, "queue_name": "team"}
            gang = GangUnderTest.begun(
                kubelets.admin, tenant.config, tenant.namespace, kubelets, nodes=scenario.nodes, **spec
            )
            async with gang as begun:
                await play(begun, scenario)
            assert tenant.forbidden_requests() == []

        ends = await asyncio.gather(*map(one, CHOSEN), return_exceptions=True)
    return dict(zip(CHOSEN, ends, strict=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CHOSEN)
def test_gang_in_a_queue_ends_as_documented(name: str, played: Mapping[str, BaseException | None]) -> None:
    if (wrong := played[name]) is not None:
        raise wrong
