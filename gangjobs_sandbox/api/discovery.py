"""Discovery: the API groups, versions and resources that are served, and the version of the server.

Of OpenAPI v3, the part is served that kubectl reads before it asks the server to validate a manifest: the requests that
support `fieldValidation`. The schemas themselves are not served, because the server knows only the names and types of
fields (see `registry.schema`) and no other client reads schemas here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.api.routing import groups, served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.resources import Resource

__all__ = [
    "AGGREGATED",
    "aggregated",
    "api_versions",
    "document",
    "group_list",
    "group_of",
    "index",
    "resource_list",
    "version",
]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The media type of aggregated discovery."""


_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_VERBS = {"log": ["get"], "binding": ["create"], "eviction": ["create"], "finalize": ["update"]}
_SUBRESOURCE_KINDS = {"binding": ("Binding", {}), "eviction": ("Eviction", {"group": "policy", "version": "v1"})}
_REVIEW = "selfsubjectaccessreviews"


_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


def version(release: Release) -> dict[str, str]:
    """Return the response to `GET /version`."""
    return {
        "major": "1",
        "minor": release.minor,
        "gitVersion": release.git_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "",
        "platform": "sandbox",
    }


def api_versions(address: str) -> dict[str, Any]:
    """Return the response to `GET /api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(release: Release) -> dict[str, Any]:
    """Return the response to `GET /apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in groups(release).items() if name],
    }


def aggregated(release: Release, *, core: bool) -> dict[str, Any]:
    """Return the response to `GET /apis`, or to `GET /api` for the core group, as aggregated discovery."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {**({"name": name} if name else {}), "creationTimestamp": None},
                "versions": [_aggregated_version(release, name, version) for version in versions],
            }
            for name, versions in groups(release).items()
            if core is not bool(name)
        ],
    }


def _aggregated_version(release: Release, group: str, version: str) -> dict[str, Any]:
    resources: dict[str, dict[str, Any]] = {}
    for row in (resource_list(release, group, version) or {})["resources"]:
        plural, _, subresource = row["name"].partition("/")
        kind = {"group": row.get("group", ""), "version": row.get("version", ""), "kind": row["kind"]}
        if subresource:
            entry = {"subresource": subresource, "responseKind": kind, "verbs": row["verbs"]}
            resources[plural].setdefault("subresources", []).append(entry)
            continue
        resources[plural] = {
            "resource": plural,
            "responseKind": kind,
            "scope": "Namespaced" if row["namespaced"] else "Cluster",
            "singularResource": row["singularName"],
            "verbs": row["verbs"],
            **{name: row[name] for name in ("shortNames", "categories") if name in row},
        }
    return {"version": version, "resources": list(resources.values()), "freshness": "Current"}


def group_of(release: Release, name: str) -> dict[str, Any] | None:
    """Return the response to `GET /apis/<group>`, or None if there is no such group."""
    versions = groups(release).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if name and versions else None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(release: Release, group: str, version: str) -> dict[str, Any] | None:
    """Return the response to `GET /api/v1` or `GET /apis/<group>/<version>`, or None if there is no such version."""
    if version not in groups(release).get(group, ()):
        return None
    rows: list[dict[str, Any]] = []
    if group == "authorization.k8s.io":
        rows.append(_row(_REVIEW, "SelfSubjectAccessReview", ["create"], namespaced=False))
    for known_group, known_version, resource in served(release):
        if (known_group, known_version) == (group, version):
            rows.extend(_rows(resource))
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": sorted(rows, key=lambda row: str(row["name"])),
    }


def _row(
    name: str, kind: str, verbs: list[str], *, namespaced: bool, singular: str = "", **more: Any
) -> dict[str, Any]:
    return {"name": name, "singularName": singular, "namespaced": namespaced, "kind": kind, "verbs": verbs, **more}


def _rows(resource: Resource) -> list[dict[str, Any]]:
    more: dict[str, Any] = {}
    if resource.short_names:
        more["shortNames"] = list(resource.short_names)
    if resource.in_all:
        more["categories"] = ["all"]
    namespaced = resource.namespaced
    rows = [_row(resource.plural, resource.kind, _VERBS, namespaced=namespaced, singular=resource.singular, **more)]
    for subresource in resource.subresources:
        kind, where = _SUBRESOURCE_KINDS.get(subresource, (resource.kind, {}))
        verbs = _SUBRESOURCE_VERBS.get(subresource, ["get", "patch", "update"])
        rows.append(_row(f"{resource.plural}/{subresource}", kind, verbs, namespaced=namespaced, **where))
    return rows


def index(groups: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the response to `GET /openapi/v3`: the path of the document of each group and version."""
    paths = [_path(group, version) for group, versions in groups.items() for version in versions]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def document(release: Release, path: str) -> dict[str, Any] | None:
    """Return the document of one group and version, or None if there is no such version."""
    paths: dict[str, Any] = {}
    for group, version, resource in served(release):
        if _path(group, version) == path.strip("/"):
            paths |= _paths(f"/{_path(group, version)}", group, version, resource)
    if not paths:
        return None
    info = {"title": "Kubernetes", "version": release.git_version}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _paths(root: str, group: str, version: str, resource: Resource) -> dict[str, Any]:
    base = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    kind = {"x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": resource.kind}}
    write = {"parameters": _PARAMETERS, "responses": {"200": {"description": "OK"}}} | kind
    return {base: {"post": write}, f"{base}/{{name}}": {"patch": write, "put": write}}
