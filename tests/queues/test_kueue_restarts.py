"""Gangs that restart in place, and keep checkpoints, in a queue of the real Kueue that preempts them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.provider.test_checkpoints import killed, lives
from tests.queues.following import following, until
from tests.replies import accepted

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

SHORT = "import time; time.sleep(1)"
STEPS, EVERY = 200, 5


@pytest.fixture(scope="session")
def priorities(kueue: Kueue) -> None:
    for name, value in {"low": 1, "high": 100}.items():
        kueue.create("workloadpriorityclasses", {"metadata": {"name": f"restarts-{name}"}, "value": value})


def resumable(folder: Path) -> GangSpec:
    """Return a gang of two ranks, one of which is killed after each start of its pods, and then restarted in place."""
    parameters = killed(folder, steps=STEPS, every=EVERY, kills=1, after_s=(0.7, 1.2), restarts=1)
    fields: dict[str, Any] = {name: value for name, value in parameters.items() if name != "results"}
    queue = {"queue_name": "team", "queue_priority": "restarts-low"}
    return GangSpec(image="python:3.12", resources={"cpu": "1"}, **queue, **fields)


def stored(tenant: Tenant, job: str) -> list[Any]:
    """Return what decides what the supervisors of a gang do: the containers of the pods, the Service and the files."""
    with tenant.plane.client() as admin:
        core = f"/api/v1/namespaces/{tenant.namespace}"
        template = accepted(admin.get(f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{job}"))["spec"]["template"]
        services = accepted(admin.get(f"{core}/services"))["items"]
        files = accepted(admin.get(f"{core}/configmaps"))["items"]
    spec = template["spec"]
    return [
        (spec["containers"], spec["volumes"]),
        [one["spec"]["ports"] for one in services if one["metadata"]["name"].startswith(job)],
        [one["data"] for one in files if "gangjobs.key" in one.get("data", {})],
    ]


async def test_preempted_gang_restarts_in_place_again_and_loses_only_steps_after_its_checkpoint(
    kueue: Kueue, tenant: Tenant, queue: str, priorities: None, tmp_path: Path
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        low = await submit_gang(gangs, resumable(tmp_path), "low")
        async with following(tenant, low) as gang:
            # The programs have been restarted in place, and have written a checkpoint since.
            await until(lambda: len([*tmp_path.glob("checkpoints/*/*/*/*/step-*/rank-*-1")]) > 2)
            before = stored(tenant, low.ref.name)
            high = await submit_gang(
                gangs, gang_spec(code=SHORT, queue_name="team", queue_priority="restarts-high"), "high"
            )
            async with following(tenant, high) as preempting:
                assert (await preempting.event()).status is Status.SUCCEEDED
            assert stored(tenant, low.ref.name) == before
            event = await gang.event()
    assert event.status is Status.SUCCEEDED, event.message
    assert [len(part) for part in before] == [2, 1, 1]
    assert tenant.forbidden_requests() == []

    played = sorted(lives(tmp_path), key=lambda life: min(steps[0][1] for steps in life.steps.values()))
    assert len(played) == 4, "the pods before the preemption, and those after it, have had one restart each"
    for earlier, later in pairwise(played):
        first = min(steps[0][0] for steps in later.steps.values())
        assert first > 1
        assert earlier.last - (first - 1) <= EVERY
    assert {steps[-1][0] for steps in played[-1].steps.values()} == {STEPS}
