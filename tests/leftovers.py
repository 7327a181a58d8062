"""What a test leaves in its namespace: its gangs are deleted, and the namespace stays.

The deletion of a namespace costs the API server about a hundred requests, and the namespace controller sends them again
and again while a pod has a finalizer. A control plane of the tests ends soon after its tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
_MERGE = {"Content-Type": "application/merge-patch+json"}


def delete_gangs(api: httpx.Client, namespace: str) -> None:
    """Delete the Jobs and the pods of a namespace at once, with the finalizers that hold them.

    :param api: an HTTP client with the rights of an administrator.
    """
    jobs, pods = f"/apis/batch/v1/namespaces/{namespace}/jobs", f"/api/v1/namespaces/{namespace}/pods"
    for path in (jobs, pods):
        _delete_all(api, path)


def _delete_all(api: httpx.Client, path: str) -> None:
    for obj in _items(api, path):
        api.request("DELETE", f"{path}/{obj['metadata']['name']}", json=_AT_ONCE)
    for obj in _items(api, path):
        api.patch(f"{path}/{obj['metadata']['name']}", json={"metadata": {"finalizers": None}}, headers=_MERGE)


def _items(api: httpx.Client, path: str) -> list[dict[str, dict[str, str]]]:
    items: list[dict[str, dict[str, str]]] = api.get(path).raise_for_status().json()["items"]
    return items
