"""What a native gang asks of the scheduler: to be preempted as a whole or not at all, to get nodes of one rack, and to
share a device.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import PODS
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.follow import FollowOptions, follow
from tests.cluster.control_plane import running_plane
from tests.cluster.controlplane.build import RELEASES
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant
from tests.timeouts import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.control_plane import ControlPlane

GATES = {
    "1.36": ("WorkloadAwarePreemption", "TopologyAwareWorkloadScheduling", "DRAWorkloadResourceClaims"),
    "1.37": ("TopologyAwareWorkloadScheduling", "DRAWorkloadResourceClaims"),
}
SINGLE = {"1.36": "Pod", "1.37": {"single": {}}}
"""The disruption mode of a group whose pods are preempted one by one, which is the default."""
RACK = "example.com/rack"
SLEEP = "import time; time.sleep(3000)"


@pytest.fixture(scope="module", params=RELEASES)
def aware_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose scheduler weighs groups and knows topologies, with two nodes of 4 CPUs in two racks."""
    release: str = request.param
    folder = tmp_path_factory.mktemp(f"aware-{release}-")
    with (
        running_plane(release, folder, more_gates=GATES[release]) as plane,
        NodePool.running(plane, nodes=2, cpu=4),
        plane.client() as admin,
    ):
        for number in range(2):
            labels = {"metadata": {"labels": {RACK: f"rack-{number}"}}}
            merge = {"Content-Type": "application/merge-patch+json"}
            admin.patch(f"/api/v1/nodes/node-{number}", json=labels, headers=merge).raise_for_status()
        yield plane


@pytest.fixture
def aware_tenant(aware_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    with Tenant.created(aware_plane, request.node.name) as tenant:
        yield tenant


@pytest.fixture
def urgent(aware_plane: ControlPlane) -> Iterator[str]:
    """The name of a priority class."""
    classes, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"urgent-{uuid.uuid4().hex[:6]}"
    with aware_plane.client() as admin:
        admin.post(classes, json={"metadata": {"name": name}, "value": 1000}).raise_for_status()
        yield name
        admin.delete(f"{classes}/{name}").raise_for_status()


async def start_two_single_pods(tenant: Tenant) -> None:
    """Start a pod of one CPU on each node."""
    with tenant.plane.client() as admin:
        for number in range(2):
            container = {"name": "main", "image": "python:3.12", "command": ["python", "-c", SLEEP]}
            container["resources"] = {"requests": {"cpu": "1"}}
            spec = {"containers": [container], "nodeName": f"node-{number}", "restartPolicy": "Never"}
            pod = {"metadata": {"name": f"single-{number}"}, "spec": spec}
            admin.post(f"/api/v1/namespaces/{tenant.namespace}/pods", json=pod).raise_for_status()


async def pods_become_older(tenant: Tenant) -> None:
    """Wait until each later pod starts later by the clock of seconds."""

    def is_older(pod: dict[str, Any]) -> bool:
        started = pod["status"].get("startTime") if pod["status"]["phase"] == "Running" else None
        return bool(started) and (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds() > 1

    with tenant.plane.client() as admin:
        path = f"/api/v1/namespaces/{tenant.namespace}/pods"
        await until(lambda: all(map(is_older, admin.get(path).json()["items"])), what="that all pods run")


async def start(gangs: GangService, tenant: Tenant, workers: int, cpu: str = "1", **parameters: Any) -> Submission:
    await pods_become_older(tenant)
    spec = gang_spec(workers, code=SLEEP, cpu=cpu, **parameters)
    submission = await submit_gang(gangs, spec, run=uuid.uuid4().hex)
    event = await follow(tenant.config, submission.ref, FollowOptions(until="running"))
    assert event.status is Status.RUNNING, event
    return submission


async def start_with_single_mode(gangs: GangService, tenant: Tenant, workers: int) -> Submission:
    """Start a gang whose group differs from those of the provider in its disruption mode only."""
    version, name = {"1.36": "v1alpha2", "1.37": "v1beta1"}[tenant.plane.release], f"of-{workers}"
    path = f"/apis/scheduling.k8s.io/{version}/namespaces/{tenant.namespace}/podgroups"
    policy = {"gang": {"minCount": workers}}
    spec = {"schedulingPolicy": policy, "disruptionMode": SINGLE[tenant.plane.release]}
    with tenant.plane.client() as admin:
        admin.post(path, json={"metadata": {"name": name}, "spec": spec}).raise_for_status()
    overrides = {"spec": {"schedulingGroup": {"podGroupName": name}}}
    submission = await start(gangs, tenant, workers, pod_overrides=overrides)
    assert submission.decision == "brought"
    return submission


async def preempts(gangs: GangService, tenant: Tenant, urgent: str, lost: Submission, kept: Submission) -> bool:
    """Start a gang of higher priority that needs half of each node, and return whether these gangs are lost and kept.

    The single pods are the least important ones to the scheduler.
    """
    high = await start(gangs, tenant, 2, cpu="2", priority_class=urgent)
    event = await follow_gang(tenant, lost)
    assert (event.status, event.reason) == (Status.FAILED, "Preempted"), event
    pods = await gangs.client.list(PODS, tenant.namespace, field_selector="status.phase=Running")
    live = {pod["metadata"].get("labels", {}).get("gangjobs.airflow/gang") for pod in pods}
    return live == {high.ref.name, kept.ref.name}


async def test_small_gang_is_preempted_before_a_large_one(aware_tenant: Tenant, urgent: str) -> None:
    """A gang is weighed as one, although the pods of the large gang are younger."""
    await start_two_single_pods(aware_tenant)
    async with GangService.connect(aware_tenant.config) as gangs:
        small, large = await start(gangs, aware_tenant, 2), await start(gangs, aware_tenant, 4)
        assert await preempts(gangs, aware_tenant, urgent, lost=small, kept=large)


async def test_large_gang_whose_pods_count_one_by_one_is_the_victim_instead(aware_tenant: Tenant, urgent: str) -> None:
    """The same without the mode: two of its four pods are the youngest, so the large gang is lost."""
    await start_two_single_pods(aware_tenant)
    async with GangService.connect(aware_tenant.config) as gangs:
        small, large = [await start_with_single_mode(gangs, aware_tenant, workers) for workers in (2, 4)]
        assert await preempts(gangs, aware_tenant, urgent, lost=large, kept=small)


async def test_all_pods_of_a_gang_get_nodes_of_one_rack(aware_tenant: Tenant) -> None:
    async with GangService.connect(aware_tenant.config) as gangs:
        spec = gang_spec(3, code="print('done')", topology=f"required:{RACK}")
        submission = await submit_gang(gangs, spec)
        event = await follow_gang(aware_tenant, submission)
    assert event.status is Status.SUCCEEDED, event
    assert len({rank.node for rank in event.ranks}) == 1


async def test_gang_that_no_rack_has_room_for_waits(aware_tenant: Tenant) -> None:
    async with GangService.connect(aware_tenant.config) as gangs:
        spec = gang_spec(5, code=SLEEP, topology=f"required:{RACK}")
        submission = await submit_gang(gangs, spec)
        event = await follow_gang(aware_tenant, submission, Deadlines(assemble_s=10))
    assert (event.status, event.counts["placed"]) == (Status.TIMEOUT, 0), event


async def test_topology_is_refused_where_its_feature_gate_is_off(tenant: Tenant) -> None:
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(InvalidGangSpec, match="its gate TopologyAwareWorkloadScheduling is off"):
            await submit_gang(gangs, gang_spec(3, topology=f"required:{RACK}"))
        assert await gangs.client.list(PODS, tenant.namespace) == []


@pytest.fixture
def device(aware_tenant: Tenant) -> str:
    """The name of a ResourceClaimTemplate for the only device of its class, which is published as a driver does."""
    name = aware_tenant.namespace
    resources, driver = "/apis/resource.k8s.io/v1", f"{name}.example.com"
    template = {"spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": name}}]}}}
    published = {
        "driver": driver,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "allNodes": True,
        "devices": [{"name": "only"}],
    }
    objects = {
        f"{resources}/deviceclasses": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        f"{resources}/resourceslices": published,
        f"{resources}/namespaces/{name}/resourceclaimtemplates": template,
    }
    with aware_tenant.plane.client() as admin:
        for path, spec in objects.items():
            admin.post(path, json={"metadata": {"name": name}, "spec": spec}).raise_for_status()
    return name


def claims_of(tenant: Tenant) -> list[dict[str, Any]]:
    with tenant.plane.client() as admin:
        path = f"/apis/resource.k8s.io/v1/namespaces/{tenant.namespace}/resourceclaims"
        found: list[dict[str, Any]] = admin.get(path).json()["items"]
        return found


async def test_all_pods_of_a_gang_share_one_device_which_is_free_after_them(aware_tenant: Tenant, device: str) -> None:
    claim = {"name": "device", "resourceClaimTemplateName": device}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"scheduling": {"resourceClaims": [claim]}}}
    async with GangService.connect(aware_tenant.config) as gangs:
        overrides = {"spec": {"resourceClaims": [claim]}}
        submission = await start(gangs, aware_tenant, 3, manifest=manifest, pod_overrides=overrides)
        (shared,) = claims_of(aware_tenant)
        assert [user["resource"] for user in shared["status"]["reservedFor"]] == ["podgroups"]
        await gangs.delete(submission.ref)
        await until(lambda: not claims_of(aware_tenant), what="that the claim of the gang is deleted")


async def test_pods_that_claim_the_device_one_by_one_wait_for_it(aware_tenant: Tenant, device: str) -> None:
    """The same without the claim of the group: each pod has a claim, and there is one device."""
    overrides = {"spec": {"resourceClaims": [{"name": "device", "resourceClaimTemplateName": device}]}}
    async with GangService.connect(aware_tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, code=SLEEP, pod_overrides=overrides))
        event = await follow_gang(aware_tenant, submission, Deadlines(assemble_s=10))
    assert (event.status, event.counts["placed"]) == (Status.TIMEOUT, 0), event


async def test_shared_claims_are_refused_where_their_feature_gate_is_off(tenant: Tenant) -> None:
    claim = {"name": "device", "resourceClaimTemplateName": "device"}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"scheduling": {"resourceClaims": [claim]}}}
    spec = gang_spec(3, manifest=manifest, pod_overrides={"spec": {"resourceClaims": [claim]}})
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(InvalidGangSpec, match="its gate DRAWorkloadResourceClaims is off"):
            await submit_gang(gangs, spec)
        assert await gangs.client.list(PODS, tenant.namespace) == []
