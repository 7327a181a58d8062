"""The three patch types, and what makes a patch conditional."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.builders import config_map, pod
from tests.conformance.world import JSON, MERGE, STRATEGIC, World, fields_refused, refused

HOLD = "example.org/hold"


async def test_merge_patch_adds_changes_and_removes(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(a="1", b="2"))
    patched = await world.patch(world.core("configmaps", "a"), {"data": {"a": None, "b": "3", "c": "4"}})
    assert patched["data"] == {"b": "3", "c": "4"}


async def test_merge_patch_replaces_lists(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    patched = await world.patch(world.core("configmaps", "a"), {"metadata": {"finalizers": ["example.org/other"]}})
    assert patched["metadata"]["finalizers"] == ["example.org/other"]
    await world.patch(world.core("configmaps", "a"), {"metadata": {"finalizers": None}})


async def test_strategic_patch_merges_lists_by_key(world: World) -> None:
    await world.create(world.core("pods"), pod())
    patch = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    patched = await world.patch(world.core("pods", "a"), patch, STRATEGIC)
    assert [(c["name"], c["image"]) for c in patched["spec"]["containers"]] == [("main", "busybox:2")]


async def test_strategic_patch_adds_to_finalizers(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(finalizers=[HOLD]))
    path = world.core("configmaps", "a")
    patched = await world.patch(path, {"metadata": {"finalizers": ["example.org/b"]}}, STRATEGIC)
    assert patched["metadata"]["finalizers"] == ["example.org/b", HOLD]
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD, "example.org/b"]}}
    assert "finalizers" not in (await world.patch(path, removal, STRATEGIC))["metadata"]


async def test_removing_a_finalizer_twice_changes_nothing(world: World) -> None:
    first = await world.create(world.core("configmaps"), config_map())
    removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [HOLD]}}
    again = await world.patch(world.core("configmaps", "a"), removal, STRATEGIC)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_json_patch_applies_its_operations(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(a="1"))
    operations = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/b", "value": "2"}]
    assert (await world.patch(world.core("configmaps", "a"), operations, JSON))["data"] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/data/a", "value": "other"}, id="failed test"),
        pytest.param({"op": "remove", "path": "/data/none"}, id="nothing to remove"),
    ],
)
async def test_json_patch_that_does_not_fit_is_invalid(world: World, operation: dict[str, Any]) -> None:
    await world.create(world.core("configmaps"), config_map(a="1"))
    refused(await world.send_patch(world.core("configmaps", "a"), [operation], JSON), 422, "Invalid")


@pytest.mark.parametrize(
    ("kind", "body"), [(MERGE, []), (STRATEGIC, []), (JSON, {"op": "add"})], ids=["merge", "strategic", "json"]
)
async def test_patch_of_the_wrong_form_is_a_bad_request(world: World, kind: str, body: Any) -> None:
    await world.create(world.core("configmaps"), config_map())
    refused(await world.send_patch(world.core("configmaps", "a"), body, kind), 400, "BadRequest")


async def test_patch_without_its_content_type_is_unsupported(world: World) -> None:
    await world.create(world.core("configmaps"), config_map())
    response = await world.send_patch(world.core("configmaps", "a"), {}, "application/json")
    refused(response, 415, "UnsupportedMediaType")


async def test_patch_of_a_missing_object_is_not_found(world: World) -> None:
    refused(await world.send_patch(world.core("configmaps", "a"), {}), 404, "NotFound")


async def test_version_in_a_patch_is_a_condition(world: World) -> None:
    first = await world.create(world.core("configmaps"), config_map())
    version = first["metadata"]["resourceVersion"]
    path = world.core("configmaps", "a")
    await world.patch(path, {"metadata": {"resourceVersion": version}, "data": {"a": "1"}})
    stale = {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}
    refused(await world.send_patch(path, stale), 409, "Conflict")


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC], ids=["merge", "strategic"])
async def test_uid_in_a_patch_is_a_condition(world: World, kind: str) -> None:
    """The server calls it an attempt to change the uid: 422 and not 409, unlike a PUT with another uid."""
    first = await world.create(world.core("configmaps"), config_map())
    path = world.core("configmaps", "a")
    await world.patch(path, {"metadata": {"uid": first["metadata"]["uid"]}, "data": {"a": "1"}}, kind)
    response = await world.send_patch(path, {"metadata": {"uid": "another"}, "data": {"a": "2"}}, kind)
    assert fields_refused(response) == ["metadata.uid"]


async def test_patch_cannot_rename(world: World) -> None:
    await world.create(world.core("configmaps"), config_map())
    response = await world.send_patch(world.core("configmaps", "a"), {"metadata": {"name": "b"}})
    refused(response, 400, "BadRequest")


async def test_dry_run_patch_keeps_nothing(world: World) -> None:
    await world.create(world.core("configmaps"), config_map(a="1"))
    path = world.core("configmaps", "a")
    assert (await world.patch(path, {"data": {"a": "2"}}, dryRun="All"))["data"] == {"a": "2"}
    assert (await world.get(path))["data"] == {"a": "1"}


async def test_wrong_type_in_a_patch_is_invalid(world: World) -> None:
    await world.create(world.core("configmaps"), config_map())
    response = await world.send_patch(world.core("configmaps", "a"), {"data": {"a": 1}})
    assert fields_refused(response) == ["patch"]


async def test_unknown_field_in_a_strict_patch_is_invalid(world: World) -> None:
    await world.create(world.core("configmaps"), config_map())
    path = world.core("configmaps", "a")
    response = await world.send_patch(path, {"dota": {"a": "1"}}, MERGE, fieldValidation="Strict")
    assert 'strict decoding error: unknown field "dota"' in refused(response, 422, "Invalid")["message"]
