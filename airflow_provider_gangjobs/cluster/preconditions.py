"""Writes with preconditions: they apply only to the object that the caller has read, or only to the version of it.

Each function sends one request and does not retry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_gangjobs.cluster.errors import Conflict, Invalid, NotFound, is_of_another_uid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from airflow_provider_gangjobs.cluster.resources import Resource
    from airflow_provider_gangjobs.kube.views import Meta


class PatchingClient(Protocol):
    """The method of `cluster.client.Client` that sends a merge patch."""

    async def patch(self, resource: Resource, name: str, namespace: str | None, body: Mapping[str, Any]) -> Any:
        """Merge-patch an object."""


class DeletingClient(Protocol):
    """The method of `cluster.client.Client` that sends a deletion."""

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, *, uid: str) -> None:
        """Delete an object."""


async def patch_uid(
    client: PatchingClient, resource: Resource, name: str, namespace: str | None, uid: str, body: Mapping[str, Any]
) -> bool:
    """Merge-patch the object of exactly this uid.

    :param body: The merge patch, without a uid.
    :return: False if the object is gone, or if another object has its name.

    Raises:
        Conflict: Others changed the object at the same time.
        ClusterError: The request failed. The patch may have been applied.
    """
    return await _is_applied(client.patch(resource, name, namespace, _with_metadata(body, uid=uid)))


async def patch_version(
    client: PatchingClient, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> Any:
    """Merge-patch an object in the version that was read. Return the object as the server stored it.

    :param metadata: The metadata that was read.
    :param body: The merge patch, without a uid and without a resourceVersion.

    Raises:
        Conflict: The object has changed.
        NotFound: The object does not exist.
        ClusterError: The request failed. The patch may have been applied.
    """
    seen = _with_metadata(body, uid=metadata["uid"], resourceVersion=metadata["resourceVersion"])
    return await client.patch(resource, metadata["name"], metadata["namespace"], seen)


async def patch_unchanged(
    client: PatchingClient, resource: Resource, metadata: Mapping[str, Any], body: Mapping[str, Any]
) -> bool:
    """Merge-patch an object as `patch_version` does. Return false if the object has changed or is gone.

    Raises:
        ClusterError: The request failed. The patch may have been applied.
    """
    try:
        return await _is_applied(patch_version(client, resource, metadata, body))
    except Conflict:
        return False


async def delete_uid(client: DeletingClient, resource: Resource, name: str, namespace: str | None, uid: str) -> bool:
    """Delete the object of exactly this uid, and in the background what it owns.

    :return: False if the object is gone, or if another object has its name.

    Raises:
        ClusterError: The request failed. The object may be deleted.
    """
    return await _is_applied(client.delete(resource, name, namespace, uid=uid))


def version_of(metadata: Meta) -> dict[str, str]:
    """Return the metadata that names an object in the version that was read, as `patch_version` needs them."""
    return {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }


async def _is_applied(write: Awaitable[object]) -> bool:
    """Send a write, and return false if its object is gone or another object has the name."""
    try:
        await write
    except NotFound:
        return False
    except (Conflict, Invalid) as error:
        if is_of_another_uid(error):
            return False
        raise
    return True


def _with_metadata(body: Mapping[str, Any], **expected: str) -> dict[str, Any]:
    return {**body, "metadata": {**body.get("metadata", {}), **expected}}


__all__ = [
    "DeletingClient",
    "PatchingClient",
    "delete_uid",
    "patch_uid",
    "patch_unchanged",
    "patch_version",
    "version_of",
]
