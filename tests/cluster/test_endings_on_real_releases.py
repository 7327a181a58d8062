"""Every way in which pods can end, on real control planes, under the documented Role.

The scenarios of a release are played all at once, each in a namespace and on nodes of its own, since some wait a minute
for a controller. Then each has its test.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.informer import informers
from airflow_provider_gangjobs.gang.outcome.outcomes import OutcomeKind
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.resources import NAMESPACES, PODS, Resource
from tests.cluster.tenant import Tenant
from tests.endings.fake_kubelets import FakeKubelets
from tests.endings.gang_under_test import GangUnderTest
from tests.endings.scenario_runner import outcomes_by_rank, play
from tests.endings.scenarios import ROLE_SCENARIOS, SCENARIOS
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractContextManager

    from tests.cluster.control_plane import ControlPlane
    from tests.endings.scenarios import Scenario

ALL_ON = "1.36"
"""The other releases leave out the scenarios that take a minute."""


WITH_ROLES = ", with roles"
"""The end of the name of a scenario that is played with a gang in which each rank has a role of its own."""
ROLE_NAMES = [f"{name}{WITH_ROLES}" for name in ROLE_SCENARIOS]
NAMES = [*SCENARIOS, *ROLE_NAMES]


def chosen(release: str) -> list[str]:
    return [name for name in NAMES if release == ALL_ON or not SCENARIOS[name.removesuffix(WITH_ROLES)].is_slow]


@pytest.fixture(scope="module")
def played(plane: ControlPlane) -> Mapping[str, BaseException | None]:
    """The error of each scenario, or None."""
    return asyncio.run(play_all(plane, chosen(plane.release)))


@asynccontextmanager
async def hollow_nodes(plane: ControlPlane) -> AsyncIterator[FakeKubelets]:
    """Run fake kubelets while the block runs, and close all informers at its end."""
    config = ClusterConfig.from_extras("admin", {"kube_config_path": str(plane.folder / "admin.kubeconfig")})
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(config))
        stack.push_async_callback(informers().aclose)
        kubelets = FakeKubelets(admin)
        await stack.enter_async_context(kubelets.playing())
        yield kubelets


async def play_all(
    plane: ControlPlane,
    names: list[str],
    *,
    scenarios: Mapping[str, Scenario] = SCENARIOS,
    tenant_of: Callable[[str], AbstractContextManager[Tenant]] | None = None,
    **defaults: Any,
) -> dict[str, BaseException | None]:
    """Run the scenarios at the same time. Return the error of each scenario, or None.

    :param names: Names of scenarios, some of which may end with `WITH_ROLES`.
    :param tenant_of: Makes the namespace of a scenario of this name. By default it has the rights of `rbac.yaml`.
    :param defaults: Parameters of the gangs, where the scenario does not set them.
    """
    tenant_of = tenant_of or partial(Tenant.created, plane)
    async with AsyncExitStack() as stack:
        kubelets = await stack.enter_async_context(hollow_nodes(plane))
        tenants = {name: stack.enter_context(tenant_of(name)) for name in names}

        async def one(name: str) -> None:
            scenario, tenant = scenarios[name.removesuffix(WITH_ROLES)], tenants[name]
            gang = GangUnderTest.begun(
                kubelets.admin,
                tenant.config,
                tenant.namespace,
                kubelets,
                nodes=scenario.nodes,
                has_roles=name.endswith(WITH_ROLES),
                **defaults | dict(scenario.spec),
            )
            async with gang as begun:
                await play(begun, scenario)
            assert tenant.forbidden_requests() == []

        ends = await asyncio.gather(*map(one, names), return_exceptions=True)
    return dict(zip(names, ends, strict=True))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_each_pod_has_its_outcome_and_the_verdict_is_the_jobs(
    name: str, plane: ControlPlane, played: Mapping[str, BaseException | None]
) -> None:
    if name not in played:
        pytest.skip(f"takes a minute, and is played on {ALL_ON}")
    if error := played[name]:
        raise error


async def test_deletion_of_a_namespace_waits_until_all_outcomes_are_recorded(
    plane: ControlPlane, tenant: Tenant
) -> None:
    """The pods are deleted first (OrderedNamespaceDeletion), so the Role exists until their finalizers are removed."""
    async with hollow_nodes(plane) as kubelets:
        admin = kubelets.admin
        async with GangUnderTest.begun(admin, tenant.config, tenant.namespace, kubelets) as gang:
            following = asyncio.create_task(gang.follow())
            await gang.running()
            await admin.delete(NAMESPACES, tenant.namespace)
            event = await following
            assert event.status in {Status.FAILED, Status.DELETED}
            assert outcomes_by_rank(event) == {0: (OutcomeKind.DELETED,), 1: (OutcomeKind.DELETED,)}

            async def is_gone() -> bool:
                return tenant.namespace not in {one["metadata"]["name"] for one in await admin.list(NAMESPACES)}

            await gang.until(is_gone)


INJECTION = {
    "failurePolicy": "Fail",
    "reinvocationPolicy": "Never",
    "matchConstraints": {
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
        ]
    },
    "mutations": [
        {
            "patchType": "JSONPatch",
            "jsonPatch": {
                "expression": '[JSONPatch{op: "add", path: "/spec/containers/0", value: '
                'Object.spec.containers{name: "istio-proxy", image: "proxy:1"}}]'
            },
        }
    ],
}
"""Inserts a container before the container of the rank, as a webhook of a service mesh does."""


@asynccontextmanager
async def injecting(admin: Client, namespace: str) -> AsyncIterator[None]:
    """Let the API server inject a container into the pods of a namespace, and wait until it does."""
    kind = "MutatingAdmissionPolicy"
    policies = Resource("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", kind, namespaced=False)
    bindings = Resource(policies.group, "v1", "mutatingadmissionpolicybindings", f"{kind}Binding", namespaced=False)
    meta = {"apiVersion": f"{policies.group}/v1", "metadata": {"name": namespace}}
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    await admin.create(policies, {**meta, "kind": policies.kind, "spec": INJECTION})
    spec = {"policyName": namespace, "matchResources": selector}
    await admin.create(bindings, {**meta, "kind": bindings.kind, "spec": spec})
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if await _is_injected(admin, namespace):
                    break
                await asyncio.sleep(0.2)
        yield
    finally:
        await admin.delete(bindings, namespace)
        await admin.delete(policies, namespace)


async def _is_injected(admin: Client, namespace: str) -> bool:
    container = {"name": "main", "image": "trainer:1"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    stored = await admin.create(PODS, body, namespace)
    await admin.delete(PODS, "probe", namespace, grace_period_s=0)
    return len(stored["spec"]["containers"]) > 1


@pytest.mark.parametrize("name", [name for name in NAMES if "sidecar" in name])
async def test_injected_container_does_not_keep_a_gang_running(name: str, plane: ControlPlane, tenant: Tenant) -> None:
    """The gang ends as its main containers did, although the Job controller never sees a pod end by itself."""
    if plane.release < "1.36":
        pytest.skip("the API server has no MutatingAdmissionPolicy")
    scenario = SCENARIOS[name.removesuffix(WITH_ROLES)]
    has_roles = name.endswith(WITH_ROLES)
    async with hollow_nodes(plane) as kubelets, injecting(kubelets.admin, tenant.namespace):
        begun = GangUnderTest.begun(
            kubelets.admin, tenant.config, tenant.namespace, kubelets, nodes=scenario.nodes, has_roles=has_roles
        )
        async with begun as gang:
            await play(gang, scenario)
            pods = [change.obj for change in (await gang.record()).of("pods") if change.gang == gang.ref.name]
            assert {pod["spec"]["containers"][0]["name"] for pod in pods} == {"istio-proxy"}
        assert tenant.forbidden_requests() == []
