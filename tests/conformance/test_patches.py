"""The three patch types, and what makes a patch conditional."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.api_server import JSON, MERGE, STRATEGIC, ApiServer, invalid_fields, refused
from tests.conformance.builders import config_map

HOLD = "example.org/hold"


async def test_merge_patch_adds_changes_and_removes(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(a="1", b="2"))
    patched = await server.patch(server.core("configmaps", "a"), {"data": {"a": None, "b": "3", "c": "4"}})
    assert patched["data"] == {"b": "3", "c": "4"}


async def test_merge_patch_replaces_lists(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    patched = await server.patch(server.core("configmaps", "a"), {"metadata": {"finalizers": ["example.org/other"]}})
    assert patched["metadata"]["finalizers"] == ["example.org/other"]
    await server.patch(server.core("configmaps", "a"), {"metadata": {"finalizers": None}})


async def test_strategic_patch_merges_lists_by_key(server: ApiServer, stored_pod: str) -> None:
    patch = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    patched = await server.patch(stored_pod, patch, STRATEGIC)
    assert [(c["name"], c["image"]) for c in patched["spec"]["containers"]] == [("main", "busybox:2")]


async def test_strategic_patch_adds_to_finalizers(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(finalizers=[HOLD]))
    path = server.core("configmaps", "a")
    patched = await server.patch(path, {"metadata": {"finalizers": ["example.org/b"]}}, STRATEGIC)
    assert patched["metadata"]["finalizers"] == ["example.org/b", HOLD]
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD, "example.org/b"]}}
    assert "finalizers" not in (await server.patch(path, removal, STRATEGIC))["metadata"]


async def test_removing_a_finalizer_twice_changes_nothing(server: ApiServer) -> None:
    first = await server.create(server.core("configmaps"), config_map())
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD]}}
    again = await server.patch(server.core("configmaps", "a"), removal, STRATEGIC)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_json_patch_applies_its_operations(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(a="1"))
    operations = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/b", "value": "2"}]
    assert (await server.patch(server.core("configmaps", "a"), operations, JSON))["data"] == {"a": "1", "b": "2"}


UNFIT_OPERATIONS: dict[str, Any] = {
    "failed test": {"op": "test", "path": "/data/a", "value": "other"},
    "nothing to remove": {"op": "remove", "path": "/data/none"},
}


@pytest.mark.parametrize("operation", UNFIT_OPERATIONS.values(), ids=UNFIT_OPERATIONS)
async def test_json_patch_that_does_not_fit_is_invalid(server: ApiServer, operation: dict[str, Any]) -> None:
    await server.create(server.core("configmaps"), config_map(a="1"))
    refused(await server.send_patch(server.core("configmaps", "a"), [operation], JSON), 422, "Invalid")


@pytest.mark.parametrize(
    ("kind", "body"), [(MERGE, []), (STRATEGIC, []), (JSON, {"op": "add"})], ids=["merge", "strategic", "json"]
)
async def test_patch_of_the_wrong_form_is_a_bad_request(
    server: ApiServer, stored_config_map: str, kind: str, body: Any
) -> None:
    refused(await server.send_patch(stored_config_map, body, kind), 400, "BadRequest")


async def test_patch_without_its_content_type_is_unsupported(server: ApiServer, stored_config_map: str) -> None:
    response = await server.send_patch(stored_config_map, {}, "application/json")
    refused(response, 415, "UnsupportedMediaType")


async def test_patch_of_a_missing_object_is_not_found(server: ApiServer) -> None:
    refused(await server.send_patch(server.core("configmaps", "a"), {}), 404, "NotFound")


async def test_version_in_a_patch_is_a_condition(server: ApiServer) -> None:
    first = await server.create(server.core("configmaps"), config_map())
    version = first["metadata"]["resourceVersion"]
    path = server.core("configmaps", "a")
    await server.patch(path, {"metadata": {"resourceVersion": version}, "data": {"a": "1"}})
    stale = {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}
    refused(await server.send_patch(path, stale), 409, "Conflict")


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC], ids=["merge", "strategic"])
async def test_uid_in_a_patch_is_a_condition(server: ApiServer, kind: str) -> None:
    """The server answers 422, because the patch changes an immutable field. A PUT with another uid gets 409."""
    first = await server.create(server.core("configmaps"), config_map())
    path = server.core("configmaps", "a")
    await server.patch(path, {"metadata": {"uid": first["metadata"]["uid"]}, "data": {"a": "1"}}, kind)
    response = await server.send_patch(path, {"metadata": {"uid": "another"}, "data": {"a": "2"}}, kind)
    assert invalid_fields(response) == ["metadata.uid"]


async def test_patch_cannot_change_the_name(server: ApiServer, stored_config_map: str) -> None:
    response = await server.send_patch(stored_config_map, {"metadata": {"name": "b"}})
    refused(response, 400, "BadRequest")


async def test_dry_run_patch_keeps_nothing(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map(a="1"))
    path = server.core("configmaps", "a")
    assert (await server.patch(path, {"data": {"a": "2"}}, dryRun="All"))["data"] == {"a": "2"}
    assert (await server.get(path))["data"] == {"a": "1"}


async def test_wrong_type_in_a_patch_is_invalid(server: ApiServer, stored_config_map: str) -> None:
    response = await server.send_patch(stored_config_map, {"data": {"a": 1}})
    assert invalid_fields(response) == ["patch"]


async def test_unknown_field_in_a_strict_patch_is_invalid(server: ApiServer, stored_config_map: str) -> None:
    response = await server.send_patch(stored_config_map, {"dota": {"a": "1"}}, MERGE, fieldValidation="Strict")
    assert 'strict decoding error: unknown field "dota"' in refused(response, 422, "Invalid")["message"]
