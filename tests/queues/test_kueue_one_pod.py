"""Tasks with one pod in queues of the real Kueue manager: no group, and everything else that a gang has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import podgroups
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.queues.following import following, until, waiting_behind

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

QUEUE = "team"
SHORT = "import time; time.sleep(1)"
SLEEP = "import time; time.sleep(3000)"
GROUPS = {"1.36": "v1alpha2", "1.37": "v1beta1"}


async def test_one_pod_waits_for_quota_and_runs_without_a_group(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    holder, waiting_pod = (gang_spec(1, code=code, cpu="3", queue_name=QUEUE) for code in (SLEEP, SHORT))
    async with (
        GangService.connect(tenant.config) as gangs,
        waiting_behind(tenant, gangs, holder, waiting_pod) as waiting,
    ):
        assert waiting.submission.decision == "basic:one pod"
        await until(lambda: kueue.used_cpu(queue) == "3")
        await gangs.delete(waiting.before.ref)
        assert (await waiting.gang.event()).status is Status.SUCCEEDED
        with tenant.plane.client() as admin:
            groups = podgroups(GROUPS[tenant.plane.release])
            path = f"/apis/{groups.group}/{groups.version}/namespaces/{tenant.namespace}/{groups.plural}"
            assert admin.get(path).json()["items"] == []
    assert tenant.forbidden_requests() == []


@pytest.mark.clusters("bare_kueue")
async def test_one_pod_gives_way_in_its_queue_and_runs_again(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    """The wait of the pod that Kueue has preempted is told, and no time limit of the pod's own run ends the wait."""
    for name, value in {"pods-low": 1, "pods-high": 100}.items():
        kueue.create("workloadpriorityclasses", {"metadata": {"name": name}, "value": value})
    async with GangService.connect(tenant.config) as gangs:
        low = await submit_gang(
            gangs, gang_spec(1, code=SLEEP, cpu="3", queue_name=QUEUE, queue_priority="pods-low"), "low"
        )
        async with following(tenant, low) as pod:
            await pod.line("running: 1/1")
            high = await submit_gang(
                gangs, gang_spec(1, code=SLEEP, cpu="3", queue_name=QUEUE, queue_priority="pods-high"), "high"
            )
            await pod.line("Preempted")
            await gangs.delete(high.ref)
            told = len(pod.lines)
            await until(lambda: any(line.startswith("running: 1/1") for line in pod.lines[told:]))
            assert await gangs.stop(low.ref, reason="enough")
            assert (await pod.event()).status is Status.FAILED
    await until(lambda: kueue.used_cpu(queue) == "0")
