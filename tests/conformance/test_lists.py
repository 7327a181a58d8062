"""Lists: selectors, pages, and versions."""

from __future__ import annotations

import pytest

from tests.conformance.api_server import ApiServer, refused
from tests.conformance.builders import config_map, pod
from tests.replies import accepted


def names(listed: dict) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def test_list_has_its_kind_and_version(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    listed = await server.get(server.core("pods"))
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert listed["metadata"]["resourceVersion"].isdecimal()


async def test_list_is_ordered_by_name(server: ApiServer) -> None:
    for name in ("c", "a", "b"):
        await server.create(server.core("pods"), pod(name))
    assert names(await server.get(server.core("pods"))) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("app=x", ["a"]),
        ("app==x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x,y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app,tier=web", ["b"]),
        ("app=z", []),
        ("", ["a", "b", "c"]),
    ],
)
async def test_label_selector(server: ApiServer, selector: str, found: list[str]) -> None:
    await server.create(server.core("pods"), pod("a", labels={"app": "x"}))
    await server.create(server.core("pods"), pod("b", labels={"app": "y", "tier": "web"}))
    await server.create(server.core("pods"), pod("c"))
    assert names(await server.get(server.core("pods"), labelSelector=selector)) == found


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b"]),
        ("spec.nodeName=n1", ["b"]),
        ("spec.nodeName=", ["a"]),
        ("status.phase=Pending,metadata.name=b", ["b"]),
    ],
)
async def test_field_selector(server: ApiServer, selector: str, found: list[str]) -> None:
    await server.create(server.core("pods"), pod("a"))
    await server.create(server.core("pods"), pod("b", nodeName="n1"))
    assert names(await server.get(server.core("pods"), fieldSelector=selector)) == found


@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": "a in (b"},
        {"labelSelector": "a=-b-"},
        {"fieldSelector": "spec.none=1"},
        {"fieldSelector": "garbage"},
        {"limit": "x"},
        {"continue": "garbage"},
        {"resourceVersion": "abc"},
    ],
    ids=str,
)
async def test_unreadable_parameter_is_a_bad_request(server: ApiServer, query: dict[str, str]) -> None:
    refused(await server.http.get(server.core("pods"), params=query), 400, "BadRequest")


async def test_pages_cover_everything_once(server: ApiServer) -> None:
    for number in range(7):
        await server.create(server.core("configmaps"), config_map(f"p{number}"))
    found: list[str] = []
    query = {"limit": "3"}
    sizes = []
    while True:
        page = await server.get(server.core("configmaps"), **query)
        found += names(page)
        sizes.append(len(page["items"]))
        if "continue" not in page["metadata"]:
            break
        query["continue"] = page["metadata"]["continue"]
    assert [name for name in found if name.startswith("p")] == [f"p{number}" for number in range(7)]
    assert max(sizes) == 3


async def test_pages_show_one_version(server: ApiServer) -> None:
    """A change between two pages is not visible in the later pages."""
    for name in ("a", "b", "c"):
        await server.create(server.core("pods"), pod(name))
    first = await server.get(server.core("pods"), limit="1")
    await server.create(server.core("pods"), pod("bb"))
    await server.delete(server.core("pods", "c"))
    rest = await server.get(server.core("pods"), limit="5", **{"continue": first["metadata"]["continue"]})
    assert names(first) + names(rest) == ["a", "b", "c"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_first_page_has_the_number_of_remaining_objects(server: ApiServer) -> None:
    for name in ("a", "b", "c"):
        await server.create(server.core("pods"), pod(name))
    page = await server.get(server.core("pods"), limit="1")
    assert page["metadata"]["remainingItemCount"] == 2


async def test_exact_version_shows_the_past(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod("a"))
    before = await server.get(server.core("pods"))
    await server.create(server.core("pods"), pod("b"))
    await server.delete(server.core("pods", "a"))
    version = before["metadata"]["resourceVersion"]
    past = await server.get(server.core("pods"), resourceVersion=version, resourceVersionMatch="Exact")
    assert names(past) == ["a"]


async def test_version_from_the_future_times_out(server: ApiServer) -> None:
    response = await server.http.get(server.core("pods"), params={"resourceVersion": "999999999"})
    status = refused(response, 504, "Timeout")
    assert "Too large resource version" in status["message"]
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_version_match_needs_a_version(server: ApiServer) -> None:
    response = await server.http.get(server.core("pods"), params={"resourceVersionMatch": "Exact"})
    refused(response, 422, "Invalid")


async def test_list_of_all_namespaces_contains_ours(server: ApiServer) -> None:
    await server.create(server.core("configmaps"), config_map("ours"))
    listed = await server.get("/api/v1/configmaps", fieldSelector="metadata.name=ours")
    assert server.namespace in {item["metadata"]["namespace"] for item in listed["items"]}


async def test_delete_of_a_collection_takes_what_is_selected(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod("a", labels={"app": "x"}))
    await server.create(server.core("pods"), pod("b"))
    response = await server.http.request("DELETE", server.core("pods"), params={"labelSelector": "app=x"})
    assert names(accepted(response)) == ["a"]
    assert names(await server.get(server.core("pods"))) == ["b"]


async def test_table_has_the_columns_of_kubectl(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    table = (await server.http.get(server.core("pods"), headers={"Accept": accept})).json()
    columns = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert (table["kind"], columns) == ("Table", ["Name", "Ready", "Status", "Restarts", "Age"])
    assert table["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", "0"]


async def test_metadata_alone_can_be_requested(server: ApiServer) -> None:
    await server.create(server.core("pods"), pod())
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listed = (await server.http.get(server.core("pods"), headers={"Accept": accept})).json()
    assert listed["kind"] == "PartialObjectMetadataList"
    assert set(listed["items"][0]) == {"kind", "apiVersion", "metadata"} or set(listed["items"][0]) == {"metadata"}


async def test_unknown_content_type_of_a_response_is_not_acceptable(server: ApiServer) -> None:
    response = await server.http.get(server.core("pods"), headers={"Accept": "text/html"})
    assert response.status_code == 406
