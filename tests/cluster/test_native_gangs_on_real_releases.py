"""What a native gang asks of the scheduler: to be preempted as a whole or not at all, and to get nodes of one rack."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.resources import PODS
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.schedulers.workload_api import find_dialect
from airflow_provider_gangjobs.gang.state.deadlines import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.service import GangService
from airflow_provider_gangjobs.tracking.follow import follow
from tests.cluster.control_plane import running_plane
from tests.cluster.controlplane.build import RELEASES
from tests.cluster.gangs import follow_gang, gang_spec, submit_gang
from tests.cluster.node_pool import NodePool
from tests.cluster.tenant import Tenant
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_gangjobs.submission.submission import Submission
    from tests.cluster.control_plane import ControlPlane

GATES = {
    "1.36": ("WorkloadAwarePreemption", "TopologyAwareWorkloadScheduling"),
    "1.37": ("TopologyAwareWorkloadScheduling",),
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


def start_two_single_pods(tenant: Tenant) -> None:
    """Start a pod of 2 CPUs on each node, and wait until any later pod has started later by the clock of seconds."""
    pods = f"/api/v1/namespaces/{tenant.namespace}/pods"
    with tenant.plane.client() as admin:
        for number in range(2):
            container = {"name": "main", "image": "python:3.12", "command": ["python", "-c", SLEEP]}
            container["resources"] = {"requests": {"cpu": "2"}}
            spec = {"containers": [container], "nodeName": f"node-{number}", "restartPolicy": "Never"}
            admin.post(pods, json={"metadata": {"name": f"single-{number}"}, "spec": spec}).raise_for_status()
        give_up_at = time.monotonic() + TIMEOUT_S
        while not all(is_earlier(pod) for pod in admin.get(pods).json()["items"]):
            assert time.monotonic() < give_up_at
            time.sleep(0.2)


def is_earlier(pod: dict[str, Any]) -> bool:
    started = pod["status"].get("startTime")
    return bool(started) and (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds() > 1


async def start(gangs: GangService, tenant: Tenant, **parameters: Any) -> Submission:
    submission = await submit_gang(gangs, gang_spec(2, code=SLEEP, cpu="2", **parameters), run=uuid.uuid4().hex)
    event = await follow(tenant.config, submission.ref, until="running", report=lambda _: None)
    assert event.status is Status.RUNNING, event
    return submission


def create_group_of_single_disruptions(tenant: Tenant, name: str) -> None:
    """Create a PodGroup that differs from those of the provider in its disruption mode only."""
    dialect = find_dialect({"1.36": "v1alpha2", "1.37": "v1beta1"}[tenant.plane.release])
    assert dialect is not None
    path = f"/apis/scheduling.k8s.io/{dialect.version}/namespaces/{tenant.namespace}/podgroups"
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": SINGLE[tenant.plane.release]}
    with tenant.plane.client() as admin:
        admin.post(path, json={"metadata": {"name": name}, "spec": spec}).raise_for_status()


async def living(gangs: GangService, tenant: Tenant) -> set[str]:
    """Return the single pods, and the gangs, that are not being deleted and have not ended."""
    pods = await gangs.client.list(PODS, tenant.namespace)
    live = (pod["metadata"] for pod in pods if pod["status"]["phase"] == "Running")
    return {
        meta["labels"]["gangjobs.airflow/gang"] if "labels" in meta else meta["name"]
        for meta in live
        if "deletionTimestamp" not in meta
    }


async def test_gang_is_preempted_as_a_whole_and_single_pods_go_first(aware_tenant: Tenant, urgent: str) -> None:
    tenant = aware_tenant
    start_two_single_pods(tenant)
    async with GangService.connect(tenant.config) as gangs:
        low = await start(gangs, tenant)
        high = await start(gangs, tenant, priority_class=urgent)
        assert await living(gangs, tenant) == {low.ref.name, high.ref.name}


async def test_gang_whose_pods_count_one_by_one_is_the_victim_instead(aware_tenant: Tenant, urgent: str) -> None:
    """The same without the mode: its pods are younger than the single pods, so the gang is lost."""
    tenant = aware_tenant
    start_two_single_pods(tenant)
    create_group_of_single_disruptions(tenant, "mine")
    async with GangService.connect(tenant.config) as gangs:
        link = {"spec": {"schedulingGroup": {"podGroupName": "mine"}}}
        low = await start(gangs, tenant, pod_overrides=link)
        high = await start(gangs, tenant, priority_class=urgent)
        assert low.decision == "brought"
        assert await living(gangs, tenant) == {"single-0", "single-1", high.ref.name}


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
