"""Why a gang waits in a queue of the real Kueue: `gangjobs why`, the log of the task, and `gangjobs doctor`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.gang.checkup import Finding, Health
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.service.doctor import (
    KUEUE_CONFIGURATION,
    KUEUE_MANAGER,
    KUEUE_NAMESPACE,
    Examination,
    examine,
)
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.test_situations_on_real_releases import why
from tests.queues.following import POLL_S, Following, following, until
from tests.queues.kueue.build import RELEASES
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

QUEUE = "team"
SLEEP = "import time; time.sleep(3000)"


@pytest.fixture(scope="session")
def priorities(kueue: Kueue) -> None:
    for name, value in {"small": 1, "large": 100}.items():
        kueue.create("workloadpriorityclasses", {"metadata": {"name": name}, "value": value})


async def test_quota_that_is_too_small_is_named(tenant: Tenant, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(queue_name=QUEUE, cpu="2"))
        async with following(tenant, submission) as gang:
            line = await gang.line("maximum capacity (4)")
            found, text = await why(tenant, submission, capsys)
    assert (found["category"], f"queued: {found['summary']}") == ("ExceedsMaxQuota", line)
    assert "Correct queue_name or the resources of the gang" in text
    assert tenant.forbidden_requests() == []


async def stop_queue(gang: Following, kueue: Kueue, queue: str) -> str:
    await gang.line("running: 3/3")
    kueue.patch("clusterqueues", queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    return "QueueStopped"


async def test_queue_that_is_held_is_named(
    kueue: Kueue, tenant: Tenant, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            await gang.line(await stop_queue(gang, kueue, queue))
            await gang.line("inactive")
            found, text = await why(tenant, submission, capsys)
    assert found["category"] == "QueueHeld"
    assert f"queued: {found['summary']}" in gang.lines
    assert text.endswith("ask the administrator of the queue.\n")


async def test_gang_that_another_one_has_preempted_says_so(
    tenant: Tenant, queue: str, priorities: None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with GangService.connect(tenant.config) as gangs, AsyncExitStack() as stack:
        low = await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE, queue_priority="small"), "low")
        gang = await stack.enter_async_context(following(tenant, low))
        await gang.line("running: 3/3")
        await submit_gang(gangs, gang_spec(code=SLEEP, queue_name=QUEUE, queue_priority="large"), "high")
        await gang.line("Preempted")
        found, text = await why(tenant, low, capsys)
    assert found["category"] in {"PreemptedByQueue", "WaitingForQuota"}
    assert "PreemptedByQueue" in gang.categories
    assert "queue_timeout" in text


async def findings_of(tenant: Tenant, **more: Any) -> dict[str, Finding]:
    async with GangService.connect(tenant.config) as gangs:
        found = await examine(gangs, Examination(namespace=tenant.namespace, **more))
    return {finding.check: finding for finding in found}


def problem_of(found: dict[str, Finding]) -> Finding:
    (problem,) = [finding for finding in found.values() if finding.health is Health.PROBLEM]
    return problem


async def test_check_up_names_a_queue_that_does_not_exist(tenant: Tenant, queue: str) -> None:
    found = problem_of(await findings_of(tenant, queue="nosuch"))
    assert found.what == f"nosuch is no LocalQueue of namespace {tenant.namespace}: the namespace has {QUEUE}"


HELD: dict[str, Callable[[Kueue, Tenant, str], None]] = {
    "stopPolicy": lambda kueue, tenant, _: kueue.patch(
        "localqueues", QUEUE, {"spec": {"stopPolicy": "Hold"}}, tenant.namespace
    ),
    "not active": lambda kueue, _, queue: kueue.patch("clusterqueues", queue, {"spec": {"stopPolicy": "Hold"}}),
}


@pytest.mark.parametrize(("what", "hold"), HELD.items(), ids=HELD)
async def test_check_up_names_a_queue_that_is_held(
    kueue: Kueue, tenant: Tenant, queue: str, what: str, hold: Callable[[Kueue, Tenant, str], None]
) -> None:
    hold(kueue, tenant, queue)
    async with asyncio.timeout(TIMEOUT_S):
        while (found := (await findings_of(tenant))["queues"]).health is not Health.PROBLEM:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    assert what in found.what


CORE = f"/api/v1/namespaces/{KUEUE_NAMESPACE}/configmaps"
APPS = f"/apis/apps/v1/namespaces/{KUEUE_NAMESPACE}/deployments"


@contextmanager
def installed(kueue: Kueue, tenant: Tenant, configuration: Mapping[str, Any]) -> Iterator[None]:
    """Let the configuration and the Deployment of the manager be where Kueue's manifests have them, and readable."""
    stored = {
        "metadata": {"name": KUEUE_CONFIGURATION},
        "data": {"controller_manager_config.yaml": yaml.dump(configuration)},
    }
    labels = {"app": KUEUE_MANAGER}
    containers = [{"name": "manager", "image": f"registry.k8s.io/kueue/kueue:{RELEASES[kueue.release]}"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    manager = {
        "metadata": {"name": KUEUE_MANAGER},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    may_read = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
    ]
    for number, rule in enumerate(may_read):
        tenant.grant_everywhere({"metadata": {"name": f"installed-{number}"}, "rules": [rule]})
    with tenant.plane.client() as admin:
        try:
            accepted(admin.post(CORE, json=stored))
            accepted(admin.post(APPS, json=manager))
            yield
        finally:
            admin.delete(f"{CORE}/{KUEUE_CONFIGURATION}")
            admin.delete(f"{APPS}/{KUEUE_MANAGER}")


async def test_check_up_names_a_kueue_that_stops_gangs_too_early(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    with installed(kueue, tenant, {"waitForPodsReady": {"timeout": "60s"}}):
        found = await findings_of(tenant, assemble_timeout_s=600.0)
    what = "Kueue stops a gang that is not ready after 60s, before assemble_timeout (600 s)"
    assert found["waitForPodsReady of Kueue"].what == what


def uid_of(tenant: Tenant, submission: Submission) -> str:
    with tenant.plane.client() as admin:
        job = accepted(admin.get(f"/apis/batch/v1/namespaces/{tenant.namespace}/jobs/{submission.ref.name}"))
    return str(job["metadata"]["uid"])


async def test_check_up_knows_whether_this_release_of_kueue_waits_for_pods_by_default(
    kueue: Kueue, tenant: Tenant, queue: str
) -> None:
    """A Kueue that waits for the pods says in the Workload whether they are ready."""
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(queue_name=QUEUE))
        async with following(tenant, submission) as gang:
            await gang.event()
    workload = kueue.workload_of(tenant.namespace, uid_of(tenant, submission))
    assert workload is not None
    is_on = any(condition["type"] == "PodsReady" for condition in workload["status"]["conditions"])

    with installed(kueue, tenant, kueue.configuration):
        found = (await findings_of(tenant))["waitForPodsReady of Kueue"]
    assert found.health is Health.OK
    assert found.what.startswith("Kueue stops a gang") == is_on


async def test_check_up_names_a_manager_of_kueue_that_is_away(kueue: Kueue, tenant: Tenant, queue: str) -> None:
    kueue.stop()
    try:
        found = (await findings_of(tenant))["admission of Jobs"]
    finally:
        kueue.start()
        await until(lambda: kueue.exists("clusterqueues", queue))
    assert found.health is Health.PROBLEM
    assert "failed calling webhook" in found.what
    assert found.remedy.startswith("Start the controller of this webhook")
