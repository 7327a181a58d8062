"""Every way in which pods can end, on the sandbox of each release."""

from __future__ import annotations

import pytest

from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import play
from tests.endings.scenarios import ROLE_SCENARIOS, SCENARIOS, Scenario
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

NODE_GRACE_S = 86400.0


@pytest.mark.parametrize(
    "release", [pytest.param("1.35", marks=pytest.mark.slow), pytest.param("1.36", marks=pytest.mark.slow), "1.37"]
)
@pytest.mark.parametrize("name", SCENARIOS)
@in_virtual_time
async def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(name: str, release: str) -> None:
    await play_on_sandbox(SCENARIOS[name], release)


@pytest.mark.parametrize("name", ROLE_SCENARIOS)
@in_virtual_time
async def test_gang_with_roles_ends_as_a_gang_of_one_job(name: str) -> None:
    await play_on_sandbox(ROLE_SCENARIOS[name], "1.37", has_roles=True)


async def play_on_sandbox(scenario: Scenario, release: str, *, has_roles: bool = False) -> None:
    """Run the scenario on an embedded cluster of this release."""
    async with VirtualControlPlane.running(
        release=release, nodes=0, plays_nodes=False, node_grace_s=NODE_GRACE_S
    ) as plane:
        kubelets = FakeKubelets(plane.client, plane.clock.now)
        begun = GangUnderTest.begun(
            plane.client,
            plane.config,
            NAMESPACE,
            kubelets,
            clock=loop_clock(),
            nodes=scenario.nodes,
            has_roles=has_roles,
            **scenario.spec,
        )
        async with kubelets.playing(), begun as gang:
            await play(gang, scenario)
