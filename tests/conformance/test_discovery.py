"""Discovery: versions, resources, health, and access reviews."""

from __future__ import annotations

import pytest

from tests.conformance.api_server import ApiServer, Obj, refused


async def test_version_names_the_release(each_release: ApiServer) -> None:
    version = await each_release.get("/version")
    assert (version["major"], version["minor"]) == ("1", each_release.release.minor)
    assert version["gitVersion"].startswith(f"v1.{each_release.release.minor}.")


async def test_scheduling_versions_are_those_of_the_release(each_release: ApiServer) -> None:
    group = await each_release.get("/apis/scheduling.k8s.io")
    served = [version["version"] for version in group["versions"]]
    assert served == ["v1", *each_release.release.scheduling_versions]
    assert group["preferredVersion"]["version"] == "v1"


async def test_scheduling_resources_are_those_of_the_release(each_release: ApiServer) -> None:
    release = each_release.release
    for version in release.scheduling_versions:
        listed = await each_release.get(f"/apis/scheduling.k8s.io/{version}")
        names = {resource["name"] for resource in listed["resources"]}
        assert {"workloads", "podgroups", "podgroups/status"} <= names


AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def aggregated(server: ApiServer, path: str, accept: str = AGGREGATED) -> list[Obj]:
    """Return the groups of a response of aggregated discovery."""
    response = await server.http.get(path, headers={"Accept": accept})
    assert (response.status_code, response.headers["Content-Type"]) == (200, AGGREGATED), response.text
    found: Obj = response.json()
    assert (found["kind"], found["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    items: list[Obj] = found["items"]
    return items


async def test_aggregated_discovery_lists_the_groups_and_their_versions(each_release: ApiServer) -> None:
    items = await aggregated(each_release, "/apis")
    versions = {item["metadata"]["name"]: [one["version"] for one in item["versions"]] for item in items}
    listed = (await each_release.get("/apis"))["groups"]
    assert versions == {group["name"]: [one["version"] for one in group["versions"]] for group in listed}
    assert {one["freshness"] for item in items for one in item["versions"]} == {"Current"}


def described(resource: Obj) -> Obj:
    """Return what both kinds of discovery say of a resource or a subresource that is described alone."""
    kind = {"group": resource.get("group", ""), "version": resource.get("version", ""), "kind": resource["kind"]}
    found = {"responseKind": kind, "verbs": resource["verbs"]}
    if "/" not in resource["name"]:
        found["scope"] = "Namespaced" if resource["namespaced"] else "Cluster"
        found |= {name: resource[name] for name in ("shortNames", "categories") if name in resource}
    return found


@pytest.mark.parametrize("path", ["/api", "/apis/batch", "/apis/scheduling.k8s.io", "/apis/coordination.k8s.io"])
async def test_aggregated_discovery_describes_resources_as_that_of_one_version(
    each_release: ApiServer, path: str
) -> None:
    root, group = path.removeprefix("/").partition("/")[::2]
    items = await aggregated(each_release, f"/{root}")
    (item,) = (item for item in items if item["metadata"].get("name", "") == group)
    for version in item["versions"]:
        found: Obj = {}
        for resource in version["resources"]:
            name = resource.pop("resource")
            subresources = resource.pop("subresources", ())
            found |= {f"{name}/{one.pop('subresource')}": one for one in subresources}
            found[name] = {key: value for key, value in resource.items() if key != "singularResource"}
        listed = (await each_release.get(f"{path}/{version['version']}"))["resources"]
        assert found == {resource["name"]: described(resource) for resource in listed}


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_client_that_knows_both_kinds_of_discovery_gets_the_aggregated_one(server: ApiServer, path: str) -> None:
    older = AGGREGATED.replace("v=v2;", "v=v2beta1;")
    assert await aggregated(server, path, f"{AGGREGATED},{older},application/json") == await aggregated(server, path)
    assert "items" not in (await server.http.get(path, headers={"Accept": "application/json"})).json()


async def test_kind_of_discovery_that_is_not_known_is_not_acceptable(server: ApiServer) -> None:
    newer = AGGREGATED.replace("v=v2;", "v=v3;")
    refused(await server.http.get("/apis", headers={"Accept": newer}), 406, "NotAcceptable")


async def test_version_that_is_not_served_is_not_found(each_release: ApiServer) -> None:
    others = {"v1alpha1", "v1alpha2", "v1alpha3", "v1beta1"} - set(each_release.release.scheduling_versions)
    for version in others:
        response = await each_release.http.get(f"/apis/scheduling.k8s.io/{version}/workloads")
        assert response.status_code == 404


@pytest.mark.parametrize(
    ("path", "name", "kind", "namespaced"),
    [
        ("/api/v1", "pods", "Pod", True),
        ("/api/v1", "nodes", "Node", False),
        ("/apis/batch/v1", "jobs", "Job", True),
        ("/apis/coordination.k8s.io/v1", "leases", "Lease", True),
        ("/apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", False),
    ],
    ids=lambda value: str(value),
)
async def test_resource_is_described(server: ApiServer, path: str, name: str, kind: str, namespaced: bool) -> None:
    listed = await server.get(path)
    found = next(resource for resource in listed["resources"] if resource["name"] == name)
    assert (found["kind"], found["namespaced"]) == (kind, namespaced)
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(found["verbs"])


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz"])
async def test_health_is_plain_text(server: ApiServer, path: str) -> None:
    response = await server.http.get(path)
    assert (response.status_code, response.text) == (200, "ok")


async def test_unknown_resource_is_not_found(server: ApiServer) -> None:
    refused(await server.http.get(server.core("podz")), 404, "NotFound")


async def test_missing_or_wrong_token_is_unauthorized(server: ApiServer) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        response = await server.http.get("/api/v1/nodes", headers=headers)
        # A cluster with anonymous access answers 403 to the first.
        assert response.status_code in {401, 403}
    refused(response, 401, "Unauthorized")


async def test_access_review_allows(server: ApiServer) -> None:
    review = {"spec": {"resourceAttributes": {"namespace": server.namespace, "verb": "create", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await server.create(path, review))["status"]["allowed"] is True
