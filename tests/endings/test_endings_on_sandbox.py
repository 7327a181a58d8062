"""Every way in which pods can end, on the sandbox of each release."""

from __future__ import annotations

import pytest

from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import play
from tests.endings.scenarios import SCENARIOS
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

NODE_GRACE_S = 86400.0


@pytest.mark.parametrize(
    "release", [pytest.param("1.35", marks=pytest.mark.slow), pytest.param("1.36", marks=pytest.mark.slow), "1.37"]
)
@pytest.mark.parametrize("name", SCENARIOS)
@in_virtual_time
async def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(name: str, release: str) -> None:
    scenario = SCENARIOS[name]
    async with VirtualControlPlane.running(
        release=release, nodes=0, plays_nodes=False, node_grace_s=NODE_GRACE_S
    ) as plane:
        kubelets = FakeKubelets(plane.client, plane.clock.now)
        begun = GangUnderTest.begun(
            plane.client, plane.config, NAMESPACE, kubelets, clock=loop_clock(), nodes=scenario.nodes, **scenario.spec
        )
        async with kubelets.playing(), begun as gang:
            await play(gang, scenario)
