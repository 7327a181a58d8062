"""Gangs on a cluster without the Workload API, in queues of the real Kueue manager whose flavors have a Topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.exceptions import GangUnsupported, InvalidGangSpec
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.service import GangService
from tests.cluster.gangs import gang_spec, submit_gang
from tests.queues.following import following, pods_of, until
from tests.queues.tenants import kueue_tenant
from tests.replies import accepted

if TYPE_CHECKING:
    from tests.cluster.tenant import Tenant
    from tests.queues.kueue.manager import Kueue

HOSTNAME = "kubernetes.io/hostname"
OS = "kubernetes.io/os"
FOREIGN = {"of": "somebody-else"}
AWAY_FROM_FOREIGN = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": FOREIGN}, "topologyKey": HOSTNAME}
        ]
    }
}
BARE = pytest.mark.clusters("bare_kueue")


def create_topology_queue(kueue: Kueue, namespace: str, *levels: str) -> None:
    """A queue with plenty of quota, whose flavor chooses nodes by these labels."""
    topology = {"metadata": {"name": namespace}, "spec": {"levels": [{"nodeLabel": level} for level in levels]}}
    kueue.create("topologies", topology)
    kueue.create_queue(namespace, cpu="100", flavor={"nodeLabels": {OS: "linux"}, "topologyName": namespace})


@BARE
async def test_required_gang_runs_where_the_queue_has_a_topology(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(queue_name="team"))
        async with following(tenant, submission) as gang:
            event = await gang.event()
    assert (submission.decision, event.status) == ("gang:kueue", Status.SUCCEEDED), event
    assert tenant.forbidden_requests() == []


async def test_topology_of_a_queue_comes_before_the_workload_api(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    kueue.create_queue(tenant.namespace, name="quota")
    async with GangService.connect(tenant.config) as gangs:
        by_kueue = await submit_gang(gangs, gang_spec(queue_name="team"), "kueue")
        native = await submit_gang(gangs, gang_spec(queue_name="team", gang_scheduler="native"), "native")
        counted = await submit_gang(gangs, gang_spec(queue_name="quota"), "counted")
        for submission in (by_kueue, native, counted):
            async with following(tenant, submission) as gang:
                assert (await gang.event()).status is Status.SUCCEEDED
    assert by_kueue.decision == "gang:kueue"
    assert native.decision == counted.decision != by_kueue.decision
    assert tenant.forbidden_requests() == []


@BARE
async def test_gang_that_fits_the_sum_and_not_the_nodes_gets_no_pod(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    async with GangService.connect(tenant.config) as gangs:
        submission = await submit_gang(gangs, gang_spec(3, cpu="2500m", queue_name="team"))
        async with following(tenant, submission, Deadlines(queue_s=5)) as gang:
            event = await gang.event()
    assert event.status is Status.TIMEOUT
    assert "allows to fit only 2 out of 3 pod(s)" in event.message
    assert pods_of(tenant) == []


@BARE
async def test_one_topology_domain_can_be_required(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, OS, HOSTNAME)
    async with GangService.connect(tenant.config) as gangs:
        spec = gang_spec(3, cpu="2", queue_name="team", topology=f"required:{HOSTNAME}")
        submission = await submit_gang(gangs, spec)
        async with following(tenant, submission) as gang:
            await gang.line("allows to fit only 2 out of 3 pod(s)")


async def test_level_that_no_topology_of_the_queue_has_is_refused(kueue: Kueue, tenant: Tenant) -> None:
    create_topology_queue(kueue, tenant.namespace, OS, HOSTNAME)
    kueue.create_queue(tenant.namespace, name="quota")
    remedies = {"team": f"Name one of {OS}, {HOSTNAME}", "quota": "Name a queue whose flavors have a Topology"}
    async with GangService.connect(tenant.config) as gangs:
        for queue, remedy in remedies.items():
            for mode in ("required", "preferred"):
                with pytest.raises(
                    InvalidGangSpec, match=f"rack is a level of no Topology of queue {queue}"
                ) as refused:
                    await submit_gang(gangs, gang_spec(queue_name=queue, topology=f"{mode}:rack", gang="preferred"))
                assert remedy in str(refused.value)
        assert await gangs.client.list(JOBS, tenant.namespace) == []
    assert tenant.forbidden_requests() == []


async def test_level_that_no_topology_has_is_a_refusal_of_the_queue_where_topologies_cannot_be_read(
    kueue: Kueue,
) -> None:
    with kueue_tenant(kueue.plane, "no cluster role", cluster_role=False) as tenant:
        create_topology_queue(kueue, tenant.namespace, OS, HOSTNAME)
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, gang_spec(queue_name="team", topology="required:rack"))
            async with following(tenant, submission, Deadlines(queue_s=5)) as gang:
                event = await gang.event()
    assert (event.status, event.reason) == (Status.TIMEOUT, "Deadline.queued")
    assert "cannot admit the gang" in event.message
    assert event.remedy.startswith("Correct topology")


@BARE
async def test_topology_that_does_not_exist_is_named(kueue: Kueue, tenant: Tenant) -> None:
    flavor = {"nodeLabels": {OS: "linux"}, "topologyName": "nosuch"}
    kueue.create_queue(tenant.namespace, flavor=flavor, is_complete=False)
    async with GangService.connect(tenant.config) as gangs:
        with pytest.raises(
            GangUnsupported, match=r"Topology nosuch of flavor .* of Kueue queue team does not"
        ) as refused:
            await submit_gang(gangs, gang_spec(queue_name="team"))
    assert refused.value.remedy == "Ask the administrator of Kueue to create this object, or name another queue"
    assert tenant.forbidden_requests() == []


@BARE
async def test_gang_is_bound_in_part_while_a_pod_of_somebody_else_keeps_it_from_a_node(
    kueue: Kueue, tenant: Tenant
) -> None:
    """Kueue chooses the nodes at the admission and pins the pods. Only the scheduler sees what keeps a pod away."""
    create_topology_queue(kueue, tenant.namespace, HOSTNAME)
    with tenant.plane.client() as admin:
        pods = f"/api/v1/namespaces/{tenant.namespace}/pods"
        node = accepted(admin.get("/api/v1/nodes"))["items"][0]["metadata"]["name"]
        container = {"name": "main", "image": "python:3.12", "command": ["sleep", "3000"]}
        foreign = {
            "metadata": {"name": "foreign", "labels": FOREIGN},
            "spec": {"nodeName": node, "containers": [container]},
        }
        accepted(admin.post(pods, json=foreign))
        async with GangService.connect(tenant.config) as gangs:
            submission = await submit_gang(gangs, gang_spec(2, cpu="3", queue_name="team", affinity=AWAY_FROM_FOREIGN))
            async with following(tenant, submission) as gang:
                await gang.line("anti-affinity rules on 1 of 2 nodes")
                own = lambda: [pod["spec"].get("nodeName", "") for pod in pods_of(tenant, submission)]  # noqa: E731
                await until(
                    lambda: sorted(map(bool, own())) == [False, True], lambda: f"the nodes of the pods: {own()}"
                )
                assert node not in own()
                accepted(admin.delete(f"{pods}/foreign", params={"gracePeriodSeconds": "0"}))
                assert (await gang.event()).status is Status.SUCCEEDED
    assert not [line for line in gang.lines if "Scheduling is blocked" in line]


QUOTA_ONLY = "its flavor .* has no Topology, so a gang may be placed in part"


@BARE
async def test_required_gang_is_refused_in_a_queue_that_counts_a_quota_only(kueue: Kueue, tenant: Tenant) -> None:
    kueue.create_queue(tenant.namespace)
    async with GangService.connect(tenant.config) as gangs:
        for spec in (gang_spec(queue_name="team"), gang_spec(queue_name="team", gang_scheduler="kueue")):
            with pytest.raises(GangUnsupported, match=QUOTA_ONLY):
                await submit_gang(gangs, spec)
        assert await gangs.client.list(JOBS, tenant.namespace) == []
        submission = await submit_gang(gangs, gang_spec(queue_name="team", gang="preferred"))
        async with following(tenant, submission) as gang:
            assert (await gang.event()).status is Status.SUCCEEDED
    assert submission.decision.startswith("basic:")


@BARE
async def test_required_gang_is_refused_where_the_topology_cannot_be_read(kueue: Kueue) -> None:
    with kueue_tenant(kueue.plane, "no cluster role", cluster_role=False) as tenant:
        create_topology_queue(kueue, tenant.namespace, HOSTNAME)
        async with GangService.connect(tenant.config) as gangs:
            with pytest.raises(GangUnsupported, match="unknown whether Kueue queue team keeps gangs") as refused:
                await submit_gang(gangs, gang_spec(queue_name="team"))
    assert "ClusterRole" in refused.value.remedy
