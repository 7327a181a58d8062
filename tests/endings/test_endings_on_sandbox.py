"""Every way in which pods can end, on the sandbox of each release."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.outcome.task_result import task_result
from airflow_provider_gangjobs.gang.spec import Results
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from airflow_provider_gangjobs.tracking.harvest.collect import collect_outcomes
from tests.crashes import CrashingAtFirst, may_die
from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import check, outcomes_by_rank, play
from tests.endings.scenarios import ROLE_SCENARIOS, SCENARIOS, Scenario
from tests.provider.virtual_control_plane import NAMESPACE, VirtualControlPlane, loop_clock
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from airflow_provider_gangjobs.gang.outcome.event import GangEvent

pytestmark = in_virtual_time

NODE_GRACE_S = 86400.0


def every_third(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters, of which `make test` runs every third: it runs each scenario in another test."""
    return [pytest.param(name, marks=pytest.mark.slow if number % 3 else ()) for number, name in enumerate(names)]


@pytest.mark.parametrize("release", [pytest.param("1.36", marks=pytest.mark.slow), "1.37"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(name: str, release: str) -> None:
    await play_on_sandbox(SCENARIOS[name], release)


@pytest.mark.parametrize("name", every_third(SCENARIOS))
async def test_end_of_a_gang_with_supervisors_is_the_same(name: str) -> None:
    scenario = SCENARIOS[name]
    await play_on_sandbox(replace(scenario, spec={**scenario.spec, "restarts": 1}), "1.37")


@pytest.mark.parametrize("name", every_third(ROLE_SCENARIOS))
async def test_gang_with_roles_ends_as_a_gang_of_one_job(name: str) -> None:
    await play_on_sandbox(ROLE_SCENARIOS[name], "1.37", has_roles=True)


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_kind", ["GET jobs", "LIST pods", "POST configmaps", "LIST configmaps", "PATCH jobs"])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "run on" in name])
async def test_next_follower_comes_to_the_same_end_of_a_gang_with_sidecars(
    name: str, request_kind: str, applied: bool
) -> None:
    """The first follower dies before or after its first request of this kind."""
    scenario = SCENARIOS[name]
    async with gang_on_sandbox(scenario, "1.37") as (plane, gang):
        process = CrashingAtFirst(plane.client, {request_kind}, applied=applied)
        first = asyncio.create_task(follow(process, gang.ref, FollowOptions(now=plane.clock.now)))
        await scenario.act(gang)
        with may_die(process):
            await first
        assert process.has_died or request_kind == "LIST configmaps", process.requests
        event = await gang.follow()
        assert (event.status, event.reason) == (scenario.status, scenario.code)
        assert scenario.is_as_expected(outcomes_by_rank(event))
        await check(gang, event)
        if name == "all succeed, and sidecars run on":
            assert await results(plane, event) == [{"rank": 0}, {"rank": 1}]
        assert (await gang.follow()).status is scenario.status


async def results(plane: VirtualControlPlane, event: GangEvent) -> Any:
    """Return what the task returns, with all results."""
    collected = await collect_outcomes(plane.client, event)
    assert collected.completed is not None
    assert collected.is_complete
    return task_result(collected.outcomes, collected.completed, Results.ALL, event.ref)


async def play_on_sandbox(scenario: Scenario, release: str, *, has_roles: bool = False) -> None:
    """Run the scenario on an embedded cluster of this release."""
    async with gang_on_sandbox(scenario, release, has_roles=has_roles) as (_, gang):
        await play(gang, scenario)


@asynccontextmanager
async def gang_on_sandbox(
    scenario: Scenario, release: str, *, has_roles: bool = False
) -> AsyncIterator[tuple[VirtualControlPlane, GangUnderTest]]:
    """Submit the gang of a scenario on an embedded cluster of this release."""
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
            yield plane, gang
