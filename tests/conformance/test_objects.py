"""Create, read and replace objects: the fields that the server sets, and the requests that it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from gangjobs_sandbox.api import protobuf
from tests.conformance.api_server import ApiServer, invalid_fields, refused
from tests.conformance.builders import config_map, job, pod
from tests.replies import accepted


async def test_created_object_gets_its_identity(server: ApiServer) -> None:
    response = await server.http.post(server.core("configmaps"), json=config_map(k="v"))
    assert response.status_code == 201
    metadata = response.json()["metadata"]
    assert metadata["namespace"] == server.namespace
    assert metadata["uid"]
    assert metadata["resourceVersion"].isdecimal()
    assert metadata["creationTimestamp"].endswith("Z")


async def test_created_object_can_be_read(server: ApiServer) -> None:
    created = await server.create(server.core("configmaps"), config_map(k="v"))
    assert await server.get(server.core("configmaps", "a")) == created


async def test_second_object_of_a_name_already_exists(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map())
    status = refused(await server.http.post(server.core("configmaps"), json=config_map()), 409, "AlreadyExists")
    assert status["message"] == 'configmaps "a" already exists'
    assert status["details"] == {"name": "a", "kind": "configmaps"}


async def test_missing_object_is_not_found(server: ApiServer) -> None:
    status = refused(await server.http.get(server.jobs("none")), 404, "NotFound")
    assert status["message"] == 'jobs.batch "none" not found'
    assert status["details"] == {"name": "none", "group": "batch", "kind": "jobs"}


async def test_object_in_a_missing_namespace_is_not_found(server: ApiServer) -> None:
    response = await server.http.post("/api/v1/namespaces/nowhere/configmaps", json=config_map())
    assert refused(response, 404, "NotFound")["message"] == 'namespaces "nowhere" not found'


async def test_generated_name_has_the_prefix_and_five_characters(server: ApiServer) -> None:
    obj = {"metadata": {"generateName": "run-"}}
    names = {(await server.create(server.core("configmaps"), obj))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") and len(name) == len("run-") + 5 for name in names)


async def test_dry_run_answers_and_keeps_nothing(server: ApiServer) -> None:
    path = server.core("configmaps")
    response = await server.http.post(path, json=config_map(k="v"), params={"dryRun": "All"})
    assert response.status_code == 201
    assert response.json()["data"] == {"k": "v"}
    assert not await server.exists(server.core("configmaps", "a"))


async def test_yaml_is_accepted(server: ApiServer) -> None:
    body = yaml.safe_dump(config_map(k="v"))
    headers = {"Content-Type": "application/yaml"}
    response = await server.http.post(server.core("configmaps"), content=body, headers=headers)
    assert accepted(response)["data"] == {"k": "v"}


WRONG_METADATA: dict[str, Any] = {
    "upper case": ({"name": "Upper"}, "metadata.name"),
    "long name": ({"name": "x" * 254}, "metadata.name"),
    "no name": ({"name": ""}, "metadata.name"),
    "label key": ({"labels": {"a b": "c"}}, "metadata.labels"),
    "label value": ({"labels": {"a": "-b-"}}, "metadata.labels"),
    "annotation key": ({"annotations": {"a b": "c"}}, "metadata.annotations"),
    "long annotation": ({"annotations": {"a": "b" * 262145}}, "metadata.annotations"),
    "finalizer without a domain": ({"finalizers": ["harvest"]}, "metadata.finalizers[0]"),
    "finalizer that is no name": ({"finalizers": ["a b/c"]}, "metadata.finalizers"),
    "both orders": ({"finalizers": ["orphan", "foregroundDeletion"]}, "metadata.finalizers"),
    "owner without uid": ({"ownerReferences": [{"kind": "Job"}]}, "metadata.ownerReferences"),
}


@pytest.mark.parametrize(("change", "field"), WRONG_METADATA.values(), ids=WRONG_METADATA)
async def test_wrong_metadata_is_named(server: ApiServer, change: dict[str, Any], field: str) -> None:
    obj = pod()
    obj["metadata"] |= change
    refused_fields = invalid_fields(await server.http.post(server.core("pods"), json=obj))
    assert any(name.startswith(field) for name in refused_fields)


async def test_two_controlling_owners_are_refused(server: ApiServer) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "uid": "u", "controller": True}
    obj = config_map()
    obj["metadata"]["ownerReferences"] = [{**owner, "name": "x"}, {**owner, "name": "y"}]
    response = await server.http.post(server.core("configmaps"), json=obj)
    assert invalid_fields(response) == ["metadata.ownerReferences"]


UNREADABLE_BODIES: dict[str, Any] = {
    "broken JSON": ("{broken", "json parse error"),
    "no object": ("[]", "json parse error"),
    "empty": ("", "json parse error"),
    "kind": (json.dumps({"apiVersion": "v1", "kind": "Pod"}), "cannot be handled as a ConfigMap"),
    "version": (json.dumps({"apiVersion": "v2", "kind": "ConfigMap"}), "cannot be handled"),
}


@pytest.mark.parametrize(("body", "reason"), UNREADABLE_BODIES.values(), ids=UNREADABLE_BODIES)
async def test_unreadable_body_is_a_bad_request(server: ApiServer, body: str, reason: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = await server.http.post(server.core("configmaps"), content=body, headers=headers)
    assert reason in refused(response, 400, "BadRequest")["message"]


async def test_other_namespace_in_the_body_is_a_bad_request(server: ApiServer) -> None:
    obj = config_map()
    obj["metadata"]["namespace"] = "elsewhere"
    message = refused(await server.http.post(server.core("configmaps"), json=obj), 400, "BadRequest")["message"]
    assert message == "the namespace of the provided object does not match the namespace sent on the request"


async def test_unknown_content_type_is_unsupported(server: ApiServer) -> None:
    headers = {"Content-Type": "text/plain"}
    response = await server.http.post(server.core("configmaps"), content="x", headers=headers)
    refused(response, 415, "UnsupportedMediaType")


async def test_method_that_the_resource_does_not_have_is_not_allowed(server: ApiServer) -> None:
    refused(await server.http.put(server.core("configmaps"), json=config_map()), 405, "MethodNotAllowed")
    refused(await server.http.post(server.core("configmaps", "a"), json=config_map()), 405, "MethodNotAllowed")


async def test_replacing_raises_the_version(server: ApiServer) -> None:
    first = await server.create(server.core("configmaps"), config_map(k="1"))
    path = server.core("configmaps", "a")
    second = accepted(await server.http.put(path, json={**first, "data": {"k": "2"}}))
    assert second["data"] == {"k": "2"}
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]


async def test_replacing_an_old_version_conflicts(server: ApiServer) -> None:
    path = server.core("configmaps", "a")
    old = await server.create(server.core("configmaps"), config_map(k="1"))
    await server.patch(path, {"data": {"k": "2"}})
    status = refused(await server.http.put(path, json=old), 409, "Conflict")
    assert "the object has been modified" in status["message"]


async def test_replacing_another_uid_conflicts(server: ApiServer, stored_config_map: str) -> None:
    obj = config_map(k="v")
    obj["metadata"]["uid"] = "another"
    status = refused(await server.http.put(stored_config_map, json=obj), 409, "Conflict")
    assert "UID in precondition: another" in status["message"]


async def test_replacing_a_missing_object_is_not_found(server: ApiServer) -> None:
    refused(await server.http.put(server.core("configmaps", "a"), json=config_map()), 404, "NotFound")


async def test_name_in_url_and_body_must_agree(server: ApiServer, stored_config_map: str) -> None:
    response = await server.http.put(stored_config_map, json=config_map("b"))
    assert "does not match the name on the URL" in refused(response, 400, "BadRequest")["message"]


async def test_replacing_an_object_by_an_equal_one_writes_nothing(server: ApiServer) -> None:
    first = await server.create(server.core("configmaps"), config_map(k="1"))
    second = accepted(await server.http.put(server.core("configmaps", "a"), json=first))
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_creation_time_cannot_be_changed(server: ApiServer) -> None:
    first = await server.create(server.core("configmaps"), config_map())
    change = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}
    assert await server.patch(server.core("configmaps", "a"), change) == first


async def test_deletion_cannot_be_written(server: ApiServer, stored_config_map: str) -> None:
    change = {"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}}
    response = await server.send_patch(stored_config_map, change)
    assert invalid_fields(response) == ["metadata.deletionTimestamp"]


async def test_lease_needs_a_version_to_be_replaced(server: ApiServer) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{server.namespace}/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    await server.create(path, lease)
    assert invalid_fields(await server.http.put(f"{path}/l", json=lease)) == ["metadata.resourceVersion"]


async def test_immutable_config_map_stays_as_it_is(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(k="1") | {"immutable": True})
    assert invalid_fields(await server.send_patch(server.core("configmaps", "a"), {"data": {"k": "2"}})) == ["data"]


async def test_config_map_above_a_mebibyte_is_refused(server: ApiServer) -> None:
    response = await server.http.post(server.core("configmaps"), json=config_map(k="x" * (1024 * 1024 + 1)))
    assert "may not be more than 1048576 bytes" in refused(response, 422, "Invalid")["message"]


async def test_secret_text_is_encoded(server: ApiServer) -> None:
    secret = {"metadata": {"name": "s"}, "stringData": {"k": "v"}}
    created = await server.create(server.core("secrets"), secret)
    assert (created["type"], created["data"], "stringData" in created) == ("Opaque", {"k": "dg=="}, False)


async def test_new_namespace_is_active(server: ApiServer) -> None:
    namespace = await server.get(f"/api/v1/namespaces/{server.namespace}")
    assert namespace["status"]["phase"] == "Active"
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    assert namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] == server.namespace


async def test_nothing_is_created_in_a_namespace_that_is_being_deleted(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map("held", finalizers=["example.org/hold"]))
    await server.delete(f"/api/v1/namespaces/{server.namespace}")
    response = await server.http.post(server.core("configmaps"), json=config_map("late"))
    status = refused(response, 403, "Forbidden")
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await server.patch(server.core("configmaps", "held"), {"metadata": {"finalizers": None}})


RICH_POD = pod(
    container={
        "command": ["sh", "-c", "exit 0"],
        "env": [
            {"name": "A", "value": "\u00e4"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "a"}, "prefix": "P_"}],
        "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 3},
        "ports": [{"name": "web", "containerPort": 8080}],
        "volumeMounts": [{"name": "files", "mountPath": "/files", "readOnly": True}],
    },
    volumes=[
        {"name": "files", "configMap": {"name": "a", "items": [{"key": "k", "path": "p", "mode": 292}]}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    ],
    tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    securityContext={"runAsUser": 0, "fsGroup": 2**31 - 1},
)


def surplus(decoded: Any, expected: Any, path: str = "") -> list[str]:
    """Return the paths at which the decoded value is not the expected one. A zero value that JSON omits is accepted."""
    if isinstance(decoded, dict) and isinstance(expected, dict):
        keys = {*decoded, *expected}
        return [found for key in keys for found in surplus(decoded.get(key), expected.get(key), f"{path}.{key}")]
    if isinstance(decoded, list) and isinstance(expected, list) and len(decoded) == len(expected):
        pairs = enumerate(zip(decoded, expected, strict=True))
        return [found for index, pair in pairs for found in surplus(*pair, f"{path}[{index}]")]
    if isinstance(decoded, dict) and expected is None:
        return [found for key, value in decoded.items() for found in surplus(value, None, f"{path}.{key}")]
    return [] if decoded == expected or (expected is None and not decoded) else [f"{path}: {decoded} != {expected}"]


async def test_protobuf_of_a_real_server_is_decoded_as_its_json(server: ApiServer) -> None:
    if server.is_embedded:
        pytest.skip("the sandbox answers with JSON only")
    secret = {"metadata": {"name": "s"}, "data": {"k": "AAH/"}}
    service = {"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "ports": [{"port": 80, "targetPort": "web"}]}}
    paths = {
        server.core("pods", "a"): await server.create(server.core("pods"), RICH_POD),
        server.jobs("a"): await server.create(server.jobs(), job(backoffLimit=0, ttlSecondsAfterFinished=0)),
        server.core("configmaps", "a"): await server.create(server.core("configmaps"), config_map(k="v", empty="")),
        server.core("secrets", "s"): await server.create(server.core("secrets"), secret),
        server.core("services", "a"): await server.create(server.core("services"), service),
    }
    for path in paths:
        expected = await server.get(path)
        encoded = await server.http.get(path, headers={"Accept": protobuf.MEDIA_TYPE})
        assert encoded.headers["Content-Type"] == protobuf.MEDIA_TYPE
        assert surplus(protobuf.decode(encoded.content), expected) == []
