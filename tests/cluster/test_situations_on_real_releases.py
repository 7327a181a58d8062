"""Why a gang does not run, on real control planes: `gangjobs why` and the log of the task say the same.

The account has the documented Role and the optional ClusterRole. Situations of queues are in `tests/queues`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from airflow_provider_gangjobs.cli.main import main
from airflow_provider_gangjobs.exceptions import GangUnsupported
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.submission.submission import SubmissionRequest, TaskRule
from tests.cluster.admission import created, webhook_that_refuses_pods
from tests.cluster.gangs import gang_spec, submit_gang
from tests.cluster.releases import NONE
from tests.queues.following import following, pods_of, until
from tests.replies import accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.tenant import Tenant

CAPACITY = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "airflow_provider_gangjobs" / "rbac" / "rbac-capacity.yaml").read_text()
)
SLEEP = "import time; time.sleep(600)"
_MERGE = {"Content-Type": "application/merge-patch+json"}
_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


@dataclass(frozen=True)
class Situation:
    """A gang, what the administrator has done before, and what is said about the gang."""

    spec: GangSpec
    category: str
    reason: str
    remedy: str
    arranged: Callable[[Tenant], AbstractContextManager[None]] = lambda _: nullcontext()
    then: Callable[[Tenant, Submission], None] = lambda *_: None
    """What happens after the submission."""
    before: GangSpec | None = None
    """A gang of the DAG `etl`, which runs."""


@contextmanager
def tainted_nodes(tenant: Tenant) -> Iterator[None]:
    """Taint all nodes while the block runs."""

    def patch(taints: list[dict[str, str]] | None) -> None:
        with tenant.plane.client() as admin:
            for node in accepted(admin.get("/api/v1/nodes"))["items"]:
                path = f"/api/v1/nodes/{node['metadata']['name']}"
                accepted(admin.patch(path, json={"spec": {"taints": taints}}, headers=_MERGE))

    patch([{"key": "team", "value": "other", "effect": "NoSchedule"}])
    try:
        yield
    finally:
        patch(None)


@contextmanager
def node_without_registry(tenant: Tenant) -> Iterator[None]:
    """A node with the label `registry: none`, whose kubelet the test plays."""
    room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    body = {"metadata": {"name": f"offline-{tenant.namespace}", "labels": {"registry": "none"}}}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    with created(tenant.plane, "/api/v1/nodes", body), tenant.plane.client() as admin:
        path = f"/api/v1/nodes/{body['metadata']['name']}"
        accepted(admin.patch(f"{path}/status", json={"status": status}, headers=_STRATEGIC))
        accepted(admin.patch(path, json={"spec": {"taints": None}}, headers=_MERGE))
        yield


@contextmanager
def claim_of_no_class(tenant: Tenant) -> Iterator[None]:
    """A PersistentVolumeClaim `data` whose StorageClass does not exist."""
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "nosuch", "resources": resources}
    path = f"/api/v1/namespaces/{tenant.namespace}/persistentvolumeclaims"
    with created(tenant.plane, path, {"metadata": {"name": "data"}, "spec": spec}):
        yield


def pull_fails(tenant: Tenant, submission: Submission) -> None:
    """Report what a kubelet reports whose registry does not have the image."""
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "trainer:1": not found'}
    container = {"name": "main", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    names = lambda: [pod["metadata"]["name"] for pod in pods_of(tenant, submission) if pod["spec"].get("nodeName")]  # noqa: E731
    with tenant.plane.client() as admin:
        asyncio.run(until(lambda: len(names()) == submission.workers))
        for name in names():
            path = f"/api/v1/namespaces/{tenant.namespace}/pods/{name}/status"
            accepted(admin.patch(path, json={"status": status}, headers=_STRATEGIC))


SITUATIONS = {
    "too large for every node": Situation(
        gang_spec(2, cpu="64"),
        "NeverFits",
        "Can never fit on the present nodes: each rank requests 64 CPU, and the largest of 2 nodes has 4",
        "Request less for each rank",
    ),
    "a resource that no node has": Situation(
        gang_spec(
            2,
            cpu="1",
            pod_overrides={
                "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
            },
        ),
        "NeverFits",
        "each rank requests 8 nvidia.com/gpu, and no node has this resource",
        "Request less for each rank",
    ),
    "too large for now": Situation(
        gang_spec(4, cpu="1500m", code=SLEEP),
        "InsufficientResources",
        "Needs 4 x 1500m CPU; 3 of 8 CPU",
        "Ask for fewer workers",
        before=gang_spec(2, cpu="2500m", code=SLEEP),
    ),
    "a taint": Situation(
        gang_spec(2, cpu="1"),
        "NodesNotMatching",
        "each rank does not tolerate the taints of 2 nodes (team=other:NoSchedule)",
        "Add tolerations",
        arranged=tainted_nodes,
    ),
    "no such label of a node": Situation(
        gang_spec(2, cpu="1", node_selector={"disk": "nvme"}),
        "NodesNotMatching",
        "no node matches the node selector of each rank (disk=nvme)",
        "Correct node_selector",
    ),
    "an image that cannot be pulled": Situation(
        gang_spec(2, cpu="1", node_selector={"registry": "none"}),
        "ImagePullFailed",
        'Back-off pulling image "trainer:1": not found',
        "Check the name and tag of the image",
        arranged=node_without_registry,
        then=pull_fails,
    ),
    "a missing priority class": Situation(
        gang_spec(2, cpu="1", priority_class="nosuch", gang="off"),  # a PodGroup would be refused at once
        "PodsRefused",
        "no PriorityClass with name nosuch was found",
        "Create the PriorityClass",
    ),
    "a missing claim": Situation(
        gang_spec(2, cpu="1", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "nosuch"}}]),
        "VolumeUnavailable",
        "PersistentVolumeClaim nosuch does not exist in namespace",
        "Create the PersistentVolumeClaim",
    ),
    "a missing storage class": Situation(
        gang_spec(2, cpu="1", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
        "VolumeUnavailable",
        'PersistentVolumeClaim data cannot be bound: storageclass.storage.k8s.io "nosuch" not found',
        "Create the StorageClass",
        arranged=claim_of_no_class,
    ),
    "a webhook that refuses": Situation(
        gang_spec(2, cpu="1"),
        "PodsRefused",
        'admission webhook "pods.example.com" denied the request: the pod has no team',
        "Look at the events of the Job",
        arranged=webhook_that_refuses_pods,
    ),
    "the controller manager stopped": Situation(
        gang_spec(2, cpu="1"),
        "ControllerSilent",
        "Waits for the Job controller to process the Job",
        "kube-controller-manager",
        arranged=lambda tenant: tenant.plane.stopped("kube-controller-manager"),
    ),
}


async def why(tenant: Tenant, submission: Submission, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Return what `gangjobs why` prints as JSON, and as text."""
    options = [submission.ref.name, "--kubeconfig", str(tenant.kubeconfig), "-n", tenant.namespace]
    printed = []
    for output in ("json", "table"):
        assert await asyncio.to_thread(main, ["why", "-o", output, *options]) == 0
        printed.append(capsys.readouterr().out)
    return json.loads(printed[0]), printed[1]


async def run_gang_before(tenant: Tenant, gangs: GangService, spec: GangSpec) -> None:
    key = TaskKey("etl", "run", "load")
    request = SubmissionRequest(key=key, claim=Claim("somebody", labels=key.labels(1)), rule=TaskRule())
    async with following(tenant, await gangs.submit(spec, request)) as gang:
        await gang.line("running")


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
async def test_log_and_command_say_the_same_reason(
    tenant: Tenant, situation: Situation, capsys: pytest.CaptureFixture[str]
) -> None:
    tenant.grant_everywhere(CAPACITY)
    async with GangService.connect(tenant.config) as gangs:
        if situation.before is not None:
            await run_gang_before(tenant, gangs, situation.before)
        with situation.arranged(tenant):
            submission = await submit_gang(gangs, situation.spec)
            async with following(tenant, submission) as gang:
                await asyncio.to_thread(partial(situation.then, tenant, submission))
                line = await gang.line(situation.reason)
                found, text = await why(tenant, submission, capsys)

    assert found["category"] == gang.categories[gang.lines.index(line)] == situation.category
    assert situation.reason in found["summary"]
    assert situation.reason in text
    assert situation.remedy in text
    assert tenant.forbidden_requests() == []


@pytest.mark.parametrize("bare_plane", [NONE], indirect=True)
async def test_gates_that_are_off_refuse_the_gang_and_leave_nothing(
    bare_tenant: Tenant, capsys: pytest.CaptureFixture[str]
) -> None:
    async with GangService.connect(bare_tenant.config) as gangs:
        with pytest.raises(GangUnsupported, match="does not serve the Workload API") as refused:
            await submit_gang(gangs, gang_spec(2, cpu="1"))
    assert "Volcano" in str(refused.value)
    options = ["--kubeconfig", str(bare_tenant.kubeconfig), "-n", bare_tenant.namespace]
    assert await asyncio.to_thread(main, ["why", "dag", "task", *options]) == 4
    assert "has no such gang" in capsys.readouterr().err
