"""Watches: from now, from a version, with selectors, with bookmarks, and their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.api_server import ApiServer, refused
from tests.conformance.builders import config_map, pod
from tests.timeouts import TIMEOUT_S


def type_and_name(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


async def version_now(server: ApiServer, plural: str = "pods") -> str:
    version: str = (await server.get(server.core(plural)))["metadata"]["resourceVersion"]
    return version


async def test_watch_delivers_all_changes_after_a_version(server: ApiServer) -> None:
    since = await version_now(server)
    await server.create(server.core("pods"), pod())
    await server.patch(server.core("pods", "a"), {"metadata": {"labels": {"x": "y"}}})
    async with server.watching(server.core("pods"), resourceVersion=since) as events:
        assert type_and_name(await anext(events)) == ("ADDED", "a")
        assert type_and_name(await anext(events)) == ("MODIFIED", "a")
        await server.create(server.core("pods"), pod("b"))
        assert type_and_name(await anext(events)) == ("ADDED", "b")


@pytest.mark.parametrize("flag", ["1", "true", "True"])
async def test_watch_without_a_version_begins_with_what_is_there_for_any_spelling_of_its_parameter(
    server: ApiServer, flag: str
) -> None:
    await server.create(server.core("pods"), pod())
    async with server.watching(server.core("pods"), watch=flag) as events:
        assert type_and_name(await anext(events)) == ("ADDED", "a")


async def test_events_carry_versions_that_continue_the_watch(server: ApiServer) -> None:
    since = await version_now(server)
    await server.create(server.core("pods"), pod("a"))
    await server.create(server.core("pods"), pod("b"))
    async with server.watching(server.core("pods"), resourceVersion=since) as events:
        seen = await anext(events)
    version = seen["object"]["metadata"]["resourceVersion"]
    async with server.watching(server.core("pods"), resourceVersion=version) as events:
        assert type_and_name(await anext(events)) == ("ADDED", "b")


async def test_deletion_event_has_the_last_state_and_a_new_version(server: ApiServer) -> None:
    created = await server.create(server.core("configmaps"), config_map(k="v"))
    version = created["metadata"]["resourceVersion"]
    async with server.watching(server.core("configmaps"), resourceVersion=version) as events:
        await server.delete(server.core("configmaps", "a"))
        event = await anext(events)
    assert (*type_and_name(event), event["object"]["data"]) == ("DELETED", "a", {"k": "v"})
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(version)


async def test_pod_deletion_has_two_events(server: ApiServer, stored_pod: str) -> None:
    """A pod gets a deletion timestamp before it is removed, even if it has no grace period."""
    since = await version_now(server)
    async with server.watching(server.core("pods"), resourceVersion=since) as events:
        await server.delete(stored_pod)
        marked, gone = await anext(events), await anext(events)
    assert [type_and_name(marked), type_and_name(gone)] == [("MODIFIED", "a"), ("DELETED", "a")]
    assert "deletionTimestamp" in marked["object"]["metadata"]


async def test_change_that_a_selector_begins_or_stops_to_match_is_added_or_deleted(server: ApiServer) -> None:
    since = await version_now(server)
    await server.create(server.core("pods"), pod())
    await server.patch(server.core("pods", "a"), {"metadata": {"labels": {"app": "x"}}})
    await server.patch(server.core("pods", "a"), {"metadata": {"annotations": {"n": "1"}}})
    await server.patch(server.core("pods", "a"), {"metadata": {"labels": {"app": "y"}}})
    async with server.watching(server.core("pods"), resourceVersion=since, labelSelector="app=x") as events:
        seen = [(await anext(events))["type"] for _ in range(3)]
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


async def test_field_selector_narrows_a_watch(server: ApiServer) -> None:
    since = await version_now(server)
    for name in ("a", "b"):
        await server.create(server.core("pods"), pod(name))
    query = {"resourceVersion": since, "fieldSelector": "metadata.name=b"}
    async with server.watching(server.core("pods"), **query) as events:
        assert type_and_name(await anext(events)) == ("ADDED", "b")


async def test_unchanged_object_has_no_event(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map("a", k="v"))
    since = await version_now(server, "configmaps")
    await server.patch(server.core("configmaps", "a"), {"data": {"k": "v"}})
    await server.create(server.core("configmaps"), config_map("b"))
    async with server.watching(server.core("configmaps"), resourceVersion=since) as events:
        assert type_and_name(await anext(events)) == ("ADDED", "b")


async def test_watch_ends_at_its_timeout(server: ApiServer) -> None:
    since = await version_now(server)
    async with server.watching(server.core("pods"), resourceVersion=since, timeoutSeconds="1") as events:
        assert [event async for event in events] == []


async def test_bookmark_comes_before_the_end(server: ApiServer) -> None:
    """A real server may send no bookmark in so short a time."""
    since = await version_now(server)
    await server.create(server.core("pods"), pod())
    query = {"resourceVersion": since, "timeoutSeconds": "5", "allowWatchBookmarks": "true"}
    async with server.watching(server.core("pods"), fieldSelector="metadata.name=none", **query) as events:
        seen = [event async for event in events]
    if not seen and not server.is_embedded:
        pytest.skip("no bookmark in five seconds")
    assert {event["type"] for event in seen} == {"BOOKMARK"}
    bookmark = seen[-1]["object"]
    assert bookmark["kind"] == "Pod"
    assert int(bookmark["metadata"]["resourceVersion"]) > int(since)


async def test_initial_events_end_with_a_bookmark(server: ApiServer) -> None:
    """A real server may end any watch early, so the watch is opened again then, as client-go does."""
    await server.create(server.core("pods"), pod())
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    bookmark = None
    async with asyncio.timeout(TIMEOUT_S):
        while bookmark is None:
            async with server.watching(server.core("pods"), timeoutSeconds="10", **query) as events:
                assert type_and_name(await anext(events)) == ("ADDED", "a")
                bookmark = await anext(events, None)
            assert bookmark or not server.is_embedded, "the watch ended without a bookmark"
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_initial_events_need_their_version_match(server: ApiServer) -> None:
    response = await server.http.get(server.core("pods"), params={"watch": "1", "sendInitialEvents": "true"})
    refused(response, 422, "Invalid")


async def test_watch_of_one_name_is_a_field_selector(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod("a"))
    await server.create(server.core("pods"), pod("b"))
    async with server.watching(server.core("pods"), fieldSelector="metadata.name=b") as events:
        assert type_and_name(await anext(events)) == ("ADDED", "b")


async def test_watch_in_table_form_gives_rows(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with server.http.stream("GET", server.core("pods"), params={"watch": "1"}, headers=headers) as response:
        row = await anext(response.aiter_lines())
    assert '"kind":"Table"' in row
    assert '"cells":["a","0/1","Pending"' in row
