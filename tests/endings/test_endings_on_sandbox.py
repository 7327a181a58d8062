"""Every way in which pods can end, on the sandbox of each release."""

from __future__ import annotations

import pytest

from tests.endings.kubelets import Kubelets
from tests.endings.running import play
from tests.endings.scenarios import SCENARIOS
from tests.endings.trial import Trial
from tests.provider.plane import NAMESPACE, Plane, loop_clock
from tests.provider.virtual_time import in_virtual_time

NODE_GRACE_S = 86400.0


@pytest.mark.parametrize(
    "release", [pytest.param("1.35", marks=pytest.mark.slow), pytest.param("1.36", marks=pytest.mark.slow), "1.37"]
)
@pytest.mark.parametrize("name", SCENARIOS)
@in_virtual_time
async def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(name: str, release: str) -> None:
    scenario = SCENARIOS[name]
    async with Plane.running(release=release, nodes=0, plays_nodes=False, node_grace_s=NODE_GRACE_S) as plane:
        kubelets = Kubelets(plane.client, plane.clock.now)
        begun = Trial.begun(
            plane.client, plane.config, NAMESPACE, kubelets, clock=loop_clock(), nodes=scenario.nodes, **scenario.spec
        )
        async with kubelets.playing(), begun as trial:
            await play(trial, scenario)
