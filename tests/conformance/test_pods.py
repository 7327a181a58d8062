"""Pods: defaults, rules, status, binding, eviction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.api_server import STRATEGIC, ApiServer, invalid_fields, refused
from tests.conformance.builders import CONTAINER, pod


async def test_new_pod_is_pending(server: ApiServer) -> None:
    created = await server.create(server.core("pods"), pod() | {"status": {"phase": "Running"}})
    assert (created["status"]["phase"], created["metadata"]["generation"]) == ("Pending", 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("enableServiceLinks", True),
        ("priority", 0),
        ("preemptionPolicy", "PreemptLowerPriority"),
    ],
)
async def test_pod_default(server: ApiServer, field: str, value: Any) -> None:
    assert (await server.create(server.core("pods"), pod()))["spec"][field] == value


@pytest.mark.parametrize(
    ("container", "field", "value"),
    [
        ({}, "terminationMessagePath", "/dev/termination-log"),
        ({}, "terminationMessagePolicy", "File"),
        ({"image": "a"}, "imagePullPolicy", "Always"),
        ({"image": "a:latest"}, "imagePullPolicy", "Always"),
        ({"image": "a:1"}, "imagePullPolicy", "IfNotPresent"),
        ({"image": "host:5000/a"}, "imagePullPolicy", "Always"),
        ({"resources": {"limits": {"cpu": "1"}}}, "resources", {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
    ],
    ids=str,
)
async def test_container_default(server: ApiServer, container: Any, field: str, value: Any) -> None:
    created = await server.create(server.core("pods"), pod(container=container))
    assert created["spec"]["containers"][0][field] == value


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"example.org/gpu": "1"}}, "BestEffort"),
    ],
    ids=str,
)
async def test_quality_of_service(server: ApiServer, resources: Any, qos: str) -> None:
    created = await server.create(server.core("pods"), pod(container={"resources": resources}))
    assert created["status"]["qosClass"] == qos


TWO_SOURCES = {"name": "A", "value": "v", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
ABOVE_LIMIT = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
INVALID_CONTAINERS = {
    "container name": ({"name": "Upper"}, "name"),
    "no image": ({"image": ""}, "image"),
    "no variable name": ({"env": [{"name": ""}]}, "env[0].name"),
    "variable name": ({"env": [{"name": "A=B"}]}, "env[0].name"),
    "two sources": ({"env": [TWO_SOURCES]}, "env[0].valueFrom"),
    "unknown volume": ({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}, "volumeMounts[0].name"),
    "request above limit": ({"resources": ABOVE_LIMIT}, "resources.requests"),
    "extended resource without a limit": ({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, "resources.limits"),
    "resource without a domain": ({"resources": {"requests": {"gpu": "1"}}}, "resources.requests[gpu]"),
    "message policy": ({"terminationMessagePolicy": "x"}, "terminationMessagePolicy"),
}
SAME_VOLUMES = [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]
INVALID_PODS = {
    "no container": (pod(containers=[]), "spec.containers"),
    "same name twice": (pod(containers=[CONTAINER, CONTAINER]), "spec.containers[1].name"),
    "same volume twice": (pod(volumes=SAME_VOLUMES), "spec.volumes[1].name"),
    "restart policy": (pod(restartPolicy="Sometimes"), "spec.restartPolicy"),
    "deadline": (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
} | {
    name: (pod(container=container), f"spec.containers[0].{field}")
    for name, (container, field) in INVALID_CONTAINERS.items()
}


@pytest.mark.parametrize(("obj", "field"), INVALID_PODS.values(), ids=INVALID_PODS)
async def test_invalid_pod_is_refused(server: ApiServer, obj: dict[str, Any], field: str) -> None:
    assert field in invalid_fields(await server.http.post(server.core("pods"), json=obj))


async def test_unknown_priority_class_is_forbidden(server: ApiServer) -> None:
    response = await server.http.post(server.core("pods"), json=pod(priorityClassName="none"))
    assert "no PriorityClass with name none was found" in refused(response, 403, "Forbidden")["message"]


async def test_priority_comes_from_the_class(server: ApiServer) -> None:
    created = await server.create(server.core("pods"), pod(priorityClassName="system-node-critical"))
    assert created["spec"]["priority"] == 2000001000


async def test_image_may_change(server: ApiServer, stored_pod: str) -> None:
    patch = {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}
    patched = await server.patch(stored_pod, patch, STRATEGIC)
    assert patched["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]},
        {"nodeName": "n1"},
        {"restartPolicy": "Never"},
    ],
    ids=["env", "node", "restart policy"],
)
async def test_most_of_a_pod_may_not_change(server: ApiServer, stored_pod: str, change: dict[str, Any]) -> None:
    assert invalid_fields(await server.send_patch(stored_pod, {"spec": change}, STRATEGIC)) == ["spec"]


async def test_main_endpoint_ignores_the_status(server: ApiServer, stored_pod: str) -> None:
    change = {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}}
    patched = await server.patch(stored_pod, change)
    assert (patched["metadata"]["labels"], patched["status"]["phase"]) == ({"x": "y"}, "Pending")


async def test_status_endpoint_ignores_the_spec(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    change = {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    patched = await server.patch(server.core("pods", "a", "status"), change)
    assert ("nodeName" in patched["spec"], patched["status"]["phase"]) == (False, "Running")


async def test_conditions_merge_by_type(server: ApiServer, stored_pod: str) -> None:
    path = server.core("pods", "a", "status")
    for name, status in (("Ready", "True"), ("Initialized", "True"), ("Ready", "False")):
        await server.patch(path, {"status": {"conditions": [{"type": name, "status": status}]}}, STRATEGIC)
    conditions = {c["type"]: c["status"] for c in (await server.get(stored_pod))["status"]["conditions"]}
    assert conditions == {"Ready": "False", "Initialized": "True"}


def binding(name: str, node: str | None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "target": {"kind": "Node", "name": node} if node else {}}


async def test_binding_gives_a_pod_its_node_once(server: ApiServer, stored_pod: str) -> None:
    response = await server.http.post(server.core("pods", "a", "binding"), json=binding("a", "n1"))
    assert response.status_code == 201
    assert (await server.get(stored_pod))["spec"]["nodeName"] == "n1"
    again = await server.http.post(server.core("pods", "a", "binding"), json=binding("a", "n2"))
    assert 'is already assigned to node "n1"' in refused(again, 409, "Conflict")["message"]


async def test_binding_sets_the_condition_pod_scheduled(server: ApiServer, stored_pod: str) -> None:
    await server.http.post(server.core("pods", "a", "binding"), json=binding("a", "n1"))
    conditions = (await server.get(stored_pod))["status"]["conditions"]
    assert [(c["type"], c["status"]) for c in conditions] == [("PodScheduled", "True")]


async def test_binding_of_another_name_is_a_bad_request(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    response = await server.http.post(server.core("pods", "a", "binding"), json=binding("b", "n1"))
    refused(response, 400, "BadRequest")


async def test_deleted_pod_is_not_bound(server: ApiServer) -> None:
    obj = pod()
    obj["metadata"]["finalizers"] = ["example.org/hold"]
    await server.create(server.core("pods"), obj)
    await server.delete(server.core("pods", "a"))
    response = await server.http.post(server.core("pods", "a", "binding"), json=binding("a", "n1"))
    refused(response, 409, "Conflict")
    await server.patch(server.core("pods", "a"), {"metadata": {"finalizers": None}})


async def test_eviction_sets_the_reason_and_deletes(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod(nodeName="n1"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    response = await server.http.post(server.core("pods", "a", "eviction"), json=eviction)
    assert response.status_code == 201
    evicted = await server.get(server.core("pods", "a"))
    reasons = {c["type"]: c["reason"] for c in evicted["status"]["conditions"] if "reason" in c}
    assert reasons["DisruptionTarget"] == "EvictionByEvictionAPI"
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 30
    await server.delete(server.core("pods", "a"), gracePeriodSeconds=0)


async def test_eviction_marks_also_a_pod_that_has_ended(server: ApiServer) -> None:
    held = pod(nodeName="n1")
    held["metadata"]["finalizers"] = ["example.org/held"]
    await server.create(server.core("pods"), held)
    await server.patch(server.core("pods", "a", "status"), {"status": {"phase": "Failed"}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    await server.http.post(server.core("pods", "a", "eviction"), json=eviction)
    evicted = await server.get(server.core("pods", "a"))
    assert "EvictionByEvictionAPI" in {c.get("reason") for c in evicted["status"]["conditions"]}
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 0
    await server.patch(server.core("pods", "a"), {"metadata": {"finalizers": None}})


async def test_gated_pod_has_a_condition(server: ApiServer) -> None:
    created = await server.create(server.core("pods"), pod(schedulingGates=[{"name": "example.org/gate"}]))
    assert [(c["type"], c["reason"]) for c in created["status"]["conditions"]] == [("PodScheduled", "SchedulingGated")]


async def test_log_of_a_pod_without_a_node_is_empty(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    response = await server.http.get(server.core("pods", "a", "log"))
    assert (response.status_code, response.content) == (204, b"")


async def test_log_needs_the_name_of_one_of_several_containers(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod(containers=[CONTAINER, {"name": "side", "image": "x"}]))
    response = await server.http.get(server.core("pods", "a", "log"))
    message = refused(response, 400, "BadRequest")["message"]
    assert message == "a container name must be specified for pod a, choose one of: [main side]"


async def test_log_of_an_unknown_container_is_a_bad_request(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    response = await server.http.get(server.core("pods", "a", "log"), params={"container": "none"})
    assert "container none is not valid for pod a" in refused(response, 400, "BadRequest")["message"]


async def test_log_options_are_checked(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod(nodeName="n1"))
    response = await server.http.get(server.core("pods", "a", "log"), params={"limitBytes": "0"})
    assert invalid_fields(response) == ["limitBytes"]


async def test_log_of_a_missing_pod_is_not_found(server: ApiServer) -> None:
    refused(await server.http.get(server.core("pods", "none", "log")), 404, "NotFound")
