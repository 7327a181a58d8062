"""The part of OpenAPI v3 that kubectl reads: the requests that support `fieldValidation`.

kubectl reads this part before it asks the server to validate a manifest. The schemas themselves are not served, because
the server knows only the names and types of fields (see `registry.schema`) and no other client reads schemas here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.api.routing import served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.releases import Release
    from gangjobs_sandbox.resources import Resource

__all__ = ["document", "index"]

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]


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
